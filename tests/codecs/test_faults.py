from __future__ import annotations

from typing import Any

import orjson
import pytest

from slipform.codecs import CODECS, Capabilities, EncodedRequest, make_codec
from slipform.codecs.vendor_errors import fault_error, openai_error, retry_after
from slipform.errors import AuthenticationError, RateLimitError, UpstreamError, UpstreamRequestError, UpstreamTimeout

# status, body, category, class
CASES: list[tuple[int, Any, str, type[UpstreamError]]] = [
    (401, {"error": {"message": "x", "code": "invalid_api_key"}}, "auth", AuthenticationError),
    (403, {"error": {"message": "x"}}, "permission", AuthenticationError),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "x",
                "status": "INVALID_ARGUMENT",
                "details": [{"reason": "API_KEY_INVALID"}],
            }
        },
        "auth",
        AuthenticationError,
    ),
    (
        403,
        {"error": {"code": 403, "message": "x", "metadata": {"reasons": ["violence"]}}},
        "content_filter",
        UpstreamRequestError,
    ),
    (400, {"error": {"message": "x", "code": "content_filter"}}, "content_filter", UpstreamRequestError),
    (402, {"message": "x"}, "quota", RateLimitError),
    (429, {"error": {"message": "x", "code": "insufficient_quota"}}, "quota", RateLimitError),
    (429, {"error": {"message": "x", "code": "1113"}}, "quota", RateLimitError),
    (429, {"error": {"message": "x", "code": "1302"}}, "rate_limit", RateLimitError),
    (429, [{"error": {"code": 429, "message": "x", "status": "RESOURCE_EXHAUSTED"}}], "rate_limit", RateLimitError),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, "overloaded", UpstreamError),
    (
        503,
        {"error": {"code": 503, "message": "The model is overloaded", "status": "UNAVAILABLE"}},
        "overloaded",
        UpstreamError,
    ),
    (500, {"error": {"message": "x"}}, "server", UpstreamError),
    (504, {"error": {"message": "x"}}, "timeout", UpstreamTimeout),
    (408, {"message": "x"}, "timeout", UpstreamTimeout),
    (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, "context_length", UpstreamRequestError),
    (400, {"error": {"message": "prompt is too long: 9 tokens > 5 maximum"}}, "context_length", UpstreamRequestError),
    (400, {"message": "Input is too long for requested model."}, "context_length", UpstreamRequestError),
    (400, {"error": {"message": "x", "type": "exceed_context_size_error"}}, "context_length", UpstreamRequestError),
    (
        400,
        {"error": {"message": "Invalid schema for response_format 'x': In context=(), no"}},
        "schema_rejected",
        UpstreamRequestError,
    ),
    (400, {"error": {"message": "The compiled grammar is too large"}}, "schema_rejected", UpstreamRequestError),
    (400, {"error": {"message": "This response_format type is unavailable now"}}, "unsupported", UpstreamRequestError),
    (400, {"error": "'response_format.type' must be 'json_schema' or 'text'"}, "unsupported", UpstreamRequestError),
    (
        400,
        {"error": {"message": "Thinking mode does not support this tool_choice"}},
        "unsupported",
        UpstreamRequestError,
    ),
    (404, {"error": "model 'x' not found"}, "not_found", UpstreamRequestError),
    (400, {"error": {"message": "x", "code": "model_not_found"}}, "not_found", UpstreamRequestError),
    (400, {"message": "The provided model identifier is invalid."}, "not_found", UpstreamRequestError),
    (422, {"object": "error", "message": {"detail": [{"msg": "x"}]}, "type": "t"}, "bad_request", UpstreamRequestError),
    (422, {"detail": [{"loc": ["body"], "msg": "x"}]}, "bad_request", UpstreamRequestError),
    (400, {"error": {"message": "x"}}, "bad_request", UpstreamRequestError),
]


@pytest.mark.parametrize(("status", "body", "category", "kind"), CASES)
@pytest.mark.parametrize("codec", list(CODECS))
def test_an_error_is_classified_alike_by_every_codec(
    codec: str, status: int, body: Any, category: str, kind: type[UpstreamError]
) -> None:
    error = make_codec(codec, Capabilities()).decode_error(status, {}, orjson.dumps(body))
    assert (error.details["category"], type(error), error.status) == (category, kind, status)
    assert error.details["retryable"] is (category in ("rate_limit", "overloaded", "timeout", "server"))
    assert error.message


@pytest.mark.parametrize("body", [b"", b"<html><h1>Bad Gateway</h1></html>", b"\xff\xfe", b"null", b"[]"])
def test_a_body_that_is_no_json_error_still_makes_one(body: bytes) -> None:
    error = make_codec("openai-chat", Capabilities()).decode_error(502, {}, body)
    assert error.details["category"] == "server"
    assert "<" not in error.message


def test_bedrock_s_error_type_is_in_a_header() -> None:
    codec = make_codec("bedrock", Capabilities())
    headers = {"X-Amzn-ErrorType": "ThrottlingException:http://x"}
    error = codec.decode_error(400, headers, b'{"message":"Too many requests"}')
    assert error.details["type"] == "ThrottlingException"
    denied = codec.decode_error(403, {"x-amzn-errortype": "AccessDeniedException"}, b'{"message":"no"}')
    assert isinstance(denied, AuthenticationError)


def test_groq_s_failed_generation_is_kept() -> None:
    body = {"error": {"message": "x", "code": "tool_use_failed", "failed_generation": "<f>{}"}}
    error = fault_error(body, status=400)
    assert error.details["failed_generation"] == "<f>{}"


@pytest.mark.parametrize(
    ("headers", "raw", "expected"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, None, 1.5),
        ({"Retry-After": "2"}, None, 2.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:05 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None, 5.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:05 GMT"}, None, None),
        ({"retry-after": "soon", "date": "now"}, None, None),
        ({}, {"details": [{"@type": "RetryInfo", "retryDelay": "17s"}]}, 17.0),
        ({}, {"details": "x"}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], raw: Any, expected: float | None) -> None:
    assert retry_after(headers, raw) == expected


def test_an_error_inside_a_200_answer_is_raised() -> None:
    codec = make_codec("openai-chat", Capabilities())
    with pytest.raises(RateLimitError):
        codec.decode_response(b'{"error":{"code":429,"message":"x"}}', EncodedRequest("", b""))
    with pytest.raises(UpstreamError, match="no choice"):
        codec.decode_response(b'{"choices":null}', EncodedRequest("", b""))
    with pytest.raises(UpstreamError, match="not JSON"):
        codec.decode_response(b"<html>", EncodedRequest("", b""))


@pytest.mark.parametrize(
    ("status", "message", "vendor_code", "code"),
    [
        (400, "prompt is too long: 250000 tokens > 200000 maximum", "", "context_length_exceeded"),
        (429, "You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
        (404, "The model `m` does not exist", "", "model_not_found"),
    ],
)
def test_openai_clients_get_the_codes_that_programs_look_for(
    status: int, message: str, vendor_code: str, code: str
) -> None:
    error = fault_error({"error": {"message": message, "code": vendor_code or None}}, status=status)
    fields = openai_error(error)["error"]
    assert fields["code"] == code
    assert fields["details"]["error_code"] == error.code
