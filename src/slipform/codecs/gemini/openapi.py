"""Gemini's OpenAPI subset → JSON Schema, for clients that send `responseSchema` or `parameters`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NAMES = {
    "any_of": "anyOf",
    "max_items": "maxItems",
    "min_items": "minItems",
    "max_length": "maxLength",
    "min_length": "minLength",
    "max_properties": "maxProperties",
    "min_properties": "minProperties",
    "additional_properties": "additionalProperties",
    "prefix_items": "prefixItems",
}
_DROPPED = frozenset({"nullable", "propertyOrdering", "property_ordering", "example"})


def to_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema in JSON Schema's words; a schema that is JSON Schema already comes out as it was.

    >>> to_json_schema({"type": "STRING", "nullable": True})
    {'type': ['string', 'null']}
    """
    found: dict[str, Any] = {}
    for key, value in schema.items():
        key = _NAMES.get(key, key)
        if key in _DROPPED:
            continue
        found[key] = _value(key, value)
    ordering = schema.get("propertyOrdering") or schema.get("property_ordering")
    if isinstance(ordering, list) and isinstance(found.get("properties"), dict):
        found["properties"] = _ordered(found["properties"], ordering)
    return _nullable(found) if schema.get("nullable") is True else found


def _value(key: str, value: Any) -> Any:
    if key == "type":
        return _type(value)
    if key in ("properties", "$defs", "defs") and isinstance(value, Mapping):
        return {name: _sub(item) for name, item in value.items()}
    if key in ("items", "additionalProperties"):
        return _sub(value)
    if key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
        return [_sub(item) for item in value]
    if key in _COUNTS and isinstance(value, str) and value.isdigit():
        return int(value)
    if key in ("minimum", "maximum") and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _sub(value: Any) -> Any:
    return to_json_schema(value) if isinstance(value, Mapping) else value


def _type(value: Any) -> Any:
    if isinstance(value, list):
        return [_type(item) for item in value]
    return value.lower() if isinstance(value, str) else value


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("type"), str):
        nullable = {**schema, "type": [schema["type"], "null"]}
        if isinstance(schema.get("enum"), list):
            nullable["enum"] = [*schema["enum"], None]
        return nullable
    if isinstance(schema.get("anyOf"), list):
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema


def _ordered(properties: dict[str, Any], ordering: list[Any]) -> dict[str, Any]:
    first = {name: properties[name] for name in ordering if isinstance(name, str) and name in properties}
    return {**first, **{name: value for name, value in properties.items() if name not in first}}
