"""Shapes that are asked for again and again: made once for the same bytes, and their schemas made ready once."""

from __future__ import annotations

from typing import Any

import orjson

from slipform.bounded import BoundedCache
from slipform.schema.python_types import Schema
from slipform.schema.spec import JsonSchemaSpec, ResponseFormat

_LONGEST = 1 << 15
_TIMES_TEXT = 50
"""How many bytes a spec and its schema keep alive for each byte of the document's text: two copies of it in dicts."""
_LEAST = 2_000
_PLAINLY = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_FORMATS = BoundedCache[tuple[str, bytes, bool], ResponseFormat]("response formats", entries=128, max_bytes=32_000_000)
_SCHEMAS = BoundedCache[int, tuple[JsonSchemaSpec, Schema[Any] | None]]("schemas", entries=128, max_bytes=32_000_000)
"""By the identity of specs that were made here, whose documents nobody else holds and can change."""


def format_of(name: str, document: Any, *, strict: bool) -> ResponseFormat:
    """The response format with this name and schema; the same object for the same schema, where it is short.

    >>> format_of("n", {"type": "integer"}, strict=True) is format_of("n", {"type": "integer"}, strict=True)
    True
    """
    try:
        text = orjson.dumps(document, option=_PLAINLY)
    except TypeError:  # no plain JSON: it was written in Python
        text = b""
    if not text or len(text) > _LONGEST:
        return ResponseFormat(JsonSchemaSpec(name, document), strict=strict)
    key = (name, text, strict)
    found = _FORMATS.get(key)
    if found is None:
        spec = JsonSchemaSpec(name, orjson.loads(text))
        found = ResponseFormat(spec, strict=strict)
        size = _LEAST + len(name) + _TIMES_TEXT * len(text)
        _FORMATS.put(key, found, size)
        _SCHEMAS.put(id(spec), (spec, None), size)
    return found


def is_kept(spec: JsonSchemaSpec) -> bool:
    """Whether `format_of` made the spec: then nobody else holds its document, and it stays what it is.

    >>> is_kept(format_of("n", {"type": "integer"}, strict=True).json_schema), is_kept(JsonSchemaSpec("n", {}))
    (True, False)
    """
    known = _SCHEMAS.get(id(spec))
    return known is not None and known[0] is spec


def schema_of(spec: JsonSchemaSpec) -> Schema[Any]:
    """`Schema.of`, found ready for a spec that `format_of` made."""
    known = _SCHEMAS.get(id(spec))
    if known is None or known[0] is not spec:
        return Schema.of(spec)
    schema = known[1]
    if schema is None:
        schema = Schema.of(spec)
        _SCHEMAS.replace(id(spec), (spec, schema))
    return schema
