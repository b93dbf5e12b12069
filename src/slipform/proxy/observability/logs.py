"""Log lines."""

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

from slipform.engine.tracing import LONGEST_FIELD, cut, pairs, without_controls
from slipform.providers.auth import MASK
from slipform.proxy.observability.call_record import CallRecord, Ending, Names, concluded, named

requests = logging.getLogger("slipform.requests")
"""One line per request."""
traces = logging.getLogger("slipform.traces")
"""What was asked and answered, word for word; only with `server.debug_traces`."""

_MAX_TRACE = 64 * 1024
_CUT = " …"
_LONGEST_MESSAGE = 4_000
_GATHER_SECONDS = 0.02
_MOST_GATHERED = 500
_REQUEST = "request"
_OUR_ID = re.compile(r"[0-9a-f]{32}")
_HINTS = (
    "authorization", "bearer", "api-key", "api_key", "apikey", "key=", "access", "secret", "password",
    "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "xai", "hf_", "hf-", "aiza", "akia",
)  # fmt: skip
"""One of these is in every text that the pattern below could find something in."""
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
    """The text without what looks like a key or is one of `secrets`.

    >>> redact("GET /v1beta/models?key=abcdef123 Authorization: Bearer abc.def-ghi x-api-key: zyxwv sk-proj-12345678")
    'GET /v1beta/models?key=[redacted] Authorization: Bearer [redacted] x-api-key: [redacted] [redacted]'
    """
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _SECRETS.sub(_masked, text) if _may_hold_key(text) else text


def _may_hold_key(text: str) -> bool:
    """Whether it is worth searching: not so for nearly every line."""
    small = text.lower()
    return any(hint in small for hint in _HINTS)


def _masked(found: re.Match[str]) -> str:
    return f"{found['keep']}{MASK}" if found["keep"] is not None else MASK


@lru_cache(maxsize=4)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class LogFormatter(logging.Formatter):
    """A record as one line, redacted as a whole: message, fields and traceback."""

    def __init__(self, style: Literal["text", "json"], secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._json = style == "json"
        self._secrets = tuple(sorted(secrets, key=len, reverse=True))
        self._named = lru_cache(maxsize=512)(_plain_names)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, Any] = record.__dict__.get("slipform", {})
        trace = self.formatException(record.exc_info) if record.exc_info else None
        line = self._line(record.created, record.levelname.lower(), record.name, record.getMessage(), fields, trace)
        return redact(line, self._secrets)

    def request(self, record: CallRecord, at: float) -> str:
        """The line of a call, as `format` writes that of its fields; calls that have the same names share the work."""
        names, identity = self._named(record.names()), record.request_id
        if self._json or names is None or not _OUR_ID.fullmatch(identity):
            return self.format(as_record(record, at))
        figures, ending = pairs(record.figures()), _ending(record.ending())
        line = f"{_time(at)} info {_REQUEST} id={identity} {names} {figures} {ending}"
        for secret in self._secrets:
            if secret in line:
                return redact(line, self._secrets)
        return line

    def _line(
        self, at: float, level: str, name: str, message: str, fields: Mapping[str, Any], trace: str | None
    ) -> str:
        message = cut(message, _LONGEST_MESSAGE)
        longest = _MAX_TRACE + len(_CUT) if name == traces.name else LONGEST_FIELD
        if self._json:
            shown = {key: cut(value, longest) if isinstance(value, str) else value for key, value in fields.items()}
            entry = {"time": _time(at), "level": level, "logger": name, **shown}
            if message:
                entry["message"] = message
            if trace is not None:
                entry["trace"] = cut(trace, _MAX_TRACE)
            # JSON has no raw control characters of the first kind; the others it lets stand.
            return without_controls(orjson.dumps(entry, default=str).decode())
        line = f"{_time(at)} {level} {without_controls(message) or name.removeprefix('slipform.')}"
        if fields:
            line = f"{line} {pairs(fields, longest)}"
        if trace is None:
            return line
        return "\n".join([line, *map(without_controls, cut(trace, _MAX_TRACE).split("\n"))])


def _time(at: float) -> str:
    return f"{_second(int(at))}.{int(at % 1 * 1000):03d}+00:00"


@lru_cache(maxsize=512)
def _ending(ending: Ending) -> str:
    return pairs(concluded(ending))


def _plain_names(names: Names) -> str | None:
    """The names of a call as they stand in its line; None when they have to be masked there."""
    text = pairs(named(names))
    return None if _may_hold_key(text) else text


class Writer(logging.StreamHandler[IO[str]]):
    """Writes our lines to a stream, in their order.

    The lines of requests are spelled and written some at a time: one by one, each would cost thrice as much. Whatever
    else is told leaves at once, after what was gathered, as does all when the process ends.
    """

    def __init__(self, stream: IO[str], lines: LogFormatter) -> None:
        super().__init__(stream)
        self.setFormatter(lines)
        self.lines = lines
        self._gathered: list[tuple[CallRecord, float]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        """Whose timer will write what is gathered."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; what fails is told on standard error, as logging does it."""
        self.flush()
        try:
            self._write([self.format(record)])
        except Exception:  # noqa: BLE001 — a log that cannot be written must not stop what it tells of
            self.handleError(record)

    def gather(self, record: CallRecord) -> None:
        """Write the line of a call soon, or now where no event loop runs that could."""
        self._gathered.append((record, time.time()))
        if len(self._gathered) >= _MOST_GATHERED:
            self.flush()
        elif self._loop is None or self._loop.is_closed():
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                self.flush()
            else:
                self._loop.call_later(_GATHER_SECONDS, self.flush)

    def flush(self) -> None:
        """Write all that was gathered."""
        if self.lock is None:
            return
        with self.lock:
            gathered, self._gathered, self._loop = self._gathered, [], None
            lines = []
            for call, at in gathered:
                try:
                    lines.append(self.lines.request(call, at))
                except Exception:  # noqa: BLE001 — as in `emit`
                    self.handleError(as_record(call, at))
            try:
                self._write(lines)
            except Exception:  # noqa: BLE001 — as in `emit`
                self.handleError(as_record(*gathered[-1]))

    def _write(self, lines: list[str]) -> None:
        if lines:
            self.stream.write("\n".join(lines) + "\n")
            self.stream.flush()


def set_up(
    style: Literal["text", "json", "off"], *, secrets: Iterable[str] = (), stream: IO[str] | None = None
) -> logging.Handler:
    """Make this process log in our way: requests and warnings, on standard error; gives the handler.

    With `off`, only warnings and errors are written.
    """
    handler = Writer(stream or sys.stderr, LogFormatter("json" if style == "json" else "text", secrets))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    # The line of a request says all that the line of its call would.
    levels = {"slipform": logging.INFO, "slipform.calls": logging.WARNING, "slipform.requests": logging.INFO}
    # What no line of ours tells is not looked up for every line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for name, level in levels.items():
        logging.getLogger(name).setLevel(logging.WARNING if style == "off" else level)
    logging.getLogger("slipform.audit").setLevel(logging.INFO)  # also where the operator wants no other lines
    return handler


def log_request(record: CallRecord) -> None:
    """Write the line of a call that is over, if anybody reads it."""
    if not requests.isEnabledFor(logging.INFO):
        return
    writer = _only_writer()
    if writer is None:
        requests.handle(as_record(record, time.time()))
        return
    writer.gather(record)
    if record.outcome != "ok":
        writer.flush()


def as_record(record: CallRecord, at: float) -> logging.LogRecord:
    """A call as logging knows what is to be written; it was over at this time."""
    line = logging.LogRecord(requests.name, logging.INFO, "", 0, _REQUEST, None, None)
    line.created = at
    line.__dict__["slipform"] = record.fields()
    return line


def _only_writer() -> Writer | None:
    """Our handler, when nobody else hears of requests and nobody filters them: it needs no record to be made."""
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


def log_trace(record: CallRecord, asked: bytes, answered: bytes) -> None:
    """Write what was asked and answered; the operator has switched it on."""
    fields = {"id": record.request_id, "asked": _words(asked), "answered": _words(answered)}
    traces.info("trace", extra={"slipform": fields})


def _words(data: bytes) -> str:
    return data[:_MAX_TRACE].decode("utf-8", "replace") + (_CUT if len(data) > _MAX_TRACE else "")
