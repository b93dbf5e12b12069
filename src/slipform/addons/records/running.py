"""Run extractions: the sessions of a shape over a document, with one driver."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from slipform.addons.batch.call import resolved_models
from slipform.addons.batch.jobs import Via
from slipform.addons.records.calls import PieceCaller
from slipform.addons.records.drive import Driver, QuestionFunction
from slipform.addons.records.merging import ExtractedPart, MergeOptions, final_records, merge
from slipform.addons.records.result import Extraction, Record
from slipform.addons.records.segments import Question
from slipform.addons.records.session import PIECE, ExtractionSession, PieceAnswer, SessionOptions
from slipform.addons.records.shapes import QuestionForm, RecordShape
from slipform.addons.records.source import digest_of
from slipform.engine.planning import named_price
from slipform.engine.setup import Options
from slipform.files.document import Document
from slipform.ir import Usage
from slipform.ir.response import guess_tokens
from slipform.prices import BATCH_TIER, cost_of
from slipform.providers.router import Router

Locate: TypeAlias = Literal["auto", "values", "lines"]
_USUAL = ("live", "auto")
"""What journals do not name."""


@dataclass(frozen=True, slots=True)
class Extractor:
    """Extracts records of one shape from documents, with one model or a list of fallbacks."""

    shapes: tuple[RecordShape, ...]
    router: Router
    models: str | Sequence[str]
    options: Options
    instructions: str | None = None
    rounds: int = 6
    max_answer_tokens: int | None = None
    merging: MergeOptions = field(default_factory=MergeOptions)
    via: Via = "live"
    """Whether questions are asked live, or through the vendor's batch API."""
    remote_caller: Callable[[int, QuestionForm], QuestionFunction] | None = None
    """Returns what asks elsewhere about the shape with this index, in this form; None asks from here."""
    locate: Locate = "auto"
    """How records are placed: by their values, by the lines that the model names, or by lines where values do not."""

    def caller(self, shape: RecordShape) -> PieceCaller:
        """Return what asks about pieces of this shape."""
        return PieceCaller(self.router, self.models, self.options, shape, self.instructions, self.max_answer_tokens)

    def first_cost(self, question: Question) -> float | None:
        """Return about what a question costs in a batch, with an answer as long as the text at most."""
        if self.via == "live":
            return None
        tokens = guess_tokens(question.text)
        price = named_price(self.options.prices, self.router, resolved_models(self.router, self.models)[0])
        return cost_of(price, Usage(input=tokens, output=tokens, service_tier=BATCH_TIER))

    def identity(self) -> dict[str, Any]:
        """Return what a journal of this extractor is recognized by, without its sources."""
        return {
            "kind": "extract",
            "schema": self.shapes[0].whole.fingerprint,
            "model": list(resolved_models(self.router, self.models)),
            "instructions": self.instructions,
            "rounds": self.rounds,
            "max_answer_tokens": self.max_answer_tokens,
        } | {name: value for name, value in (("via", self.via), ("locate", self.locate)) if value not in _USUAL}

    async def extract(
        self, document: Document, driver: Driver, on_record: Callable[[Record], None] | None = None
    ) -> Extraction[Any]:
        """Return the records of a document; `on_record` is called with each when it does not change any more."""
        parts: list[ExtractedPart] = []
        stream = None
        if on_record is not None:
            stream = RecordStream(document, on_record, is_early=not self.merging.unique_by)
        for index in range(len(self.shapes)):
            for trial in self._trials(document):
                part = await self._run(index, trial, document, driver, stream)
                if not part.session.is_unplaced and (part.session.candidates or trial.form == "parts"):
                    break
            pages = await self._read_pages(index, part, document, driver)
            parts.append(part._replace(pages=pages))
        extraction = merge(parts, document, self.merging)
        extraction = dataclasses.replace(extraction, report=driver.tally.report(), stopped=driver.tally.stopped)
        if stream is not None:
            stream.send(extraction.records)
        return extraction

    async def _run(
        self, index: int, trial: _Trial, document: Document, driver: Driver, stream: RecordStream | None
    ) -> ExtractedPart:
        """Run a session for the shape with this index."""
        shape = self.shapes[index].in_form(trial.form)
        options = SessionOptions(
            self.rounds, listed=shape.listed, numbered=shape.is_numbered, ends_unplaced=trial.is_tentative
        )
        part = ExtractedPart(shape, ExtractionSession(document.text, options))
        caller: QuestionFunction = self.caller(shape)
        if self.remote_caller is not None:
            caller = self.remote_caller(index, trial.form)
        on_round = None if stream is None else stream.sender(part)
        await driver.run(part.session, caller, on_round, shape.list_name)
        return part

    async def _read_pages(
        self, index: int, part: ExtractedPart, document: Document, driver: Driver
    ) -> Mapping[int, PieceAnswer]:
        """Ask about the images of scanned pages, each by itself."""
        if not document.images:
            return {}
        shape = self.shapes[index]
        caller: QuestionFunction = self.caller(shape)
        if self.remote_caller is not None:
            caller = self.remote_caller(index, "parts")
        questions = [Question(page, f"page {page}", (), (), image=data) for page, data in document.images.items()]
        answers = await driver.answer_all(questions, caller, part.session, shape.list_name)
        return dict(zip(document.images, answers, strict=True))

    def _trials(self, document: Document) -> tuple[_Trial, ...]:
        """Return in which forms the questions are asked, one after the other, until one of them places records.

        An object without lists is one call where its text fits one piece. Records that are placed neither by their
        values nor by lines have no place.
        """
        if self.shapes[0].item is None:
            return (_Trial("whole" if len(document.text) <= PIECE else "parts"),)
        if self.locate == "auto":
            return (_Trial("parts", is_tentative=True), _Trial("lines"), _Trial("parts"))
        return (_Trial("lines" if self.locate == "lines" else "parts"),)

    def source_identity(self, document: Document) -> dict[str, Any]:
        """Return what the journal of one document is recognized by."""
        return {**self.identity(), "source": digest_of(document)}


class _Trial(NamedTuple):
    """A form of the questions, and whether it is given up where the first records cannot be placed."""

    form: QuestionForm
    is_tentative: bool = False


class RecordStream:
    """Sends records when they do not change any more, each once."""

    def __init__(self, document: Document, send: Callable[[Record], None], *, is_early: bool) -> None:
        self._document = document
        self._send = send
        self._sent: set[tuple[str, int, int]] = set()
        self._is_early = is_early
        """Whether records are sent before the end; with `unique_by`, the first of its kind shows at the end."""

    def sender(self, part: ExtractedPart) -> Callable[[], None]:
        """Return what sends the records of a session that have become final."""
        done: set[int] = set()

        def send_final() -> None:
            lines = [line for line in part.session.final if line not in done]
            done.update(lines)
            if self._is_early:
                self.send(final_records(part, self._document, lines))

        return send_final

    def send(self, records: Iterable[Record]) -> None:
        """Send the records that were not sent yet."""
        for record in records:
            key = (record.pointer, record.start, record.end)
            if key not in self._sent or not record.grounded:
                self._sent.add(key)
                self._send(record)
