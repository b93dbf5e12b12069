"""Strict preflight: the rules OpenAI and Anthropic share for their native structured output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.errors import AdditionalPropertiesNotFalse, RequiredMissingProperties, StrictSchemaError


def strict_preflight(schema: Any) -> None:
    """Raise the first breach of the strict-mode rules.

    >>> strict_preflight({"type": "object", "additionalProperties": False})
    """
    if found := _check(schema, "$"):
        raise found


def _check(schema: Any, path: str) -> StrictSchemaError | None:
    if not isinstance(schema, Mapping):
        return None
    kind = schema.get("type")
    if kind == "object":
        found = _object_rules(schema, path)
    elif kind == "array" and "items" in schema:
        found = _check(schema["items"], f"{path}.items")
    else:
        found = None
    return found or _composition(schema, path)


def _object_rules(schema: Mapping[str, Any], path: str) -> StrictSchemaError | None:
    if schema.get("additionalProperties") is not False:
        return AdditionalPropertiesNotFalse(path)
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return None
    listed = schema.get("required")
    required = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
    missing = [name for name in properties if name not in required]
    if missing:
        return RequiredMissingProperties(path, missing)
    for name, sub in properties.items():
        if found := _check(sub, f"{path}.properties.{name}"):
            return found
    return None


def _composition(schema: Mapping[str, Any], path: str) -> StrictSchemaError | None:
    for keyword in ("anyOf", "allOf", "oneOf"):
        branches = schema.get(keyword)
        for index, sub in enumerate(branches if isinstance(branches, list) else ()):
            if found := _check(sub, f"{path}.{keyword}[{index}]"):
                return found
    return None
