"""A wide schema is split into parts whose answers make up the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from slipform.errors import UnsupportedSchemaError
from slipform.schema import Schema
from slipform.schema.lowering import lower
from slipform.schema.splitting import MOST_PARTS, SchemaPart, halve_schema, join_parts, split_schema
from tests.schema.data import needs_real_world, real_world
from tests.schema.lowering_linter import lint

Splitter = Callable[[Mapping[str, Any]], tuple[SchemaPart, ...]]


def wide(names: Sequence[str], **keywords: Any) -> dict[str, Any]:
    properties = {name: {"type": "string", "enum": [name, "other"]} for name in names}
    return {"type": "object", "properties": properties, "required": list(names), **keywords}


def names_of(parts: Sequence[SchemaPart]) -> list[list[str]]:
    return [[".".join(path) for path in part.properties] for part in parts]


def at_most(count: int) -> Callable[[Mapping[str, Any]], bool]:
    return lambda part: number_of_properties(part) <= count


def number_of_properties(node: Mapping[str, Any]) -> int:
    properties = node.get("properties", {})
    inner = [*properties.values(), *node.get("$defs", {}).values()]
    return len(properties) + sum(map(number_of_properties, inner))


@pytest.mark.parametrize(
    ("keywords", "parts"),
    [
        ({}, [["a", "b"], ["c", "d"]]),
        ({"dependentRequired": {"a": ["d"]}}, [["a", "d"], ["b", "c"]]),
        ({"dependentSchemas": {"b": {"required": ["c"]}}}, [["a"], ["b", "c"], ["d"]]),
        ({"if": {"required": ["a"]}, "then": {"properties": {"c": {"maxLength": 3}}}}, [["a", "c"], ["b", "d"]]),
        ({"oneOf": [{"required": ["b"]}, {"required": ["d"]}]}, [["a"], ["b", "d"], ["c"]]),
        ({"allOf": [{"required": ["a", "c"]}, {"required": ["b"]}]}, [["a", "c"], ["b", "d"]]),
        ({"dependentRequired": {"a": ["b"], "b": ["c"]}}, []),  # three that belong together do not fit
    ],
)
def test_properties_that_a_constraint_names_together_stay_together(keywords: Any, parts: Any) -> None:
    assert names_of(split_schema(wide("abcd", **keywords), at_most(2))) == parts


def test_a_constraint_goes_with_its_properties() -> None:
    first, second = split_schema(wide("abcd", dependentRequired={"a": ["d"]}), at_most(2))
    assert first.document["dependentRequired"] == {"a": ["d"]}
    assert "dependentRequired" not in second.document
    assert first.document["required"] == ["a", "d"]


def test_an_object_that_is_too_wide_alone_is_split_inside() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "buyer": {"$ref": "#/$defs/Buyer"}},
        "required": ["id", "buyer"],
        "$defs": {"Buyer": wide("abc", additionalProperties=False), "Unused": {"type": "null"}},
    }
    parts = split_schema(schema, at_most(3))
    assert names_of(parts) == [["id"], ["buyer.a", "buyer.b"], ["buyer.c"]]
    assert all("$defs" not in part.document for part in parts)
    value = {"id": 1, "buyer": {"a": "a", "b": "b", "c": "other"}}
    answers = [{"id": 1}, {"buyer": {"a": "a", "b": "b"}}, {"buyer": {"c": "other"}}]
    assert join_parts(answers, parts) == value
    for answer, part in zip(answers, parts, strict=True):
        assert not Schema("part", part.document).validate(answer)


def test_only_the_first_part_takes_other_keys() -> None:
    schema = wide("abcd", patternProperties={"^x-": {"type": "integer"}}, additionalProperties={"type": "null"})
    first, second = split_schema(schema, at_most(2))
    assert first.document["patternProperties"] == {"^x-": {"type": "integer"}}
    assert first.document["additionalProperties"] == {"type": "null"}
    assert second.document["additionalProperties"] is False
    joined = join_parts([{"a": "a", "b": "b", "x-1": 3, "c": "wrong"}, {"c": "c", "d": "d"}], (first, second))
    assert joined == {"a": "a", "b": "b", "c": "c", "d": "d", "x-1": 3}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": wide("abcd")},
        {"anyOf": [wide("ab"), wide("cd")]},
        {"type": ["object", "null"], "properties": wide("abcd")["properties"]},
        wide("abcd", allOf=[{"$ref": "#/$defs/Base"}], **{"$defs": {"Base": {}}}),
        wide("abcd", anyOf=[{"properties": {"e": {}}}, {"required": ["a"]}]),
        {**wide("abcd"), "properties": {**wide("abcd")["properties"], "e": {"$ref": "#/properties/a"}}},
        wide("a"),
    ],
)
def test_what_is_no_object_of_its_own_properties_is_left_whole(schema: Any) -> None:
    assert split_schema(schema, at_most(2)) == ()
    assert halve_schema(schema) == ()


def test_a_schema_that_would_take_too_many_calls_is_left_whole() -> None:
    names = [f"p{number}" for number in range(MOST_PARTS + 1)]
    assert split_schema(wide(names), at_most(1)) == ()
    assert len(split_schema(wide(names[1:]), at_most(1))) == MOST_PARTS


def selected(value: Mapping[str, Any], paths: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for path in paths:
        name = path[0]
        inner = [each[1:] for each in paths if each[0] == name and len(each) > 1]
        if name in value:
            chosen[name] = selected(value[name], inner) if inner and isinstance(value[name], dict) else value[name]
    return chosen


def other_keys(value: Mapping[str, Any], paths: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Return what no part lists, with the objects on the way to it."""
    others: dict[str, Any] = {}
    for name, member in value.items():
        inner = [each[1:] for each in paths if each[0] == name and len(each) > 1]
        if inner and isinstance(member, dict):
            others[name] = other_keys(member, inner)
        elif (name,) not in paths:
            others[name] = member
    return {name: member for name, member in others.items() if member != {} or value[name] == {}}


def merged(one: Any, other: Any) -> Any:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one
    return {**other, **{name: merged(member, other.get(name, member)) for name, member in one.items()}}


def fits_half(document: Mapping[str, Any]) -> Splitter:
    most = max(1, number_of_properties(document) // 2)
    return lambda schema: split_schema(schema, at_most(most))


@needs_real_world
@pytest.mark.parametrize("kind", ["halves", "fitting"])
def test_joined_parts_of_a_valid_instance_are_the_instance(kind: str) -> None:
    compared = 0
    for row in real_world():
        schema = row["schema"]
        parts = halve_schema(schema) if kind == "halves" else fits_half(schema)(schema)
        checkers: list[Schema[Any]] = [Schema("part", part.document) for part in parts]
        paths = [path for part in parts for path in part.properties]
        for case in row["tests"] if parts else ():
            if not case["valid"]:
                continue
            first, *others = [selected(case["data"], part.properties) for part in parts]
            answers = [merged(first, other_keys(case["data"], paths)), *others]
            assert join_parts(answers, parts) == case["data"], row["id"]
            for answer, checker in zip(answers, checkers, strict=True):
                assert not checker.validate(answer), (row["id"], answer)
            compared += 1
    assert compared > 150


@needs_real_world
@pytest.mark.parametrize("dialect", ["openai", "azure", "anthropic", "gemini"])
def test_every_part_keeps_the_vendors_limits(dialect: str) -> None:
    def fits(part: Mapping[str, Any]) -> bool:
        if len(part["properties"]) > 4:  # as if no vendor took more
            return False
        try:
            lower(part, dialect)
        except UnsupportedSchemaError:
            return False
        return True

    checked = 0
    for row in real_world():
        for part in split_schema(row["schema"], fits):
            assert lint(lower(part.document, dialect).schema, dialect) == [], row["id"]
            checked += 1
    assert checked > 100
