"""The records of Messages."""

from __future__ import annotations

from collections.abc import Mapping

from slipform.codecs.answer import plan_of, read_answer
from slipform.codecs.anthropic.decode import AnthropicEvents, decode_body
from slipform.codecs.anthropic.encode import NAME, encode_body
from slipform.codecs.anthropic.serve_encode import AnthropicServing
from slipform.codecs.codec import Capabilities, EncodedRequest, StreamDecoder
from slipform.codecs.framing import MAX_EVENT_BYTES
from slipform.codecs.model_name import url_path
from slipform.codecs.schema_channel import Losses, choose_channel, dumps, finish_channel
from slipform.codecs.stream_decoder import EventDecoder, SniffingDecoder
from slipform.codecs.vendor_errors import fault_error, read_error_body
from slipform.errors import UpstreamError
from slipform.ir import ModelRequest, ModelResponse

VERSION = "2026-10-21"
"""The API version the codec is written for."""


class AnthropicCodec:
    """Speaks `POST /v1/messages`; with the quirk `body_version`, Vertex's `:rawPredict`.

    >>> AnthropicCodec(Capabilities(forced_tool=True)).strategy.value
    'tool'
    """

    name = NAME

    def __init__(self, capabilities: Capabilities, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.capabilities = capabilities
        self.strategy = capabilities.auto_strategy
        self._max_event_bytes = max_event_bytes

    def encode_request(self, request: ModelRequest, *, stream: bool) -> EncodedRequest:
        """Spell the request."""
        losses: Losses = []
        plan = choose_channel(request, self.capabilities, self.strategy, losses, tool_rule="closed")
        body = encode_body(request, plan, self.capabilities, losses)
        if stream:
            body["stream"] = True
        path, headers = "/v1/messages", {"anthropic-version": VERSION}
        if "body_version" in self.capabilities.quirks:
            call = "streamRawPredict" if stream else "rawPredict"
            path = f"/publishers/anthropic/models/{url_path(request.model)}:{call}"
            headers = {}
            body.pop("model")
            body["anthropic_version"] = VERSION
        plan = finish_channel(plan, losses)
        return EncodedRequest(path, dumps(body), headers, plan.warnings, plan)

    def decode_response(self, body: bytes, encoded: EncodedRequest) -> ModelResponse:
        """Read a whole answer."""
        return read_answer(body, encoded, decode_body)

    def decode_stream(self, encoded: EncodedRequest) -> StreamDecoder:
        """A reader for one streamed answer."""
        return EventDecoder(SniffingDecoder(self._max_event_bytes), AnthropicEvents(), plan_of(encoded))

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        """The error that a non-2xx answer stands for."""
        return fault_error(read_error_body(body), status=status, headers=headers)


__all__ = ["AnthropicCodec", "AnthropicServing"]
