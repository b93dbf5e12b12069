"""Broken JSON becomes JSON: the corpus, case by case, and the record of edits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipform.errors import EmptyAnswerError, JsonEnforcementError
from slipform.schema.validator import violations
from slipform.text.loads import load
from slipform.text.repair import repair
from slipform.text.repair.tokens import RepairEdit, apply_edits

CORPUS = Path(__file__).resolve().parents[1] / "corpus"


def _cases() -> list[Any]:
    return [
        pytest.param(json.loads(line), id=f"{path.stem}-{number}")
        for path in sorted(CORPUS.glob("*.jsonl"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


class SchemaHint:
    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        types = schema["type"]
        self.root_types = frozenset([types] if isinstance(types, str) else types)

    def fits(self, value: Any) -> bool:
        return not violations(self.schema, value)

    def violations(self, value: Any) -> int:
        return len(violations(self.schema, value))

    def remaining(self, value: Any) -> int:
        return self.violations(value)


@pytest.mark.covers("S2-15", "S2-16", "S2-38", "S2-41", "S2-42", "S0-68", "C04", "C05")
@pytest.mark.parametrize("case", _cases())
def test_corpus_case_is_read_as_a_careful_person_would(case: dict[str, Any]) -> None:
    hint = SchemaHint(case["schema"]) if "schema" in case else None
    if case.get("refused"):
        with pytest.raises(JsonEnforcementError):
            load(case["input"], hint, nan="null")
        return
    loaded = load(case["input"], hint, nan="null")
    assert loaded.value == case["value"]
    assert type(loaded.value) is type(case["value"])
    assert sorted({edit.kind for edit in loaded.edits}) == case["edits"]


def test_corpus_is_large_and_covers_every_kind_of_edit() -> None:
    cases = [case.values[0] for case in _cases()]
    assert len(cases) >= 400
    seen = {kind for case in cases for kind in case.get("edits", [])}
    assert seen == {
        "bad_escape",
        "call",
        "comment",
        "concatenation",
        "control_character",
        "ellipsis",
        "escaped",
        "extra_bracket",
        "extra_comma",
        "guessed_comma",
        "html_entity",
        "invisible",
        "literal",
        "lone_surrogate",
        "missing_bracket",
        "missing_colon",
        "missing_comma",
        "missing_item",
        "missing_quote",
        "missing_value",
        "nan",
        "number",
        "punctuation",
        "stray_text",
        "trailing_comma",
        "truncated",
        "unescaped_quote",
        "unquoted_key",
        "unquoted_value",
        "wrong_bracket",
        "wrong_quote",
    }


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        ("[1,]", [RepairEdit("trailing_comma", 2, ",", "")]),
        ("{a: 1}", [RepairEdit("unquoted_key", 1, "a", '"a"')]),
        ('{"a": "x\ny"}', [RepairEdit("control_character", 8, "\n", "\\n")]),
        ('{"a": 1', [RepairEdit("missing_bracket", 7, "", "}")]),
        ("[True]", [RepairEdit("literal", 1, "True", "true")]),
        ('{"a": "b', [RepairEdit("truncated", 8, "", '"'), RepairEdit("missing_bracket", 8, "", "}")]),
        ("[2 60, 5]", [RepairEdit("guessed_comma", 3, "", ",")]),
        ("[2 60 5]", [RepairEdit("missing_comma", 3, "", ","), RepairEdit("missing_comma", 6, "", ",")]),
        ('{"a": "x," "b": 1}', [RepairEdit("guessed_comma", 11, "", ",")]),
        ('["x", "y" "z"]', [RepairEdit("missing_comma", 10, "", ",")]),
        ("[1 /* one */]", [RepairEdit("comment", 3, "/* one */", "")]),
        ('{"a": 1, "b', [RepairEdit("truncated", 7, ', "b', ""), RepairEdit("missing_bracket", 11, "", "}")]),
    ],
)
def test_edits_say_what_changed_and_where(text: str, edits: list[RepairEdit]) -> None:
    repaired = repair(text)
    assert list(repaired.edits) == edits
    assert apply_edits(text, repaired.edits, repaired.start, repaired.end) == repaired.text


def test_edits_tell_spelling_from_guessing() -> None:
    assert all(edit.certain for edit in repair("{'a': True, b: [1, 2,], }").edits)
    assert not any(edit.certain for edit in repair('{"a": "b').edits)
    assert not any(edit.certain for text in ("[2 60, 5]", '["x,"\n"y"]') for edit in repair(text).edits)


def test_valid_json_needs_no_edits() -> None:
    text = ' {"a": [1, 2.5, "x\\n", null, true]} '
    repaired = repair(text)
    assert repaired.edits == ()
    assert repaired.text == text
    assert repaired.value == {"a": [1, 2.5, "x\n", None, True]}


def test_text_around_the_document_is_refused() -> None:
    with pytest.raises(JsonEnforcementError, match="other text after it"):
        repair('{"a": 1,} and more')
    with pytest.raises(JsonEnforcementError):
        repair('Here: {"a": 1}')


def test_an_empty_text_is_its_own_error() -> None:
    with pytest.raises(EmptyAnswerError):
        repair(" \n")


@pytest.mark.parametrize("text", ['{"a": NaN}', "[Infinity]", "[-Infinity,]"])
def test_numbers_json_cannot_say_are_refused_or_null_by_switch(text: str) -> None:
    with pytest.raises(JsonEnforcementError, match="is not a JSON number"):
        repair(text)
    repaired = repair(text, nan="null")
    assert "null" in repaired.text
    assert "nan" in {edit.kind for edit in repaired.edits}


def test_the_error_names_line_column_and_reason() -> None:
    with pytest.raises(JsonEnforcementError) as caught:
        repair('{"a": 1,\n oops }')
    assert caught.value.details["line"] == 2
    assert caught.value.details["column"] == 2
    assert "where a key" in caught.value.details["reason"]


def test_a_check_settles_which_reading_is_meant() -> None:
    text = "{'zip': 00501, 'born': None}"
    assert repair(text).value == {"zip": 501, "born": None}

    def check(value: Any) -> int:
        return sum(not isinstance(member, str) for member in value.values())

    repaired = repair(text, check)
    assert repaired.value == {"zip": "00501", "born": "None"}
    assert repaired.hinted


def test_nesting_beyond_the_limit_is_refused_not_a_crash() -> None:
    with pytest.raises(JsonEnforcementError, match="nested deeper"):
        repair("[" * 5000)
    with pytest.raises(JsonEnforcementError):
        repair('{"a":' * 100_000)
