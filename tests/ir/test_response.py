from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.ir import (
    LossyEncode,
    Message,
    ModelRequest,
    ModelResponse,
    ModelWarning,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    Usage,
)
from slipform.ir.choice_merge import CallTable
from slipform.ir.response import resolve_finish
from tests.conftest import examples

COUNTS = st.none() | st.integers(0, 100)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)


@settings(max_examples=examples(160), deadline=None)
@given(USAGES, USAGES)
def test_usage_adds_up_and_missing_is_not_zero(left: Usage, right: Usage) -> None:
    total = left + right
    for name in ("input", "output", "cached", "reasoning"):
        one, other = getattr(left, name), getattr(right, name)
        known = [value for value in (one, other) if value is not None]
        assert getattr(total, name) == (sum(known) if known else None)
    assert left + Usage() == Usage(left.input, left.output, left.cached, left.reasoning, (left + Usage()).total)


def test_usage_that_nobody_told_stays_unknown() -> None:
    assert Usage() + Usage() == Usage()
    assert Usage(input=0).input == 0
    assert Usage().input is None


def test_an_answer_can_be_said_again() -> None:
    call = ToolCall("a", "f", "{}")
    built = ModelResponse(text="hi", reasoning="hm", tool_calls=(call,))
    assert built.message == Message("assistant", (Reasoning("hm"), Text("hi"), call))
    signed = Reasoning("hm", {"anthropic": {"signature": "s"}})
    assert ModelResponse(text="hi", parts=(signed, Text("hi"))).message.parts == (signed, Text("hi"))


@pytest.mark.parametrize(
    ("finish", "calls", "refusal", "expected"),
    [
        ("stop", True, None, "tool_calls"),
        ("unknown", True, None, "tool_calls"),
        ("length", True, None, "length"),
        ("tool_calls", False, None, "stop"),
        ("stop", False, "no", "refusal"),
        ("error", False, None, "error"),
    ],
)
def test_calls_and_refusals_settle_why_an_answer_ended(
    finish: str, calls: bool, refusal: str | None, expected: str
) -> None:
    assert resolve_finish(finish, calls, refusal) == expected  # type: ignore[arg-type]


def test_a_request_is_changed_by_copying() -> None:
    request = ModelRequest("m", (Message.user("hi"),))
    assert request.replace(model="n") == ModelRequest("n", (Message.user("hi"),))
    assert request.model == "m"
    assert request.messages[0].text == "hi"
    assert request.messages[0].tool_calls == ()


def test_a_loss_is_a_warning_with_a_place_and_an_action() -> None:
    loss = LossyEncode("lossy_encode", "No seed here.", "sampling.seed")
    assert isinstance(loss, ModelWarning)
    assert (loss.path, loss.action) == ("sampling.seed", "dropped")


def test_an_empty_table_has_no_calls() -> None:
    assert CallTable().calls == []


def test_lists_do_for_messages_parts_and_tools() -> None:
    said: list[Any] = [Message("user", [Text("hi")])]  # type: ignore[arg-type]
    request = ModelRequest("m", said, tools=[Tool("t", {})])  # type: ignore[arg-type]
    assert request == ModelRequest("m", (Message.user("hi"),), tools=(Tool("t", {}),))
