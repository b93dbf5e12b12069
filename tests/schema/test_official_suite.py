"""The official JSON Schema test suite: as good as the bare validator, or better."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from slipform.errors import SchemaError
from slipform.schema.validator import compile_schema, find_violations
from tests.schema.data import needs_suite, remotes, suite_cases

DRAFTS = {
    "draft7": ("http://json-schema.org/draft-07/schema#", jsonschema_rs.Draft7),
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", jsonschema_rs.Draft202012),
}


def ours(schema: Any, value: Any, known: dict[str, Any]) -> bool | None:
    try:
        return not find_violations(compile_schema(schema, formats="ignored", resources=known), value)
    except SchemaError:
        return None


def bare(schema: Any, value: Any, registry: jsonschema_rs.Registry) -> bool | None:
    try:
        return jsonschema_rs.validator_for(schema, registry=registry, validate_formats=False).is_valid(value)
    except ValueError:
        return None


@needs_suite
@pytest.mark.covers("S2-14")
@pytest.mark.parametrize("draft", DRAFTS)
def test_every_required_case_is_judged_as_well_as_by_the_bare_validator(draft: str) -> None:
    address, number = DRAFTS[draft]
    known = remotes(draft)
    registry = jsonschema_rs.Registry(known.items(), draft=number)
    wrong: list[str] = []
    count = theirs = 0
    for name, schema, value, expected in suite_cases(draft):
        # A boolean schema is no document for us; `allOf` holds it as it is.
        document = {"$schema": address, **(schema if isinstance(schema, dict) else {"allOf": [schema]})}
        count += 1
        theirs += bare(document, value, registry) == expected
        if ours(document, value, known) != expected:
            wrong.append(name)
    assert count > 900
    assert wrong == []
    assert count - len(wrong) >= theirs


@needs_suite
@pytest.mark.parametrize("draft", DRAFTS)
def test_every_invalid_case_is_explained_at_a_place_that_exists(draft: str) -> None:
    known = remotes(draft)
    for name, schema, value, expected in suite_cases(draft):
        if expected or not isinstance(schema, dict):
            continue
        document = {"$schema": DRAFTS[draft][0], **schema}
        for found in find_violations(compile_schema(document, formats="ignored", resources=known), value):
            part = value
            for step in found.steps or ():
                part = part[step]
            assert found.message, name
            assert "slipform.invalid" not in found.message, name
