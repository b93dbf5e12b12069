"""Check a schema against the vendors' strict-mode rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from slipform.errors import AdditionalPropertiesNotFalse, RequiredMissingProperties, StrictSchemaError
from slipform.schema.document import (
    LISTS,
    MAPS,
    SINGLES,
    children,
    found_at,
    lookup,
    reference_of,
    reference_steps,
    with_plain_references,
)

_Path: TypeAlias = tuple[Any, str]
"""The path so far, and the last step; joined only for a finding."""
_Todo: TypeAlias = tuple[Any, _Path]

_WALKED = frozenset({*MAPS, *LISTS, *SINGLES})
_MAX_FOLLOWED = 200
"""The most references to places that cannot have a schema, of which a hostile document could have any number."""


def strict_preflight(schema: Any) -> None:
    """Raise for the first violation of the strict-mode rules.

    The order is: `additionalProperties`, `required`, then down into the properties or the items,
    then into `anyOf`, `allOf` and `oneOf`. References are not followed; `strict_findings` does that.

    >>> strict_preflight({"type": "object", "additionalProperties": False})
    """
    # Depth first, without recursion: a schema may be deeper than the interpreter's stack.
    todo: list[_Todo] = [(schema, (None, "$"))]
    while todo:
        node, path = todo.pop()
        if not isinstance(node, Mapping):
            continue
        if node.get("type") == "object":
            for breach in _object_rules(node, path):
                raise breach
        todo.extend(reversed(list(_preflight_children(node, path))))


def strict_findings(schema: Any) -> list[StrictSchemaError]:
    """Return every violation of the strict-mode rules, also in places that `strict_preflight` skips.

    These are: definitions, lists of types, tuples, schemas of further properties, `not` and `if`, and targets of
    references within the document. Each target is checked once, so cycles are safe.

    >>> [str(found) for found in strict_findings({"type": ["object", "null"]})]
    ['strict-mode schema requires `additionalProperties: false` at $']
    """
    findings: dict[StrictSchemaError, None] = {}
    followed: set[str] = set()
    document = with_plain_references(schema) if isinstance(schema, Mapping) else schema
    todo: list[_Todo] = [(document, (None, "$"))]
    while todo:
        node, path = todo.pop()
        if not isinstance(node, Mapping):
            continue
        if _says_object(node):
            findings.update(dict.fromkeys(_object_rules(node, path)))
        todo.extend(reversed([*_children(node, path), *_target(document, node, followed)]))
    return list(findings)


def _says_object(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    if isinstance(kind, list):
        return "object" in kind
    return kind == "object"


def _object_rules(schema: Mapping[str, Any], path: _Path) -> Iterator[StrictSchemaError]:
    """Yield an object's violations of strict mode: open to other keys, or with optional properties."""
    if schema.get("additionalProperties") is not False:
        yield AdditionalPropertiesNotFalse(_path_text(path))
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return
    listed = schema.get("required")
    required = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
    missing = [name for name in properties if name not in required]
    if missing:
        yield RequiredMissingProperties(_path_text(path), missing)


def _path_text(path: _Path) -> str:
    steps: list[str] = []
    rest: _Path | None = path
    while rest is not None:
        steps.append(rest[1])
        rest = rest[0]
    return "".join(reversed(steps))


def _preflight_children(node: Mapping[str, Any], path: _Path) -> Iterator[_Todo]:
    """Yield properties under `type: object`, items under `type: array`, then compositions; nothing else."""
    kind = node.get("type")
    keywords = ["anyOf", "allOf", "oneOf"]
    if kind == "object":
        keywords.insert(0, "properties")
    elif kind == "array":
        keywords.insert(0, "items")
    for keyword in keywords:
        if isinstance(node.get(keyword), Mapping if keyword in ("properties", "items") else list):
            yield from _children({keyword: node[keyword]}, path)


def _children(node: Mapping[str, Any], path: _Path) -> Iterator[_Todo]:
    for steps, sub in children((), node):
        name = f"[{steps[1]}]" if steps[0] in LISTS and len(steps) > 1 else "".join(f".{step}" for step in steps[1:])
        yield sub, (path, f".{steps[0]}{name}")


def _target(document: Any, node: Mapping[str, Any], followed: set[str]) -> Iterator[_Todo]:
    """Yield the target of a reference, with the target's own path.

    Nothing for places that are checked anyway, such as definitions.
    """
    reference = reference_of(node)
    steps = reference_steps(reference)
    if reference is None or not steps or reference in followed:
        return
    if steps[0] in _WALKED or len(followed) >= _MAX_FOLLOWED:
        return
    followed.add(reference)
    target = lookup(document, reference)
    if target is None:
        return
    path: _Path = (None, "$")
    for number, step in enumerate(steps):
        is_index = isinstance(found_at(document, steps[:number]), list)
        path = (path, f"[{step}]" if is_index else f".{step}")
    yield target, path
