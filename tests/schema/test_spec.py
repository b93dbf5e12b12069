from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest

from slipform.errors import ConfigError
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.schema.python_types import cached_format, cached_schema

SPEC = JsonSchemaSpec("user", {"type": "object"})


@pytest.mark.covers("S4-05", "S4-10", "S4-47", "S4-48")
@pytest.mark.parametrize("name", ["", "   ", "\t\n"])
def test_an_empty_name_is_refused_at_construction(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^JsonSchemaSpec: name must be non-empty$"):
        JsonSchemaSpec(name, {"type": "object"})


@pytest.mark.covers("S4-05", "S4-11", "S4-49")
@pytest.mark.parametrize("schema", ["not an object", [1, 2, 3], None, True])
def test_a_schema_that_is_no_object_is_refused_at_construction(schema: Any) -> None:
    with pytest.raises(ConfigError, match=r"^JsonSchemaSpec: schema must be a JSON object at the top level$"):
        JsonSchemaSpec("user", schema)


@pytest.mark.covers("S4-04", "S4-50")
def test_a_plausible_schema_is_taken_unread() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    assert JsonSchemaSpec("user", schema).name == "user"
    assert JsonSchemaSpec("user", schema).schema == schema
    assert JsonSchemaSpec("odd", {"type": "no such type"}).schema == {"type": "no such type"}


@pytest.mark.covers("S4-06")
def test_a_spec_is_a_value() -> None:
    assert copy.deepcopy(SPEC) == SPEC
    assert dataclasses.replace(SPEC, name="other") != SPEC
    assert JsonSchemaSpec.from_dict(json.loads(json.dumps(SPEC.to_dict()))) == SPEC


@pytest.mark.covers("S4-09")
def test_reading_a_serialised_spec_checks_nothing() -> None:
    unchecked: Any = JsonSchemaSpec.from_dict({"name": "", "schema": 3})
    assert (unchecked.name, unchecked.schema) == ("", 3)


@pytest.mark.parametrize(
    ("read", "serialised", "place"),
    [
        (JsonSchemaSpec.from_dict, {}, "name"),
        (JsonSchemaSpec.from_dict, {"name": "user"}, "schema"),
        (ResponseFormat.from_dict, {}, "json_schema"),
        (ResponseFormat.from_dict, {"json_schema": {"name": "user", "schema": {}}, "strategy": "zzz"}, "strategy"),
    ],
)
def test_a_serialised_record_that_cannot_be_read_names_the_field(read: Any, serialised: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=f"at {place}\\b"):
        read(serialised)


@pytest.mark.covers("S4-12", "S4-21")
def test_the_strategies_are_spelt_in_snake_case() -> None:
    assert [strategy.value for strategy in OutputStrategy] == ["auto", "native", "tool", "prompted"]


@pytest.mark.covers("S4-20", "S4-22", "S4-23", "S4-24")
def test_strict_and_auto_are_the_defaults() -> None:
    plain = ResponseFormat(SPEC)
    assert plain.json_schema == SPEC
    assert plain.strict is True
    assert plain.strategy is OutputStrategy.AUTO
    assert ResponseFormat.from_dict({"json_schema": SPEC.to_dict()}) == plain


@pytest.mark.covers("S4-26", "S4-51")
def test_the_strict_constructor_sets_the_flag() -> None:
    assert ResponseFormat.strict(SPEC).strict is True
    assert ResponseFormat.strict(SPEC).strategy is OutputStrategy.AUTO


@pytest.mark.covers("S4-27", "S4-52", "C30")
def test_the_best_effort_constructor_clears_the_flag() -> None:
    assert ResponseFormat.best_effort(SPEC).strict is False


@pytest.mark.covers("S4-28")
def test_with_strategy_gives_a_changed_copy() -> None:
    plain = ResponseFormat.strict(SPEC)
    changed = plain.with_strategy(OutputStrategy.TOOL)
    assert (plain.strategy, changed.strategy) == (OutputStrategy.AUTO, OutputStrategy.TOOL)
    assert changed.strict is True
    assert ResponseFormat.best_effort(SPEC).with_strategy(OutputStrategy.NATIVE).strict is False


@pytest.mark.covers("S4-01", "S4-53")
@pytest.mark.parametrize("strategy", OutputStrategy)
def test_a_format_round_trips_through_json(strategy: OutputStrategy) -> None:
    for given in (ResponseFormat.strict(SPEC), ResponseFormat.best_effort(SPEC)):
        wanted = given.with_strategy(strategy)
        text = json.dumps(wanted.to_dict())
        assert json.loads(text)["strategy"] == strategy.value
        assert ResponseFormat.from_dict(json.loads(text)) == wanted


def test_only_a_spec_with_a_schema_of_its_own_has_a_text_that_caches_may_go_by() -> None:
    given = {"type": "object"}
    own = cached_format("user", given, strict=True).json_schema
    assert own.text == b'{"type":"object"}'
    assert own.schema is not given
    assert own == JsonSchemaSpec("user", given)
    assert "text" not in repr(own)
    assert pickle.loads(pickle.dumps(own)).text == own.text
    for other in (
        JsonSchemaSpec("user", given),
        JsonSchemaSpec.from_dict(own.to_dict()),
        dataclasses.replace(own, schema={"type": "array"}),
    ):
        assert other.text is None


def test_a_schema_is_made_once_for_a_text_and_a_name() -> None:
    strict, loose = (cached_format("user", {"type": "object"}, strict=strict).json_schema for strict in (True, False))
    assert cached_schema(strict) is cached_schema(loose)
    assert cached_schema(cached_format("other", {"type": "object"}, strict=True).json_schema).name == "other"
    assert cached_schema(SPEC) is not cached_schema(SPEC)
