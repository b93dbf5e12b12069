"""Tokens of answers that go through unread."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from slipform.codecs.usage import UsageTail, usage_in
from slipform.ir import Usage
from slipform.testing import FakeVendor, Raw
from tests.proxy.wire import before, post

CHAT = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}}
WORDS = 'she said "usage": {"prompt_tokens": 99}'


def said(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("api", "answer", "expected"),
    [
        ("openai-chat", {"usage": CHAT, "choices": [{"message": {"content": WORDS}}]}, Usage(7, 2, 3, None, 9)),
        ("openai-chat", {"choices": [], "usage": CHAT, "metadata": {"usage": "daily"}}, Usage(7, 2, 3, None, 9)),
        ("openai-chat", {"choices": [], "usage": CHAT, "metadata": {"usage": {"a": 1}}}, Usage(7, 2, 3, None, 9)),
        ("openai-chat", {"choices": []}, None),
        ("openai-chat", {"usage": {"prompt_tokens_details": [1]}}, None),
        ("openai-chat", {"usage": {"prompt_tokens": 1, "x": "}"}}, None),
        ("openai-responses", {"usage": {"input_tokens": 3, "output_tokens": 4}}, Usage(3, 4, None, None, 7)),
        ("anthropic", {"usage": {"input_tokens": 3, "cache_read_input_tokens": 2}}, Usage(5, None, 2)),
        ("gemini", {"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 1}}, Usage(3, 1, None, None, 4)),
    ],
)
def test_the_usage_of_a_whole_answer_is_found_and_nothing_else_is_taken_for_it(
    api: str, answer: Any, expected: Usage | None
) -> None:
    assert usage_in(api, said(answer)) == expected


def test_a_streams_last_events_tell_and_anthropics_first_one_what_was_read() -> None:
    tail = UsageTail()
    tail.add(b'event: message_start\ndata: {"message":{"usage":{"input_tokens":25,"output_tokens":1}}}\n\n')
    for _ in range(9):
        tail.add(b'data: {"delta":{"text":"hi"}}\n\n')
    tail.add(b'data: {"type":"message_delta","usage":{"output')
    tail.add(b'_tokens":15}}\n\n')
    tail.add(b'data: {"type":"message_stop"}\n\n')
    found = tail.usage("anthropic")
    assert found is not None
    assert (found.input, found.output) == (25, 15)


def test_a_stream_that_came_in_one_piece_tells_what_was_read_too() -> None:
    tail = UsageTail()
    start = b'data: {"message":{"usage":{"input_tokens":25,"output_tokens":1}}}\n\n'
    tail.add(start + b'data: {"type":"message_delta","usage":{"output_tokens":15}}\n\n')
    found = tail.usage("anthropic")
    assert found is not None
    assert (found.input, found.output) == (25, 15)


def test_an_answer_of_which_nothing_came_tells_nothing() -> None:
    assert UsageTail().usage("openai-chat") is None


@pytest.mark.covers("S2-24", "S2-64")
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_calls_that_go_through_are_counted(stream: bool) -> None:
    usage = b'"usage":{"prompt_tokens":7,"completion_tokens":2}'
    events = (
        b'data: {"choices":[{"delta":{"content":"hi"}}],"usage":null}\n\ndata: {"choices":[],%b}\n\ndata: [DONE]\n\n'
    )
    body = events % usage if stream else b'{"choices":[{"message":{"content":"hi"}}],%b}' % usage
    kind = "text/event-stream" if stream else "application/json"
    asked = said({"model": "fast", "messages": [{"role": "user", "content": "hi"}], "stream": stream})
    with FakeVendor([Raw((body,), headers={"content-type": kind})]) as vendor, before(vendor) as address:
        assert post(address, "/v1/chat/completions", asked).body == body
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
            page = answer.read().decode()
    assert 'slipform_tokens_total{purpose="answer",type="input"} 7.0' in page
    assert 'slipform_tokens_total{purpose="answer",type="output"} 2.0' in page
