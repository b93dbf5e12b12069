"""Integers beyond 64 bits keep their digits: in schemas, in answers on every channel, in turns of a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.library.client import Client
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import OutputStrategy
from slipform.testing import Api, FakeVendor, Received, Step, calling
from tests.proxy.asgi import post

BIG = 123456789012345678901234567890
DIGITS = str(BIG)
VENDORS: list[Api] = ["openai", "openai-responses", "anthropic", "gemini", "bedrock", "cohere", "ollama"]
SCHEMAS: dict[str, dict[str, Any]] = {
    "lowered": {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "left_out": {"type": "string"}},
        "required": ["n"],
    },
    "const": {"type": "object", "properties": {"n": {"const": BIG}}, "required": ["n"]},
    "bound": {"type": "object", "properties": {"n": {"type": "integer", "minimum": BIG}}, "required": ["n"]},
}
CITY = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def obedient(received: Received) -> Step:
    """The value, on the channel that the request asks for."""
    body = received.json()
    tools = body.get("tools") or (body.get("toolConfig") or {}).get("tools")
    if not tools:
        return f'{{"n": {DIGITS}}}'
    tool = tools[0]
    tool = tool.get("function") or tool.get("toolSpec") or (tool.get("functionDeclarations") or [tool])[0]
    return calling((tool["name"], f'{{"n": {DIGITS}}}'))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strategy", ["native", "tool", "prompted"])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("vendor", VENDORS)
def test_an_answer_has_the_digits_that_the_model_wrote(
    vendor: Api, schema: str, strategy: OutputStrategy, stream: bool
) -> None:
    with (
        FakeVendor(obedient, api=vendor) as fake,
        HttpProvider(vendor, name="v", base_url=fake.base_url, api_key="k") as provider,
    ):
        client = Client(router=Router({"v": provider}, default="v/m"))
        if stream:
            with client.stream(SCHEMAS[schema], "Which?", strategy=strategy) as pieces:
                for _ in pieces:
                    pass
            value = pieces.result.value
        else:
            value = client.ask(SCHEMAS[schema], "Which?", strategy=strategy)
    assert value == {"n": BIG}
    assert type(value["n"]) is int


ARGUMENTS = f'{{"id": {DIGITS}}}'
TOOL = {"name": "city", "parameters": CITY}
CONVERSATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Which?"},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "city", "arguments": ARGUMENTS}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": ARGUMENTS},
            ],
            "tools": [{"type": "function", "function": TOOL}],
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 100,
            "messages": [
                {"role": "user", "content": "Which?"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c1", "name": "city", "input": {"id": BIG}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c1", "content": ARGUMENTS}],
                },
            ],
            "tools": [{"name": "city", "input_schema": CITY}],
        },
    ),
    "gemini": (
        "/v1beta/models/m:generateContent",
        {
            "contents": [
                {"role": "user", "parts": [{"text": "Which?"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "city", "args": {"id": BIG}}}]},
                {
                    "role": "user",
                    "parts": [{"functionResponse": {"name": "city", "response": {"id": BIG}}}],
                },
            ],
            "tools": [{"functionDeclarations": [TOOL]}],
        },
    ),
    "ollama": (
        "/api/chat",
        {
            "stream": False,
            "messages": [
                {"role": "user", "content": "Which?"},
                {"role": "assistant", "tool_calls": [{"function": {"name": "city", "arguments": {"id": BIG}}}]},
                {"role": "tool", "tool_name": "city", "content": ARGUMENTS},
            ],
            "tools": [{"type": "function", "function": TOOL}],
        },
    ),
}
"""A call of a tool and its result, as the APIs write them, in the text or as objects."""


async def exchanged(vendor: Api, step: Step, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """What the vendor was sent, and what the caller got; nothing is forwarded as it is."""
    with FakeVendor([step], api=vendor) as fake:
        provider = HttpProvider(vendor, name="v", base_url=fake.base_url, api_key="k")
        client = AsyncClient(router=Router({"v": provider}, aliases={"m": ["v/one", "v/two"]}, default="m"))
        reply = await post(App(client, Settings.model_validate({"default_model": "m"})), path, body)
        await client.close()
        assert reply.status == 200, reply.body
        return fake.requests[0].body.decode(), reply.body.decode()


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("api", CONVERSATIONS)
async def test_calls_keep_them_in_the_turns_of_a_conversation_and_in_its_answer(api: str, vendor: Api) -> None:
    path, body = CONVERSATIONS[api]
    sent, got = await exchanged(vendor, calling(("city", ARGUMENTS)), path, {"model": "m", **body})
    assert sent.count(DIGITS) == 2
    assert DIGITS in got
    assert "e+29" not in sent + got


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_schema_keeps_them_on_its_way_through_the_proxy(vendor: Api) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMAS["const"]}}
    body = {"model": "m", "messages": [{"role": "user", "content": "Which?"}], "response_format": wanted}
    sent, got = await exchanged(vendor, f'{{"n": {DIGITS}}}', "/v1/chat/completions", body)
    assert json.loads(json.loads(got)["choices"][0]["message"]["content"]) == {"n": BIG}
    assert "e+29" not in sent
