"""Invariants of lowering, over schemas and values drawn at random."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipform.errors import SchemaError, UnsupportedSchemaError
from slipform.schema.lowering.lift import lift_deep
from slipform.schema.lowering.lowered import Lowered, lower
from tests.conftest import examples
from tests.schema.lowering_encode import encode
from tests.schema.lowering_linter import lint
from tests.schema.lowering_strategies import JSON, schemas, validator, values

DIALECTS = ["openai", "anthropic", "gemini", "cohere", "llguidance"]
LINTED = ("openai", "azure", "anthropic", "gemini")

modest = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def lowered_or_impossible(schema: dict[str, Any], value: Any, dialect: str, **options: Any) -> Lowered | None:
    """The lowered schema; None only where the schema admits no value, of which `value` is a witness."""
    try:
        return lower(schema, dialect, **options)
    except UnsupportedSchemaError:
        assert not validator(schema).is_valid(value)
        return None


@pytest.mark.covers("C21")
@pytest.mark.parametrize("dialect", DIALECTS)
@modest
@given(data=st.data())
def test_every_value_the_caller_accepts_comes_back_unchanged(dialect: str, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(values(schema, schema))
    lowered = lowered_or_impossible(schema, value, dialect)
    if lowered is None or not validator(schema).is_valid(value):
        return
    try:
        sent = encode(lowered, value)
    except SchemaError:
        assert any(loss.action == "closed" for loss in lowered.report)
        return
    assert jsonschema_rs.Draft202012Validator(dict(lowered.schema), offline=True).is_valid(sent)
    assert json.dumps(lowered.lift(sent), sort_keys=True) == json.dumps(value, sort_keys=True)


@modest
@given(data=st.data())
def test_nothing_is_shut_out_when_open_objects_are_kept(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(values(schema, schema))
    lowered = lowered_or_impossible(schema, value, "openai", open_objects="kept")
    if lowered is None or not validator(schema).is_valid(value):
        return
    closed = [loss for loss in lowered.report if loss.action == "closed"]
    assert all(loss.keyword in ("type", "items") for loss in closed)
    if not closed:
        assert lowered.lift(encode(lowered, value)) == value


@pytest.mark.parametrize("dialect", LINTED)
@modest
@given(data=st.data())
def test_what_is_sent_keeps_the_vendors_rules(dialect: str, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    mode = data.draw(st.sampled_from(["auto", "kept", "closed"]))
    lowered = lowered_or_impossible(schema, data.draw(values(schema, schema)), dialect, open_objects=mode)
    if lowered is not None:
        assert lint(lowered.schema, dialect) == []


@pytest.mark.parametrize("dialect", DIALECTS)
@modest
@given(data=st.data())
def test_lifting_never_raises(dialect: str, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    lowered = lowered_or_impossible(schema, data.draw(values(schema, schema)), dialect)
    if lowered is not None:
        document = dict(lowered.schema)
        lowered.lift(data.draw(values(document, document)))
        lowered.lift(data.draw(JSON))


@modest
@given(data=st.data())
def test_a_value_too_deep_for_the_stack_is_lifted_like_any_other(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(values(schema, schema))
    lowered = lowered_or_impossible(schema, value, data.draw(st.sampled_from(DIALECTS)))
    if lowered is None or lowered.plan is None:
        return
    sent = [data.draw(JSON)]
    with contextlib.suppress(SchemaError):  # the dialect is closed to some of the caller's values
        sent.append(encode(lowered, value))
    for each in sent:
        deep = lift_deep(lowered.plan.root, each, lowered.plan.active)
        assert json.dumps(deep, default=repr) == json.dumps(lowered.lift(each), default=repr)


@pytest.mark.parametrize("dialect", ["gemini", "llguidance", "openai", "anthropic"])
@modest
@given(schema=schemas())
def test_the_lowered_schema_is_proved_no_narrower(dialect: str, schema: dict[str, Any]) -> None:
    try:
        lowered = lower(schema, dialect)
    except UnsupportedSchemaError:
        return
    if not lowered.identity or any(loss.action == "closed" for loss in lowered.report):
        return
    caller = jsonschema_rs.canonicalize(schema, offline=True)
    vendor = jsonschema_rs.canonicalize(dict(lowered.schema), offline=True)
    try:
        answer = vendor.covers(caller)
    except jsonschema_rs.canonical.UnsupportedOperand:
        return
    assert answer != jsonschema_rs.canonical.Containment.NO


@modest
@given(schema=schemas())
def test_lowering_is_deterministic_and_leaves_the_callers_schema_alone(schema: dict[str, Any]) -> None:
    before = json.dumps(schema)
    try:
        first = lower(schema, "openai")
    except UnsupportedSchemaError:
        return
    again = lower(json.loads(before), "openai")
    assert json.dumps(schema) == before
    assert json.dumps(first.schema) == json.dumps(again.schema)
    assert first.report == again.report
