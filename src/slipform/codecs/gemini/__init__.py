"""Define the records of generateContent: how it is called, and how slipform serves it."""

from __future__ import annotations

from slipform.codecs.codec import Codec, ServedApi
from slipform.codecs.gemini.decode import GeminiEvents, decode_body, join_answers, read_usage
from slipform.codecs.gemini.encode import NAME, encode_body, request_path
from slipform.codecs.gemini.serve_decode import TURN_FIELDS, decode_request, decode_turns
from slipform.codecs.gemini.serve_encode import GeminiStreamEncoder, encode_answer, encode_error
from slipform.codecs.tool_names import Alphabet

CODEC = Codec(
    NAME,
    path=request_path,
    encode=encode_body,
    decode=decode_body,
    events=lambda _plan: GeminiEvents(),
    read_usage=read_usage,
    usage_key="usageMetadata",
    read=join_answers,
    tool_names=Alphabet("A-Za-z0-9_.:-", "A-Za-z_", 128),
)
API = ServedApi(
    NAME,
    read=decode_request,
    answer=encode_answer,
    events=GeminiStreamEncoder,
    error=encode_error,
    turns=decode_turns,
    turn_fields=TURN_FIELDS,
    sources=frozenset({"citationMetadata", "groundingMetadata", "urlContextMetadata"}),
)
