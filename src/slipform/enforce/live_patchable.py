"""Whether a patch may still make something of what stands in the wrong place. When in doubt: yes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from slipform.enforce.coerce import coercions
from slipform.enforce.fixes import Switches
from slipform.text.resolve_plan import Alternative

_LIKE_NUMBER = re.compile(r"\s*[+-]?[0-9.,_’'\u00a0\u202f eE+-]*\Z")
_BLANK = " \t\r\n"


def wanted_types(alternatives: Iterable[Alternative]) -> frozenset[str] | None:
    """The types that may stand there; None when any may."""
    found: set[str] = set()
    for alternative in alternatives:
        sets = [leaf.types for leaf in alternative.leaves if leaf.types is not None]
        if not sets:
            return None
        found |= frozenset.intersection(*sets)
    return frozenset(found)


def wanted_values(alternatives: Iterable[Alternative]) -> list[Any]:
    """The values that are listed there."""
    lists = (leaf.values for each in alternatives for leaf in each.leaves if leaf.values is not None)
    return [value for values in lists for value in values]


def scalar_may_be_patched(value: Any, alternatives: list[Alternative], switches: Switches, *, optional: bool) -> bool:
    """Whether a whole scalar in the wrong place may be mended; `optional` says that its key may be left out.

    >>> from slipform.text.resolve_plan import Plan
    >>> number = Plan({"type": "integer"}).root.alternatives
    >>> [scalar_may_be_patched(each, number, Switches(), optional=False) for each in ("42", "many", None)]
    [True, False, False]
    """
    if value is None and optional:
        return True
    types = wanted_types(alternatives)
    if types is None:
        return switches.coerce  # a value of the right type and the wrong content
    if switches.wrap_scalars and "array" in types:
        return True
    if not switches.coerce:
        return False
    if isinstance(value, str):
        said = value.strip().casefold()
        if any(_spelled(member).casefold() == said for member in wanted_values(alternatives)):
            return True
    return next(coercions(value, types, units=switches.units), None) is not None


def text_may_be_patched(text: str, alternatives: list[Alternative], switches: Switches) -> bool:
    """The same for a string of which this much is there."""
    types = wanted_types(alternatives)
    if types is None or (switches.wrap_scalars and "array" in types):
        return True
    if not switches.coerce:
        return False
    said = text.lstrip(_BLANK)
    folded = said.casefold()
    words = [_spelled(member) for member in wanted_values(alternatives)]
    words += ["true", "false"] if "boolean" in types else []
    words += ["null"] if "null" in types else []
    if any(word.casefold().startswith(folded.rstrip()) for word in words):
        return True
    if types & {"object", "array"} and (not said or said[0] in "{["):
        return True
    if types & {"integer", "number"}:
        return switches.units or _LIKE_NUMBER.match(said) is not None
    return False


def container_may_be_patched(alternatives: list[Alternative], switches: Switches, *, root: bool) -> bool:
    """The same for an object or array where none may stand."""
    types = wanted_types(alternatives)
    # At the root the answer may stand under a key of its own.
    return root or types is None or (switches.wrap_scalars and "array" in types)


def folded(name: str) -> str:
    """A key as the patch that renames keys compares it."""
    return "".join(sign for sign in name.casefold() if sign not in "_- ")


def _spelled(member: Any) -> str:
    if isinstance(member, bool):
        return "true" if member else "false"
    return member.strip() if isinstance(member, str) else str(member)
