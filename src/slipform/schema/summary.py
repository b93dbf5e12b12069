"""Shorten a schema for a prompt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from slipform.schema.document import (
    ADDRESSES,
    DEFINITIONS,
    LISTS,
    MAPS,
    REF,
    REFERENCES,
    SINGLES,
    Pointer,
    children,
    lookup,
    reference_of,
    reference_steps,
    subschemas,
    with_children,
    with_plain_references,
)
from slipform.schema.limits import canonical_text

MAX_CHARS = 2_000

_ANNOTATIONS = frozenset({
    "title", "examples", "example", "default", "$comment", "$schema", "deprecated", "readOnly", "writeOnly",
    "discriminator",
})  # fmt: skip
_SHORTENED = {"$comment": "shortened"}


@dataclass(frozen=True, slots=True)
class SchemaSummary:
    """A schema as text for a prompt; `cut` says whether something had to be left out."""

    text: str
    cut: bool

    @property
    def note(self) -> str | None:
        """A warning for the caller when the schema was cut."""
        if not self.cut:
            return None
        return (
            f"The schema was shortened to {len(self.text):,} characters for the prompt; "
            "the answer is checked against the full schema."
        )


def summarize(schema: Mapping[str, Any], max_chars: int = MAX_CHARS, *, descriptions: bool = False) -> SchemaSummary:
    """A schema as compact JSON, without annotations, and no longer than `max_chars`.

    Too long a schema loses its descriptions first and then its deepest parts, never part of a word.

    >>> summarize({"type": "object", "title": "User", "properties": {"title": {"type": "string", "default": ""}}}).text
    '{"type":"object","properties":{"title":{"type":"string"}}}'
    """
    canonical_text(schema)  # refuses what is too deep to walk, or no JSON
    schema = with_plain_references(schema)
    plain = _tidy(_stripped(schema, descriptions=descriptions))
    text = _dump(plain)
    if len(text) <= max_chars:
        return SchemaSummary(text, cut=False)
    if descriptions:
        plain = _tidy(_stripped(schema, descriptions=False))
    return SchemaSummary(_reduced(plain, max_chars), cut=True)


def _reduced(schema: Any, max_chars: int) -> str:
    """The deepest form that fits, found by halving."""
    best, low, high = "", 0, _depth(schema)
    while low <= high:
        middle = (low + high) // 2
        text = _dump(_tidy(_cut(schema, middle)))
        if len(text) <= max_chars:
            best, low = text, middle + 1
        else:
            high = middle - 1
    if best:
        return best
    root = _dump({key: schema[key] for key in ("type",) if key in schema} | _SHORTENED)
    return next((text for text in (root, "{}") if len(text) <= max_chars), "")


def _stripped(node: Any, *, descriptions: bool) -> Any:
    """A schema without its annotations. Names of properties and values in `enum` and `const` are data and stay."""

    def strip(sub: Any, _: Pointer = ()) -> Any:
        if not isinstance(sub, Mapping):
            return sub
        kept = {key: value for key, value in sub.items() if descriptions or key != "description"}
        return with_children({key: kept[key] for key in kept if not _is_annotation(key)}, strip)

    return strip(node)


def _is_annotation(keyword: str) -> bool:
    return keyword in _ANNOTATIONS or keyword.startswith("x-")


def _cut(node: Any, limit: int) -> Any:
    """A schema whose subschemas below `limit` levels only say their type."""

    def cut(sub: Any, depth: int) -> Any:
        if not isinstance(sub, Mapping):
            return sub
        if depth < limit:
            return with_children(sub, lambda each, _: cut(each, depth + 1))
        if not _has_parts(sub):
            return dict(sub)
        return {key: sub[key] for key in ("type", REF) if key in sub} | _SHORTENED

    return cut(node, 0)


def _has_parts(node: Mapping[str, Any]) -> bool:
    """Whether there is anything in a node worth leaving out."""
    return any(key in MAPS or key in LISTS or key in SINGLES for key in node) or len(_dump(dict(node))) > 120


def _tidy(schema: Any) -> Any:
    """Definitions that are used once are put in their place; unused ones go, and so do addresses no one uses."""
    if not isinstance(schema, dict):
        return schema
    nodes = [node for _, node in subschemas(schema)]
    if any(key in node for node in nodes for key in REFERENCES[1:]):
        return schema
    uses = Counter(reference for node in nodes if (reference := reference_of(node)) is not None)
    if any(reference_steps(reference) is None for reference in uses):
        return schema
    if all(_definition(reference) or reference == "#" for reference in uses):
        schema = _inlined(_without_addresses(schema), {reference for reference, count in uses.items() if count == 1})
    return _without_unused(schema)


def _definition(reference: str | None) -> tuple[str, ...] | None:
    """Keyword and name of the definition that a reference leads into."""
    steps = reference_steps(reference) or ()
    return steps[:2] if len(steps) > 1 and steps[0] in DEFINITIONS else None


def _without_addresses(schema: Any) -> Any:
    def plain(node: Any, _: Pointer = ()) -> Any:
        if not isinstance(node, Mapping):
            return node
        return with_children({key: value for key, value in node.items() if key not in ADDRESSES}, plain)

    return plain(schema)


def _inlined(schema: dict[str, Any], once: set[str]) -> dict[str, Any]:
    """Put definitions that one place uses into that place, unless they use themselves or have company there."""
    open_now: list[str] = []

    def place(node: Any, _: Pointer = ()) -> Any:
        if not isinstance(node, Mapping):
            return node
        reference = reference_of(node)
        if reference is not None and len(node) == 1 and reference in once and reference not in open_now:
            target = lookup(schema, reference) if len(reference_steps(reference) or ()) == 2 else None
            if isinstance(target, Mapping):
                open_now.append(reference)
                done = place(target)
                open_now.pop()
                return done
        return with_children(node, place)

    out: dict[str, Any] = place({key: value for key, value in schema.items() if key not in DEFINITIONS})
    for keyword in DEFINITIONS:
        if isinstance(schema.get(keyword), Mapping):
            out[keyword] = {name: place(sub) for name, sub in schema[keyword].items()}
    return out


def _without_unused(schema: dict[str, Any]) -> dict[str, Any]:
    """Keep the definitions that are reached from outside the definitions."""
    todo: list[Any] = [{key: value for key, value in schema.items() if key not in DEFINITIONS}]
    used: set[tuple[str, ...]] = set()
    while todo:
        for _, node in subschemas(todo.pop()):
            found = _definition(reference_of(node))
            if found and found not in used:
                used.add(found)
                keyed = schema.get(found[0])
                todo.append(keyed.get(found[1]) if isinstance(keyed, Mapping) else None)
    out = {key: value for key, value in schema.items() if key not in DEFINITIONS}
    for keyword in DEFINITIONS:
        if isinstance(keyed := schema.get(keyword), Mapping):
            kept = {name: sub for name, sub in keyed.items() if (keyword, name) in used}
            if kept:
                out[keyword] = kept
    return out


def _depth(schema: Any) -> int:
    deepest = 0
    todo: list[tuple[Any, int]] = [(schema, 0)]
    while todo:
        node, depth = todo.pop()
        deepest = max(deepest, depth)
        if isinstance(node, Mapping):
            todo += [(sub, depth + 1) for _, sub in children((), node)]
    return deepest


def _dump(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
