"""Formats are held as validators hold them, also where the engine's own reading is wider, or there is none."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import llguidance
import pytest

from slipform.addons.local.decoding.constrain import constrain
from slipform.addons.local.decoding.patterns import with_whole_formats
from tests.providers.embedded.walks import random_answer


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)


@pytest.mark.parametrize(
    "name",
    [
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "iri", "iri-reference", "idn-email", "idn-hostname"),
        *("json-pointer", "relative-json-pointer", "regex", "uri-template"),
    ],
)
def test_texts_of_a_format_are_what_validators_take_for_one(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": name}}, "required": ["a"]}
    constraint = constrain(schema, 200, exact=name in ("regex", "uri-template"))
    texts = [random_answer(constraint, seed) for seed in range(30)]
    assert constraint.exact
    assert [text for text in texts if not is_valid(schema, text)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("date", "2023-02-29"),
        ("date-time", "1900-02-29T10:00:00Z"),
        ("time", "10:00:60Z"),
        ("email", "a" * 65 + "@b.de"),
    ],
)
def test_what_the_engine_would_take_for_a_format_and_validators_do_not_is_shut_out(name: str, text: str) -> None:
    schema = {"type": "string", "format": name}
    tokens = [*json.dumps(text).encode()]
    wide, whole = ({"anyOf": [each]} for each in (schema, with_whole_formats(schema)))
    assert not is_valid(schema, text)
    assert can_be_said(wide, tokens)
    assert not can_be_said(whole, tokens)


def can_be_said(schema: dict[str, Any], tokens: list[int]) -> bool:
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar)
    return matcher.validate_tokens(tokens) == len(tokens)


def test_a_leap_day_is_a_day() -> None:
    for text in ("2024-02-29", "2000-02-29", "2023-02-28", "2023-12-31"):
        assert can_be_said(with_whole_formats({"type": "string", "format": "date"}), [*json.dumps(text).encode()])
