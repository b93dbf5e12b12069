"""Reading the JSON in a text: strictly where it can be, by search and repair where it must."""

from __future__ import annotations

import json

import orjson
import pytest

from slipform.errors import EmptyAnswerError, JsonEnforcementError
from slipform.text.loads import extract_json_payload, load
from slipform.text.strict import duplicates, parse
from tests.text.test_repair import SchemaHint

PERSON = SchemaHint(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


@pytest.mark.covers("S2-41")
@pytest.mark.parametrize(
    "text", ['{"a": [1, 2.5e-3, true, null, "\\u00e9\\n"]}', "[]", '"x"', "-0.0", "  1 ", '{"ключ": "значение"}']
)
def test_valid_json_is_what_a_strict_parser_makes_of_it(text: str) -> None:
    loaded = load(text)
    assert loaded.value == orjson.loads(text)
    assert (loaded.start, loaded.end, loaded.edits, loaded.warnings) == (0, len(text), (), ())


@pytest.mark.parametrize("digits", [18, 19, 20, 21, 40, 4000])
@pytest.mark.parametrize("wrap", ['{{"a": {}}}', "[1, -{}, 2]", "Sure: [{},]", '{{"a": "x", "b": {}}}'])
def test_integers_keep_all_their_digits(digits: int, wrap: str) -> None:
    number = int("9" * digits)
    value = load(wrap.format(number)).value
    numbers = list(value.values()) if isinstance(value, dict) else value
    assert number in numbers or -number in numbers


def test_absurd_integers_are_refused() -> None:
    with pytest.raises(JsonEnforcementError):
        load("[" + "1" * 10_000 + "]")


def test_long_digits_in_strings_change_nothing() -> None:
    text = json.dumps({"card": "1234567890" * 5, "pi": 3.141592653589793238})
    assert load(text).value == orjson.loads(text)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('{"a": 1, "a": 2}', ["a"]),
        ('{"a": 1, "b": {"a": 2}}', []),
        ('[{"a": 1}, {"a": 2}]', []),
        ('{"\\u0061": 1, "a": 2}', ["a"]),
        ('{"a": {"x": 1, "x": 2}, "a": 3}', ["x", "a"]),
        ('{"a": "b: \\"a\\": 1"}', []),
        ('{"a": 1, "a": 2,}', ["a"]),
    ],
)
def test_duplicate_keys_are_warned_of_and_the_last_wins(text: str, keys: list[str]) -> None:
    loaded = load(text)
    assert [warning.kind for warning in loaded.warnings] == ["duplicate_key"] * len(keys)
    assert [found.key for found in duplicates(loaded.source)] == keys
    assert loaded.value == json.loads(loaded.source)


def test_strict_mode_repairs_nothing() -> None:
    assert load('{"a": 1}', strict=True).value == {"a": 1}
    with pytest.raises(JsonEnforcementError, match="strict") as caught:
        load('{"a": 1,}', strict=True)
    assert caught.value.details["position"] == 7


def test_an_empty_answer_is_its_own_error() -> None:
    with pytest.raises(EmptyAnswerError):
        load("  \n")


@pytest.mark.parametrize("text", ["I cannot help with that.", "name,age\nAda,36", "- one\n- two", "Dear {name}"])
def test_text_without_json_is_refused_with_position_and_reason(text: str) -> None:
    with pytest.raises(JsonEnforcementError) as caught:
        load(text)
    assert caught.value.details["reason"]
    assert caught.value.where is not None
    assert "character" in caught.value.where


@pytest.mark.covers("C04", "S2-40", "S2-43")
def test_with_a_hint_the_first_that_fits_is_taken() -> None:
    text = 'Draft {"name": "Ada"}, then {"name": "Ada", "age": 36}, not {"name": "Bob", "age": 1}.'
    loaded = load(text, PERSON)
    assert loaded.value == {"name": "Ada", "age": 36}
    assert text[loaded.start : loaded.end] == '{"name": "Ada", "age": 36}'
    assert "several_candidates" in {warning.kind for warning in loaded.warnings}


@pytest.mark.covers("C04")
def test_with_a_hint_and_none_that_fits_the_type_decides_then_the_violations_then_the_order() -> None:
    assert load('[1, "x"] or {"name": "Ada"}', PERSON).value == {"name": "Ada"}
    assert load('{"x": 1} or {"name": "Ada"}', PERSON).value == {"name": "Ada"}
    assert load('["x"] or ["longer", "list"]', PERSON).value == ["x"]


@pytest.mark.covers("C04")
def test_without_a_hint_the_first_is_taken() -> None:
    assert load('{"a": 1} or {"much": "longer", "than": "that"}').value == {"a": 1}


def test_json_in_a_json_string_is_unwrapped_only_where_no_string_is_wanted() -> None:
    text = json.dumps('{"name": "Ada", "age": 36}')
    assert load(text).value == '{"name": "Ada", "age": 36}'
    loaded = load(text, PERSON)
    assert loaded.value == {"name": "Ada", "age": 36}
    assert [warning.kind for warning in loaded.warnings] == ["json_in_string"]


def test_a_reading_chosen_by_the_hint_is_noted() -> None:
    hint = SchemaHint({"type": "object", "properties": {"zip": {"type": "string"}}})
    loaded = load("{'zip': 00501}", hint)
    assert loaded.value == {"zip": "00501"}
    assert "schema_hint" in {warning.kind for warning in loaded.warnings}


@pytest.mark.covers("S0-14", "S0-49", "S0-66", "S0-67", "S0-68", "S0-69", "S0-70")
@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ('{"a": "say \\"}\\" now"}', '{"a": "say \\"}\\" now"}'),
        ('Sure, here it is: {"a": 1} bye', '{"a": 1}'),
        ('{"a": 1,}', '{"a": 1}'),
        ("[[1, [2]], [3]]", "[[1, [2]], [3]]"),
        ('Voilà: {"ключ": "値 😀"}!', '{"ключ": "値 😀"}'),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ("nothing here", None),
        ("42", None),
        ("", None),
    ],
)
def test_extract_json_payload(text: str, payload: str | None) -> None:
    assert extract_json_payload(text) == payload


def test_parse_refuses_what_is_not_json() -> None:
    for text in ("{", "[1,]", "NaN", "", "'x'"):
        with pytest.raises(ValueError, match=r".+"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (r'{"f": "\frac{1}{2}"}', ["formula_escape"]),
        (r'{"f": "2 \times 3", "g": "\neq"}', ["formula_escape", "formula_escape"]),
        (r'{"f": "a\nb\tc", "g": "\\frac"}', []),
        ('Sure: "a": {"b": 1, "c": 2}', ["key_outside"]),
        ('{"a": {"b": 1}} and "c": 2', ["key_outside"]),
        ('{"a": {"b": 1}} and "c" too', []),
    ],
)
def test_what_may_be_read_wrongly_is_warned_of(text: str, kinds: list[str]) -> None:
    assert [warning.kind for warning in load(text).warnings] == kinds


@pytest.mark.parametrize(
    ("text", "value"),
    [(r'{"a": "\x41"}', "A"), ('{"a": ""x""}', "x"), ("{'a': b'x'}", "x"), ('{"a": "x\\\ny"}', "x\ny")],
)
def test_what_other_languages_write_is_a_guess(text: str, value: str) -> None:
    loaded = load(text)
    assert loaded.value == {"a": value}
    assert not all(edit.certain for edit in loaded.edits)
