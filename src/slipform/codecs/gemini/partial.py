"""Function calls that Vertex streams piece by piece: paths into the arguments, and what stands there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import orjson

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")
_FAR = 100_000


class PartialCall:
    """The arguments of one call while their pieces come in.

    >>> call = PartialCall(0)
    >>> call.add([{"jsonPath": "$.tags[0]", "stringValue": "ne", "willContinue": True}])
    >>> call.add([{"jsonPath": "$.tags[0]", "stringValue": "w"}])
    >>> call.arguments
    '{"tags":["new"]}'
    """

    __slots__ = ("_args", "_open", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self._args: dict[str, Any] = {}
        self._open: str | None = None

    def add(self, pieces: Iterable[Any]) -> None:
        """Put pieces in their places; text goes on where the piece before said it would."""
        for piece in pieces:
            if not isinstance(piece, Mapping):
                continue
            path = str(piece.get("jsonPath") or "$")
            key = next((name for name in _VALUES if name in piece), None)
            value = None if key in (None, "nullValue") else piece[key]
            self._put(path, value, grow=path == self._open)
            self._open = path if piece.get("willContinue") else None

    @property
    def arguments(self) -> str:
        """The arguments as JSON text."""
        return orjson.dumps(self._args).decode()

    def _put(self, path: str, value: Any, *, grow: bool) -> None:
        steps: list[str | int] = [int(m[2]) if m[2] is not None else m[1] or m[3] or "" for m in _STEP.finditer(path)]
        if not steps:
            return
        place: Any = self._args
        for step, following in pairwise(steps):
            found = _get(place, step)
            if not isinstance(found, (dict, list)):
                found = [] if isinstance(following, int) else {}
                _set(place, step, found)
            place = found
        old = _get(place, steps[-1])
        _set(place, steps[-1], old + value if grow and isinstance(old, str) and isinstance(value, str) else value)


def _get(place: Any, step: str | int) -> Any:
    if isinstance(place, dict):
        return place.get(str(step))
    return place[step] if isinstance(step, int) and step < len(place) else None


def _set(place: Any, step: str | int, value: Any) -> None:
    if isinstance(place, dict):
        place[str(step)] = value
    elif isinstance(step, int) and step < _FAR:
        place.extend([None] * (step + 1 - len(place)))
        place[step] = value
