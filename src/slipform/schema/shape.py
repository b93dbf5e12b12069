"""Intern one object per schema document, which owns everything derived from it: `Shape`.

Everything that depends only on a schema (its validator, its form in a vendor's dialect, its grammar, an example) is
built once and found by the schema's text. All of it is bounded in one table, and evicted together.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, TypeVar, cast

import orjson

from slipform.bounded import BoundedCache
from slipform.errors import SchemaError

V = TypeVar("V")

MAX_DERIVED: Final = 48
"""The most derived values of one shape; the oldest are dropped. Callers choose parts of some keys."""
_TIMES_TEXT = 50
"""Bytes that a derived value retains per byte of the schema's text: copies in dicts, functions."""
_LEAST = 2_000


class Shape:
    """One JSON Schema document, by its text, and everything derived from it. Thread-safe.

    Documents with the same keys in another order are two shapes: prompts and lowering depend on the order. Derived
    objects must not refer to their shape: an evicted shape would wait for the garbage collector.

    >>> Shape.of({"type": "integer"}) is Shape.of({"type": "integer"})
    True
    """

    __slots__ = ("__weakref__", "_derived", "_sizes", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._derived: dict[Hashable, Any] = {}
        self._sizes: dict[Hashable, int] = {}

    @staticmethod
    def of(document: Mapping[str, Any]) -> Shape:
        """Return the shape of a document; raises `SchemaError` for one that is not JSON."""
        return Shape.of_text(to_text(document))

    @staticmethod
    def of_text(text: bytes) -> Shape:
        """Return the shape of a document's JSON text, as `to_text` writes it."""
        shape = _SHAPES.use(text)
        if shape is None:
            shape = Shape(text)
            _SHAPES.put(text, shape, estimated_bytes(text, 2))
        return shape

    @property
    def document(self) -> dict[str, Any]:
        """The document, which must not be changed."""
        return self.derived("document", lambda: cast("dict[str, Any]", json.loads(self.text)))

    def derived(self, key: Hashable, build: Callable[[], V], size: Callable[[V], int] | None = None) -> V:
        """Return the value under `key`, which depends only on the document and the key; build it at first.

        Keys begin with the kind of the value. `size` estimates the bytes that a value retains, unless that is about as
        much as a copy of the document. Two threads may build the same value.
        """
        value: V | None = self._derived.get(key)
        if value is None:
            value = build()
            self._add(key, value, estimated_bytes(self.text) if size is None else size(value))
        return value

    def _add(self, key: Hashable, value: Any, size: int) -> None:
        with _LOCK:
            self._sizes.pop(key, None)
            self._derived[key] = value
            self._sizes[key] = size
            while len(self._sizes) > MAX_DERIVED:
                oldest = next(iter(self._sizes))
                del self._sizes[oldest]
                del self._derived[oldest]
            total = estimated_bytes(self.text, 2) + sum(self._sizes.values())
        _SHAPES.put(self.text, self, total)


_LOCK = threading.Lock()
_SHAPES = BoundedCache[bytes, Shape]("shapes", entries=1_024, max_bytes=256_000_000)


def estimated_bytes(text: bytes, times: int = _TIMES_TEXT) -> int:
    """Return the approximate number of bytes that an object derived from a schema with this text retains."""
    return _LEAST + times * len(text)


def to_text(schema: Mapping[str, Any]) -> bytes:
    """Return the schema as JSON text, with keys in their order; raises for a schema that is not JSON."""
    try:
        return orjson.dumps(schema if type(schema) is dict else dict(schema))
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps(schema, allow_nan=False, default=plain_mapping, separators=(",", ":")).encode(
            "utf-8", "strict"
        )
    except (TypeError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply"
        if not isinstance(error, RecursionError):
            reason = str(error)
        raise SchemaError(f"This schema cannot be written as JSON: {reason}", hint="Give plain JSON values.") from error


def plain_mapping(value: object) -> object:
    """Return a mapping that JSON encoders do not support as a dict; raises `TypeError` for other objects."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")
