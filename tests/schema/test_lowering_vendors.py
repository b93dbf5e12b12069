"""What vendors refuse and slipform spells otherwise: a test for each, with the value there and back."""

from __future__ import annotations

import enum
import json
from decimal import Decimal
from typing import Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from slipform.schema import Schema
from slipform.schema.lowering.lowered import lower
from tests.schema.lowering_encode import encode, lifted_text
from tests.schema.lowering_helpers import actions, both_ways, closed
from tests.schema.lowering_linter import RULES, lint

TEXT = {"type": "string"}


@pytest.mark.parametrize("dialect", RULES)
def test_a_note_beside_a_reference_is_kept_in_a_way_the_vendor_takes(dialect: str) -> None:
    address = closed({"street": TEXT}, "street")
    home = {"$ref": "#/$defs/address", "description": "where they live"}
    both = {"home": home, "work": {"$ref": "#/$defs/address"}}
    schema = closed(both, *both, **{"$defs": {"address": address}})
    lowered = lower(schema, dialect)
    assert lint(lowered.schema, dialect) == []
    assert lowered.schema["properties"]["home"]["description"] == "where they live"


def test_notes_give_way_where_unions_are_counted() -> None:
    address = closed({"street": TEXT}, "street")
    noted = {f"p{at}": {"$ref": "#/$defs/address", "description": f"number {at}"} for at in range(20)}
    unions = {f"u{at}": {"type": ["string", "integer"]} for at in range(10)}
    lowered = both_ways(closed({**noted, **unions}, *noted, *unions, **{"$defs": {"address": address}}), "anthropic")
    lost = [loss for loss in lowered.report if loss.keyword == "description"]
    assert len(lost) == 14
    assert all(len(lowered.schema["properties"][name]["anyOf"]) == 2 for name in unions)


@pytest.mark.parametrize("dialect", RULES)
def test_an_enum_that_may_be_null(dialect: str) -> None:
    schema = closed({"level": {"type": ["string", "null"], "enum": ["low", "high", None]}}, "level")
    lowered = lower(schema, dialect)
    assert lint(lowered.schema, dialect) == []
    for value in ({"level": "low"}, {"level": None}):
        assert lowered.lift(encode(lowered, value)) == value


@pytest.mark.parametrize("dialect", RULES)
@pytest.mark.parametrize(
    ("beside", "values", "left"),
    [
        ({"pattern": "^a"}, ["ab", "ba", 3], ["ab", 3]),
        ({"maxLength": 2}, ["ab", "abc"], ["ab"]),
        ({"maximum": 3, "minimum": 1}, [0, 1, 3, 4], [1, 3]),
        ({"multipleOf": 2}, [1, 2, 3, 4], [2, 4]),
        ({"format": "date"}, ["2026-11-17", "today"], ["2026-11-17"]),
        ({"not": {"const": "b"}}, ["a", "b"], ["a"]),
        ({"anyOf": [{"maxLength": 1}, {"pattern": "^z"}]}, ["a", "zz", "bb"], ["a", "zz"]),
    ],
)
def test_listed_values_are_held_against_what_stands_beside_them(
    dialect: str, beside: dict[str, Any], values: list[Any], left: list[Any]
) -> None:
    lowered = lower(closed({"v": {"enum": values, **beside}}, "v"), dialect)
    for value in left:
        assert lowered.lift(encode(lowered, {"v": value})) == {"v": value}
    text = str(lowered.schema["properties"]["v"])
    assert [value for value in values if value not in left and isinstance(value, str) and f"'{value}'" in text] == []
    assert [loss for loss in lowered.report if loss.action == "dropped"] == []


def test_nothing_is_left_of_an_enum_that_contradicts_itself() -> None:
    schema = {"type": "object", "properties": {"v": {"enum": ["b"], "pattern": "^a"}, "w": TEXT}, "required": ["w"]}
    assert "v" not in lower(schema, "openai", open_objects="closed").schema["properties"]


@pytest.mark.parametrize("dialect", ["anthropic", "bedrock"])
def test_names_outside_the_alphabet_are_spelled_otherwise_and_come_back(dialect: str) -> None:
    names = ["$schema", "two words", "größe", "名前", "x" * 80, "a/b", "schema", "two_words", ""]
    schema = {"type": "object", "properties": dict.fromkeys(names, TEXT), "required": names[:4]}
    lowered = lower(schema, dialect, open_objects="auto")
    assert lint(lowered.schema, "anthropic") == []
    value = {name: f"of {name}" for name in names} | {"another one": 1}
    assert lowered.lift(encode(lowered, value)) == value
    assert lowered.plan is not None
    assert json.loads(lifted_text(lowered.plan, encode(lowered, value))) == value
    assert ("/properties/$schema", "properties", "encoded") in actions(lowered)


def test_renamed_properties_tell_the_branches_of_a_union_apart() -> None:
    one, other = closed({"a b": {"const": 1}, "v": TEXT}, "a b", "v"), closed({"a b": {"const": 2}}, "a b")
    both_ways(closed({"p": {"anyOf": [one, other]}}, "p"), "anthropic", {"p": {"a b": 1, "v": "x"}}, {"p": {"a b": 2}})


@pytest.mark.parametrize(
    "sub",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        {"type": "array"},
        {},
        {"type": "array", "prefixItems": [{"type": "integer"}]},
        {"type": "string", "enum": ["", "asc"]},
        {"const": True},
    ],
)
def test_gemini_gets_no_object_without_properties_no_array_without_items_and_no_empty_value(sub: Any) -> None:
    lowered = both_ways(closed({"v": sub}, "v"), "gemini")
    for value in ({}, {"x": 1}, [], [1], "", "asc", True, None, 3):
        if Schema.of({"title": "v", **sub}).fits(value):
            assert lowered.lift(encode(lowered, {"v": value})) == {"v": value}


def test_gemini_gets_no_more_than_four_levels_in_one_definition() -> None:
    """Portkey-AI/gateway#1546."""
    task: dict[str, Any] = closed({"title": TEXT, "steps": {"type": "array", "items": TEXT}}, "title", "steps")
    for name in ("subtasks", "stories", "tasks"):
        task = closed({"title": TEXT, name: {"type": "array", "items": task}}, "title", name)
    value: dict[str, Any] = {"title": "d", "steps": ["s"]}
    for name in ("subtasks", "stories", "tasks"):
        value = {"title": name, name: [value]}
    lowered = both_ways(task, "gemini", value)
    assert lowered.schema["$defs"]


def test_gemini_gets_bounds_only_where_it_has_states_for_them() -> None:
    rows = {"type": "array", "items": closed({"a": TEXT}, "a"), "minItems": 2, "maxItems": 5}
    many = {f"l{at}": {"type": "array", "items": TEXT, "maxItems": 200} for at in range(6)}
    numbers = {f"n{at}": {"type": "integer", "minimum": 0, "maximum": 9} for at in range(40)}
    schema = closed({"rows": rows, **many, **numbers}, "rows", *many, *numbers)
    lowered = both_ways(schema, "gemini")
    dropped = {loss.pointer for loss in lowered.report if loss.action == "dropped"}
    assert {"/properties/rows/minItems", "/properties/rows/maxItems", "/properties/l5/maxItems"} <= dropped
    assert "/properties/l0/maxItems" not in dropped
    assert "/properties/n39/maximum" in dropped
    assert "maxItems: 5" in lowered.schema["properties"]["rows"]["description"]


def test_azure_tells_branches_apart_by_their_first_key() -> None:
    cat = closed({"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1}}, "kind", "lives", title="Cat")
    dog = closed({"kind": {"const": "dog"}, "owner": TEXT}, "kind", "owner", title="Dog")
    schema = closed({"pet": {"anyOf": [cat, dog, {"type": "null"}]}}, "pet")
    lowered = lower(schema, "azure")
    assert lint(lowered.schema, "azure") == []
    for pet in ({"kind": "cat", "lives": 9}, {"kind": "dog", "owner": "Ada"}, None):
        assert lowered.lift(encode(lowered, {"pet": pet})) == {"pet": pet}


def test_other_keys_keep_a_place_by_default_where_not_every_property_is_required() -> None:
    loose = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]}
    exact = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}
    assert "extra_properties" in lower(loose, "openai", open_objects="auto").schema["properties"]
    assert "extra_properties" not in lower(exact, "openai", open_objects="auto").schema["properties"]
    assert "extra_properties" not in lower(loose, "openai", open_objects="closed").schema["properties"]
    assert "extra_properties" in lower(exact, "openai", open_objects="kept").schema["properties"]


def test_only_so_many_objects_stay_open_and_the_outermost_do() -> None:
    inner: dict[str, Any] = {"type": "object", "properties": {"x": TEXT}}
    schema = {"type": "object", "properties": {f"p{at}": {**inner, "title": str(at)} for at in range(30)}}
    lowered = lower(schema, "anthropic", open_objects="auto")
    shut = [loss for loss in lowered.report if (loss.keyword, loss.action) == ("additionalProperties", "closed")]
    assert len(shut) == 15
    assert "extra_properties" in lowered.schema["properties"]


class Colour(enum.StrEnum):
    red = "red"
    green = "green"


class Address(BaseModel):
    street: str
    zip: str | None = Field(None, pattern=r"^\d{5}$")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    owner: Address = Field(description="whose dog it is")


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Everything(BaseModel):
    home: Address = Field(description="where they live")
    work: Address | None = Field(None, description="where they work")
    colour: Optional[Colour] = None  # noqa: UP045 — as people write it
    pet: Cat | Dog = Field(discriminator="kind")
    scores: dict[str, int] = {}
    nested: dict[str, dict[str, list[Address]]] = {}
    place: tuple[int, str, Address] | None = None
    price: Decimal = Decimal(0)
    anything: Any = None
    names: list[str] = Field(min_length=2, max_length=500)
    tree: Node | None = None
    odd: int = Field(alias="the alias!")
    deep: list[list[list[list[dict[str, list[Address]]]]]] = []


@pytest.mark.parametrize("dialect", RULES)
@pytest.mark.parametrize("shape", [Everything, Node, Cat | Dog, Colour | None, dict[str, Any], list[tuple[Cat, Dog]]])
def test_python_types_are_acceptable_to_the_vendors(dialect: str, shape: Any) -> None:
    lowered = lower(Schema.of(shape).document, dialect, open_objects="auto")
    assert lint(lowered.schema, dialect) == []


def test_a_union_is_lifted_by_the_branch_that_was_written_where_a_shared_key_is_optional_in_one() -> None:
    """The branch that may leave the key out must not take objects in which it has the other branch's kind."""
    branches = [
        {"properties": {"state": {"enum": ["PR"]}}},
        {"properties": {"country": {"enum": ["ITA"]}, "state": {}, "postalCode": {}}},
        {"properties": {"country": {}, "state": {"enum": ["ZA"]}, "postalCode": {}}},
        {"properties": {"country": {}, "state": {}, "postalCode": {"type": "string"}}},
    ]
    schema = {"properties": {"address": {"oneOf": branches}, **{f"p{n}": {} for n in range(14)}}}
    lowered = lower(schema, "anthropic", open_objects="auto")
    written = {"country": '"USA"', "state": '"CA"', "postalCode": [], "extra_properties": []}
    lifted = lowered.lift({"address": written, "extra_properties": []})
    assert lifted == {"address": {"country": "USA", "state": "CA"}}
