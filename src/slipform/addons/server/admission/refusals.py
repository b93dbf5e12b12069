"""Refuse calls: the proxy's own errors, with their headers and their line in the audit log."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from slipform.addons.server.observability.call_record import Header
from slipform.errors import RequestError, SlipformError

_audit = logging.getLogger("slipform.audit")


class Refused(RequestError):  # noqa: N818 — its kinds read as what they are
    """A call that is not admitted, or is cancelled; it may be retried after `retry_after` seconds."""

    code = "refused"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        retry_after: float | None = None,
        headers: Sequence[Header] = (),
        key: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after
        self.headers = tuple(headers)
        self.key = key
        """The public id of the key that was presented, for the audit log."""


class KeyRefused(Refused):
    """The request has no API key, or an unknown one."""

    code = "invalid_api_key"
    http_status = 401


class WrongKey(KeyRefused):
    """The presented key does not exist here: possibly a guess."""


class TooManyWrongKeys(Refused):
    """The address has sent too many wrong keys; valid keys are still admitted."""

    code = "too_many_wrong_keys"
    http_status = 429


class NotAllowed(Refused):
    """The caller is known, but not allowed to do this."""

    code = "not_allowed"
    http_status = 403


class BodyTooSlow(Refused):
    """The request did not arrive in time."""

    code = "request_timeout"
    http_status = 408


class TooManyRequests(Refused):
    """The caller's rate limit is used up."""

    code = "rate_limit_exceeded"
    http_status = 429


class Busy(Refused):
    """The maximum number of requests is in progress."""

    code = "overloaded"
    http_status = 503


class RequestTimeout(Refused):
    """The whole request took longer than allowed."""

    code = "timeout"
    http_status = 504


def error_headers(error: SlipformError) -> list[Header]:
    """Return the headers of an error: when to retry, also by the vendor's own header, and the caller's limits.

    >>> error_headers(Busy("Too many requests at once", retry_after=0.4))
    [(b'retry-after', b'1')]
    """
    headers = list(error.headers) if isinstance(error, Refused) else []
    if isinstance(error, KeyRefused):
        headers.append((b"www-authenticate", b"Bearer"))
    wait = getattr(error, "retry_after", None)
    if wait is not None:
        # HTTP has whole seconds only; rounding down would cause another refusal.
        headers.append((b"retry-after", str(max(1, math.ceil(wait))).encode()))
    return headers


def log_refusal(error: SlipformError, *, address: str, request_id: str, path: str, name: str = "") -> None:
    """Write a line of the audit log for a request that was refused because of its sender; none for other errors."""
    if not isinstance(error, KeyRefused | NotAllowed | TooManyWrongKeys):
        return
    fields = {
        "id": request_id,
        "key": error.key,
        "name": name,
        "address": address,
        "path": path[:200],
        "code": error.code,
        "reason": error.message,
    }
    present = {field: value for field, value in fields.items() if value}
    _audit.info("audit", extra={"slipform": {"action": "refused", **present}})
