"""Schemas and values from strangers: refused or answered within a bound, never a hang, a crash or a fetch."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from slipform.errors import SchemaError
from slipform.schema.limits import (
    MAX_SCHEMA_BYTES,
    canonical_text,
    is_large,
    not_json,
    too_deep,
)
from slipform.schema.patterns import pattern_weight, survey
from slipform.schema.validator import compile_schema, violations


def nested(depth: int, inner: Any = None) -> Any:
    value: Any = [] if inner is None else inner
    for _ in range(depth):
        value = [value]
    return value


def fan(keyword: str, levels: int) -> dict[str, Any]:
    """Each definition refers twice to the next one: 2^levels checks from as many lines."""
    definitions: dict[str, Any] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "integer"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def refusal(schema: dict[str, Any]) -> str:
    with pytest.raises(SchemaError) as caught:
        compile_schema(schema)
    return str(caught.value)


@pytest.mark.covers("S2-71")
def test_a_schema_over_the_size_limit_is_refused_with_both_numbers() -> None:
    said = refusal({"enum": ["x" * 1000 + str(number) for number in range(5_100)]})
    assert "limit is 5,000,000" in said


@pytest.mark.covers("S2-71")
def test_a_schema_just_under_the_size_limit_is_answered() -> None:
    schema = {"enum": ["x" * 1000 + str(number) for number in range(4_500)]}
    assert len(canonical_text(schema)) < MAX_SCHEMA_BYTES
    assert compile_schema(schema).is_valid("x" * 1000 + "7")


def test_ten_thousand_levels_of_schema_are_refused_without_recursion() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"properties": {"a": schema}}
    assert "levels deep" in refusal(schema)


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"items": {"type": "array"}}], ids=str)
def test_a_deep_value_is_answered_where_the_schema_does_not_follow_it(schema: dict[str, Any]) -> None:
    assert violations(schema, nested(100_000)) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"$ref": "#"}},
        {"items": {"$dynamicRef": "#x"}, "$dynamicAnchor": "x"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/a"}}]}}},
        {"minItems": 2},
        {"const": 1},
    ],
    ids=str,
)
def test_a_deep_value_is_a_violation_where_the_schema_would_follow_it_or_show_it(schema: dict[str, Any]) -> None:
    (found,) = violations(schema, nested(100_000))
    assert found.keyword == "depth"
    assert len(found.instance_path) < 1_000


def test_a_deep_value_is_safe_in_a_thread_with_a_small_stack() -> None:
    answers: list[bool] = []
    size = threading.stack_size(1 << 20)
    try:
        schema = compile_schema({"items": {"$ref": "#"}})
        thread = threading.Thread(target=lambda: answers.append(schema.is_valid(nested(900))))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert answers == [True]


def test_values_of_ordinary_depth_are_followed_by_recursive_schemas() -> None:
    schema = {"type": "array", "items": {"$ref": "#"}}
    assert violations(schema, nested(400)) == []
    (found,) = violations(schema, nested(60, "x"))
    assert found.json_path == "$" + "[0]" * 60
    assert found.message == 'expected array, found "x"'


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/0", "$defs": {str(i): {"allOf": [{"$ref": f"#/$defs/{j}"} for j in "01"]} for i in range(2)}},
        {"not": {"$ref": "#"}},
        {"properties": {"x": {"$id": "http://a.example/x", "allOf": [{"$ref": "http://a.example/x"}]}}},
        {"properties": {"x": {"$anchor": "here", "anyOf": [{"$ref": "#here"}]}}},
    ],
    ids=lambda schema: str(schema)[:50],
)  # fmt: skip
def test_a_reference_loop_that_never_enters_the_value_is_refused(schema: dict[str, Any]) -> None:
    assert "leads back to itself" in refusal(schema)


@pytest.mark.parametrize("schema", [{"$id": "http://["}, {"$ref": "http://["}, {"$defs": {"a": {"$id": "http://["}}}])
def test_addresses_that_are_none_do_not_crash(schema: dict[str, Any]) -> None:
    assert "http://[" in refusal({"properties": {"x": {"$ref": "#"}}, **schema})


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_reference_bombs_are_counted_before_they_are_compiled(keyword: str) -> None:
    assert "multiply" in refusal(fan(keyword, 30))
    assert violations(fan("anyOf", 5), 1) == []


def test_a_bomb_that_goes_off_level_by_level_is_counted_too() -> None:
    definitions: dict[str, Any] = {
        f"d{level}": {"properties": {"x": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2}}} for level in range(30)
    }
    definitions["d30"] = {"type": "integer"}
    assert "multiply" in refusal({"$ref": "#/$defs/d0", "$defs": definitions})


def test_a_bomb_hidden_behind_ids_and_anchors_is_counted_too() -> None:
    definitions: dict[str, Any] = {
        f"d{level}": {"$anchor": f"a{level}", "allOf": [{"$ref": f"other#a{level + 1}"}] * 2} for level in range(30)
    }
    definitions["d30"] = {"$anchor": "a30", "type": "integer"}
    schema = {"$ref": "other#a0", "$defs": {"o": {"$id": "other", "$defs": definitions}}}
    assert "multiply" in refusal(schema)


def test_a_bomb_under_a_property_with_a_keywords_name_is_counted_too() -> None:
    definitions: dict[str, Any] = {
        f"d{level}": {"$anchor": f"a{level}", "allOf": [{"$ref": f"#a{level + 1}"}] * 2} for level in range(30)
    }
    definitions["d30"] = {"$anchor": "a30", "type": "integer"}
    assert "multiply" in refusal({"properties": {"default": {"$ref": "#a0", "$defs": definitions}}})


def test_absurd_places_in_references_do_not_crash() -> None:
    assert "array index" in refusal({"$ref": "#/anyOf/" + "9" * 5_000, "anyOf": [{}]})


def test_wide_schemas_without_fanning_references_are_no_bombs() -> None:
    definitions = {
        f"d{i}": {"properties": {f"p{j}": {"$ref": f"#/$defs/d{i + 1}"} for j in range(9)}} for i in range(20)
    }
    definitions["d20"] = {"properties": {}}
    schema = {"$ref": "#/$defs/d0", "$defs": definitions}
    assert compile_schema(schema).is_valid({"p0": {"p1": {}}})


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 50 + "!"),
        (r"^(a|a)*\1$", "a" * 50 + "!"),
        (r"(a*)*\1b", "a" * 60),
        (r"^(?=(a+)+$)", "a" * 50 + "!"),
    ],
)
def test_catastrophic_patterns_end(pattern: str, text: str) -> None:
    (found,) = violations({"pattern": pattern}, text)
    assert found.keyword == "pattern"


def test_patterns_that_would_fill_the_memory_are_refused() -> None:
    assert "patterns" in refusal(
        {"properties": {f"p{i}": {"pattern": f"^[a-z]{{{i}}}(x{{900}}){{90}}$"} for i in range(100)}}
    )
    assert "too large" in refusal({"pattern": "((a{100}){100}){100}"})


def test_ordinary_patterns_weigh_little() -> None:
    assert pattern_weight(r"^[A-Z]{3}-\d{4}$") < 500
    assert pattern_weight("(") == 0
    survey([{"pattern": r"^([\w.-]{1,64})@([\w-]{1,63}\.){1,8}[a-z]{2,63}$"}])


def test_a_hundred_thousand_properties_are_answered() -> None:
    schema = {"properties": {f"p{number}": {"type": "integer"} for number in range(100_000)}}
    compiled = compile_schema(schema)
    assert compiled.is_valid({"p5": 1})
    assert not compiled.is_valid({"p5": "x"})


def test_two_hundred_thousand_enum_values_are_answered_with_a_short_message() -> None:
    (found,) = violations({"enum": list(range(200_000))}, -1)
    assert len(found.message) < 400
    assert "more" in found.message


@pytest.mark.parametrize("again", [{"$ref": "#/$defs/node"}, {"$dynamicRef": "#node"}], ids=["ref", "dynamic"])
def test_a_recursive_union_explains_a_deep_error_in_bounded_work(again: dict[str, Any]) -> None:
    kinds = "abcdefgh"
    node = {
        kind: {
            "type": "object",
            "properties": {"of": again, "kind": {"const": kind}},
            "required": ["of", "kind"],
        }
        for kind in kinds
    }
    union = {"$dynamicAnchor": "node", "anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds] + [{"type": "integer"}]}
    value: Any = "wrong"
    for _ in range(12):
        value = {"kind": "h", "of": value}
    (found,) = violations({"$ref": "#/$defs/node", "$defs": {"node": union, **node}}, value)
    assert "$" + ".of" * 12 + ': expected object or integer, found "wrong"' in found.message


def test_explaining_many_large_unions_ends() -> None:
    schema = {"items": {"anyOf": [{"type": "object", "required": [f"k{number}"]} for number in range(9_000)]}}
    found = violations(schema, [{"a": 1}] * 5_000)
    assert 0 < len(found) < 100


def test_a_large_tree_of_alternatives_is_counted_without_any_reference() -> None:
    assert "multiply" in refusal({"items": {"allOf": [{"type": "integer"}] * 20_000}})
    assert "multiply" in refusal({"patternProperties": {f"^p{number}": {"type": "null"} for number in range(20_000)}})


def test_many_violations_of_a_large_value_do_not_copy_it() -> None:
    schema = {"required": [f"k{number}" for number in range(5_000)]}
    found = violations(schema, {"data": list(range(50_000))})
    assert len(found) == 1_000


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9/a.json", "https://example.com/a", "file:///etc/passwd", "other.json"]
)
def test_foreign_references_are_named_and_never_fetched(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    said = refusal({"properties": {"a": {"$ref": uri}}})
    assert uri in said
    assert "fetched" in said


def test_known_resources_may_be_referred_to() -> None:
    schema = {"$ref": "https://example.com/a#/$defs/n"}
    known = {"https://example.com/a": {"$defs": {"n": {"type": "integer"}}}}
    compiled = compile_schema(schema, resources=known)
    assert compiled.is_valid(1)
    assert not compiled.is_valid("x")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"const": "\ud800"}, "surrogate U+D800, at $.const"),
        ({"properties": {"\udfff": {}}}, "surrogate"),
        ({"properties": {1: {}}}, "text as key, found 1, at $.properties"),
        ({"enum": [{1}]}, "Python set, at $.enum[0]"),
        ({"maximum": float("nan")}, "found nan, at $.maximum"),
        ({"const": float("inf")}, "found inf"),
        ({"type": "float"}, "the types are array, boolean"),
        ({"pattern": "("}, "regular expression"),
        ({"required": "a"}, "`required` cannot be \"a\""),
        ({"$ref": "#/$defs/none"}, "'#/$defs/none', which it does not define"),
        ({"$schema": "https://example.com/mine"}, "not a known draft"),
    ],
)  # fmt: skip
def test_a_schema_at_fault_is_told_what_and_where(schema: dict[str, Any], words: str) -> None:
    assert words in refusal(schema)


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({"a": {1, 2}}, "$.a", "Python set"),
        ({"a": b"x"}, "$.a", "Python bytes"),
        ({1: 2}, "$", "text as key"),
        ({"a": ["\ud83d"]}, "$.a[0]", "surrogate U+D83D"),
        ({"a": float("nan")}, "$.a", "found nan"),
    ],
)
def test_a_value_that_is_no_json_is_a_violation(value: Any, path: str, words: str) -> None:
    (found,) = violations({"additionalProperties": {"type": "array", "items": {"type": "integer"}}}, value)
    assert found.keyword == "json"
    assert found.json_path == path
    assert words in found.message


def test_integers_of_any_size_are_json() -> None:
    big = 10**400
    assert violations({"const": big}, big) == []
    (found,) = violations({"maximum": 10}, big)
    assert len(found.message) < 200
    assert list(not_json({"a": [big, (1, 2), None, True, 1.5]})) == []
    assert not too_deep({"a": big})


def test_large_work_is_told_from_small() -> None:
    assert is_large(1_000_000)
    assert is_large(b"x" * 2_000_000)
    assert not is_large("{}")
