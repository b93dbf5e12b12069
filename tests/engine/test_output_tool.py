"""The tool name `output` is the caller's own wherever slipform does not use it to ask for the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform import Budget, Client, Options
from slipform.addons.local import LocalProvider
from slipform.errors import RequestError
from slipform.ir import Message, ModelRequest, ModelResponse, Tool, ToolCall
from slipform.providers import Provider
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, FakeModel, FakeVendor, calling
from tests.conftest import PERSON
from tests.proxy.proxying import FORMAT, chat, proxied

ADA = '{"name": "Ada", "age": 36}'
PARAMETERS: Any = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OUTPUT_TOOL: Any = {"type": "function", "function": {"name": "output", "parameters": PARAMETERS}}
CALL = ModelResponse(tool_calls=(ToolCall("c1", "output", '{"x": 1}'),))


def output(x: int) -> str:
    """Write x."""
    return f"wrote {x}"


def _client(*answers: Any) -> Client:
    return Client("fake/m", router=Router({"fake": FakeModel(list(answers))}))


@pytest.mark.covers("S3-59", "C20")
def test_a_function_named_output_is_run() -> None:
    client = _client(calling(("output", {"x": 1})), "done")
    assert client.text("x", tools=[output]) == "done"


@pytest.mark.covers("S3-59")
@pytest.mark.parametrize("strategy", ["native", "prompted"])
def test_a_function_named_output_is_run_beside_a_schema_that_is_asked_for_in_another_way(strategy: Any) -> None:
    result = _client(calling(("output", {"x": 1})), ADA).ask_full(PERSON, "x", tools=[output], strategy=strategy)
    assert result.value == {"name": "Ada", "age": 36}
    assert [run.value for run in result.runs] == ["wrote 1"]


@pytest.mark.covers("S3-59")
def test_streams_run_it_too() -> None:
    stream = _client(calling(("output", {"x": 1})), ADA).stream(PERSON, "x", tools=[output], strategy="native")
    list(stream)
    assert stream.result.value == {"name": "Ada", "age": 36}
    assert [run.value for run in stream.result.runs] == ["wrote 1"]


@pytest.mark.covers("S3-59")
@pytest.mark.parametrize("kind", ["fake", "openai", "local"])
def test_the_name_is_refused_by_every_provider_where_the_answer_is_asked_for_by_a_tool(
    kind: str, local: LocalProvider
) -> None:
    with FakeVendor([Answer(ADA)]) as vendor:
        providers: dict[str, Provider] = {
            "fake": FakeModel([ADA]),
            "openai": HttpProvider("openai", base_url=vendor.base_url, api_key="k"),
            "local": local,
        }
        client = Client("local" if kind == "local" else f"{kind}/gpt-4o", router=Router(providers))
        with pytest.raises(RequestError, match="`output` is reserved") as caught:
            client.ask(PERSON, "x", tools=[output], strategy="tool")
        assert caught.value.where == "tools[0].name"
        assert vendor.requests == []


@pytest.mark.covers("S3-59")
@pytest.mark.parametrize("api", ["openai", "anthropic", "gemini", "ollama"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("schema", [False, True])
def test_the_proxy_returns_calls_of_a_tool_named_output(api: Any, stream: bool, schema: bool) -> None:
    models = {"openai": "gpt-4o", "anthropic": "claude-sonnet-4-5", "gemini": "gemini-3-pro", "ollama": "q"}
    with FakeVendor([Answer(CALL)], api=api) as vendor:
        provider = HttpProvider(api, name="up", base_url=vendor.base_url, api_key="k")
        with proxied({"up": provider}) as address:
            more: Any = {"response_format": FORMAT if schema else None, "tools": [OUTPUT_TOOL], "stream": stream}
            reply = chat(address, model=f"up/{models[api]}", **more)
    assert reply.status == 200, reply.body
    if stream:
        events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
        assert [piece["name"] for piece in pieces if piece.get("name")] == ["output"]
        arguments = "".join(piece.get("arguments") or "" for piece in pieces)
    else:
        [call] = reply.json["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "output"
        arguments = call["function"]["arguments"]
    assert json.loads(arguments) == {"x": 1}


@pytest.mark.covers("S3-59")
def test_the_embedded_model_calls_a_tool_named_output(local: LocalProvider) -> None:
    with proxied({"local": local}) as address:
        reply = chat(
            address, model="local", response_format=None, tools=[OUTPUT_TOOL], tool_choice="required", max_tokens=40
        )
    [call] = reply.json["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "output"
    assert isinstance(json.loads(call["function"]["arguments"])["x"], int)


def test_arguments_of_a_tool_named_output_are_validated() -> None:
    wrong = ModelResponse(tool_calls=(ToolCall("c1", "output", '{"x": "one"}'),))
    request = ModelRequest("fake/m", (Message.user("x"),), tools=(Tool("output", PARAMETERS),))
    outcome = _client(wrong, CALL).respond(request, Options(budget=Budget(2)))
    assert [call.arguments for call in outcome.answer.tool_calls] == ['{"x":1}']
    assert len(outcome.report.attempts) == 2
