"""Errors in OpenAI's shape, for both of its APIs."""

from __future__ import annotations

from typing import Any

from slipform.codecs.plan import dumps
from slipform.codecs.serving import error_fields, error_status
from slipform.errors import EnforcementError, SlipformError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def openai_error(error: SlipformError) -> dict[str, Any]:
    """The `error` object.

    >>> from slipform.errors import RequestError
    >>> openai_error(RequestError("No model", where="model"))["param"]
    'model'
    """
    fields = error_fields(error)
    kind = "structured_output_failed" if isinstance(error, EnforcementError) else None
    spelled = {
        "message": fields["message"],
        "type": kind or _TYPES.get(error_status(error), "server_error"),
        "param": fields.get("where"),
        "code": fields["code"],
    }
    return {**spelled, "details": fields["details"]} if "details" in fields else spelled


def encode_openai_error(error: SlipformError) -> tuple[int, bytes]:
    """The HTTP status and the body."""
    return error_status(error), dumps({"error": openai_error(error)})
