"""Turn a refused, filtered or truncated answer into a response in the API's own form, instead of an error."""

from __future__ import annotations

from slipform.codecs.codec import refusal_text
from slipform.enforce import Report
from slipform.errors import EnforcementError, RefusalError, SlipformError, TruncatedError
from slipform.ir import CompletionChunk, ModelResponse
from slipform.ir.parts import with_content

_REFUSES_IN_FIELD = frozenset({"openai-chat", "openai-responses", "gemini"})
"""APIs that have a separate field for a refusal."""


def incomplete_answer(error: SlipformError, api: str) -> ModelResponse | None:
    """Return the answer that the vendor gave, with the usage of all attempts; None for any other error.

    >>> error = RefusalError("The model refused: no")
    >>> error.response = ModelResponse(text="I will not.", finish="refusal")
    >>> incomplete_answer(error, "openai-chat").refusal
    'I will not.'
    """
    response = error.response
    if not isinstance(error, EnforcementError) or not isinstance(response, ModelResponse):
        return None
    usage = error.report.usage if isinstance(error.report, Report) else response.usage
    response = response.replace(usage=usage)
    if isinstance(error, RefusalError):
        return _encode_refusal(response, api)
    if isinstance(error, TruncatedError) and response.finish == "length":
        return response
    return None


def closing_chunk(response: ModelResponse) -> CompletionChunk:
    """Return the end of such an answer, for a stream that has already sent part of it."""
    return CompletionChunk(
        refusal=response.refusal or "",
        finish=response.finish,
        raw_finish=response.raw_finish,
        usage=response.usage,
        extra=response.extra,
    )


def _encode_refusal(response: ModelResponse, api: str) -> ModelResponse:
    """Return a refusal with its text and nothing else, as part of an answer is not a refusal. Filters have no text."""
    is_prose = response.text.lstrip()[:1] not in ("", "{", "[", "}", "]")
    text = response.text if is_prose and response.refusal is None else ""
    parts = with_content(response.parts, "", ()) if response.parts else ()
    bare = response.replace(text="", tool_calls=(), parts=parts)
    if response.finish == "content_filter":
        return bare
    if api in _REFUSES_IN_FIELD or not text:
        return bare.replace(finish="refusal", refusal=response.refusal or text or refusal_text(bare))
    parts = with_content(response.parts, text, ()) if response.parts else ()
    return bare.replace(finish="refusal", text=text, parts=parts)
