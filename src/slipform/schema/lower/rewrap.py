"""Channels that take any JSON Schema: the schema stays as it is; at most its root is wrapped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UNIONS = ("anyOf", "oneOf", "allOf", "enum", "not", "const", "$ref")
_DATA = frozenset({"enum", "const", "default", "examples"})


def is_plain_object(document: Mapping[str, Any]) -> bool:
    """Whether the root is an object, said in so many words, and nothing stands beside that."""
    return document.get("type") == "object" and not any(word in document for word in _UNIONS)


def wrap(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The schema under one required key of an object; references inside are led to their new place."""
    inner = {word: value for word, value in document.items() if word not in ("$schema", "$id")}
    own = document.get("$id")
    moved = _moved(inner, f"#/properties/{key}", own if isinstance(own, str) else None)
    schema: dict[str, Any] = {"type": "object", "properties": {key: moved}, "required": [key]}
    schema["additionalProperties"] = False
    return {"$schema": document["$schema"], **schema} if "$schema" in document else schema


def _moved(value: Any, to: str, own: str | None) -> Any:
    if isinstance(value, list):
        return [_moved(item, to, own) for item in value]
    if not isinstance(value, dict):
        return value
    out = {word: item if word in _DATA else _moved(item, to, own) for word, item in value.items()}
    ref = out.get("$ref")
    if isinstance(ref, str):
        local = ref.removeprefix(own.rstrip("#")) if own else ref
        if local in ("", "#") or local.startswith("#/"):
            out["$ref"] = to + local.removeprefix("#")
    return out
