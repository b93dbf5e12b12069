"""Refuse calls: the proxy's own errors, with their headers and their line in the audit log."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from slipform.addons.server.observability.call_record import Header
from slipform.errors import RequestError, SlipformError

_audit = logging.getLogger("slipform.audit")


class Refused(RequestError):  # noqa: N818 — its kinds read as what they are
    """A call that is not admitted, or not allowed to continue; it may be repeated after `retry_after` seconds."""

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
    """No API key, or none that is known here."""

    code = "invalid_api_key"
    http_status = 401


class WrongKey(KeyRefused):
    """A key was presented that is not one of those here: a guess, perhaps."""


class TooManyWrongKeys(Refused):
    """One address has presented too many wrong keys; right ones are still let in."""

    code = "too_many_wrong_keys"
    http_status = 429


class NotAllowed(Refused):
    """The caller is known, and may not do this."""

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
    """As many requests as allowed are in progress."""

    code = "overloaded"
    http_status = 503


class RequestTimeout(Refused):
    """The whole request took longer than allowed."""

    code = "timeout"
    http_status = 504


def error_headers(error: SlipformError) -> list[Header]:
    """The headers that go with an error: when to come back, a vendor's wish included, and the caller's limits.

    >>> error_headers(Busy("Too many requests at once", retry_after=0.4))
    [(b'retry-after', b'1')]
    """
    headers = list(error.headers) if isinstance(error, Refused) else []
    if isinstance(error, KeyRefused):
        headers.append((b"www-authenticate", b"Bearer"))
    wait = getattr(error, "retry_after", None)
    if wait is not None:
        # Whole seconds are all that HTTP knows; too early would be refused again.
        headers.append((b"retry-after", str(max(1, math.ceil(wait))).encode()))
    return headers


def log_refusal(error: SlipformError, *, address: str, request_id: str, path: str, name: str = "") -> None:
    """A line of the audit log for a request that was refused because of its sender; nothing for other errors."""
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
