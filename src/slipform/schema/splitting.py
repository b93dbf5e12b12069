"""Split the schema of a wide object into schemas of some of its properties, and join the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from slipform.schema.document import (
    DEFINITIONS,
    IN_PLACE_LISTS,
    REFERENCES,
    followed,
    reference_of,
    reference_steps,
    subschemas,
    with_plain_references,
)
from slipform.schema.limits import json_text

MOST_PARTS: Final = 16
"""The most parts of one schema: each is a separate call, and a request has a limit of calls."""

_Path: TypeAlias = tuple[str, ...]
_Group: TypeAlias = tuple[_Path, ...]
"""Properties that must be in the same part, because one constraint names them together."""

_NOTES: Final = frozenset({"$comment", "default", "description", "examples", "title"})
_CONDITIONS: Final = ("if", "then", "else")
_CONSTRAINTS: Final = frozenset({
    *IN_PLACE_LISTS, *_CONDITIONS, "not", "dependentRequired", "dependentSchemas", "dependencies",
})  # fmt: skip
_OTHER_KEYS: Final = ("additionalProperties", "patternProperties", "propertyNames")
_COUNTS: Final = ("maxProperties", "minProperties", "unevaluatedProperties")
_PLAIN: Final = frozenset({
    "$id", "$schema", "id", "properties", "required", "type",
    *_NOTES, *_CONSTRAINTS, *_OTHER_KEYS, *_COUNTS, *DEFINITIONS,
})  # fmt: skip
"""Keywords of an object that can be split; constraints on the whole are left to the final validation."""


class SchemaPart(NamedTuple):
    """The schema of some properties of a wide object, and their paths."""

    document: dict[str, Any]
    properties: tuple[_Path, ...]


def split_schema(
    document: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool], most: int = MOST_PARTS
) -> tuple[SchemaPart, ...]:
    """Return parts in the order of the properties, as large as possible; none where the schema cannot be split.

    >>> schema = {"type": "object", "properties": {name: {"type": "null"} for name in "abc"}}
    >>> [part.properties for part in split_schema(schema, lambda part: len(part["properties"]) < 3)]
    [(('a',), ('b',)), (('c',),)]
    """
    root = _splittable_root(document)
    if root is None:
        return ()
    groups = _groups(root, ())
    parts: list[SchemaPart] = []
    shown: set[_Path] = set()
    while groups:
        count = _number_that_fit(root, groups, shown, fits)
        if count == 0:
            inner = _inner_groups(root, groups[0])
            if len(inner) < 2:
                return ()
            groups = [*inner, *groups[1:]]
            continue
        parts.append(_part(root, groups[:count], shown))
        shown |= _objects_of(groups[:count])
        groups = groups[count:]
        if len(parts) > most:
            return ()
    return tuple(parts) if len(parts) > 1 else ()


def halve_schema(document: Mapping[str, Any]) -> tuple[SchemaPart, ...]:
    """Return two parts of similar length; none where the schema cannot be split.

    >>> schema = {"type": "object", "properties": {name: {"type": "null"} for name in "abcd"}}
    >>> [part.properties for part in halve_schema(schema)]
    [(('a',), ('b',)), (('c',), ('d',))]
    """
    root = _splittable_root(document)
    groups = [] if root is None else _groups(root, ())
    while root is not None and len(groups) == 1:
        groups = _inner_groups(root, groups[0])
    if root is None or len(groups) < 2:
        return ()
    sizes = [len(json_text(_part(root, [group], set()).document)) for group in groups]
    middle = min(range(1, len(groups)), key=lambda number: abs(sum(sizes[:number]) - sum(sizes[number:])))
    first = groups[:middle]
    return (_part(root, first, set()), _part(root, groups[middle:], _objects_of(first)))


def can_split(document: Mapping[str, Any]) -> bool:
    """Return whether a schema can be split.

    >>> can_split({"type": "object", "properties": {"a": {}, "b": {}}}), can_split({"type": "array"})
    (True, False)
    """
    root = _splittable_root(document)
    groups = [] if root is None else _groups(root, ())
    return len(groups) > 1 or (root is not None and len(groups) == 1 and len(_inner_groups(root, groups[0])) > 1)


def join_parts(values: Sequence[Any], parts: Sequence[SchemaPart]) -> Any:
    """Return the object with the properties of these values, one per part.

    >>> parts = halve_schema({"type": "object", "properties": {"a": {}, "b": {}}})
    >>> join_parts([{"a": 1, "other": 3}, {"b": 2}], parts)
    {'a': 1, 'b': 2, 'other': 3}
    """
    whole: dict[str, Any] = {}
    for value, part in zip(values, parts, strict=True):
        if isinstance(value, Mapping):
            _put(whole, value, part.properties)
    for value in values:
        if isinstance(value, Mapping):
            _add_other_keys(whole, value)
    return whole


def _put(whole: dict[str, Any], value: Mapping[str, Any], paths: Sequence[_Path]) -> None:
    for name, inner in _by_name(paths).items():
        if name not in value:
            continue
        if inner and isinstance(value[name], Mapping):
            _put(whole.setdefault(name, {}), value[name], inner)
        else:
            whole[name] = value[name]


def _add_other_keys(whole: dict[str, Any], value: Mapping[str, Any]) -> None:
    """Add the keys that belong to no part: the first part may have allowed them."""
    for name, member in value.items():
        if name not in whole:
            whole[name] = member
        elif isinstance(member, Mapping) and isinstance(whole[name], dict) and member is not whole[name]:
            _add_other_keys(whole[name], member)


def _by_name(paths: Sequence[_Path]) -> dict[str, list[_Path]]:
    """Return the paths below each first step."""
    below: dict[str, list[_Path]] = {}
    for path in paths:
        inner = below.setdefault(path[0], [])
        if len(path) > 1:
            inner.append(path[1:])
    return below


def _number_that_fit(
    root: Mapping[str, Any], groups: Sequence[_Group], shown: set[_Path], fits: Callable[[Mapping[str, Any]], bool]
) -> int:
    """Return how many of the groups fit into one part, found by bisection; 0 where not even the first does."""
    low = 0
    high = len(groups) + 1
    middle = len(groups)
    while high - low > 1:
        if fits(_part(root, groups[:middle], shown).document):
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
    return low


def _splittable_root(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the document with plain references to definitions only; None where it cannot be split."""
    root = with_plain_references(document)
    if not _is_plain_object(root):
        return None
    for _, node in subschemas(root):
        for keyword in REFERENCES:
            steps = reference_steps(node[keyword]) if keyword in node else ("$defs", "")
            if steps is None or len(steps) < 2 or steps[0] not in DEFINITIONS:
                return None
    return root


def _is_plain_object(node: Mapping[str, Any]) -> bool:
    properties = node.get("properties")
    if not isinstance(properties, Mapping) or not properties or node.get("type", "object") != "object":
        return False
    mentioned = {name for keyword in _CONSTRAINTS & node.keys() for name in _mentioned({keyword: node[keyword]})}
    return node.keys() <= _PLAIN and mentioned <= properties.keys()


def _mentioned(node: Any) -> Iterator[str | None]:
    """Yield the properties that a constraint of an object names; None where it may name others."""
    if not isinstance(node, Mapping):
        return
    yield from node.get("properties", ())
    yield from node.get("required", ())
    if any(keyword in node for keyword in (*REFERENCES, *_OTHER_KEYS)):
        yield None
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, dependent in node.get(keyword, {}).items():
            yield name
            yield from dependent if isinstance(dependent, list) else _mentioned(dependent)
    for keyword in (*_CONDITIONS, "not"):
        yield from _mentioned(node.get(keyword))
    for keyword in IN_PLACE_LISTS:
        for branch in node.get(keyword, ()):
            yield from _mentioned(branch)


def _constraints(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the constraints that name several properties: each dependency and each branch of `allOf`."""
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, dependent in node.get(keyword, {}).items():
            yield keyword, {name: dependent}
    for branch in node.get("allOf", ()):
        yield "allOf", [branch]
    for keyword in ("anyOf", "oneOf", "not"):
        if keyword in node:
            yield keyword, node[keyword]
    if "if" in node:
        yield "if", {keyword: node[keyword] for keyword in _CONDITIONS if keyword in node}


def _names_in(keyword: str, value: Any) -> set[str]:
    constraint = value if keyword == "if" else {keyword: value}
    return {name for name in _mentioned(constraint) if name is not None}


def _groups(node: Mapping[str, Any], prefix: _Path) -> list[_Group]:
    """Return the properties of an object in their order, grouped where a constraint names them together."""
    group_of = {name: [name] for name in node["properties"]}
    for keyword, value in _constraints(node):
        tied = list(dict.fromkeys(id(group_of[name]) for name in _names_in(keyword, value)))
        together = [name for name in group_of if id(group_of[name]) in tied]
        for name in together:
            group_of[name] = together
    distinct = {id(group): group for group in group_of.values()}
    return [tuple((*prefix, name) for name in group) for group in distinct.values()]


def _inner_groups(root: Mapping[str, Any], group: _Group) -> list[_Group]:
    """Return the properties of the object at the only path of a group; none where that cannot be split."""
    if len(group) > 1:
        return []
    node: Any = root
    for name in group[0]:
        node = followed(node, root)["properties"][name]
    if reference_of(node) is not None and not node.keys() - {"$ref"} <= _NOTES:
        return []
    inner = followed(node, root)
    return _groups(inner, group[0]) if _is_plain_object(inner) and len(group[0]) < _DEEPEST else []


_DEEPEST: Final = 5


def _objects_of(groups: Sequence[_Group]) -> set[_Path]:
    """Return the paths of the objects that have these properties."""
    return {path[:depth] for group in groups for path in group for depth in range(len(path))}


def _part(root: Mapping[str, Any], groups: Sequence[_Group], shown: set[_Path]) -> SchemaPart:
    """Return the part with these properties; `shown` are the objects in earlier parts."""
    paths = tuple(path for group in groups for path in group)
    schema = _selection(root, root, paths, (), shown)
    definitions = _reached(schema, root)
    return SchemaPart({**{name: root[name] for name in ("$schema",) if name in root}, **schema, **definitions}, paths)


def _selection(
    node: Mapping[str, Any], root: Mapping[str, Any], paths: Sequence[_Path], at: _Path, shown: set[_Path]
) -> dict[str, Any]:
    """Return an object's schema with only these properties, and the constraints on them alone."""
    properties: dict[str, Any] = {}
    for name, inner in _by_name(paths).items():
        member = node["properties"][name]
        if inner:
            member = _selection(followed(member, root), root, inner, (*at, name), shown)
        properties[name] = member
    selected: dict[str, Any] = {name: node[name] for name in ("title", "description") if name in node}
    required = [name for name in node.get("required", ()) if name in properties]
    selected |= {"type": "object", "properties": properties}
    if required:  # an empty list is invalid in draft 4
        selected["required"] = required
    if at in shown:  # unlisted keys belong to the first part
        selected["additionalProperties"] = False
    else:
        selected |= {name: node[name] for name in _OTHER_KEYS if name in node}
    for keyword, value in _constraints(node):
        if not _names_in(keyword, value) <= properties.keys():
            continue
        if keyword == "if":
            selected |= value
        elif isinstance(value, dict) and keyword != "not":
            selected[keyword] = {**selected.get(keyword, {}), **value}
        else:
            selected[keyword] = [*selected.get(keyword, ()), *value] if keyword == "allOf" else value
    return selected


def _reached(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions that a schema uses."""
    reached: dict[tuple[str, str], Any] = {}
    pending: list[Any] = [schema]
    while pending:
        for _, node in subschemas(pending.pop()):
            for keyword in REFERENCES:
                steps = reference_steps(node.get(keyword)) or ()
                if len(steps) > 1 and steps[:2] not in reached:
                    reached[steps[0], steps[1]] = definition = root.get(steps[0], {}).get(steps[1])
                    pending.append(definition)
    used: dict[str, Any] = {}
    for kind in DEFINITIONS:
        definitions = {name: each for name, each in root.get(kind, {}).items() if (kind, name) in reached}
        if definitions:
            used[kind] = definitions
    return used
