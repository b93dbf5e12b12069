"""Define the records of Chat Completions: how it is called, and how slipform serves it."""

from __future__ import annotations

from slipform.codecs.codec import Codec, ServedApi
from slipform.codecs.openai_chat.decode import ChatEvents, decode_body, read_usage
from slipform.codecs.openai_chat.encode import NAME, encode_body, encode_plain_turns, request_path
from slipform.codecs.openai_chat.serve_decode import decode_plain_turns, decode_request, decode_turns
from slipform.codecs.openai_chat.serve_encode import SOURCES, ChatStreamEncoder, encode_answer
from slipform.codecs.vendor_errors import openai_error

CODEC = Codec(
    NAME,
    path=request_path,
    encode=encode_body,
    decode=decode_body,
    events=lambda _plan: ChatEvents(),
    read_usage=read_usage,
    native_rule="openai",
    tool_rule="openai",
    encode_plain_turns=encode_plain_turns,
)
API = ServedApi(
    NAME,
    read=decode_request,
    answer=encode_answer,
    events=ChatStreamEncoder,
    error=openai_error,
    turns=decode_turns,
    turn_fields=frozenset({"messages"}),
    plain_turns=decode_plain_turns,
    sources=frozenset({"annotations", *SOURCES}),
)
