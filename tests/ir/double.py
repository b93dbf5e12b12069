"""A small stand-in for the streaming parser and resolver: it shows the closed members of a flat object."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from slipform.ir.reducer import ParserChoice

_MEMBER = re.compile(r'"([^"]*)":\s*("(?:[^"\\]|\\.)*"|-?\d+(?=[,}])|\{[^{}]*\}|\[[^\[\]]*\])')


@dataclass(frozen=True)
class TextParser:
    text: str = ""
    ended: bool = False

    def feed(self, chunk: str, /) -> TextParser:
        return TextParser(self.text + chunk)

    def finish(self) -> TextParser:
        return TextParser(self.text, ended=True)

    @property
    def value(self) -> Any:
        try:
            return json.loads(self.text)
        except ValueError:
            return {key: json.loads(value) for key, value in _MEMBER.findall(self.text)}

    @property
    def complete(self) -> bool:
        try:
            json.loads(self.text)
        except ValueError:
            return False
        return True

    @property
    def error(self) -> str | None:
        if self.text.strip() and self.text.strip()[0] not in '{["-0123456789tfn':
            return "not JSON at character 0"
        return "cut off" if self.ended and not self.complete else None


@dataclass(frozen=True)
class Match:
    value: Any


@dataclass(frozen=True)
class Invalid:
    message: str


def resolve(schema: Any, parser: TextParser, cache: dict[str, Any]) -> Match | Invalid:
    """Members that did not change are the same objects as before."""
    value = parser.value
    for key in value if isinstance(value, dict) else ():
        if key not in schema.get("properties", {key: {}}):
            return Invalid(f"$.{key} is not allowed")
        if cache.get(key) == value[key]:
            value[key] = cache[key]
        cache[key] = value[key]
    if isinstance(value, dict) and cache.get("$whole") == value:
        value = cache["$whole"]
    cache["$whole"] = value
    return Match(value)


READING = ParserChoice(TextParser, resolve, dict)
