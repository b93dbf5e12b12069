"""Real schemas with labelled instances, when they are at ../shared."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from slipform.schema import Schema
from slipform.schema.validator import fingerprint
from tests.schema.data import needs_real_world, real_world

# One place for a key or an item that is not allowed: ours is the key or item, the validator's the whole.
_MOVED = frozenset({"additionalProperties", "additionalItems", "items", "propertyNames", "falseSchema"})


@needs_real_world
@pytest.mark.covers("S2-14")
def test_every_labelled_instance_is_judged_right() -> None:
    wrong = []
    count = 0
    for entry in real_world():
        schema = Schema.of(entry["schema"])
        for case in entry["tests"]:
            count += 1
            found = schema.validate(case["data"])
            if (not found) != case["valid"]:
                wrong.append((entry["id"], case["description"], [one.to_dict() for one in found]))
    assert count > 1_000
    assert wrong == []


@needs_real_world
@pytest.mark.covers("S2-14")
def test_the_violations_are_those_the_validator_finds() -> None:
    for entry in real_world():
        bare = jsonschema_rs.validator_for(entry["schema"], validate_formats=True, offline=True)
        schema = Schema.of(entry["schema"])
        for case in entry["tests"]:
            theirs = {(tuple(e.instance_path), e.kind.name) for e in bare.iter_errors(case["data"])}
            ours: set[tuple[Any, str]] = {(one.steps, one.keyword) for one in schema.validate(case["data"])}
            unmoved = [{found for found in side if found[1] not in _MOVED} for side in (ours, theirs)]
            assert unmoved[0] == unmoved[1], entry["id"]


@needs_real_world
@pytest.mark.covers("S2-09")
def test_different_schemas_have_different_fingerprints() -> None:
    documents = [entry["schema"] for entry in real_world()]
    assert len({fingerprint(document) for document in documents}) == len({str(document) for document in documents})
