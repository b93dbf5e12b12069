"""Write the proxy's log: one redacted line per request and event, as text or JSON."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import IO, Any, Literal

import orjson

from slipform.addons.server.observability.call_record import (
    CallRecord,
    SharedFields,
    ending_fields,
    milliseconds,
    name_fields,
)
from slipform.engine.tracing import LONGEST_FIELD, cut, pairs, without_controls
from slipform.providers.auth import MASK

requests = logging.getLogger("slipform.requests")
"""One line per request."""
traces = logging.getLogger("slipform.traces")
"""Requests and responses in full; only with `server.debug_traces`."""

_MAX_TRACE = 64 * 1024
_CUT = " …"
_MAX_MESSAGE = 4_000
_FLUSH_SECONDS = 0.05
_MAX_PENDING = 500
_REQUEST = "request"
_HINTS = (
    "authorization", "bearer", "api-key", "api_key", "apikey", "key=", "access", "secret", "password",
    "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "xai", "hf_", "hf-", "aiza", "akia",
)  # fmt: skip
"""Every text that `_SECRETS` could match has one of these: a cheap test before the costly one."""
_SECRETS = re.compile(
    r"""(?ix)
    (?P<keep>
        \bauthorization\\*["']?\s*[:=,]\s*(?:b?\\*["'])?(?:bearer\s+|basic\s+)?
      | \bbearer\s+
      | \b(?:x-api-key|x-goog-api-key|api[-_]?key|access[-_]?token|client[-_]?secret|password|secret)
        \\*["']?\s*[:=,]\s*(?:b?\\*["'])?
      | [?&](?:key|api_key|access_token)=
    )
    (?P<value>[^\s"'&,;}\])\\]{4,})
  | \b(?:sk|pk|rk|gsk|xai|hf)[-_][A-Za-z0-9_\-]{8,}
  | \bAIza[A-Za-z0-9_\-]{20,}
  | \bAKIA[A-Z0-9]{12,}
    """
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without anything that looks like a key or is one of `secrets`.

    >>> redact("GET /v1beta/models?key=abcdef123 Authorization: Bearer abc.def-ghi x-api-key: zyxwv sk-proj-12345678")
    'GET /v1beta/models?key=[redacted] Authorization: Bearer [redacted] x-api-key: [redacted] [redacted]'
    """
    for secret in secrets:
        text = text.replace(secret, MASK)
    if _may_hold_key(text):
        return _SECRETS.sub(_mask, text)
    return text


def _may_hold_key(text: str) -> bool:
    """Return whether the text is worth searching; nearly no line is."""
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)


def _mask(match: re.Match[str]) -> str:
    if match["keep"] is not None:
        return f"{match['keep']}{MASK}"
    return MASK


@lru_cache(maxsize=4)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class LogFormatter(logging.Formatter):
    """Formats a record as one line, redacted as a whole: message, fields and traceback."""

    def __init__(self, style: Literal["text", "json"], secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._json = style == "json"
        self._secrets = tuple(sorted(secrets, key=len, reverse=True))
        self._shared_texts = lru_cache(maxsize=512)(self._write_shared)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        fields: dict[str, Any] = record.__dict__.get("slipform", {})
        trace = self.formatException(record.exc_info) if record.exc_info else None
        message = record.__dict__.get("slipform_event") or record.getMessage()
        line = self._line(record.created, record.levelname.lower(), record.name, message, fields, trace)
        return redact(line, self._secrets)

    def request(self, record: CallRecord, at: float) -> str:
        """Return the line of a call, as `format` would write it, with the parts that calls share cached."""
        names, ending = self._shared_texts(record.final_fields or record.shared_fields())
        if self._json or not names or not record.has_own_id:
            return self.format(as_record(record, at))
        return f"{_time(at)} info {_REQUEST} id={record.request_id} {names} {_figures_text(record)} {ending}"

    def _write_shared(self, shared: SharedFields) -> tuple[str, str]:
        """Return the shared fields of a call as text; its names are empty where they may hold a key."""
        names = pairs(name_fields(shared))
        has_secret = _may_hold_key(names) or any(secret in names for secret in self._secrets)
        return "" if has_secret else names, pairs(ending_fields(shared))

    def _line(
        self, at: float, level: str, name: str, message: str, fields: Mapping[str, Any], trace: str | None
    ) -> str:
        message = cut(message, _MAX_MESSAGE)
        longest = _MAX_TRACE + len(_CUT) if name == traces.name else LONGEST_FIELD
        if self._json:
            texts = {key: cut(value, longest) if isinstance(value, str) else value for key, value in fields.items()}
            entry = {"time": _time(at), "level": level, "logger": name, **texts}
            if message:
                entry["message"] = message
            if trace is not None:
                entry["trace"] = cut(trace, _MAX_TRACE)
            # JSON escapes the C0 control characters, not the C1 ones.
            return without_controls(orjson.dumps(entry, default=str).decode())
        line = f"{_time(at)} {level} {without_controls(message) or name.removeprefix('slipform.')}"
        if fields:
            line = f"{line} {pairs(fields, longest)}"
        if trace is None:
            return line
        return "\n".join([line, *map(without_controls, cut(trace, _MAX_TRACE).split("\n"))])


def _figures_text(record: CallRecord) -> str:
    """Return the figures of a call as text; those that nearly every call has are written without a dict."""
    usage, seconds, overhead = record.final_totals or record.totals()
    report = record.report
    is_usual = usage.input is not None and usage.output is not None and record.first_byte is not None
    is_special = record.schema_from or record.cached or record.fallbacks or (report is not None and report.warnings)
    if is_special or not is_usual or record.first_byte is None:
        return pairs(record.figures())
    first = record.first_byte - record.started
    # orjson writes numbers in a fifth of the time of Python, and together in less.
    values = [usage.input, usage.output, record.cost, milliseconds(seconds)]
    if overhead is not None:
        values.append(milliseconds(overhead))
    prompt, answer, cost, latency, *added = orjson.dumps(values)[1:-1].decode().split(",")
    priced = "" if record.cost is None else f"cost={cost} "
    first_latency = latency if first == seconds else orjson.dumps(milliseconds(first)).decode()
    text = f"input_tokens={prompt} output_tokens={answer} {priced}latency_ms={latency} first_byte_ms={first_latency}"
    return f"{text} overhead_ms={added[0]}" if added else text


def _time(at: float) -> str:
    second, thousandths = divmod(int(at * 1000), 1000)
    return f"{_second(second)}.{str(1000 + thousandths)[1:]}+00:00"


class Writer(logging.StreamHandler[IO[str]]):
    """Writes lines to a stream, in their order; the root logger's only handler in the proxy.

    Lines of requests are formatted and written in batches: one by one, each would cost three times as much. Any other
    line is written at once, after the pending ones, as are all when the process ends.
    """

    def __init__(self, stream: IO[str], lines: LogFormatter) -> None:
        super().__init__(stream)
        self.setFormatter(lines)
        self.lines = lines
        self.pending: list[tuple[CallRecord, float]] = []
        """Calls whose lines are still to be written."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop whose timer will flush the pending lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a failure is reported on standard error, as logging does."""
        self.flush()
        try:
            self._write([self.format(record)])
        except Exception:  # noqa: BLE001 — a log that cannot be written must not stop the server
            self.handleError(record)

    def write_soon(self, record: CallRecord) -> None:
        """Write the line of a call within a batch, or now where no event loop runs."""
        self.pending.append((record, time.time()))
        if len(self.pending) >= _MAX_PENDING:
            self.flush()
        elif self._loop is None or self._loop.is_closed():
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                self.flush()
            else:
                self._loop.call_later(_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write the pending lines."""
        if self.lock is None:
            return
        with self.lock:
            pending = self.pending
            self.pending = []
            self._loop = None
            lines = []
            for call, at in pending:
                try:
                    lines.append(self.lines.request(call, at))
                except Exception:  # noqa: BLE001 — as in `emit`
                    self.handleError(as_record(call, at))
            try:
                self._write(lines)
            except Exception:  # noqa: BLE001 — as in `emit`
                self.handleError(as_record(*pending[-1]))

    def _write(self, lines: list[str]) -> None:
        if lines:
            self.stream.write("\n".join(lines) + "\n")
            self.stream.flush()


def set_up(
    style: Literal["text", "json", "off"], *, secrets: Iterable[str] = (), stream: IO[str] | None = None
) -> logging.Handler:
    """Log requests and warnings of this process on standard error, with `off` only warnings; return the handler."""
    handler = Writer(stream or sys.stderr, LogFormatter("json" if style == "json" else "text", secrets))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    # The line of a request has everything that the line of its call would.
    levels = {"slipform": logging.INFO, "slipform.calls": logging.WARNING, "slipform.requests": logging.INFO}
    # No line shows thread or process: they need not be looked up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for name, level in levels.items():
        logging.getLogger(name).setLevel(logging.WARNING if style == "off" else level)
    logging.getLogger("slipform.audit").setLevel(logging.INFO)  # with `off`, too
    return handler


def log_request(record: CallRecord) -> None:
    """Write the line of a finished call, if its logger is enabled."""
    if not requests.isEnabledFor(logging.INFO):
        return
    first = logging.root.handlers[:1]
    if first and isinstance(first[0], Writer) and first[0].pending and record.outcome == "ok":
        first[0].write_soon(record)  # whether it is the only one was seen when the batch began
        return
    writer = _only_writer()
    if writer is None:
        requests.handle(as_record(record, time.time()))
        return
    writer.write_soon(record)
    if record.outcome != "ok":
        writer.flush()


def as_record(record: CallRecord, at: float) -> logging.LogRecord:
    """Return a call that ended at this time as a `LogRecord`."""
    line = logging.LogRecord(requests.name, logging.INFO, "", 0, _REQUEST, None, None)
    line.created = at
    line.__dict__["slipform"] = record.fields()
    return line


def _only_writer() -> Writer | None:
    """Return our handler when no other handler or filter sees requests, so that no `LogRecord` is needed."""
    handlers = logging.root.handlers
    if len(handlers) != 1 or requests.filters:
        return None
    writer = handlers[0]
    if not isinstance(writer, Writer) or writer.filters or writer.level or writer.formatter is not writer.lines:
        return None
    logger: logging.Logger | None = requests
    while logger is not None and logger is not logging.root:
        if logger.handlers or not logger.propagate:
            return None
        logger = logger.parent
    return writer


def log_trace(record: CallRecord, request: bytes, response: bytes) -> None:
    """Write a request, its attempts and its response in full, for `server.debug_traces`."""
    fields = {"id": record.request_id, "asked": _decode(request), "answered": _decode(response)}
    if record.report is not None and record.enforced:
        attempts = [attempt.to_dict() for attempt in record.report.attempts]
        fields["attempts"] = _decode(orjson.dumps(attempts, default=repr))
    traces.info("trace", extra={"slipform": fields})


def _decode(data: bytes) -> str:
    return data[:_MAX_TRACE].decode("utf-8", "replace") + (_CUT if len(data) > _MAX_TRACE else "")
