"""Valid documents are broken in one or two of many ways: what is read is the original, or is refused, or says so.

The damage is what models do: marks, brackets and words lost, doubled, swapped or left in other quotes, and text around.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from slipform import loads_report
from slipform.errors import EnforcementError

WORDS = [
    "Ada", "Bonn", "it's", "a, b", "x: y", 'say "hi"', "line\nbreak", "{x}", "[1]", "// no", "# 5", "50%", "a\tb", "",
    "true", "null", "12", "naïve", "日本語", "http://a.b/c?d=e", "a;b", "key: value, other: 2", "1,000", "a}b", "]",
]  # fmt: skip
KEYS = ["name", "age", "id", "tags", "note", "first name", "é", "a-b", "url"]
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth == 0 or kind < 0.5:
        return rng.choice([rng.choice(WORDS), rng.choice(WORDS), rng.randrange(-5, 5000), 2.5, True, None])
    if kind < 0.8:
        return {key: _value(rng, depth - 1) for key in rng.sample(KEYS, rng.randrange(1, 4))}
    return [_value(rng, depth - 1) for _ in range(rng.randrange(3))]


def _document(rng: random.Random) -> Any:
    if rng.random() < 0.5:
        return [{"id": i, "note": rng.choice(WORDS), "ok": rng.random() < 0.5} for i in range(rng.randrange(1, 4))]
    return {key: _value(rng, 2) for key in rng.sample(KEYS, rng.randrange(1, 5))}


def _at_token(marks: str, change: Callable[[random.Random, str], str]) -> Callable[[random.Random, str], str | None]:
    def damage(rng: random.Random, text: str) -> str | None:
        found = [match for match in TOKENS.finditer(text) if match.group()[0] in marks]
        if not found:
            return None
        token = rng.choice(found)
        return text[: token.start()] + change(rng, token.group()) + text[token.end() :]

    return damage


def _around(*frames: str) -> Callable[[random.Random, str], str | None]:
    return lambda rng, text: rng.choice(frames).replace("%s", text)


DAMAGE: dict[str, Callable[[random.Random, str], str | None]] = {
    "a comma lost": _at_token(",", lambda *_: " "),
    "a comma lost at the end of a line": _at_token(",", lambda *_: "\n"),
    "a comma doubled": _at_token(",", lambda *_: ",,"),
    "a semicolon": _at_token(",", lambda *_: ";"),
    "a colon lost": _at_token(":", lambda *_: " "),
    "an arrow": _at_token(":", lambda *_: " =>"),
    "a bracket lost": _at_token("}]", lambda *_: ""),
    "a bracket doubled": _at_token("}]", lambda _, mark: mark * 2),
    "a bracket swapped": _at_token("}]", lambda _, mark: "]" if mark == "}" else "}"),
    "an opening bracket lost": _at_token("{[", lambda *_: ""),
    "an opening bracket swapped": _at_token("{[", lambda _, mark: "[" if mark == "{" else "{"),
    "a first quote lost": _at_token('"', lambda _, string: string[1:]),
    "a last quote lost": _at_token('"', lambda _, string: string[:-1]),
    "inner quotes not escaped": lambda _, text: text.replace('\\"', '"') if '\\"' in text else None,
    "line breaks not escaped": lambda _, text: text.replace("\\n", "\n").replace("\\t", "\t"),
    "a comment": _at_token(",{[", lambda rng, mark: mark + rng.choice([" // a note\n", " /* c */ ", " # note: x\n"])),
    "a word between": _at_token(",", lambda rng, mark: mark + rng.choice([" and ", " also ", " then "])),
    "full-width marks": _at_token(",:", lambda _, mark: "，" if mark == "," else "："),
    "an odd space": _at_token(",:{[}]", lambda _, mark: mark + "\u00a0"),
    "a fence": _around("```json\n%s\n```", "Here:\n```\n%s\n```\nDone.", "```json\n%s"),
    "prose": _around("Sure! %s", "%s\n\nHope this helps!", "I used {name} here.\n%s", "<think>{}</think>%s"),
    "another object": _around('%s\n\n{"zzz": 0}'),
}
OUTSIDE = ("a fence", "prose", "another object")


def _schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        properties = {key: _schema_of(each) for key, each in value.items()}
        return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "items": {"anyOf": [_schema_of(each) for each in value]}} if value else {}
    return {"const": None} if value is None else {"type": {str: "string", bool: "boolean"}.get(type(value), "number")}


def _is_valid(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_what_differs_from_the_original_says_so(seed: int) -> None:
    rng, right, read = random.Random(seed), 0, 0
    for _ in range(250):
        value = _document(rng)
        text: str | None = json.dumps(value, ensure_ascii=rng.random() < 0.3, indent=rng.choice([None, 2]))
        names = sorted(rng.sample(sorted(DAMAGE), rng.choice([1, 1, 2])), key=OUTSIDE.__contains__)
        for name in names:
            text = None if text is None else DAMAGE[name](rng, text)
        if text is None or _is_valid(text):  # two faults may cancel each other: nobody can tell
            continue
        for schema in (None, _schema_of(value)):
            try:
                report = loads_report(text, schema)
            except EnforcementError:
                continue
            read += 1
            if report.value == value:
                right += 1
                continue
            guessed = any(not edit.certain for edit in report.edits) or report.patched is not None
            assert guessed or report.warnings or report.left_out, (names, text)
    assert right > 0.9 * read
