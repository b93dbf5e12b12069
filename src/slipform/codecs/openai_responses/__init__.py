"""Define the records of Responses: how it is called, and how slipform serves it."""

from __future__ import annotations

from slipform.codecs.codec import Codec, ServedApi
from slipform.codecs.openai_responses.decode import ResponsesEvents, decode_body, read_usage
from slipform.codecs.openai_responses.encode import NAME, encode_body, request_path
from slipform.codecs.openai_responses.serve_decode import TURN_FIELDS, decode_request, decode_turns
from slipform.codecs.openai_responses.serve_encode import ResponsesStreamEncoder, encode_answer
from slipform.codecs.vendor_errors import openai_error

CODEC = Codec(
    NAME,
    path=request_path,
    encode=encode_body,
    decode=decode_body,
    events=lambda plan: ResponsesEvents(shaped=plan.strategy is not None),
    read_usage=read_usage,
    native_rule="openai",
    tool_rule="openai",
)
API = ServedApi(
    NAME,
    read=decode_request,
    answer=encode_answer,
    events=ResponsesStreamEncoder,
    error=openai_error,
    turns=decode_turns,
    turn_fields=TURN_FIELDS,
)
