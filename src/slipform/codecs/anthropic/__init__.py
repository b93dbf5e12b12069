"""Define the records of Messages: how it is called, including Vertex's `:rawPredict`, and how slipform serves it."""

from __future__ import annotations

from slipform.codecs.anthropic.decode import AnthropicEvents, decode_body, read_usage
from slipform.codecs.anthropic.encode import NAME, encode_body, request_headers, request_path
from slipform.codecs.anthropic.serve_decode import TURN_FIELDS, decode_request, decode_turns
from slipform.codecs.anthropic.serve_encode import AnthropicStreamEncoder, encode_answer, encode_error
from slipform.codecs.codec import Codec, ServedApi

CODEC = Codec(
    NAME,
    path=request_path,
    encode=encode_body,
    decode=decode_body,
    events=lambda _plan: AnthropicEvents(),
    read_usage=read_usage,
    headers=request_headers,
    tool_rule="closed",
)
API = ServedApi(
    NAME,
    read=decode_request,
    answer=encode_answer,
    events=AnthropicStreamEncoder,
    error=encode_error,
    turns=decode_turns,
    turn_fields=TURN_FIELDS,
    statuses={503: 529},
)
