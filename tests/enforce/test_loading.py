"""What is read out of a text that is at hand, with no model."""

from __future__ import annotations

import pytest

from slipform import ensure_json_only
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
