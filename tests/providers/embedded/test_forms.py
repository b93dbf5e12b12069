"""Schemas said in plain alternatives, turned into their opposites, and closed up where no value fits."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipform.addons.local.decoding.forms import DecodingForm, keyword_negations, merged, other_words
from slipform.addons.local.decoding.patterns import are_apart, without_inner_anchors
from slipform.addons.local.decoding.rewrite import rewrite_schema
from slipform.addons.local.decoding.weaken import closed_up, prune
from slipform.schema.keywords import intersection
from tests.conftest import examples
from tests.schema.test_keywords import ITEMS, KEYS, OBJECTS, PARTS, VALUES


def test_nothing_changes_in_a_schema_that_compiles() -> None:
    schema = {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}
    assert rewrite_schema(schema).schema == schema


def test_alternatives_that_cannot_be_are_not_kept() -> None:
    forms = DecodingForm({})
    assert forms.of({"type": "string", "allOf": [{"type": "integer"}]}) == []
    assert forms.of({"enum": ["a", 1], "type": "string"}) == [{"enum": ["a"], "type": ["string"]}]
    assert forms.of({"required": ["a"], "not": {"required": ["a"]}, "type": "object"}) == []
    assert not forms.narrower


def test_what_cannot_be_said_plainly_is_known_to_be_narrower() -> None:
    for schema in (
        {"type": "number", "not": {"multipleOf": 3}},
        {"$ref": "https://example.com/elsewhere"},
        {"type": "object", "unevaluatedProperties": False, "not": {"required": ["a"]}},
        {"anyOf": [{"required": [name]} for name in "abcdefghijklmnopqrstuvwxyz0123"], "type": "object"},
    ):
        forms = DecodingForm({})
        forms.of(schema)
        assert forms.narrower, schema


def test_endless_references_are_given_up() -> None:
    root = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a", "not": {"$ref": "#/$defs/a"}}
    forms = DecodingForm(root)
    assert forms.of(root) == []
    assert forms.narrower


@pytest.mark.parametrize("words", [["a"], ["ab", "abc", "b"], [""], ["^x", "-", "]\\"], ["word" * 40, "other"]])
def test_other_words_are_none_of_the_words(words: list[str]) -> None:
    pattern = jsonschema_rs.validator_for({"pattern": other_words(words)})
    chance = random.Random(3)
    letters = sorted({*"".join(words), "z", "\n"})
    drawn = ["".join(chance.choices(letters, k=chance.randint(0, 4))) for _ in range(200)]
    assert not any(pattern.is_valid(word) for word in words)
    if sum(map(len, words)) < 100:
        assert all(pattern.is_valid(word) for word in drawn if word not in words)


@pytest.mark.parametrize(
    "other",
    [
        {"type": "integer"},
        {"const": 3},
        {"enum": ["x", True, None]},
        {"minimum": 2.5},
        {"maximum": 4},
        {"exclusiveMinimum": 2},
        {"exclusiveMaximum": 7},
        {"minLength": 2},
        {"maxLength": 3},
        {"pattern": "^[a-c]+$"},
        {"pattern": "\\d"},
        {"pattern": "^a+b"},
        {"minItems": 1},
        {"maxItems": 2},
        {"required": ["a", "b"]},
        {"minProperties": 1},
        {"maxProperties": 1},
    ],
    ids=json.dumps,
)
def test_what_is_outside_a_schema_is_not_valid_under_it(other: dict[str, Any]) -> None:
    values: list[Any] = [
        None,
        True,
        False,
        0,
        1,
        2,
        2.5,
        3,
        4.5,
        8,
        "",
        "x",
        "abc",
        "a1",
        "zzzz",
        "aab",
        [],
        [1],
        [1, 2, 3],
    ]
    values += [{}, {"a": 1}, {"a": 1, "b": 2}, {"c": 1}]
    full = jsonschema_rs.validator_for(other)
    negations = list(keyword_negations({}, other))
    assert negations
    for negation in negations:
        negated = jsonschema_rs.validator_for(negation)
        assert [value for value in values if negated.is_valid(value) and full.is_valid(value)] == []


def test_patterns_are_told_apart() -> None:
    assert are_apart("^\\.[a-z]", "^\\.[A-Z]")
    assert not are_apart("^[a-z]+$", "^a")
    assert not are_apart("^(?=a)", "^b"), "what the engine cannot read is not known to be apart"


def test_anchors_inside_a_pattern_are_dropped_with_their_alternative() -> None:
    assert without_inner_anchors("^(^|a)b($|c|d)e$") == "^(a)b(c|d)e$"
    assert without_inner_anchors("^(a|$|b)c") == "^(a|b)c"
    assert without_inner_anchors("^a$") is None


def test_a_map_of_patterns_is_merged_with_what_says_nothing_of_its_names() -> None:
    named = {"patternProperties": {"^x": {"type": "integer"}}}
    assert intersection(dict(named), {"additionalProperties": {}, "properties": {"xa": {"minimum": 3}}})[
        "properties"
    ] == {"xa": {"allOf": [{"type": "integer"}, {"minimum": 3}]}}
    assert "patternProperties" not in intersection(dict(named), {"additionalProperties": False})
    assert merged({"allOf": [named, {"additionalProperties": {"type": "null"}}]}, {}) is None


def test_parts_that_no_value_fits_are_closed_up() -> None:
    assert closed_up({"items": False}) == {"items": False, "maxItems": 0}
    assert closed_up({"items": False, "minItems": 1}) is False
    assert closed_up({"prefixItems": [{}, False, {}]}) == {"prefixItems": [{}], "maxItems": 1}
    assert closed_up({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [False]}}}) is False
    assert closed_up({"patternProperties": {"^a": False, "b": {}}}) == {"additionalProperties": False}


def test_a_part_of_a_tuple_is_left_out_with_what_follows_it() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "null"}, {"pattern": "(?=a)"}], "minItems": 1}
    weak = {"type": "array", "prefixItems": [{"type": "null"}, {}], "minItems": 1}
    shorter, done = prune(schema, weak, [("prefixItems", "1", "pattern")])
    assert done
    assert shorter == {"type": "array", "prefixItems": [{"type": "null"}], "minItems": 1, "maxItems": 1}


def combined(plain: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas that say something of these with `not`, choices, conditions and dependencies, two levels deep."""

    def within(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        two = st.lists(inner, min_size=2, max_size=2)
        more = st.one_of(
            st.fixed_dictionaries({"not": inner}),
            *(st.fixed_dictionaries({word: two}) for word in ("oneOf", "anyOf", "allOf")),
            st.fixed_dictionaries({"if": inner, "then": inner}, optional={"else": inner}),
            st.fixed_dictionaries({"dependentSchemas": st.fixed_dictionaries({"a": inner})}),
        )
        return st.builds(lambda one, other: {**one, **other} if isinstance(one, dict) else one, inner, more)

    return within(st.one_of(plain, within(plain)))


@pytest.mark.parametrize(
    ("plain", "values"),
    [
        (PARTS, VALUES | st.sampled_from([2.5, True, ""])),
        (OBJECTS, st.dictionaries(KEYS, VALUES, max_size=3) | VALUES),
        (ITEMS, st.lists(VALUES, max_size=3) | VALUES),
    ],
    ids=["scalars", "objects", "arrays"],
)
def test_every_value_of_an_alternative_is_valid(plain: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
    @given(combined(plain), st.lists(values, max_size=10))
    def check(schema: Any, instances: list[Any]) -> None:
        allowed = jsonschema_rs.Draft202012Validator(schema)
        for form in DecodingForm(schema if isinstance(schema, dict) else {}).of(schema):
            held = jsonschema_rs.Draft202012Validator(form)
            assert [each for each in instances if held.is_valid(each) and not allowed.is_valid(each)] == []

    check()
