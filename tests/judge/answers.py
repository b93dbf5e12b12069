"""What a model may answer instead of the JSON that was asked for: broken values, broken texts, broken deliveries."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypeAlias

Channel: TypeAlias = Literal["asked", "text", "tool", "other tool"]
"""Where the answer stands: where it was asked for, or somewhere else."""
Fault: TypeAlias = Literal["", "cut", "reset", "error event", "bad bytes", "http error", "garbage", "no end"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a model and how it is delivered; plain data, so that a case can be written down."""

    text: str = ""
    channel: Channel = "asked"
    finish: str = "stop"
    refusal: str = ""
    reasoning: str = ""
    chunk_size: int = 8
    split: int = 0
    """Cut the bytes of the answer anew into pieces of this size; 0 leaves them an event each."""
    fault: Fault = ""
    at: float = 0.5
    """Where the fault strikes, as a part of the whole."""
    status: int = 200


Mutator: TypeAlias = Callable[[Any, Random], Any]
TextMutator: TypeAlias = Callable[[str, Random], str]


def random_reply(value: Any, dice: Random) -> Reply:
    """An answer that means this value, more or less broken."""
    for _ in range(dice.choice((0, 0, 0, 1, 1, 2))):
        value = dice.choice(VALUE_FAULTS)(value, dice)
    text = dumps(value, dice)
    for _ in range(dice.choice((0, 0, 1, 1, 2))):
        text = dice.choice(TEXT_FAULTS)(text, dice)
    return Reply(
        text=text,
        channel=dice.choice(("asked",) * 7 + ("text", "tool", "other tool")),
        finish=dice.choice(("stop",) * 12 + ("length", "content_filter", "tool_calls")),
        refusal="I can't help with that." if dice.random() < 0.03 else "",
        reasoning=dice.choice(("",) * 6 + ("Maybe {}?", 'First: {"a": 1}', "</think>")),
        chunk_size=dice.choice((1, 2, 3, 5, 8, 40, 1000)),
        split=dice.choice((0, 0, 0, 1, 7, 64, 1500)),
        fault=dice.choice(("",) * 25 + ("cut", "reset", "error event", "bad bytes", "http error", "garbage", "no end")),
        at=dice.random(),
        status=dice.choice((400, 401, 404, 429, 500, 503, 529)),
    )


def dumps(value: Any, dice: Random) -> str:
    """The value as JSON, spelled in one of the usual ways."""
    if dice.random() < 0.3:
        return json.dumps(value, indent=2, ensure_ascii=False)
    return json.dumps(value, separators=dice.choice(((",", ":"), (", ", ": "))), ensure_ascii=dice.random() < 0.5)


def _somewhere(value: Any, dice: Random, change: Callable[[Any], Any]) -> Any:
    """The value with one part of it changed."""
    if isinstance(value, dict) and value and dice.random() < 0.75:
        key = dice.choice(tuple(value))
        return {**value, key: _somewhere(value[key], dice, change)}
    if isinstance(value, list) and value and dice.random() < 0.75:
        at = dice.randrange(len(value))
        return [*value[:at], _somewhere(value[at], dice, change), *value[at + 1 :]]
    return change(value)


def _as_text(value: Any, dice: Random) -> Any:
    return _somewhere(value, dice, lambda part: part if isinstance(part, str) else json.dumps(part))


def _extra_key(value: Any, dice: Random) -> Any:
    extra: Any = dice.choice((None, 1, "x", {"a": 1}, []))
    return _somewhere(value, dice, lambda part: {**part, "extra": extra} if isinstance(part, dict) else part)


def _missing_key(value: Any, dice: Random) -> Any:
    def without(part: Any) -> Any:
        gone = dice.choice(tuple(part)) if isinstance(part, dict) and part else None
        return {key: each for key, each in part.items() if key != gone} if isinstance(part, dict) else part

    return _somewhere(value, dice, without)


def _misspelt(value: Any, dice: Random) -> Any:
    change = dice.choice((str.upper, str.title, str.strip, lambda text: f" {text} ", lambda text: text[:-1] + "x"))
    return _somewhere(value, dice, lambda part: change(part) if isinstance(part, str) else part)


def _renamed(value: Any, dice: Random) -> Any:
    change = dice.choice((str.upper, str.title, lambda key: key.replace(" ", "_"), lambda key: key + "s"))
    return _somewhere(
        value,
        dice,
        lambda part: {change(key): each for key, each in part.items()} if isinstance(part, dict) else part,
    )


def _swapped(value: Any, dice: Random) -> Any:
    def swap(part: Any) -> Any:
        if not isinstance(part, dict) or len(part) < 2:
            return part
        values = list(part.values())
        dice.shuffle(values)
        return dict(zip(part, values, strict=True))

    return swap(value) if dice.random() < 0.5 else _somewhere(value, dice, swap)


def _other(value: Any, dice: Random) -> Any:
    others: tuple[Any, ...] = (
        None,
        True,
        0,
        -1,
        1.5,
        3.0,
        10**30,
        1e300,
        "",
        "x",
        [],
        {},
        [[]],
        {"": ""},
        "36 km",
        "1,000",
        "yes",
    )
    return _somewhere(value, dice, lambda _: dice.choice(others))


VALUE_FAULTS: tuple[Mutator, ...] = (
    _as_text,
    _extra_key,
    _missing_key,
    _misspelt,
    _renamed,
    _swapped,
    _other,
    lambda value, dice: [value],
    lambda value, dice: {dice.choice(("answer", "result", "s", "a")): value},
    lambda value, dice: [value, value],
    lambda value, dice: json.dumps(value),
    lambda value, dice: next(iter(value.values()), None) if isinstance(value, dict) else value,
    lambda value, dice: _somewhere(value, dice, lambda part: [*part, *part] if isinstance(part, list) else [part]),
    lambda value, dice: _somewhere(value, dice, lambda part: part.get("a", part) if isinstance(part, dict) else part),
)  # fmt: skip


def _cut(text: str, dice: Random) -> str:
    return text[: dice.randrange(len(text) + 1)]


def _garbled(text: str, dice: Random) -> str:
    at = dice.randrange(len(text) + 1)
    junk = dice.choice(("\ufffd", "\u200b", "\ufeff", "\x00", "\x1b[31m", "“", "”", "\\ud800", "\U0001f4a5", "\\", '"'))
    return text[:at] + junk + text[at + dice.randrange(2) :]


def _replaced(text: str, dice: Random) -> str:
    return text.replace(dice.choice(text), dice.choice('"{}[],:x0\\\n \t'), 1) if text else text


def _twice_keyed(text: str, dice: Random) -> str:
    return text.replace("{", '{"a": 1, "a": "two", ', 1)


def _missing_comma(text: str, dice: Random) -> str:
    return text.replace(",", " ", 1)


TEXT_FAULTS: tuple[TextMutator, ...] = (
    lambda text, dice: f"```json\n{text}\n```",
    lambda text, dice: f"```\n{text}",
    lambda text, dice: f"Sure! Here it is [1]: {text} I hope this helps.",
    lambda text, dice: f"The shape is {{name}}.\n\n{text}\n\nLet me know.",
    lambda text, dice: f"<think>maybe {{}} or {text[:9]}?</think>{text}",
    _cut,
    _cut,
    lambda text, dice: text.replace('"', "'"),
    lambda text, dice: text.replace('":', ":").replace('{"', "{").replace(', "', ", "),
    lambda text, dice: text.replace("]", ",]").replace("}", ",}"),
    lambda text, dice: text.replace("true", "True").replace("false", "False").replace("null", "None"),
    lambda text, dice: text.replace("{", "{ // a remark\n", 1),
    lambda text, dice: text.replace("1", dice.choice(("NaN", "Infinity", "01", "+1", "1.", ".5", "0x1", "1e999")), 1),
    lambda text, dice: f"{text}\n\n{text}",
    lambda text, dice: f'{text}\nNo, wait: {{"a": 1}}',
    lambda text, dice: f"{{}}\n{text}",
    lambda text, dice: "",
    lambda text, dice: " \n",
    lambda text, dice: "I am sorry, but I cannot help with that request.",
    lambda text, dice: json.dumps(text),
    lambda text, dice: text.rstrip("}]"),
    lambda text, dice: text + dice.choice(("}", "]", '"', "}}", ",")),
    lambda text, dice: "[" * dice.choice((3, 300, 3000)) + text,
    lambda text, dice: text.replace("\\n", "\n"),
    lambda text, dice: text.replace('"', dice.choice(("“", '\\"', '""'))),
    lambda text, dice: text.replace("a", "\\u0061", 1),
    _garbled,
    _garbled,
    _replaced,
    _replaced,
    _twice_keyed,
    _missing_comma,
)  # fmt: skip
