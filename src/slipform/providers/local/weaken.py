"""A schema → the strongest one that decoding can be held to: only what offends is taken out, and named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from slipform.providers.local.formats import KNOWN, PLAINEST, SPELLINGS, spelled
from slipform.providers.local.grammar import grammar_problem
from slipform.providers.local.merge import Unmergeable, said_of
from slipform.providers.local.patterns import without_inner_anchors
from slipform.providers.local.walk import Json, Pointer, changed_at, found_at, subschemas

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])")
_UNKNOWN_FORMAT = re.compile(r"Unknown format: (\S*)")
_LOOK_AROUND = re.compile(r"\(\?(?:=|!|<=|<!)")
_GIVE_UP = 200
_WORTH_RESTORING = 40
_SPARED = frozenset(
    [
        "$schema",
        "$id",
        "id",
        "$anchor",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "type",
        "properties",
        "required",
        "items",
        "$ref",
        "$defs",
        "definitions",
        "enum",
        "const",
        "x-guidance",
    ]
)
"""Keywords that are never what offends, or without which no shape is left; taken out last or never."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A keyword that decoding is not held to; `reason` is the compiler's."""

    pointer: Pointer
    reason: str
    action: str = "dropped"


@dataclass(frozen=True, slots=True)
class _Edit:
    pointer: Pointer
    value: Any
    """What is put there; None takes it out, a function is given what stands there when the edit is made."""
    action: str
    harmless: bool = False

    def made(self, schema: Json) -> Json:
        value = self.value(found_at(schema, self.pointer)) if callable(self.value) else self.value
        return changed_at(schema, self.pointer, value)


def problem(schema: Mapping[str, Any]) -> str | None:
    """Why the schema does not compile; None when it does."""
    return grammar_problem("%llguidance {}\nstart: %json " + json.dumps(schema))


def weaken(
    schema: Mapping[str, Any], *, cycles: bool = True, certain: bool = False
) -> tuple[dict[str, Any], tuple[Loss, ...], str | None]:
    """The schema without what does not compile, what that was, and why it still does not compile, if so.

    Without `cycles`, references that lead back and have siblings are left for others to unroll. With `certain`, less
    is asked for rather than more where that is all that can be held.
    """
    current: dict[str, Any] = dict(schema)
    done: list[tuple[_Edit, str]] = []
    reason = problem(current)
    while reason is not None and len(done) < _GIVE_UP:
        edits = _helpful(current, reason, certain) if cycles or not is_cycle(reason) else []
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
    """Whether the compiler complains of references that lead back to themselves."""
    return reason is not None and reason.startswith("circular")


def _helpful(schema: Mapping[str, Any], reason: str, certain: bool) -> list[_Edit]:
    """The first edit after which the compiler no longer complains, or complains of something else."""
    edits = list(_edits(schema, reason, certain))
    if reason.startswith("Unimplemented"):
        return edits  # each of them would be complained about in its turn
    for edit in edits[:_GIVE_UP]:
        if problem(edit.made(schema)) != reason:
            return [edit]
    # Equal offences in several places give equal messages: take them one at a time.
    return edits[:1] if re.match(r"Unknown format|oneOf|regex|lookaround|circular|min/max", reason) else []


def _restored(
    schema: Mapping[str, Any], done: list[tuple[_Edit, str]]
) -> tuple[dict[str, Any], list[tuple[_Edit, str]]]:
    """Put back every edit that turned out not to be needed."""
    needed = list(done)
    for one in done:
        fewer = [other for other in needed if other is not one]
        try:
            if problem(_applied(schema, fewer)) is None:
                needed = fewer
        except (KeyError, IndexError, TypeError):  # a later edit is of what this one made
            continue
    return _applied(schema, needed), needed


def _applied(schema: Mapping[str, Any], edits: list[tuple[_Edit, str]]) -> dict[str, Any]:
    result: Any = dict(schema)
    for edit, _ in edits:
        result = edit.made(result)
    return dict(result)


def _losses(done: list[tuple[_Edit, str]]) -> tuple[Loss, ...]:
    return tuple(Loss(edit.pointer, reason, edit.action) for edit, reason in done if not edit.harmless)


def _edits(schema: Mapping[str, Any], reason: str, certain: bool) -> Iterator[_Edit]:
    """What could be done about a complaint, the likeliest first."""
    if found := _UNIMPLEMENTED.search(reason):
        yield from _drop(schema, frozenset(json.loads(found[1])))
    elif found := _UNKNOWN_FORMAT.search(reason):
        yield from _formats(schema, found[1], SPELLINGS | PLAINEST if certain else SPELLINGS)
    elif reason.startswith("oneOf"):
        yield from _one_of(schema)
    elif "regex" in reason:
        if certain:
            yield from _anchors(schema)
        yield from _patterns(schema, reason)
    elif "min/maxProperties" in reason:
        yield from _counted(schema)
        yield from _drop(schema, frozenset({"minProperties", "maxProperties"}))
    elif "sibling" in reason:
        yield from _siblings(schema)
    elif not reason.startswith("Unsatisfiable"):  # what nothing can satisfy is not made to fit by asking for less
        yield from _anything(schema)


def _formats(schema: Mapping[str, Any], name: str, spellings: Mapping[str, str]) -> Iterator[_Edit]:
    for pointer, sub in subschemas(schema):
        if "format" in sub and str(sub["format"]).startswith(name):
            if sub["format"] in spellings:
                plain = partial(spelled, spellings[sub["format"]])
                yield _Edit(pointer, plain, "format spelled as a pattern", harmless=True)
            yield _Edit((*pointer, "format"), None, "dropped", harmless=sub["format"] not in KNOWN)


def _drop(schema: Mapping[str, Any], keywords: frozenset[str]) -> Iterator[_Edit]:
    for pointer, sub in subschemas(schema):
        for keyword in sub:
            if keyword in keywords:
                yield _Edit((*pointer, keyword), None, "dropped")


def _counted(schema: Mapping[str, Any]) -> Iterator[_Edit]:
    """A number of keys, spelled as which ones: narrower than the schema, so that nothing is lost."""
    for pointer, sub in subschemas(schema):
        if _has_counted_keys(sub):
            yield _Edit(pointer, _with_counted_keys, "counted keys named", harmless=True)


def _has_counted_keys(sub: Mapping[str, Any]) -> bool:
    try:
        return _with_counted_keys(sub) is not sub
    except Unmergeable:  # a pattern of names that cannot be read here
        return False


def _with_counted_keys(sub: Mapping[str, Any]) -> Mapping[str, Any]:
    listed, required = sub.get("properties"), list(sub.get("required", ()))
    if not isinstance(listed, Mapping) or not {"minProperties", "maxProperties"} & sub.keys():
        return sub
    least, most = sub.get("minProperties", 0), sub.get("maxProperties", len(listed))
    optional = [name for name in listed if name not in required]
    required += optional[: max(0, least - len(required))]
    kept = [*required, *(name for name in optional if name not in required)][:most]
    if not least <= len(required) <= most:
        return sub
    rest = {key: value for key, value in sub.items() if key not in ("minProperties", "maxProperties")}
    rest["properties"] = {name: said_of(sub, name) for name in listed if name in kept}
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
    """Patterns that the complaint quotes; it may quote them in another spelling, so then all the others."""
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
    for pointer, sub in subschemas(schema):
        if "$ref" in sub:
            yield from (_Edit((*pointer, key), None, "dropped") for key in sub if key not in _SPARED)
    for pointer, sub in subschemas(schema):
        if "$ref" in sub and len(sub) > 1:
            yield _Edit(pointer, {"$ref": sub["$ref"]}, "siblings of $ref dropped")
    yield from _anything(schema)


def _anything(schema: Mapping[str, Any]) -> Iterator[_Edit]:
    for pointer, sub in subschemas(schema):
        for keyword in sub:
            if keyword not in _SPARED:
                yield _Edit((*pointer, keyword), None, "dropped")
    for pointer, sub in subschemas(schema):
        for keyword in ("enum", "const", "required", "$ref", "type"):
            if keyword in sub and pointer:
                yield _Edit((*pointer, keyword), None, "dropped")


def without_look_around(pattern: str) -> str | None:
    r"""The pattern without its look-around, which matches all that it did and more; None when there is none.

    >>> without_look_around("^(?!@@)[a-z@]+$")
    '^[a-z@]+$'
    """
    if not _LOOK_AROUND.search(pattern):
        return None
    while found := _LOOK_AROUND.search(pattern):
        end = _closing(pattern, found.end())
        if end is None:
            return None
        pattern = pattern[: found.start()] + pattern[end + 1 :]
    return pattern


def _closing(pattern: str, at: int) -> int | None:
    depth, in_class = 1, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return at
        at += 1
    return None
