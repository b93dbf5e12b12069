"""The Bedrock Converse codec."""

from __future__ import annotations

from collections.abc import Mapping

from slipform.codecs.answer import plan_of, read_answer
from slipform.codecs.base import Capabilities, EncodedRequest, StreamDecoder
from slipform.codecs.bedrock.request import NAME, encode_body
from slipform.codecs.bedrock.response import ConverseMachine, decode_body
from slipform.codecs.eventstream import EventStreamDecoder
from slipform.codecs.faults import fault_error, read_error_body
from slipform.codecs.model_name import url_path
from slipform.codecs.plan import Losses, dumps, make_plan, settle
from slipform.codecs.sse import MAX_EVENT_BYTES
from slipform.codecs.stream import Reader
from slipform.errors import UpstreamError
from slipform.ir import ModelRequest, ModelResponse


class BedrockCodec:
    """Speaks `POST /model/{id}/converse` and `/converse-stream`.

    >>> from slipform.ir import Message
    >>> codec = BedrockCodec(Capabilities())
    >>> codec.encode_request(ModelRequest("us.amazon.nova-pro-v1:0", (Message.user("hi"),)), stream=False).path
    '/model/us.amazon.nova-pro-v1%3A0/converse'
    """

    name = NAME

    def __init__(self, capabilities: Capabilities, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.capabilities = capabilities
        self.strategy = capabilities.auto_strategy
        self._max_event_bytes = max_event_bytes

    def encode_request(self, request: ModelRequest, *, stream: bool) -> EncodedRequest:
        """Spell the request; the model is in the path."""
        losses: Losses = []
        plan = make_plan(request, self.capabilities, self.strategy, losses, tool_rule="closed")
        body = encode_body(request, plan, self.capabilities, losses)
        plan = settle(plan, losses)
        path = f"/model/{url_path(request.model, one_segment=True)}/{'converse-stream' if stream else 'converse'}"
        return EncodedRequest(path, dumps(body), warnings=plan.warnings, context=plan)

    def decode_response(self, body: bytes, encoded: EncodedRequest) -> ModelResponse:
        """Read a whole answer."""
        return read_answer(body, encoded, decode_body)

    def decode_stream(self, encoded: EncodedRequest) -> StreamDecoder:
        """A reader for one streamed answer."""
        return Reader(EventStreamDecoder(self._max_event_bytes), ConverseMachine(), plan_of(encoded))

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        """The error that a non-2xx answer stands for; its type is in a header."""
        lower = {name.lower(): value for name, value in headers.items()}
        kind = lower.get("x-amzn-errortype", "").partition(":")[0]
        return fault_error(read_error_body(body), status=status, headers=headers, kind=kind)
