"""Shorten a schema for a prompt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
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
    followed,
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
_BOUNDS = frozenset({
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
    "minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties", "format",
    "contentEncoding", "contentMediaType",
})  # fmt: skip
_SHORTENED = {"$comment": "shortened"}


@dataclass(frozen=True, slots=True)
class SchemaSummary:
    """A schema as text for a prompt; `cut` is True if something was left out."""

    text: str
    cut: bool

    @property
    def note(self) -> str | None:
        """The warning for the caller when the schema was cut."""
        if not self.cut:
            return None
        return (
            f"The schema was shortened to {len(self.text):,} characters for the prompt; "
            "the answer is checked against the full schema."
        )


def summarize(schema: Mapping[str, Any], max_chars: int = MAX_CHARS, *, descriptions: bool = False) -> SchemaSummary:
    """Return a schema as compact JSON, without annotations, and at most `max_chars` long.

    A schema that is too long loses its descriptions first, then bounds, then constraints of its deepest branches; keys
    and types stay longest, and required keys longer than others.

    >>> summarize({"type": "object", "title": "User", "properties": {"title": {"type": "string", "default": ""}}}).text
    '{"type":"object","properties":{"title":{"type":"string"}}}'
    """
    canonical_text(schema)  # refuses a schema that is too deep to walk, or not JSON
    schema = with_plain_references(schema)
    plain = _tidy(_stripped(schema, descriptions=descriptions))
    text = compact(plain)
    if len(text) <= max_chars:
        return SchemaSummary(text, cut=False)
    if descriptions:
        plain = _tidy(_stripped(schema, descriptions=False))
    return SchemaSummary(_reduced(plain, max_chars), cut=True)


def _reduced(schema: Any, max_chars: int) -> str:
    """Return the part of a schema that fits: keys and types stay longest, and the deepest branches are cut first."""
    if not isinstance(schema, dict):
        return compact(schema)
    if len(schema) - sum(key in schema for key in DEFINITIONS) == 1:  # a root that is only a reference shows no keys
        schema = {**{key: schema[key] for key in DEFINITIONS if key in schema}, **followed(schema, schema)}
    cut = _Cut(_tidy(_without_bounds(schema)), max_chars)
    for keeps_required in (True, False):
        if not cut.fits:
            cut.branches(keeps_required=keeps_required)
    if not cut.fits:
        cut.root()
    texts = (compact(_tidy(cut.schema)), compact(cut.schema), compact(_SHORTENED), "{}")
    return next((text for text in texts if len(text) <= max_chars), "")


class _Cut:
    """A copy of a schema that is cut to a length; a branch's constraint is removed whole, never in part."""

    def __init__(self, schema: Any, max_chars: int) -> None:
        self.schema: dict[str, Any] = json.loads(compact(schema))
        self.excess = len(compact(self.schema)) - max_chars
        """The number of excess characters; as the JSON is compact, every removal is subtracted here."""

    @property
    def fits(self) -> bool:
        return self.excess <= 0

    def branches(self, *, keeps_required: bool) -> None:
        """Remove constraints of branches, level by level from the deepest, the longest of a level first."""
        essential = ("type", REF, "required") if keeps_required else ("type", REF)
        nodes = [(len(steps), node) for steps, node in subschemas(self.schema) if steps and isinstance(node, dict)]
        for _, level in groupby(sorted(nodes, key=lambda entry: -entry[0]), key=lambda entry: entry[0]):
            for node in sorted((node for _, node in level), key=lambda node: -len(compact(node))):
                if self.fits:
                    return
                if _has_parts(node) or ("required" in node and not keeps_required):
                    self._put(node, {key: node[key] for key in essential if key in node} | _SHORTENED)

    def root(self) -> None:
        """Remove the types of keys, then optional keys, then anything that does not fit."""
        root = self.schema
        properties = self.schema.get("properties")
        named = {"properties": properties} if isinstance(properties, dict) else {}
        self._put(root, {key: root[key] for key in ("type", "required") if key in root} | named | _SHORTENED)
        if not isinstance(properties, dict):
            return
        for name, shape in properties.items():  # definitions have been resolved
            if reference_of(shape) is not None:
                self._put_key(properties, name, {})
        required = root.get("required")
        first = set(required) if isinstance(required, list) else set()
        for name in sorted(properties, key=lambda name: name in first):  # optional keys first
            if self.fits:
                return
            self._put_key(properties, name, {})
        self._put(root, {key: value for key, value in root.items() if key != "required"})
        for name in sorted(properties, key=lambda name: name in first):
            if self.fits:
                return
            self._put_key(properties, name, None)

    def _put(self, node: dict[str, Any], new: dict[str, Any]) -> None:
        self.excess -= len(compact(node)) - len(compact(new))
        node.clear()
        node.update(new)

    def _put_key(self, properties: dict[str, Any], name: str, new: Any) -> None:
        """Replace the constraint of a key by `new`; None removes the key."""
        before = len(compact(properties[name])) + (len(compact(name)) + 2 if new is None else 0)
        self.excess -= before - (0 if new is None else len(compact(new)))
        if new is None:
            del properties[name]
        else:
            properties[name] = new


def _without_bounds(schema: Any) -> Any:
    """Return a schema with only keys, types and listed values: violations name the bounds later."""

    def plain(node: Any, _: Pointer = ()) -> Any:
        if not isinstance(node, Mapping):
            return node
        return with_children({key: value for key, value in node.items() if key not in _BOUNDS}, plain)

    return plain(schema)


def _stripped(node: Any, *, descriptions: bool) -> Any:
    """Return a schema without annotations. Names of properties and values in `enum` and `const` are data: kept."""

    def strip(sub: Any, _: Pointer = ()) -> Any:
        if not isinstance(sub, Mapping):
            return sub
        remaining = {key: value for key, value in sub.items() if descriptions or key != "description"}
        return with_children({key: remaining[key] for key in remaining if not _is_annotation(key)}, strip)

    return strip(node)


def _is_annotation(keyword: str) -> bool:
    return keyword in _ANNOTATIONS or keyword.startswith("x-")


def _has_parts(node: Mapping[str, Any]) -> bool:
    """Return whether a node has anything worth removing."""
    return any(key in MAPS or key in LISTS or key in SINGLES for key in node) or len(compact(dict(node))) > 120


def _tidy(schema: Any) -> Any:
    """Inline definitions that are used once; remove unused ones, and addresses without references."""
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
    """Return the keyword and name of the definition that a reference leads into."""
    steps = reference_steps(reference) or ()
    if len(steps) > 1 and steps[0] in DEFINITIONS:
        return steps[:2]
    return None


def _without_addresses(schema: Any) -> Any:
    def plain(node: Any, _: Pointer = ()) -> Any:
        if not isinstance(node, Mapping):
            return node
        return with_children({key: value for key, value in node.items() if key not in ADDRESSES}, plain)

    return plain(schema)


def _inlined(schema: dict[str, Any], once: set[str]) -> dict[str, Any]:
    """Replace references by definitions that are used once, unless those are recursive or have siblings."""
    open_now: list[str] = []

    def place(node: Any, _: Pointer = ()) -> Any:
        if not isinstance(node, Mapping):
            return node
        reference = reference_of(node)
        if reference is not None and len(node) == 1 and reference in once and reference not in open_now:
            target = None
            if len(reference_steps(reference) or ()) == 2:
                target = lookup(schema, reference)
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
    """Keep the definitions that are used from outside the definitions."""
    todo: list[Any] = [{key: value for key, value in schema.items() if key not in DEFINITIONS}]
    used: set[tuple[str, ...]] = set()
    while todo:
        for _, node in subschemas(todo.pop()):
            definition = _definition(reference_of(node))
            if definition and definition not in used:
                used.add(definition)
                keyed = schema.get(definition[0])
                todo.append(keyed.get(definition[1]) if isinstance(keyed, Mapping) else None)
    out = {key: value for key, value in schema.items() if key not in DEFINITIONS}
    for keyword in DEFINITIONS:
        if isinstance(keyed := schema.get(keyword), Mapping):
            used_definitions = {name: sub for name, sub in keyed.items() if (keyword, name) in used}
            if used_definitions:
                out[keyword] = used_definitions
    return out


def compact(value: Any) -> str:
    """Return a JSON value as text without blanks."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
