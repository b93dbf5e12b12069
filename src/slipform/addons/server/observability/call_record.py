"""Record what is known of one call, for its log line, its response headers and the metrics."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import orjson

from slipform.enforce import Report
from slipform.enforce.stream import StreamWatch
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import ModelResponse, Usage
from slipform.ir.request import CallCount, ModelWarning
from slipform.prices import AnyPrice, cost_of
from slipform.providers.call import VENDOR_RETRIED

Header = tuple[bytes, bytes]
_PLAIN_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_NO_USAGE = Usage()
_SHORT_COST = len("0.123456789")
_MAX_NAME = 200
"""Names are cut to this length in headers and log lines."""


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the caller's `x-request-id` when it is short and plain, else a new one.

    >>> request_id({b"x-request-id": b"order-17"})
    'order-17'
    >>> len(request_id({b"x-request-id": b"two words"}))
    32
    """
    caller_id = headers.get(b"x-request-id")
    if caller_id is not None and _PLAIN_ID.fullmatch(caller_id):
        return caller_id.decode()
    return random.getrandbits(128).to_bytes(16, "big").hex()


class SharedFields(NamedTuple):
    """The fields of a call that many calls have in common, so that their text can be cached."""

    api: str
    caller: str
    model: str
    provider: str
    upstream_model: str
    strategy: str
    enforced: bool
    schema: str
    stream: bool
    timeout: float | None
    attempts: int
    is_repaired: bool
    status: int
    outcome: str
    upstream_status: int | None
    generation: int


MAX_TRACE_BYTES = 256 * 1024
"""The most text that is recorded of one call; of a longer one, the beginning and the full size."""
_TRACE_BYTES = 4_000
"""The size of a call's records without its text."""


class CallTrace:
    """The recorded text of one call: its request, its response, and each piece of the stream."""

    __slots__ = ("_size", "is_archived", "only", "pieces", "request", "response")

    def __init__(self, only: Callable[[CallRecord], bool] | None = None, *, is_archived: bool = True) -> None:
        self.is_archived = is_archived
        """Whether the text may be written to the history on disk."""
        self.only = only
        """Returns whether to keep the text of a call that has ended; by default it is kept for all calls."""
        self.request = b""
        self.response = b""
        self.pieces: list[tuple[float, int, str, str, int]] = []
        """Milliseconds since the call began, attempt, text received, text sent, number of pending characters."""
        self._size = 0

    @property
    def size(self) -> int:
        """The approximate size in bytes, including the report of the call."""
        return len(self.request) + 3 * len(self.response) + _TRACE_BYTES

    @property
    def is_small(self) -> bool:
        """Whether nothing has to be cut, and the call was not streamed."""
        return len(self.request) <= MAX_TRACE_BYTES and len(self.response) <= MAX_TRACE_BYTES and not self.pieces

    def add_piece(self, milliseconds: float, attempt: int, received: str, sent: str, pending: int) -> None:
        """Record a piece of a stream, up to the size limit."""
        self._size += len(received) + len(sent) + 24
        if self._size <= MAX_TRACE_BYTES:
            self.pieces.append((round(milliseconds, 1), attempt, received, sent, pending))


CallTotals = tuple[Usage, float, float | None]
"""Tokens, seconds, and the seconds that slipform itself added; None where the vendor's share is unknown."""


class CallRecord(msgspec.Struct):
    """One inbound call, owned by the application until it is logged. Fields are set when they become known.

    >>> CallRecord("r1", api="openai_chat", model="local").headers()
    [(b'x-request-id', b'r1'), (b'x-slipform-request-id', b'r1'), (b'x-slipform-model', b'local')]
    """

    request_id: str
    api: str = ""
    has_own_id: bool = False
    """Whether slipform made the id up; a caller's may hold a key."""
    caller: str = ""
    """The name of the caller's key."""
    model: str = ""
    """The name in the request."""
    provider: str = ""
    upstream_model: str = ""
    strategy: str = ""
    stream: bool = False
    enforced: bool = False
    schema: str = ""
    """The name of the response format, if the call has one."""
    schema_from: str = ""
    """The client library in whose prompt the schema was found, if it was not sent as a field."""
    timeout: float | None = None
    """The seconds the whole request may take."""
    report: Report | None = None
    """Set by `set_report`."""
    repaired: bool = False
    patched: bool = False
    report_asked: bool = False
    """Whether the caller wants to see the report."""
    answer: ModelResponse | None = None
    """The enforced answer."""
    usage: Usage | Callable[[], Usage | None] | None = None
    """Tokens of a forwarded call, or a function that returns them; the report has those of an enforced call."""
    warnings: int = 0
    """The number of warnings of a call without a report; the report has those of an enforced call."""
    trace: CallTrace | None = None
    """Records the text of the call; None where it is not recorded."""
    words: str = "off"
    """Whether its text is `kept`, or why not: tracing is `off` or for `failures`, or the caller has `opted_out`."""
    watch: Callable[[int, int, int, int], None] | None = None
    """Called as the stream grows, while it is watched: attempt, characters received, released, pending."""
    stream_watch: StreamWatch | None = None
    """The watch of the running stream, for subscribers that join later."""
    cost: float | None = None
    """The cost of the answer, where prices are known."""
    budget_headers: tuple[Header, ...] = ()
    """The rest of the caller's budget, as headers."""
    cached: bool = False
    fallbacks: int = 0
    """The number of models that failed before the one that answered."""
    status: int = 0
    outcome: str = "ok"
    """"ok", or the code of the error."""
    upstream_status: int | None = None
    """The vendor's HTTP status, when it failed."""
    waits: tuple[str, ...] = ()
    """Why its vendor was called again, for a call without a report; an enforced call has them in its report's notes."""
    retry_after: float | None = None
    """The seconds that the vendor, or a limit of this server, asked the caller to wait."""
    calls: CallCount | None = None
    """The calls to vendors, and the time spent waiting for them."""
    generation: int = 1
    """The generation of the configuration that served it."""
    started: float = msgspec.field(default_factory=time.monotonic)
    first_byte: float | None = None
    ended: float | None = None
    final_totals: CallTotals | None = None
    """Set when the call is closed, as the next two are."""
    final_fields: SharedFields | None = None
    is_plain: bool = False
    """Whether the report adds nothing to the figures: one attempt, whose answer was valid unchanged."""

    def close(self) -> None:
        """Record when the call ended, and its totals and shared fields, which no longer change."""
        if self.ended is None:
            self.ended = time.monotonic()
        seconds = self.ended - self.started
        overhead = None
        if self.calls is not None and not self.stream:
            overhead = seconds - self.calls.waited_seconds
            if overhead < 0:
                overhead = 0.0
        report = self.report
        tokens = self.tokens
        if report is not None:
            self.is_plain = _is_plain(report)
        self.final_totals = (tokens, seconds, overhead)
        self.final_fields = self.shared_fields()

    def totals(self) -> CallTotals:
        """Return the tokens over all attempts and the times: so far, or at the end of a closed call."""
        if self.final_totals is not None:
            return self.final_totals
        seconds = self.seconds
        return self.tokens, seconds, self._overhead(seconds)

    def add_waits(self, warnings: Sequence[ModelWarning]) -> None:
        """Record why the vendor of a call that is not enforced was called again."""
        self.waits += tuple([each.message for each in warnings if each.code == VENDOR_RETRIED])

    def set_report(self, report: Report) -> None:
        """Record the report of the attempts, and whether the last was repaired or patched."""
        last = report.attempts[-1] if report.attempts else None
        patched = None if last is None else last.patched
        self.report = report
        self.repaired = last is not None and bool(last.repairs)
        self.patched = patched is not None and bool(patched.edits)

    def add_cost(self, price: AnyPrice, usage: Usage) -> float | None:
        """Compute, record and return the cost of an answer."""
        self.cost = cost_of(price, usage)
        return self.cost

    def fail(self, error: SlipformError) -> None:
        """Record why the call failed, with the report of its attempts."""
        self.outcome = error.code
        if isinstance(error.report, Report):
            self.set_report(error.report)
            self.cost = error.report.cost
        self.retry_after = getattr(error, "retry_after", None)
        if isinstance(error, UpstreamError):
            self.upstream_status = error.status or 0

    def observe_growth(self, watch: Callable[[int, int, int, int], None]) -> None:
        """Call `watch` for every further piece of the stream."""
        self.watch = watch
        if self.stream_watch is not None:
            self.stream_watch.tell = self.observe

    @property
    def has_detail(self) -> bool:
        """Whether more is known of it than the figures."""
        has_report = self.report is not None and not self.is_plain
        return has_report or self.retry_after is not None or bool(self.waits)

    @property
    def is_observed(self) -> bool:
        """Whether the stream is watched or traced."""
        return self.trace is not None or self.watch is not None

    def observe(self, attempt: int, received: str, released: str, pending: int) -> None:
        """Report a piece of the stream to the trace and the watch."""
        if self.trace is not None:
            self.trace.add_piece((time.monotonic() - self.started) * 1000, attempt, received, released, pending)
        if self.watch is not None:
            self.watch(attempt, len(received), len(released), pending)

    @property
    def tokens(self) -> Usage:
        """Tokens over all attempts; of a call without attempts, those that its answer tells of."""
        report = self.report
        if report is not None and (report.attempts or self.usage is None):
            return report.tokens
        if callable(self.usage):
            self.usage = self.usage()
        return self.usage or _NO_USAGE

    @property
    def seconds(self) -> float:
        """The seconds that the call took, or has taken so far."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    def _overhead(self, seconds: float) -> float | None:
        if self.stream or self.calls is None:
            return None
        return max(0.0, seconds - self.calls.waited_seconds)

    def headers(self) -> list[Header]:
        """Return the call's request id, figures and warnings as response headers."""
        lines = [line.partition(b": ") for line in self.lines().split(b"\r\n")[1:]]
        return [(name, value) for name, _, value in lines]

    def lines(self) -> bytes:
        """Return `headers` as the lines of a response's head; no value can contain a line break."""
        report = self.report
        verdict = None
        if report is not None:
            verdict = (len(report.attempts), self.repaired, self.patched, len(report.warnings))
        model = self.upstream_model or self.model
        shared = _shared_lines(self.provider, model, self.strategy, verdict, self.cached, self.fallbacks)
        identity = self.request_id.encode()
        lines = b"\r\nx-request-id: %b\r\nx-slipform-request-id: %b%b" % (identity, identity, shared)
        if self.api == "anthropic":
            lines += b"\r\nrequest-id: " + identity  # where its SDK reads it
        if self.schema_from:
            lines += b"\r\nx-slipform-schema-from: " + self.schema_from.encode()
        if self.warnings and report is None:
            lines += b"\r\nx-slipform-warnings: %d" % self.warnings
        if self.cost is not None:
            lines += b"\r\nx-slipform-cost: " + cost_text(self.cost)
        for header in self.budget_headers:
            lines += b"\r\n%b: %b" % header
        if self.calls is not None and not self.stream:
            now = time.monotonic() if self.ended is None else self.ended
            overhead = max(now - self.started - self.calls.waited_seconds, 0.0)
            lines += b"\r\nx-slipform-overhead-ms: " + orjson.dumps(milliseconds(overhead))
        return lines

    def fields(self) -> dict[str, Any]:
        """Return the fields of the call's log line: no prompt, no answer, no key."""
        shared = self.final_fields or self.shared_fields()
        return {"id": self.request_id, **name_fields(shared), **self.figures(), **ending_fields(shared)}

    def shared_fields(self) -> SharedFields:
        """Return the fields that many calls share."""
        report = self.report
        attempts = 0
        is_repaired = False
        if report is not None:
            attempts = len(report.attempts)
            is_repaired = self.repaired or self.patched
        return SharedFields(
            self.api,
            self.caller,
            self.model,
            self.provider,
            self.upstream_model,
            self.strategy,
            self.enforced,
            self.schema[:64],
            self.stream,
            self.timeout,
            attempts,
            is_repaired,
            self.status,
            self.outcome,
            self.upstream_status,
            self.generation,
        )

    def figures(self) -> dict[str, Any]:
        """Return the fields that differ from call to call, except the id."""
        usage, seconds, overhead = self.totals()
        figures: dict[str, Any] = {}
        if usage.input is not None:
            figures["input_tokens"] = usage.input
        if usage.output is not None:
            figures["output_tokens"] = usage.output
        if self.cost is not None:
            figures["cost"] = self.cost
        if self.report is not None and self.report.warnings:
            figures["warnings"] = ",".join(sorted({warning.code for warning in self.report.warnings}))
        if self.schema_from:
            figures["schema_from"] = self.schema_from
        if self.cached:
            figures["cached"] = True
        if self.fallbacks:
            figures["fallbacks"] = self.fallbacks
        figures["latency_ms"] = milliseconds(seconds)
        if self.first_byte is not None:
            figures["first_byte_ms"] = milliseconds(self.first_byte - self.started)
        if overhead is not None:
            figures["overhead_ms"] = milliseconds(overhead)
        return figures


def _is_plain(report: Report) -> bool:
    if len(report.attempts) != 1 or report.warnings or report.notes or report.fallback_errors:
        return False
    attempt = report.attempts[0]
    is_touched = attempt.repairs or attempt.patched or attempt.violations or attempt.stream
    return not is_touched and attempt.outcome == "ok"


def name_fields(shared: SharedFields) -> Mapping[str, Any]:
    """Return the shared fields that precede the figures of a log line, by their log keys, without empty ones."""
    fields = {
        "api": shared.api,
        "caller": shared.caller[:_MAX_NAME] or None,
        "model": shared.model[:_MAX_NAME],
        "provider": shared.provider[:_MAX_NAME] or None,
        "upstream_model": shared.upstream_model[:_MAX_NAME] or None,
        "strategy": shared.strategy or None,
        "require_json": shared.enforced,
        "use_response_schema": bool(shared.schema),
        "schema": shared.schema or None,
        "streaming": shared.stream,
        "timeout": shared.timeout,
        "attempts": shared.attempts,
        "repair_attempted": "yes" if shared.attempts > 1 or shared.is_repaired else "no",
    }
    return {name: value for name, value in fields.items() if value is not None}


def ending_fields(shared: SharedFields) -> Mapping[str, Any]:
    """Return the shared fields after the figures of a log line, by their log keys; no caller chooses their values."""
    fields = {
        "status": shared.status,
        "outcome": shared.outcome,
        "upstream_status": shared.upstream_status or None,
        "config": shared.generation,
    }
    return {name: value for name, value in fields.items() if value is not None}


@lru_cache(maxsize=512)
def _shared_lines(
    provider: str, model: str, strategy: str, verdict: tuple[int, bool, bool, int] | None, cached: bool, fallbacks: int
) -> bytes:
    """Return the headers that are the same for many calls, as lines."""
    names = ((b"provider", provider), (b"model", model), (b"strategy", strategy))
    headers = [(name, _printable(value)) for name, value in names if value]
    if verdict is not None:
        attempts, repaired, patched, warnings = verdict
        headers += [(b"attempts", b"%d" % attempts), (b"repaired", _boolean(repaired)), (b"patched", _boolean(patched))]
        headers.append((b"warnings", b"%d" % warnings))
    if cached:
        headers.append((b"cache", b"hit"))
    if fallbacks:
        headers.append((b"fallbacks", b"%d" % fallbacks))
    return b"".join([b"\r\nx-slipform-%b: %b" % header for header in headers])


def cost_text(cost: float) -> bytes:
    """Return an amount of money as a plain decimal number.

    >>> cost_text(0.00002), cost_text(0.0)
    (b'0.00002', b'0')
    """
    text = orjson.dumps(cost)  # takes a third of the time of `%`
    if len(text) > _SHORT_COST or text.find(b"e") >= 0:
        return (b"%.9f" % cost).rstrip(b"0").removesuffix(b".")
    return text.removesuffix(b".0")


def milliseconds(seconds: float) -> float:
    """Return seconds as milliseconds with two decimals.

    >>> milliseconds(0.0123456)
    12.35
    """
    return int(seconds * 100_000.0 + 0.5) / 100.0


def _boolean(value: bool) -> bytes:
    return b"true" if value else b"false"


def _printable(value: str) -> bytes:
    """Return a header value of printable ASCII characters, cut to `_MAX_NAME`."""
    value = value[:_MAX_NAME]
    if value.isascii() and value.isprintable():
        return value.encode()
    return "".join(character if " " <= character <= "~" else "?" for character in value).encode()
