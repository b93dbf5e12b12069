"""The table in docs/proxy.md says when each part of an answer leaves a stream: every row is tried here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slipform.enforce import ReleaseGate, Switches
from slipform.schema import Schema
from slipform.schema.lowering import lower

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "proxy.md"
TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


OPTIONAL = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["b"], "additionalProperties": False}
BRANCHES = [obj(kind={"const": "cat"}, lives=NUMBER), obj(kind={"const": "dog"}, owner=TEXT)]
UNEVALUATED = {"type": "object", "properties": {"a": TEXT}, "unevaluatedProperties": False}
ROWS: dict[str, tuple[dict[str, Any], str, list[tuple[str, str]]]] = {
    "a string": (obj(a=TEXT, b=TEXT), "", [('{"a": "gro', '{"a":"gro'), ('wing"', "wing"), (", ", '"')]),
    "a number": (obj(a=NUMBER, b=TEXT), "", [('{"a": 1', ""), ("2, ", '{"a":12')]),
    "an optional property": (OPTIONAL, "openai", [('{"a": null, ', ""), ('"b": "te', '{"b":"te')]),
    "a root": ({"type": "array", "items": TEXT}, "openai", [('{"value": ["te', '["te'), ('xt", "', 'xt","')]),
    "a map": (
        {"type": "object", "additionalProperties": TEXT},
        "openai",
        [('{"value": [{"key": "a", "value": "te', '{"a":"te'), ('xt"}, {"key": "b", "value": "te', 'xt","b":"te')],
    ),
    "any JSON": (obj(a={}), "openai", [('{"a": "{\\"x\\": ', ""), ('[\\"te', '{"a":{"x":["te'), ('xt\\", ', 'xt"')]),
    "an object of a union": (
        obj(pet={"anyOf": BRANCHES}),
        "",
        [('{"pet": {"kind": "do', ""), ('g"', '{"pet":{"kind":"dog"'), (', "owner": "A', ',"owner":"A')],
    ),
    "a container with `uniqueItems`": (
        obj(a={"type": "array", "items": NUMBER, "uniqueItems": True}, b=TEXT),
        "",
        [('{"a": [1, 2', ""), (', 3], "b": "te', '{"a":[1,2,3],"b":"te')],
    ),
    "an object whose first key": (
        {"type": "object", "properties": {"name": TEXT}},
        "",
        [('{"remarks": [1, ', ""), ('2], "name": "A', '{"remarks":[1,2],"name":"A')],
    ),
    "a container with `unevaluatedProperties`": (obj(x=UNEVALUATED, b=TEXT), "", [('{"x": {"a": "t"}, "b": "te', "")]),
    "the last bracket": (obj(a=TEXT), "", [('{"a": "text"', '{"a":"text'), ("}", "")]),
}


def test_every_row_of_the_page_is_tried() -> None:
    table = PAGE.read_text("utf-8").partition("### What is sent when")[2].partition("\n### ")[0]
    parts = re.findall(r"^\| (?!part of the answer)([^|-][^|]*?) \|", table, re.MULTILINE)
    assert len(parts) == len(ROWS)
    assert [part for part, name in zip(parts, ROWS, strict=True) if not part.startswith(name)] == []


def table_rows(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| (?!part of the answer)([^|-][^|]*?) \| ([^|]*?) \|$", text, re.MULTILINE)


def test_the_readme_says_what_the_page_says() -> None:
    section = (
        (ROOT / "README.md").read_text("utf-8").partition("docs/proxy.md#what-is-sent-when")[2].partition("\n## ")[0]
    )
    page = dict(table_rows(PAGE.read_text("utf-8")))
    rows = table_rows(section)
    assert len(rows) >= 5
    assert [(part, when) for part, when in rows if not page.get(part, "").startswith(when)] == []


@pytest.mark.parametrize("row", ROWS)
def test_each_part_leaves_when_the_page_says(row: str) -> None:
    schema, dialect, pieces = ROWS[row]
    gate = ReleaseGate(Schema.of(schema), Switches())
    if dialect:
        gate.lift_with(lower(schema, dialect, open_objects="auto").plan)
    assert [gate.feed(piece) for piece, _ in pieces] == [released for _, released in pieces]
