"""Choose the intended alternative of a union, and convert types without losing anything."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson

from slipform.schema import Schema, Violation
from slipform.schema.document import (
    DEFINITIONS,
    REF,
    REFERENCES,
    PathSteps,
    followed,
    locate,
    lookup,
    reference_of,
    reference_steps,
    subschemas,
    with_plain_references,
)
from slipform.text.resolve_plan import Alternative
from slipform.text.strict import parse
from slipform.text.tracker_facts import kind_of
from slipform.text.work import current_budget

if TYPE_CHECKING:
    from slipform.enforce.patching import Patched

Risk: TypeAlias = Literal["low", "medium", "high"]
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")

# With both signs present, or with repeated groups, the comma cannot be a decimal mark.
_GROUPED = re.compile(
    r"[+-]?[0-9]{1,3}((,[0-9]{3})+\.[0-9]+|(,[0-9]{3}){2,}|([ _’'\u00a0\u202f][0-9]{3})+(\.[0-9]+)?)\Z"
)
_MAYBE_GROUPED = re.compile(r"[+-]?[0-9]{1,3}\.000\Z")
"""One and a fraction, or a thousand if the point separates groups of digits."""
_WITH_UNIT = re.compile(r"(?:[€$£¥]\s*)?([+-]?[0-9][0-9,._ ]*)\s*(?:%|[^\W\d_][^\d]{0,15}|[€$£¥°])?\Z")
_WORDS = {"true": True, "false": False}
_NOTHING = frozenset({"null", "none", "n/a", ""})
_MOST_DIGITS = 400
NUMBER_AS_TEXT = "number as text"
OUT_OF_LIST = "the one value of a list"


@dataclass(frozen=True, slots=True)
class Coerced:
    """A value converted to another type, the conversion used, and how certain it is."""

    value: Any
    reason: str
    risk: Risk = "low"


def coercions(value: Any, types: frozenset[str], *, units: bool = False) -> Iterator[Coerced]:
    """Yield the lossless conversions of `value` to one of these JSON types.

    >>> [each.value for each in coercions("42", frozenset({"integer"}))]
    [42]
    >>> list(coercions("forty-two", frozenset({"integer"})))
    []
    """
    if isinstance(value, str):
        yield from _from_text(value, types, units=units)
    elif isinstance(value, bool):
        return
    elif isinstance(value, int | float):
        yield from _from_number(value, types)
    elif isinstance(value, list) and len(value) == 1 and "array" not in types:
        yield from _out_of_list(value[0])


def _out_of_list(value: Any) -> Iterator[Coerced]:
    """Unwrap `[7]` where 7 is expected."""
    if isinstance(value, str | int | float | dict) or value is None:
        yield Coerced(value, OUT_OF_LIST, "medium")


def _from_number(value: float, types: frozenset[str]) -> Iterator[Coerced]:
    """Yield what a number may be converted to: an integer, or its text."""
    if "integer" in types and isinstance(value, float) and math.isfinite(value) and value.is_integer():
        yield Coerced(int(value), "whole number")
    if "string" in types:
        if isinstance(value, int):
            yield Coerced(str(value), NUMBER_AS_TEXT)
        elif math.isfinite(value):
            yield Coerced(repr(value), NUMBER_AS_TEXT, "medium")


def _from_text(value: str, types: frozenset[str], *, units: bool) -> Iterator[Coerced]:
    """Yield what a text may be converted to: a number, a boolean, null, or the JSON that it contains."""
    text = value.strip()
    if types & {"integer", "number"}:
        yield from _numbers(text, types, units=units)
    if "boolean" in types and text.lower() in _WORDS:
        yield Coerced(_WORDS[text.lower()], "text as boolean")
    if "null" in types and text.lower() in _NOTHING:
        yield Coerced(None, "text as null", "medium")
    if types & {"object", "array"} and text[:1] in ("{", "["):
        yield from _nested(text, types)


def _numbers(text: str, types: frozenset[str], *, units: bool) -> Iterator[Coerced]:
    """Yield the number that a text represents: plain, with grouped digits, or with a unit after it."""
    if len(text) > _MOST_DIGITS:
        return
    number = _number(text, types)
    if number is not None:
        yield Coerced(number, "text as number")
    elif _GROUPED.match(text):
        number = _number(re.sub(r"[^0-9.+-]", "", text), types)
        if number is not None:
            yield Coerced(number, "grouped digits as number", "medium")
    elif units and (match := _WITH_UNIT.match(text)):
        bare = match.group(1).strip()
        number = _number(bare, types)
        if number is None and _GROUPED.match(bare):
            number = _number(re.sub(r"[^0-9.+-]", "", bare), types)
        if number is not None:
            yield Coerced(number, "number without its unit", "high")


def without_grouping(text: str) -> str | None:
    """Return a number in text without its digit separators; None for other texts, and for numbers without separators.

    >>> without_grouping("1,234.50"), without_grouping("12.50")
    ('1234.50', None)
    """
    if len(text) > _MOST_DIGITS or not _GROUPED.match(text):
        return None
    plain = re.sub(r"[^0-9.+-]", "", text)
    if plain != text and _NUMBER.match(plain):
        return plain
    return None


def _number(text: str, types: frozenset[str]) -> int | float | None:
    """Return the number that a text represents, if no digit is lost; None for any other text."""
    if _INTEGER.match(text):
        return int(text)
    if not _NUMBER.match(text):
        return None
    exact = Decimal(text)
    if "number" not in types:
        if _MAYBE_GROUPED.match(text):
            return None
        if exact == exact.to_integral_value() and exact.adjusted() < _MOST_DIGITS:
            return int(exact)
        return None
    number = float(text)
    # Only if the double prints as the same number: digits must not be lost silently.
    if math.isfinite(number) and Decimal(repr(number)) == exact:
        return number
    return None


def _nested(text: str, types: frozenset[str]) -> Iterator[Coerced]:
    try:
        inner = parse(text)
    except ValueError:
        return
    if ("object" in types and isinstance(inner, dict)) or ("array" in types and isinstance(inner, list)):
        yield Coerced(inner, "JSON inside text")


ABSENT: Any = object()
"""The words for a missing value."""


@dataclass(frozen=True, slots=True)
class Switches:
    """Which kinds of patches are allowed. What may change the meaning is off by default."""

    coerce: bool = True
    drop_extra: bool = True
    rename_keys: bool = True
    units: bool = False
    """Take the number out of "12 kg" or "$5"."""
    wrap_scalars: bool = False
    """Wrap a value in a one-item array where an array is expected."""
    fill_defaults: bool = False
    """Fill a missing key with its schema's `default`."""
    fill_constants: bool = True
    """Fill a missing key with the only value that its schema allows."""
    drop_nulls: bool = True
    """Remove an optional key whose value is null where null is not allowed."""
    unwrap: bool = True
    """Unwrap an answer that is nested under a key or inside a tool call."""

    @classmethod
    def none(cls) -> Switches:
        """Return switches that allow no patches at all."""
        return cls(False, False, False, fill_constants=False, drop_nulls=False, unwrap=False)


@dataclass(frozen=True, slots=True)
class PatchEdit:
    """One JSON Patch operation, the reason for it, and how certain it is."""

    op: Literal["add", "remove", "replace", "move"]
    steps: PathSteps
    reason: str
    risk: Risk = "low"
    value: Any = ABSENT
    source: PathSteps = ()


Fix: TypeAlias = tuple[PatchEdit, ...]
"""Edits that belong together: all are applied or none."""


def at(value: Any, steps: PathSteps) -> Any:
    """Return the part of a value at a path, or ABSENT."""
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return value


def folded(name: str) -> str:
    """Return a name without the differences of common spelling: case and separators between words.

    >>> folded("First_Name") == folded("first-name")
    True
    """
    return "".join(char for char in name.casefold() if char not in "_- ")


def bare(word: str) -> str:
    """Return a listed value without quotes, emphasis marks and a final full stop.

    >>> bare("**In progress.**")
    'inprogress'
    """
    return folded(word.strip(_AROUND))


_AROUND = " \t\r\n\"'`*.!,;:()"
_LIKE_NUMBER = re.compile(r"\s*[+-]?[0-9.,_’'\u00a0\u202f eE+-]*\Z")


class PatchableFaults:
    """Decide which faults in a growing text could still be patched: the tracker's `AllowedChanges`.

    >>> from slipform.text.resolve_plan import NormalForm
    >>> number, faults = NormalForm({"type": "integer"}).root.alternatives, PatchableFaults(Switches())
    >>> [faults.of_scalar(each, number, optional=False) for each in ("42", "many", None)]
    [True, False, False]
    """

    def __init__(self, switches: Switches) -> None:
        self._switches = switches

    def of_scalar(self, value: Any, alternatives: list[Alternative], *, optional: bool) -> bool:
        """Whether a complete scalar of the wrong type may be patched; `optional` says that its key may be left out."""
        switches = self._switches
        if value is None and optional and switches.drop_nulls:
            return True
        types = _wanted_types(alternatives)
        if types is None:
            return switches.coerce  # a value of the right type and the wrong content
        if switches.wrap_scalars and "array" in types:
            return True
        if not switches.coerce:
            return False
        if isinstance(value, str):
            text = bare(value)
            if any(bare(word) == text for word in _wanted_words(alternatives)):
                return True
        return next(coercions(value, types, units=switches.units), None) is not None

    def of_number(self, alternatives: list[Alternative]) -> bool:
        """Return whether a number may be patched of which only the first character has arrived."""
        types = _wanted_types(alternatives)
        if types is None or (self._switches.wrap_scalars and "array" in types):
            return True
        return self._switches.coerce

    def of_text(self, text: str, alternatives: list[Alternative]) -> bool:
        """Return whether a string may be patched of which only this much has arrived."""
        types = _wanted_types(alternatives)
        if types is None or (self._switches.wrap_scalars and "array" in types):
            return True
        if not self._switches.coerce:
            return False
        text = text.lstrip(" \t\r\n")
        prefix = text.casefold().rstrip()
        words = [
            *_wanted_words(alternatives),
            *(_WORDS if "boolean" in types else ()),
            *(_NOTHING if "null" in types else ()),
        ]
        if any(word.casefold().startswith(prefix) or bare(word).startswith(bare(text)) for word in words):
            return True
        if types & {"object", "array"} and (not text or text[0] in "{["):
            return True
        if types & {"integer", "number"}:
            return self._switches.units or _LIKE_NUMBER.match(text) is not None
        return False

    def of_container(self, alternatives: list[Alternative], *, root: bool) -> bool:
        """Return whether an object or array may be patched where none is allowed."""
        types = _wanted_types(alternatives)
        # At the root the answer may be nested under a key.
        return (root and self._switches.unwrap) or types is None or (self._switches.wrap_scalars and "array" in types)

    def of_closed_container(self) -> bool:
        """Return whether a container that lacks something may be patched."""
        return self._switches.fill_defaults

    def of_key(self) -> bool:
        """Return whether a key that is not allowed may be patched."""
        return self._switches.drop_extra or self._switches.rename_keys

    def is_misspelt(self, key: str, missing: frozenset[str]) -> bool:
        """Return whether an unknown key may be a variant spelling of one of the missing keys."""
        return self._switches.rename_keys and folded(key) in map(folded, missing)


def _wanted_types(alternatives: Iterable[Alternative]) -> frozenset[str] | None:
    """Return the types allowed by these alternatives; None if any type is."""
    types: set[str] = set()
    for alternative in alternatives:
        sets = [leaf.types for leaf in alternative.leaves if leaf.types is not None]
        sets += [frozenset(map(kind_of, leaf.values)) for leaf in alternative.leaves if leaf.values is not None]
        if not sets:
            return None
        types |= frozenset.intersection(*sets)
    return frozenset(types)


def _wanted_words(alternatives: Iterable[Alternative]) -> list[str]:
    """Return the values listed by these alternatives, as a model may write them in a string."""
    listed = [leaf.values for each in alternatives for leaf in each.leaves if leaf.values is not None]
    return [_as_word(value) for values in listed for value in values]


def _as_word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.strip()
    return str(value)


UNIONS = ("anyOf", "oneOf")
_MOST_TRIED = 3
_MOST_READ = 200
"""Subschemas that are read to find what one location accepts."""


class Accepted:
    """The types and listed members that a schema accepts, as far as they can be read from it."""

    def __init__(self, schema: Any, document: Mapping[str, Any]) -> None:
        types: set[str] = set()
        members: list[Any] = []
        pending = [schema]
        read = 0
        while pending and read < _MOST_READ:
            node = pending.pop()
            read += 1
            if not isinstance(node, Mapping):
                continue
            kinds = node.get("type")
            if isinstance(kinds, str):
                types.add(kinds)
            elif isinstance(kinds, list):
                types.update(kinds)
            if isinstance(listed := node.get("enum"), list):
                members += listed
            if "const" in node:
                members.append(node["const"])
            for union in ("anyOf", "oneOf", "allOf"):
                if isinstance(branches := node.get(union), list):
                    pending.extend(branches)
            if (reference := reference_of(node)) is not None:
                pending.append(lookup(document, reference))
        self.types = frozenset(types)
        self._members = members

    def matching_members(self, text: str) -> list[Any]:
        """Return the listed members that a text matches except for case, or else except for punctuation."""
        by_case, by_letters = self._spellings
        return by_case.get(_in_case(text)) or by_letters.get(bare(text)) or []

    @cached_property
    def _spellings(self) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        by_case: dict[str, list[Any]] = {}
        by_letters: dict[str, list[Any]] = {}
        for member in self._members:
            text = _member_text(member)
            by_case.setdefault(_in_case(text), []).append(member)
            by_letters.setdefault(bare(text), []).append(member)
        by_case.pop("", None)
        by_letters.pop("", None)
        return by_case, by_letters


def _in_case(text: str) -> str:
    return text.strip().casefold()


def _member_text(member: Any) -> str:
    if isinstance(member, str):
        return member.strip()
    if isinstance(member, bool):
        return "true" if member else "false"
    return str(member) if isinstance(member, int) else ""


class CompiledUnion:
    """The alternatives of one union, each compiled once."""

    def __init__(self, branches: list[Any], holder: Any, document: Mapping[str, Any]) -> None:
        self._branches = branches
        self._document = document
        discriminator = None
        if isinstance(holder, Mapping):
            discriminator = holder.get("discriminator")
        self._discriminator = discriminator.get("propertyName") if isinstance(discriminator, Mapping) else None
        self._schemas: dict[int, Schema[Any]] = {}

    def __len__(self) -> int:
        return len(self._branches)

    def schema(self, number: int) -> Schema[Any]:
        """One alternative as a separate schema."""
        if number not in self._schemas:
            self._schemas[number] = Schema("branch", _as_document(self._branches[number], self._document))
        return self._schemas[number]

    def alternatives_for(self, value: Any) -> list[int]:
        """Return the one alternative whose tag the value has; all of them for a value without a tag."""
        keys = self._discriminating(value) if isinstance(value, Mapping) else ()
        for key in keys:
            bearing = [number for number, tags in enumerate(self._tags) if _matches_tag(tags[key], value.get(key))]
            if len(bearing) == 1:
                return bearing
        return list(range(len(self._branches)))

    def _discriminating(self, value: Mapping[str, Any]) -> Iterable[str]:
        """Return the keys with distinct values in every alternative; only the one that the schema names, if any."""
        shared = self._shared_tags
        if isinstance(self._discriminator, str):
            if self._discriminator in shared:
                return [self._discriminator]
            return []
        if shared:
            return [key for key in value if key in shared]
        return []

    @cached_property
    def _tags(self) -> list[dict[str, list[Any]]]:
        """Return the values that each alternative lists for its keys."""
        return [_tags(branch, self._document) for branch in self._branches]

    @cached_property
    def _shared_tags(self) -> frozenset[str]:
        if self._tags:
            return frozenset.intersection(*(frozenset(tags) for tags in self._tags))
        return frozenset()


class SchemaReader:
    """Answers the questions that patches have about a schema; reads each subschema once."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = with_plain_references(document)
        self._accepted: dict[str, Accepted] = {}
        self._unions: dict[str, CompiledUnion | None] = {}

    def accepted(self, path: str) -> Accepted:
        """Return what the subschema at a pointer accepts."""
        if path not in self._accepted:
            self._accepted[path] = Accepted(locate(self.document, path), self.document)
        return self._accepted[path]

    def union(self, path: str) -> CompiledUnion | None:
        """Return the union at a pointer; None without one, or if its alternatives depend on their context."""
        if path not in self._unions:
            branches = locate(self.document, path)
            is_usable = isinstance(branches, list) and is_portable(branches)
            holder = locate(self.document, path.rpartition("/")[0])
            self._unions[path] = CompiledUnion(branches, holder, self.document) if is_usable else None
        return self._unions[path]

    @cached_property
    def property_names(self) -> frozenset[str]:
        """Return all property names that the schema mentions anywhere."""
        names: set[str] = set()
        pending: list[Any] = [self.document]
        while pending:
            node = pending.pop()
            if isinstance(node, Mapping):
                if isinstance(properties := node.get("properties"), Mapping):
                    names.update(properties)
                pending.extend(node.values())
            elif isinstance(node, list):
                pending.extend(node)
        return frozenset(names)


def branch_fixes(
    violation: Violation,
    value: Any,
    reader: SchemaReader,
    switches: Switches,
    patch: Callable[[Any, Schema[Any], Switches], Patched],
) -> Iterator[Fix]:
    """Yield the edits that make the value match one alternative of the union it violates.

    A discriminator selects the alternative. Without one it is the alternative with the fewest violations; where two
    have equally few and would give different values, neither is chosen: that would be a guess.
    """
    steps = violation.steps or ()
    current = at(value, steps)
    union = reader.union(violation.schema_path)
    if current is ABSENT or union is None:
        return
    patched = _patched_alternative(current, union, switches, patch)
    if patched is not None and patched.edits:
        yield tuple(
            dataclasses.replace(edit, steps=(*steps, *edit.steps), source=(*steps, *edit.source) if edit.source else ())
            for edit in patched.edits
        )


def _patched_alternative(
    value: Any, union: CompiledUnion, switches: Switches, patch: Callable[[Any, Schema[Any], Switches], Patched]
) -> Patched | None:
    """Return the value patched to match its nearest alternative; None if none matches or several patches differ."""
    budget = current_budget()
    size = json_size(value)
    distances: list[tuple[int, int]] = []
    for number in union.alternatives_for(value):
        if not budget.allows_trials:
            return None
        distance = len(union.schema(number).validate(value))
        budget.spend_on_trial(validation_work(size, distance))
        distances.append((distance, number))
    best: tuple[int, int] | None = None
    values: list[Patched] = []
    for distance, number in sorted(distances)[:_MOST_TRIED]:
        patched = patch(value, union.schema(number), switches)
        rank = (distance, len(patched.edits))
        if patched.violations or (best is not None and rank > best):
            continue
        values = [patched] if best is None or rank < best else [*values, patched]
        best = rank
    if values and all(each.value == values[0].value for each in values):
        return values[0]
    return None


def json_size(value: Any) -> int:
    """About how many characters a value has as JSON, found quickly.

    >>> json_size({"a": [1, 2]})
    11
    """
    try:
        return len(orjson.dumps(value))
    except TypeError:  # nested deeply, or with integers beyond 64 bits
        return _SIZE_OF_PART * sum(1 for _ in _parts(value))


def _parts(value: Any) -> Iterator[Any]:
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, Mapping):
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)


_SIZE_OF_PART = 50
"""Characters charged for each part of a value that takes long to validate."""


def validation_work(size: int, violations: int) -> int:
    """Return the units of work to validate a value of this size and to explain its violations."""
    return 1_000 + size + 250 * violations


def _tags(branch: Any, document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values that an alternative lists for its keys."""
    properties = followed(branch, document).get("properties")
    listed: dict[str, list[Any]] = {}
    for key, shape in properties.items() if isinstance(properties, Mapping) else ():
        tag = followed(shape, document)
        values = [tag["const"]] if "const" in tag else tag.get("enum")
        if isinstance(values, list) and values:
            listed[key] = values
    return listed


def _matches_tag(tags: list[Any], value: Any) -> bool:
    if isinstance(value, str):
        return folded(value) in {folded(tag) for tag in tags if isinstance(tag, str)}
    return any(value == tag and type(value) is type(tag) for tag in tags)


def _as_document(branch: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return an alternative as a separate document."""
    definitions = {name: document[name] for name in ("$schema", *DEFINITIONS) if name in document}
    if isinstance(branch, Mapping) and REF not in branch:
        return {**definitions, **branch}
    return {**definitions, "allOf": [branch]}


def is_portable(shape: Any) -> bool:
    """Return whether a subschema has the same meaning in a document that has only the shared definitions."""
    parts = shape if isinstance(shape, list) else [shape]
    for _, node in (subschema for part in parts for subschema in subschemas(part)):
        for key in REFERENCES:
            steps = reference_steps(node[key]) if key in node else None
            if key in node and (key != REF or not steps or steps[0] not in DEFINITIONS):
                return False
        if "$id" in node:
            return False
    return True
