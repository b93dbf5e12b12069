"""Marks of a prompt's cache reach Anthropic from OpenAI's API, and a stream ends where its vendor says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.providers.http import HttpProvider
from slipform.testing import FakeVendor, Raw
from tests.proxy.proxying import call, proxied

MARK = {"cache_control": {"type": "ephemeral"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TURNS: dict[str, list[dict[str, Any]]] = {
    "user": [{"role": "user", "content": "x", **MARK}],
    "system": [{"role": "system", "content": "s", **MARK}, {"role": "user", "content": "x"}],
    "tool result": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "r", **MARK},
    ],
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("where", TURNS)
def test_a_mark_of_the_cache_on_a_turn_is_sent_and_not_reported_as_left_out(where: str) -> None:
    with (
        FakeVendor(["hi"], api="anthropic") as vendor,
        proxied({"up": HttpProvider("anthropic", base_url=vendor.base_url, api_key="k")}) as address,
    ):
        body = {
            "model": "up/m",
            "max_tokens": 9,
            "messages": TURNS[where],
            "tools": TOOLS,
            "slipform": {"report": True},
        }
        reply = call(address, "/v1/chat/completions", body)
        (received,) = vendor.requests
    assert received.body.count(b"cache_control") == 1
    assert reply.json["slipform"]["warnings"] == []


def event(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
    return b"data: %b\n\n" % json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()


@pytest.mark.parametrize("pieces", [1, 2])
def test_nothing_after_the_end_of_a_stream_is_part_of_the_answer(pieces: int) -> None:
    before = event(role="assistant", content="hi") + event(content=" you") + event() + b"data: [DONE]\n\n"
    after = event(content="MORE") + b"and text"
    sent = (before + after,) if pieces == 1 else (before, after)
    with (
        FakeVendor([Raw(sent, 200, {"content-type": "text/event-stream"}, chunked=True)]) as vendor,
        proxied({"up": HttpProvider("openai", base_url=vendor.base_url, api_key="k")}) as address,
    ):
        turn = {"role": "user", "content": "x"}
        body = {"model": "up/m", "max_tokens": 9, "stream": True, "messages": [turn]}
        reply = call(address, "/v1/messages", body)
    assert b" you" in reply.body
    assert b"message_stop" in reply.body
    assert b"MORE" not in reply.body
