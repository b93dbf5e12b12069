"""Drop keywords until a schema compiles, or prune the places that need them.

The grammar then does not allow such a place: an optional property is left out, a list that may be
empty stays empty, a branch with alternatives is removed. Every valid value of the result is valid under the
original schema, as far as the removed places are concerned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from slipform.addons.local.decoding.patterns import (
    PLAINEST,
    SPELLINGS,
    format_pattern,
    grammar_problem,
    without_inner_anchors,
    without_look_around,
)
from slipform.errors import SchemaError
from slipform.schema import Schema
from slipform.schema.document import (
    CONTENTS,
    DEFINITIONS,
    LISTS,
    MAPS,
    REF,
    Json,
    Pointer,
    found_at,
    lookup,
    replaced,
    subschemas,
    with_children,
)
from slipform.schema.examples import FORMATS
from slipform.schema.keywords import ANNOTATIONS, NoNormalForm, property_schema

_ROUNDS = 60


def prune(schema: Mapping[str, Any], weak: Mapping[str, Any], places: Iterable[Pointer]) -> tuple[Json, list[Pointer]]:
    """Return the schema `weak` without as many of the places as possible, and the removed places.

    A place is the pointer of a keyword that `weak` does not enforce but `schema` has. Known values that are valid
    there (a `default`, `examples`) stay as the only ones.

    >>> schema = {"properties": {"a": {"pattern": "(a)(?=b)"}, "b": {"type": "null"}}}
    >>> prune(schema, {"properties": {"a": {}, "b": {"type": "null"}}}, [("properties", "a", "pattern")])[0]
    {'properties': {'b': {'type': 'null'}}, 'additionalProperties': False}
    """
    done: list[Pointer] = []
    current: Json = weak
    for place in places:
        shorter = _without(current, schema, place)
        if shorter is not None:
            current = shorter
            done.append(place)
    return current, done


def _without(current: Json, schema: Json, place: Pointer) -> Json:
    """Return the schema without one place, or None where the place is required."""
    holder = _holder(current, place)
    there = _subschema_at(current, holder)
    full = _subschema_at(schema, holder)
    if not isinstance(there, Mapping) or not isinstance(full, Mapping):
        return None
    for less in (_single(place, there), _unnamed(place, holder, there), _known_values(full, schema), False):
        if less is not None:
            result = closed_up(replaced(current, holder, less) if holder else less)
            if result is not False:
                return result
    return None


def _subschema_at(schema: Json, pointer: Pointer) -> Json:
    try:
        return found_at(schema, pointer)
    except (KeyError, IndexError, ValueError, TypeError):
        return None


def _holder(current: Json, place: Pointer) -> Pointer:
    """Return the pointer of the subschema that a place is, or whose keyword it is."""
    listed = bool(place[-2:-1]) and (place[-2] in MAPS or (place[-1].isdigit() and place[-2] in LISTS))
    if not place or ((listed or place[-1] in CONTENTS) and isinstance(_subschema_at(current, place), Mapping)):
        return place
    return place[:-2] if listed else place[:-1]


def _unnamed(place: Pointer, holder: Pointer, sub: Mapping[str, Any]) -> Json:
    """Return a map without the names that only a pattern describes, where that pattern is not enforced."""
    if "patternProperties" not in place[len(holder) :] and place[-1:] != ("propertyNames",):
        return None
    return {**{key: value for key, value in sub.items() if key != "patternProperties"}, "additionalProperties": False}


def _single(place: Pointer, sub: Mapping[str, Any]) -> Json:
    """Return a list of distinct items with at most one item."""
    if place[-1:] != ("uniqueItems",) or sub.get("minItems", 0) > 1:
        return None
    return {**sub, "maxItems": min(1, sub.get("maxItems", 1))}


def _known_values(sub: Mapping[str, Any], root: Mapping[str, Any]) -> Json:
    """Return the example values that the schema has for the place, if they are valid there."""
    examples = sub.get("examples", [])
    named = [*(examples if isinstance(examples, list) else []), *([sub["default"]] if "default" in sub else [])]
    if not named:
        return None
    definitions = {key: root[key] for key in ("$schema", "$defs", "definitions") if key in root}
    try:
        judge = Schema[object]("place", {**definitions, **sub})
        valid = [value for value in named if not judge.validate(value)]
    except SchemaError:  # it refers to a part of the document that is missing here
        return None
    return {"enum": valid} if valid else None


def closed_up(schema: Json) -> Json:
    """Return the schema without the parts that no value matches, or False if no value matches the whole.

    >>> closed_up({"anyOf": [{"type": "null"}, {"required": ["a"], "properties": {"a": False}}]})
    {'anyOf': [{'type': 'null'}]}
    """
    for _ in range(_ROUNDS):
        smaller = _closed(schema, schema)
        if smaller == schema:
            return smaller
        schema = smaller
    return schema


def _closed(sub: Json, root: Json) -> Json:
    if not isinstance(sub, Mapping):
        return sub
    if REF in sub and lookup(root, sub[REF]) is False:
        return False
    changed = with_children(sub, lambda each, _: _closed(each, root), CONTENTS)
    for close in (_close_choices, _close_object, _close_array):
        if not close(changed):
            return False
    return changed


def _close_choices(changed: dict[str, Any]) -> bool:
    if False in changed.get("anyOf", ()):
        changed["anyOf"] = [each for each in changed["anyOf"] if each is not False]
        if not changed["anyOf"]:
            return False
    # A value of one branch of a `oneOf` must not match another: without the branch, the others would accept it.
    return False not in (*changed.get("oneOf", ()), *changed.get("allOf", ()))


def _close_object(changed: dict[str, Any]) -> bool:
    listed = changed.get("properties", {})
    if gone := [name for name, each in listed.items() if each is False]:
        changed["properties"] = {name: each for name, each in listed.items() if each is not False}
        changed["additionalProperties"] = False
        changed.pop("patternProperties", None)
    named = changed.get("patternProperties", {})
    if any(each is False for each in named.values()):
        # The remaining names would need one pattern: all of them are dropped instead.
        del changed["patternProperties"]
        changed["additionalProperties"] = False
    return not set(gone) & set(changed.get("required", ()))


def _close_array(changed: dict[str, Any]) -> bool:
    for key in ("items", "prefixItems"):
        if isinstance(changed.get(key), list) and False in changed[key]:
            _shorten(changed, changed[key].index(False))
            changed[key] = changed[key][: changed[key].index(False)]
    if changed.get("items") is False and "maxItems" not in changed:
        _shorten(changed, len(changed.get("prefixItems", ())))
    return bool(changed.get("minItems", 0) <= changed.get("maxItems", changed.get("minItems", 0)))


def _shorten(changed: dict[str, Any], most: int) -> None:
    changed["maxItems"] = min(most, changed.get("maxItems", most))


_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])")
_UNKNOWN_FORMAT = re.compile(r"Unknown format: (\S*)")
_GIVE_UP = 200
_WORTH_RESTORING = 40
_SPARED = ANNOTATIONS | {
    "$anchor", "writeOnly", "type", "properties", "required", "items", REF, *DEFINITIONS, "enum", "const", "x-guidance",
}  # fmt: skip
"""Keywords that never cause an error, or that define the shape; dropped last or never."""


@dataclass(frozen=True, slots=True)
class DroppedKeyword:
    """A keyword that decoding does not enforce; `reason` is the compiler's."""

    pointer: Pointer
    reason: str
    action: str = "dropped"


@dataclass(frozen=True, slots=True)
class _Edit:
    pointer: Pointer
    value: Any
    """The replacement; None removes the place, a function is given the current value when the edit is applied."""
    action: str
    harmless: bool = False

    def made(self, schema: Json) -> Json:
        value = self.value(found_at(schema, self.pointer)) if callable(self.value) else self.value
        return replaced(schema, self.pointer, value)


def problem(schema: Mapping[str, Any]) -> str | None:
    """Return why the schema does not compile; None when it does."""
    return grammar_problem("%llguidance {}\nstart: %json " + json.dumps(schema))


def weaken(
    schema: Mapping[str, Any], *, cycles: bool = True, exact: bool = False
) -> tuple[dict[str, Any], tuple[DroppedKeyword, ...], str | None]:
    """Return the schema without keywords that do not compile, those keywords, and the remaining error, if any.

    Without `cycles`, recursive references with siblings are left for the caller to unroll. With `exact`, the result
    excludes valid values rather than accept invalid ones.
    """
    current: dict[str, Any] = dict(schema)
    done: list[tuple[_Edit, str]] = []
    reason = problem(current)
    while reason is not None and len(done) < _GIVE_UP:
        edits = _helpful(current, reason, exact) if cycles or not is_cycle(reason) else []
        if not edits:
            return current, _losses(done), reason
        for edit in edits:
            current = edit.made(current)
            done.append((edit, reason))
        reason = problem(current)
    if reason is None and 1 < len(done) <= _WORTH_RESTORING:
        current, done = _restored(schema, done)
    return current, _losses(done), reason


def is_cycle(reason: str | None) -> bool:
    """Return whether the compiler rejects recursive references."""
    return reason is not None and reason.startswith("circular")


def _helpful(schema: Mapping[str, Any], reason: str, exact: bool) -> list[_Edit]:
    """Return the first edit after which the compiler accepts the schema, or reports something else."""
    edits = list(_edits(schema, reason, exact))
    if reason.startswith("Unimplemented"):
        return edits  # each of them would be reported in turn
    for edit in edits[:_GIVE_UP]:
        if problem(edit.made(schema)) != reason:
            return [edit]
    # The same error in several places has the same message: try the places one at a time.
    if re.match(r"Unknown format|oneOf|regex|lookaround|circular|min/max|Failed to generate", reason):
        return edits[:1]
    return []


def _restored(
    schema: Mapping[str, Any], done: list[tuple[_Edit, str]]
) -> tuple[dict[str, Any], list[tuple[_Edit, str]]]:
    """Revert every edit that was not needed."""
    needed = list(done)
    for one in done:
        fewer = [other for other in needed if other is not one]
        try:
            if problem(_applied(schema, fewer)) is None:
                needed = fewer
        except (KeyError, IndexError, TypeError):  # a later edit applies to the result of this one
            continue
    return _applied(schema, needed), needed


def _applied(schema: Mapping[str, Any], edits: list[tuple[_Edit, str]]) -> dict[str, Any]:
    result: Any = dict(schema)
    for edit, _ in edits:
        result = edit.made(result)
    return dict(result)


def _losses(done: list[tuple[_Edit, str]]) -> tuple[DroppedKeyword, ...]:
    return tuple(DroppedKeyword(edit.pointer, reason, edit.action) for edit, reason in done if not edit.harmless)


def _edits(schema: Mapping[str, Any], reason: str, exact: bool) -> Iterator[_Edit]:
    """Yield edits that may resolve a compiler error, the likeliest first."""
    if match := _UNIMPLEMENTED.search(reason):
        yield from _drop(schema, frozenset(json.loads(match[1])))
    elif match := _UNKNOWN_FORMAT.search(reason):
        yield from _formats(schema, match[1], SPELLINGS | PLAINEST if exact else SPELLINGS)
    elif reason.startswith("oneOf"):
        yield from _one_of(schema)
    elif "integer range" in reason:
        yield from _drop(
            schema,
            frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
            lambda bound: isinstance(bound, int) and abs(bound) >= 2**63,
        )
    elif "regex" in reason:
        if exact:
            yield from _anchors(schema)
        yield from _patterns(schema, reason)
    elif "min/maxProperties" in reason:
        yield from _counted(schema)
        yield from _drop(schema, frozenset({"minProperties", "maxProperties"}))
    elif "sibling" in reason:
        yield from _siblings(schema)
    elif not reason.startswith("Unsatisfiable"):  # without valid values, fewer keywords do not help either
        yield from _anything(schema)


def _formats(schema: Mapping[str, Any], name: str, spellings: Mapping[str, str]) -> Iterator[_Edit]:
    for pointer, sub in subschemas(schema):
        if "format" in sub and str(sub["format"]).startswith(name):
            if sub["format"] in spellings:
                plain = partial(format_pattern, spellings[sub["format"]])
                yield _Edit(pointer, plain, "format spelled as a pattern", harmless=True)
            yield _Edit((*pointer, "format"), None, "dropped", harmless=sub["format"] not in FORMATS)


def _drop(
    schema: Mapping[str, Any], keywords: frozenset[str], where: Callable[[Any], bool] = lambda _: True
) -> Iterator[_Edit]:
    for pointer, sub in subschemas(schema):
        for keyword, value in sub.items():
            if keyword in keywords and where(value):
                yield _Edit((*pointer, keyword), None, "dropped")


def _counted(schema: Mapping[str, Any]) -> Iterator[_Edit]:
    """Yield a number of keys as a set of required ones: narrower than the schema, so that nothing is lost."""
    for pointer, sub in subschemas(schema):
        if _has_counted_keys(sub):
            yield _Edit(pointer, _with_counted_keys, "counted keys named", harmless=True)


def _has_counted_keys(sub: Mapping[str, Any]) -> bool:
    try:
        return _with_counted_keys(sub) is not sub
    except NoNormalForm:  # a pattern of names that cannot be parsed here
        return False


def _with_counted_keys(sub: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object schema without a number of keys: the first optional ones are required, the last ones left out.

    The schema is returned unchanged where its properties cannot satisfy that number.
    """
    properties = sub.get("properties")
    required = list(sub.get("required", ()))
    if not isinstance(properties, Mapping) or not {"minProperties", "maxProperties"} & sub.keys():
        return sub
    least = sub.get("minProperties", 0)
    most = sub.get("maxProperties", len(properties))
    optional = [name for name in properties if name not in required]
    required += optional[: max(0, least - len(required))]
    if not least <= len(required) <= most:
        return sub
    still_optional = [name for name in optional if name not in required]
    names = [*required, *still_optional][:most]
    rest = {key: value for key, value in sub.items() if key not in ("minProperties", "maxProperties")}
    rest["properties"] = {name: property_schema(sub, name) for name in properties if name in names}
    if "maxProperties" in sub:
        rest["additionalProperties"] = False
        rest.pop("patternProperties", None)
    return {**rest, "required": required}


def _one_of(schema: Mapping[str, Any]) -> Iterator[_Edit]:
    for pointer, sub in subschemas(schema):
        if "oneOf" in sub:
            yield _Edit(pointer, _any_for_one, "oneOf taken for anyOf")


def _any_for_one(sub: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in sub.items() if key != "oneOf"}
    either = {"anyOf": sub["oneOf"]}
    if "anyOf" in rest:
        return {**rest, "allOf": [*rest.get("allOf", ()), either]}
    return rest | either


def _patterns(schema: Mapping[str, Any], reason: str) -> Iterator[_Edit]:
    """Return the patterns that the error quotes; all others where it quotes them in another spelling."""
    for quoted in (True, False):
        for pointer, sub in subschemas(schema):
            pattern = sub.get("pattern")
            if isinstance(pattern, str) and (pattern in reason) is quoted:
                looser = without_look_around(pattern)
                if looser is not None:
                    yield _Edit((*pointer, "pattern"), looser, "look-around dropped")
                yield _Edit((*pointer, "pattern"), None, "dropped")
            named = sub.get("patternProperties")
            for name in named if isinstance(named, Mapping) else ():
                if (name in reason) is quoted:
                    yield from _named_pattern(pointer, sub["patternProperties"], name)


def _anchors(schema: Mapping[str, Any]) -> Iterator[_Edit]:
    for pointer, sub in subschemas(schema):
        if isinstance(sub.get("pattern"), str) and (narrower := without_inner_anchors(sub["pattern"])):
            yield _Edit((*pointer, "pattern"), narrower, "anchors inside dropped", harmless=True)


def _named_pattern(pointer: Pointer, named: Mapping[str, Any], name: str) -> Iterator[_Edit]:
    looser = without_look_around(name)
    if looser is not None and looser not in named:
        renamed = partial(_renamed, name, looser)
        yield _Edit((*pointer, "patternProperties"), renamed, f"look-around dropped in {name}")
    yield _Edit((*pointer, "patternProperties", name), None, "dropped")


def _renamed(name: str, new: str, named: Mapping[str, Any]) -> dict[str, Any]:
    return {new if key == name else key: value for key, value in named.items()}


def _siblings(schema: Mapping[str, Any]) -> Iterator[_Edit]:
    """Yield edits that drop keywords beside references, then any."""
    for pointer, sub in subschemas(schema):
        if REF in sub:
            yield from (_Edit((*pointer, key), None, "dropped") for key in sub if key not in _SPARED)
    for pointer, sub in subschemas(schema):
        if REF in sub and len(sub) > 1:
            yield _Edit(pointer, {REF: sub[REF]}, "siblings of $ref dropped")
    yield from _anything(schema)


def _anything(schema: Mapping[str, Any]) -> Iterator[_Edit]:
    """Yield edits that drop one keyword each: the least constraining first, then lists and types."""
    for pointer, sub in subschemas(schema):
        for keyword in sub:
            if keyword not in _SPARED:
                yield _Edit((*pointer, keyword), None, "dropped")
    for pointer, sub in subschemas(schema):
        for keyword in ("enum", "const", "required", REF, "type"):
            if keyword in sub and pointer:
                yield _Edit((*pointer, keyword), None, "dropped")
