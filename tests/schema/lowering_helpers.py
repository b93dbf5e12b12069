"""Helpers of the lowering tests."""

from __future__ import annotations

from typing import Any

from slipform.schema.lowering.lowered import Lowered, lower
from tests.schema.lowering_encode import encode
from tests.schema.lowering_linter import lint


def both_ways(schema: dict[str, Any], dialect: str, *values: Any) -> Lowered:
    """Lower, check the vendor's rules, and send each value there and back."""
    lowered = lower(schema, dialect)
    if dialect in ("openai", "anthropic", "gemini"):
        assert lint(lowered.schema, dialect) == []
    for value in values:
        assert lowered.lift(encode(lowered, value)) == value
    return lowered


def closed(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def actions(lowered: Lowered) -> set[tuple[str, str, str]]:
    return {(loss.pointer, loss.keyword, loss.action) for loss in lowered.report if loss.action != "kept"}
