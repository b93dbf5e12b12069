"""Spell `name=value` fields for a log line, so that no value can pass for another field or reach the terminal.

Names of models, errors of vendors and the like are written by strangers. A value with a blank, `=` or a quote is put in
quotes; control characters, line ends of every kind and marks that change the direction of text are escaped; what is
long is cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

LONGEST_FIELD = 1_000
"""Characters of one value."""
_PLAIN = re.compile(r"[^\s\"'=\\]+")


def pairs(fields: Mapping[str, Any], longest: int = LONGEST_FIELD) -> str:
    r"""The fields in one line.

    >>> pairs({"model": "a status=200", "status": 404})
    'model="a status=200" status=404'
    >>> pairs({"model": 'say "hi"\x1b[2J'})
    'model="say \\"hi\\"\\u001b[2J"'
    """
    return " ".join([f"{name}={_spelled(value, longest)}" for name, value in fields.items()])


def _spelled(value: Any, longest: int) -> str:
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    text = cut(str(value), longest)
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{without_controls(quoted)}"'


def cut(text: str, longest: int = LONGEST_FIELD) -> str:
    """The text, or its beginning.

    >>> cut("abcdef", 3)
    'abc…'
    """
    return text if len(text) <= longest else text[:longest] + "…"


def without_controls(text: str) -> str:
    r"""The text with whatever a terminal or a reader of lines would act on escaped.

    >>> without_controls("one\ntwo\x1b[31m")
    'one\\ntwo\\u001b[31m'
    """
    if text.isprintable():
        return text
    return "".join([sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text])
