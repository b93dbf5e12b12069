"""The records of generateContent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from slipform.codecs.answer import MALFORMED, malformed, plan_of, read_json
from slipform.codecs.codec import Capabilities, EncodedRequest, StreamDecoder
from slipform.codecs.framing import MAX_EVENT_BYTES
from slipform.codecs.gemini.decode import GeminiEvents, decode_body
from slipform.codecs.gemini.encode import NAME, encode_body
from slipform.codecs.gemini.serve_encode import GeminiServing
from slipform.codecs.model_name import url_path
from slipform.codecs.schema_channel import Losses, choose_channel, dumps, finish_channel
from slipform.codecs.stream_decoder import EventDecoder, SniffingDecoder
from slipform.codecs.vendor_errors import fault_error, read_error_body
from slipform.errors import UpstreamError
from slipform.ir import ModelRequest, ModelResponse


class GeminiCodec:
    """Speaks `POST /models/{model}:generateContent`; the base URL ends with the API version (`…/v1`).

    The dialect `gemini-openapi` sends the schema as `responseSchema`, every other one as `responseJsonSchema`.

    >>> from slipform.ir import Message
    >>> codec = GeminiCodec(Capabilities(native=True))
    >>> codec.encode_request(ModelRequest("gemini-3", (Message.user("hi"),)), stream=True).path
    '/models/gemini-3:streamGenerateContent?alt=sse'
    """

    name = NAME

    def __init__(self, capabilities: Capabilities, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.capabilities = capabilities
        self.strategy = capabilities.auto_strategy
        self._max_event_bytes = max_event_bytes

    def encode_request(self, request: ModelRequest, *, stream: bool) -> EncodedRequest:
        """Spell the request."""
        losses: Losses = []
        plan = choose_channel(request, self.capabilities, self.strategy, losses)
        body = encode_body(request, plan, self.capabilities, losses)
        plan = finish_channel(plan, losses)
        model = url_path(request.model)
        call = "streamGenerateContent?alt=sse" if stream else "generateContent"
        path = f"/{model}:{call}" if "/" in model else f"/models/{model}:{call}"
        return EncodedRequest(path, dumps(body), warnings=plan.warnings, context=plan)

    def decode_response(self, body: bytes, encoded: EncodedRequest) -> ModelResponse:
        """Read a whole answer."""
        try:
            return decode_body(_joined(body), plan_of(encoded))
        except MALFORMED as error:
            raise malformed(error) from error

    def decode_stream(self, encoded: EncodedRequest) -> StreamDecoder:
        """A reader for one streamed answer."""
        return EventDecoder(SniffingDecoder(self._max_event_bytes), GeminiEvents(), plan_of(encoded))

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        """The error that a non-2xx answer stands for."""
        return fault_error(read_error_body(body), status=status, headers=headers)


def _joined(body: bytes) -> dict[str, Any]:
    """One answer; a stream asked for without `alt=sse` is an array of answers, each with the new parts only."""
    try:
        answers = orjson.loads(body)
    except orjson.JSONDecodeError:
        answers = None
    if not isinstance(answers, list) or len(answers) < 2 or not all(isinstance(item, dict) for item in answers):
        return read_json(body)
    candidates: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    for answer in answers:
        if answer.get("error"):
            raise fault_error(answer, status=None)
        whole.update(answer)
        for candidate in answer.get("candidates") or ():
            known = candidates.setdefault(candidate.get("index") or 0, {"content": {"parts": []}})
            parts = (candidate.get("content") or {}).get("parts") or []
            known.update({key: value for key, value in candidate.items() if key != "content"})
            known["content"]["parts"].extend(parts)
    return {**whole, "candidates": [candidates[index] for index in sorted(candidates)]}


__all__ = ["GeminiCodec", "GeminiServing"]
