"""A schema → a grammar that compiles."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from bench.local_instances import is_admitted

from slipform.addons.local.decoding import patterns
from slipform.addons.local.decoding.constrain import Constraint, any_object, constrain
from slipform.addons.local.decoding.patterns import grammar_problem
from slipform.errors import LocalModelError, UnsupportedSchemaError
from tests.conftest import PERSON


def schema_in(constraint: Constraint) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(constraint.rule.partition("%json ")[2])
    return schema


def test_a_plain_schema_is_held_exactly() -> None:
    constraint = constrain(PERSON, 512)
    assert constraint.exact
    assert constraint.grammar.startswith("%llguidance")


def test_texts_and_lists_are_as_long_as_the_schema_lets_them_be_whatever_the_tokens() -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}}
    for tokens in (60, 2_000):
        assert schema_in(constrain(schema, tokens))["properties"] == schema["properties"]


def test_the_callers_own_bounds_stay() -> None:
    schema = {"type": "array", "minItems": 40, "items": {"type": "string", "maxLength": 7}}
    held = schema_in(constrain(schema, 64))
    assert held["minItems"] == 40
    assert held["items"]["maxLength"] == 7


def test_digits_are_bounded() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}}}
    held = schema_in(constrain(schema, 256))["properties"]
    assert held["n"]["maximum"]
    assert held["x"]["multipleOf"]


@pytest.mark.parametrize("pattern", [r"^[^\\]+$", r'^[^"/]+$', r"^([^\\]|x)+$", r"^[^\\\s]+$"])
def test_what_a_class_excludes_is_not_admitted_as_its_escape(pattern: str) -> None:
    constraint = constrain({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}, 64)
    assert [text for text in ("ab", "aéb", 'a"b', "a\\b") if is_admitted(constraint, {"a": text})] == [
        text for text in ("ab", "aéb", 'a"b', "a\\b") if re.search(pattern, text)
    ]


def test_properties_named_like_keywords_are_left_alone() -> None:
    schema = {"type": "object", "properties": {"type": {"const": "string"}, "items": {"enum": [1, 2]}}}
    bounded = schema_in(constrain(schema, 64))
    assert bounded["properties"] == schema["properties"]


def test_open_objects_are_closed_without_shutting_out_what_a_sibling_asks_for() -> None:
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert schema_in(constrain(plain, 64))["additionalProperties"] is False
    combined = {"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"properties": {"b": True}}]}
    closed = schema_in(constrain(combined, 64))
    assert list(closed["properties"]) == ["a", "b"]
    assert closed["additionalProperties"] is False


def test_a_required_key_that_is_not_listed_is_still_asked_for() -> None:
    constraint = constrain({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]}, 64)
    assert constraint.exact
    assert list(schema_in(constraint)["properties"]) == ["a", "b"]


@pytest.mark.covers("S0-10")
def test_what_decoding_cannot_hold_is_named_with_its_place_and_left_to_the_validator() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "integer", "minimum": 3}, "uniqueItems": True},
            "b": {"type": "string", "pattern": "^(?!x)[a-z]+$"},
            "c": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 1}]},
        },
    }
    constraint = constrain(schema, 128)
    assert sorted(warning.path or "" for warning in constraint.warnings) == [
        "/properties/a/uniqueItems",
        "/properties/b/pattern",
        "/properties/c",
    ]
    held = schema_in(constraint)["properties"]
    assert held["a"]["items"]["minimum"] == 3
    assert held["b"]["pattern"] == "^[a-z]+$"
    assert len(held["c"]["anyOf"]) == 2


def test_equal_offences_in_several_places_are_all_found() -> None:
    odd = {"type": "string", "pattern": r"^(a)\1$"}
    constraint = constrain({"type": "object", "properties": {"a": odd, "b": odd, "c": {"type": "integer"}}}, 64)
    assert [warning.path for warning in constraint.warnings] == ["/properties/a/pattern", "/properties/b/pattern"]


def test_a_format_that_validators_do_not_know_weakens_nothing() -> None:
    assert constrain({"type": "object", "properties": {"a": {"type": "string", "format": "colour"}}}, 64).exact
    assert not constrain({"type": "object", "properties": {"a": {"type": "string", "format": "regex"}}}, 64).exact


@pytest.mark.parametrize("schema", [{"enum": []}, {"type": "string", "minLength": 5, "maxLength": 3}])
def test_what_nothing_can_satisfy_is_refused_before_any_call(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchemaError, match="another provider"):
        constrain(schema, 64)


def test_references_lead_somewhere_under_the_wrapper() -> None:
    schema = {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": "integer"}}}
    constraint = constrain(schema, 64)
    assert constraint.exact
    assert constraint.wrapped


def test_the_engine_itself_is_asked_because_it_takes_less_than_the_python_package_does() -> None:
    """The engine's llguidance knows no `format: uri`, and would have gone on with no constraint at all."""
    constraint = constrain({"type": "object", "properties": {"link": {"type": "string", "format": "uri"}}}, 64)
    assert grammar_problem(constraint.grammar) is None
    assert schema_in(constraint)["properties"]["link"]["pattern"]
    assert constraint.exact


def test_definitions_that_speak_of_an_object_with_others_are_merged_with_them() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "oneOf": [{"$ref": "#/definitions/a"}, {"$ref": "#/definitions/b"}],
        "definitions": {
            "a": {"required": ["kind"], "properties": {"kind": {"enum": ["a"]}}},
            "b": {"required": ["kind"], "properties": {"kind": {"enum": ["b"]}}},
        },
    }
    branches = schema_in(constrain(schema, 64))["anyOf"]
    assert [list(branch["properties"]) for branch in branches] == [["name", "kind"]] * 2
    assert [set(branch["required"]) for branch in branches] == [{"name", "kind"}] * 2


def test_json_mode_is_an_object_of_any_shape() -> None:
    assert schema_in(any_object(64))["type"] == "object"


def node(child: dict[str, Any], **properties: Any) -> dict[str, Any]:
    """A schema of nodes, each with a child that is one, too."""
    return {
        "$defs": {"n": {"type": "object", "properties": {"c": child, "v": {"type": "integer"}, **properties}}},
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/n"}},
        "required": ["root"],
        "additionalProperties": False,
    }


AGAIN = {"$ref": "#/$defs/n"}


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize(
    "schema",
    [
        node({**AGAIN, "minProperties": 1}),
        node({**AGAIN, "required": ["v"]}),
        node({**AGAIN, "required": ["c"]}),
        node({"allOf": [AGAIN, {"required": ["c"]}]}),
        node({**AGAIN, "required": ["c", "d"]}, d={**AGAIN, "required": ["c", "d"]}),
    ],
    ids=["counted", "a value", "itself", "itself, in allOf", "itself, twice"],
)
def test_a_reference_to_itself_with_something_beside_it_ends(schema: dict[str, Any], certain: bool) -> None:
    constraint = constrain(schema, 300, exact=certain)
    assert grammar_problem(constraint.grammar) is None
    assert '"root"' in constraint.rule, "the rest of the schema is held"


@pytest.mark.parametrize(("keyword", "bound"), [("minimum", 2**63), ("exclusiveMaximum", -(10**20))])
def test_a_bound_that_the_engine_cannot_count_to_is_dropped_alone(keyword: str, bound: int) -> None:
    number = {"type": "integer", keyword: bound}
    schema = {"type": "object", "properties": {"a": number, "b": number, "name": {"type": "string"}}, "required": ["a"]}
    constraint = constrain(schema, 300)
    assert [warning.path for warning in constraint.warnings] == [f"/properties/{name}/{keyword}" for name in ("a", "b")]
    assert '"name": {"type": "string"' in constraint.rule


@pytest.mark.slow
def test_a_schema_too_deep_for_the_engine_still_gives_json_of_the_right_kind() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(80):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    constraint = constrain(schema, 300)
    assert grammar_problem(constraint.grammar) is None
    assert not constraint.exact
    assert "recursion limit" in constraint.warnings[0].message


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where another engine decodes, with the Python package's grammars."""

    def absent() -> str:
        raise LocalModelError("not installed")

    monkeypatch.setattr(patterns, "engine_folder", absent)
    patterns._checker.cache_clear()
    yield
    patterns._checker.cache_clear()


@pytest.mark.usefixtures("no_engine")
def test_without_the_engine_the_python_package_judges_grammars() -> None:
    assert grammar_problem("%llguidance {}\nstart: /a/") is None
    problem = grammar_problem("%llguidance {}\nstart: nothing")
    assert problem is not None
    assert "nothing" in problem


@pytest.mark.usefixtures("no_engine")
def test_without_either_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(LocalModelError, match="needs llguidance") as raised:
        grammar_problem("%llguidance {}\nstart: /a/")
    assert raised.value.hint == "Run `pip install 'slipform[local]'`."


@pytest.mark.parametrize(
    "text", [{"pattern": '"' * 200}, {"pattern": r'^(?:"[^"]*"|\\.)*$', "minLength": 50}], ids=["quotes", "a string"]
)
def test_a_pattern_of_escapes_that_is_too_much_is_dropped_and_the_rest_still_held(text: dict[str, Any]) -> None:
    properties = {"x": {"type": "string", **text}, "y": {"type": "string"}}
    constraint = constrain({"type": "object", "properties": properties, "required": ["x", "y"]}, 300)
    assert grammar_problem(constraint.grammar) is None
    assert [warning.path for warning in constraint.warnings] == ["/properties/x/pattern"]
    held = schema_in(constraint)["properties"]
    assert "pattern" not in held["x"]
    assert held["y"] == {"type": "string"}
