"""Answering as a Responses server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.openai_errors import encode_openai_error
from slipform.codecs.openai_responses.items import (
    call_item,
    message_item,
    reasoning_item,
    refusal_part,
    response_object,
    text_part,
)
from slipform.codecs.openai_responses.request import NAME
from slipform.codecs.openai_responses.serve_request import decode_request
from slipform.codecs.openai_responses.serve_stream import ResponsesStreamEncoder
from slipform.codecs.plan import dumps
from slipform.codecs.serving import ServedRequest, Stamp, StreamEncoder, refusal_text
from slipform.errors import SlipformError
from slipform.ir import ModelResponse, Reasoning


class OpenAIResponsesServing:
    """Serves `POST /responses`."""

    name = NAME
    content_type_stream = "text/event-stream"

    def __init__(self, stamp: Stamp | None = None) -> None:
        self._stamp = stamp or Stamp()

    def decode_request(self, body: bytes | Mapping[str, Any], *, path: str = "") -> ServedRequest:  # noqa: ARG002
        """Read a request."""
        return decode_request(body)

    def encode_response(
        self, response: ModelResponse, served: ServedRequest, *, extra: Mapping[str, Any] | None = None
    ) -> bytes:
        """Write a whole answer."""
        identity = response.id or f"resp_{self._stamp.new_id()}"
        answer = response_object(
            served,
            identity,
            response.model,
            self._stamp.seconds(),
            finish=response.finish,
            output=_output(response, identity),
            usage=response.usage,
        )
        return dumps({**answer, **(extra or {})})

    def encode_stream(self, served: ServedRequest) -> StreamEncoder:
        """A writer for one streamed answer."""
        return ResponsesStreamEncoder(served, self._stamp)

    def encode_error(self, error: SlipformError) -> tuple[int, bytes]:
        """The status and the body of an error."""
        return encode_openai_error(error)


def _output(response: ModelResponse, identity: str) -> list[dict[str, Any]]:
    thoughts = [part for part in response.parts if isinstance(part, Reasoning)]
    if not thoughts and response.reasoning:
        thoughts = [Reasoning(response.reasoning)]
    output = [
        dict(part.opaque[NAME]) if NAME in part.opaque else reasoning_item(f"rs_{identity}_{at}", part.text)
        for at, part in enumerate(thoughts)
    ]
    refusal = refusal_text(response)
    content = [text_part(response.text)] if response.text or not (refusal or response.tool_calls) else []
    if refusal is not None:
        content.append(refusal_part(refusal))
    if content:
        output.append(message_item(f"msg_{identity}", content))
    for at, call in enumerate(response.tool_calls):
        known = call.extra.get(NAME, {})
        output.append({**call_item(f"fc_{identity}_{at}", call.id, call.name, call.arguments), **known})
    return output
