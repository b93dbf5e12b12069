"""Estimate the tokens of an answer that was not read to its end, so that the vendor did not report them."""

from __future__ import annotations

from typing import Final

from slipform.ir import ModelRequest, ModelResponse
from slipform.ir.request import ModelNote
from slipform.ir.response import guess_tokens
from slipform.schema.limits import json_text

USAGE_ESTIMATED: Final = ModelNote(
    "usage_estimated",
    "An answer was not read to its end, so its vendor never reported all of its tokens: they are estimated.",
    "usage",
)


def with_estimated_usage(response: ModelResponse, request: ModelRequest) -> ModelResponse:
    """Return the received part of an answer with a lower bound of its tokens and its request's.

    >>> from slipform.ir import Usage
    >>> part = ModelResponse(text="x" * 40, usage=Usage(input=9, output=1))
    >>> with_estimated_usage(part, ModelRequest("m", ())).usage.to_dict()
    {'input': 9, 'output': 10, 'total': 19}
    """
    usage = response.usage
    input_tokens = usage.input or guess_tokens(_prompt(request))
    written = [response.text, response.reasoning, *[call.arguments for call in response.tool_calls]]
    output_tokens = max(usage.output or 0, guess_tokens("".join(written)))
    estimated = usage.replace(input=input_tokens, output=output_tokens, total=input_tokens + output_tokens)
    return response.replace(usage=estimated, warnings=(*response.warnings, USAGE_ESTIMATED))


def _prompt(request: ModelRequest) -> bytes:
    """Return the text of a request that counts as tokens: its messages, its schema, its tools."""
    words = [message.text.encode("utf-8", "surrogatepass") for message in request.messages]
    response_format = request.response_format
    if response_format is not None:
        words.append(response_format.json_schema.text or json_text(response_format.json_schema.schema))
    for tool in request.tools:
        words += [f"{tool.name} {tool.description or ''}".encode("utf-8", "surrogatepass"), json_text(tool.parameters)]
    return b"".join(words)
