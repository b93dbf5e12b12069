"""Which value a model's text stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

from slipform.errors import EmptyAnswerError, JsonEnforcementError
from slipform.text.candidates import Found, find
from slipform.text.reasoning import is_mentioned
from slipform.text.repair import NanPolicy, Repaired, not_json, repair_at
from slipform.text.repair.machine import CannotRepair
from slipform.text.repair.tokens import RepairEdit
from slipform.text.strict import duplicates, holds_all, parse

if TYPE_CHECKING:
    from slipform.text.repair import Check


class Hint(Protocol):
    """What the text tools may know of the shape that is wanted; the schema package makes one from a JSON Schema."""

    @property
    def root_types(self) -> frozenset[str] | None:
        """The JSON types the value itself may have, or None when any will do."""

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema, when there is one."""

    def violations(self, value: Any) -> int:
        """In how many ways `value` does not fit; 0 when it does."""


class LoadWarning(NamedTuple):
    """Something a careful reader should know: `kind`, where in the text, and a sentence."""

    kind: str
    position: int
    message: str


class Loaded(NamedTuple):
    """The value, where in the text it stood, and every edit that was needed to read it."""

    value: Any
    start: int
    end: int
    edits: tuple[RepairEdit, ...] = ()
    notes: tuple[LoadWarning, ...] = ()
    source: str = ""
    """The JSON text the value was parsed from, after repair."""

    @property
    def warnings(self) -> tuple[LoadWarning, ...]:
        """`notes`, and a warning for each duplicate key; looked for only when asked, so that `load` stays fast.

        >>> [w.message for w in load('{"a": 1, "a": 2}').warnings]
        ['The key "a" is given twice in one object; the last value is kept.']
        """
        return self.warnings_given(None)

    def warnings_given(self, written: bytes | None) -> tuple[LoadWarning, ...]:
        """`warnings`, for who has written the value again with `orjson`."""
        if holds_all(self.value, self.source, written):
            return self.notes
        twice = (
            LoadWarning(
                "duplicate_key",
                found.position,
                f'The key "{found.key}" is given twice in one object; the last value is kept.',
            )
            for found in duplicates(self.source)
        )
        return (*self.notes, *twice)


def load(text: str, hint: Hint | None = None, *, strict: bool = False, nan: NanPolicy = "refuse") -> Loaded:
    r"""Read the JSON in `text`: valid JSON as it is, anything else by finding it and repairing it.

    Without a hint the first JSON in the text is taken. With one: the first that fits, else the first whose type is
    right, else the largest. Raises `JsonEnforcementError`, with position and reason, when there is none.

    >>> load('Sure! ```json\n{"a": 1,}\n```').value
    {'a': 1}
    """
    try:
        value = parse(text)
    except ValueError as error:
        if strict:
            raise _not_strict(text, error) from None
    else:
        if hint is None or type(value) is not str or accepts(hint, "string"):
            # Made without the keyword handling of `Loaded(...)`, which is a tenth of the cost of a small document.
            return _make(Loaded, (value, 0, len(text), (), (), text))
        return _unwrapped(text, value, hint, nan) or Loaded(value, 0, len(text), (), (), text)
    return _broken(text, hint, nan)


def value_of(text: str, *, strict: bool = False, nan: NanPolicy = "refuse") -> Any:
    """Only the value that `load` would give: for valid JSON as quick as a strict parser.

    >>> value_of("[1, 2,]")
    [1, 2]
    """
    try:
        return parse(text)
    except ValueError as error:
        if strict:
            raise _not_strict(text, error) from None
    return _broken(text, None, nan).value


def _broken(text: str, hint: Hint | None, nan: NanPolicy) -> Loaded:
    if not text.strip():
        raise EmptyAnswerError("The answer is empty", hint="Ask again.")
    return _quick(text, hint) or _slowly(text, hint, nan)


def extract_json_payload(text: str) -> str | None:
    """The first balanced object or array in `text`, string-aware and repaired where it must be; None without one.

    >>> extract_json_payload('Here: {"a": "}"} and more')
    '{"a": "}"}'
    """
    try:
        loaded = load(text, _OBJECT_OR_ARRAY)
    except JsonEnforcementError:
        return None
    return loaded.source.strip() if isinstance(loaded.value, dict | list) else None


def ensure_json_only(text: str, check: Check | None = None) -> str:
    """The text's JSON, an object or an array, in compact form; `JsonEnforcementError` when there is none that passes.

    `check` counts what is wrong with a value; the first JSON with nothing wrong is taken.

    >>> ensure_json_only('The answer: {"a": [1, 2]} Bye')
    '{"a":[1,2]}'
    """
    loaded = load(text, _Containers(check))
    if not isinstance(loaded.value, dict | list):
        raise _not_json(text, loaded.start, "it is neither an object nor an array")
    if check is not None and (faults := check(loaded.value)):
        raise JsonEnforcementError(
            f"The JSON in the answer fails its check in {faults} places", hint="Ask the model to correct it."
        )
    return _compact(loaded.value)


class _Containers:
    """The hint of those who want any object or array, or one that passes a check."""

    def __init__(self, check: Check | None = None) -> None:
        self._check = check

    @property
    def root_types(self) -> frozenset[str]:
        return frozenset({"object", "array"})

    @property
    def schema(self) -> None:
        return None

    def violations(self, value: Any) -> int:
        if not isinstance(value, dict | list):
            return 1
        return self._check(value) if self._check else 0


_make: Final = tuple.__new__
_OBJECT_OR_ARRAY: Final = _Containers()
_OPENS: Final = re.compile(r"[{\[]")


def _quick(text: str, hint: Hint | None) -> Loaded | None:
    """Valid JSON with only a fence or a few words around it: everything from the first bracket to the last one."""
    first = _OPENS.search(text)
    if first is None:
        return None
    start, end = first.start(), max(text.rfind("}"), text.rfind("]")) + 1
    if start == 0 and end == len(text):
        return None
    if end - start < 16 or is_mentioned(text, 0, start) or is_mentioned(text, end, len(text)):
        return None
    try:
        value = parse(text[start:end])
    except ValueError:
        return None
    if hint is not None and hint.violations(value):
        return None
    return Loaded(value, start, end, (), (), text[start:end])


def _slowly(text: str, hint: Hint | None, nan: NanPolicy) -> Loaded:
    # Imported on first use: compiling the grammar of broken JSON takes longer than many programs run.

    return search(text, hint, nan)


def _not_json(text: str, position: int, reason: str) -> JsonEnforcementError:
    from slipform.text.repair import not_json
    from slipform.text.repair.machine import CannotRepair

    return not_json(text, CannotRepair(position, reason))


def _unwrapped(text: str, value: str, hint: Hint, nan: NanPolicy) -> Loaded | None:
    """JSON inside a JSON string, where no string is wanted."""
    try:
        inner = load(value, hint, nan=nan)
    except JsonEnforcementError:
        return None
    if isinstance(inner.value, str):
        return None
    note = LoadWarning("json_in_string", 0, "The JSON stood inside a JSON string.")
    return Loaded(inner.value, 0, len(text), inner.edits, (note, *inner.notes), inner.source)


def type_of(value: Any) -> str:
    """The JSON Schema type of a value.

    >>> type_of(True), type_of(1), type_of({})
    ('boolean', 'integer', 'object')
    """
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def accepts(hint: Hint, name: str) -> bool:
    """Whether the value itself may be of JSON type `name`."""
    types = hint.root_types
    return types is None or name in types or (name == "integer" and "number" in types)


def _compact(value: Any) -> str:
    try:
        return str(orjson.dumps(value), "utf-8")  # so typed that it compiles where orjson is not installed
    except TypeError:
        import json

        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _not_strict(text: str, error: ValueError) -> JsonEnforcementError:
    position = getattr(error, "pos", 0)
    reason = getattr(error, "msg", str(error))
    return _not_json(text, position, f"{reason} (strict mode repairs nothing)")


_ARGUMENTS: Final = ("arguments", "parameters", "input", "args")


def search(text: str, hint: Hint | None, nan: NanPolicy) -> Loaded:
    """The JSON in a text that is not valid JSON as a whole."""
    found = find(text, nan=nan, cited=hint is not None)
    if not found:
        raise not_json(text, _why_not(text, nan))
    if hint is None:
        chosen = found[0]
        notes = _notes(text, chosen, chosen.repaired, len(found))
        repaired = chosen.repaired
        return Loaded(repaired.value, repaired.start, repaired.end, repaired.edits, notes, repaired.text)
    return _choose(text, found, hint, nan)


def _why_not(text: str, nan: NanPolicy) -> CannotRepair:
    first = _OPENS.search(text)
    if first is None:
        return CannotRepair(0, "there is no bracket that could open it")
    try:
        repair_at(text, first.start(), len(text), nan=nan)
    except CannotRepair as refusal:
        return refusal
    return CannotRepair(first.start(), "what looks like it is part of a sentence or of a closed reasoning block")


def _choose(text: str, found: list[Found], hint: Hint, nan: NanPolicy) -> Loaded:
    """The first that fits, else the first whose type is right, else the largest."""
    typed: Loaded | None = None
    largest: Loaded | None = None
    for candidate in found:
        for loaded in _readings(text, candidate, hint, nan, len(found)):
            if hint.violations(loaded.value) == 0:
                return loaded
            if candidate.kind == "cited":
                continue
            if typed is None and accepts(hint, type_of(loaded.value)):
                typed = loaded
            if largest is None or loaded.end - loaded.start > largest.end - largest.start:
                largest = loaded
    chosen = typed or largest
    if chosen is None:
        raise not_json(text, _why_not(text, nan))
    return chosen


def _readings(text: str, candidate: Found, hint: Hint, nan: NanPolicy, count: int) -> Iterator[Loaded]:
    repaired = candidate.repaired
    if repaired.edits and hint.violations(repaired.value):
        repaired = repair_at(text, repaired.start, repaired.end, nan=nan, check=hint.violations)
    yield _loaded(text, candidate, repaired, count)
    for start, end in repaired.parts:
        try:
            part = repair_at(text, start, end, nan=nan, check=hint.violations, many=False)
        except CannotRepair:
            continue
        yield _loaded(text, candidate, part, count)
    value = repaired.value
    if isinstance(value, dict) and ("name" in value or "function" in value or "type" in value):
        for name in _ARGUMENTS:
            inner = value.get(name)
            if isinstance(inner, str):
                try:
                    inner = load(inner, hint, nan=nan).value
                except JsonEnforcementError:
                    continue
            if isinstance(inner, dict | list):
                note = LoadWarning("tool_call", repaired.start, f'The value is the "{name}" of a tool call.')
                yield _loaded(text, candidate, repaired, count)._replace(value=inner, notes=(note,))


def _loaded(text: str, candidate: Found, repaired: Repaired, count: int) -> Loaded:
    return Loaded(
        repaired.value,
        repaired.start,
        repaired.end,
        repaired.edits,
        _notes(text, candidate, repaired, count),
        repaired.text,
    )


def _notes(text: str, candidate: Found, repaired: Repaired, count: int) -> tuple[LoadWarning, ...]:
    notes: list[LoadWarning] = []
    at = repaired.start
    if count > 1:
        notes.append(
            LoadWarning("several_candidates", at, f"The text holds {count} pieces of JSON; this is one of them.")
        )
    if text[repaired.end : repaired.end + 20].lstrip()[:1] in (",", ":", "}", "]"):
        notes.append(
            LoadWarning("ignored_text", repaired.end, "The text goes on after the JSON as if it were not over.")
        )
    if candidate.kind == "thought":
        notes.append(LoadWarning("thought", at, "The JSON stands in a reasoning block that was never closed."))
    if candidate.kind in ("weak", "cited"):
        notes.append(LoadWarning("weak", at, "The JSON stands in a sentence and may be part of it."))
    if repaired.hinted:
        notes.append(LoadWarning("schema_hint", at, "The text can be read in several ways; the schema settled which."))
    return tuple(notes)
