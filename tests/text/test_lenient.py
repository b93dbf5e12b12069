"""The lenient mode: repairs that need no look ahead, each of them on record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.text.parser import Parser
from slipform.text.tree import PENDING, Note
from tests.conftest import examples

from .test_parser import cut, jsonish, parse, same, values


def codes(parser: Parser) -> list[str]:
    return [note.code for note in parser.notes]


@pytest.mark.parametrize(
    ("text", "value", "repairs"),
    [
        ("[1, 2,]", [1, 2], ["trailing_comma"]),
        ('{"a": 1,}', {"a": 1}, ["trailing_comma"]),
        ("[1,, 2]", [1, 2], ["trailing_comma"]),
        ('{"a": 1,, "b": 2}', {"a": 1, "b": 2}, ["trailing_comma"]),
        ("[1 2, 3]", [1, 2, 3], ["missing_comma"]),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}, ["missing_comma"]),
        ('{"a": {"b": 1} "c": []}', {"a": {"b": 1}, "c": []}, ["missing_comma"]),
        ('{"a": 1; "b": 2}', {"a": 1, "b": 2}, ["missing_comma"]),
        ('{"a" 1}', {"a": 1}, ["missing_colon"]),
        ('{"a" = "x"}', {"a": "x"}, ["missing_colon"]),
        ('{"a": [1, {"b": 2]}', {"a": [1, {"b": 2}]}, ["missing_bracket"]),
        ('{"a": [1, [2}', {"a": [1, [2]]}, ["missing_bracket", "missing_bracket"]),
        ('{"a": [1, }', {"a": [1]}, ["trailing_comma", "missing_bracket"]),
        ('["x"}, 2]', ["x", 2], ["extra_bracket"]),
        ("{'a': 'b'}", {"a": "b"}, ["quotes", "quotes"]),
        ("{'a': 'it's \\'fine\\''}", {"a": "it's 'fine'"}, ["quotes", "quotes", "bad_escape", "bad_escape"]),
        ("{“a”: “b”, `c`: ‘d’}", {"a": "b", "c": "d"}, ["quotes"] * 4),
        ("{a: 1, b_2: 2, $c-d: 3}", {"a": 1, "b_2": 2, "$c-d": 3}, ["unquoted_key"] * 3),
        ("[True, False, None]", [True, False, None], ["literal"] * 3),
        ("[null, undefined, NaN, -Infinity, nul]", None, ["literal"] * 3),
        ('{"a": TRUE, "b": nil}', {"a": True, "b": None}, ["literal", "literal"]),
        (
            '{"a": +1, "b": .5, "c": 5., "d": 007, "e": 1_000, "f": 0xFF, "g": -0x10, "h": 1.e2}',
            {"a": 1, "b": 0.5, "c": 5.0, "d": 7, "e": 1000, "f": 255, "g": -16, "h": 100.0},
            ["number"] * 8,
        ),
        ('{"a": "x\ny\tz"}', {"a": "x\ny\tz"}, ["control_character", "control_character"]),
        ('{"a": "C:\\dir \\u12 \\ud83d\\uq"}', {"a": "C:\\dir \\u12 \ud83d\\uq"}, None),
        ("[1, 2, ...]", [1, 2], ["ellipsis", "trailing_comma"]),
        ("[1, 2 …]", [1, 2], ["ellipsis"]),
        ('{"a": 1, ...}', {"a": 1}, ["ellipsis", "trailing_comma"]),
        ('{"a": 1 // one\n, /* two * */ "b": 2 # three\n}', {"a": 1, "b": 2}, ["comment"] * 3),
        ('{\u00a0"a":\ufeff 1\u200b}', {"a": 1}, ["odd_space"] * 3),
        ('{"a": 1} Hope this helps!', {"a": 1}, ["trailing_text"]),
        ('{"a": 1}}', {"a": 1}, ["trailing_text"]),
        ('{"a": 1, "a": 2}', {"a": 2}, ["duplicate_key"]),
        ("{a: 1, a: 2}", {"a": 2}, ["unquoted_key", "unquoted_key", "duplicate_key"]),
    ],
)
def test_a_repair_is_made_and_recorded(text: str, value: Any, repairs: list[str] | None) -> None:
    whole, in_pieces = parse(text, lenient=True), parse(*text, lenient=True)
    if value is not None:
        assert whole.error is None
        assert whole.complete
        assert whole.value == in_pieces.value == value
        assert list(map(type, whole.value)) == list(map(type, value))
    if repairs is not None:
        assert codes(whole) == repairs
    assert whole.notes == in_pieces.notes


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"a": }', "unexpected_character"),
        ('{"a"}', "unexpected_character"),
        ('{"a", "b"}', "unexpected_character"),
        ('{"a": word}', "bare_word"),
        ('{"a": nope}', "bare_word"),
        ('{"a": 12monkeys}', "bad_number"),
        ('{"a": 1e}', "bad_number"),
        ('{"a": / 1}', "unexpected_character"),
        ('{"a": 1', "unexpected_end"),
        ('{"a": "x', "unexpected_end"),
        ("{'a': 'x'", "unexpected_end"),
        ('{"a": /* ', "unexpected_end"),
        ("I cannot help with that.", "no_json"),
        ("see [note] and {name}", "no_json"),
        ('<think>{"a": 1}', "no_json"),
        ("", "empty"),
        ("  \n", "empty"),
    ],
)
def test_what_is_missing_is_not_invented(text: str, code: str) -> None:
    whole, in_pieces = parse(text, lenient=True), parse(*text, lenient=True)
    assert whole.error is not None
    assert whole.error.code == code
    assert whole.error == in_pieces.error
    assert not whole.complete


@pytest.mark.covers("C09", "S0-67", "S0-72")
def test_prose_fences_and_reasoning_before_the_json_are_passed_over() -> None:
    text = '<think>{"no": 1}</think>\nSure, see [below]:\n```json\n{"a": [1, 2]}\n```\nBye {x}.'
    parsed = parse(*text, lenient=True)
    assert parsed.value == {"a": [1, 2]}
    assert parsed.notes == (
        Note("leading_text", 0, text[:40], ""),
        Note("trailing_text", text.index("```\nBye"), "```\nBye {x}.", ""),
    )


def test_places_count_from_the_start_of_the_whole_text() -> None:
    text = 'Here\nit is: {\n "a": }'
    error = parse(text, lenient=True).error
    assert error is not None
    assert (error.index, error.line, error.column) == (text.index("}"), 3, 7)
    assert parse("Here: [1,]", lenient=True).notes[1].index == 9


@pytest.mark.parametrize("text", ["42", ' "text" ', "true", "null", "-1.5"])
def test_a_scalar_alone_is_known_at_the_end(text: str) -> None:
    parser = Parser(lenient=True).feed(text)
    assert parser.value is PENDING
    assert parser.finish().value == json.loads(text)
    assert parser.finish().complete


@settings(max_examples=examples(160), deadline=None)
@given(values, st.lists(st.integers(0, 300)))
def test_valid_json_needs_no_repair(value: Any, places: list[int]) -> None:
    text = json.dumps({"value": value})
    parsed = parse(*cut(text, places), lenient=True)
    assert parsed.error is None
    assert same(parsed.value, {"value": value})
    assert {note.code for note in parsed.notes} <= {"lone_surrogate"}


@pytest.mark.covers("S3-61")
@settings(max_examples=examples(200), deadline=None)
@given(
    jsonish.map(lambda text: '{"' + text) | jsonish.map(lambda text: '["", ' + text) | st.text(max_size=40),
    st.lists(st.integers(0, 60)),
)
def test_any_text_in_any_chunking_gives_the_same_and_never_raises(text: str, places: list[int]) -> None:
    whole = parse(text, lenient=True)
    pieces = parse(*cut(text, places), lenient=True)
    assert (whole.error, whole.notes, whole.complete) == (pieces.error, pieces.notes, pieces.complete)
    assert whole.value is pieces.value is PENDING or same(whole.value, pieces.value)
    assert whole.complete or whole.error is not None


@settings(max_examples=examples(200), deadline=None)
@given(st.text(alphabet="{}[]'\"`“”,:/*#.+-_$0xeNaTrue \\u\n…\ufeff;=1", max_size=40), st.lists(st.integers(0, 60)))
def test_any_mixture_of_oddities_gives_the_same_in_any_chunking(text: str, places: list[int]) -> None:
    whole = parse("{'k': [" + text, lenient=True)
    pieces = parse(*cut("{'k': [" + text, places), lenient=True)
    assert (whole.error, whole.notes, whole.complete) == (pieces.error, pieces.notes, pieces.complete)
    assert same(whole.value, pieces.value)


def test_old_snapshots_stay_and_can_be_fed_something_else() -> None:
    parser = Parser(lenient=True).feed("Well: {a: [1, 2, ")
    other = parser.feed("3]}").value
    assert parser.feed("4,]}").value == {"a": [1, 2, 4]}
    assert other == {"a": [1, 2, 3]}
    assert parser.value == {"a": [1, 2]}
    tail = Parser(lenient=True).feed("[] by")
    assert tail.feed("e").notes[0].before == "bye"
    assert tail.notes[0].before == "by"


@pytest.mark.parametrize("piece", ["[", '{"a":', "{'a':", "//", "/*", "'", "\\", "...", "}", "]", ",", "x ", "1", "“"])
def test_hostile_text_stays_linear(piece: str) -> None:
    text = "[" + piece * (50_000 // len(piece))
    parser = Parser(lenient=True)
    for start in range(0, len(text), 500):
        parser = parser.feed(text[start : start + 500])
    assert parser.finish().error is not None or parser.complete


@pytest.mark.parametrize("text", ['{"a": "x "y" z"}', '{"a": "he said "hi", then left", "b": 1}', '{"a": "O"Brien"}'])
def test_a_word_after_a_string_is_an_error_and_no_key(text: str) -> None:
    parser = Parser(lenient=True).feed(text).finish()
    assert parser.error is not None
    assert parser.error.code == "unescaped_quote"
    assert list(parser.value) == ["a"]


def test_a_string_that_holds_json_is_noted() -> None:
    parser = Parser(lenient=True).feed('"{\\"a\\": 1}"').finish()
    assert parser.value == '{"a": 1}'
    assert codes(parser) == ["json_in_string"]


@pytest.mark.parametrize("text", [r"{\"a\": [1, 2]}", "{&quot;a&quot;: [1, 2]}", r'[\"a\", {"b": 1}]'])
@pytest.mark.parametrize("size", [1, 3, 99])
def test_nothing_inside_escaped_json_is_the_answer(text: str, size: int) -> None:
    parser = Parser(lenient=True)
    for at in range(0, len(text), size):
        parser = parser.feed(text[at : at + size])
    parser = parser.finish()
    assert parser.error is not None
    assert not parser.value
