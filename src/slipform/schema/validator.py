"""Compiled validators by fingerprint, and what they find."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Any

from slipform.schema.compiled import Compiled, Formats
from slipform.schema.explain import MAX_VIOLATIONS, explain
from slipform.schema.limits import canonical_text, is_plain, not_json, plain_copy
from slipform.schema.violations import Violation, shown

__all__ = ["Violation", "compile_schema", "find_violations", "fingerprint", "prepare", "violations"]


def fingerprint(document: Mapping[str, Any]) -> str:
    """A stable name for what a schema says, whatever the order of its keys.

    The order of `properties` is no part of it: do not keep under it what depends on that order.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical_text(document)).hexdigest()


def compile_schema(
    document: Mapping[str, Any], *, formats: Formats = "json", resources: Mapping[str, Any] | None = None
) -> Compiled:
    """Make a schema ready, or find it ready; a schema that cannot be used is a `SchemaError`.

    `resources` are the other documents it may refer to, by URI; nothing is ever fetched.

    >>> compile_schema({"type": "integer"}).is_valid("3")
    False
    """
    return prepare(document, formats, resources)[1]


def prepare(document: Mapping[str, Any], formats: Formats, resources: Mapping[str, Any] | None) -> tuple[str, Compiled]:
    """A schema's fingerprint and its compiled form."""
    text = canonical_text(document)
    name = hashlib.sha256(text).hexdigest()
    key = name + formats
    if resources:
        key += hashlib.sha256(canonical_text(resources)).hexdigest()
    compiled = _CACHE.get(key)
    if compiled is None:
        known = plain_copy(resources) if resources else None
        compiled = Compiled(plain_copy(document), formats=formats, resources=known, text=text)
        _CACHE.put(key, compiled, len(text))
    return name, compiled


def violations(document: Mapping[str, Any], value: Any) -> list[Violation]:
    """Every way in which `value` does not fit `document`.

    >>> [found.message for found in violations({"type": "integer"}, "x")]
    ['expected integer, found "x"']
    """
    return find_violations(compile_schema(document), value)


def find_violations(compiled: Compiled, value: Any) -> list[Violation]:
    """Every way in which a value does not fit, at most 1,000 of them; none for a value that fits."""
    try:
        if compiled.is_valid(value):
            return []
        plain = is_plain(value)
    except ValueError:  # a value that is no JSON; which one is found below
        plain = False
    if not plain and (strange := list(islice(not_json(value), MAX_VIOLATIONS))):
        return strange
    try:
        return list(islice(explain(compiled, value), MAX_VIOLATIONS))
    except (ValueError, RecursionError):
        message = "does not fit, and is nested too deeply to say why"
        return [Violation("", "", "depth", message, found=shown(value), steps=())]


class _Cache:
    """The most recently used, bounded by count and by the size of the schemas' text."""

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._held = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[Compiled, int]] = OrderedDict()

    def get(self, key: str) -> Compiled | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: str, compiled: Compiled, size: int) -> None:
        with self._lock:
            self._held -= self._entries.pop(key, (None, 0))[1]
            self._entries[key] = (compiled, size)
            self._held += size
            while len(self._entries) > 1 and (len(self._entries) > self._count or self._held > self._size):
                self._held -= self._entries.popitem(last=False)[1][1]


_CACHE = _Cache(count=256, size=16_000_000)
