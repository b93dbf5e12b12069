"""Extract every record of a long document, or report what is missing: `extract` and its relatives."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, cast, overload

from typing_extensions import TypeForm

from slipform.addons.batch.batched_calls import BatchPolicy
from slipform.addons.batch.scheduler import run_loop
from slipform.addons.records.batched import BatchedExtraction, batch_api_of, in_batches
from slipform.addons.records.drive import CallJournal, Driver, ExtractionTally, Limits, all_at_once
from slipform.addons.records.estimate import estimate
from slipform.addons.records.merging import MergeOptions
from slipform.addons.records.result import Estimate, Extraction, Progress, Record, incomplete
from slipform.addons.records.running import Extractor, Locate
from slipform.addons.records.shapes import shapes_of
from slipform.addons.records.source import AnySource, document_of
from slipform.errors import ConfigError
from slipform.files.document import Document
from slipform.library.async_client import AsyncClient
from slipform.library.client import Client
from slipform.library.request import RawSchema
from slipform.library.shortcuts import _client

T = TypeVar("T")
S = TypeVar("S")


class ExtractOptions(TypedDict, total=False):
    """Keyword arguments of an extraction; what is left out, or None, has its default."""

    client: Client | AsyncClient | None
    """The client whose models, settings and connections are used; the shared one by default."""
    model: str | Sequence[str] | None
    """`provider/model`, or an alias; several are tried in their order."""
    instructions: str | None
    """What to extract, beyond the descriptions of the schema."""
    max_cost: float | None
    """Money for the whole extraction. When a budget is spent, the rest of the source is in `failures`."""
    max_tokens: int | None
    """Tokens, in and out, for the whole extraction."""
    max_seconds: float | None
    """Seconds for the whole extraction."""
    max_calls: int | None
    """Model calls for the whole extraction."""
    max_answer_tokens: int | None
    """Tokens of one answer, at most."""
    concurrency: int | None
    """Calls at a time, at most; 8 by default."""
    rounds: int | None
    """How often stretches without a record are asked about again, at most; 6 by default."""
    on_gap: Literal["report", "raise"] | None
    """Whether an incomplete result is returned, or raises `IncompleteExtraction`."""
    unique_by: Sequence[str] | None
    """Fields that identify a record. Without them, two equal rows at two places are two records."""
    locate: Locate | None
    """How records are placed: by their values, by the `lines` that the model names, or (`auto`) by lines where too few
    values are in the text."""
    ungrounded: Literal["reject", "keep"] | None
    """What becomes of records that are not in the source; `keep` marks them."""
    journal: Path | str | None
    """A file that answers are written to; the same call resumes from it."""
    via: Literal["live", "batch"] | None
    """`batch` asks through the vendor's batch API at half the price; it needs a journal."""
    deadline: float | None
    """Seconds after the first batch, at which the rest is asked live; a day by default."""
    on_progress: Callable[[Progress], None] | None
    """Called after each call to a model."""


_NAMES = frozenset(ExtractOptions.__annotations__)


@dataclass(frozen=True, slots=True)
class _Job:
    """An extraction that is ready to run."""

    extractor: Extractor
    document: Document
    options: ExtractOptions


def _limits(options: ExtractOptions) -> Limits:
    return Limits(
        options.get("max_cost"),
        options.get("max_tokens"),
        options.get("max_seconds"),
        options.get("max_calls"),
        options.get("concurrency") or 8,
    )


def _job(shape: Any, source: AnySource, options: ExtractOptions) -> _Job:
    unknown = sorted(set(options) - _NAMES)
    if unknown:
        raise TypeError(f"Unknown argument {unknown[0]!r}; the arguments are {', '.join(sorted(_NAMES))}")
    client = options.get("client") or _client()
    rounds = options.get("rounds")
    extractor = Extractor(
        tuple(shapes_of(shape)),
        client.router,
        options.get("model") or client.model or "",
        client.options,
        options.get("instructions"),
        6 if rounds is None else rounds,
        options.get("max_answer_tokens"),
        MergeOptions(tuple(options.get("unique_by") or ()), options.get("ungrounded") == "keep"),
        via=options.get("via") or "live",
        locate=options.get("locate") or "auto",
    )
    if extractor.via == "batch":
        if options.get("journal") is None:
            raise ConfigError(
                "Batches outlive the process, and there is no journal to find them in", hint='Add `journal="FILE"`.'
            )
        batch_api_of(extractor)
    return _Job(extractor, document_of(source), options)


async def _run(job: _Job, on_record: Callable[[Record], None] | None = None) -> Extraction[Any]:
    path = job.options.get("journal")
    journal = None
    if path is not None:
        journal = CallJournal(Path(path), job.extractor.source_identity(job.document))
    extractor = job.extractor
    limits = _limits(job.options)
    if extractor.via == "batch":
        limits = all_at_once(limits)
    driver = Driver(ExtractionTally(limits, first_cost=extractor.first_cost), journal, job.options.get("on_progress"))
    try:
        async with contextlib.AsyncExitStack() as stack:
            if extractor.via == "batch" and journal is not None and path is not None:
                extractor = await stack.enter_async_context(in_batches(extractor, journal, _batched(job, Path(path))))
            extraction = await extractor.extract(job.document, driver, on_record)
    finally:
        if journal is not None:
            journal.close()
    if job.options.get("on_gap") == "raise" and not extraction.complete:
        raise incomplete(extraction)
    return extraction


def _batched(job: _Job, journal: Path) -> BatchedExtraction:
    policy = BatchPolicy()
    if (deadline := job.options.get("deadline")) is not None:
        policy = BatchPolicy(deadline)
    return BatchedExtraction(policy, journal.with_name(f"{journal.name}.batches"), _limits(job.options).concurrency)


def _value_of(extraction: Extraction[Any]) -> Any:
    """Return the value; raises where it does not fit its schema."""
    if any(failure.reason.startswith("the result does not fit") for failure in extraction.failures):
        raise incomplete(extraction)
    return extraction.value


def _run_here(main: Callable[[], Coroutine[Any, Any, S]]) -> S:
    """Run on a separate event loop, in another thread where this one has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_loop(main)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run_loop, main).result()


@overload
def extract(shape: type[T], source: AnySource, **options: Unpack[ExtractOptions]) -> T: ...
@overload
def extract(shape: RawSchema, source: AnySource, **options: Unpack[ExtractOptions]) -> Any: ...
@overload
def extract(shape: TypeForm[T], source: AnySource, **options: Unpack[ExtractOptions]) -> T: ...
def extract(shape: Any, source: AnySource, **options: Unpack[ExtractOptions]) -> Any:
    """Return every record of a source, of any length, in source order.

    `slipform.extract(list[Invoice], Path("invoices.txt"))` returns a list; `ExtractOptions` lists the arguments, and
    `extract_full` says what is missing or in doubt.
    """
    return _value_of(_run_here(lambda: _run(_job(shape, source, options))))


@overload
def extract_full(shape: type[T], source: AnySource, **options: Unpack[ExtractOptions]) -> Extraction[T]: ...
@overload
def extract_full(shape: RawSchema, source: AnySource, **options: Unpack[ExtractOptions]) -> Extraction[Any]: ...
@overload
def extract_full(shape: TypeForm[T], source: AnySource, **options: Unpack[ExtractOptions]) -> Extraction[T]: ...
def extract_full(shape: Any, source: AnySource, **options: Unpack[ExtractOptions]) -> Extraction[Any]:
    """`extract`, with the place of every record, the coverage of the source, conflicts, failures and the cost."""
    return _run_here(lambda: _run(_job(shape, source, options)))


@overload
async def extract_async(shape: type[T], source: AnySource, **options: Unpack[ExtractOptions]) -> T: ...
@overload
async def extract_async(shape: RawSchema, source: AnySource, **options: Unpack[ExtractOptions]) -> Any: ...
@overload
async def extract_async(shape: TypeForm[T], source: AnySource, **options: Unpack[ExtractOptions]) -> T: ...
async def extract_async(shape: Any, source: AnySource, **options: Unpack[ExtractOptions]) -> Any:
    """`extract` for event loops."""
    return _value_of(await _run(_job(shape, source, options)))


@overload
async def extract_full_async(shape: type[T], source: AnySource, **options: Unpack[ExtractOptions]) -> Extraction[T]: ...
@overload
async def extract_full_async(
    shape: RawSchema, source: AnySource, **options: Unpack[ExtractOptions]
) -> Extraction[Any]: ...
@overload
async def extract_full_async(
    shape: TypeForm[T], source: AnySource, **options: Unpack[ExtractOptions]
) -> Extraction[T]: ...
async def extract_full_async(shape: Any, source: AnySource, **options: Unpack[ExtractOptions]) -> Extraction[Any]:
    """`extract_full` for event loops."""
    return await _run(_job(shape, source, options))


class ExtractionStream(Generic[T]):
    """Iterates over finished records; `result` is the whole extraction, at the end."""

    def __init__(self, job: _Job) -> None:
        self._queue: queue.SimpleQueue[Record | Extraction[Any] | BaseException] = queue.SimpleQueue()
        self._result: Extraction[Any] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, args=(job,), name="slipform-extract", daemon=True)
        self._thread.start()

    def _work(self, job: _Job) -> None:
        try:
            extraction = run_loop(lambda: _run(job, self._put))
        except BaseException as error:  # noqa: BLE001 — raised where the records are read
            self._queue.put(error)
        else:
            self._queue.put(extraction)

    def _put(self, record: Record) -> None:
        if self._closed:
            raise _ClosedError
        self._queue.put(record)

    def __iter__(self) -> Iterator[Record]:
        while self._result is None:
            each = self._queue.get()
            if isinstance(each, BaseException):
                raise each
            if isinstance(each, Extraction):
                self._result = each
            else:
                yield each

    @property
    def result(self) -> Extraction[T]:
        """The whole extraction; waits for it, and passes over the records that were not read."""
        for _ in self:
            pass
        return cast("Extraction[T]", self._result)

    def close(self) -> None:
        """End the extraction after the calls in flight."""
        self._closed = True


class _ClosedError(Exception):
    """Stop: the records are no longer read."""


@overload
def extract_stream(shape: type[T], source: AnySource, **options: Unpack[ExtractOptions]) -> ExtractionStream[T]: ...
@overload
def extract_stream(shape: RawSchema, source: AnySource, **options: Unpack[ExtractOptions]) -> ExtractionStream[Any]: ...
@overload
def extract_stream(shape: TypeForm[T], source: AnySource, **options: Unpack[ExtractOptions]) -> ExtractionStream[T]: ...
def extract_stream(shape: Any, source: AnySource, **options: Unpack[ExtractOptions]) -> ExtractionStream[Any]:
    """Iterate over records as soon as they do not change any more; `result` has the whole at the end."""
    return ExtractionStream(_job(shape, source, options))


def extract_estimate(shape: Any, source: AnySource, **options: Unpack[ExtractOptions]) -> Estimate:
    """Return about what an extraction will take: pieces, records, tokens, cost, seconds. Nothing is called."""
    job = _job(shape, source, options)
    return estimate(job.extractor, job.document, _limits(options).concurrency)
