"""List the doubts: reasons why a valid value may not be what the model meant.

While attempts remain, the request is retried with the reason; after the last one the value is accepted with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from slipform.enforce.patching import Patched
from slipform.schema import Violation
from slipform.schema.document import join_pointer
from slipform.text.loads import LoadWarning
from slipform.text.strict import conflicting_keys

DOUBTS: Final[Mapping[str, str]] = {
    "several_candidates": "the answer holds several different JSON values, and nothing says which is meant: write one",
    "several_calls": "the answer was given several times, with different values: give it once",
    "key_outside": "text after the JSON looks like a part of it: write everything inside one pair of brackets",
    "ellipsis": "dots or a comment stand for data that was left out of the JSON: write all of it",
    "unreadable": "a part of the answer looks like JSON and cannot be read: write one valid JSON value",
    "no_answer": "the JSON is inside a sentence, and the text says that it has no answer: write the answer as JSON",
    "rejected": "the text says that the JSON is not the answer: write the answer as JSON",
    "key_escape": "a key holds a control character: write keys without backslashes",
    "duplicate_key": "one object has the key {keys} more than once, with different values",
    "dropped_data": "the schema has no key {keys}, and its data would be lost: put it where the schema has a place",
}
"""The retry prompt's words, by the kind of the warning. Unfinished reasoning is not among them: it is an error."""


_log = logging.getLogger("slipform.doubts")


def log_doubts(face: str, warnings: Iterable[tuple[str, str]]) -> None:
    """Log warnings that put a value in doubt, for callers that receive only the value."""
    for kind, message in warnings:
        if kind in DOUBTS:
            _log.warning("%s: doubtful value, kind=%s: %s", face, kind, message)


def dropped_data(patched: Patched | None) -> Iterator[LoadWarning]:
    """Return warnings of patches that dropped a key together with objects or items under it."""
    for edit in patched.edits if patched is not None else ():
        if edit.op == "remove" and edit.risk == "high":
            message = f"The schema has no {join_pointer(edit.steps)}: it was dropped with the data it holds."
            yield LoadWarning("dropped_data", 0, message, is_doubt=True)


def first_doubt(notes: Sequence[LoadWarning], source: str, patched: Patched | None) -> Violation | None:
    """Return the first doubt among the warnings of a valid value, as a reason to retry; None without one.

    `source` is the JSON text that the value was parsed from.
    """
    for note in notes:
        keys: list[str] = []
        if note.kind == "duplicate_key":
            keys = conflicting_keys(source)
        elif note.kind == "dropped_data" and patched is not None:
            keys = [str(edit.steps[-1]) for edit in patched.edits if edit.op == "remove" and edit.risk == "high"]
        if note.is_doubt or keys:
            return doubt(note.kind, keys)
    return None


def doubt(kind: str, keys: Sequence[str] = ()) -> Violation:
    """Return a doubt of this kind in the words of the retry prompt."""
    named = ", ".join(f'"{key}"' for key in keys)
    return Violation("", "", kind, DOUBTS[kind].format(keys=named), steps=())
