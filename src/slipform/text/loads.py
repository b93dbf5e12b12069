"""Load the JSON value of a model's text: parse valid JSON, find and repair anything else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from slipform.errors import EmptyAnswerError, JsonEnforcementError
from slipform.text.reasoning import answer_span, has_marker, is_open_channel, without_template
from slipform.text.strict import compact_json, duplicates, has_unique_keys, parse
from slipform.text.work import bounded_work

if TYPE_CHECKING:
    from slipform.text.repair import NanPolicy
    from slipform.text.repair.tokens import RepairEdit


class Hint(Protocol):
    """Facts about the requested shape; the enforcement builds them from a JSON Schema."""

    @property
    def root_types(self) -> frozenset[str] | None:
        """The JSON types that the value may have, or None for any."""

    def fits(self, value: Any) -> bool:
        """Return whether `value` has no violations, which is faster than counting them."""

    def violations(self, value: Any) -> int:
        """Return the number of violations of `value`; 0 when it is valid."""

    def remaining(self, value: Any) -> int:
        """Return the number of violations of `value` that mechanical patches would leave."""


class LoadWarning(NamedTuple):
    """A warning about a loaded text: its `kind`, the position, and a sentence.

    With `is_doubt`, the value may be wrong: with a model, the request is retried.
    """

    kind: str
    position: int
    message: str
    is_doubt: bool = False


class Loaded(NamedTuple):
    """A loaded value, its position in the text, and the edits of its repair."""

    value: Any
    start: int
    end: int
    edits: tuple[RepairEdit, ...] = ()
    notes: tuple[LoadWarning, ...] = ()
    source: str = ""
    """The JSON text that the value was parsed from, after repair."""

    @property
    def warnings(self) -> tuple[LoadWarning, ...]:
        """`notes`, and a warning for each duplicate key or odd path, found on access only, so that `load` stays fast.

        >>> [w.message for w in load('{"a": 1, "a": 2}').warnings]
        ['The key "a" is given twice in one object; the last value is kept.']
        """
        return self.warnings_for(None)

    def warnings_for(self, encoded: bytes | None) -> tuple[LoadWarning, ...]:
        """Return `warnings`; `encoded` is the value as `orjson` encodes it, where the caller has that."""
        escapes = _odd_escapes(self.source) if "\\" in self.source else ()
        if has_unique_keys(self.value, self.source, encoded):
            return (*self.notes, *escapes) if escapes else self.notes
        repeated = (
            LoadWarning(
                "duplicate_key",
                duplicate.position,
                f'The key "{duplicate.key}" is given twice in one object; the last value is kept.',
            )
            for duplicate in duplicates(self.source)
        )
        return (*self.notes, *escapes, *repeated)


def _odd_escapes(source: str) -> tuple[LoadWarning, ...]:
    """Warn of keys, paths and formulas whose backslashes happen to be escapes of JSON."""
    paths = _PATH_ESCAPE.finditer(source) if ":\\" in source else ()
    return (
        *(
            LoadWarning(
                "path_escape", match.start(), f"{match.group()}… looks like a path whose backslashes were not escaped."
            )
            for match in paths
        ),
        *(
            LoadWarning(
                "formula_escape",
                match.start(1),
                f"{match.group(1)} is read as a control character and letters; was its backslash not escaped?",
            )
            for match in _FORMULA_ESCAPE.finditer(source)
        ),
        *(
            LoadWarning(
                "key_escape",
                match.start(),
                f"The key {match.group(1)} holds a control character; was its backslash not meant?",
                is_doubt=True,
            )
            for match in _KEY_ESCAPE.finditer(source)
        ),
    )


def load(text: str, hint: Hint | None = None, *, strict: bool = False, nan: NanPolicy = "refuse") -> Loaded:
    r"""Load the JSON in `text`: parse valid JSON, find and repair anything else.

    Without a hint it is the first JSON in the text. With one it is the JSON with the fewest violations after patches,
    then one that follows a correction ("instead", "final answer"), then the first. Raises `JsonEnforcementError`, with
    position and reason, when there is none.

    >>> load('Sure! ```json\n{"a": 1,}\n```').value
    {'a': 1}
    """
    # A strict parser needs 3 µs to refuse 1 KB of text, a third of what it takes to find the JSON in it.
    if not strict and text[:1] not in _JSON_BEGINNINGS:
        return load_broken(text, hint, nan)
    try:
        value = parse(text)
    except ValueError as error:
        if strict:
            raise _strict_error(text, error) from None
    else:
        if hint is None or type(value) is not str or accepts(hint, "string"):
            # Built without the keyword handling of `Loaded(...)`, which is a tenth of the cost of a small document.
            return _make(Loaded, (value, 0, len(text), (), (), text))
        return _load_from_string(text, value, hint, nan) or Loaded(value, 0, len(text), (), (), text)
    return load_broken(text, hint, nan)


def load_broken(text: str, hint: Hint | None, nan: NanPolicy) -> Loaded:
    """Load the JSON in a text that a strict parser has refused."""
    if not text.strip():
        raise EmptyAnswerError("The answer is empty", hint="Retry the request.")
    with bounded_work(len(text)):
        return _find_and_repair(text, hint, nan)


def _find_and_repair(text: str, hint: Hint | None, nan: NanPolicy) -> Loaded:
    """Find, repair and choose the JSON in a text, and add doubts because of the text around it."""
    text = without_template(text)
    if is_open_channel(text):
        raise _no_json_error(text, 0, UNFINISHED_REASONING)
    if hint is not None and (types := hint.root_types) is not None and types.isdisjoint(_CONTAINERS):
        from slipform.text.loads_scalar import load_scalar

        if (scalar := load_scalar(text, hint)) is not None:
            return scalar
    loaded = _load_surrounded(text, hint) or _search(text, hint, nan)
    if not loaded.edits and text[: loaded.start].strip() in _FENCES and text[loaded.end :].strip() in _FENCES:
        return loaded
    # Imported on first use, as `_search` is.
    from slipform.text.surroundings import doubts_around

    doubts = doubts_around(text, loaded)
    if doubts:
        return loaded._replace(notes=(*loaded.notes, *doubts))
    return loaded


def left_out(text: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the spans of text around the JSON: without blanks, fences, tags, special tokens and reasoning.

    >>> left_out("Sure: [1]", 6, 9), left_out("<json>[1]</json>", 6, 9)
    (((0, 5),), ())
    """
    spans: list[tuple[int, int]] = []
    for first, last in ((0, start), (end, len(text))):
        part = text[first:last]
        if not part.strip():
            continue
        begin, stop = answer_span(part)
        inside = _AROUND.sub(lambda match: " " * len(match.group()), part[begin:stop])
        if words := inside.strip():
            at = first + begin + inside.find(words)
            spans.append((at, at + len(words)))
    return tuple(spans)


def extract_json_payload(text: str) -> str | None:
    """Return the first balanced object or array in `text`, string-aware and repaired if needed; None without one.

    >>> extract_json_payload('Here: {"a": "}"} and more')
    '{"a": "}"}'
    """
    try:
        loaded = load(text, _OBJECT_OR_ARRAY)
    except JsonEnforcementError:
        return None
    if isinstance(loaded.value, dict | list):
        return loaded.source.strip()
    return None


def only_json(text: str) -> str:
    """Return the text's JSON, an object or an array, in compact form; raises `JsonEnforcementError` without one.

    >>> only_json('The answer: {"a": [1, 2]} Bye')
    '{"a":[1,2]}'
    """
    loaded = load(text, _OBJECT_OR_ARRAY)
    if not isinstance(loaded.value, dict | list):
        raise _no_json_error(text, loaded.start, "it is neither an object nor an array")
    return encode_answer(loaded.value)


def encode_answer(value: Any) -> str:
    """Return a value as compact JSON; raises `JsonEnforcementError` for one that is nested too deeply.

    >>> encode_answer({"a": [1, 2]})
    '{"a":[1,2]}'
    """
    try:
        return compact_json(value)
    except ValueError:
        raise JsonEnforcementError(
            "The JSON of the answer is nested too deeply to be written", hint="Ask the model for a flatter document."
        ) from None


class _ContainerHint:
    """A hint that accepts any object or array."""

    @property
    def root_types(self) -> frozenset[str]:
        return frozenset({"object", "array"})

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict | list)

    def violations(self, value: Any) -> int:
        return 0 if isinstance(value, dict | list) else 1

    def remaining(self, value: Any) -> int:
        return self.violations(value)


_make: Final = tuple.__new__
_JSON_BEGINNINGS: Final = frozenset('{["-0123456789tfn \t\r\n')
"""The first characters that a valid JSON text can have."""
_PATH_ESCAPE: Final = re.compile(r'(?<![\w\\])[A-Za-z]:\\[bfnrt](?!["\\\s])\w*')
_FORMULA_ESCAPE: Final = re.compile(
    r"(?<!\\)(?:\\\\)*(\\(?:[bf]\w*|(?:times|theta|tau|tilde|triangle|textbf|textit|text\{|nabla|neq|notin|nmid"
    r"|rho|rightarrow|right[)\]|.]|rangle)(?![A-Za-z])))"
)
"""A command of a formula, or of a pattern, that is valid JSON for a control character and a word."""
_KEY_ESCAPE: Final = re.compile(r"(?<!\\)(?:\\\\)*(\\[bfnrt][^\"\\\n]{0,60}\")\s*:")
_FENCES: Final = ("", "```", "```json")
"""Characters that have no meaning around the JSON."""
_CONTAINERS: Final = frozenset({"object", "array"})
_OBJECT_OR_ARRAY: Final = _ContainerHint()
UNFINISHED_REASONING: Final = "the model was still reasoning when it ended, and gave no answer"
OPENING_BRACKET: Final = re.compile(r"[{\[]")
_AROUND: Final = re.compile(r"(?:```+|~~~+)[\w+.#-]*|</?[A-Za-z][\w:.-]{0,40}>|\[/?[A-Z_]{2,30}\]|`")
"""Text around JSON that has no meaning: fences, tags, markers of tool calls."""


def _load_surrounded(text: str, hint: Hint | None) -> Loaded | None:
    """Load valid JSON with only a fence or a few words around it: from the first bracket to the last one."""
    first = OPENING_BRACKET.search(text)
    if first is None:
        return None
    start = first.start()
    end = max(text.rfind("}"), text.rfind("]")) + 1
    if start == 0 and end == len(text):
        return None
    if end - start < 16 or has_marker(text, 0, start) or has_marker(text, end, len(text)):
        return None
    try:
        value = parse(text[start:end])
    except ValueError:
        return None
    if hint is not None and hint.violations(value):
        return None
    return Loaded(value, start, end, (), (), text[start:end])


def _search(text: str, hint: Hint | None, nan: NanPolicy) -> Loaded:
    # Imported on first use: compiling the grammar of broken JSON takes longer than many programs run.
    from slipform.text.loads_search import search

    return search(text, hint, nan)


def _no_json_error(text: str, position: int, reason: str) -> JsonEnforcementError:
    from slipform.text.repair import not_json
    from slipform.text.repair.machine import CannotRepair

    return not_json(text, CannotRepair(position, reason))


def _load_from_string(text: str, value: str, hint: Hint, nan: NanPolicy) -> Loaded | None:
    """Load JSON inside a JSON string, where no string is accepted."""
    try:
        inner = load(value, hint, nan=nan)
    except JsonEnforcementError:
        return None
    if isinstance(inner.value, str):
        return None
    note = LoadWarning("json_in_string", 0, "The JSON stood inside a JSON string.")
    return Loaded(inner.value, 0, len(text), inner.edits, (note, *inner.notes), inner.source)


def type_of(value: Any) -> str:
    """Return the JSON Schema type of a value.

    >>> type_of(True), type_of(1), type_of({})
    ('boolean', 'integer', 'object')
    """
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def accepts(hint: Hint, name: str) -> bool:
    """Return whether the value may have the JSON type `name`."""
    types = hint.root_types
    return types is None or name in types or (name == "integer" and "number" in types)


def _strict_error(text: str, error: ValueError) -> JsonEnforcementError:
    position = getattr(error, "pos", 0)
    reason = getattr(error, "msg", str(error))
    return _no_json_error(text, position, f"{reason} (strict mode repairs nothing)")
