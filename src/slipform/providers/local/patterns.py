"""Regular expressions, spelled so that the engine holds to them and an answer ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from slipform.bounded import BoundedCache
from slipform.providers.local.grammar import grammar_problem
from slipform.providers.local.walk import Pointer, changed_at, subschemas

_PIECE = re.compile(
    r"""\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]+\}|[pP]\{[^}]*\}|c.|.)   # an escape
      | \[\^?\]?(?:\\.|[^\]\\])*\]                                                     # a class
      | \{\d+(?:,\d*)?\}                                                                # a count
      | \(\?(?:[:=!]|<[=!]|P?<\w+>)                                                     # the opening of a group
      | .""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED_IN_JSON = frozenset({"\\\\", '"', '\\"', "\\n", "\\r", "\\t", "\\f", "\\x5c", "\\x5C", "\\x22", "\\u005c"})
_REPEATED = re.compile(r"\{(\d+),(\d*)\}")
_UNUSED = ("\ue000", "\ue001")
"""Characters that no model writes and no pattern names."""


def pieces(pattern: str) -> Iterator[str]:
    r"""The parts of a pattern: characters, escapes, classes, counts, brackets.

    >>> list(pieces(r"^\d{2,}[a-z]$"))
    ['^', '\\d', '{2,}', '[a-z]', '$']
    """
    return (found[0] for found in _PIECE.finditer(pattern))


def twins(pattern: str) -> tuple[str, str] | None:
    r"""Two patterns that only together say what this one does; None where one is enough.

    The engine loses what follows a character that JSON escapes: `^C:\\.*$` ends at the backslash. A class of two
    characters it does not take for that character, and two such classes have only that one in common.

    >>> [found.encode("ascii", "replace") for found in twins('^"a+$')]
    [b'^["?]a+$', b'^["?]a+$']
    """
    parts = list(pieces(pattern))
    if not any(_is_escaped(part) for part in parts):
        return None
    first, second = ("".join(_widened(part, other) for part in parts) for other in _UNUSED)
    return first, second


def with_twins(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its patterns spelled so that the engine holds to them."""
    result: Any = schema
    for at, sub in list(subschemas(schema)):
        if isinstance(pattern := sub.get("pattern"), str) and (both := twins(pattern)):
            rest = {key: value for key, value in sub.items() if key != "pattern"}
            rest["allOf"] = [*rest.get("allOf", ()), *({"pattern": each} for each in both)]
            result = changed_at(result, at, rest)
    return dict(result)


def without_escapes(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[Pointer]]:
    """The schema without the patterns that the engine would hold to only by half, and where they were."""
    result: Any = schema
    found = [at for at, sub in subschemas(schema) if isinstance(sub.get("pattern"), str) and twins(sub["pattern"])]
    for at in found:
        result = changed_at(result, (*at, "pattern"), None)
    return dict(result), [(*at, "pattern") for at in found]


def _is_escaped(part: str) -> bool:
    return part in _ESCAPED_IN_JSON or (part[:1] == "[" and part[1:-1] in _ESCAPED_IN_JSON)


def _widened(part: str, other: str) -> str:
    if not _is_escaped(part):
        return part
    inside = part[1:-1] if part[:1] == "[" else part
    return f"[{inside}{other}]"


def without_inner_anchors(pattern: str) -> str | None:
    r"""A pattern within this one that does not ask for the beginning or the end inside; None where nothing does.

    >>> without_inner_anchors(r"^([a-z]+(/|$))+$")
    '^([a-z]+(/))+$'
    """
    parts = list(pieces(pattern))
    kept = list(parts)
    for at in range(len(parts) - 2, 0, -1):
        if parts[at] in ("^", "$"):
            if parts[at - 1].startswith("(") and parts[at + 1] == "|":
                kept[at] = kept[at + 1] = ""
            elif parts[at - 1] == "|" and parts[at + 1] in ("|", ")"):
                kept[at] = kept[at - 1] = ""
    return "".join(kept) if kept != parts else None


def are_apart(one: str, other: str) -> bool:
    """Whether no text matches both patterns, as far as the engine can tell: it asks that of the names in a map.

    >>> are_apart("^a+$", "^b"), are_apart("^a+$", "a")
    (True, False)
    """
    known = _APART.get((one, other))
    if known is None:
        named = {"type": "object", "patternProperties": {one: {}, other: {}}, "additionalProperties": False}
        known = one != other and grammar_problem("%llguidance {}\nstart: %json " + json.dumps(named)) is None
        _APART.put((one, other), known, 500 + 4 * (len(one) + len(other)))
    return known


_APART = BoundedCache[tuple[str, str], bool]("pairs of patterns", entries=1024, max_bytes=4_000_000)


def bounded(pattern: str, most: int) -> str:
    r"""A pattern within this one whose repetitions end, for names and texts that a model could get stuck in.

    >>> bounded(r"^[a-z]+(\.[a-z]+)*$", 9), bounded("^x-", 9), bounded(".*", 9)
    ('^[a-z]{1,9}(\\.[a-z]{1,9}){0,9}$', '^x-.{0,9}$', '^.{0,9}$')
    """
    parts = [_ended(part, most) for part in pieces(pattern)]
    if "|" in parts and _depth_of_first(parts, "|") == 0:
        return "".join(parts)
    opened, closed = parts[:1] == ["^"], parts[-1:] == ["$"]
    loose = not closed and not (parts and parts[-1].startswith("{"))
    return f"{'' if opened else '^'}{''.join(parts)}{f'.{{0,{most}}}' if loose else ''}{'' if closed else '$'}"


def _ended(part: str, most: int) -> str:
    if part in "+*" and part:
        return f"{{{1 if part == '+' else 0},{most}}}"
    if found := _REPEATED.fullmatch(part):
        least, own = int(found[1]), int(found[2] or most)
        return f"{{{least},{max(least, min(own, most))}}}"
    return part


def _depth_of_first(parts: list[str], wanted: str) -> int:
    depth = 0
    for part in parts:
        if part == wanted:
            return depth
        depth += part.startswith("(")
        depth -= part == ")"
    return depth
