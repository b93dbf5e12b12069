"""What is read out of a text that is at hand, with no model."""

from __future__ import annotations

from typing import Any

import pytest

from slipform import ensure_json_only, loads_report
from slipform.errors import JsonEnforcementError, SchemaViolationError

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.covers("S1-38", "S1-39", "S1-66", "S0-50")
def test_json_only_is_compact_and_keeps_big_numbers() -> None:
    assert ensure_json_only('The answer: {"a": [1, 2], "é": null} bye') == '{"a":[1,2],"é":null}'
    assert ensure_json_only("[12345678901234567890123]") == "[12345678901234567890123]"
    with pytest.raises(JsonEnforcementError):
        ensure_json_only("no JSON")
    with pytest.raises(JsonEnforcementError, match="neither an object nor an array"):
        ensure_json_only("42")


@pytest.mark.covers("S1-38", "S1-40")
def test_json_only_is_held_to_a_schema_or_a_type_where_one_is_given() -> None:
    assert ensure_json_only('{"b": 1} and {"age": "36"}', AGE) == '{"age":36}'
    assert ensure_json_only("The numbers: [1, 2]", list[int]) == "[1,2]"
    assert ensure_json_only("```json\n42\n```", int) == "42"
    with pytest.raises(SchemaViolationError, match="age"):
        ensure_json_only('{"b": 1}', AGE)


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "temp": {"type": "number"}},
    "required": ["city", "temp"],
}
NAME = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
BERGEN = '{"city":"Bergen","temp":9}'
OSLO = '{"city":"Oslo","temp":-3.5}'
OSLO_VALUE = {"city": "Oslo", "temp": -3.5}
GUESSED_OR_DOUBTED: list[tuple[str, Any, Any, str]] = [
    ("05", None, 5, "number"),
    ("000", None, 0, "number"),
    ("12.", None, 12, "truncated"),
    ("1.5e", None, 1.5, "truncated"),
    ('{"n": 05}', None, {"n": 5}, "number"),
    ('{"n": 0789}', None, {"n": 789}, "number"),
    ('{"phone": 0612345678}', None, {"phone": 612345678}, "number"),
    ('{"a": "x\\ay"}', None, {"a": "x\\ay"}, "bad_escape"),
    ('{"a": "x\\„y"}', None, {"a": "x\\„y"}, "bad_escape"),
    ('{"tex": "\\frac{1}{2}"}', None, {"tex": "\x0crac{1}{2}"}, "formula_escape"),
    ('{"age": 36<|im_end|>', None, {"age": 36}, "missing_bracket"),
    ('{"name": "Ada<|im_end|>', NAME, {"name": "Ada"}, "truncated"),
    ("({name: 'Ada'})", None, {"name": "Ada"}, "wrong_bracket"),
    ('({"a": 1}, {"b": 2})', None, [{"a": 1}, {"b": 2}], "wrong_bracket"),
    ("({name: 'Ada'})", NAME, {"name": "Ada"}, "wrong_bracket"),
    ('{"name": "Ada" (first name)}', None, {"name": 'Ada" (first name)'}, "unescaped_quote"),
    ("[1, 2, 3, ..., 10]", None, [1, 2, 3, 10], "ellipsis"),
    ('{"id": 1}\n{"id": oops\n{"id": 3}', None, {"id": 1}, "several_candidates"),
    ('The file has {"name": "x"} today. I could not find the person.', NAME, {"name": "x"}, "no_answer"),
    ('{}\n\n{"a": 1}', None, {"a": 1}, "several_candidates"),
    ('["x"]\n\n{"a": 1}', None, ["x"], "several_candidates"),
    (f"{BERGEN}\n\nFinal answer:\n{OSLO}", CITY, OSLO_VALUE, "several_candidates"),
    (f"{BERGEN}\n\nUpdated:\n{OSLO}", CITY, OSLO_VALUE, "several_candidates"),
    (f"{BERGEN}\n\nFixed:\n{OSLO}", CITY, OSLO_VALUE, "several_candidates"),
    (f"{BERGEN}\n\nOops:\n{OSLO}", CITY, OSLO_VALUE, "several_candidates"),
    (f"{BERGEN}\n\n最终答案\n{OSLO}", CITY, OSLO_VALUE, "several_candidates"),
    (f"{OSLO} Instead of {BERGEN}, as I first thought.", CITY, OSLO_VALUE, "several_candidates"),
    (f"<details>{BERGEN}</details>\n{OSLO}", CITY, OSLO_VALUE, "several_candidates"),
    (f"```diff\n- {BERGEN}\n+ {OSLO}\n```", CITY, OSLO_VALUE, "several_candidates"),
]


def test_a_value_that_was_guessed_or_is_in_doubt_says_so() -> None:
    wrong: list[Any] = []
    for text, schema, value, kind in GUESSED_OR_DOUBTED:
        report = loads_report(text, schema)
        guesses = {edit.kind for edit in report.edits if not edit.certain}
        recorded = guesses | {warning.kind for warning in report.warnings}
        if report.value != value or kind not in recorded:
            wrong.append((text, report.value, sorted(recorded)))
    assert wrong == []


def test_the_answer_after_reasoning_without_its_markers_is_taken() -> None:
    report = loads_report(f"analysis{BERGEN} is wrong assistantfinal{OSLO}", CITY)
    assert (report.value, report.warnings) == (OSLO_VALUE, ())
