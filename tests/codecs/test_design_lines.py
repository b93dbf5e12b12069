"""Lines of the design documents that one codec or another must keep."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slipform.codecs import BoundCodec, Capabilities, make_codec
from slipform.ir import Message, ModelRequest
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WANTED = ResponseFormat.strict(JsonSchemaSpec("person", SCHEMA))


def body(codec: BoundCodec, wanted: ResponseFormat = WANTED) -> Any:
    encoded = codec.encode_request(ModelRequest("m", (Message.user("Ada is 36"),), wanted), stream=False)
    return orjson.loads(encoded.body)


@pytest.mark.covers("S1-31", "S1-32", "C18")
def test_gemini_takes_its_own_vocabulary_where_the_row_says_so() -> None:
    own = body(make_codec("gemini", Capabilities(native=True, dialect="gemini-openapi")))["generationConfig"]
    assert own["responseMimeType"] == "application/json"
    assert own["responseSchema"]["type"] == "OBJECT"
    assert own["responseSchema"]["properties"]["age"]["nullable"] is True
    assert "responseJsonSchema" not in own
    plain = body(make_codec("gemini", Capabilities(native=True, dialect="gemini")))["generationConfig"]
    assert plain["responseJsonSchema"]["properties"]["name"] == {"type": "string"}
    assert "responseSchema" not in plain


@pytest.mark.covers("S4-03", "S4-13", "C17", "C20")
def test_anthropic_is_native_first_and_a_forced_tool_where_the_model_is_older() -> None:
    native = body(make_codec("anthropic", Capabilities(native=True, dialect="anthropic")))
    assert native["output_config"]["format"]["type"] == "json_schema"
    assert "tools" not in native
    older = body(make_codec("anthropic", Capabilities(tools=True, forced_tool=True)))
    assert [tool["name"] for tool in older["tools"]] == ["output"]
    assert older["tool_choice"]["name"] == "output"
    assert "person" in older["tools"][0]["description"]


@pytest.mark.covers("S4-15", "S4-16", "C15")
@pytest.mark.parametrize("name", ["openai-chat", "anthropic", "gemini"])
def test_prompted_is_served_and_sends_no_schema_of_its_own(name: str) -> None:
    codec = make_codec(name, Capabilities())
    assert codec.strategy is OutputStrategy.PROMPTED
    sent = body(codec)
    assert not {"response_format", "output_config", "tools"} & set(sent)
    assert "responseJsonSchema" not in sent.get("generationConfig", {})
