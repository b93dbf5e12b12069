"""Formats, spelled as patterns: those that the engine does not know, and what it is too generous with in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.providers.local.walk import changed_at, subschemas

KNOWN = frozenset(
    [
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "idn-email",
        "idn-hostname",
        "ipv4",
        "ipv6",
        "iri",
        "iri-reference",
        "json-pointer",
        "regex",
        "relative-json-pointer",
        "time",
        "uri",
        "uri-reference",
        "uri-template",
        "uuid",
    ]
)
"""What says something to validators; to leave out any other format weakens nothing."""

_NAME = "[a-zA-Z0-9]{1,20}(-[a-zA-Z0-9]{1,10}){0,3}"
_PATH = "([a-zA-Z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})*"
_TAIL = r"(\?[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?(#[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?"
_URI = rf"^[a-zA-Z][a-zA-Z0-9+.-]*:(//{_NAME}(\.{_NAME})*(:[0-9]{{1,4}})?(/{_PATH})?|[a-zA-Z0-9]{_PATH}){_TAIL}$"
_REFERENCE = rf"^/?[a-zA-Z0-9._~-]+(/[a-zA-Z0-9._~-]+)*/?{_TAIL}$"
SPELLINGS = {
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "idn-email": rf"^[a-zA-Z0-9]{{1,12}}([._+-][a-zA-Z0-9]{{1,12}}){{0,3}}@{_NAME}(\.{_NAME}){{1,3}}$",
    "idn-hostname": rf"^{_NAME}(\.{_NAME}){{0,3}}$",
    "json-pointer": r"^(/[a-zA-Z0-9_.-]*)*$",
    "relative-json-pointer": r"^(0|[1-9][0-9]{0,3})(/[a-zA-Z0-9_.-]*)*$",
}
"""Formats that the engine does not know: their usual texts, in letters that every validator takes."""

PLAINEST = {"regex": r"^\^?[a-zA-Z0-9 _-]*\$?$", "uri-template": _REFERENCE}
"""Texts that are sure to be of the format, but are only the least of them."""

_LEAP_DAY = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
_DAY = f"^({_LEAP_DAY}|[0-9]{{4}}-(02-([01][0-9]|2[0-8])|(0[13-9]|1[0-2])-[0-3][0-9]))"
_NO_LEAP_SECOND = "[0-9:]{6}[0-5]"
_BESIDES = {
    "date": _DAY,
    "time": f"^{_NO_LEAP_SECOND}",
    "date-time": f"{_DAY}[Tt]{_NO_LEAP_SECOND}",
    "email": "^[^@]{1,64}@",
}
"""What texts of a format must match besides: the engine takes 29 February in any year, and second 60 at any time."""


def spelled(pattern: str, sub: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with a pattern in place of its format.

    >>> spelled("^/", {"type": "string", "format": "json-pointer", "pattern": "a"})
    {'type': 'string', 'pattern': 'a', 'allOf': [{'pattern': '^/'}]}
    """
    return _also({key: value for key, value in sub.items() if key != "format"}, pattern)


def with_whole_formats(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its formats held as validators hold them.

    >>> with_whole_formats({"format": "email"})
    {'format': 'email', 'pattern': '^[^@]{1,64}@'}
    """
    result: Any = schema
    for at, sub in list(subschemas(schema)):
        if (besides := _BESIDES.get(str(sub.get("format")))) is not None:
            result = changed_at(result, at, _also(sub, besides))
    return dict(result)


def _also(sub: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    if "pattern" in sub:
        return {**sub, "allOf": [*sub.get("allOf", ()), {"pattern": pattern}]}
    return {**sub, "pattern": pattern}
