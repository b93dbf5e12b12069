"""`Parser` on text that is not JSON: an error with its place, never an exception."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.text.parser import Parser
from slipform.text.tree import PENDING, ParseError

from .test_parser import cut, jsonish, modest, parse, same


@pytest.mark.covers("S3-61", "S3-52")
@modest
@given(st.text(max_size=60) | jsonish, st.lists(st.integers(0, 60)))
def test_any_text_gives_a_value_or_an_error_and_never_raises(text: str, places: list[int]) -> None:
    whole = parse(text)
    pieces = parse(*cut(text, places))
    assert (whole.error, whole.notes, whole.complete) == (pieces.error, pieces.notes, pieces.complete)
    assert whole.value is pieces.value is PENDING or same(whole.value, pieces.value)
    try:
        expected = json.loads(text, parse_constant=int)
    except ValueError:
        assert whole.error is not None
    else:
        assert whole.error is None
        assert whole.value == expected or any("\ud800" <= char <= "\udfff" for char in text)


@modest
@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_any_bytes_give_a_value_or_an_error(data: bytes, places: list[int]) -> None:
    whole = parse(data)
    assert whole.complete or whole.error is not None
    assert parse(*cut(data, places)).error == whole.error


@pytest.mark.parametrize(
    ("text", "code", "index"),
    [
        ("", "empty", 0),
        (" \n", "empty", 2),
        ("x", "unexpected_character", 0),
        ("{'a'", "unexpected_character", 1),
        ("{,", "unexpected_character", 1),
        ('{"a" 1', "unexpected_character", 5),
        ('{"a":1,}', "unexpected_character", 7),
        ("[1,]", "unexpected_character", 3),
        ("[1}", "unexpected_character", 2),
        ("[1 2", "unexpected_character", 3),
        ("NaN", "unexpected_character", 0),
        ("-Infinity", "bad_number", 1),
        ("nul!", "bad_literal", 3),
        ("01", "trailing_text", 1),
        ("[1.]", "bad_number", 3),
        ("[1e]", "bad_number", 3),
        ("[.5", "unexpected_character", 1),
        ("[+1", "unexpected_character", 1),
        ('"a\nb"', "control_character", 2),
        ('"\\x"', "bad_escape", 2),
        ('"\\u00g0"', "bad_escape", 5),
        ("[1] x", "trailing_text", 4),
        ("{} {}", "trailing_text", 3),
        ("\ufeff[]", "unexpected_character", 0),
        ('{"a": "b', "unexpected_end", 8),
        ("[12", "unexpected_end", 3),
        ("-", "unexpected_end", 1),
    ],
)
def test_a_mistake_is_placed_at_the_first_wrong_character(text: str, code: str, index: int) -> None:
    for chunks in ([text], list(text)):
        error = parse(*chunks).error
        assert error is not None
        assert (error.code, error.index) == (code, index)


def test_lines_and_columns_count_from_one() -> None:
    for chunks in (['{\n "a": 1,\n  "b" 2}'], list('{\n "a": 1,\n  "b" 2}')):
        assert parse(*chunks).error == ParseError("unexpected_character", "Expected ':', found '2'", 17, 3, 7)
        assert str(parse(*chunks).error) == "Expected ':', found '2' (line 3, column 7)"


@pytest.mark.covers("C08")
def test_text_after_the_value_is_an_error_that_leaves_it_complete() -> None:
    parsed = parse('{"a": 1}', " Hope this helps!")
    assert parsed.error is not None
    assert parsed.error.code == "trailing_text"
    assert parsed.complete
    assert parsed.value == {"a": 1}


def test_what_came_before_a_mistake_stays() -> None:
    parser = Parser().feed('{"a": [1, 2], "b": "x\n').feed('y"}')
    assert parser.value == {"a": [1, 2], "b": "x"}
    assert not parser.complete


def test_invalid_utf8_is_an_error_at_its_place() -> None:
    for chunks in ([b'["\xc3\xa9\xff"]'], [b'["\xc3', b"\xa9", b'\xff"]']):
        parsed = parse(*chunks)
        assert parsed.error is not None
        assert (parsed.error.code, parsed.error.index) == ("invalid_utf8", 3)
        assert parsed.value == ["é"]
    for end in (b'"\xe2\x82', b"[]\xe2"):
        error = parse(end).error
        assert error is not None
        assert error.code == "invalid_utf8"
    error = Parser().feed(b'"\xe2').feed("x").error
    assert error is not None
    assert error.code == "invalid_utf8"


def test_str_and_bytes_chunks_may_be_mixed() -> None:
    assert parse(b'["\xc3\xa9', 'é"]').value == ["éé"]


@pytest.mark.covers("S3-61")
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_is_bounded_by_the_limit_not_by_the_stack(opening: str) -> None:
    parser = parse(opening * 100_000)
    assert parser.error is not None
    assert (parser.error.code, parser.error.index) == ("too_deep", len(opening) * 512)
    deep = parse("[" * 5000, "]" * 5000, max_depth=5000)
    assert deep.complete
    assert deep.error is None
    assert len(deep.value) == 1


def test_a_mistake_is_the_end() -> None:
    parser = Parser().feed("[1, x")
    assert parser.feed("2]").value == [1]
    assert parser.feed("2]").error == parser.error
    assert parse("[1]").feed(" ").error is None
    late = parse("[1]").feed("x").error
    assert late is not None
    assert late.code == "trailing_text"


def test_repr_says_how_far_it_is() -> None:
    assert repr(Parser().feed('{"a": [1, ')) == "Parser(open_path=('a',))"
    assert repr(Parser().feed("[1]")) == "Parser(complete)"
    assert repr(Parser().feed("[x")) == "Parser(error=Expected a value or ']', found 'x' (line 1, column 2))"
