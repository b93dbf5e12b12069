"""`resolve`: a growing text against a schema, as a growing value."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.schema.patterns import search
from slipform.text.parser import Parser
from slipform.text.resolve import Match, NoMatch, ResolveCache, resolve
from slipform.text.tracker import Mismatch
from tests.conftest import examples

from .test_parser import cut, is_prefix, nodes, same

Result = Match | NoMatch | Mismatch


def run(schema: Any, chunks: list[str] | str) -> list[Result]:
    """The answer after each chunk, and at the end."""
    parser, cache = Parser(), ResolveCache()
    results: list[Result] = []
    for chunk in chunks:
        parser = parser.feed(chunk)
        results.append(resolve(schema, parser, cache))
    results.append(resolve(schema, parser.finish(), cache))
    return results


def last(schema: Any, text: str) -> Result:
    """The answer to a text that may still go on, the same for any chunking."""
    in_pieces = run(schema, list(text))[-1]
    whole = run(schema, [text])[-1]
    # Why a choice failed may be told less exactly when it came all at once.
    assert whole == in_pieces or (isinstance(whole, Mismatch) and isinstance(in_pieces, Mismatch))
    return in_pieces


def person(**extra: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"],
        **extra,
    }


INNER: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
REFERENCES: dict[str, Any] = {
    "anchor": {"properties": {"a": {"$ref": "#inner"}}, "$defs": {"x": {"$anchor": "inner", **INNER}}},
    "percent": {"properties": {"a": {"$ref": "#/$defs/Box%3Cint%3E"}}, "$defs": {"Box<int>": INNER}},
    "id": {
        "$id": "http://example.test/root.json",
        "properties": {"a": {"$ref": "inner.json"}},
        "$defs": {"x": {"$id": "inner.json", **INNER}},
    },
    "pointer below an id": {
        "properties": {"a": {"$ref": "http://example.test/inner.json#/$defs/deep"}},
        "$defs": {"x": {"$id": "http://example.test/inner.json", "$defs": {"deep": INNER}}},
    },
    "one name under two ids": {
        "$id": "http://example.test/root.json",
        "properties": {"a": {"$ref": "other.json#/$defs/y"}},
        "$defs": {"x": {"$id": "other.json", "$defs": {"y": {"$ref": "#/$defs/z"}, "z": INNER}}, "z": {}},
    },
}
"""The same shape by way of every kind of reference."""


UNION = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
            "required": ["kind", "r"],
        },
        {"type": "object", "properties": {"kind": {"const": "box"}, "w": {"type": "number"}}, "required": ["kind"]},
        {"type": "null"},
    ]
}


@pytest.mark.covers("S3-42")
class TestWhatShows:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("{", {}),
            ('{"name": "A', {"name": "A"}),
            ('{"name": "Ada", "age": 3', {"name": "Ada"}),
            ('{"name": "Ada", "age": 36}', {"name": "Ada", "age": 36}),
            ('{"other": [1, {"x": "y', {"other": [1, {"x": "y"}]}),
        ],
    )
    @pytest.mark.covers("C23")
    def test_properties_show_as_they_arrive_and_unknown_ones_pass(self, text: str, value: Any) -> None:
        assert last(person(), text) == Match(value)

    def test_nothing_shows_before_the_value_begins(self) -> None:
        assert run(person(), ["", " ", "{"])[:3] == [NoMatch(), NoMatch(), Match({})]
        assert last({"type": "integer"}, "12") == Match(12)
        assert run({"type": "integer"}, "12")[1] == NoMatch()

    def test_items_show_one_by_one(self) -> None:
        schema = {"type": "array", "items": person()}
        assert last(schema, '[{"name": "A"}, {"name": "B') == Match([{"name": "A"}, {"name": "B"}])

    @pytest.mark.parametrize("rule", [{"enum": ["red", "green", 1]}, {"const": "red"}])
    def test_a_string_of_an_enum_or_const_shows_only_when_it_has_closed(self, rule: dict[str, Any]) -> None:
        schema = {"properties": {"c": rule}}
        assert last(schema, '{"c": "re') == Match({})
        assert last(schema, '{"c": "red"') == Match({"c": "red"})
        assert last({"items": rule}, '["red", "re') == Match(["red"])
        assert last(rule, '"re') == NoMatch()
        assert last(rule, '"red"') == Match("red")

    def test_a_union_shows_as_soon_as_one_branch_is_left(self) -> None:
        assert last(UNION, '{"w": 1, ') == NoMatch()
        assert last(UNION, '{"w": 1, "kind": "b') == Match({"w": 1})
        assert last(UNION, '{"kind": "bo') == Match({})
        assert last(UNION, '{"kind": ') == NoMatch()
        assert last(UNION, '{"kind": "circle", "r": 1') == Match({"kind": "circle"})
        assert last(UNION, "null") == Match(None)
        assert last({"items": UNION}, '[{"r": 1') == Match([])
        assert last({"items": UNION}, '[{"r": 1, "kind": "circle"') == Match([{"r": 1, "kind": "circle"}])

    def test_a_union_that_stays_open_shows_when_it_closes(self) -> None:
        schema = {"items": {"oneOf": [person(), {"properties": {"x": {"type": "integer"}}}]}}
        assert last(schema, '[{"name": "A"') == Match([])
        assert last(schema, '[{"name": "A"}') == Match([{"name": "A"}])

    def test_branches_that_only_require_different_keys_are_no_choice(self) -> None:
        schema = person(anyOf=[{"required": ["age"]}, {"required": ["name"]}])
        assert last(schema, '{"name": "A') == Match({"name": "A"})
        assert isinstance(last({**schema, "required": []}, "{}"), Mismatch)

    def test_a_string_among_others_is_decided_by_its_quote(self) -> None:
        schema = {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}, {"enum": ["x"]}]}}}
        assert last(schema, '{"a": "b') == Match({"a": "b"})
        assert last({"properties": {"a": {"type": ["string", "null"]}}}, '{"a": "b') == Match({"a": "b"})

    def test_references_may_recur(self) -> None:
        schema = {
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {
                        "v": {"type": "integer"},
                        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                    },
                    "additionalProperties": False,
                }
            },
        }
        assert last(schema, '{"v": 1, "kids": [{"v": 2, "kids": [{"v": 3') == Match(
            {"v": 1, "kids": [{"v": 2, "kids": [{}]}]}
        )
        wrong = last(schema, '{"v": 1, "kids": [{"v": 2, "kids": [{"w": "')
        assert wrong == Mismatch(("kids", 0, "kids", 0, "w"), "is not allowed here")

    @pytest.mark.parametrize(
        "schema",
        [
            {"$ref": "#"},
            {"anyOf": [{"$ref": "#"}, {"type": "object"}]},
            {"$ref": "other.json"},
            {"$ref": "#/nowhere"},
            True,
            {},
        ],
    )
    def test_references_that_say_nothing_let_everything_through(self, schema: Any) -> None:
        assert last(schema, '{"a": [1, "x') == Match({"a": [1, "x"]})

    def test_pointers_are_unescaped(self) -> None:
        schema = {"$ref": "#/$defs/a~1b~0c/0", "$defs": {"a/b~c": [{"type": "integer"}]}}
        assert last(schema, "5") == Match(5)
        assert isinstance(last(schema, '"'), Mismatch)

    @pytest.mark.parametrize("schema", REFERENCES.values(), ids=REFERENCES)
    def test_every_spelling_of_a_reference_is_followed(self, schema: Any) -> None:
        assert last(schema, '{"a": {"n": 7') == Match({"a": {}})
        assert isinstance(last(schema, '{"a": {"n": "x'), Mismatch)


@pytest.mark.covers("C23", "S3-54")
class TestInvalid:
    @pytest.mark.parametrize(
        ("schema", "text", "path", "message"),
        [
            (person(additionalProperties=False), '{"nam": "', ("nam",), "is not allowed here"),
            (person(additionalProperties=False), '{"x": [', ("x",), "is not allowed here"),
            (person(additionalProperties=False), '{"x": 1,', ("x",), "is not allowed here"),
            (person(), '{"name": [', ("name",), "expected string, found array"),
            (person(), '{"age": "', ("age",), "expected integer, found string"),
            (person(), '{"age": 1.5,', ("age",), "expected integer, found number"),
            (person(), '{"age": 1}', (), "lacks the required property 'name'"),
            (person(), "[", (), "expected object, found array"),
            (person(), '"', (), "expected object, found string"),
            (person(), "12 ", (), "expected object, found integer"),
            ({"type": "number"}, "true", (), "expected number, found boolean"),
            ({"items": {"enum": ["red", "blue"]}}, '["red", "ro', (1,), "begins like none of the allowed values"),
            ({"items": {"enum": ["red", 1]}}, '["red", 2,', (1,), "is none of the allowed values"),
            ({"items": {"const": True}}, "[1,", (0,), "is none of the allowed values"),
            ({"items": person()}, '[{"name": "A", "age": null', (0, "age"), "expected integer, found null"),
            (
                {"items": {"items": {"items": person()}}},
                '[[[{"name": 1}',
                (0, 0, 0, "name"),
                "expected string, found integer",
            ),
            ({"maxItems": 2}, "[1, 2, 3,", (), "has more than 2 items"),
            ({"minItems": 2}, "[1]", (), "has fewer than 2 items"),
            ({"items": {"minProperties": 1}}, "[{}", (0,), "has fewer than 1 properties"),
            ({"properties": {"a": {"maxLength": 3}}}, '{"a": "abcd', ("a",), "begins like none of the allowed values"),
            ({"items": {"minimum": 3}}, "[2,", (0,), "is outside its limits"),
            ({"items": {"exclusiveMaximum": 3}}, "[3,", (0,), "is outside its limits"),
            ({"items": {"minLength": 3}}, '["ab"', (0,), "is outside its limits"),
            ({"prefixItems": [{"type": "string"}], "items": False}, '["a", [', (1,), "is not allowed here"),
            ({"items": [{"type": "string"}], "additionalItems": False}, '["a", 1,', (1,), "is not allowed here"),
            (
                {"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
                '{"xa": 1,',
                ("xa",),
                None,
            ),
            ({"allOf": [person(), {"required": ["age"]}]}, '{"name": "A"}', (), "lacks the required property 'age'"),
            ({"items": UNION}, '[{"kind": "co', (0, "kind"), None),
            ({"items": UNION}, '["', (0,), None),
            ({"items": UNION}, '[{"kind": "circle"}', (0,), "lacks the required property 'r'"),
            ({"properties": {"a": False}}, '{"a": "', ("a",), None),
            ({"enum": [{"a": [1]}]}, '{"a": [2]}', (), "is none of the allowed values"),
            (False, "1 ", (), "is not allowed here"),
        ],
    )
    def test_it_is_noticed_as_soon_as_no_continuation_can_be_valid(
        self, schema: Any, text: str, path: tuple[str | int, ...], message: str | None
    ) -> None:
        results = run(schema, list(text))[:-1]
        assert not any(isinstance(result, Mismatch) for result in results[:-1])
        final = results[-1]
        assert isinstance(final, Mismatch)
        assert final.path == path
        assert message is None or final.message == message
        whole = run(schema, [text])[0]
        assert isinstance(whole, Mismatch)

    def test_it_stays_invalid(self) -> None:
        """Even a key given again does not mend it, although its last value counts."""
        schema, parser, cache = person(), Parser().feed('{"name": 1, '), ResolveCache()
        wrong = resolve(schema, parser, cache)
        assert isinstance(wrong, Mismatch)
        assert resolve(schema, parser.feed('"name": "A"}'), cache) == wrong

    def test_deep_values_do_not_need_the_stack(self) -> None:
        schema = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}
        deep = "[" * 5000 + "]" * 5000
        parser = Parser(max_depth=5000).feed("[").feed(deep[1:])
        assert isinstance(resolve(schema, parser, ResolveCache()), Match)
        wrong = Parser(max_depth=5000).feed("[" * 5000 + "1" + "]" * 5000)
        assert isinstance(resolve(schema, wrong, ResolveCache()), Mismatch)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 2.0, "", "a", "ab", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abx"), inner, max_size=3),
    max_leaves=12,
)
leaf_schemas = st.sampled_from(
    [
        {},
        True,
        False,
        {"type": "string"},
        {"type": "integer"},
        {"type": ["number", "null"]},
        {"type": "boolean"},
        {"enum": ["a", "ab", 1, None, [], {"a": 1}]},
        {"const": "ab"},
        {"const": 2},
        {"maxLength": 1},
        {"minLength": 2, "minimum": 0},
        {"maxItems": 1},
        {"minItems": 1},
        {"exclusiveMinimum": -1, "maximum": 2},
        {"required": ["a"]},
        {"minProperties": 1, "maxProperties": 2},
        {"$ref": "#"},
        {"$ref": "#/$defs/d"},
    ]
)


def bigger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    keywords = {
        "type": st.sampled_from(["object", "array", ["object", "string"], ["array", "null", "integer"]]),
        "properties": st.dictionaries(st.sampled_from("abx"), inner, max_size=3),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "x|b"]), inner, max_size=2),
        "items": inner,
        "prefixItems": some,
        "required": st.lists(st.sampled_from("abx"), max_size=2, unique=True),
        "anyOf": some,
        "allOf": some,
    }
    return st.fixed_dictionaries({}, optional=keywords)


schemas = st.recursive(leaf_schemas, bigger, max_leaves=8)


@settings(max_examples=examples(200), deadline=None)
@given(schemas, leaf_schemas, json_values, st.lists(st.integers(0, 80)))
def test_the_verdict_on_a_complete_text_is_the_validators(
    schema: Any, other: Any, value: Any, places: list[int]
) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"d": other if "$ref" not in str(other) else True}}
        if "$ref" in schema or any(
            str(branch).startswith("{'$ref'") for k in ("anyOf", "allOf") for branch in schema.get(k, [])
        ):
            return  # a reference that leads back to itself before any child: validators disagree
    valid = jsonschema_rs.is_valid(schema, value)
    results = run(schema, cut(json.dumps(value), places))
    if valid:
        assert not any(isinstance(result, Mismatch) for result in results)
        final = results[-1]
        assert isinstance(final, Match)
        assert same(final.value, value)
        assert all(is_prefix(result.value, value) for result in results if isinstance(result, Match))
    else:
        assert isinstance(results[-1], Mismatch)


@pytest.mark.covers("S3-73", "S3-74", "S3-77")
@settings(max_examples=examples(160), deadline=None)
@given(schemas, json_values, st.lists(st.integers(0, 80)), st.booleans())
def test_what_did_not_change_is_the_same_object(schema: Any, value: Any, places: list[int], read_too: bool) -> None:
    schema = {"items": {"anyOf": [schema, True]}, "type": "array"}
    parser, cache = Parser(), ResolveCache()
    results = []
    for chunk in cut(json.dumps([value, value]), places):
        parser = parser.feed(chunk)
        if read_too:
            assert parser.value is not None
        result = resolve(schema, parser, cache)
        if isinstance(result, Match):
            results.append((result.value, json.dumps(result.value)))
    assert results[-1][0] is parser.value
    assert all(json.dumps(shown) == dumped for shown, dumped in results)
    assert_identity_kept([shown for shown, _ in results])


def assert_identity_kept(shown: list[Any]) -> None:
    for before, after in pairwise(shown):
        old, new = nodes(before), nodes(after)
        for path, node in old.items():
            if isinstance(node, dict | list) and same(new[path], node):
                assert new[path] is node


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("padding", [0, 40])
def test_reading_the_parsers_value_too_disturbs_neither(width: int, padding: int) -> None:
    schema = {"items": {"items": {"anyOf": [{"enum": ["red", "green"]}, {"items": {"const": "x"}}, UNION]}}}
    value = [[*["red"] * padding, "green"], ["red", ["x", "x"], {"kind": "box", "w": 1}], *[["red"]] * padding, [["x"]]]
    parser, cache = Parser(), ResolveCache()
    read, resolved = [], []
    for chunk in cut(json.dumps(value), range(0, 5000, width))[1:]:
        parser = parser.feed(chunk)
        read.append(parser.value)
        result = resolve(schema, parser, cache)
        assert isinstance(result, Match)
        resolved.append(result.value)
    assert_identity_kept(read)
    assert_identity_kept(resolved)
    assert resolved[-1] is read[-1]
    assert same(read[-1], value)


def test_a_container_shown_in_full_and_cut_closes_as_the_full_one() -> None:
    schema = {"items": {"items": {"enum": ["red"]}}}
    parser, cache = Parser().feed('[["red", "red'), ResolveCache()
    full = parser.value
    assert resolve(schema, parser, cache) == Match([["red"]])
    parser = parser.feed('"]').feed(", []")
    assert parser.value[0] is full[0]


def test_an_enum_held_back_changes_nothing_until_it_closes() -> None:
    schema = {"items": {"enum": ["red", "green"]}}
    parser, cache = Parser().feed("[" + '"red", ' * 50), ResolveCache()
    first = resolve(schema, parser, cache)
    assert isinstance(first, Match)
    for char in '"green':
        parser = parser.feed(char)
        assert len(parser.value) == 51
        assert resolve(schema, parser, cache) is first
    second = resolve(schema, parser.feed('"'), cache)
    assert isinstance(second, Match)
    assert second.value == ["red"] * 50 + ["green"]
    assert first.value == ["red"] * 50


@pytest.mark.covers("S3-76", "C34")
def test_closed_parts_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work done is counted: it may not grow with what has closed before."""
    keys: list[str] = []

    def counting(pattern: str, key: str) -> bool | None:
        keys.append(key)
        return search(pattern, key)

    monkeypatch.setattr("slipform.schema.keywords.search", counting)
    rows = [{f"n{n}": f"n{n}", "age": n} for n in range(300)]
    schema = {"type": "array", "items": {"patternProperties": {"^n": {"type": "string"}}, "additionalProperties": True}}
    parser, cache = Parser(), ResolveCache()
    result: Result = NoMatch()
    for chunk in cut(json.dumps(rows), range(0, 9000, 5)):
        parser = parser.feed(chunk)
        result = resolve(schema, parser, cache)
    assert result == Match(rows)
    assert keys == [key for row in rows for key in row]


@pytest.mark.covers("S3-77")
def test_the_cache_starts_over_by_itself() -> None:
    cache = ResolveCache()
    early = Parser().feed('{"name": "A')
    late = early.feed('da", "age": 1}')
    assert resolve(person(), late, cache) == Match({"name": "Ada", "age": 1})
    assert resolve(person(), early, cache) == Match({"name": "A"})
    assert resolve(person(), early.feed('l"'), cache) == Match({"name": "Al"})
    assert isinstance(resolve({"type": "array"}, late, cache), Mismatch)
    assert resolve({"enum": [1, {"name": "Ada", "age": 1}]}, late, cache) == Match({"name": "Ada", "age": 1})


def test_snapshots_may_be_resolved_late() -> None:
    schema = {"properties": {"c": {"enum": ["red"]}, "list": {"items": UNION}}}
    text = '{"c": "red", "list": [{"kind": "box", "w": 1}, null]}'
    taken = [Parser()]
    for char in text:
        taken.append(taken[-1].feed(char))
    late_cache = ResolveCache()
    assert [resolve(schema, parser, late_cache) for parser in taken[1:]] == run(schema, text)[:-1]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": 5, "properties": [], "required": "a", "items": 3, "enum": 1, "patternProperties": {"(": True}},
        {"anyOf": "x", "allOf": 3, "$ref": 7, "additionalProperties": 1, "minimum": "a", "maxItems": True},
        {"anyOf": [{"anyOf": [{"const": n * 10 + m} for m in range(10)]} for n in range(10)]},
    ],
)
def test_a_schema_that_makes_no_sense_lets_everything_through(schema: Any) -> None:
    assert last(schema, '{"a": [1') == Match({"a": []})


def test_a_schema_that_is_made_anew_for_each_call_is_the_same_schema() -> None:
    cache, parser = ResolveCache(), Parser()
    plans = set()
    for piece in ('{"mood": "ha', 'ppy"', "}"):
        parser = parser.feed(piece)
        found = resolve({"properties": {"mood": {"enum": ["happy", "sad"]}}}, parser, cache)
        plans.add(id(cache.plan))
    assert found == Match({"mood": "happy"})
    assert len(plans) == 1
    before = cache.plan
    resolve({"properties": {"mood": {"const": 1}}}, parser, cache)
    resolve({"properties": {"mood": {"const": True}}}, parser, cache)
    assert cache.plan is not before
    assert cache.plan is not None
    assert cache.plan.schema == {"properties": {"mood": {"const": True}}}
    assert cache.plan.schema["properties"]["mood"]["const"] is True
