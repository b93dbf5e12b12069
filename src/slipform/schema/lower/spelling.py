"""The last step: the lowered schema as one document, in the dialect's own spelling."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import orjson

from slipform.schema.lower.dialects import Dialect
from slipform.schema.lower.emit import DEFS
from slipform.schema.lower.limits import subschemas, walk


def document(
    root: dict[str, Any], defs: Mapping[str, dict[str, Any]], root_name: str | None, dialect: Dialect
) -> dict[str, Any]:
    """One document: the root, and the definitions it leads to."""
    itself = root_name if root_name is not None and dialect.refs == "root" and defs.get(root_name) is root else None
    used = _used(root, defs)
    if itself is not None:
        used.pop(itself, None)
    schema = _copied({**root, "$defs": used} if used else root)
    if itself is not None:
        for top in (schema, *schema.get("$defs", {}).values()):
            for node in walk(top):
                if node.get("$ref") == DEFS + itself:
                    node["$ref"] = "#"
    if dialect.additional == "none":
        for top in (schema, *schema.get("$defs", {}).values()):
            for node in walk(top):
                node.pop("additionalProperties", None)
    return _openapi(schema) if dialect.spelling == "openapi" else schema


def _copied(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads(orjson.dumps(schema))
    except (TypeError, ValueError):
        return copy.deepcopy(schema)
    return found


def _used(root: dict[str, Any], defs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, None] = {}
    queue = [root]
    for top in queue:
        for node in walk(top):
            name = str(node.get("$ref", "")).removeprefix(DEFS)
            if name in defs and name not in found:
                found[name] = None
                queue.append(defs[name])
    return {name: defs[name] for name in defs if name in found}


def _openapi(schema: dict[str, Any]) -> dict[str, Any]:
    """Upper-case types, and `nullable` for null."""
    for holder, key, sub in list(subschemas(schema)):
        holder[key] = _openapi(sub)
    if "anyOf" in schema:
        branches = [branch for branch in schema["anyOf"] if branch.get("type") != "NULL"]
        if len(branches) < len(schema["anyOf"]):
            schema["nullable"] = True
            schema["anyOf"] = branches
        if len(branches) == 1:
            only = branches[0]
            schema = {**only, **{word: value for word, value in schema.items() if word != "anyOf"}}
    said = schema.get("type")
    if isinstance(said, list):
        schema["nullable"] = True
        said = next((name for name in said if name != "null"), "null")
        if "enum" in schema:
            schema["enum"] = [value for value in schema["enum"] if value is not None]
    if isinstance(said, str):
        schema["type"] = said.upper()
    return schema
