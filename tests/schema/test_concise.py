"""Schemas written as a list of fields."""

from __future__ import annotations

from typing import Any

import pytest

from slipform.errors import ConfigError
from slipform.schema import Schema
from slipform.schema.concise import concise_schema

STR = {"type": "string"}
INT = {"type": "integer"}
STRINGS = {"type": "array", "items": STR}
ROWS = {"type": "array", "items": {"type": "array", "items": INT}}
READ: list[tuple[str, dict[str, Any], list[str]]] = [
    ("name, age int", {"name": STR, "age": INT}, ["name", "age"]),
    ("name,age integer,", {"name": STR, "age": INT}, ["name", "age"]),
    ("tags [str], words []", {"tags": STRINGS, "words": STRINGS}, ["tags", "words"]),
    ("rows [[int]]", {"rows": ROWS}, ["rows"]),
    ("name?, age int?, tags? [str]", {"name": STR, "age": INT, "tags": STRINGS}, []),
    ("name: the full name, age int: in years", {"name": STR | {"description": "the full name"},
                                                "age": INT | {"description": "in years"}}, ["name", "age"]),
    ("name\nage int: one, two\n", {"name": STR, "age": INT | {"description": "one, two"}}, ["name", "age"]),
    ("site: like https://example.com/a", {"site": STR | {"description": "like https://example.com/a"}}, ["site"]),
    ("größe float, ok bool", {"größe": {"type": "number"}, "ok": {"type": "boolean"}}, ["größe", "ok"]),
    ("due date", {"due": STR | {"format": "date"}}, ["due"]),
]  # fmt: skip
REJECTED = [
    ("a,,b", "''"),
    (",", "''"),
    ("a int b", "'a int b'"),
    ("7 int", "'7 int'"),
    ("a colour", "'colour'"),
    ("a [str", "'[str'"),
    ("a, b, a int", "'a' is listed twice"),
]


def test_fields_become_properties() -> None:
    wrong = []
    for text, properties, required in READ:
        schema = concise_schema(text)
        Schema.of(schema)
        if (schema["properties"], schema["required"]) != (properties, required):
            wrong.append((text, schema))
    assert wrong == []


@pytest.mark.parametrize(("text", "part"), REJECTED)
def test_a_field_that_is_wrong_is_named(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        concise_schema(text)
    assert part in str(caught.value)
    assert caught.value.hint
