"""Classify a vendor's error, whatever its shape, and encode slipform's errors for a served API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from slipform.errors import (
    AuthenticationError,
    EnforcementError,
    LocalModelError,
    RateLimitError,
    RequestError,
    SlipformError,
    UnknownModelError,
    UpstreamError,
    UpstreamRequestError,
    UpstreamTimeout,
)

_CATEGORIES: dict[str, tuple[type[UpstreamError], bool, str | None]] = {
    "auth": (AuthenticationError, False, "Check the API key of this provider."),
    "permission": (
        AuthenticationError,
        False,
        "The API key of this provider may not use that: choose another model, or have the vendor grant it.",
    ),
    "quota": (RateLimitError, False, "The account has run out of credit or reached its limit; waiting does not help."),
    "rate_limit": (RateLimitError, True, None),
    "overloaded": (UpstreamError, True, None),
    "timeout": (UpstreamTimeout, True, None),
    "server": (UpstreamError, True, None),
    "context_length": (UpstreamRequestError, False, "Shorten the messages or choose a model with a longer context."),
    "content_filter": (UpstreamRequestError, False, None),
    "schema_rejected": (UpstreamRequestError, False, None),
    "unsupported": (UpstreamRequestError, False, None),
    "not_found": (UpstreamRequestError, False, None),
    "bad_request": (UpstreamRequestError, False, None),
}
"""The categories of errors: class, whether the same request may succeed a little later, and what to do about it."""
_QUOTA_CODES = re.compile(
    r"insufficient_quota|billing_(hard_limit_reached|error)|credit_balance_exhausted|spend_limit|^(1113|13(0[89]|1\d|2[01]))$"
)
_CONTEXT = re.compile(
    r"context_length_exceeded|maximum context length|reduce the length of the messages|(prompt|input) is too long"
    r"|input token count|number of tokens allowed|exceed_context_size_error|^3051$",
    re.IGNORECASE,
)
_SCHEMA = re.compile(
    r"invalid schema for (response_format|function)|schema is too complex|compiled grammar is too large"
    r"|response_?(json_?)?schema|invalid .{0,40}json_schema",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"(does|do) ?n[o']t support|not support|unsupported|(response_format )?type is unavailable|forces tool use"
    r"|must be 'json_schema' or 'text'",
    re.IGNORECASE,
)
_MISSING = re.compile(r"model_not_found|model identifier is invalid|not_found_error|NOT_FOUND", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|over capacity|high demand", re.IGNORECASE)
_AUTH = re.compile(r"API_KEY_INVALID|authentication_error|invalid_api_key|AccessDenied|UnrecognizedClient|ExpiredToken")
_KEY = re.compile(r"API_KEY_INVALID|authentication_error|invalid_api_key|UnrecognizedClient|ExpiredToken")
"""Phrases in a 403 that mean a wrong key, as opposed to missing permissions."""
_FILTERED = re.compile(r"content_filter|content_policy|ResponsibleAIPolicyViolation|misalignment_policy|bio_policy")
_BY_NAME = (
    (_MISSING, "not_found"),
    (re.compile(r"rate_limit|RESOURCE_EXHAUSTED|Throttling|ModelNotReady", re.IGNORECASE), "rate_limit"),
    (re.compile(r"timeout_error|ModelTimeout|DEADLINE_EXCEEDED", re.IGNORECASE), "timeout"),
    (re.compile(r"overloaded|serviceUnavailable|UNAVAILABLE", re.IGNORECASE), "overloaded"),
    (re.compile(r"server_error|api_error|internal|modelStreamError|ModelError", re.IGNORECASE), "server"),
    (re.compile(r"invalid_request|INVALID_ARGUMENT|validation|FAILED_PRECONDITION", re.IGNORECASE), "bad_request"),
)


@dataclass(frozen=True, slots=True)
class VendorFault:
    """The fields of an error body, whatever its shape."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str | None = None
    status: int | None = None
    raw: Any = None


def fault_error(
    payload: Any, *, status: int | None, headers: Mapping[str, str] | None = None, kind: str = ""
) -> UpstreamError:
    """Return the error that `payload` describes; `kind` is a type named outside it (a header, a frame, an event).

    >>> fault_error({"error": {"message": "slow down"}}, status=429).details["category"]
    'rate_limit'
    """
    fault = read_fault(payload)
    error_status = status if status is not None and status >= 400 else fault.status
    category = classify(fault, error_status, kind)
    error, retryable, hint = _CATEGORIES[category]
    details: dict[str, Any] = {"category": category, "retryable": retryable}
    named = {"type": fault.type or kind, "code": fault.code, "param": fault.param}
    details |= {key: value for key, value in named.items() if value}
    if isinstance(fault.raw, Mapping) and fault.raw.get("failed_generation"):
        details["failed_generation"] = fault.raw["failed_generation"]
    if fault.raw is not None:
        details["raw"] = fault.raw
    message = fault.message or (
        f"The model's server answered {error_status}" if error_status else "The model's server failed"
    )
    wait = retry_after(headers or {}, fault.raw)
    return error(message, status=error_status, retry_after=wait, hint=hint, details=details)


def read_fault(payload: Any) -> VendorFault:
    """Return message, type and code from any of the shapes vendors use."""
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if isinstance(payload, str):
        return VendorFault(message=payload, raw=payload)
    if not isinstance(payload, Mapping):
        return VendorFault(raw=payload)
    error = payload.get("error", payload)
    if isinstance(error, str):
        return VendorFault(message=error, raw=error, type=_text(payload.get("type")), code=_text(payload.get("code")))
    if not isinstance(error, Mapping):
        error = payload
    message = error.get("message") or error.get("Message") or error.get("detail") or ""
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):
        message = f"{message}: {metadata['raw']}"
    kind = _text(error.get("type"))
    if error.get("status") and isinstance(error["status"], str):
        kind = error["status"]
    return VendorFault(
        message=message if isinstance(message, str) else orjson.dumps(message).decode(),
        type=kind,
        code=_code(error),
        param=error.get("param"),
        status=_status(error),
        raw=error,
    )


def _code(error: Mapping[str, Any]) -> str:
    details = error.get("details")
    if isinstance(details, Mapping) and details.get("error_code"):
        return _text(details["error_code"])
    for item in details if isinstance(details, list) else ():
        if isinstance(item, Mapping) and item.get("reason"):
            return _text(item["reason"])
    inner = error.get("innererror")
    if error.get("code") is None and isinstance(inner, Mapping):
        return _text(inner.get("code"))
    return _text(error.get("code"))


def _status(error: Mapping[str, Any]) -> int | None:
    for key in ("status_code", "raw_status_code", "code", "status"):
        value = error.get(key)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def classify(fault: VendorFault, status: int | None, kind: str = "") -> str:
    """Return the category of an error: by its code and message first, otherwise by its HTTP status."""
    names = f"{fault.type} {fault.code} {kind}"
    if status in (None, 400, 413, 422) and _names_context_length(fault):
        return "context_length"
    if status == 402 or any(map(_QUOTA_CODES.search, (fault.code, fault.type))):
        return "quota"
    if _AUTH.search(names) or (status in (401, 403) and not _moderated(fault)):
        if status != 403 or _KEY.search(f"{names} {fault.message}"):
            return "auth"
        return "permission"
    if _FILTERED.search(names) or status == 403:
        return "content_filter"
    if status in _BY_STATUS:
        category = _BY_STATUS[status]
        if category == "server" and _OVERLOADED.search(fault.message):
            return "overloaded"
        return category
    if status is None or status < 400:
        return _category_by_name(fault, names)
    if status < 500:
        return _bad_request(fault, names)
    return "server"


def _names_context_length(fault: VendorFault) -> bool:
    return bool(_CONTEXT.search(fault.message) or _CONTEXT.search(fault.code or fault.type))


def _category_by_name(fault: VendorFault, names: str) -> str:
    """Return the category of an error without an HTTP status."""
    category = next((category for pattern, category in _BY_NAME if pattern.search(names)), "server")
    if category == "bad_request":
        return _bad_request(fault, names)
    return category


_BY_STATUS: dict[int | None, str] = {
    404: "not_found",
    408: "timeout",
    429: "rate_limit",
    500: "server",
    502: "server",
    503: "server",
    504: "timeout",
    529: "overloaded",
}


def _bad_request(fault: VendorFault, names: str) -> str:
    if _MISSING.search(names) or _MISSING.search(fault.message):
        return "not_found"
    if _SCHEMA.search(fault.message):
        return "schema_rejected"
    if _UNSUPPORTED.search(fault.message) or "unsupported" in names:
        return "unsupported"
    return "bad_request"


def _moderated(fault: VendorFault) -> bool:
    metadata = None
    if isinstance(fault.raw, Mapping):
        metadata = fault.raw.get("metadata")
    return isinstance(metadata, Mapping) and ("reasons" in metadata or "flagged_input" in metadata)


def retry_after(headers: Mapping[str, str], raw: Any = None) -> float | None:
    """Return the seconds to wait before trying again, if the vendor says so.

    >>> retry_after({"Retry-After": "2"})
    2.0
    """
    lower = {name.lower(): value for name, value in headers.items()}
    milliseconds = _number(lower.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = _number(lower.get("retry-after"))
    if seconds is not None:
        return seconds
    dated = _date_gap(lower.get("retry-after"), lower.get("date"))
    return dated if dated is not None else _retry_info(raw)


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else None
    except ValueError:
        return None
    if number is not None and 0 <= number < 1e9:
        return number
    return None


def _date_gap(then: str | None, now: str | None) -> float | None:
    # The server's own clock wrote its date.
    if not then or not now:
        return None
    try:
        return max(0.0, (parsedate_to_datetime(then) - parsedate_to_datetime(now)).total_seconds())
    except (ValueError, TypeError):
        return None


def _retry_info(raw: Any) -> float | None:
    details = raw.get("details") if isinstance(raw, Mapping) else None
    for item in details if isinstance(details, list) else ():
        delay = item.get("retryDelay") if isinstance(item, Mapping) else None
        if isinstance(delay, str) and delay.endswith("s"):
            return _number(delay[:-1])
    return None


def read_error_body(body: bytes) -> Any:
    """Return an error body as JSON if it is JSON, else as text without its markup."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        text = re.sub(r"<[^>]*>", " ", body.decode("utf-8", "replace"))
        return " ".join(text.split())[:500]


def error_fields(error: SlipformError) -> dict[str, Any]:
    """Return the fields of an error that a client may see: message, code, details without the vendor's raw body.

    The path of a model's file, and the output of its engine, are only for the operator.
    """
    if isinstance(error, LocalModelError):
        error = type(error)(error.message, hint=error.hint, details=error.details)
    fields = error.to_dict()
    details = {key: value for key, value in fields.get("details", {}).items() if key not in ("raw", "stderr")}
    if details:
        return {**fields, "details": details}
    return {k: v for k, v in fields.items() if k != "details"}


def error_status(error: SlipformError) -> int:
    """Return the HTTP status for an error: the vendor's if clients distinguish its kinds, else that of the class."""
    if not isinstance(error, UpstreamError):
        return error.http_status
    if error.status in _KEPT_STATUSES:
        return error.status
    category = error.details.get("category")
    if isinstance(category, str):
        return _CATEGORY_STATUSES.get(category, error.http_status)
    return error.http_status


_KEPT_STATUSES = frozenset({403, 413})
_CATEGORY_STATUSES = {"not_found": 404, "overloaded": 503}


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}


def _param(error: SlipformError) -> str | None:
    """Return the parameter of the request that an error concerns, if any."""
    if isinstance(error, UpstreamError):
        param = error.details.get("param")
        return param if isinstance(param, str) else None
    if isinstance(error, UnknownModelError):
        return "model"
    if isinstance(error, RequestError):
        return error.where
    return None


_OPENAI_CODES = {
    "context_length": "context_length_exceeded",
    "quota": "insufficient_quota",
    "not_found": "model_not_found",
}
"""The codes that programs written for OpenAI's APIs look for, by category, whichever vendor answered."""


def openai_error(error: SlipformError) -> dict[str, Any]:
    """Return the body of an error, as both of OpenAI's APIs write it.

    >>> from slipform.errors import RequestError
    >>> openai_error(RequestError("No model", where="model"))["error"]["param"]
    'model'
    """
    fields = error_fields(error)
    status = error_status(error)
    kind = "structured_output_failed" if isinstance(error, EnforcementError) else _TYPES.get(status)
    encoded = {
        "message": fields["message"],
        "type": kind or ("server_error" if status >= 500 else "invalid_request_error"),
        "param": _param(error),
        "code": fields["code"],
    }
    details = fields.get("details")
    if isinstance(error, UpstreamError) and (code := _OPENAI_CODES.get(error.details.get("category", ""))) is not None:
        encoded["code"] = code
        details = {"error_code": fields["code"], **(details or {})}
    if details is not None:
        encoded["details"] = details
    return {"error": encoded}
