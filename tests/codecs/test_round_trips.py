"""What one side of an API writes, the other side reads back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.codecs import APIS, Capabilities, EncodedRequest, ServedRequest, find_api, make_codec
from slipform.ir import (
    FinishReason,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    NamedTool,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Usage,
)
from slipform.ir.reducer import Reducer, Snapshot
from slipform.schema import JsonSchemaSpec, ResponseFormat
from tests.codecs.loopback import as_chunks
from tests.conftest import examples

CAPABILITIES = Capabilities(native=True, tools=True, forced_tool=True, json_mode=True)
SCHEMA = {
    "type": "object",
    "title": "person",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda name: name != "output")
ARGUMENTS = st.dictionaries(NAMES, st.integers(-9, 9) | WORDS | st.none(), max_size=2).map(
    lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
)
IMAGE = st.binary(min_size=1, max_size=8).map(lambda data: Media("image", "image/png", data))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    messages = [Message.system(draw(WORDS))] if draw(st.booleans()) else []
    first = draw(st.lists(st.builds(Text, WORDS) | IMAGE, min_size=1, max_size=3))
    messages.append(Message("user", tuple(first)))
    if draw(st.booleans()):
        name = draw(NAMES)
        calls = tuple(ToolCall(f"id_{at}", name, draw(ARGUMENTS)) for at in range(draw(st.integers(1, 2))))
        messages.append(Message("assistant", (Text(draw(WORDS)), *calls)))
        results = tuple(ToolResult(call.id, (Text("r" + draw(WORDS)),)) for call in calls)
        messages.extend(Message("tool", (result,)) for result in results)
        messages.append(Message.assistant(draw(WORDS)))
    return tuple(messages)


@st.composite
def requests(draw: st.DrawFn) -> ModelRequest:
    tools = tuple(
        Tool(name, {"type": "object", "properties": {}}, draw(st.none() | WORDS))
        for name in draw(st.lists(NAMES, max_size=2, unique=True))
    )
    choices: list[ToolChoice | None] = [None, "auto", "required", *(NamedTool(tool.name) for tool in tools)]
    shape = draw(st.sampled_from([None, ResponseFormat(JsonSchemaSpec("person", SCHEMA))]))
    return ModelRequest(
        model=draw(NAMES),
        messages=draw(conversations()),
        response_format=shape,
        tools=tools,
        tool_choice=draw(st.sampled_from(choices)) if tools else None,
        sampling=Sampling(draw(st.none() | st.floats(0, 2)), draw(st.none() | st.floats(0, 1))),
        max_tokens=draw(st.integers(1, 100)),
        extra=draw(st.dictionaries(st.just("vendorField"), WORDS, max_size=1)),
    )


def comparable(request: ModelRequest) -> Any:
    """A request without what only some APIs tell apart: tool results grouped or not, their names, strict tools."""
    turns: list[tuple[str, list[Any]]] = []
    for message in request.messages:
        parts = [
            (part.call_id, part.parts, part.is_error) if isinstance(part, ToolResult) else part
            for part in message.parts
        ]
        if turns and turns[-1][0] == message.role == "tool":
            turns[-1][1].extend(parts)
        else:
            turns.append((message.role, parts))
    tools = [(tool.name, tool.parameters, tool.description) for tool in request.tools]
    format_ = request.response_format
    return (
        request.model,
        turns,
        format_ and (format_.json_schema.name, format_.json_schema.schema),
        tools,
        request.tool_choice,
        request.sampling,
        request.max_tokens,
        dict(request.extra),
    )


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(120), deadline=None)
@given(request=requests(), stream=st.booleans())
def test_a_request_is_read_back_as_it_was(api: str, request: ModelRequest, stream: bool) -> None:
    encoded = make_codec(api, CAPABILITIES).encode_request(request, stream=stream)
    assert encoded.warnings == ()
    served = find_api(api).decode_request(encoded.body, path=encoded.path)
    assert served.stream is stream
    assert served.request.extra_for == api
    assert comparable(served.request) == comparable(request)


FINISHES: list[FinishReason] = ["stop", "length", "content_filter"]
COUNTS = st.integers(0, 50)


@st.composite
def responses(draw: st.DrawFn) -> ModelResponse:
    calls = tuple(
        ToolCall(f"id_{at}", name, draw(ARGUMENTS)) for at, name in enumerate(draw(st.lists(NAMES, max_size=2)))
    )
    cached, reasoning = draw(COUNTS), draw(COUNTS)
    fresh, said = draw(COUNTS), draw(COUNTS)
    return ModelResponse(
        text=draw(WORDS | st.just("")),
        tool_calls=calls,
        reasoning=draw(WORDS | st.just("")),
        finish="tool_calls" if calls else draw(st.sampled_from(FINISHES)),
        usage=Usage(fresh + cached, said + reasoning, cached, reasoning, fresh + cached + said + reasoning),
        model="m",
        id="r1",
    )


def seen(response: ModelResponse, api: str) -> Any:
    finish = response.finish
    if api == "anthropic" and finish == "content_filter":
        finish = "refusal"  # the API has one word for both
    calls = [(call.id, call.name, call.arguments) for call in response.tool_calls]
    return (response.text, calls, response.reasoning, finish, response.usage, response.model, response.id)


SERVED = ServedRequest(ModelRequest("m", ()), options={"include_usage": True})


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(120), deadline=None)
@given(response=responses())
def test_an_answer_is_read_back_as_it_was(api: str, response: ModelResponse) -> None:
    body = find_api(api).encode_response(response, SERVED)
    again = make_codec(api, CAPABILITIES).decode_response(body, EncodedRequest("", b""))
    assert seen(again, api) == seen(response, api)


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(120), deadline=None)
@given(response=responses(), size=st.integers(1, 60))
def test_a_streamed_answer_is_read_back_as_it_was(api: str, response: ModelResponse, size: int) -> None:
    encoder = find_api(api).encode_stream(SERVED)
    body = b"".join(encoder.feed(chunk) for chunk in as_chunks(response)) + encoder.finish()
    decoder = make_codec(api, CAPABILITIES).decode_stream(EncodedRequest("", b""))
    reducer = Reducer()
    reducer.start(Snapshot())
    for at in range(0, len(body), size):
        for chunk in decoder.feed(body[at : at + size]):
            reducer.push(chunk)
    for chunk in decoder.finish():
        reducer.push(chunk)
    assert seen(reducer.finish(), api) == seen(response, api)


REFUSED = ModelResponse(refusal="No.", finish="refusal")


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
def test_a_refusal_is_read_back_with_its_words(api: str) -> None:
    serving, codec = find_api(api), make_codec(api, CAPABILITIES)
    whole = codec.decode_response(serving.encode_response(REFUSED, SERVED), EncodedRequest("", b""))
    assert (whole.refusal, whole.finish) == ("No.", "refusal")


@pytest.mark.parametrize("api", APIS)
def test_several_answers_are_carried_where_the_api_can(api: str) -> None:
    response = ModelResponse(text="a", others=(ModelResponse(text="b", finish="length"),))
    body = find_api(api).encode_response(response, SERVED, extra={"slipform": {"attempts": 1}})
    again = make_codec(api, CAPABILITIES).decode_response(body, EncodedRequest("", b""))
    expected = [("b", "length")] if api in ("openai-chat", "gemini") else []
    assert [(other.text, other.finish) for other in again.others] == expected
    assert json.loads(body)["slipform"] == {"attempts": 1}
