"""Log lines: one per request, as text or JSON, with everything that looks like a key masked."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import IO, Any, Literal

import orjson

from slipform.providers.secrets import MASK
from slipform.server.record import CallRecord

requests = logging.getLogger("slipform.requests")
"""One line per request."""
traces = logging.getLogger("slipform.traces")
"""What was asked and answered, word for word; only with `server.debug_traces`."""

_MAX_TRACE = 64 * 1024
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
    small = text.lower()
    for hint in _HINTS:
        if hint in small:
            return _SECRETS.sub(_masked, text)
    return text  # nearly every line: no need to search it


def _masked(found: re.Match[str]) -> str:
    return f"{found['keep']}{MASK}" if found["keep"] is not None else MASK


@lru_cache(maxsize=4)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Lines(logging.Formatter):
    """A record as one line, redacted as a whole: message, fields and traceback."""

    def __init__(self, style: Literal["text", "json"], secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._json = style == "json"
        self._secrets = tuple(sorted(secrets, key=len, reverse=True))

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, Any] = record.__dict__.get("slipform", {})
        when = f"{_second(int(record.created))}.{int(record.created % 1 * 1000):03d}+00:00"
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._json:
            entry = {"time": when, "level": record.levelname.lower(), "logger": record.name, **fields}
            message = record.getMessage()
            if message:
                entry["message"] = message
            if trace is not None:
                entry["trace"] = trace
            line = orjson.dumps(entry, default=str).decode()
        else:
            said = [when, record.levelname.lower(), record.getMessage() or record.name.removeprefix("slipform.")]
            said += [f"{name}={value}" for name, value in fields.items()]
            line = " ".join(said).replace("\n", "\\n").replace("\r", "\\r")
            if trace is not None:
                line = f"{line}\n{trace}"
        return redact(line, self._secrets)


def set_up(
    style: Literal["text", "json", "off"], *, secrets: Iterable[str] = (), stream: IO[str] | None = None
) -> logging.Handler | None:
    """Make this process log in our way: requests and warnings, on standard error; gives the handler.

    With `off`, only warnings and errors are written.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Lines("json" if style == "json" else "text", secrets))
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
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return handler


def _is_news(record: logging.LogRecord) -> bool:
    """An answer left unfinished on purpose closes its connection; the line of the request tells of it."""
    return record.msg != "ASGI callable returned without completing response."


def log_request(record: CallRecord) -> None:
    """Write the line of a call that is over, if anybody reads it."""
    if requests.isEnabledFor(logging.INFO):
        line = logging.LogRecord(requests.name, logging.INFO, "", 0, "request", None, None)
        line.__dict__["slipform"] = record.fields()
        requests.handle(line)


def log_trace(record: CallRecord, asked: bytes, answered: bytes) -> None:
    """Write what was asked and answered; the operator has switched it on."""
    fields = {"id": record.request_id, "asked": _words(asked), "answered": _words(answered)}
    traces.info("trace", extra={"slipform": fields})


def _words(data: bytes) -> str:
    return data[:_MAX_TRACE].decode("utf-8", "replace") + (" …" if len(data) > _MAX_TRACE else "")
