"""What a schema says of a value → schemas of values of which it is not true.

Each gives some of those values, not always all: "not these words" leaves every other text, "at least 3" leaves what is
at most 2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from slipform.providers.local.cost import implied, types
from slipform.providers.local.merge import ANNOTATIONS, Schema, kind_of
from slipform.providers.local.patterns import pieces
from slipform.providers.local.walk import Json

_MOST_LETTERS = 120
_NEGATED = frozenset(
    {
        *("$ref", "allOf", "anyOf", "not", "type", "enum", "const"),
        *("required", "properties", "additionalProperties", "minProperties", "maxProperties"),
        *("minLength", "maxLength", "pattern", "minItems", "maxItems", "minimum", "maximum"),
    }
)
"""What can be turned into its opposite without leaving out any value, in many forms."""

_ALL = frozenset({"string", "number", "boolean", "null", "array", "object"})
_ANY = r"[\s\S]"
_REST = f"{_ANY}*"
_NUMBERS = frozenset({"number", "integer"})


def no_value_of(name: str) -> Schema:
    """An object without this property."""
    return {"type": ["object"], "properties": {name: False}}


def outside(form: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Schema]:
    """Schemas that share no value with `other`, each for one of its keywords; to be held together with `form`.

    >>> list(outside({"type": ["string", "null"]}, {"type": "string", "minLength": 3}))
    [{'type': ['null']}, {'type': ['string'], 'maxLength': 2}]
    """
    if excluded := types(other):
        kinds = _left(_kinds(form), excluded)
        if kinds:
            yield {"type": sorted(kinds)}
    if "enum" in other or "const" in other:
        yield from _other_values(form, other.get("enum", [other.get("const")]))
    for name in other.get("required", ()):
        yield no_value_of(name)
    for keyword, (kind, opposite) in _OPPOSITES.items():
        if keyword in other and not isinstance(other[keyword], bool):
            yield from ({"type": [kind], **one} for one in opposite(other[keyword]))


def can_negate(form: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the ways out of `other` give every value within `form` of which it is not true."""
    said = other.keys() - ANNOTATIONS
    kinds = types(form)
    if not said <= _NEGATED or ("$ref" in said and len(said) > 1):
        return False
    if {"enum", "const"} & said and "enum" not in form and not (kinds and kinds <= {"string", "boolean", "null"}):
        return False
    if "type" in said and (
        (form and not kinds) or ("number" in _kinds(form) and types(other) & _NUMBERS == {"integer"})
    ):
        return False
    if {"minimum", "maximum"} & said and (not kinds or "number" in kinds):
        return False
    return "pattern" not in said


def _kinds(form: Mapping[str, Any]) -> frozenset[str]:
    return (types(form) or implied(form)) if form else _ALL


def _left(kinds: frozenset[str], excluded: frozenset[str]) -> frozenset[str]:
    # A number may be whole, and a whole number is a number.
    return kinds - (excluded | _NUMBERS if excluded & _NUMBERS else excluded)


def _other_values(form: Mapping[str, Any], values: list[Json]) -> Iterator[Schema]:
    if "enum" in form:
        left = [value for value in form["enum"] if value not in values]
        if left:
            yield {"enum": left}
        return
    taken = frozenset(kind_of(value) for value in values)
    kinds = _left(_kinds(form), taken)
    if kinds:
        yield {"type": sorted(kinds)}
    if words := [value for value in values if isinstance(value, str)]:
        yield {"type": ["string"], "pattern": other_words(words)}
    if numbers := [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]:
        yield {"type": ["number"], "minimum": max(numbers) + 1}
    if "boolean" in taken:
        yield {"enum": [value for value in (False, True) if value not in values]}


def other_words(words: list[str]) -> str:
    """A pattern of texts that are none of these words, or some of them where the words are many.

    >>> other = re.compile(other_words(["ab", "a"]))
    >>> [word for word in ("", "a", "b", "ab", "abc", "ba") if other.search(word)]
    ['', 'b', 'abc', 'ba']
    """
    if sum(map(len, words)) > _MOST_LETTERS:
        return f"^[^{_in_class({word[0] for word in words if word})}]{_REST}$"
    begun = sorted({word[:end] for word in words for end in range(len(word) + 1)})
    ways: list[str] = []
    for start in begun:
        following = {word[len(start)] for word in words if word.startswith(start) and len(word) > len(start)}
        if start not in words:
            ways.append(re.escape(start))
        ways.append(re.escape(start) + (f"[^{_in_class(following)}]{_REST}" if following else f"{_ANY}{_REST}"))
    return f"^({'|'.join(ways)})$"


def _in_class(letters: set[str]) -> str:
    return "".join("\\" + letter if letter in "\\]^-[" else letter for letter in sorted(letters))


def _other_texts(pattern: str) -> list[Schema]:
    """Texts that do not match a pattern, where it says of which class all characters are, or one, or the first."""
    parts = list(pieces(pattern))
    if len(parts) == 4 and parts[0] == "^" and parts[2] in "+*" and parts[3] == "$" and (other := _negated(parts[1])):
        return [{"pattern": other}]
    if len(parts) == 1 and (other := _negated(parts[0])):
        return [{"pattern": f"^{other}*$"}]
    if len(parts) > 1 and parts[0] == "^" and (other := _begins_otherwise(parts[1:])):
        return [{"pattern": f"^{other}"}]
    return []


def _begins_otherwise(parts: list[str]) -> str | None:
    """A class without the first character of a pattern, where that is of one class and must be there."""
    depth, follows = 0, parts[1:2]
    for part in parts:
        depth += part.startswith("(") - (part == ")")
        if part == "|" and depth == 0:
            return None
    if follows and (follows[0] in "*?" or re.match(r"\{0", follows[0])):
        return None
    return _negated(parts[0])


def _negated(part: str) -> str | None:
    if part.startswith("["):
        return "[" + part[2:] if part.startswith("[^") else "[^" + part[1:]
    if re.fullmatch(r"\\[dDsSwW]", part):
        return part.swapcase()
    if len(part) == 2 and part[0] == "\\" and not part[1].isalnum():
        return f"[^{part}]"
    return f"[^{_in_class({part})}]" if part.isalnum() or part in "-_ @#/:,;<>=!%&~" else None


_OPPOSITES: Final[dict[str, tuple[str, Callable[[Any], list[Schema]]]]] = {
    "minLength": ("string", lambda least: [{"maxLength": least - 1}] if least > 0 else []),
    "maxLength": ("string", lambda most: [{"minLength": most + 1}]),
    "pattern": ("string", _other_texts),
    "minItems": ("array", lambda least: [{"maxItems": least - 1}] if least > 0 else []),
    "maxItems": ("array", lambda most: [{"minItems": most + 1}]),
    "minProperties": ("object", lambda least: [{"maxProperties": least - 1}] if least > 0 else []),
    "maxProperties": ("object", lambda most: [{"minProperties": most + 1}]),
    "minimum": ("number", lambda least: [{"maximum": math.ceil(least) - 1}]),
    "maximum": ("number", lambda most: [{"minimum": math.floor(most) + 1}]),
    "exclusiveMinimum": ("number", lambda least: [{"maximum": least}]),
    "exclusiveMaximum": ("number", lambda most: [{"minimum": most}]),
}
