"""Unions: which alternative a value was meant for, and the edits that make it fit that one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slipform.enforce.fixes import ABSENT, Fix, Switches, at, folded, locate
from slipform.schema import Schema, Violation

if TYPE_CHECKING:
    from slipform.enforce.patch import Patched

UNIONS = ("anyOf", "oneOf")
_MOST_TRIED = 3
_DEPTH = 20


def branch_fixes(
    violation: Violation,
    value: Any,
    document: Mapping[str, Any],
    switches: Switches,
    patch: Callable[[Any, Schema[Any], Switches], Patched],
) -> Iterator[Fix]:
    """The edits that make the value fit one alternative of the union it violates.

    A discriminator says which alternative is meant. Without one it is the alternative with the fewest violations; where
    two are as near and would give different values, none is chosen: that would be a guess.
    """
    steps = violation.steps or ()
    found = at(value, steps)
    branches = locate(document, violation.schema_path)
    if found is ABSENT or not isinstance(branches, list) or not is_portable(branches):
        return
    holder = locate(document, violation.schema_path.rpartition("/")[0])
    meant = _discriminated(found, branches, holder, document)
    mended = _mended(found, meant or branches, document, switches, patch)
    if mended is not None and mended.edits:
        yield tuple(
            dataclasses.replace(
                edit, steps=(*steps, *edit.steps), source=(*steps, *edit.source) if edit.op == "move" else ()
            )
            for edit in mended.edits
        )


def _mended(
    found: Any,
    branches: Sequence[Any],
    document: Mapping[str, Any],
    switches: Switches,
    patch: Callable[[Any, Schema[Any], Switches], Patched],
) -> Patched | None:
    """The value made to fit the nearest alternative that it can be made to fit; None where that is not one value."""
    shapes = [Schema[Any]("branch", _alone(branch, document)) for branch in branches]
    near = sorted(((len(shape.validate(found)), number) for number, shape in enumerate(shapes)))[:_MOST_TRIED]
    best: tuple[int, int] | None = None
    values: list[Patched] = []
    for distance, number in near:
        mended = patch(found, shapes[number], switches)
        rank = (distance, len(mended.edits))
        if mended.violations or (best is not None and rank > best):
            continue
        values = [mended] if best is None or rank < best else [*values, mended]
        best = rank
    return values[0] if values and all(each.value == values[0].value for each in values) else None


def _discriminated(found: Any, branches: Sequence[Any], holder: Any, document: Mapping[str, Any]) -> list[Any] | None:
    """The one alternative whose tag the value bears; None without one."""
    if not isinstance(found, Mapping):
        return None
    named = holder.get("discriminator") if isinstance(holder, Mapping) else None
    told = named.get("propertyName") if isinstance(named, Mapping) else None
    for key in [told] if isinstance(told, str) else list(found):
        bearing = [branch for branch in branches if _bears(branch, key, found.get(key), document)]
        tagged = [branch for branch in branches if _tags(branch, key, document)]
        if len(bearing) == 1 and len(tagged) == len(branches):
            return bearing
    return None


def _tags(branch: Any, key: str, document: Mapping[str, Any]) -> list[Any]:
    """The values that an alternative allows for a key, where it lists them."""
    shape = settled(branch, document)
    properties = shape.get("properties")
    tag = settled(properties.get(key), document) if isinstance(properties, Mapping) else {}
    listed = [tag["const"]] if "const" in tag else tag.get("enum")
    return listed if isinstance(listed, list) else []


def _bears(branch: Any, key: str, value: Any, document: Mapping[str, Any]) -> bool:
    tags = _tags(branch, key, document)
    if isinstance(value, str):
        return folded(value) in {folded(tag) for tag in tags if isinstance(tag, str)}
    return any(value == tag and type(value) is type(tag) for tag in tags)


def settled(node: Any, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The subschema that a reference inside the document leads to; empty where there is none.

    >>> settled({"$ref": "#/$defs/A"}, {"$defs": {"A": {"type": "null"}}})
    {'type': 'null'}
    """
    for _ in range(_DEPTH):
        reference = node.get("$ref") if isinstance(node, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        node = locate(document, reference[1:])
    return node if isinstance(node, Mapping) else {}


def _alone(branch: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """An alternative as a document of its own."""
    kept = {name: document[name] for name in ("$schema", "$defs", "definitions") if name in document}
    return {**kept, "allOf": [branch]} if isinstance(branch, Mapping) and "$ref" in branch else {**kept, **_of(branch)}


def _of(branch: Any) -> Mapping[str, Any]:
    return branch if isinstance(branch, Mapping) else {"allOf": [branch]}


def is_portable(shape: Any) -> bool:
    """Whether a subschema means the same elsewhere: its references go to the shared definitions only."""
    pending = [shape]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            reference = node.get("$ref")
            if isinstance(reference, str) and not reference.startswith(("#/$defs/", "#/definitions/")):
                return False
            if "$dynamicRef" in node or "$id" in node:
                return False
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return True
