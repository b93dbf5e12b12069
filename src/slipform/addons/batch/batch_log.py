"""Record vendors' batches in a job's journal, keep their results beside it, and read both back after a crash."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from slipform.addons.batch.journal import read_calls
from slipform.codecs import Codec
from slipform.codecs.batches import UNREADABLE, BatchApi, BatchResult
from slipform.errors import UpstreamError
from slipform.ir import Usage
from slipform.ir.response import NO_USAGE
from slipform.prices import BATCH_TIER, AnyPrice, cost_of

BatchState: TypeAlias = Literal["intended", "submitted", "fetched", "refused", "lost", "left", "taken"]
"""`intended`: about to be submitted. `fetched`: its results are here. `refused`: the vendor did not run it. `lost`: the
vendor did not list it; with an id it was listed later, and canceled. `left`: it had not ended by the deadline.
`taken`: the job had a result for all its items."""
_PAST = frozenset({"refused", "lost", "taken"})
_MARK = b'{"batch":'


class ResultCounts(msgspec.Struct, frozen=True):
    """What the results of a batch hold."""

    requests: int = 0
    answers: int = 0
    errors: int = 0
    not_run: int = 0
    duplicates: int = 0
    unknown: int = 0
    """Results with an id that was never sent."""
    unreadable: int = 0
    usage: Usage = NO_USAGE
    cost: float | None = None

    def __add__(self, other: ResultCounts) -> ResultCounts:
        costs = [each.cost for each in (self, other) if each.cost is not None]
        return ResultCounts(
            self.requests + other.requests,
            self.answers + other.answers,
            self.errors + other.errors,
            self.not_run + other.not_run,
            self.duplicates + other.duplicates,
            self.unknown + other.unknown,
            self.unreadable + other.unreadable,
            self.usage + other.usage,
            sum(costs) if costs else None,
        )


class VendorBatch(msgspec.Struct, frozen=True):
    """One batch at a vendor: a line of the journal for each change of it."""

    batch: str
    """Its tag, with which its results and their ids begin."""
    state: BatchState
    at: float
    """When the state began, in seconds since 1970."""
    ids: tuple[str, ...] = ()
    """The items in it, in its first line."""
    downgrades: tuple[str, ...] = ()
    """What its requests do without, in its first line."""
    wave: int = 1
    """How often its items have been in a batch, this one included; batches of one wave are awaited together."""
    id: str = ""
    """The vendor's name for it."""
    started: float = 0.0
    """When it was first written down."""
    problem: str = ""
    counts: ResultCounts | None = None
    """What its results hold, once they are here."""

    @property
    def is_open(self) -> bool:
        """Whether the vendor may be working on it."""
        return self.state in ("intended", "submitted")


class CallLines(Protocol):
    """A journal that holds lines of calls."""

    def add_call(self, body: bytes) -> None:
        """Append a line."""
        ...

    def calls(self) -> Iterator[bytes]:
        """Yield all lines."""
        ...

    def sync(self) -> None:
        """Write them to disk."""
        ...


@dataclass(frozen=True, slots=True)
class ResultReader:
    """Reads the results of a model's batches."""

    api: BatchApi
    codec: Codec
    price: AnyPrice | None

    def usage(self, answer: bytes) -> Usage:
        """Return the tokens of an answer; none where it does not say."""
        try:
            usage = self.codec.read_usage(self.codec.read(answer).get(self.codec.usage_key))
        except (UpstreamError, *UNREADABLE):
            usage = None
        return (usage or NO_USAGE).replace(service_tier=BATCH_TIER)


class ResultFile:
    """The results of one batch: where each item's is in the file. Later ones of the same item do not count."""

    def __init__(self, path: Path, batch: VendorBatch, reader: ResultReader) -> None:
        self.expected = frozenset(batch.ids)
        """The items that were sent."""
        self._path = path
        self._reader = reader
        self._offsets: dict[str, int] = {}
        self._prefix = f"{batch.batch}-"
        kinds = Counter[str]()
        usage = NO_USAGE
        costs: list[float] = []
        for offset, line in _lines_of(path):
            kind, answer = self._add(line, offset)
            kinds[kind] += 1
            if answer:
                tokens = reader.usage(answer)
                usage = usage + tokens
                cost = cost_of(reader.price, tokens)
                costs += [] if cost is None else [cost]
        self.counts = ResultCounts(len(batch.ids), usage=usage, cost=sum(costs) if costs else None, **kinds)

    def _add(self, line: bytes, offset: int) -> tuple[str, bytes]:
        """Take a line; return what it counts as, and the answer in it."""
        try:
            result = self._reader.api.read_result(line)
        except UNREADABLE:
            return "unreadable", b""
        item = result.id.removeprefix(self._prefix)
        if not result.id.startswith(self._prefix) or item not in self.expected:
            return "unknown", b""
        if item in self._offsets:
            return "duplicates", b""
        self._offsets[item] = offset
        if result.error is not None:
            return "errors", b""
        return ("answers" if result.answer else "not_run"), result.answer

    @property
    def is_foreign(self) -> bool:
        """Whether it has results, and none of this batch."""
        return not self._offsets and self.counts.unknown > 0

    def find(self, item: str) -> BatchResult | None:
        """Return the result of an item."""
        offset = self._offsets.get(item)
        if offset is None:
            return None
        with self._path.open("rb") as file:
            file.seek(offset)
            return self._reader.api.read_result(file.readline())


def _lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield offset, line
            offset += len(line)


class BatchLog:
    """The batches of one job, in the order in which they were intended."""

    def __init__(
        self,
        journal: CallLines,
        folder: Path,
        reader: ResultReader,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._reader = reader
        self._clock = clock
        self._batches = batches_in(journal.calls())
        self._results: dict[str, ResultFile] = {}

    @property
    def batches(self) -> Collection[VendorBatch]:
        """All batches."""
        return self._batches.values()

    @property
    def open(self) -> list[VendorBatch]:
        """Those that the vendor may be working on."""
        return [each for each in self.batches if each.is_open]

    @property
    def fetched(self) -> list[VendorBatch]:
        """Those whose results are here."""
        return [each for each in self.batches if each.state == "fetched"]

    @property
    def lost(self) -> list[VendorBatch]:
        """Those that the vendor has not listed."""
        return [each for each in self.batches if each.state == "lost" and not each.id]

    @property
    def began(self) -> float | None:
        """When the first batch of the items that are in work was intended."""
        return next((each.started for each in self.batches if each.state not in _PAST), None)

    def intend(self, tag: str, ids: Iterable[str], downgrades: Iterable[str], wave: int) -> VendorBatch:
        """Write down a batch that is about to be submitted; it is on disk when this returns."""
        now = self._clock()
        return self._add(VendorBatch(tag, "intended", now, tuple(ids), tuple(sorted(downgrades)), wave, started=now))

    def change(self, batch: VendorBatch, state: BatchState, *, id_: str = "", problem: str = "") -> VendorBatch:
        """Write down another state of a batch."""
        counts = self.results(batch).counts if state == "fetched" else batch.counts
        changed = msgspec.structs.replace(
            batch, state=state, at=self._clock(), id=id_ or batch.id, problem=problem, counts=counts
        )
        line = msgspec.structs.replace(changed, ids=(), downgrades=())
        self._add(changed, line)
        return changed

    def _add(self, batch: VendorBatch, line: VendorBatch | None = None) -> VendorBatch:
        self._journal.add_call(_encoder.encode(line or batch))
        self._journal.sync()
        self._batches[batch.batch] = batch
        return batch

    def finish(self) -> None:
        """Write down that all items have a result; what is added to the job later has a deadline of its own."""
        for batch in list(self.batches):
            if batch.state not in _PAST:
                self.change(batch, "taken")

    @property
    def counts(self) -> ResultCounts:
        """What all results hold."""
        return sum((each.counts for each in self.batches if each.counts is not None), ResultCounts())

    def path(self, batch: VendorBatch) -> Path:
        """Where the results of a batch are kept."""
        return self._folder / f"{batch.batch}.jsonl"

    def results(self, batch: VendorBatch) -> ResultFile:
        """Return the results of a batch that was fetched."""
        results = self._results.get(batch.batch)
        if results is None:
            results = self._results[batch.batch] = ResultFile(self.path(batch), batch, self._reader)
        return results

    def forget(self, batch: VendorBatch) -> None:
        """Delete the results of a batch, which turned out not to be its own."""
        self._results.pop(batch.batch, None)
        self.path(batch).unlink(missing_ok=True)

    def answers(self, item: str) -> Iterator[tuple[VendorBatch, BatchResult | None]]:
        """Yield what the batches that were fetched have for an item, oldest first; None where it is missing."""
        for batch in self.fetched:
            results = self.results(batch)
            if item in results.expected:
                yield batch, results.find(item)

    @property
    def submitted_ids(self) -> set[str]:
        """The vendor's names of all batches."""
        return {each.id for each in self.batches if each.id}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(VendorBatch)


def is_batch_line(body: bytes) -> bool:
    """Whether a line of calls is about a batch."""
    return body.startswith(_MARK)


def batches_in(calls: Iterable[bytes]) -> dict[str, VendorBatch]:
    """Return the batches of a journal by their tags, each in its last state."""
    batches: dict[str, VendorBatch] = {}
    for body in calls:
        if not is_batch_line(body):
            continue
        line = _decoder.decode(body)
        first = batches.get(line.batch)
        if first is not None:
            line = msgspec.structs.replace(line, ids=first.ids, downgrades=first.downgrades)
        batches[line.batch] = line
    return batches


def recorded_batches(path: Path) -> list[VendorBatch]:
    """Return the batches of a journal that another process may be writing."""
    return list(batches_in(read_calls(path)).values())
