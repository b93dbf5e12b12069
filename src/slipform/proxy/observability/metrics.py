"""Prometheus metrics of all workers."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from slipform import __version__

if TYPE_CHECKING:
    from slipform.proxy.observability.call_record import CallRecord

_MAX_MODELS = 200
"""Names of models that become labels."""
_MAX_SERIES = 4000
"""Series of `slipform_requests`; what comes later counts under the model `other`."""
_LONGEST = 200
"""Characters of a label that others have chosen."""
_OTHER = "other"
_STATUSES = frozenset(map(int, HTTPStatus))
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_OVERHEAD = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class _Series(NamedTuple):
    """What calls with the same labels are counted in; looking labels up takes longer than counting."""

    requests: Counter
    seconds: Histogram
    first: Histogram
    overhead: Histogram


class Metrics:
    """Counts calls. A label's values are bounded: a model's name is its label once it is known or has answered.

    >>> metrics = Metrics(lambda: ["local"])
    >>> metrics.began()
    >>> b"slipform_inflight 1.0" in metrics.render()[0]
    True
    """

    def __init__(self, known_models: Callable[[], Iterable[str]]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self._known_models = known_models
        self._names: set[str] = set()
        """Models that have become labels."""
        self._series: dict[tuple[str, ...], _Series] = {}
        self._counters: dict[tuple[str, ...], Counter] = {}
        """The same for everything else that is counted."""
        self._requests = Counter(
            "slipform_requests",
            "Calls by what became of them.",
            ("api", "provider", "model", "strategy", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "slipform_request_seconds",
            "From the request to the last byte.",
            ("api",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._first = Histogram(
            "slipform_ttfc_seconds",
            "From the request to the answer's first byte.",
            ("api",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._overhead = Histogram(
            "slipform_overhead_seconds",
            "What slipform added to the vendor's time.",
            ("api",),
            buckets=_OVERHEAD,
            registry=registry,
        )
        self.inflight = 0
        Gauge("slipform_inflight", "Calls under way.", registry=registry).set_function(lambda: self.inflight)
        self._counted = {
            "attempts": Counter(
                "slipform_attempts", "Model calls of enforced answers by their verdict.", ("reason",), registry=registry
            ),
            "repairs": Counter("slipform_repairs", "Edits that made answers fit.", ("kind",), registry=registry),
            "valid": Counter(
                "slipform_schema_valid", "Enforced answers by where they became valid.", ("stage",), registry=registry
            ),
            "upstream": Counter(
                "slipform_upstream_errors", "Calls that a vendor failed.", ("provider", "status"), registry=registry
            ),
            "tokens": Counter(
                "slipform_tokens", "Tokens, of first answers and of further ones.", ("type", "purpose"),
                registry=registry,
            ),
        }  # fmt: skip
        self._hits = Counter("slipform_cache_hits", "Answers from the cache.", registry=registry)
        self._misses = Counter("slipform_cache_misses", "Answers that the cache did not have.", registry=registry)
        self.generation = Gauge("slipform_config_generation", "Readings of the configuration.", registry=registry)
        self.refused = Counter("slipform_config_refused", "Configurations that were refused.", registry=registry)
        self.last_reload_refused = Gauge(
            "slipform_config_last_reload_refused", "1 when the last reload was refused.", registry=registry
        )
        build = Gauge("slipform_build_info", "The version.", ("version", "python"), registry=registry)
        build.labels(__version__, platform.python_version()).set(1)
        Gauge("slipform_tasks", "Tasks of the event loop.", registry=registry).set_function(_tasks)
        ProcessCollector(registry=registry)

    def began(self) -> None:
        """A call came in."""
        self.inflight += 1

    def ended(self, record: CallRecord, *, caching: bool = False) -> None:
        """A call is over. `caching` says whether the cache was looked into."""
        self.inflight -= 1
        series = self._series_of(record)
        series.requests.inc()
        series.seconds.observe(record.seconds)
        if record.first_byte is not None:
            series.first.observe(record.first_byte - record.started)
        if (added := record.overhead) is not None:
            series.overhead.observe(added)
        if record.upstream_status is not None:
            self._count("upstream", record.provider[:_LONGEST] or "none", _status(record.upstream_status))
        if record.cached:
            self._hits.inc()
        elif caching and record.enforced and record.outcome == "ok":
            self._misses.inc()
        if record.report is not None:
            self._judged(record)
        else:
            usage = record.tokens
            self._spent(usage.input, usage.output, "answer")

    def _judged(self, record: CallRecord) -> None:
        report = record.report
        attempts = () if report is None else report.attempts
        for number, attempt in enumerate(attempts):
            self._count("attempts", attempt.outcome)
            self._spent(attempt.usage.input, attempt.usage.output, "reask" if number else "answer")
            for repair in attempt.repairs:
                self._count("repairs", repair.kind)
            for patch in attempt.patches:
                self._count("repairs", f"patch_{patch.op}")
        if record.outcome != "ok":
            self._count("valid", "failed")
        elif len(attempts) > 1:
            self._count("valid", "after_reask")
        elif attempts and (attempts[-1].repairs or attempts[-1].patches):
            self._count("valid", "after_repair")
        else:
            self._count("valid", "first_try")

    def _spent(self, taken: int | None, written: int | None, purpose: str) -> None:
        if taken:
            self._count("tokens", "input", purpose, by=taken)
        if written:
            self._count("tokens", "output", purpose, by=written)

    def _count(self, *key: str, by: float = 1) -> None:
        """Count under a metric's short name and labels."""
        counter = self._counters.get(key)
        if counter is None:
            metric, *labels = key
            counter = self._counters[key] = self._counted[metric].labels(*labels)
        counter.inc(by)

    def _series_of(self, record: CallRecord) -> _Series:
        how = record.strategy or ("enforced" if record.enforced else "pass")
        provider = record.provider[:_LONGEST] or "none"
        labels = (record.api, provider, self._model(record), how, record.outcome)
        found = self._series.get(labels)
        if found is None and len(self._series) >= _MAX_SERIES:
            labels = (record.api, provider, _OTHER, how, record.outcome)
            found = self._series.get(labels)
        if found is None:
            timed = (self._seconds, self._first, self._overhead)
            found = _Series(self._requests.labels(*labels), *(each.labels(record.api) for each in timed))
            self._series[labels] = found
        return found

    def _model(self, record: CallRecord) -> str:
        name = record.model
        if not name:
            return "none"
        if name not in self._names:
            if not self._admits(name, record):
                return _OTHER
            self._names.add(name)
        return name[:_LONGEST]

    def _admits(self, name: str, record: CallRecord) -> bool:
        """Whether a name becomes a label: there is room for it, and nobody has made it up."""
        known = set(self._known_models())
        if name in known:
            return len(self._names) < _MAX_MODELS
        answered = record.outcome == "ok" and 200 <= record.status < 300
        return answered and len(self._names | known) < _MAX_MODELS  # those that are configured keep their places

    def render(self, accept: str = "", others: Iterable[tuple[str, str]] = (), worker: str = "") -> tuple[bytes, str]:
        """The page and its content type; with the pages of `others` (workers by name) every sample tells its worker."""
        encode, content_type = choose_encoder(accept)
        merged = _Merged()
        merged.add(self.registry.collect(), worker)
        for name, page in others:
            merged.add(text_string_to_metric_families(page), name)
        return encode(merged), content_type

    def plain(self) -> str:
        """Our own metrics, in the text format."""
        return self.render()[0].decode()


class _Merged:
    """Families of several workers under one name each."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def add(self, families: Iterable[Metric], worker: str) -> None:
        for family in families:
            kept = self._families.get(family.name)
            if kept is None:
                kept = self._families[family.name] = Metric(family.name, family.documentation, family.type)
            for sample in family.samples:
                labels = {**sample.labels, "worker": worker} if worker else sample.labels
                kept.add_sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar)

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


def _status(status: int) -> str:
    """A vendor's status as a label: vendors may make up their own, and those are counted by their class."""
    if not status:
        return "none"
    return str(status) if status in _STATUSES else f"{str(status)[0]}xx"


def _tasks() -> float:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # no event loop here
        return 0


_TIMEOUT = 2.0
_ASK = b"GET /metrics?worker=self HTTP/1.0\r\nhost: worker\r\naccept: text/plain\r\n\r\n"


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Which worker this is, of how many, and the folder with their sockets."""

    index: int
    count: int
    folder: Path

    def socket_path(self, index: int | None = None) -> Path:
        """Where a worker listens for the others.

        >>> WorkerAddress(0, 2, Path("run")).socket_path(1).name
        'worker-1.sock'
        """
        return self.folder / f"worker-{self.index if index is None else index}.sock"

    async def others(self) -> list[tuple[str, str]]:
        """The metrics of the other workers by their number; one that does not answer in time is left out."""
        indices = [index for index in range(self.count) if index != self.index]
        found = await asyncio.gather(*(_page(self.socket_path(index)) for index in indices))
        return [(str(index), page) for index, page in zip(indices, found, strict=True) if page is not None]


async def _page(path: Path) -> str | None:
    try:
        async with asyncio.timeout(_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(_ASK)
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return body.decode() if b" 200 " in head.split(b"\r\n", 1)[0] else None
