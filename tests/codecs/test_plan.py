"""Which channel a request takes, what it costs, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from slipform.codecs import CODECS, Capabilities, make_codec
from slipform.codecs import wire_schemas as plan_module
from slipform.errors import ConfigError, RequestError
from slipform.ir import (
    LossyEncode,
    Media,
    Message,
    ModelRequest,
    ModelWarning,
    NamedTool,
    Opaque,
    Reasoning,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.schema.lowering.emit import LoweringLoss
from slipform.schema.lowering.lowered import Lowered

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
SHAPE = ResponseFormat(JsonSchemaSpec("person", SCHEMA))
ASK = (Message.user("Ada"),)
WEATHER = Tool("weather", {"type": "object", "properties": {}}, "The weather.")
ALL = Capabilities(native=True, tools=True, forced_tool=True, json_mode=True)


def encode(codec: str, capabilities: Capabilities = ALL, **fields: Any) -> tuple[dict[str, Any], list[ModelWarning]]:
    request = ModelRequest(**{"model": "m", "messages": ASK, "max_tokens": 9, **fields})
    encoded = make_codec(codec, capabilities).encode_request(request, stream=False)
    return json.loads(encoded.body), list(encoded.warnings)


def paths(warnings: list[ModelWarning]) -> list[str | None]:
    return [warning.path for warning in warnings if isinstance(warning, LossyEncode)]


@pytest.mark.covers("S4-17", "S4-18", "S4-19", "C16")
@pytest.mark.parametrize("codec", list(CODECS))
def test_auto_is_settled_when_the_codec_is_made_and_can_be_read(codec: str) -> None:
    assert make_codec(codec, Capabilities(native=True, forced_tool=True)).strategy is OutputStrategy.NATIVE
    assert make_codec(codec, Capabilities(forced_tool=True)).strategy is OutputStrategy.TOOL
    assert make_codec(codec, Capabilities()).strategy is OutputStrategy.PROMPTED


def test_an_unknown_codec_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="openai-chat"):
        make_codec("openai", ALL)


def uses_native(codec: str, body: dict[str, Any]) -> bool:
    config = body.get("generationConfig", {})
    found = {
        "openai-chat": body.get("response_format", {}).get("type") == "json_schema",
        "openai-responses": body.get("text", {}).get("format", {}).get("type") == "json_schema",
        "anthropic": "format" in body.get("output_config", {}),
        "gemini": "responseJsonSchema" in config,
        "bedrock": "textFormat" in body.get("outputConfig", {}),
        "cohere": "json_schema" in body.get("response_format", {}),
        "ollama": isinstance(body.get("format"), dict),
    }
    return bool(found[codec])


@pytest.mark.covers("S4-12", "S4-13", "S4-14", "S4-15", "S3-32", "C17", "C20")
@pytest.mark.parametrize("codec", list(CODECS))
def test_each_strategy_has_its_channel(codec: str) -> None:
    native, lost_native = encode(codec, response_format=SHAPE.with_strategy(OutputStrategy.NATIVE))
    assert uses_native(codec, native)
    assert paths(lost_native) == []
    tool, _ = encode(codec, response_format=SHAPE.with_strategy(OutputStrategy.TOOL))
    assert not uses_native(codec, tool)
    assert '"output"' in json.dumps(tool)
    prompted, lost_prompted = encode(codec, response_format=SHAPE.with_strategy(OutputStrategy.PROMPTED))
    assert not uses_native(codec, prompted)
    assert '"output"' not in json.dumps(prompted)
    assert "response_format.strict" in paths(lost_prompted)


@pytest.mark.covers("S1-25", "S2-35")
@pytest.mark.parametrize("codec", ["openai-chat", "openai-responses", "gemini", "cohere", "ollama"])
def test_prompted_and_json_mode_switch_the_vendor_s_json_mode_on_where_there_is_one(codec: str) -> None:
    asked, _ = encode(codec, json_mode=True)
    prompted, _ = encode(codec, response_format=SHAPE.with_strategy(OutputStrategy.PROMPTED))
    plain, _ = encode(codec)
    assert asked == prompted != plain
    none, lost = encode(codec, replace(ALL, json_mode=False, forced_tool=False), json_mode=True)
    assert none == plain
    assert paths(lost) == ["json_mode"]


@pytest.mark.covers("S1-17", "S1-25", "S1-35")
@pytest.mark.parametrize("codec", [name for name in CODECS if name != "ollama"])  # it cannot force a tool
def test_json_mode_is_a_forced_tool_where_there_is_no_mode_for_it(codec: str) -> None:
    body, lost = encode(codec, replace(ALL, json_mode=False), json_mode=True)
    assert '"output"' in json.dumps(body)
    assert paths(lost) == []
    beside_tools, lost = encode(codec, replace(ALL, json_mode=False), json_mode=True, tools=(WEATHER,))
    assert '"output"' not in json.dumps(beside_tools)
    assert "json_mode" in paths(lost)


@pytest.mark.covers("S3-59")
@pytest.mark.parametrize("codec", list(CODECS))
def test_the_reserved_tool_name_is_refused_from_callers_where_it_is_used(codec: str) -> None:
    tools = (WEATHER, Tool("output", {}))
    with pytest.raises(RequestError, match="reserved") as caught:
        encode(codec, tools=tools, response_format=SHAPE.with_strategy(OutputStrategy.TOOL))
    assert caught.value.where == "tools[1].name"
    body, _ = encode(codec, tools=tools)
    assert '"output"' in json.dumps(body)


@pytest.mark.covers("C29")
def test_the_caller_s_tools_stay_beside_the_reserved_one() -> None:
    body, _ = encode("openai-chat", response_format=SHAPE.with_strategy(OutputStrategy.TOOL), tools=(WEATHER,))
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather", "output"]
    assert body["tool_choice"] == "required"
    assert "parallel_tool_calls" not in body
    native, _ = encode("openai-chat", response_format=SHAPE, tools=(WEATHER,))
    assert native["tools"]
    assert native["response_format"]
    _, warned = encode("openai-chat", response_format=SHAPE.with_strategy(OutputStrategy.PROMPTED), tools=(WEATHER,))
    assert "tools_with_prompted" in [warning.code for warning in warned]


def test_where_a_schema_and_tools_exclude_each_other_the_schema_goes_in_a_tool() -> None:
    capabilities = replace(ALL, quirks=frozenset({"no_native_with_tools"}))
    body, lost = encode("gemini", capabilities, response_format=SHAPE, tools=(WEATHER,))
    names = [tool["name"] for tool in body["tools"][0]["functionDeclarations"]]
    assert names == ["weather", "output"]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
    assert paths(lost) == ["response_format"]


def test_a_model_that_cannot_be_forced_is_only_offered_the_tool() -> None:
    capabilities = replace(ALL, forced_tool=False)
    body, lost = encode("anthropic", capabilities, response_format=SHAPE.with_strategy(OutputStrategy.TOOL))
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert paths(lost) == ["tool_choice"]


@pytest.mark.covers("S4-25", "S4-33")
def test_a_schema_that_fails_the_strict_rules_is_sent_without_strict_and_said() -> None:
    open_schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    shape = ResponseFormat(JsonSchemaSpec("person", open_schema))
    body, lost = encode("openai-chat", response_format=shape)
    assert body["response_format"]["json_schema"]["strict"] is False
    assert [(warning.path, "required" in warning.message) for warning in lost] == [("$", True)]
    tool, lost = encode("anthropic", response_format=shape.with_strategy(OutputStrategy.TOOL))
    assert tool["tools"][0]["strict"] is True
    assert lost == []


@pytest.mark.covers("S4-04", "S4-09")
def test_an_unchecked_schema_is_checked_when_it_is_encoded() -> None:
    unchecked = JsonSchemaSpec.from_dict({"name": "x", "schema": [1]})
    with pytest.raises(RequestError, match="JSON object"):
        encode("openai-chat", response_format=ResponseFormat(unchecked))


def test_a_name_with_other_letters_is_respelled_and_said() -> None:
    body, lost = encode("openai-chat", response_format=ResponseFormat(JsonSchemaSpec("die Größe", SCHEMA)))
    assert body["response_format"]["json_schema"]["name"] == "die_Gr__e"
    assert paths(lost) == ["response_format.json_schema.name"]


@pytest.fixture
def wrapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialect that wraps the value, loses one keyword, and says so."""

    def fake(schema: Any, dialect: str, *, open_objects: str) -> Lowered:
        assert (dialect, open_objects) == ("wrapped", "auto")
        lost = LoweringLoss("/properties/name/pattern", "pattern", "a+", "dropped", "local")
        encoded = LoweringLoss("", "type", None, "encoded", "vendor")
        wrapper = {
            "type": "object",
            "properties": {"value": schema},
            "required": ["value"],
            "additionalProperties": False,
        }
        return Lowered(wrapper, lambda value: value["value"], (lost, encoded))

    monkeypatch.setattr(plan_module, "lower", fake)


@pytest.mark.usefixtures("wrapping")
def test_what_the_dialect_loses_is_said_and_the_answer_is_lifted_back() -> None:
    capabilities = replace(ALL, dialect="wrapped", tool_dialect="wrapped")
    codec = make_codec("openai-chat", capabilities)
    encoded = codec.encode_request(ModelRequest("m", ASK, SHAPE), stream=False)
    assert [(w.path, w.action) for w in encoded.warnings if isinstance(w, LossyEncode)] == [
        ("/properties/name/pattern", "dropped")
    ]

    def answered(content: str) -> Any:
        choice = {"message": {"content": content}, "finish_reason": "stop"}
        return codec.decode_response(json.dumps({"choices": [choice]}).encode(), encoded)

    good = answered('{"value": {"name": "Ada"}}')
    assert (good.text, good.parts, good.lift) == ('{"name":"Ada"}', (Text('{"name":"Ada"}'),), None)
    assert good.warnings == encoded.warnings
    bad = answered('Sure: {"value": {"name": "Ada"}}')
    assert bad.text.startswith("Sure")
    assert bad.lift is not None
    assert bad.lift({"value": {"name": "Ada"}}) == {"name": "Ada"}


@pytest.mark.usefixtures("wrapping")
def test_a_stream_in_the_vendor_s_shape_says_so_on_its_first_chunk() -> None:
    codec = make_codec("openai-chat", replace(ALL, dialect="wrapped"))
    decoder = codec.decode_stream(codec.encode_request(ModelRequest("m", ASK, SHAPE), stream=True))
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    first, second = decoder.feed(event + event)
    assert first.lift is not None
    assert second.lift is None


@pytest.mark.covers("S3-33", "S3-34")
def test_the_reserved_call_in_a_whole_answer_becomes_the_text() -> None:
    codec = make_codec("anthropic", Capabilities(forced_tool=True))
    encoded = codec.encode_request(ModelRequest("m", ASK, SHAPE, max_tokens=9), stream=False)
    blocks = [
        {"type": "text", "text": "Here you are."},
        {"type": "tool_use", "id": "a", "name": "output", "input": {"name": "Ada"}},
        {"type": "tool_use", "id": "b", "name": "output", "input": {"name": "Bob"}},
    ]
    answer = codec.decode_response(json.dumps({"content": blocks, "stop_reason": "tool_use"}).encode(), encoded)
    assert (answer.text, answer.tool_calls, answer.finish) == ('{"name":"Ada"}', (), "stop")
    assert answer.parts == (Text("Here you are."), Text('{"name":"Ada"}'))
    assert "extra_output_calls" in [warning.code for warning in answer.warnings]


SAMPLING = Sampling(0.1, 0.2, 3, 4, 0.5, 0.6, ("END",))
LOST_SAMPLING = {
    "openai-chat": ["top_k"],
    "openai-responses": ["top_k", "seed", "frequency_penalty", "presence_penalty", "stop"],
    "anthropic": ["seed", "frequency_penalty", "presence_penalty"],
    "gemini": [],
    "bedrock": ["seed", "frequency_penalty", "presence_penalty"],
    "cohere": [],
    "ollama": [],
}


@pytest.mark.parametrize("codec", list(CODECS))
def test_sampling_that_the_wire_cannot_carry_is_said(codec: str) -> None:
    _, lost = encode(codec, sampling=SAMPLING)
    assert paths(lost) == [f"sampling.{name}" for name in LOST_SAMPLING[codec]]
    body, all_lost = encode(codec, replace(ALL, sampling=False), sampling=SAMPLING)
    assert "0.1" not in json.dumps(body)
    assert len(paths(all_lost)) >= 6


@pytest.mark.parametrize("codec", list(CODECS))
def test_parts_of_other_vendors_are_left_out_and_said(codec: str) -> None:
    parts = (
        Reasoning("hm", {"elsewhere": {"signature": "s"}}),
        Opaque("elsewhere", {"type": "thing"}),
        Text("hi", {"elsewhere": {"cache": True}} if codec not in ("cohere", "ollama") else {}),
    )
    body, lost = encode(codec, messages=(*ASK, Message("assistant", parts), *ASK))
    assert "hm" not in json.dumps(body)
    assert "thing" not in json.dumps(body)
    assert len(paths(lost)) >= 2
    tool = Tool("search", {}, extra={"elsewhere": {"type": "search"}}, vendor="elsewhere")
    body, lost = encode(codec, tools=(tool,))
    assert "search" not in json.dumps(body)
    assert "tools.search" in paths(lost)


@pytest.mark.parametrize("codec", list(CODECS))
def test_vendor_fields_are_passed_through_untouched_or_said_to_be_another_s(codec: str) -> None:
    body, lost = encode(codec, extra={"new_field": {"a": [1]}})
    assert body["new_field"] == {"a": [1]}
    assert paths(lost) == []
    body, lost = encode(codec, extra={"new_field": 1}, extra_for="elsewhere")
    assert "new_field" not in body
    assert paths(lost) == ["new_field"]


@pytest.mark.parametrize("codec", list(CODECS))
def test_tool_choices_are_spelled_or_their_loss_is_said(codec: str) -> None:
    spelled = set()
    for choice in ("auto", "none", "required", NamedTool("weather")):
        body, lost = encode(codec, tools=(WEATHER,), tool_choice=choice)
        spelled.add(json.dumps(body, sort_keys=True) + str(paths(lost)))
    assert len(spelled) >= 3


def test_mistral_s_quirks() -> None:
    from slipform.ir import ToolCall, ToolResult

    quirks = frozenset({"random_seed", "short_tool_ids", "usage_always"})
    messages = (
        *ASK,
        Message("assistant", (ToolCall("call_1", "weather", "{}"),)),
        Message("tool", (ToolResult("call_1", (Text("sun"),)),)),
    )
    codec = make_codec("openai-chat", replace(ALL, quirks=quirks))
    encoded = codec.encode_request(ModelRequest("m", messages, sampling=Sampling(seed=3)), stream=True)
    body = json.loads(encoded.body)
    called, answered = body["messages"][1]["tool_calls"][0]["id"], body["messages"][2]["tool_call_id"]
    assert called == answered
    assert len(called) == 9
    assert body["random_seed"] == 3
    assert "stream_options" not in body


@pytest.mark.parametrize("value", [1.5, 0, True, "x", [1]], ids=str)
@pytest.mark.parametrize("name", CODECS)
def test_a_part_of_a_request_that_is_not_an_object_is_left_out(name: str, value: Any) -> None:
    request = ModelRequest("m", ASK, SHAPE, extra={"stream_options": value, "tool_choice": value}, extra_for=name)
    body = json.loads(make_codec(name, ALL).encode_request(request, stream=False).body)
    assert "stream_options" not in body


def test_media_is_spelled_by_every_vendor_that_takes_it() -> None:
    image = Message("user", (Text("look"), Media("image", "image/png", b"png")))
    for codec in CODECS:
        body, lost = encode(codec, messages=(image,))
        assert "cG5n" in json.dumps(body), codec
        assert paths(lost) == []


@pytest.mark.parametrize("codec", list(CODECS))
def test_reasoning_is_asked_for_where_the_model_can_and_said_to_be_lost_where_not(codec: str) -> None:
    plain, _ = encode(codec)
    thinking, lost = encode(codec, replace(ALL, reasoning=True), reasoning={"effort": "low"})
    assert thinking != plain
    assert paths(lost) == (["reasoning.effort"] if codec == "cohere" else []), "Cohere thinks or does not"
    refused, lost = encode(codec, reasoning={"effort": "low"})
    assert refused == plain
    assert paths(lost) == ["reasoning"]


@pytest.mark.parametrize("name", CODECS)
def test_a_tools_schema_may_be_any_mapping(name: str) -> None:
    """A mapping that is read-only, say, as the schema of a shared constant is."""
    parameters = MappingProxyType({"type": "object", "properties": MappingProxyType({"a": {"type": "string"}})})
    request = ModelRequest("m", (Message.user("x"),), tools=(Tool("save", parameters, "Save it."),))
    sent = make_codec(name, Capabilities(tools=True)).encode_request(request, stream=False).body
    assert '"a":{"type":' in sent.decode().lower().replace('"string"', "").replace(" ", "")


def encoded(request: ModelRequest, *quirks: str) -> tuple[dict[str, Any], list[str]]:
    """What Chat Completions is sent by a vendor with these quirks, and which fields are lost or approximated."""
    codec = make_codec("openai-chat", Capabilities(tools=True, reasoning=True, quirks=frozenset(quirks)))
    sent = codec.encode_request(request, stream=False)
    return json.loads(sent.body), [str(warning.path) for warning in sent.warnings]


@pytest.mark.parametrize(
    ("quirk", "reasoning", "sent", "lost"),
    [
        ("", {"effort": "high"}, {"reasoning_effort": "high"}, []),
        ("", {"enabled": False}, {"reasoning_effort": "none"}, []),
        ("", {"enabled": True}, {}, ["reasoning.enabled"]),
        ("", {"effort": "low", "budget": 9}, {"reasoning_effort": "low"}, ["reasoning.budget"]),
        ("reasoning_object", {"effort": "high"}, {"reasoning": {"effort": "high"}}, []),
        ("reasoning_object", {"budget": 9, "enabled": True}, {"reasoning": {"max_tokens": 9, "enabled": True}}, []),
        ("thinking_object", {"effort": "none"}, {"thinking": {"type": "disabled"}}, []),
        ("thinking_object", {"enabled": True}, {"thinking": {"type": "enabled"}}, []),
        ("thinking_object", {"effort": "low"}, {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}, []),
        ("thinking_object", {"enabled": False, "budget": 9}, {"thinking": {"type": "disabled"}}, ["reasoning.budget"]),
    ],
)
def test_reasoning_is_asked_for_in_the_vendors_own_field(
    quirk: str, reasoning: dict[str, Any], sent: dict[str, Any], lost: list[str]
) -> None:
    body, left = encoded(ModelRequest("m", (Message.user("x"),), reasoning=reasoning), quirk)
    assert {key: body[key] for key in ("reasoning", "thinking", "reasoning_effort") if key in body} == sent
    assert left == lost


CALLED = (
    Message.user("x"),
    Message("assistant", (ToolCall("c1", "f", "{}"),)),
    Message("tool", (ToolResult("c1", (Text("1"),)),)),
)


@pytest.mark.parametrize(
    ("extra", "thinking", "lost"),
    [
        ({}, {"type": "disabled"}, ["reasoning"]),
        ({"thinking": {"type": "disabled"}}, {"type": "disabled"}, []),
        ({"thinking": {"type": "enabled"}}, {"type": "enabled"}, ["reasoning"]),
        ({"thinking": True}, True, ["reasoning"]),
        ({"thinking": "on"}, "on", ["reasoning"]),
    ],
)
def test_a_turn_whose_thinking_is_not_known_does_not_think(extra: Any, thinking: Any, lost: list[str]) -> None:
    request = ModelRequest("m", CALLED, extra=extra, extra_for="openai-chat")
    body, left = encoded(request, "thinking_object", "replay_reasoning")
    assert (body["thinking"], left) == (thinking, lost)
