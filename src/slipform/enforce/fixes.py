"""For one violation: the mechanical edits that may mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from slipform.enforce.coerce import Risk, coercions
from slipform.schema import Violation

Steps: TypeAlias = tuple[str | int, ...]

_AROUND = " \t\r\n\"'`*.!,;:()"

ABSENT: Any = object()
"""What stands where nothing is."""


@dataclass(frozen=True, slots=True)
class Switches:
    """Which kinds of patches are allowed. What may change the meaning is off unless asked for."""

    coerce: bool = True
    drop_extra: bool = True
    rename_keys: bool = True
    units: bool = False
    """Take the number out of "12 kg" or "$5"."""
    wrap_scalars: bool = False
    """Make a one-item array of a value where an array is wanted."""
    fill_defaults: bool = False
    """Give a missing key its schema's `default`."""
    fill_constants: bool = True
    """Give a missing key the one value that its schema allows there."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One JSON Patch operation, why it was made, and how sure it is."""

    op: Literal["add", "remove", "replace", "move"]
    steps: Steps
    reason: str
    risk: Risk = "low"
    value: Any = ABSENT
    source: Steps = ()


Fix: TypeAlias = tuple[Edit, ...]
"""Edits that belong together."""


def fixes(violation: Violation, value: Any, document: Mapping[str, Any], switches: Switches) -> Iterator[Fix]:
    """The edits that may mend this violation of `value`, best first; each is to be tried, none to be trusted."""
    steps = violation.steps or ()
    found = at(value, steps)
    if violation.keyword in ("additionalProperties", "unevaluatedProperties", "falseSchema"):
        if switches.drop_extra:
            yield from _drop(violation, steps, found, document)
        return
    holder = locate(document, violation.schema_path.rpartition("/")[0])
    if found is ABSENT or not isinstance(holder, Mapping):
        return
    if violation.keyword == "required":
        yield from _missing(violation, steps, found, holder, switches)
        return
    if found is None and steps and isinstance(steps[-1], str) and _is_optional(violation, document):
        yield (Edit("remove", steps, "null for an optional key"),)
    accepted = _Accepted.under(holder, document)
    if switches.coerce:
        yield from _members(steps, found, accepted)
        for each in coercions(found, accepted.types, units=switches.units):
            yield (Edit("replace", steps, each.reason, each.risk, each.value),)
    if switches.wrap_scalars and "array" in accepted.types and not isinstance(found, list):
        yield (Edit("replace", steps, "one value as an array", "medium", [found]),)


def at(value: Any, steps: Steps) -> Any:
    """The part of a value that a path leads to, or ABSENT."""
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return value


def locate(document: Any, path: str) -> Any:
    """The part of a schema that a JSON Pointer leads to, or None."""
    for part in path.split("/")[1:]:
        step = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        elif isinstance(document, Mapping) and step in document:
            document = document[step]
        else:
            return None
    return document


def _drop(violation: Violation, steps: Steps, found: Any, document: Mapping[str, Any]) -> Iterator[Fix]:
    if violation.keyword == "additionalProperties":
        yield (Edit("remove", steps, "a key the schema forbids"),)
    elif isinstance(found, dict):
        # The validator names the object, not its keys: those that the schema nowhere speaks of go.
        spoken = _all_property_names(document)
        extra = [key for key in found if key not in spoken]
        if extra:
            yield tuple(Edit("remove", (*steps, key), "a key the schema forbids") for key in extra)


def _missing(
    violation: Violation, steps: Steps, found: Any, holder: Mapping[str, Any], switches: Switches
) -> Iterator[Fix]:
    if not isinstance(found, Mapping):
        return
    properties = holder.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    absent = [name for name in holder.get("required", ()) if name not in found]
    for name in absent:
        if f'"{name}"' not in violation.message:
            continue
        alike = [key for key in found if key not in known and folded(key) == folded(name)]
        if switches.rename_keys and len(alike) == 1:
            reason = "a key spelled another way"
            yield (Edit("move", (*steps, name), reason, "medium", source=(*steps, alike[0])),)
        yield from _given_by_the_schema((*steps, name), known.get(name), switches)


def _given_by_the_schema(steps: Steps, shape: Any, switches: Switches) -> Iterator[Fix]:
    if not isinstance(shape, Mapping):
        return
    only = [shape["const"]] if "const" in shape else shape.get("enum")
    if switches.fill_constants and isinstance(only, list) and len(only) == 1:
        yield (Edit("add", steps, "the one value the schema allows here", "low", only[0]),)
    if switches.fill_defaults and "default" in shape:
        yield (Edit("add", steps, "the schema's default", "medium", shape["default"]),)


def folded(name: str) -> str:
    """A name without what people spell in different ways: case, and the marks between words.

    >>> folded("First_Name") == folded("first-name")
    True
    """
    return "".join(char for char in name.casefold() if char not in "_- ")


def _is_optional(violation: Violation, document: Mapping[str, Any]) -> bool:
    """Whether the key that holds the value may be left out, as far as the object schema around it says."""
    path = violation.schema_path.rpartition("/")[0]
    around, _, name = path.rpartition("/properties/")
    holder = locate(document, around) if name and "/" not in name else None
    if not isinstance(holder, Mapping):
        return True  # reached by a reference or a union: leaving it out is tried, and kept only if that validates
    return name.replace("~1", "/").replace("~0", "~") not in holder.get("required", ())


@dataclass(frozen=True, slots=True)
class _Accepted:
    """What a schema takes, as far as it can be read off: types by name, and listed members."""

    types: frozenset[str]
    members: tuple[Any, ...]

    @classmethod
    def under(cls, schema: Any, document: Mapping[str, Any]) -> _Accepted:
        types: set[str] = set()
        members: list[Any] = []
        pending, seen = [schema], 0
        while pending and seen < 200:
            node = pending.pop()
            seen += 1
            if not isinstance(node, Mapping):
                continue
            kinds = node.get("type")
            types.update([kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else [])
            if isinstance(listed := node.get("enum"), list):
                members += listed
            if "const" in node:
                members.append(node["const"])
            for union in ("anyOf", "oneOf", "allOf"):
                if isinstance(branches := node.get(union), list):
                    pending.extend(branches)
            if isinstance(reference := node.get("$ref"), str) and reference.startswith("#"):
                pending.append(locate(document, reference[1:]))
        return cls(frozenset(types), tuple(members))


def _members(steps: Steps, found: Any, accepted: _Accepted) -> Iterator[Fix]:
    """A listed member in another case, with blanks around it, or with a number written as text."""
    if not isinstance(found, str):
        return
    for spelled in (_in_case, _in_letters):
        wanted = spelled(found)
        fitting = [member for member in accepted.members if wanted and spelled(_as_text(member)) == wanted]
        if fitting:
            if len(fitting) == 1:
                yield (Edit("replace", steps, "a listed value, spelled as listed", "medium", fitting[0]),)
            return


def _in_case(text: str) -> str:
    return text.strip().casefold()


def _in_letters(text: str) -> str:
    """Also without quotes, marks of emphasis and the stop around it, and with one mark between words."""
    return folded(text.strip(_AROUND))


def _as_text(member: Any) -> str:
    if isinstance(member, str):
        return member.strip()
    if isinstance(member, bool):
        return "true" if member else "false"
    return str(member) if isinstance(member, int) else ""


def _all_property_names(document: Any) -> set[str]:
    names: set[str] = set()
    pending = [document]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            if isinstance(properties := node.get("properties"), Mapping):
                names.update(properties)
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return names
