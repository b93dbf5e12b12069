"""Define two hundred bad answers: twenty kinds of fault on five shapes, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipform.ir import ModelResponse
from slipform.testing import Answer, Step, rate_limited, server_error, truncated

Fault: TypeAlias = Callable[[Any], list[Step]]


def closed(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    """An object that takes these keys and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TEXT = {"type": "string"}
LINE = closed({"item": TEXT, "quantity": {"type": "integer", "minimum": 1}, "price": {"type": "number"}})
CARD = closed({"kind": {"const": "card"}, "last4": {"type": "string", "pattern": "^[0-9]{4}$"}})
BANK = closed({"kind": {"const": "bank"}, "iban": {"type": "string", "minLength": 15}})
SHAPES: dict[str, tuple[dict[str, Any], Any]] = {
    "person": (
        closed({"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": TEXT}, "email"),
        {"name": "Ada Lovelace", "age": 36},
    ),
    "invoice": (
        closed({"number": TEXT, "lines": {"type": "array", "items": LINE, "minItems": 1}, "total": {"type": "number"}}),
        {
            "number": "A-17",
            "lines": [
                {"item": "Bolt, M8", "quantity": 3, "price": 4.5},
                {"item": "It's a nut", "quantity": 12, "price": 0.25},
            ],
            "total": 16.5,
        },
    ),
    "payment": (
        closed({"amount": {"type": "integer"}, "by": {"oneOf": [CARD, BANK]}}),
        {"amount": 250, "by": {"kind": "card", "last4": "4242"}},
    ),
    "ticket": (
        closed(
            {
                "title": TEXT,
                "priority": {"enum": ["low", "medium", "high"]},
                "done": {"type": "boolean"},
                "tags": {"type": "array", "items": TEXT, "uniqueItems": True},
            }
        ),
        {"title": "Login fails", "priority": "high", "done": False, "tags": ["auth", "web"]},
    ),
    "scores": (
        {
            "type": "object",
            "properties": {"team": TEXT, "scores": {"type": "object", "additionalProperties": {"type": "integer"}}},
            "required": ["team", "scores"],
            "additionalProperties": False,
        },
        {"team": "Red", "scores": {"Kim": 11, "Lee": 7}},
    ),
}


def _first_key(value: Any) -> str:
    return next(iter(value))


def _number_in_quotes(value: Any) -> Any:
    """The same, its first number or truth value, wherever it is, written as a string."""
    found = False

    def walk(node: Any) -> Any:
        nonlocal found
        if isinstance(node, dict):
            return {key: walk(each) for key, each in node.items()}
        if isinstance(node, list):
            return [walk(each) for each in node]
        if not found and isinstance(node, int | float):
            found = True
            return json.dumps(node)
        return node

    return walk(value)


def _good(value: Any) -> str:
    return json.dumps(value, indent=2)


FAULTS: dict[str, Fault] = {
    "nothing wrong": lambda v: [_good(v)],
    "in a fence": lambda v: [f"```json\n{_good(v)}\n```"],
    "prose around it": lambda v: [f"Here is what you asked for:\n\n{_good(v)}\n\nLet me know if I can help!"],
    "thinking first": lambda v: [f'<think>They want {{"x": 1}}, I suppose.</think>\n{_good(v)}'],
    "a trailing comma": lambda v: [_good(v)[:-2] + ",\n}"],
    "single quotes": lambda v: [repr(v)],
    "no quotes on keys": lambda v: [_good(v).replace(f'"{_first_key(v)}"', _first_key(v), 1)],
    "comments": lambda v: [_good(v).replace("{", "{ // as asked", 1)],
    "no closing bracket": lambda v: [_good(v).rstrip()[:-1]],
    "a number in quotes": lambda v: [_good(_number_in_quotes(v))],
    "a key too many": lambda v: [_good({**v, "confidence": 0.9})],
    "wrapped in a key": lambda v: [_good({"result": v})],
    "as a string": lambda v: [json.dumps(json.dumps(v))],
    "a key missing, then right": lambda v: [_good({k: v[k] for k in list(v)[1:]}), _good(v)],
    "cut off, then right": lambda v: [truncated(_good(v)[: len(_good(v)) // 2]), _good(v)],
    "empty, then right": lambda v: ["", _good(v)],
    "no JSON, then right": lambda v: ["I am not sure what you mean.", _good(v)],
    "overloaded, then right": lambda v: [rate_limited(retry_after_ms=5), server_error(503), _good(v)],
    "a key missing, always": lambda v: [_good({k: v[k] for k in list(v)[1:]})],
    "a refusal": lambda _: [Answer(ModelResponse(refusal="I can't help with that."))],
}
HOPELESS = frozenset({"a key missing, always", "a refusal"})
"""Faults after which an error is the only right answer."""


@dataclass(frozen=True)
class Situation:
    """One of them."""

    number: int
    fault: str
    shape: str
    stream: bool

    @property
    def schema(self) -> dict[str, Any]:
        """What the answer must fit."""
        return SHAPES[self.shape][0]

    @property
    def right(self) -> Any:
        """The value that the model means."""
        return SHAPES[self.shape][1]

    def steps(self) -> list[Step]:
        """What the model says, call by call."""
        return FAULTS[self.fault](self.right)


def situations() -> list[Situation]:
    """All two hundred."""
    each = [(fault, shape, stream) for fault in FAULTS for shape in SHAPES for stream in (False, True)]
    return [Situation(number, *what) for number, what in enumerate(each)]
