"""Sample texts: one per format, and a short one for a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipform.schema.patterns import parsed

FORMATS = {
    "date-time": "2024-01-31T12:00:00Z",
    "date": "2024-01-31",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "ada@example.com",
    "idn-email": "ada@example.com",
    "hostname": "example.com",
    "idn-hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uri-reference": "/path",
    "iri": "https://example.com/",
    "iri-reference": "/path",
    "uri-template": "/path/{id}",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "json-pointer": "/a/0",
    "relative-json-pointer": "0",
    "regex": "^a$",
}

_MAX_LENGTH = 2_000
_CLASSES = {"CATEGORY_DIGIT": "0", "CATEGORY_WORD": "a", "CATEGORY_SPACE": " "}


def matching(pattern: str, variant: int = 0, least: int = 0) -> str | None:
    """A short text that matches a pattern, or None when none was found.

    >>> matching("^[A-Z]{3}-[0-9]+$")
    'AAA-0'
    """
    tree = parsed(pattern)
    if tree is None:
        return None
    for extra in (0, 1, max(least, 1)):
        text = _Writer(variant, extra).write(tree)
        if text is not None and least <= len(text) <= _MAX_LENGTH:
            return text
    return None


class _Writer:
    """Writes what a parsed pattern asks for, each repetition `extra` times more than it must."""

    def __init__(self, variant: int, extra: int) -> None:
        self.variant = variant
        self.extra = extra
        self.groups: dict[int, str] = {}

    def write(self, tree: Sequence[tuple[Any, Any]]) -> str | None:
        parts: list[str] = []
        for operation, argument in tree:
            part = self._one(str(operation), argument)
            if part is None or sum(map(len, parts)) > _MAX_LENGTH:
                return None
            parts.append(part)
        return "".join(parts)

    def _one(self, operation: str, argument: Any) -> str | None:
        if operation == "LITERAL":
            return chr(argument)
        if operation == "NOT_LITERAL":
            return "a" if argument != ord("a") else "b"
        if operation == "ANY":
            return "a"
        if operation == "IN":
            return self._of_set(argument)
        if operation == "BRANCH":
            return self.write(argument[1][self.variant % len(argument[1])])
        if operation == "SUBPATTERN":
            text = self.write(argument[3])
            if text is not None and argument[0] is not None:
                self.groups[argument[0]] = text
            return text
        if operation in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            return self._repeated(*argument)
        if operation == "GROUPREF":
            return self.groups.get(argument)
        return "" if operation in {"AT", "ASSERT", "ASSERT_NOT"} else None

    def _repeated(self, least: int, most: int, inner: Sequence[tuple[Any, Any]]) -> str | None:
        times = min(least + self.extra, int(most))
        if times > _MAX_LENGTH:
            return None
        text = self.write(inner)
        return None if text is None else text * times

    def _of_set(self, members: Sequence[tuple[Any, Any]]) -> str | None:
        if str(members[0][0]) == "NEGATE":
            return next((char for char in "aA0 -_" if not any(_holds(member, char) for member in members[1:])), None)
        operation, argument = members[self.variant % len(members)]
        if str(operation) == "LITERAL":
            return chr(argument)
        if str(operation) == "RANGE":
            low, high = argument
            return chr(low + self.variant % (high - low + 1))
        return _CLASSES.get(str(argument), "-")


def _holds(member: tuple[Any, Any], char: str) -> bool:
    operation, argument = str(member[0]), member[1]
    if operation == "LITERAL":
        return ord(char) == int(argument)
    if operation == "RANGE":
        return bool(argument[0] <= ord(char) <= argument[1])
    kinds = {
        "CATEGORY_DIGIT": char.isdigit(),
        "CATEGORY_WORD": char.isalnum() or char == "_",
        "CATEGORY_SPACE": char == " ",
    }
    name = str(argument)
    return kinds[name] if name in kinds else not kinds.get(name.replace("NOT_", ""), True)
