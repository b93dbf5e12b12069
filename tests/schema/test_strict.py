from __future__ import annotations

from typing import Any

import pytest

from slipform.errors import AdditionalPropertiesNotFalse, RequiredMissingProperties, SchemaError, StrictSchemaError
from slipform.schema import JsonSchemaSpec, ResponseFormat, strict_findings, strict_preflight

OPEN: dict[str, Any] = {"type": "object"}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}


def first(schema: Any) -> StrictSchemaError | None:
    try:
        strict_preflight(schema)
    except StrictSchemaError as error:
        return error
    return None


def closed(**properties: Any) -> dict[str, Any]:
    return {**CLOSED, "properties": properties, "required": list(properties)}


@pytest.mark.covers("S4-31", "S4-34", "S4-35")
@pytest.mark.parametrize("value", [True, None, {}, {"type": "string"}, 0, "false"])
def test_anything_but_false_for_additional_properties_is_a_breach(value: Any) -> None:
    assert first({**OPEN, "additionalProperties": value}) == AdditionalPropertiesNotFalse("$")
    assert str(first(OPEN)) == "strict-mode schema requires `additionalProperties: false` at $"


@pytest.mark.covers("S4-32", "S4-36", "S4-37")
def test_every_property_must_be_required() -> None:
    found = first({**CLOSED, "properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]})
    assert found == RequiredMissingProperties("$", ["a", "c"])
    assert str(found) == "strict-mode schema at $ declares properties not in `required`: a, c"


@pytest.mark.covers("S4-38")
@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (OPEN, "$"),
        (closed(user=OPEN), "$.properties.user"),
        ({"type": "array", "items": OPEN}, "$.items"),
        ({"anyOf": [{}, OPEN]}, "$.anyOf[1]"),
        ({"allOf": [OPEN]}, "$.allOf[0]"),
        ({"oneOf": [OPEN]}, "$.oneOf[0]"),
        (closed(a={"type": "array", "items": {"anyOf": [OPEN]}}), "$.properties.a.items.anyOf[0]"),
    ],
)
def test_the_path_says_where(schema: Any, path: str) -> None:
    found = first(schema)
    assert found is not None
    assert found.path == path


@pytest.mark.covers("S4-39")
def test_the_first_error_follows_the_documents_order() -> None:
    both = {"type": "object", "properties": {"a": OPEN}, "anyOf": [OPEN]}
    assert isinstance(first(both), AdditionalPropertiesNotFalse)
    assert isinstance(first({**both, "additionalProperties": False}), RequiredMissingProperties)
    down = first({**both, "additionalProperties": False, "required": ["a"]})
    assert down == AdditionalPropertiesNotFalse("$.properties.a")
    assert first({**closed(a={}), "anyOf": [OPEN]}) == AdditionalPropertiesNotFalse("$.anyOf[0]")
    two = closed(a=closed(b={"anyOf": [OPEN]}), c=OPEN)
    assert first(two) == AdditionalPropertiesNotFalse("$.properties.a.properties.b.anyOf[0]")


@pytest.mark.covers("S4-40")
@pytest.mark.parametrize("schema", [True, False, None, 3, "x", [OPEN]])
def test_what_is_no_object_passes(schema: Any) -> None:
    assert first(schema) is None


@pytest.mark.covers("S4-41")
@pytest.mark.parametrize("schema", [{"type": "string"}, {"properties": {"a": OPEN}}, {"type": ["object"]}, {}])
def test_only_the_word_object_triggers_the_object_rules(schema: Any) -> None:
    assert first(schema) is None


@pytest.mark.covers("S4-42")
def test_items_are_walked_only_under_type_array() -> None:
    assert first({"items": OPEN}) is None
    assert first({"type": "array", "items": OPEN}) is not None
    assert first({"type": "array", "items": [OPEN]}) is None


@pytest.mark.covers("S4-43")
@pytest.mark.parametrize("kind", ["string", "object", "array", None])
def test_compositions_are_walked_whatever_the_type(kind: str | None) -> None:
    schema = {**CLOSED, "type": kind, "oneOf": [OPEN], "allOf": [OPEN], "anyOf": [OPEN]}
    assert first(schema) == AdditionalPropertiesNotFalse("$.anyOf[0]")
    assert first({**schema, "anyOf": {}}) == AdditionalPropertiesNotFalse("$.allOf[0]")


@pytest.mark.covers("S4-44")
@pytest.mark.parametrize("required", [None, "a", {"a": 1}, [1, None]])
def test_required_that_is_no_list_of_names_counts_as_empty(required: Any) -> None:
    assert first({**closed(a={}), "required": required}) == RequiredMissingProperties("$", ["a"])


@pytest.mark.covers("S4-45")
@pytest.mark.parametrize("properties", [None, [], "a"])
def test_properties_that_are_no_object_are_skipped(properties: Any) -> None:
    assert first({**CLOSED, "properties": properties}) is None


@pytest.mark.covers("S4-46")
def test_errors_are_values_and_one_kind() -> None:
    assert AdditionalPropertiesNotFalse("$.a") == AdditionalPropertiesNotFalse("$.a")
    assert AdditionalPropertiesNotFalse("$.a") != AdditionalPropertiesNotFalse("$.b")
    assert RequiredMissingProperties("$", ["a"]) != RequiredMissingProperties("$", ["b"])
    assert len({AdditionalPropertiesNotFalse("$"), AdditionalPropertiesNotFalse("$")}) == 1
    assert issubclass(RequiredMissingProperties, StrictSchemaError)
    assert issubclass(StrictSchemaError, SchemaError)


@pytest.mark.covers("S4-29", "S4-30")
def test_the_preflight_of_a_response_format_is_a_no_op_unless_strict() -> None:
    spec = JsonSchemaSpec("user", OPEN)
    ResponseFormat.best_effort(spec).strict_preflight()
    with pytest.raises(AdditionalPropertiesNotFalse) as caught:
        ResponseFormat.strict(spec).strict_preflight()
    assert caught.value.path == "$"


def test_very_deep_schemas_are_walked_without_recursion() -> None:
    schema: dict[str, Any] = OPEN
    for _ in range(20_000):
        schema = {"anyOf": [schema]}
    found = first(schema)
    assert found is not None
    assert len(strict_findings(schema)) == 1


def paths(schema: Any) -> list[str]:
    return [found.path for found in strict_findings(schema)]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$defs": {"a": OPEN}}, ["$.$defs.a"]),
        ({"$ref": "#/definitions/a", "definitions": {"a": OPEN}}, ["$.definitions.a"]),
        ({"type": ["object", "null"]}, ["$"]),
        ({"prefixItems": [{}, OPEN]}, ["$.prefixItems[1]"]),
        ({"items": OPEN}, ["$.items"]),
        ({"additionalProperties": OPEN}, ["$.additionalProperties"]),
        ({"not": OPEN}, ["$.not"]),
        ({"if": OPEN, "then": OPEN, "else": OPEN}, ["$.if", "$.then", "$.else"]),
        ({"properties": {"a": OPEN, "b": OPEN}}, ["$.properties.a", "$.properties.b"]),
        ({"$ref": "#/x/0", "x": [OPEN]}, ["$.x[0]"]),
        ({"$ref": "#/nowhere"}, []),
        (True, []),
    ],
)
def test_findings_look_everywhere(schema: Any, expected: list[str]) -> None:
    assert paths(schema) == expected


def test_findings_list_both_breaches_of_one_object() -> None:
    assert strict_findings({"type": "object", "properties": {"a": {}}}) == [
        AdditionalPropertiesNotFalse("$"),
        RequiredMissingProperties("$", ["a"]),
    ]


def test_findings_end_on_cycles_and_look_once() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    assert paths({"$ref": "#/$defs/node", "$defs": {"node": node}}) == ["$.$defs.node"] * 2
    assert paths({"$ref": "#/x/y", "x": {"y": {**OPEN, "not": {"$ref": "#/x/y"}}}}) == ["$.x.y"]


@pytest.mark.parametrize("schema", [OPEN, closed(a=OPEN), closed(a={}), {"anyOf": [OPEN]}, {"type": "string"}])
def test_the_findings_hold_what_the_preflight_raises(schema: Any) -> None:
    found = first(schema)
    assert strict_findings(schema)[:1] == ([found] if found else [])
