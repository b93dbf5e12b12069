"""Tool names that a vendor does not take are respell_tools on the way out, and come back as the caller's own."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.codecs import make_codec
from slipform.codecs.request_fields import Capabilities, Encoding
from slipform.codecs.tool_names import LETTERS, respell_tools
from slipform.ir import LossyEncode, Message, ModelRequest, ModelResponse, NamedTool, Text, Tool, ToolCall, ToolResult
from slipform.ir.reducer import Reducer, Snapshot
from slipform.providers.http import HttpProvider
from slipform.testing import Answer, Api, FakeVendor, Received, calling
from slipform.testing.vendor import Raw, rejected
from tests.conftest import examples
from tests.providers.conftest import QUICK

ODD = "files.read/all"
LONG = "x" * 200
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = tuple(Tool(name, PARAMETERS) for name in (ODD, "files_read_all", "plain", "wetter für morgen", LONG))
VENDORS: list[tuple[str, Api, str, str]] = [
    ("openai", "openai", "gpt-6-luna", r"[A-Za-z0-9_-]{1,64}"),
    ("anthropic", "anthropic", "claude-sonnet-4-5", r"[A-Za-z0-9_-]{1,64}"),
    ("gemini", "gemini", "gemini-3-flash", r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}"),
]
CODECS = {
    "openai-chat": r"[A-Za-z0-9_-]{1,64}",
    "openai-responses": r"[A-Za-z0-9_-]{1,64}",
    "anthropic": r"[A-Za-z0-9_-]{1,64}",
    "gemini": r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}",
    "bedrock": r"[A-Za-z0-9_-]{1,64}",
    "cohere": r"[A-Za-z_][A-Za-z0-9_]*",
    "ollama": r".+",
}
TURNS = (
    Message.user("Read it"),
    Message(
        "assistant", (Text("Reading."), ToolCall("call_1", ODD, '{"path": "a"}'), ToolCall("call_2", "plain", "{}"))
    ),
    Message("tool", (ToolResult("call_1", (Text("words"),), name=ODD),)),
    Message("tool", (ToolResult("call_2", (Text("more"),), name="plain"),)),
    Message.user("And now?"),
)


def _names(value: Any) -> list[str]:
    """The names of tools anywhere in a body: of tools, choices, calls and results."""
    if isinstance(value, list):
        return [name for each in value for name in _names(each)]
    if not isinstance(value, dict):
        return []
    own = [value[key] for key in ("name", "tool_name") if isinstance(value.get(key), str)]
    allowed = value.get("allowedFunctionNames", [])
    return own + list(allowed) + [name for key, each in value.items() if key != "parameters" for name in _names(each)]


@pytest.mark.parametrize("name", CODECS)
def test_every_name_in_a_request_is_one_that_the_vendor_takes(name: str) -> None:
    codec = make_codec(name, Capabilities(forced_tool=True, native=True))
    request = ModelRequest("m", TURNS, tools=TOOLS, tool_choice=NamedTool(ODD))
    encoded = codec.encode_request(request, stream=False)
    names = _names(json.loads(encoded.body))
    assert all(re.fullmatch(CODECS[name], each) for each in names), names
    spelled = [each for each in names if each not in ("plain", "files_read_all")]
    assert spelled.count(spelled[0]) >= 2  # the tool and its call are spelled alike
    said = {warning.path for warning in encoded.warnings if isinstance(warning, LossyEncode)}
    renamed = () if name == "ollama" else (ODD, "wetter für morgen", LONG)
    assert {f"tools.{each}.name" for each in renamed} <= said
    if name == "ollama":
        assert not any("It is spelled" in warning.message for warning in encoded.warnings)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("vendor", "api", "model", "letters"), VENDORS)
def test_calls_come_back_under_the_callers_names(
    vendor: str, api: Api, model: str, letters: str, streamed: bool
) -> None:
    def answer(received: Received) -> Answer | Raw:
        names = _names(received.json())
        bad = [name for name in names if not re.fullmatch(letters, name)]
        if bad:
            return rejected(f"tools.0.name: {bad[0]!r} is not allowed")
        offered = list(dict.fromkeys(names))
        return Answer(calling(*((name, {"path": name}) for name in offered)))

    with FakeVendor(answer, api=api) as fake:
        provider = HttpProvider(vendor, base_url=fake.base_url, api_key="k-123456", retries=QUICK)
        request = ModelRequest(model, TURNS, tools=TOOLS)
        if streamed:
            reducer = Reducer()
            reducer.start(Snapshot())
            for chunk in provider.stream(request):
                reducer.push(chunk)
            response: ModelResponse = reducer.finish()
        else:
            response = provider.complete(request)
    assert sorted(call.name for call in response.tool_calls) == sorted(tool.name for tool in TOOLS)
    assert [call.name for call in response.message.tool_calls] == [call.name for call in response.tool_calls]
    assert len({call.arguments for call in response.tool_calls}) == len(TOOLS)


@settings(max_examples=examples(120))
@given(st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=6, unique=True))
def test_names_stay_apart_and_lead_back(names: list[str]) -> None:
    request = ModelRequest("m", (Message.user("x"),), tools=tuple(Tool(name, {}) for name in names))
    sent, back = respell_tools(request, LETTERS, Encoding("openai-chat", Capabilities()))
    spelled = [tool.name for tool in sent.tools]
    assert len(set(spelled)) == len(names)
    assert all(LETTERS.allows(each) for each in spelled)
    assert [back.get(each, each) for each in spelled] == names
    assert respell_tools(request, LETTERS, Encoding("openai-chat", Capabilities()))[0] == sent
