"""A `ResponseFormat` is a shape: its schema, its strictness and its strategy count in every call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slipform import AsyncClient, Client, loads
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from slipform.testing import FakeVendor

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "object"}},
    "required": ["a"],
}
ANSWER = '{"a": 1, "b": {"c": 2}}'
VALUE = {"a": 1, "b": {"c": 2}}
BEST_EFFORT = ResponseFormat.best_effort(JsonSchemaSpec("thing", SCHEMA))


def _ask(client: Client, shape: ResponseFormat) -> Any:
    return client.ask(shape, "go")


def _stream(client: Client, shape: ResponseFormat) -> Any:
    with client.stream(shape, "go") as stream:
        return stream.result.value


def _ask_async(client: Client, shape: ResponseFormat) -> Any:
    async def ask() -> Any:
        async with AsyncClient("openai/m", router=client.router) as other:
            return await other.ask(shape, "go")

    return asyncio.run(ask())


@pytest.mark.covers("S4-27", "S4-54")
@pytest.mark.parametrize("call", [_ask, _stream, _ask_async])
def test_best_effort_sends_the_schema_as_it_is(call: Any) -> None:
    with FakeVendor([ANSWER]) as vendor:
        client = Client("openai/m", base_url=vendor.base_url, api_key="any")
        assert call(client, BEST_EFFORT) == VALUE
        sent = vendor.requests[0].json()["response_format"]["json_schema"]
    assert (sent["name"], sent["strict"], sent["schema"]) == ("thing", False, SCHEMA)


def test_best_effort_sends_a_tool_with_the_schema_as_it_is() -> None:
    with FakeVendor([ANSWER]) as vendor:
        client = Client("openai/m", base_url=vendor.base_url, api_key="any")
        client.ask(BEST_EFFORT.with_strategy("tool"), "go")
        (tool,) = vendor.requests[0].json()["tools"]
    assert tool["function"]["parameters"] == SCHEMA
    assert not tool["function"].get("strict")


def test_a_root_that_apis_refuse_is_wrapped_all_the_same() -> None:
    shape = ResponseFormat.best_effort(JsonSchemaSpec("list", {"type": "array", "items": {"type": "integer"}}))
    with FakeVendor(['{"value": [1]}']) as vendor:
        client = Client("openai/m", base_url=vendor.base_url, api_key="any")
        sent = vendor.requests
        assert client.ask(shape, "go") == [1]
        assert sent[0].json()["response_format"]["json_schema"]["schema"]["type"] == "object"


def test_the_strategy_of_the_format_counts_and_an_argument_overrides_it() -> None:
    shape = ResponseFormat.strict(JsonSchemaSpec("thing", SCHEMA)).with_strategy(OutputStrategy.PROMPTED)
    with FakeVendor([ANSWER] * 2) as vendor:
        client = Client("openai/m", base_url=vendor.base_url, api_key="any")
        client.ask(shape, "go")
        client.ask(shape, "go", strategy="tool")
        first, second = (request.json() for request in vendor.requests)
    assert "tools" not in first
    assert [tool["function"]["name"] for tool in second["tools"]] == ["output"]


def test_a_format_is_a_shape_for_schemas_and_texts() -> None:
    assert Schema.of(BEST_EFFORT).name == "thing"
    assert loads(ANSWER, BEST_EFFORT) == VALUE
