"""Count calls for Prometheus and render the metrics of all workers on one page."""

from __future__ import annotations

import asyncio
import os
import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from slipform import __version__

if TYPE_CHECKING:
    from slipform.addons.server.observability.call_record import CallRecord
    from slipform.enforce import Report
    from slipform.ir import Usage

_MAX_MODELS = 200
"""Names of models that may become labels."""
_MAX_SERIES = 4000
"""Series of `slipform_requests`; later ones count under the model `other`."""
_MAX_LABEL = 200
"""Characters of a label whose value callers or operators chose."""
_OTHER = "other"
_STATUSES = frozenset(map(int, HTTPStatus))
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_OVERHEAD = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


_COUNT_SECONDS = 0.05
_MAX_ENDED = 200


class _Durations:
    """The durations of one API's calls, counted by bucket.

    >>> durations = _Durations((0.1, 1.0))
    >>> durations.observe(0.5)
    >>> durations.cumulated()
    [('0.1', 0), ('1.0', 1), ('+Inf', 1)]
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds: Final = bounds
        self._counts: Final = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration; `prometheus_client` takes ten times as long, because it locks each of its values."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def cumulated(self) -> list[tuple[str, int]]:
        """Return how many durations are within each bound; the last bound is infinite."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class _DurationMetric:
    """A histogram by API, as a collector for the registry."""

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...], registry: CollectorRegistry) -> None:
        self._name: Final = name
        self._help_text: Final = help_text
        self._bounds: Final = bounds
        self._by_api: Final[dict[str, _Durations]] = {}
        registry.register(self)

    def of_api(self, api: str) -> _Durations:
        """Return the durations of an API's calls."""
        return self._by_api.setdefault(api, _Durations(self._bounds))

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, for the registry."""
        family = HistogramMetricFamily(self._name, self._help_text, labels=("api",))
        for api, durations in self._by_api.items():
            family.add_metric((api,), durations.cumulated(), durations.total)
        yield family


class _Series(msgspec.Struct):
    """The metrics of calls with the same labels, cached because looking up labels takes longer than counting.

    The integers count calls since the last page was rendered.
    """

    labels: tuple[str, ...]
    seconds: _Durations
    first: _Durations
    overhead: _Durations
    requests: int = 0
    input_tokens: int = 0
    """Tokens of first answers, like `output_tokens`."""
    output_tokens: int = 0
    first_tries: int = 0
    """Calls whose only answer was valid unchanged."""


class Metrics:
    """The metrics of one worker, owned by its application.

    Label values are bounded: a model's name becomes a label once it is configured or has answered.

    >>> metrics = Metrics(lambda: ["local"])
    >>> metrics.call_started()
    >>> b"slipform_inflight 1.0" in metrics.render()[0]
    True
    """

    def __init__(self, known_models: Callable[[], Iterable[str]]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self._known_models = known_models
        self._model_labels: set[str] = set()
        """The models that may be labels."""
        self._series: dict[tuple[str, ...], _Series] = {}
        self._ended: list[tuple[CallRecord, bool]] = []
        """Calls that are still to be counted, and whether the cache was consulted for them."""
        self._pending: defaultdict[tuple[str, ...], float] = defaultdict(float)
        """Counts by metric and labels since the last page was rendered: adding here takes a tenth of the time."""
        self._seconds = _DurationMetric(
            "slipform_request_seconds", "From the request to the last byte.", _SECONDS, registry
        )
        self._first = _DurationMetric(
            "slipform_ttfc_seconds", "From the request to the answer's first byte.", _SECONDS, registry
        )
        self._overhead = _DurationMetric(
            "slipform_overhead_seconds", "What slipform added to the vendor's time.", _OVERHEAD, registry
        )
        self.inflight = 0
        Gauge("slipform_inflight", "Calls under way.", registry=registry).set_function(lambda: self.inflight)
        self._labelled = {
            "requests": Counter(
                "slipform_requests",
                "Calls by what became of them.",
                ("api", "provider", "model", "strategy", "outcome"),
                registry=registry,
            ),
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
                "slipform_tokens",
                "Tokens, of first answers and of further ones.",
                ("type", "purpose"),
                registry=registry,
            ),
        }
        self._hits = Counter("slipform_cache_hits", "Answers from the cache.", registry=registry)
        self._misses = Counter("slipform_cache_misses", "Answers that the cache did not have.", registry=registry)
        self.generation = Gauge("slipform_config_generation", "Readings of the configuration.", registry=registry)
        self.refused = Counter("slipform_config_refused", "Configurations that were refused.", registry=registry)
        self.last_reload_refused = Gauge(
            "slipform_config_last_reload_refused", "1 when the last reload was refused.", registry=registry
        )
        build = Gauge("slipform_build_info", "The version.", ("version", "python"), registry=registry)
        build.labels(__version__, platform.python_version()).set(1)
        Gauge("slipform_tasks", "Tasks of the event loop.", registry=registry).set_function(_task_count)
        ProcessCollector(registry=registry)

    def call_started(self) -> None:
        """Count a call that came in."""
        self.inflight += 1

    def call_ended(self, record: CallRecord, *, caching: bool = False) -> None:
        """Count a finished call, in batches where an event loop runs: one by one, each takes three times as long.

        `caching` says whether the cache was consulted.
        """
        self.inflight -= 1
        self._ended.append((record, caching))
        if len(self._ended) >= _MAX_ENDED:
            self.count_ended()
        elif len(self._ended) == 1:
            try:
                asyncio.get_running_loop().call_later(_COUNT_SECONDS, self.count_ended)
            except RuntimeError:  # no event loop here
                self.count_ended()

    def count_ended(self) -> None:
        """Count the calls that have finished since the last time."""
        ended = self._ended
        self._ended = []
        for record, caching in ended:
            self._count_call(record, caching=caching)

    def _count_call(self, record: CallRecord, *, caching: bool) -> None:
        series = self._series_of(record)
        usage, seconds, overhead = record.final_totals or record.totals()
        series.requests += 1
        series.seconds.observe(seconds)
        if record.first_byte is not None:
            series.first.observe(record.first_byte - record.started)
        if overhead is not None:
            series.overhead.observe(overhead)
        if record.upstream_status is not None:
            provider = record.provider[:_MAX_LABEL] or "none"
            self._pending["upstream", provider, _status_label(record.upstream_status)] += 1
        if record.cached:
            self._hits.inc()
        elif caching and record.enforced and record.outcome == "ok":
            self._misses.inc()
        report = record.report
        if report is not None:
            if not record.is_plain or record.outcome != "ok":
                self._count_attempts(report, record)
                return
            usage = report.attempts[0].usage
            series.first_tries += 1
        series.input_tokens += usage.input or 0
        series.output_tokens += usage.output or 0

    def _take_counted(self) -> dict[tuple[str, ...], float]:
        """Return and reset the counts since the last page, by metric and labels."""
        counted = self._pending
        self._pending = defaultdict(float)
        for series in self._series.values():
            first_tries = series.first_tries
            counted["requests", *series.labels] += series.requests
            counted["tokens", "input", "answer"] += series.input_tokens
            counted["tokens", "output", "answer"] += series.output_tokens
            counted["attempts", "ok"] += first_tries
            counted["valid", "first_try"] += first_tries
            series.requests = series.input_tokens = series.output_tokens = series.first_tries = 0
        return counted

    def _count_attempts(self, report: Report, record: CallRecord) -> None:
        attempts = report.attempts
        for number, attempt in enumerate(attempts):
            self._pending["attempts", attempt.outcome] += 1
            self._count_tokens(attempt.usage, "reask" if number else "answer")
            for repair in attempt.repairs:
                self._pending["repairs", repair.kind] += 1
            if attempt.patched is not None:
                for patch in attempt.patched.edits:
                    self._pending["repairs", f"patch_{patch.op}"] += 1
        if record.outcome != "ok":
            stage = "failed"
        elif len(attempts) > 1:
            stage = "after_reask"
        elif attempts and (record.repaired or record.patched):
            stage = "after_repair"
        else:
            stage = "first_try"
        self._pending["valid", stage] += 1

    def _count_tokens(self, usage: Usage, purpose: str) -> None:
        if usage.input:
            self._pending["tokens", "input", purpose] += usage.input
        if usage.output:
            self._pending["tokens", "output", purpose] += usage.output

    def _series_of(self, record: CallRecord) -> _Series:
        strategy = record.strategy or ("enforced" if record.enforced else "pass")
        provider = record.provider[:_MAX_LABEL] or "none"
        name = record.model
        model = name[:_MAX_LABEL] if name in self._model_labels else self._model(record)
        labels = (record.api, provider, model, strategy, record.outcome)
        series = self._series.get(labels)
        if series is None and len(self._series) >= _MAX_SERIES:
            labels = (record.api, provider, _OTHER, strategy, record.outcome)
            series = self._series.get(labels)
        if series is None:
            api = record.api
            series = _Series(labels, self._seconds.of_api(api), self._first.of_api(api), self._overhead.of_api(api))
            self._series[labels] = series
        return series

    def _model(self, record: CallRecord) -> str:
        name = record.model
        if not name:
            return "none"
        if name not in self._model_labels:
            if not self._may_be_label(name, record):
                return _OTHER
            self._model_labels.add(name)
        return name[:_MAX_LABEL]

    def _may_be_label(self, name: str, record: CallRecord) -> bool:
        """Return whether a name may become a label: there is room, and the model is configured or has answered."""
        configured = set(self._known_models())
        if name in configured:
            return len(self._model_labels) < _MAX_MODELS
        succeeded = record.outcome == "ok" and 200 <= record.status < 300
        return succeeded and len(self._model_labels | configured) < _MAX_MODELS  # room stays for those

    def render(self, accept: str = "", others: Iterable[tuple[str, str]] = (), worker: str = "") -> tuple[bytes, str]:
        """Return the page and its content type; with pages of `others` (workers by name), samples name their worker."""
        self.count_ended()
        for (metric, *labels), count in self._take_counted().items():
            if count:
                self._labelled[metric].labels(*labels).inc(count)
        encode, content_type = choose_encoder(accept)
        merged = _Merged()
        merged.add(self.registry.collect(), worker)
        for name, page in others:
            merged.add(text_string_to_metric_families(page), name)
        return encode(merged), content_type


class _Merged:
    """The metric families of several workers, one per name."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def add(self, families: Iterable[Metric], worker: str) -> None:
        for family in families:
            merged = self._families.get(family.name)
            if merged is None:
                merged = self._families[family.name] = Metric(family.name, family.documentation, family.type)
            for sample in family.samples:
                labels = {**sample.labels, "worker": worker} if worker else sample.labels
                merged.add_sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar)

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


def _status_label(status: int) -> str:
    """Return a vendor's status as a label: one that HTTP does not define counts by its class."""
    if not status:
        return "none"
    if status in _STATUSES:
        return str(status)
    return f"{str(status)[0]}xx"


def _task_count() -> float:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # no event loop here
        return 0


_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """One worker's number among `count`, and the folder with the sockets of all."""

    index: int
    count: int
    folder: Path
    supervisor: int = field(default_factory=os.getppid)
    """The process that started it: a worker stops when that one is gone."""
    report_alive: Callable[[], None] = lambda: None
    """Tells the supervisor that this worker's event loop runs."""

    def socket_path(self, index: int | None = None) -> Path:
        """Return the socket on which a worker serves the others.

        >>> WorkerAddress(0, 2, Path("run")).socket_path(1).name
        'worker-1.sock'
        """
        return self.folder / f"worker-{self.index if index is None else index}.sock"

    def other_indices(self) -> list[int]:
        """Return the numbers of the other workers.

        >>> WorkerAddress(0, 3, Path("run")).other_indices()
        [1, 2]
        """
        return [index for index in range(self.count) if index != self.index]

    async def others(self) -> list[tuple[str, str]]:
        """Return the metrics pages of the other workers by number, without those that do not answer in time."""
        pages = await self.ask("GET", "/metrics?worker=self", {"accept": "text/plain"})
        return [(str(index), page.decode()) for index, page in pages if page is not None]

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> list[tuple[int, bytes | None]]:
        """Return what the other workers answer, by number; None for those that refuse or do not answer in time."""
        indices = self.other_indices()
        request = worker_request(method, target, headers, body)
        answers = await asyncio.gather(*(_fetch(self.socket_path(index), request) for index in indices))
        return list(zip(indices, answers, strict=True))


def worker_request(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request to another worker: HTTP/1.0, so that the answer ends with the connection."""
    fields = {"host": "worker", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.0\r\n{lines}\r\n".encode() + body


async def _fetch(path: Path, request: bytes) -> bytes | None:
    try:
        async with asyncio.timeout(_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(request)
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    if b" 200 " in head.split(b"\r\n", 1)[0]:
        return body
    return None
