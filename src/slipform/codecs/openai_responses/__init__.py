"""The records of Responses."""

from __future__ import annotations

from collections.abc import Mapping

from slipform.codecs.answer import plan_of, read_answer
from slipform.codecs.codec import Capabilities, EncodedRequest, StreamDecoder
from slipform.codecs.framing import MAX_EVENT_BYTES
from slipform.codecs.openai_responses.decode import ResponsesEvents, decode_body
from slipform.codecs.openai_responses.encode import NAME, encode_body
from slipform.codecs.openai_responses.serve_encode import OpenAIResponsesServing
from slipform.codecs.schema_channel import Losses, choose_channel, dumps, finish_channel
from slipform.codecs.stream_decoder import EventDecoder, SniffingDecoder
from slipform.codecs.vendor_errors import fault_error, read_error_body
from slipform.errors import UpstreamError
from slipform.ir import ModelRequest, ModelResponse


class OpenAIResponsesCodec:
    """Speaks `POST /responses`.

    >>> from slipform.ir import Message
    >>> codec = OpenAIResponsesCodec(Capabilities(native=True))
    >>> codec.strategy.value
    'native'
    >>> codec.encode_request(ModelRequest("m", (Message.user("hi"),)), stream=False).body
    b'{"model":"m","input":"hi"}'
    """

    name = NAME

    def __init__(self, capabilities: Capabilities, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.capabilities = capabilities
        self.strategy = capabilities.auto_strategy
        self._max_event_bytes = max_event_bytes

    def encode_request(self, request: ModelRequest, *, stream: bool) -> EncodedRequest:
        """Spell the request."""
        losses: Losses = []
        plan = choose_channel(
            request, self.capabilities, self.strategy, losses, native_rule="openai", tool_rule="openai"
        )
        body = encode_body(request, plan, self.capabilities, losses)
        if stream:
            body["stream"] = True
        plan = finish_channel(plan, losses)
        return EncodedRequest("/responses", dumps(body), warnings=plan.warnings, context=plan)

    def decode_response(self, body: bytes, encoded: EncodedRequest) -> ModelResponse:
        """Read a whole answer."""
        return read_answer(body, encoded, decode_body)

    def decode_stream(self, encoded: EncodedRequest) -> StreamDecoder:
        """A reader for one streamed answer."""
        plan = plan_of(encoded)
        machine = ResponsesEvents(shaped=plan.strategy is not None)
        return EventDecoder(SniffingDecoder(self._max_event_bytes), machine, plan)

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        """The error that a non-2xx answer stands for."""
        return fault_error(read_error_body(body), status=status, headers=headers)


__all__ = ["OpenAIResponsesCodec", "OpenAIResponsesServing"]
