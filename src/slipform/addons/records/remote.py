"""Ask about the pieces of documents on a Ray cluster; sessions, journal and table stay in the process that started."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from slipform.addons.batch.call import runner_router
from slipform.addons.batch.ray import ActorPool, TaskActor, actor_pool, portable_schema
from slipform.addons.records.calls import FinishedCall
from slipform.addons.records.folders import FilesJob, FilesSummary, extract_files
from slipform.addons.records.merging import MergeOptions
from slipform.addons.records.result import Progress
from slipform.addons.records.running import Extractor
from slipform.addons.records.segments import Question
from slipform.addons.records.shapes import QuestionForm, rows_of, shapes_of
from slipform.config import Settings
from slipform.engine.setup import options_of
from slipform.errors import SlipformError
from slipform.named_schemas import schema_named


@dataclass(frozen=True, slots=True)
class ExtractorSpec:
    """What an extractor is built from, here or in a worker."""

    schema: Any
    as_list: bool
    settings: Settings
    models: tuple[str, ...]
    instructions: str | None
    rounds: int
    unique_by: tuple[str, ...]
    folder: str = field(default_factory=lambda: str(Path.cwd()))
    """The working directory, from which `module:Class` is imported."""

    def portable(self) -> ExtractorSpec:
        """Return the same for a worker, which may not have the file of the schema."""
        return dataclasses.replace(self, schema=portable_schema(self.schema, schema_named(self.schema, self.settings)))

    def build(self) -> Extractor:
        """Return the extractor; raises `ConfigError` and `SchemaError` for what it cannot be built from."""
        schema = schema_named(self.schema, self.settings)
        is_list = self.as_list or schema.document.get("type") == "array" or "items" in schema.document
        shapes = rows_of(schema) if is_list else shapes_of(dict(schema.document))
        return Extractor(
            tuple(shapes),
            runner_router(self.settings),
            list(self.models) or "",
            options_of(self.settings),
            self.instructions,
            self.rounds,
            merging=MergeOptions(self.unique_by),
        )


@dataclass(frozen=True, slots=True)
class PieceTask:
    """A question, and which of the extractor's shapes it is about."""

    question: Question
    shape: int
    form: QuestionForm


class PieceActor(TaskActor):
    """A Ray actor that asks about pieces with one client and one event loop."""

    def __init__(self, spec: ExtractorSpec) -> None:
        super().__init__(self.ask)
        self._spec = spec
        self._extractor: Extractor

    async def prepare(self) -> SlipformError | None:
        """Build the extractor; return what is wrong with it here, because Ray would wrap what is raised."""
        if self._spec.folder not in sys.path:
            sys.path.insert(0, self._spec.folder)
        try:
            self._extractor = self._spec.build()
        except SlipformError as error:
            return error
        return None

    async def ask(self, task: PieceTask) -> FinishedCall | SlipformError:
        """Return the answer to a question, or the error of the vendor."""
        shape = self._extractor.shapes[task.shape]
        try:
            return await self._extractor.caller(shape.in_form(task.form)).ask(task.question)
        except SlipformError as error:
            error.report = None  # Ray pickles the error, and a report need not be picklable
            return error


@dataclass(frozen=True, slots=True)
class RemotePieceCaller:
    """Asks about pieces of one shape on the actors of a cluster."""

    pool: ActorPool
    shape: int
    form: QuestionForm

    async def ask(self, question: Question) -> FinishedCall:
        """Return the valid records of the answer; raises `UpstreamError` when the vendor fails."""
        finished: FinishedCall = await self.pool.ask(PieceTask(question, self.shape, self.form))
        return finished


async def extract_on_ray(
    job: FilesJob, spec: ExtractorSpec, on_progress: Callable[[Progress], None] | None = None
) -> FilesSummary:
    """Extract the records of all files; calls are made by the actors of a Ray cluster."""
    async with actor_pool(PieceActor, [spec.portable()], job.limits.concurrency) as pool:
        extractor = dataclasses.replace(job.extractor, remote_caller=partial(RemotePieceCaller, pool))
        return await extract_files(dataclasses.replace(job, extractor=extractor), on_progress)
