"""The token budget, shared out over a schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipform.addons.local.decoding.budget import AddedBounds, limits_for, narrow, no_limits
from slipform.addons.local.decoding.constrain import constrain
from slipform.addons.local.decoding.fit import fit
from slipform.addons.local.decoding.forms import merged
from slipform.addons.local.decoding.patterns import bounded, twins
from slipform.schema import Schema
from tests.conftest import examples
from tests.schema.test_keywords import ITEMS, KEYS, OBJECTS, VALUES

TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["name"],
}
WORLD = next(
    (
        path
        for folder in Path(__file__).resolve().parents
        if (path := folder / "shared" / "schemas" / "real_world.jsonl").is_file()
    ),
    None,
)


def accepts(schema: dict[str, Any], value: object) -> bool:
    return Schema[object]("any", schema).validate(value) == []


def chain(depth: int) -> dict[str, Any]:
    return {"name": "a", "children": [chain(depth - 1)]} if depth else {"name": "a"}


def test_recursion_ends_where_the_tokens_do() -> None:
    small, large = fit(TREE, 60).schema, fit(TREE, 600).schema
    assert accepts(small, chain(0))
    assert not accepts(small, chain(6))
    assert accepts(large, chain(1))
    assert not accepts(large, chain(12))


def test_optional_properties_make_room_in_their_order_and_required_ones_stay() -> None:
    names = [f"field_{number}" for number in range(30)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names[-2:]}
    fitted = fit(schema, 120)
    kept = list(fitted.schema["properties"])
    assert kept[-2:] == names[-2:]
    assert kept[:-2] == names[: len(kept) - 2]
    assert 2 < len(kept) < 30
    assert ("properties", "field_27") in fitted.left_out
    assert fit(schema, 2000).left_out == ()


def test_branches_that_do_not_fit_are_left_out_while_one_does() -> None:
    long = {"type": "array", "items": {"type": "string"}, "minItems": 90}
    schema = {"anyOf": [long, {"type": "null"}]}
    assert fit(schema, 64).schema["anyOf"] == [{"type": "null"}]
    assert len(fit(schema, 4000).schema["anyOf"]) == 2


@settings(deadline=None, max_examples=examples(120))
@given(
    names=st.lists(st.sampled_from("abcdef"), min_size=1, unique=True),
    required=st.sets(st.sampled_from("abcdef"), max_size=3),
    tokens=st.integers(20, 400),
    value=st.dictionaries(st.sampled_from("abcdefg"), st.text(max_size=30) | st.lists(st.integers()), max_size=5),
)
def test_what_fits_is_valid_under_the_whole_schema(
    names: list[str], required: set[str], tokens: int, value: dict[str, Any]
) -> None:
    kinds: list[dict[str, Any]] = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {}]
    schema = {
        "type": "object",
        "properties": {name: kinds[at % 3] for at, name in enumerate(names)},
        "patternProperties": {"^[c-d]": {"type": "string", "minLength": 2}},
        "required": sorted(required),
        "minProperties": 1,
    }
    if accepts(fit(schema, tokens).schema, value):
        assert accepts(schema, value)


@pytest.mark.parametrize("how", ["fitted", "narrowed", "open"])
@settings(deadline=None, max_examples=examples(400), suppress_health_check=list(HealthCheck))
@given(
    drawn=st.one_of(
        st.tuples(st.just("array"), ITEMS, st.lists(st.lists(VALUES, max_size=3), max_size=8)),
        st.tuples(st.just("object"), OBJECTS, st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=8)),
    ),
    least=st.integers(0, 3),
    tokens=st.sampled_from([30, 100, 500]),
)
def test_whatever_is_given_room_is_valid_under_the_schema(how: str, drawn: Any, least: int, tokens: int) -> None:
    kind, keywords, values = drawn
    schema = {"type": kind, **keywords, **({"minProperties": least} if kind == "object" else {})}
    limits = no_limits(schema) if how == "open" else limits_for(schema, tokens)
    made = fit(schema, tokens).schema if how == "fitted" else narrow(schema, limits)
    allowed = jsonschema_rs.Draft202012Validator(schema)
    held = jsonschema_rs.Draft202012Validator(made)
    assert [each for each in values if held.is_valid(each) and not allowed.is_valid(each)] == []


def test_an_object_that_needs_more_keys_than_it_lists_is_not_closed_to_those() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 2}
    assert not accepts(fit(schema, 200).schema, {"a": 1})


ITEM = st.sampled_from(
    [{"type": "string"}, {"type": "integer"}, {"$ref": "#/$defs/words"}, {"const": "x"}, True, False]
)
LATEST, OLD = "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"
WORDS = {"$defs": {"words": {"type": "array", "items": {"type": "string"}}}}


@settings(deadline=None, max_examples=examples(200))
@given(
    first=st.lists(ITEM, min_size=1, max_size=4),
    rest=ITEM,
    least=st.integers(0, 5),
    more=st.integers(0, 3),
    tokens=st.integers(20, 400),
    values=st.lists(st.lists(st.sampled_from(["x", "long " * 9, 3, ["x"], []]), max_size=6), max_size=12),
    old=st.booleans(),
)
def test_a_fitted_tuple_is_within_the_tuple(
    first: list[Any], rest: Any, least: int, more: int, tokens: int, values: list[Any], old: bool
) -> None:
    parts = {"items": first, "additionalItems": rest} if old else {"prefixItems": first, "items": rest}
    schema = {
        "$schema": OLD if old else LATEST,
        "type": "array",
        **parts,
        "minItems": least,
        "maxItems": least + more,
        **WORDS,
    }
    fitted = fit(schema, tokens).schema
    assert [each for each in values if accepts(fitted, each) and not accepts(schema, each)] == []


@pytest.mark.parametrize(
    ("first", "rest", "draft"), [("prefixItems", "items", LATEST), ("items", "additionalItems", OLD)]
)
def test_what_follows_a_tuple_has_room_too(first: str, rest: str, draft: str) -> None:
    parts: dict[str, Any] = {first: [{"const": "head"}], rest: {"$ref": "#/$defs/words"}}
    schema = {"$schema": draft, "type": "array", **parts, **WORDS}
    fitted = fit(schema, 300)
    assert accepts(fitted.schema, ["head", ["a"], ["b"]])
    assert 2 <= fitted.schema["maxItems"] < 40
    assert fitted.left_out == ()
    asked = fit({**schema, "minItems": 4}, 40).schema
    assert (asked["minItems"], asked["maxItems"]) == (4, 4), "what is required stays, whatever it costs"
    assert constrain(schema, 300).exact


def test_parts_of_a_tuple_without_room_are_named() -> None:
    many = {"type": "array", "prefixItems": [{"type": "string"}] * 40}
    assert fit(many, 200).left_out == (("prefixItems",),)
    assert len(fit(many, 200).schema["prefixItems"]) == fit(many, 200).schema["maxItems"] < 40
    long = {"type": "array", "items": {"type": "string"}, "minItems": 99}
    assert fit({"type": "array", "prefixItems": [{"type": "string"}], "items": long}, 100).left_out == (("items",),)


@pytest.mark.skipif(WORLD is None, reason="the real-world schemas are not here")
def test_real_schemas_are_only_ever_narrowed() -> None:
    assert WORLD
    rows = [json.loads(line) for line in WORLD.read_text().splitlines()][::9]
    for row in rows:
        schema = {key: value for key, value in row["schema"].items() if key not in ("$id", "id")}
        narrowed = fit(schema, 2000).schema
        for test in row["tests"]:
            if accepts(narrowed, test["data"]):
                assert accepts(schema, test["data"]), row["id"]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "null"}}}]}, {"a": None}, {}),
        (
            {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
            {"b": 1},
            {"c": 1},
        ),
        ({"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"type": "integer", "maximum": 9}}}, 5, 6),
        (
            {
                "allOf": [
                    {"properties": {"a": {}}, "additionalProperties": False},
                    {"properties": {"a": {"type": "integer"}, "b": {}}},
                ]
            },
            {"a": 1},
            {"b": 1},
        ),
    ],
)
def test_schemas_of_one_value_become_one(schema: dict[str, Any], good: object, bad: object) -> None:
    one = merged(schema, schema)
    assert one is not None
    for value in (good, bad):
        assert accepts(one, value) == accepts(schema, value)


def test_what_one_schema_cannot_say_is_left_alone() -> None:
    assert merged({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, {}) is None
    assert merged({"allOf": [{"type": "null"}, {"type": "string"}]}, {}) is None


def test_patterns_with_characters_that_json_escapes_are_held_by_two() -> None:
    both = twins(r"^[A-Z]:\\.*$")
    assert both
    for pattern in both:
        assert accepts({"pattern": pattern}, "C:\\temp")
    assert not all(accepts({"pattern": pattern}, "C:\ue000") for pattern in both)
    assert twins(r"^\d+$") is None
    held = constrain({"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\\d+$"}}}, 64)
    assert held.exact
    assert '"allOf"' in held.rule


@pytest.mark.parametrize("pattern", ["^[a-z]+$", "^x-", ".*", "[0-9]{2,}", "^(a|b)*c$", "a|b"])
def test_a_bounded_pattern_is_within_the_pattern(pattern: str) -> None:
    narrow = bounded(pattern, 6)
    for text in ("a", "abc", "x-", "x-abc", "12", "123456789", "ababc", "z" * 40, ""):
        if accepts({"pattern": narrow}, text):
            assert accepts({"pattern": pattern}, text)


def test_a_bound_that_was_reached_is_said_once_with_its_places() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string", "maxLength": 3}}}
    fitted = fit(schema, 64)
    bounds = AddedBounds(fitted.schema, schema, fitted.left_out, 64)
    longest = fitted.schema["properties"]["a"]["maxLength"]
    assert bounds.warnings(json.dumps({"a": "x" * (longest - 1), "b": "abc"})) == ()
    (said,) = bounds.warnings(json.dumps({"a": "x" * longest, "b": "abc"}))
    assert said.code == "answer_bounded"
    assert "/a" in said.message
    assert "64 tokens" in said.message
    assert bounds.warnings('{"a": "cut o') == ()


def test_digits_at_their_bound_are_said_too() -> None:
    constraint = constrain({"type": "object", "properties": {"n": {"type": "number"}}}, 64)
    assert constraint.reached('{"n": 1.5}') == ()
    assert constraint.reached('{"n": 0.123456789}')
    assert constraint.reached('{"n": 999999999999999}')


def test_optional_parts_without_room_are_named() -> None:
    schema = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(30)}}
    fitted = fit(schema, 100)
    (said,) = AddedBounds(fitted.schema, schema, fitted.left_out, 100).warnings("{}")
    assert "/properties/field_29" in said.message or "more" in said.message
