"""The figures over real-world schemas: acceptable to the vendors, and values there and back."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs
import pytest

from slipform.errors import SchemaError
from slipform.schema.lowering.lowered import lower
from tests.schema.lowering_encode import encode
from tests.schema.lowering_linter import lint, strays

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "schemas" / "real_world.jsonl"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the real-world schemas are not beside the repository")


@cache
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_nearly_every_schema_is_acceptable_to_the_vendor(dialect: str) -> None:
    modes: tuple[Literal["kept", "closed"], ...] = ("kept", "closed")
    for mode in modes:
        lowered = {row["id"]: lower(row["schema"], dialect, open_objects=mode).schema for row in rows()}
        refused = [name for name, schema in lowered.items() if lint(schema, dialect) or strays(schema, dialect)]
        assert len(refused) <= 0.005 * len(rows()), refused


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
    for row in rows()[::3]:
        lowered = lower(row["schema"], dialect, open_objects="kept")
        for test in row["tests"]:
            if test["valid"]:
                sent = encode(lowered, test["data"])
                stream = lowered.lift_stream()
                if isinstance(sent, dict):
                    names = list(sent)
                    for size in range(len(names)):
                        stream({name: sent[name] for name in names[:size]})
                assert stream(sent, done=True) == test["data"], row["id"]


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
