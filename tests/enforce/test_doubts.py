"""A valid value that may not be what the model meant is asked for again, and never returned in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipform import loads, loads_report
from slipform.enforce import Switches
from slipform.enforce.doubts import DOUBTS
from slipform.enforce.judging import Requirement, judge
from slipform.enforce.patching import patch
from slipform.errors import EnforcementError, JsonEnforcementError, TruncatedError
from slipform.ir import ModelResponse, ToolCall
from slipform.library.client import Client
from slipform.library.stream_session import Result
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.testing import FakeModel

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "stops": {"type": "array", "items": {"type": "string"}}},
    "required": ["city"],
    "additionalProperties": False,
}
OSLO = '{"city":"Oslo"}'
BERGEN = '{"city":"Bergen"}'


def called(*arguments: str) -> ModelResponse:
    calls = tuple(ToolCall(f"c{place}", "output", each) for place, each in enumerate(arguments))
    return ModelResponse(tool_calls=calls, finish="tool_calls")


DOUBTED: dict[str, str | ModelResponse] = {
    "several_candidates": f"{BERGEN} or {OSLO}",
    "several_calls": called(BERGEN, OSLO),
    "key_outside": f'{BERGEN} and "stops": ["Voss"]',
    "ellipsis": '{"city": "Bergen", "stops": ["Voss", /* 98 more */ "Finse"]}',
    "unreadable": f'{{"city": "Osl\n\nAgain:\n{BERGEN}',
    "no_answer": f"The file has {BERGEN} in it. I could not find your city.",
    "rejected": f"{BERGEN}\n\nWait, no.",
    "key_escape": '{"city": "Bergen", "\\name": 1}',
    "duplicate_key": '{"city": "Oslo", "city": "Bergen"}',
    "dropped_data": '{"city": "Bergen", "route": {"via": "Voss"}}',
}


def asked(model: FakeModel, attempts: int) -> Result[Any]:
    router = Router({"fake": model})
    return Client("fake/m", router=router).ask_full(CITY, "Where?", max_attempts=attempts)


def test_every_doubt_is_asked_again_told_why_and_at_the_last_attempt_returned_with_a_warning() -> None:
    assert DOUBTED.keys() == DOUBTS.keys()
    failures: list[Any] = []
    for kind, answer in DOUBTED.items():
        model = FakeModel([answer, OSLO])
        result = asked(model, 2)
        told = model.requests[-1].messages[-1].text
        if result.value != {"city": "Oslo"} or DOUBTS[kind][:20] not in told or result.report.warnings:
            failures.append((kind, "asked again", result.value, told, result.report.warnings))
        last = asked(FakeModel([answer]), 1)
        warned = [warning.code for warning in last.report.warnings]
        if last.value["city"] != "Bergen" or kind not in warned:
            failures.append((kind, "taken", last.value, warned))
    assert failures == []


def test_loads_warns_of_every_doubt_that_a_text_can_have() -> None:
    texts = {kind: text for kind, text in DOUBTED.items() if isinstance(text, str)}
    assert {kind for kind, text in texts.items() if kind not in _warned(text)} == set()


def _warned(text: str) -> set[str]:
    return {warning.kind for warning in loads_report(text, CITY).warnings}


@pytest.mark.parametrize("opening", ["<think>", "<|channel|>analysis<|message|>", "analysis"])
@pytest.mark.parametrize(("finish", "error"), [("stop", JsonEnforcementError), ("length", TruncatedError)])
def test_a_value_out_of_unfinished_reasoning_is_never_an_answer(
    opening: str, finish: Any, error: type[EnforcementError]
) -> None:
    thought = ModelResponse(text=f"{opening}Maybe {BERGEN}? Let me check", finish=finish)
    model = FakeModel([thought, OSLO])
    assert asked(model, 3).value == {"city": "Oslo"}
    assert len(model.requests) == 2
    client = Client("fake/m", router=Router({"fake": FakeModel([thought, OSLO])}))
    with client.stream(CITY, "Where?", max_attempts=3) as stream:
        assert stream.result.value == {"city": "Oslo"}
    with pytest.raises(error):
        asked(FakeModel([thought]), 1)
    with pytest.raises(JsonEnforcementError, match="still reasoning"):
        loads(thought.text, CITY)


def test_the_same_answer_given_twice_is_not_in_doubt() -> None:
    for answer in (called(OSLO, '{"city": "Oslo"}'), f"{OSLO}\n\nAgain: {OSLO}"):
        assert len(asked(FakeModel([answer]), 3).report.attempts) == 1


def test_the_arguments_of_a_tool_are_asked_again_in_doubt() -> None:
    doubtful = ModelResponse(tool_calls=(ToolCall("c1", "visit", f"{BERGEN} or {OSLO}"),), finish="tool_calls")
    verdict = judge(doubtful, Requirement(None, {"visit": Schema.of(CITY)}))
    assert verdict.ok
    assert verdict.tool_calls[0].arguments == BERGEN
    assert [warning.code for warning in verdict.warnings] == ["several_candidates"]
    assert [violation.keyword for violation in verdict.doubted().wrong_calls["c1"]] == ["several_candidates"]


def test_every_patch_has_a_switch() -> None:
    schema = Schema.of(
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "list": {"type": "array"},
                "kind": {"const": "a"},
                "word": {"enum": ["Yes", "No"]},
                "full_name": {"type": "string"},
                "size": {"type": "integer", "default": 1},
            },
            "required": ["n"],
            "additionalProperties": False,
        }
    )
    invalid: list[Any] = [
        {"n": "1"},
        {"n": 1, "x": 2},
        {"n": 1, "word": None},
        {"n": 1, "word": "yes"},
        {"N": 1},
        {"answer": {"n": 1}},
        {"name": "output", "arguments": {"n": 1}},
        [{"n": 1}],
        {"n": [1]},
        {"n": "12 kg"},
        {"n": 1, "list": 2},
    ]
    assert [value for value in invalid if patch(value, schema, Switches.none()).edits] == []
    required = Schema.of({**schema.document, "required": ["n", "kind", "size"]})
    assert patch({"n": 1}, required, Switches.none()).edits == ()


def test_the_docs_list_every_doubt() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "text.md").read_text(encoding="utf-8")
    assert [kind for kind in DOUBTS if f"| `{kind}` |" not in page] == []


def test_callers_that_get_the_value_alone_see_the_doubt_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    text = '{"a": 1}\n\n{"a": 2}'
    assert loads(text, {"type": "object"}) == {"a": 1}
    client = Client("fake/m", router=Router({"fake": FakeModel([text])}))
    assert client.ask({"type": "object"}, "x") == {"a": 1}
    assert loads("Sure: [1, 2,]") == [1, 2]
    messages = [record.getMessage() for record in caplog.records if record.name == "slipform.doubts"]
    assert [message.partition(": The")[0] for message in messages] == [
        "loads: doubtful value, kind=several_candidates",
        "ask: doubtful value, kind=several_candidates",
    ]
