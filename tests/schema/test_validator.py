from __future__ import annotations

import json
import threading
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.errors import SchemaError
from slipform.schema import Schema, fingerprint
from slipform.schema.validator import compile_schema, violations
from slipform.schema.violations import Violation, excerpt_of, json_path
from tests.conftest import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@pytest.mark.covers("S2-09")
@settings(max_examples=examples(120), deadline=None)
@given(JSON, JSON)
def test_a_fingerprint_names_the_meaning_and_nothing_else(one: Any, other: Any) -> None:
    assert fingerprint({"const": one, "type": "x"}) == fingerprint({"type": "x", "const": shuffled(one)})
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        assert fingerprint({"const": one}) != fingerprint({"const": other})


@pytest.mark.covers("S2-09")
def test_fingerprints_tell_true_from_one_and_know_integers_of_any_size() -> None:
    values: list[Any] = [True, 1, "1", 2**70, 2**70 + 1, None, [], {}, [[]]]
    prints = [fingerprint({"const": value}) for value in values]
    assert len(set(prints)) == len(prints)
    assert fingerprint({"const": (1, 2)}) == fingerprint({"const": [1, 2]})
    assert fingerprint({"b": 2**70, "a": 1}) == fingerprint({"a": 1, "b": 2**70})


@pytest.mark.covers("S2-10")
def test_a_schema_is_compiled_once_whatever_its_key_order() -> None:
    first = compile_schema({"type": "integer", "minimum": 41})
    assert compile_schema({"minimum": 41, "type": "integer"}) is first
    assert compile_schema({"minimum": 41, "type": "integer"}, formats="ignored") is not first


@pytest.mark.covers("S2-10")
def test_many_threads_may_compile_and_explain_at_once() -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(40):
            schema = {"properties": {"a": {"anyOf": [{"minimum": turn % 7}, {"type": "null"}]}}}
            found = violations(schema, {"a": -number - 1})
            if len(found) != 1:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


CASES: list[tuple[Any, Any, str, str, str]] = [
    ({"type": "integer"}, "x", "$", "type", 'expected integer, found "x"'),
    ({"type": ["integer", "null"]}, [], "$", "type", "expected integer or null, found []"),
    ({"enum": ["a", "b"]}, "c", "$", "enum", 'expected "a" or "b", found "c"'),
    ({"const": 3}, 4, "$", "const", "expected 3, found 4"),
    ({"items": {"minimum": 3}}, [3, 1], "$[1]", "minimum", "expected a number >= 3, found 1"),
    ({"maxLength": 2}, "abc", "$", "maxLength", 'expected at most 2 characters, found 3: "abc"'),
    ({"minItems": 1}, [], "$", "minItems", "expected at least 1 item, found 0"),
    ({"pattern": "^a"}, "b", "$", "pattern", 'expected text that matches ^a, found "b"'),
    ({"format": "date"}, "x", "$", "format", 'expected text in the format "date", found "x"'),
    ({"multipleOf": 2}, 3, "$", "multipleOf", "expected a multiple of 2, found 3"),
    ({"uniqueItems": True}, [1, 1], "$", "uniqueItems", "expected items that all differ, found [1,1]"),
    ({"required": ["a"]}, {"b": 1}, "$", "required", 'the key "a" is missing'),
    ({"properties": {"a": {"required": ["b"]}}}, {"a": {}}, "$.a", "required", 'the key "b" is missing'),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "$", "required", 'the key "b" is missing'),
    ({"properties": {"a": {}}, "additionalProperties": False}, {"b c": 1}, '$["b c"]', "additionalProperties",
     'the key "b c" is not allowed; the keys are "a"'),
    ({"additionalProperties": {"type": "integer"}}, {"0": "x"}, '$["0"]', "type", 'expected integer, found "x"'),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "$.ab", "propertyNames",
     'the key "ab" is not allowed: expected at most 1 character, found 2: "ab"'),
    ({"not": {"type": "null"}}, None, "$", "not", "found null, which the schema excludes"),
    ({"properties": {"a": False}}, {"a": 1}, "$.a", "falseSchema", "no value is allowed here"),
    ({"prefixItems": [{}], "items": False}, [1, 2], "$[1]", "items", "this item is not allowed; 1 may be given"),
    ({"contains": {"type": "null"}}, [1], "$", "contains", "expected at least 1 item that fits `contains`, found 0"),
    ({"if": {"type": "integer"}, "then": {"minimum": 2}}, 1, "$", "minimum", "expected a number >= 2, found 1"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 0}]}, 1, "$", "oneOf",
     "fits the alternatives 1 and 2, but must fit exactly one of 2"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", "$", "anyOf", 'expected integer or null, found "x"'),
    ({"anyOf": [{"required": ["a", "b"]}, {"properties": {"c": {"type": "null"}}, "required": ["c"]}]}, {"c": 1}, "$",
     "anyOf", "fits none of the 2 alternatives; nearest is number 2: $.c: expected null, found 1"),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, 1, "$", "type", "expected null, found 1"),
]  # fmt: skip


@pytest.mark.covers("S2-14")
@pytest.mark.parametrize(("schema", "value", "path", "keyword", "message"), CASES, ids=[case[3] for case in CASES])
def test_a_violation_says_where_what_and_why(schema: Any, value: Any, path: str, keyword: str, message: str) -> None:
    (found,) = violations(schema, value)
    assert (found.json_path, found.keyword, found.message) == (path, keyword, message)


@pytest.mark.covers("S2-14")
def test_all_violations_are_found_with_both_paths() -> None:
    schema = {
        "type": "object",
        "properties": {"a/b": {"type": "integer"}, "list": {"items": {"$ref": "#/$defs/n"}}},
        "required": ["x", "y"],
        "$defs": {"n": {"type": "number", "maximum": 3}},
    }
    found = violations(schema, {"a/b": "1", "list": [1, 9, "z"]})
    assert [(one.instance_path, one.schema_path, one.json_path) for one in found] == [
        ("/a~1b", "/properties/a~1b/type", '$["a/b"]'),
        ("/list/1", "/$defs/n/maximum", "$.list[1]"),
        ("/list/2", "/$defs/n/type", "$.list[2]"),
        ("", "/required", "$"),
        ("", "/required", "$"),
    ]
    assert (found[1].expected, found[1].found) == ("a number <= 3", "9")


def test_the_nearest_alternative_is_the_one_with_the_right_tag() -> None:
    def kind(tag: str, **properties: Any) -> dict[str, Any]:
        return {"properties": {"kind": {"const": tag}, **properties}, "required": ["kind", *properties]}

    schema = {"oneOf": [kind("cat"), kind("dog", age={"type": "integer"}, name={"type": "string"})]}
    (found,) = violations(schema, {"kind": "dog", "age": "3"})
    assert [one.json_path for one in found.closest] == ["$.age", "$"]
    assert found.to_dict()["closest"][0]["path"] == "$.age"


def test_messages_stay_short_whatever_the_value() -> None:
    huge = {"text": "x" * 1_000_000, "list": [{"a": "y" * 1000}] * 5000}
    schema = {
        "properties": {"text": {"maxLength": 3, "pattern": "^" + "a" * 5000, "enum": ["z" * 9999] * 50}},
        "required": ["k" * 5000],
        "not": {"type": "object"},
        "anyOf": [{"type": "null"}, {"properties": {"list": {"items": {"type": "null"}}}}],
    }
    found = violations(schema, huge)
    assert len(found) == 6
    assert all(len(one.message) < 2_000 for one in found)


@pytest.mark.parametrize("draft", DRAFTS)
def test_each_draft_reads_its_own_keywords(draft: int) -> None:
    def fits(value: Any, **schema: Any) -> bool:
        return not violations({"$schema": DRAFTS[draft], **schema}, value)

    assert fits(3, minimum=3, exclusiveMinimum=True) is False if draft == 4 else not fits(3, exclusiveMinimum=3)
    assert fits(1, const=2) is (draft == 4)
    assert fits(1, **{"if": {"type": "integer"}, "then": {"minimum": 5}}) is (draft < 7)
    assert fits({"a": 1}, dependentRequired={"a": ["b"]}) is (draft < 2019)
    assert not fits({"a": 1}, dependencies={"a": ["b"]})
    assert fits([1], prefixItems=[{"type": "null"}]) is (draft < 2020)
    assert fits(1, **{"$ref": "#/definitions/a", "type": "null", "definitions": {"a": {}}}) is (draft <= 7)


def test_the_default_draft_is_2020_12() -> None:
    assert violations({"prefixItems": [{"type": "null"}]}, [1]) != []


def test_keywords_that_a_draft_does_not_know_are_not_blamed() -> None:
    schema = {"$schema": DRAFTS[4], "if": {}, "then": {"type": "null"}, "type": "string", "propertyNames": False}
    assert [found.keyword for found in violations(schema, 1)] == ["type"]


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "unevaluatedItems"])
def test_keywords_that_only_mean_something_in_the_whole_are_reported(keyword: str) -> None:
    value: Any = {"a": 1} if keyword.endswith("Properties") else [1]
    assert [found.keyword for found in violations({keyword: False}, value)] == [keyword]


@pytest.mark.parametrize("kind", ["email", "idn-email"])
@pytest.mark.parametrize(
    ("text", "fits"),
    [("ada@example.com", True), ("Ada <ada@example.com>", False), ("<ada@example.com>", False), ('"a b"@c.de', True)],
)
def test_a_mail_address_is_the_address_alone(kind: str, text: str, fits: bool) -> None:
    assert compile_schema({"format": kind}).is_valid(text) is fits


def test_formats_may_be_a_mere_remark() -> None:
    assert compile_schema({"format": "email"}, formats="ignored").is_valid("x")
    assert not compile_schema({"format": "email"}).is_valid("x")


@settings(max_examples=examples(160), deadline=None)
@given(st.data())
def test_violations_agree_with_the_validators_own(data: st.DataObject) -> None:
    leaf = st.sampled_from(
        [
            {"type": "integer"},
            {"type": "string"},
            {"const": 1},
            {"minimum": 2},
            {"maxLength": 1},
            {"enum": [1, "a"]},
            True,
        ]
    )
    inner = st.recursive(
        leaf,
        lambda sub: st.one_of(
            st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from("ab"), sub, max_size=2)}),
            st.fixed_dictionaries({"items": sub, "minItems": st.integers(0, 2)}),
            st.fixed_dictionaries({"allOf": st.lists(sub, min_size=1, max_size=2)}),
            st.fixed_dictionaries({"anyOf": st.lists(sub, min_size=1, max_size=2)}),
            st.fixed_dictionaries({"not": sub, "required": st.just(["a"])}),
            st.fixed_dictionaries({"if": sub, "then": sub, "else": sub}),
        ),
        max_leaves=6,
    )
    schema = {"allOf": [data.draw(inner)]}
    value = data.draw(JSON | st.dictionaries(st.sampled_from("ab"), JSON, max_size=2))
    theirs = jsonschema_rs.validator_for(schema, offline=True).iter_errors(value)
    expected = {(tuple(error.instance_path), error.kind.name) for error in theirs}
    assert {(found.steps, found.keyword) for found in violations(schema, value)} == expected


def test_a_reference_to_an_unknown_document_is_named() -> None:
    with pytest.raises(SchemaError, match=r"https://example\.com/x"):
        Schema.of({"items": {"$ref": "https://example.com/x"}})


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        ((), "$"),
        (("a", 0, "b"), "$.a[0].b"),
        (("0",), '$["0"]'),
        (("a b", 'say "x"', ""), '$["a b"]["say \\"x\\""][""]'),
        (("größe", "_x1", "1x", "a-b"), '$.größe._x1["1x"]["a-b"]'),
    ],
)
def test_json_paths_quote_odd_keys_and_tell_keys_from_places(steps: tuple[str | int, ...], path: str) -> None:
    assert json_path(steps) == path


def test_a_violation_made_by_hand_guesses_its_path() -> None:
    found = Violation("/a/0/b~1c", "", "type", "wrong")
    assert found.json_path == '$.a[0]["b/c"]'
    assert found.to_dict() == {
        "path": '$.a[0]["b/c"]',
        "keyword": "type",
        "message": "wrong",
        "pointer": "/a/0/b~1c",
        "schema_path": "",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a" * 200, '"' + "a" * 80 + '…"'),
        ([1] * 9, "an array of 9 items"),
        ([[1]], "an array of 1 item"),
        ({"a": {"b": 1}}, "an object with 1 key"),
        (None, "null"),
        (10**300, "1" + "0" * 79 + "…"),
        (object(), "a Python object"),
    ],
)
def test_values_are_shown_short(value: Any, text: str) -> None:
    assert excerpt_of(value) == text


@pytest.mark.parametrize(
    "address", ["http://json-schema.org/draft-06/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_a_schema_with_a_metaschemas_id_is_explained_like_any_other(address: str) -> None:
    schema = Schema.of({"$schema": address, "$id": address, "properties": {"bar": {"enum": ["a", "b"]}}})
    assert [violation.instance_path for violation in schema.validate({"bar": "d"})] == ["/bar"]
    assert schema.validate({"bar": "a"}) == []
