"""Never a plausible value: answers of models, case by case, through `loads` and through the judge.

A case names the value, the kinds of edits and of warnings that go with it, or that the text is refused. `judge: fault`
marks those that `loads` takes with a warning, or as far as they go, and the judge asks for again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipform import loads_report
from slipform.enforce import Budget, Plan, enforce
from slipform.enforce.judging import Requirement, judge
from slipform.errors import EnforcementError
from slipform.ir import Message, ModelRequest, ModelResponse
from slipform.schema import Schema

ANSWERS = Path(__file__).resolve().parents[1] / "corpus" / "answers"


def _cases() -> list[Any]:
    return [
        pytest.param(json.loads(line), id=f"{path.stem}-{number}")
        for path in sorted(ANSWERS.glob("*.jsonl"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


CASES = _cases()


@pytest.mark.covers("S0-14", "S0-49", "S1-39", "S2-40", "C04", "C05", "C07")
@pytest.mark.parametrize("case", CASES)
def test_answer_is_read_as_it_was_meant_or_refused(case: dict[str, Any]) -> None:
    schema, nan = case.get("schema"), case.get("nan", "refuse")
    if case.get("refused"):
        with pytest.raises(EnforcementError):
            loads_report(case["input"], schema, nan=nan)
        return
    report = loads_report(case["input"], schema, nan=nan)
    assert report.value == case["value"]
    assert type(report.value) is type(case["value"])
    assert sorted({edit.kind for edit in report.edits}) == case["edits"]
    assert sorted({warning.kind for warning in report.warnings}) == case.get("warnings", [])
    assert bool(report.patched) == case.get("patched", False)


@pytest.mark.parametrize("case", [case for case in CASES if "schema" in case.values[0]])
def test_judge_and_loads_agree(case: dict[str, Any]) -> None:
    verdict = judge(ModelResponse(text=case["input"]), Requirement(Schema.of(case["schema"])))
    if case.get("refused") or case.get("judge") == "fault":
        assert verdict.error is not None or verdict.doubt is not None
    else:
        assert verdict.error is None
        assert verdict.doubt is None
        assert verdict.value == case["value"]


def test_a_value_without_a_guess_and_without_a_warning_is_right() -> None:
    silent = 0
    for param in CASES:
        case: dict[str, Any] = param.values[0]
        try:
            report = loads_report(case["input"], case.get("schema"), nan=case.get("nan", "refuse"))
        except EnforcementError:
            continue
        if all(edit.certain for edit in report.edits) and not report.warnings:
            silent += 1
            assert report.value == case.get("value", "refused"), case["input"]
    assert silent > 30


REPEATED = '{"city": "Bonn", "city": "Berlin"}'
CITY = Schema.of({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})


def test_a_key_with_two_values_is_asked_again_while_attempts_are_left() -> None:
    steps = enforce(ModelRequest("m", (Message.user("Where?"),)), Plan(CITY, budget=Budget(attempts=2)))
    next(steps)
    again = steps.send(ModelResponse(text=REPEATED))
    assert '"city"' in again.messages[-1].text
    with pytest.raises(StopIteration) as stopped:
        steps.send(ModelResponse(text=REPEATED))
    outcome = stopped.value.value
    assert outcome.value == {"city": "Berlin"}
    assert [attempt.outcome for attempt in outcome.report.attempts] == ["schema_violation", "ok"]
    assert [warning.code for warning in outcome.report.warnings] == ["duplicate_key"]
