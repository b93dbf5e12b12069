"""A client of one API on a model of another's: what its answers have no place for is named, tools keep their names."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.proxy.app import App
from slipform.testing import Answer, FakeVendor, Raw, Received, calling, rejected
from tests.conftest import serving

VALUE = '{"city": "Bonn"}'
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
SOURCE = {"type": "web_search_result_location", "url": "https://e"}
BLOCKS: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "text", "text": VALUE, "citations": [SOURCE]},
]
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn"}


def _events() -> bytes:
    usage = {"input_tokens": 1, "output_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**MESSAGE, "content": [], "usage": usage}}]
    for index, block in enumerate(BLOCKS):
        opened = {**block, "text": ""} if block["type"] == "text" else block
        opened.pop("citations", None)
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        if block["type"] == "text":
            for delta in ({"type": "text_delta", "text": VALUE}, {"type": "citations_delta", "citation": SOURCE}):
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    events.append({"type": "message_stop"})
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def _claude(received: Received) -> Raw:
    if received.json().get("stream"):
        return Raw((_events(),), 200, {"content-type": "text/event-stream"})
    body = {**MESSAGE, "content": BLOCKS, "usage": {"input_tokens": 1, "output_tokens": 1}}
    return Raw((json.dumps(body).encode(),), 200, {"content-type": "application/json"})


@contextmanager
def _proxied(vendor: FakeVendor) -> Iterator[openai.OpenAI]:
    provider = HttpProvider("anthropic", base_url=vendor.base_url, api_key="k")
    router = Router({"up": provider}, aliases={"m": "up/claude-sonnet-4-5"}, default="m")
    client = AsyncClient(router=router, options=Options(budget=Budget(attempts=1)))
    with (
        serving(App(client, Settings(default_model="m"))) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk,
    ):
        yield sdk


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("enforced", [False, True])
def test_sources_that_the_callers_api_has_no_place_for_are_named(
    enforced: bool, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Where?"}]}
    if enforced:
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
        asked["extra_body"] = {"slipform": {"report": True}}
    with FakeVendor(_claude, api="anthropic") as vendor, _proxied(vendor) as sdk, caplog.at_level(logging.INFO):
        if stream:
            said = [event.model_dump() for event in sdk.chat.completions.create(stream=True, **asked)]
            text = "".join(each["choices"][0]["delta"].get("content") or "" for each in said if each["choices"])
        else:
            said = [sdk.chat.completions.create(**asked).model_dump()]
            text = said[0]["choices"][0]["message"]["content"]
    assert json.loads(text) == {"city": "Bonn"}
    if enforced:
        (report,) = [each["slipform"] for each in said if each.get("slipform")]
        named = [warning["message"] for warning in report["warnings"] if warning["code"] == "lossy_answer"]
    else:
        named = [record.getMessage() for record in caplog.records if "lossy_answer" in record.getMessage()]
    assert named
    for name in ("server_tool_use", "web_search_tool_result", "citations"):
        assert any(name in each for each in named)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_keeps_its_name_whatever_the_vendor_takes(stream: bool) -> None:
    def answer(received: Received) -> Answer | Raw:
        body = received.json()
        names = [tool["name"] for tool in body["tools"]]
        calls = [part for turn in body["messages"] if isinstance(turn["content"], list) for part in turn["content"]]
        names += [part["name"] for part in calls if part["type"] == "tool_use"]
        if bad := [name for name in names if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)]:
            return rejected(f"tools.0.custom.name: String should match pattern, got {bad[0]}")
        return Answer(calling((names[0], {"city": "Bonn"})) if len(names) == 1 else VALUE)

    messages: list[Any] = [{"role": "user", "content": "Where?"}]
    tools: Any = [{"type": "function", "function": {"name": "places.find/one", "parameters": CITY}}]
    with FakeVendor(answer, api="anthropic") as vendor, _proxied(vendor) as sdk:
        for _ in range(2):
            if stream:
                with sdk.chat.completions.stream(model="m", messages=messages, tools=tools) as events:
                    message: Any = events.get_final_completion().choices[0].message
            else:
                message = sdk.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
            if not message.tool_calls:
                break
            assert [call.function.name for call in message.tool_calls] == ["places.find/one"]
            messages.append(message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "found"})
    assert message.content == VALUE
    assert len(vendor.requests) == 2
