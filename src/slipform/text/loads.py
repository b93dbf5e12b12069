"""Which value a model's text stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

from slipform.errors import EmptyAnswerError, JsonEnforcementError
from slipform.text.reasoning import is_mentioned
from slipform.text.strict import duplicates, holds_all, parse

if TYPE_CHECKING:
    from slipform.text.repair import Check, NanPolicy
    from slipform.text.repair.tokens import RepairEdit


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
    from slipform.text.loads_search import search

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
