"""A valid answer that differs from what was already sent: it is asked for again behind the open stream."""

from __future__ import annotations

import json

import pytest

from slipform.testing import Answer, FakeVendor
from tests.proxy.test_live import ASK, CHAT, content
from tests.proxy.wire import before, post

GOOD = '{"name": "Ada", "age": 36}'
DRAFT = '{"name": "Ada", "age": 36}\n\nWait, that is not right. Final answer:\n{"name": "Eve", "age": 36}'
DOUBLED = '{"name": "Ada", "name": "Eve", "age": 36}'


@pytest.mark.covers("C11", "C31", "S2-66")
@pytest.mark.parametrize("first", [DRAFT, DOUBLED], ids=["superseded draft", "a key with two values"])
def test_a_further_answer_that_agrees_with_what_was_sent_makes_one_stream(first: str) -> None:
    with FakeVendor([first, GOOD]) as vendor, before(vendor) as address:
        events = post(address, CHAT, ASK).events()
    assert json.loads(content(events)) == {"name": "Ada", "age": 36}
    assert events[-1] == "[DONE]"
    assert len(vendor.requests) == 2


@pytest.mark.covers("C31", "S2-66")
def test_only_the_last_attempt_that_differs_is_an_error() -> None:
    with FakeVendor([DRAFT]) as vendor, before(vendor, attempts=3) as address:
        events = post(address, CHAT, {**ASK, "slipform": {"report": True}}).events()
    assert content(events).startswith('{"name":"Ada"')
    error = events[-1]["error"]
    assert error["type"] == "structured_output_failed"
    assert "already been sent" in error["message"]
    assert len(vendor.requests) == 3
    assert [attempt["outcome"] for attempt in error["details"]["report"]["attempts"]] == ["not_json"] * 3


def test_a_valid_answer_that_differs_from_the_attempt_before_it_is_asked_for_once_more() -> None:
    bad, other = '{"name": "Ada", "age": [36]}', '{"name": "Eve", "age": 1}'
    with FakeVendor([bad, other, GOOD]) as vendor, before(vendor, attempts=3) as address:
        events = post(address, CHAT, ASK).events()
    assert json.loads(content(events)) == {"name": "Ada", "age": 36}
    retries = [request.json()["messages"] for request in vendor.requests[1:]]
    assert retries[0] == retries[1], "the other answer was not at fault"


QUOTED = {
    "before a word": ('{"name": "He said "hi" there", "age": 36}', 'He said "hi" there'),
    "at the end": ('{"name": "Ada "the first"", "age": 36}', 'Ada "the first"'),
    "two of them": ('{"name": "a "b" c "d" e", "age": 36}', 'a "b" c "d" e'),
}


@pytest.mark.parametrize("case", QUOTED)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 11])
def test_quotes_that_were_not_escaped_cost_no_further_call(case: str, size: int) -> None:
    text, name = QUOTED[case]
    with FakeVendor([Answer(text, chunk_size=size)]) as vendor, before(vendor) as address:
        events = post(address, CHAT, ASK).events()
    assert json.loads(content(events)) == {"name": name, "age": 36}
    assert len(vendor.requests) == 1
