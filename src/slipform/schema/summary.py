"""How a schema is shortened for a prompt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import orjson

from slipform.schema.limits import canonical_text

MAX_CHARS = 2_000

KEYED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
LISTED = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
SINGLE = frozenset({
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_ANNOTATIONS = frozenset({
    "title", "examples", "example", "default", "$comment", "$schema", "deprecated", "readOnly", "writeOnly",
    "discriminator",
})  # fmt: skip
_ADDRESSES = frozenset({"$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"})
_DEFINITIONS = ("$defs", "definitions")
_SHORTENED = {"$comment": "shortened"}

Visit: TypeAlias = Callable[[Any, int], Any]


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

    def strip(sub: Any, _: int = 0) -> Any:
        if not isinstance(sub, Mapping):
            return sub
        kept = {key: value for key, value in sub.items() if descriptions or key != "description"}
        return _rebuilt({key: kept[key] for key in kept if not _is_annotation(key)}, strip, 0)

    return strip(node)


def _is_annotation(keyword: str) -> bool:
    return keyword in _ANNOTATIONS or keyword.startswith("x-")


def _rebuilt(node: Mapping[str, Any], visit: Visit, depth: int) -> dict[str, Any]:
    """A node with each of its subschemas passed through `visit`."""
    out: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in KEYED and isinstance(value, Mapping):
            out[keyword] = {name: visit(sub, depth + 1) for name, sub in value.items()}
        elif (keyword in LISTED or keyword in SINGLE) and isinstance(value, (list, tuple)):
            out[keyword] = [visit(sub, depth + 1) for sub in value]
        elif keyword in SINGLE:
            out[keyword] = visit(value, depth + 1)
        else:
            out[keyword] = value
    return out


def _cut(node: Any, limit: int) -> Any:
    """A schema whose subschemas below `limit` levels only say their type."""

    def cut(sub: Any, depth: int) -> Any:
        if not isinstance(sub, Mapping):
            return sub
        if depth < limit or not _has_parts(sub):
            return _rebuilt(sub, cut, depth) if depth < limit else dict(sub)
        return {key: sub[key] for key in ("type", "$ref") if key in sub} | _SHORTENED

    return cut(node, 0)


def _has_parts(node: Mapping[str, Any]) -> bool:
    """Whether there is anything in a node worth leaving out."""
    return any(key in KEYED or key in LISTED or key in SINGLE for key in node) or len(_dump(dict(node))) > 120


def _tidy(schema: Any) -> Any:
    """Definitions that are used once are put in their place; unused ones go, and so do addresses no one uses."""
    if not isinstance(schema, dict):
        return schema
    nodes = list(_nodes(schema))
    if any(key in node for node in nodes for key in ("$dynamicRef", "$recursiveRef")):
        return schema
    uses = Counter(node["$ref"] for node in nodes if isinstance(node.get("$ref"), str))
    if not all(reference == "#" or reference.startswith("#/") for reference in uses):
        return schema
    if all(_definition(reference) or reference == "#" for reference in uses):
        schema = _inlined(_without_addresses(schema), {reference for reference, count in uses.items() if count == 1})
    return _without_unused(schema)


def _definition(reference: str) -> tuple[str, str, bool] | None:
    """The definition that a reference leads to: keyword, name, and whether it is meant whole."""
    start, _, rest = reference.partition("/")
    keyword, _, rest = rest.partition("/")
    name, deeper, _ = rest.partition("/")
    if start != "#" or keyword not in _DEFINITIONS or not name:
        return None
    return keyword, unquote(name).replace("~1", "/").replace("~0", "~"), not deeper


def _without_addresses(schema: Any) -> Any:
    def plain(node: Any, _: int = 0) -> Any:
        if not isinstance(node, Mapping):
            return node
        return _rebuilt({key: value for key, value in node.items() if key not in _ADDRESSES}, plain, 0)

    return plain(schema)


def _inlined(schema: dict[str, Any], once: set[str]) -> dict[str, Any]:
    """Put definitions that one place uses into that place, unless they use themselves or have company there."""
    open_now: list[str] = []

    def place(node: Any, _: int = 0) -> Any:
        if not isinstance(node, Mapping):
            return node
        reference = node.get("$ref")
        if len(node) == 1 and reference in once and reference not in open_now:
            target = _target(schema, str(reference))
            if isinstance(target, Mapping):
                open_now.append(str(reference))
                done = place(target)
                open_now.pop()
                return done
        return _rebuilt(node, place, 0)

    out: dict[str, Any] = place({key: value for key, value in schema.items() if key not in _DEFINITIONS})
    for keyword in _DEFINITIONS:
        if isinstance(schema.get(keyword), Mapping):
            out[keyword] = {name: place(sub) for name, sub in schema[keyword].items()}
    return out


def _target(schema: Mapping[str, Any], reference: str) -> Any:
    found = _definition(reference)
    return schema[found[0]].get(found[1]) if found and found[2] and isinstance(schema.get(found[0]), Mapping) else None


def _without_unused(schema: dict[str, Any]) -> dict[str, Any]:
    """Keep the definitions that are reached from outside the definitions."""
    todo: list[Any] = [{key: value for key, value in schema.items() if key not in _DEFINITIONS}]
    used: set[tuple[str, str]] = set()
    while todo:
        for node in _nodes(todo.pop()):
            found = _definition(node["$ref"]) if isinstance(node.get("$ref"), str) else None
            if found and found[:2] not in used:
                used.add(found[:2])
                keyed = schema.get(found[0])
                todo.append(keyed.get(found[1]) if isinstance(keyed, Mapping) else None)
    out = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    for keyword in _DEFINITIONS:
        if isinstance(keyed := schema.get(keyword), Mapping):
            kept = {name: sub for name, sub in keyed.items() if (keyword, name) in used}
            if kept:
                out[keyword] = kept
    return out


def _nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every subschema, by position."""
    todo: list[Any] = [schema]
    while todo:
        node = todo.pop()
        if not isinstance(node, Mapping):
            continue
        yield node
        for keyword, value in node.items():
            if keyword in KEYED and isinstance(value, Mapping):
                todo.extend(value.values())
            elif keyword in LISTED or keyword in SINGLE:
                todo.extend(value if isinstance(value, (list, tuple)) else [value])


def _depth(schema: Any) -> int:
    deepest = 0
    todo: list[tuple[Any, int]] = [(schema, 0)]
    while todo:
        node, depth = todo.pop()
        deepest = max(deepest, depth)
        if isinstance(node, Mapping):
            _rebuilt(node, lambda sub, below: todo.append((sub, below)), depth)
    return deepest


def _dump(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
