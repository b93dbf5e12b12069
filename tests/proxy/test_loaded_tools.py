"""Tools that a vendor groups, defers or loads itself: their calls are validated where their schemas are known."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from slipform.ir import ModelResponse, ToolCall
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import Answer, FakeVendor
from tests.proxy.proxying import Reply, call, proxied

PLACE: Any = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
FORECAST: Any = {"type": "function", "name": "forecast", "parameters": PLACE, "strict": False, "defer_loading": True}
NAMESPACE: Any = {"type": "namespace", "name": "weather", "description": "The weather.", "tools": [FORECAST]}
SEARCH: Any = {"type": "tool_search"}
LOADED: Any = {"type": "tool_search_output", "execution": "server", "status": "completed", "tools": [NAMESPACE]}
KINDS: Any = {
    "openai-responses": "openai-responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "openai-compatible": "openai",
}


def calling(name: str, *arguments: Any) -> list[Any]:
    """Answers that call a tool once each."""
    calls = [ToolCall(f"call_{at}", name, json.dumps(each)) for at, each in enumerate(arguments)]
    return [Answer(ModelResponse(tool_calls=(each,), finish="tool_calls")) for each in calls]


def asked(kind: str, script: list[Any], *, stream: bool = False, **fields: Any) -> tuple[Any, FakeVendor]:
    """The called tool's item, and the vendor that was asked."""
    with FakeVendor(script, api=KINDS[kind]) as vendor:
        provider = HttpProvider(kind, base_url=vendor.base_url, api_key="k", retries=RetryPolicy(attempts=0))
        with (
            proxied({"up": provider}) as address,
            openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
        ):
            if stream:
                with client.responses.stream(model="up/m", **fields) as events:
                    list(events)
                    response: Any = events.get_final_response()
            else:
                response = client.responses.create(model="up/m", **fields)
    (item,) = [each for each in response.output if each.type == "function_call"]
    return item, vendor


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_of_a_namespace_is_validated_by_its_own_schema(kind: str, stream: bool) -> None:
    script = calling("forecast", {"days": "many"}, {"days": 3})
    item, vendor = asked(kind, script, stream=stream, input="hi", tools=[NAMESPACE, SEARCH])
    assert (item.name, json.loads(item.arguments), item.namespace) == ("forecast", {"days": 3}, "weather")
    assert len(vendor.requests) == 2


def test_a_vendor_with_namespaces_gets_them_as_they_came() -> None:
    other: Any = {**FORECAST, "name": "look_back"}
    tools: Any = [{**NAMESPACE, "tools": [FORECAST, other]}, SEARCH, {**FORECAST, "name": "alone"}]
    _, vendor = asked("openai-responses", calling("alone", {"days": 1}), input="hi", tools=tools)
    assert vendor.requests[0].json()["tools"] == tools


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "openai-responses"])
def test_a_vendor_without_namespaces_gets_their_tools(kind: str) -> None:
    _, vendor = asked(kind, calling("forecast", {"days": 1}), input="hi", tools=[NAMESPACE, SEARCH])
    sent = json.dumps(vendor.requests[0].json()["tools"])
    assert '"forecast"' in sent
    assert "tool_search" not in sent


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_tool_that_the_vendor_has_loaded_passes(stream: bool) -> None:
    script = calling("unknown_before", {"x": 1})
    item, vendor = asked("openai-responses", script, stream=stream, input="hi", tools=[FORECAST, SEARCH])
    assert (item.name, json.loads(item.arguments)) == ("unknown_before", {"x": 1})
    assert len(vendor.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tools_that_a_search_has_loaded_before_are_known(kind: str, stream: bool) -> None:
    items: Any = [{"role": "user", "content": "hi"}, {**LOADED, "id": "tso_1", "call_id": None}]
    tools: Any = [{**FORECAST, "name": "alone"}, SEARCH]
    script = calling("forecast", {"days": "many"}, {"days": 3})
    item, vendor = asked(kind, script, stream=stream, input=items, tools=tools, store=False)
    sent = vendor.requests[0].json()
    assert json.loads(item.arguments) == {"days": 3}
    assert json.dumps(sent).count('"forecast"') == 1, "in the conversation, or as a tool"
    if kind == "openai-responses":
        assert sent["tools"] == tools


def test_loaded_tools_of_one_conversation_are_not_known_in_another() -> None:
    tools: Any = [{**FORECAST, "name": "alone"}]
    with FakeVendor(calling("forecast", {"days": 1}), api="anthropic") as vendor:
        provider = HttpProvider("anthropic", base_url=vendor.base_url, api_key="k")
        with proxied({"up": provider}) as address:
            asking = {"role": "user", "content": "hi"}
            statuses = [
                call(address, "/v1/responses", {"model": "up/m", "tools": tools, "store": False, "input": items}).status
                for items in ([asking], [asking, LOADED], [asking], [asking, LOADED])
            ]
    assert statuses == [422, 200, 422, 200]


def refused(tools: Any) -> Reply:
    with FakeVendor(["hi"], api="anthropic") as vendor:
        provider = HttpProvider("anthropic", base_url=vendor.base_url, api_key="k")
        with proxied({"up": provider}) as address:
            reply = call(address, "/v1/responses", {"model": "up/m", "input": "hi", "tools": tools})
        assert vendor.requests == []
    return reply


def test_what_cannot_be_offered_to_a_vendor_is_refused_before_it_is_asked() -> None:
    search = refused([{"type": "tool_search", "execution": "client"}])
    twins = refused([NAMESPACE, {**NAMESPACE, "name": "climate"}])
    assert (search.status, search.json["error"]["param"]) == (400, "tools[0].execution")
    assert (twins.status, twins.json["error"]["param"]) == (400, "tools")


def test_tools_of_one_name_in_two_namespaces_pass_where_the_vendor_has_namespaces() -> None:
    tools: Any = [NAMESPACE, {**NAMESPACE, "name": "climate"}]
    item, vendor = asked("openai-responses", calling("forecast", {"years": 1}), input="hi", tools=tools)
    assert json.loads(item.arguments) == {"years": 1}
    assert vendor.requests[0].json()["tools"] == tools


def test_allowed_tools_may_name_a_namespace() -> None:
    choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "weather"}]}
    tools: Any = [NAMESPACE, {**FORECAST, "name": "alone"}]
    _, vendor = asked("anthropic", calling("forecast", {"days": 1}), input="hi", tools=tools, tool_choice=choice)
    assert [tool["name"] for tool in vendor.requests[0].json()["tools"]] == ["forecast"]
