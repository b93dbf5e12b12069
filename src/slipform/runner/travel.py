"""A job that travels to processes elsewhere, which ask for its rows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipform.config import Price, Settings
from slipform.engine import Options
from slipform.named_schemas import schema_named
from slipform.runner.jobs import Job
from slipform.runner.template import Template
from slipform.schema import Schema


@dataclass(frozen=True, slots=True)
class Sent:
    """A job without its output, as far as it can be pickled; its schema is made again where it arrives."""

    input: Path
    shape: Any
    settings: Settings
    options: Options
    template: Template
    model: str
    key: str | None
    concurrency: int
    limit: int | None
    max_tokens: int | None
    price: Price | None
    folder: str

    @classmethod
    def of(cls, job: Job, concurrency: int) -> Sent:
        """The job, with so many calls at a time."""
        return cls(
            input=job.input.resolve(),
            shape=_shape(job),
            settings=job.settings,
            options=job.options,
            template=job.template,
            model=job.model,
            key=job.key,
            concurrency=concurrency,
            limit=job.limit,
            max_tokens=job.max_tokens,
            price=job.price,
            folder=str(Path.cwd()),
        )

    def job(self) -> Job:
        """The job again, where it arrived."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        return Job(
            input=self.input,
            out=Path(),
            schema=schema_named(self.shape, self.settings),
            template=self.template,
            model=self.model,
            options=self.options,
            settings=self.settings,
            key=self.key,
            concurrency=self.concurrency,
            limit=self.limit,
            max_tokens=self.max_tokens,
            price=self.price,
        )


def _shape(job: Job) -> Any:
    """What the schema can be made of elsewhere: `module:Class` or a type, for its own validators; else the document."""
    shape = job.shape
    plain = isinstance(shape, str) and ":" not in shape
    return dict(job.schema.document) if plain or isinstance(shape, Path | Schema) else shape
