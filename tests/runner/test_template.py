"""Prompt templates over columns."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from slipform.addons.batch.rows import WHOLE_ROW, Template
from slipform.errors import ConfigError


@pytest.mark.parametrize(
    ("template", "row", "filled"),
    [
        ("{a}", {"a": "x"}, "x"),
        ("{a}{a}-{b c}", {"a": "x", "b c": 1}, "xx-1"),
        ("{{a}} {a}", {"a": "{a}"}, "{a} {a}"),
        ('{{"a": "{a}"}}', {"a": "x"}, '{"a": "x"}'),
        ("{a}|", {"a": None}, "|"),
        ("{a}|", {}, "|"),
        ("{a}", {"a": [1, {"b": None}]}, '[1,{"b":null}]'),
        ("{a} {b}", {"a": True, "b": 1.5}, "true 1.5"),
        ("{a}", {"a": date(2026, 11, 16)}, "2026-11-16"),
        ("{a}", {"a": 12345678901234567890123}, "12345678901234567890123"),
        ("{a.__class__} {0} {a!r}", {"a.__class__": 1, "0": 2, "a!r": 3}, "1 2 3"),
        ("{a}", {"a": "ü".encode()}, "ü"),
        ("no blanks", {}, "no blanks"),
        ("", {"a": 1}, ""),
    ],
)
def test_blanks_are_filled(template: str, row: dict[str, Any], filled: str) -> None:
    assert Template.read(template).fill(row) == filled


def test_without_a_template_the_row_is_the_prompt() -> None:
    assert WHOLE_ROW.fill({"a": "ü", "b": None}) == '{"a":"ü","b":null}'
    assert Template.read("") != WHOLE_ROW


@pytest.mark.parametrize(
    ("template", "where"),
    [("{", "character 1"), ("a }", "character 3"), ("ok\n{a", "line 2"), ("{}", "character 1"), ("{a{b}}", "line 1")],
)
def test_a_stray_brace_is_an_error_with_its_place(template: str, where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        Template.read(template)


def test_an_unknown_column_names_the_columns_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'titel'.*The columns are: id, title"):
        Template.read("{titel}").check(["id", "title"])


def test_a_column_of_bytes_that_are_no_text_is_named() -> None:
    with pytest.raises(ConfigError, match="The column 'photo' holds bytes that are not text") as raised:
        Template.read("{id} {photo}").fill({"id": 1, "photo": b"\x89PNG"})
    assert raised.value.where == "photo"
    assert raised.value.hint == "Decode it, or name another column."
