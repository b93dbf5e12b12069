"""No invalid 200 and no 500, whatever the schema, the answer and the APIs on both sides; and a judge that notices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.conftest import THOROUGH
from tests.judge.cases import CALLERS, VENDORS, Case, random_case
from tests.judge.proxy import BrokenPromiseError, Judge, judged
from tests.judge.smaller import smallest, told

SEED = "slipform"
CASES, SHARDS = 1500, 30
NUMBER: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge() as running:
        yield running


@pytest.mark.parametrize("shard", range(SHARDS if THOROUGH else SHARDS // 5))
def test_no_invalid_answer_and_no_internal_error_leaves_the_proxy(judge: Judge, shard: int) -> None:
    size = CASES // SHARDS
    kinds: list[str] = []
    for number in range(shard * size, (shard + 1) * size):
        case = random_case(SEED, number)
        verdict = judge.run(case)
        assert not verdict.problem, told(*smallest(case, verdict, judge))
        kinds += verdict.kinds
    assert kinds.count("valid") > size / 4, f"too few answers to judge: {kinds}"


def test_the_cases_reach_every_api_on_both_sides_and_every_way_through() -> None:
    cases = [random_case(SEED, number) for number in range(CASES)]
    for caller in CALLERS:
        for vendor in VENDORS:
            found = [case for case in cases if case.caller == caller and case.vendors[0] == vendor]
            assert {case.stream for case in found} == {True, False}
            assert {case.strategy for case in found} == {"auto", "native", "tool", "prompted"}
            assert {case.cached for case in found} == {True, False}
            assert {len(case.vendors) for case in found} == {1, 2}


def told_by(caller: str, text: str, *, stream: bool, ended: bool = True) -> bytes:
    """An answer of the proxy, as short as each API allows."""
    parts: dict[str, tuple[list[Any], list[Any], Any]] = {
        "chat": (
            [{"choices": [{"delta": {"content": text}}]}],
            [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, "[DONE]"],
            {"choices": [{"message": {"content": text}}]},
        ),
        "responses": (
            [{"type": "response.output_text.delta", "delta": text}],
            [{"type": "response.completed", "response": (whole := {"status": "completed", "output": [
                {"type": "message", "content": [{"type": "output_text", "text": text}]}]})}],
            whole,
        ),
        "messages": (
            [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
             {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}],
            [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}],
            {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"},
        ),
        "gemini": (
            [{"candidates": [{"content": {"parts": [{"text": text}]}}]}],
            [{"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}],
            {"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]},
        ),
    }  # fmt: skip
    begun, end, whole = parts[caller]
    if not stream:
        return json.dumps(whole).encode()
    events = [*begun, *(end if ended else ())]
    return b"".join(f"data: {each if each == '[DONE]' else json.dumps(each)}\n\n".encode() for each in events)


def asked(caller: str, *, stream: bool) -> Case:
    return Case("by hand", caller, ("openai",), NUMBER, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("caller", CALLERS)
def test_the_judge_sees_an_invalid_answer_in_every_api(caller: str, stream: bool) -> None:
    case = asked(caller, stream=stream)
    assert judged(case, 200, told_by(caller, '{"n": 7}', stream=stream)) == "valid"
    for text in ('{"n": "7"}', "{}", "", '{"n": 7', '{"n": NaN}', '{"n": 7, "n": "x"}', "Sure: {}"):
        with pytest.raises(BrokenPromiseError, match="a 200, but the answer is not"):
            judged(case, 200, told_by(caller, text, stream=stream))


@pytest.mark.parametrize("caller", CALLERS)
def test_the_judge_sees_a_stream_without_its_end_and_an_internal_error(caller: str) -> None:
    case = asked(caller, stream=True)
    with pytest.raises(BrokenPromiseError, match="last event"):
        judged(case, 200, told_by(caller, '{"n": 7}', stream=True, ended=False))
    with pytest.raises(BrokenPromiseError, match="inside slipform"):
        judged(case, 500, b'{"error": {"message": "no"}}')
    with pytest.raises(BrokenPromiseError, match="not in the API's shape"):
        judged(case, 502, b"<html>")


def test_a_failing_case_is_made_small(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(SEED, 0)
    verdict = judge.run(case)
    ask = judge._ask

    def broken(asked: Case, number: int, turn: int) -> tuple[int, Mapping[str, str], bytes]:
        ask(asked, number, turn)
        return 500, {}, b""

    monkeypatch.setattr(judge, "_ask", broken)
    small, seen = smallest(case, judge.run(case), judge)
    assert "inside slipform" in seen.problem
    assert len(small.schema) == 1
    assert Case.from_json(small.to_json()) == small
    assert not verdict.problem
