"""Build a JSON Schema for the playground: from a list of fields, or from an example of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipform.errors import ConfigError, RequestError
from slipform.schema.concise import concise_schema


def build_schema(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of `fields` (`name, age int`) or of an `example`; raises `RequestError` with what is wrong."""
    fields = request.get("fields")
    if isinstance(fields, str):
        try:
            return concise_schema(fields)
        except ConfigError as error:
            raise RequestError(error.message, where="fields", hint=error.hint) from None
    if "example" not in request:
        raise RequestError("`fields` or `example` is needed", where="fields")
    return schema_of_example(request["example"])


def schema_of_example(value: Any) -> dict[str, Any]:
    """Return a schema that describes the example: its types; a key is required if all items of a list have it.

    >>> schema_of_example({"tags": ["a"], "n": 1})["properties"]["tags"]
    {'type': 'array', 'items': {'type': 'string'}}
    >>> schema_of_example([1, 2.5, None])["items"]
    {'anyOf': [{'type': 'number'}, {'type': 'null'}]}
    """
    if isinstance(value, Mapping):
        properties = {key: schema_of_example(each) for key, each in value.items()}
        return _object(properties, list(properties))
    if isinstance(value, list):
        items = _merged(schema_of_example(each) for each in value)
        return {"type": "array", "items": items} if items else {"type": "array"}
    if value is None:
        return {"type": "null"}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, str):
        return {"type": "string"}
    return {"type": "integer" if isinstance(value, int) else "number"}


def _object(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def _merged(schemas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema that accepts the values of all these; empty for no schemas."""
    by_type: dict[str, dict[str, Any]] = {}
    for schema in schemas:
        for option in schema.get("anyOf", [schema]):
            kind = "number" if option["type"] == "integer" and "number" in by_type else option["type"]
            if kind == "number" and "integer" in by_type:
                by_type = {("number" if name == "integer" else name): each for name, each in by_type.items()}
                by_type["number"] = {"type": "number"}
            by_type[kind] = _both(by_type[kind], option) if kind in by_type else option
    options = list(by_type.values())
    if len(options) > 1:
        return {"anyOf": options}
    return options[0] if options else {}


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return one schema that accepts the values of two schemas of the same type."""
    if one["type"] == "object":
        names = dict.fromkeys((*one["properties"], *other["properties"]))
        properties = {
            name: _merged(each["properties"][name] for each in (one, other) if name in each["properties"])
            for name in names
        }
        return _object(properties, [name for name in one["required"] if name in other["required"]])
    if one["type"] == "array":
        items = _merged(each["items"] for each in (one, other) if each.get("items"))
        return {"type": "array", "items": items} if items else one
    return one
