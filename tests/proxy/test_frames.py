"""Calls that differ in their conversation alone share what was worked out of their other fields, and nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest

from slipform.addons.server.admission.admission import ANYBODY, Caller
from slipform.addons.server.calls import inbound
from slipform.addons.server.calls.inbound import Inbound, read_call
from slipform.addons.server.calls.routes import CallRouter
from slipform.addons.server.observability.call_record import CallRecord
from slipform.bounded import live_caches
from slipform.codecs import find_api
from slipform.config import Settings
from slipform.engine.planning import ModelRoute
from slipform.engine.setup import Options
from slipform.errors import RequestError
from slipform.ir import ModelRequest
from slipform.ir.messages import PlainTurns
from slipform.ir.request import RequestFrame
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router

SHAPE = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 150}}, "required": ["age"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SHAPE, "strict": True}}
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/up/m:generateContent",
}
_LOOK = {"name": "look", "description": "Looks.", "parameters": SHAPE}
_CALLED = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"age":3}'}}
CALLS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "chat, a schema": (
        "openai-chat",
        {"model": "up/m", "response_format": FORMAT, "temperature": 0.5, "seed": 7, "metadata": {"a": "b"}},
        [
            {"messages": [{"role": "user", "content": "How old is Ada?"}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "And Bo?"}]}]},
        ],
    ),
    "chat, tools and an unknown field": (
        "openai-chat",
        {"model": "up/m", "tools": [{"type": "function", "function": _LOOK}], "stream": True, "new": [1, {"b": None}]},
        [
            {"messages": [{"role": "user", "content": "Look."}]},
            {
                "messages": [
                    {"role": "user", "content": "Look."},
                    {"role": "assistant", "content": None, "tool_calls": [_CALLED]},
                    {"role": "tool", "tool_call_id": "call_1", "content": "grey"},
                ]
            },
        ],
    ),
    "chat, functions of old": (
        "openai-chat",
        {"model": "up/m", "functions": [_LOOK], "response_format": FORMAT},
        [
            {"messages": [{"role": "user", "content": "Look."}]},
            {
                "messages": [
                    {"role": "user", "content": "Look."},
                    {"role": "assistant", "content": None, "function_call": _CALLED["function"]},
                    {"role": "function", "name": "look", "content": "grey"},
                ]
            },
        ],
    ),
    "messages": (
        "anthropic",
        {"model": "up/m", "max_tokens": 9, "tools": [{"name": "look", "input_schema": SHAPE}],
         "output_config": {"format": {"type": "json_schema", "schema": SHAPE}}},
        [
            {"system": "Be brief.", "messages": [{"role": "user", "content": "How old?"}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "How old?"}]}]},
        ],
    ),
    "responses": (
        "openai-responses",
        {"model": "up/m", "text": {"format": {"type": "json_schema", "name": "person", "schema": SHAPE}}},
        [
            {"input": "How old?", "instructions": "Be brief."},
            {"input": [{"role": "user", "content": "How old?"}, {"role": "user", "content": "Now?"}]},
        ],
    ),
    "gemini": (
        "gemini",
        {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SHAPE}},
        [
            {"contents": [{"role": "user", "parts": [{"text": "?"}]}], "system_instruction": {"parts": []}},
            {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": [{"parts": [{"text": "And Bo?"}]}]},
        ],
    ),
}  # fmt: skip


def gate() -> CallRouter:
    provider = HttpProvider("openai", name="up", base_url="http://127.0.0.1:9/v1", api_key="none")
    return CallRouter(Router({"up": provider}), Options(), Settings())


async def read(at: CallRouter, api: str, body: dict[str, Any] | bytes, path: str | None = None) -> Inbound:
    record = CallRecord("r1", api=api)
    context = at.context(path or PATHS[api], {}, ANYBODY, None)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await read_call(find_api(api), data, record, context)


def told(call: Inbound) -> tuple[Any, ...]:
    """All that is known of a call when it was read."""
    record = call.record
    noted = (record.model, record.enforced, record.schema, record.stream, record.timeout, record.schema_from)
    options = {name: value for name, value in call.served.options.items() if name != "response_id"}
    served = msgspec.structs.replace(call.served, options=options)
    return served, call.models, call.stream_mode, call.warnings, call.switches, noted


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_reads_the_same_after_another_with_the_same_fields(name: str) -> None:
    api, fields, conversations = CALLS[name]
    shared = gate()
    for turns in [*conversations, *reversed(conversations)]:
        body = {**turns, **fields}
        assert told(await read(shared, api, body)) == told(await read(gate(), api, body))


@pytest.mark.parametrize("name", [name for name in CALLS if "of old" not in name])
async def test_what_was_worked_out_of_the_fields_is_kept(name: str) -> None:
    api, fields, (first, second) = CALLS[name]
    shared = gate()
    cold = await read(shared, api, {**fields, **first})
    assert (cold.served.request.frame is None) == (cold.bound is None), "a bound call is read as those after it"
    frame = (await read(shared, api, {**fields, **second})).served.request.frame
    assert frame is not None
    assert (await read(shared, api, {**fields, **first})).served.request.frame is frame


@pytest.mark.parametrize("change", [{"temperature": 0.6}, {"model": "up/other"}, {"new": None}, {"stream": True}])
async def test_another_field_is_another_frame(change: dict[str, Any]) -> None:
    _, fields, (first, _) = CALLS["chat, a schema"]
    shared = gate()
    for body in ({**fields, **first}, {**fields, **first, **change}):
        assert told(await read(shared, "openai-chat", body)) == told(await read(gate(), "openai-chat", body))
    assert (await read(shared, "openai-chat", {**fields, **first, **change})).served.request.frame is not (
        (await read(shared, "openai-chat", {**fields, **first})).served.request.frame
    )


async def test_geminis_model_is_part_of_the_frame() -> None:
    _, fields, (first, _) = CALLS["gemini"]
    shared = gate()
    for model in ("a", "b", "a"):
        path = f"/v1beta/models/up/{model}:generateContent"
        assert (await read(shared, "gemini", {**fields, **first}, path)).served.request.model == f"up/{model}"


@pytest.mark.parametrize(
    "body",
    [
        {"model": "up/m", "messages": [{"role": "user", "content": "x"}]},
        {"model": "up/m", "messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}},
        {"model": "up/m", "messages": [{"role": "user", "content": "x"}], "response_format": FORMAT,
         "slipform": {"report": True}},
        {"model": "up/m", "messages": [{"role": "user", "content": "x"}], "guided_json": SHAPE},
    ],
    ids=["no schema", "JSON mode, whose schema may be in the prompt", "switches", "a field of another server"],
)  # fmt: skip
async def test_no_frame_is_kept_of(body: dict[str, Any]) -> None:
    shared = gate()
    for _ in range(3):
        assert (await read(shared, "openai-chat", body)).served.request.frame is None


async def test_mistakes_in_the_conversation_are_told_behind_a_frame_too() -> None:
    _, fields, (first, _) = CALLS["chat, a schema"]
    shared = gate()
    await read(shared, "openai-chat", {**fields, **first})
    for turns, where in (([], "messages"), ([{"role": "nobody", "content": "x"}], "messages[0].role")):
        with pytest.raises(RequestError) as error:
            await read(shared, "openai-chat", {**fields, "messages": turns})
        assert error.value.where == where


async def test_a_frame_is_not_changed_by_the_calls_that_use_it() -> None:
    api, fields, (first, second) = CALLS["chat, tools and an unknown field"]
    shared = gate()
    await read(shared, api, {**fields, **first})
    before = copy.deepcopy(told(await read(shared, api, {**fields, **second}))[0])
    call = await read(shared, api, {**fields, **second})
    request = call.served.request
    route = ModelRoute(Router({"up": (provider := HttpProvider("openai", name="up", api_key="none"))}), "up/m")
    plan = route.plan(request, options := Options())
    assert route.plan(request, options) is plan
    codec = provider._endpoint.codec_for("m", request.response_format)
    one, other = (codec.encode_request(request, stream=True) for _ in range(2))
    assert (one.body, one.warnings, one.context) == (other.body, other.warnings, other.context)
    plain = codec.encode_request(request.replace(frame=None), stream=True)
    assert (plain.body, plain.warnings) == (one.body, one.warnings)
    assert told(await read(shared, api, {**fields, **second}))[0] == before


@pytest.mark.parametrize("change", [{"tools": ()}, {"extra": {"a": 1}}, {"max_tokens": 3}, {"response_format": None}])
def test_a_request_that_is_changed_leaves_its_frame(change: dict[str, Any]) -> None:
    request = ModelRequest("m", (), frame=RequestFrame())
    assert request.replace(model="n", messages=(), timeout=1.0).frame is request.frame
    assert request.replace(**change).frame is None


async def test_frames_are_bounded() -> None:
    _, fields, (first, _) = CALLS["chat, a schema"]
    shared = gate()
    for seed in range(300):
        await read(shared, "openai-chat", {**fields, **first, "seed": seed})
    caches = [each for each in live_caches() if each in (shared.frames, shared.known_bodies.entries)]
    assert len(caches) == 2
    for cache in caches:
        assert 0 < len(cache) <= 256
        assert cache.held_bytes <= cache.max_bytes


REST = f'"model":"up/m","response_format":{json.dumps(FORMAT)},"seed":7'
HI = '[{"role":"user","content":"Hi"}]'
ODD_BODIES = [
    f'{{{REST},"messages":{HI}}}',
    f'{{"messages":{HI},{REST}}}',
    f'{{ {REST} ,\n "messages" : {HI} }}',
    f'{{{REST},"messages":[],"messages":{HI}}}',
    f'{{{REST},"messages":{HI},"messages":[{{"role":"user","content":[{{"type":"text","text":"parts"}}]}}]}}',
    f'{{{REST},"seed":8,"messages":{HI}}}',
    f'{{{REST},"mess\\u0061ges":{HI}}}',
    f'{{{REST},"messages":[{{"role":"user","role":"system","content":"Hi"}}]}}',
    f'{{{REST},"messages":[{{"role":"user","content":"Hi"}},{{"role":"assistant","content":""}}]}}',
    f'{{{REST},"messages":[{{"role":"user","content":"Hi"}},{{"role":"assistant","content":"Yes?"}}]}}',
    f'{{{REST},"messages":[{{"role":"developer","content":"Hi"}}]}}',
    f'{{{REST},"messages":[{{"role":"user","content":"Hi","name":"ada"}}]}}',
    f'{{{REST},"messages":[{{"role":"user","content":"\\ud83d\\ude00 \\u00e9 é"}}]}}',
    f'{{{REST},"messages":[{{"role":"user","content":"{{\\"model\\":1}}"}}]}}',
    f'{{{REST},"messages":[{{"role":"user","content":null}}]}}',
    f'{{{REST},"messages":[{{"role":"nobody","content":"Hi"}}]}}',
    f'{{{REST},"messages":[{{"role":"user","content":"\\ud83d"}}]}}',
    f'{{{REST},"messages":[]}}',
    f'{{{REST},"messages":"Hi"}}',
    f"{{{REST}}}",
    f'{{{REST},"messages":{HI}}} and more',
    f'{{{REST},"model":"up/other","messages":{HI}}}',
    f'{{{REST},"metadata":{{"messages":{HI}}},"messages":{HI}}}',
    f'{{{REST},"metadata":{{"messages":{HI.replace("Hi", "No")}}},"messages":{HI}}}',
    f'{{{REST},"messages":{HI},"metadata":{{"messages":{HI}}}}}',
    f'{{{REST},"messages":{HI},"metadata":{HI}}}',
    f'{{{REST},"messages":{HI.replace("Hi", "No")},"metadata":{HI}}}',
    f'{{{REST},"messages":{HI},"mess\\u0061ges":{HI}}}',
    f'{{"messages":{HI},{REST},"user":"[]"}}',
    f'{{"messages":{HI},"user":"[]",{REST}}}',
]


async def result_of(at: CallRouter, body: bytes) -> Any:
    """What is read of a body: its request, or its error."""
    try:
        call = await read(at, "openai-chat", body)
    except RequestError as error:
        return str(error)
    return call.served.request, call.served.stream, call.models, call.record.model, call.record.schema


async def test_a_call_that_is_known_by_its_bytes_is_read_as_the_first_one_was() -> None:
    shared = gate()
    different = []
    for _ in range(2):
        for body in ODD_BODIES:
            if await result_of(shared, body.encode()) != await result_of(gate(), body.encode()):
                different.append(body)
    assert different == []


async def test_a_conversation_of_words_is_encoded_without_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    _, fields, (first, _) = CALLS["chat, a schema"]
    shared = gate()
    turns = [{"role": role, "content": f"{role} é \U0001f600"} for role in ("system", "user", "assistant", "user")]
    codec = HttpProvider("openai", name="up", api_key="none")._endpoint.codec_for("m", None)
    for messages in (first["messages"], turns):
        call = await read(shared, "openai-chat", {**fields, "messages": messages})
        codec.encode_request(call.served.request, stream=False)
    anew = (await read(gate(), "openai-chat", {**fields, "messages": turns})).served.request
    warm = (await read(shared, "openai-chat", {**fields, "messages": turns})).served.request
    expected = codec.encode_request(anew, stream=False).body

    def build_messages(_turns: PlainTurns) -> None:
        raise AssertionError("messages were built")

    monkeypatch.setattr(PlainTurns, "messages", property(build_messages))
    assert codec.encode_request(warm, stream=False).body == expected


FORWARDED_BODIES = [
    f'{{"model":"up/m","messages":{HI}}}',
    f'{{"messages":{HI},"model":"up/m"}}',
    f'{{ "model" : "up/m" ,\n "messages" : {HI} , "seed" : 7 }}',
    '{"model":"up/m","messages":[{"role":"user","content":"And \\"role\\"?"}]}',
    '{"model":"up/m","messages":[{"role":"user","content":"role"},{"role":"assistant","content":"é\\n"}]}',
    '{"model":"up/m","messages":[{"role":"user","role":"system","content":"Hi"}]}',
    '{"model":"up/m","messages":[{"role":"user","content":"a","content":"b"}]}',
    '{"model":"up/m","messages":[{"role":"user","rol\\u0065":"system","content":"Hi"}]}',
    f'{{"model":"up/m","seed":1,"seed":7,"messages":{HI}}}',
    f'{{"model":"up/m","seed":7,"messages":{HI}}}',
    f'{{"model":"up/m","messages":[],"messages":{HI}}}',
    f'{{"model":"up/m","metadata":{{"a":{HI}}},"messages":{HI}}}',
    f'{{"model":"up/m","metadata":{{"messages":{HI.replace("Hi", "No")}}},"messages":{HI}}}',
    f'{{"model":"up/m","messages":{HI},"metadata":{{"messages":{HI}}}}}',
    f'{{"model":"up/m","messages":{HI},"metadata":{HI}}}',
    f'{{"model":"up/m","messages":{HI.replace("Hi", "No")},"metadata":{HI}}}',
    f'{{"model":"up/other","messages":{HI}}}',
    f'{{"model":"up/m","stream":true,"messages":{HI}}}',
]


async def forwarded_by(at: CallRouter, body: str, caller: Caller) -> tuple[Any, ...]:
    """What is sent on of a body that goes through, and what is recorded of it."""
    record = CallRecord("r1", api="openai-chat")
    context = at.context(PATHS["openai-chat"], {b"openai-beta": b"x"}, caller, None)
    call = await read_call(find_api("openai-chat"), body.encode(), record, context)
    assert call.forwarded is not None
    sent = (call.forwarded.body, call.forwarded.route.path, call.forwarded.route.streamed, call.forwarded.headers)
    noted = (record.model, record.provider, record.upstream_model, record.stream, record.timeout)
    return sent, noted, call.models, call.served


@pytest.mark.parametrize("caller", [ANYBODY, Caller("ada", ("up/*",), "key-1")], ids=["no keys", "a key"])
async def test_a_call_that_goes_through_is_sent_on_as_the_first_with_its_fields_was(caller: Caller) -> None:
    shared = gate()
    different = []
    for _ in range(2):
        for body in FORWARDED_BODIES:
            if await forwarded_by(shared, body, caller) != await forwarded_by(gate(), body, caller):
                different.append(body)
    assert different == []


async def test_a_known_call_that_goes_through_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = gate()
    await forwarded_by(shared, FORWARDED_BODIES[0], ANYBODY)
    monkeypatch.delattr(inbound, "parse_body_async")
    (body, *_), *_ = await forwarded_by(shared, FORWARDED_BODIES[0].replace("Hi", "How are you?"), ANYBODY)
    assert body == b'{"model":"m","messages":[{"role":"user","content":"How are you?"}]}'
