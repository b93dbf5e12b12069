"""Every rule of the linter finds its breach: what the lowering is held to is itself held to something."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schema.lowering_helpers import closed
from tests.schema.lowering_linter import RULES, lint

TEXT = {"type": "string"}


def inside(schema: Any, **more: Any) -> dict[str, Any]:
    """An object that holds the schema and breaks no rule itself."""
    return closed({"a": schema}, "a", **more)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = closed({"a": TEXT}, "a")
    for _ in range(levels - 1):
        schema = inside(schema)
    return schema


NODE = closed({"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "next")
BREACHES: list[tuple[str, dict[str, Any], str]] = [
    ("openai", inside({"allOf": [TEXT]}), "keywords"),
    ("openai", inside({"type": "string", "default": "x"}), "keywords"),
    ("anthropic", inside({"type": "integer", "minimum": 1}), "keywords"),
    ("anthropic", inside({"oneOf": [TEXT]}), "keywords"),
    ("gemini", inside({"type": "string", "pattern": "a"}), "keywords"),
    ("azure", inside({"type": "string", "maxLength": 3}), "keywords"),
    ("openai", inside({"type": "string", "format": "uri"}), "formats"),
    ("anthropic", inside({"type": "string", "format": "regex"}), "formats"),
    ("openai", {"anyOf": [closed({"a": TEXT}, "a")]}, "root_is_an_object"),
    ("anthropic", {"type": "array", "items": TEXT}, "root_is_an_object"),
    ("gemini", inside({"type": "text"}), "known_types"),
    ("openai", inside({"type": []}), "known_types"),
    ("gemini", inside({"description": "anything"}), "every_node_has_a_type"),
    ("anthropic", inside({"type": "array"}), "arrays_have_items"),
    ("gemini", inside({"type": "array"}), "arrays_have_items_or_places"),
    ("anthropic", inside({"anyOf": []}), "nothing_is_empty"),
    ("anthropic", {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}, "objects_are_closed"),
    ("openai", closed({"a": TEXT}), "all_are_required"),
    ("gemini", {"type": "object", "properties": {"a": TEXT}, "required": ["b"]}, "required_are_listed"),
    ("anthropic", inside({"$ref": "https://example.com/a"}), "references_lead_somewhere"),
    ("anthropic", inside({"$ref": "#", "description": "a note"}), "references_stand_alone"),
    ("gemini", inside({"$ref": "#/$defs/x", "title": "a note"}, **{"$defs": {"x": TEXT}}), "references_have_only"),
    ("gemini", inside({"$ref": "#"}), "references_have_only"),
    ("anthropic", inside({"type": "string", "pattern": "(?=a)"}), "patterns_are_regular"),
    ("openai", inside({"type": "string", "pattern": r"(a)\1"}), "patterns_are_regular"),
    ("openai", nested(11), "ten_levels"),
    ("azure", nested(6), "five_levels"),
    ("gemini", inside({"type": "array", "items": inside({"type": "array", "items": nested(1)})}), "four_levels"),
    ("openai", closed({f"p{at}": TEXT for at in range(5_001)}, *[f"p{at}" for at in range(5_001)]), "size"),
    ("openai", inside({"type": "integer", "enum": list(range(1_001))}), "size"),
    ("openai", inside({"type": "string", "enum": ["x" * 120_001]}), "size"),
    ("openai", inside({"type": "string", "enum": [f"{at:070}" for at in range(251)]}), "long_enums"),
    ("openai", inside({"type": "string", "enum": ["a", 1]}), "enums_fit_their_type"),
    (
        "azure",
        inside({"anyOf": [closed({"k": TEXT}, "k"), closed({"k": TEXT, "b": TEXT}, "k", "b")]}),
        "first_keys_differ",
    ),
    ("anthropic", inside({"allOf": [{"$ref": "#"}], "description": "a note"}), "no_all_of_around_a_reference"),
    ("anthropic", inside({"type": ["string", "null"], "enum": ["a", None]}), "enums_have_one_type"),
    ("anthropic", inside({"enum": [{"a": 1}]}), "enums_are_scalars"),
    ("anthropic", inside({"type": "array", "items": TEXT, "minItems": 2}), "few_min_items"),
    ("anthropic", closed({"two words": TEXT}, "two words"), "names_are_plain"),
    ("anthropic", closed({"x" * 65: TEXT}, "x" * 65), "names_are_plain"),
    ("anthropic", closed({f"p{at}": TEXT for at in range(25)}), "few_optionals_and_unions"),
    (
        "anthropic",
        closed({f"p{at}": {"type": ["string", "null"]} for at in range(17)}, *[f"p{at}" for at in range(17)]),
        "few_optionals_and_unions",
    ),
    ("gemini", inside({"type": "boolean", "enum": [True]}), "enums_are_strings_or_numbers"),
    ("gemini", inside({"type": "string", "enum": [""]}), "enums_have_no_empty_string"),
    ("gemini", inside({"type": "object", "additionalProperties": TEXT}), "objects_have_properties"),
    ("gemini", inside({"anyOf": [TEXT], "required": []}), "only_objects_have_properties"),
    ("gemini", inside({"type": "array", "items": TEXT, "maxItems": 951}), "few_items_at_most"),
    ("gemini", inside({"type": "array", "items": nested(1), "maxItems": 5}), "arrays_of_objects_are_unbounded"),
    ("anthropic", inside({"$ref": "#/$defs/node"}, **{"$defs": {"node": NODE}}), "no_recursion"),
    ("gemini", inside({"$ref": "#/$defs/node"}, **{"$defs": {"node": NODE}}), "recursion_is_optional"),
]


@pytest.mark.parametrize(("dialect", "schema", "name"), BREACHES)
def test_a_breach_is_found_by_its_rule(dialect: str, schema: dict[str, Any], name: str) -> None:
    assert any(found.startswith(name) for found in lint(schema, dialect)), lint(schema, dialect)


def test_every_rule_has_a_source_and_a_breach() -> None:
    named = {rule.name for rules in RULES.values() for rule in rules}
    assert all(rule.source for rules in RULES.values() for rule in rules)
    assert {name for name in named if not any(name.startswith(shown) for _, _, shown in BREACHES)} == set()


@pytest.mark.parametrize("dialect", RULES)
def test_a_plain_object_breaks_no_rule(dialect: str) -> None:
    assert lint(closed({"name": TEXT, "tags": {"type": "array", "items": TEXT}}, "name", "tags"), dialect) == []
