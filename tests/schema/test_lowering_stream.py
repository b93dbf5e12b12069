"""Lifting while the answer streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipform.errors import SchemaError
from slipform.schema.lowering.lift_plan import PENDING
from slipform.schema.lowering.lowered import lower
from tests.conftest import examples
from tests.schema.lowering_encode import encode
from tests.schema.lowering_strategies import schemas, validator, values


def growing(value: Any) -> Iterator[Any]:
    """The value as a streaming parser shows it: containers grow, scalars appear when they are whole."""
    if isinstance(value, dict):
        out: dict[str, Any] = {}
        yield dict(out)
        for name, each in value.items():
            for partial in growing(each):
                yield {**out, name: partial}
            out[name] = each
    elif isinstance(value, list):
        items: list[Any] = []
        yield []
        for each in value:
            for partial in growing(each):
                yield [*items, partial]
            items.append(each)
    else:
        yield value


def grew(before: Any, after: Any) -> bool:
    """Whether nothing shown before was taken back."""
    if before is PENDING:
        return True
    if isinstance(before, dict):
        return isinstance(after, dict) and all(name in after and grew(before[name], after[name]) for name in before)
    if isinstance(before, list):
        return isinstance(after, list) and len(before) <= len(after) and all(map(grew, before, after))
    return bool(before == after) and type(before) is type(after)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "cohere", "gemini"])
@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_nothing_shown_is_taken_back_and_the_end_is_the_whole(dialect: str, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(values(schema, schema))
    if not validator(schema).is_valid(value):
        return
    lowered = lower(schema, dialect)
    try:
        sent = encode(lowered, value)
    except SchemaError:
        return
    stream = lowered.lift_stream()
    shown = PENDING
    for partial in growing(sent):
        now = stream(partial)
        assert grew(shown, now)
        shown = now
    assert grew(shown, value)
    assert json.dumps(stream(sent, done=True)) == json.dumps(lowered.lift(sent))


def test_an_absent_property_is_never_shown_as_null() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["b"],
        "additionalProperties": False,
    }
    stream = lower(schema, "openai").lift_stream()
    assert [stream({}), stream({"a": None}), stream({"a": None, "b": 1}, done=True)] == [{}, {}, {"b": 1}]


def test_a_pair_appears_once_its_key_is_whole_and_its_value_grows() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}}
    stream = lower(schema, "openai").lift_stream()
    steps = [
        {},
        {"value": []},
        {"value": [{"key": "a"}]},
        {"value": [{"key": "a", "value": []}]},
        {"value": [{"key": "a", "value": [1]}]},
        {"value": [{"key": "a", "value": [1, 2]}, {"key": "b"}]},
    ]
    assert [stream(step) for step in steps] == [PENDING, {}, {}, {"a": []}, {"a": [1]}, {"a": [1, 2]}]


def test_json_text_appears_when_it_is_whole() -> None:
    schema = {"type": "object", "properties": {"x": {}, "y": {"type": "integer"}}, "required": ["x", "y"]}
    stream = lower(schema, "openai").lift_stream()
    assert stream({"x": '{"a": 1'}) == {}
    assert stream({"x": '{"a": 1}', "y": 2}) == {"x": {"a": 1}, "y": 2}


def test_an_unchanged_part_is_the_same_object() -> None:
    item = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    schema = {"type": "object", "properties": {"list": {"type": "array", "items": item}}, "required": ["list"]}
    stream = lower(schema, "openai").lift_stream()
    first = stream({"list": [{"a": 1}, {"a": None}]})
    second = stream({"list": [{"a": 1}, {"a": None}, {"a": 2}]})
    assert second["list"][0] is first["list"][0]
    assert stream({"list": [{"a": 1}, {"a": None}, {"a": 2}]}) is second


def test_a_union_waits_for_the_key_that_tells() -> None:
    branches = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "size": {"type": size}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for kind, size in (("small", "integer"), ("large", ["integer", "null"]))
    ]
    schema = {"type": "object", "properties": {"it": {"anyOf": branches}}, "required": ["it"]}
    stream = lower(schema, "openai").lift_stream()
    assert stream({"it": {}}) == {}
    assert stream({"it": {"kind": "large"}}) == {}
    assert stream({"it": {"kind": "large", "size": None}}) == {"it": {"kind": "large", "size": None}}


def test_a_dialect_that_takes_any_schema_shows_the_growing_value_as_it_is() -> None:
    stream = lower({"type": "array"}, "identity").lift_stream()
    shown = [stream(each) for each in growing([1, {"a": "b"}])]
    assert shown == [*growing([1, {"a": "b"}])]
    assert stream([1, {"a": "b"}], done=True) == [1, {"a": "b"}]
