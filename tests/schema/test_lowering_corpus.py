"""The figures over real-world schemas: acceptable to the vendors, and values there and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from slipform.errors import SchemaError
from slipform.schema.document import join_pointer
from slipform.schema.lowering.dialects import OpenObjects
from slipform.schema.lowering.lowered import Lowered, lower
from tests.conftest import THOROUGH
from tests.schema.data import SUITE, needs_suite
from tests.schema.lowering_encode import encode, lifted_text
from tests.schema.lowering_linter import lint

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "schemas" / "real_world.jsonl"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the real-world schemas are not beside the repository")


@cache
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def some_rows() -> list[dict[str, Any]]:
    """All of them in `make test-all`, else every eighth."""
    return rows()[:: 1 if THOROUGH else 8]


@pytest.mark.parametrize("dialect", ["openai", "azure", "anthropic", "gemini"])
def test_nearly_every_schema_is_acceptable_to_the_vendor(dialect: str) -> None:
    modes: tuple[OpenObjects, ...] = ("auto", "kept", "closed")
    for mode in modes:
        lowered = {row["id"]: lower(row["schema"], dialect, open_objects=mode).schema for row in some_rows()}
        refused = [name for name, schema in lowered.items() if lint(schema, dialect)]
        assert len(refused) <= 0.005 * len(lowered), refused


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_by_default_nearly_every_valid_value_has_a_place(dialect: str) -> None:
    lost = total = 0
    for row in some_rows():
        lowered = lower(row["schema"], dialect, open_objects="auto")
        for test in row["tests"]:
            if test["valid"]:
                total += 1
                lost += not survives(lowered, test["data"])
    assert lost <= 0.03 * total


def survives(lowered: Lowered, value: Any) -> bool:
    try:
        return bool(lowered.lift(encode(lowered, value)) == value)
    except SchemaError:
        return False


@pytest.mark.parametrize("dialect", ["openai", "azure", "anthropic", "gemini"])
def test_what_an_invalid_answer_breaks_is_enforced_or_named(dialect: str) -> None:
    through = 0
    for row in some_rows():
        lowered = lower(row["schema"], dialect, open_objects="auto")
        vendor = jsonschema_rs.Draft202012Validator(dict(lowered.schema), offline=True, validate_formats=True)
        named = {loss.pointer for loss in lowered.report if loss.enforced_by == "local"}
        for test in row["tests"]:
            if test["valid"] or not survives(lowered, test["data"]):
                continue
            if not vendor.is_valid(encode(lowered, test["data"])):
                continue
            through += 1
            broken = set(breaches(row["schema"], test["data"]))
            keywords = {pointer.rpartition("/")[2] for pointer in named}
            at = {place for place in broken if any(f"{place}/".startswith(f"{pointer}/") for pointer in named)}
            assert at or keywords & {place.rpartition("/")[2] for place in broken}, (row["id"], broken)
    assert through  # else nothing was tried


def breaches(schema: dict[str, Any], value: Any) -> Iterator[str]:
    """Where in the schema the value fails, branches of unions included."""
    errors = list(jsonschema_rs.validator_for(schema, offline=True, validate_formats=True).iter_errors(value))
    while errors:
        error = errors.pop()
        yield join_pointer(error.schema_path)
        for branch in getattr(error.kind, "context", None) or ():
            errors += branch


@needs_suite
@pytest.mark.parametrize("dialect", ["openai", "azure", "anthropic", "gemini"])
def test_what_the_official_suite_asks_is_acceptable_wherever_it_can_be_said(dialect: str) -> None:
    refused, said = [], 0
    for path in sorted(SUITE.glob("tests/draft2020-12/*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            if isinstance(group["schema"], bool):
                continue
            with suppress(SchemaError):
                lowered = lower(group["schema"], dialect, open_objects="auto")
                said += 1
                refused += [group["description"] for _ in lint(lowered.schema, dialect)]
    assert (refused, said > 250) == ([], True)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_nearly_every_valid_value_survives(dialect: str) -> None:
    lost, total = [], 0
    for row in rows():
        lowered = lower(row["schema"], dialect)
        for test in row["tests"]:
            if test["valid"]:
                total += 1
                if lowered.lift(encode(lowered, test["data"])) != test["data"]:
                    lost.append(row["id"])
    assert len(lost) <= 0.03 * total, lost


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_value_is_only_lost_to_a_declared_closing(dialect: str) -> None:
    lost = total = 0
    for row in rows():
        lowered = lower(row["schema"], dialect, open_objects="closed")
        for test in row["tests"]:
            if not test["valid"]:
                continue
            total += 1
            try:
                sent = encode(lowered, test["data"])
            except SchemaError:
                lost += 1
                assert any(loss.action == "closed" for loss in lowered.report), row["id"]
                continue
            assert lowered.lift(sent) == test["data"], row["id"]
            assert jsonschema_rs.Draft202012Validator(dict(lowered.schema), offline=True).is_valid(sent), row["id"]
    assert lost <= 0.06 * total


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_streams_end_in_what_lifting_gives(dialect: str) -> None:
    for row in some_rows():
        lowered = lower(row["schema"], dialect, open_objects="kept")
        for test in row["tests"]:
            if test["valid"]:
                sent = encode(lowered, test["data"])
                if lowered.plan is not None:
                    assert json.loads(lifted_text(lowered.plan, sent)) == test["data"], row["id"]


@pytest.mark.parametrize(("dialect", "least"), [("gemini", 100), ("llguidance", 100), ("openai", 1), ("anthropic", 1)])
def test_the_algebra_finds_no_real_schema_narrowed(dialect: str, least: int) -> None:
    proved = 0
    for row in rows():
        if len(json.dumps(row["schema"])) > 4_000:
            continue
        lowered = lower(row["schema"], dialect)
        if not lowered.identity or any(loss.action == "closed" for loss in lowered.report):
            continue
        try:
            caller = jsonschema_rs.canonicalize(row["schema"], offline=True)
            answer = jsonschema_rs.canonicalize(dict(lowered.schema), offline=True).covers(caller)
        except (jsonschema_rs.ValidationError, jsonschema_rs.canonical.UnsupportedOperand, ValueError):
            continue
        assert answer != jsonschema_rs.canonical.Containment.NO, row["id"]
        proved += answer == jsonschema_rs.canonical.Containment.YES
    assert proved >= least
