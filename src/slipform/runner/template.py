"""Prompt templates over the columns of a dataset: `{title}` stands for the row's title, `{{` and `}}` for braces."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any

import orjson

from slipform.errors import ConfigError

_MARK = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with blanks: pieces of text, and the column that stands after each piece.

    Nothing but names of columns is looked up: no attributes, no indexes, no formats.

    >>> Template.read("Sort {title} as {{news}}").fill({"title": "Rain"})
    'Sort Rain as {news}'
    """

    pieces: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Template:
        """Read a template; a brace that belongs to nothing is a `ConfigError` with its place."""
        pieces, columns, at = [""], list[str](), 0
        for found in _MARK.finditer(text):
            pieces[-1] += text[at : found.start()]
            at = found.end()
            if found[1] is not None:
                if not found[1]:
                    raise _misplaced(text, found.start(), "names no column")
                columns.append(found[1])
                pieces.append("")
            elif len(found[0]) == 2:
                pieces[-1] += found[0][0]
            else:
                raise _misplaced(text, found.start(), "stands alone")
        pieces[-1] += text[at:]
        return cls(tuple(pieces), tuple(columns))

    def check(self, known: Collection[str]) -> None:
        """Raise a `ConfigError` for the first column that the dataset does not have."""
        names = set(known)
        for column in self.columns:
            if column not in names:
                raise ConfigError(
                    f"The prompt names a column {column!r} that the input does not have",
                    hint=f"The columns are: {listed(known)}. Write a brace that is meant as one twice.",
                )

    def fill(self, row: Mapping[str, Any]) -> str:
        """The prompt for a row; a value that is missing leaves its place empty."""
        if not self.pieces:
            return as_text(row)
        parts = [self.pieces[0]]
        for column, piece in zip(self.columns, self.pieces[1:], strict=True):
            parts += (as_text(row.get(column)), piece)
        return "".join(parts)


def listed(columns: Iterable[str]) -> str:
    """The names of columns for a person, not too many of them.

    >>> listed(["id", "name"])
    'id, name'
    """
    names = list(columns)
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "") or "none"


WHOLE_ROW = Template((), ())
"""The template of those who give none: the row itself, as JSON."""


def as_text(value: Any) -> str:
    """A cell as the model reads it: text as it is, nothing for a missing value, JSON for the rest."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return _decoded(value)
    return as_json(value).decode()


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("A column of the prompt holds bytes that are no text", hint="Decode it first.") from error


def as_json(value: Any) -> bytes:
    """Compact JSON of what a cell or a row may hold, dates and the like as text."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        return json.dumps(value, default=str, separators=(",", ":")).encode()


def _misplaced(text: str, at: int, what: str) -> ConfigError:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return ConfigError(
        f"A brace in the prompt {what}",
        where=f"line {line}, character {column}",
        hint="Write {column} for a column's value, and {{ or }} for a brace.",
    )
