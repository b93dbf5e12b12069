"""Compiled validators by fingerprint, and what they find."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import Any

from slipform.bounded import BoundedCache
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
    compiled = _COMPILED.use(key)
    if compiled is None:
        known = plain_copy(resources) if resources else None
        compiled = Compiled(plain_copy(document), formats=formats, resources=known, text=text)
        _COMPILED.put(key, compiled, compiled.size)
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
        return explain(compiled, value)
    except (ValueError, RecursionError):
        message = "does not fit, and is nested too deeply to say why"
        return [Violation("", "", "depth", message, found=shown(value), steps=())]


_COMPILED = BoundedCache[str, Compiled]("compiled schemas", entries=256, max_bytes=96_000_000)
