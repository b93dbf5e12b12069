"""Define the faults of `bench.faults`: bad answers of a model, as data. Needs pydantic only: peers load it too."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel


class Line(BaseModel):
    """A line of the invoice."""

    name: str
    quantity: int
    price: float


class Invoice(BaseModel):
    """What the model is asked for."""

    number: str
    status: Literal["draft", "sent", "paid"]
    total: float
    lines: list[Line]
    notes: str


RIGHT = Invoice(
    number="A-17",
    status="paid",
    total=1234.5,
    lines=[Line(name="Bolt, M8", quantity=3, price=400.0), Line(name="Nut", quantity=5, price=6.9)],
    notes='It\'s due "soon".',
)
TEXT = RIGHT.model_dump_json()
PLAIN = RIGHT.model_copy(update={"notes": "due soon"})
PROMPT = "Read this invoice."


def changed(old: str, new: str) -> str:
    """The right answer with one thing in it changed."""
    assert old in TEXT
    return TEXT.replace(old, new, 1)


def without(name: str) -> str:
    """The right answer without one of its fields."""
    return json.dumps({key: value for key, value in json.loads(TEXT).items() if key != name})


@dataclass(frozen=True)
class Fault:
    """A bad answer: its text, why it ended, and what the right value is where it is another than for the rest."""

    name: str
    text: str
    finish: Literal["stop", "length"] = "stop"
    right: Invoice = field(default_factory=lambda: RIGHT)
    once: bool = False
    """Whether the model gives the right answer when it is asked again even in the published trial."""


# The fourteen of the published trial, then some that it did not have.
FAULTS = (
    Fault("fenced, with chatter", f"Sure! Here it is:\n```json\n{TEXT}\n```\nAnything else?"),
    Fault("prose around", f"The invoice is {TEXT} as you asked."),
    Fault("reasoning first", f'<think>Maybe {{"number": "?"}} or so.</think>{TEXT}'),
    Fault("trailing comma", TEXT[:-1] + ",}"),
    Fault("single quotes", repr(PLAIN.model_dump()), right=PLAIN),
    Fault("cut off by the token limit", TEXT[:90], finish="length"),
    Fault('whole number as "3"', changed('"quantity":3', '"quantity":"3"')),
    Fault('number as "1,234.50"', changed("1234.5", '"1,234.50"')),
    Fault("listed value in another case", changed('"paid"', '"PAID"')),
    Fault("required field missing", without("notes")),
    Fault("a field too many", TEXT[:-1] + ',"currency":"EUR"}'),
    Fault("wrapped in one more key", f'{{"invoice": {TEXT}}}'),
    Fault("a value not listed, once", changed('"paid"', '"settled"'), once=True),
    Fault("nothing at all", ""),
)
MORE = (
    Fault("cut off at its last bracket", TEXT[:-1], finish="length"),
    Fault("a key in another case", changed('"notes"', '"Notes"')),
    Fault("listed value in quotes, with a stop", changed('"paid"', "\"'Paid'.\"")),
    Fault("the JSON inside a JSON string", json.dumps(TEXT)),
    Fault("a list inside a string", json.dumps({**json.loads(TEXT), "lines": json.dumps(json.loads(TEXT)["lines"])})),
    Fault("two objects, the second is the answer", f'{{"plan": "read it"}}\n{TEXT}'),
    Fault("comments in it", changed('"total"', '// the sum\n"total"')),
    Fault("cut off inside a list", TEXT[: TEXT.index("}", TEXT.index("Bolt")) + 1], finish="length"),
)
ALL = FAULTS + MORE


def script_of(fault: Fault, *, mends: bool) -> list[tuple[str, str]]:
    """What the model answers, call by call: text and finish; the last one is repeated."""
    first = (fault.text, fault.finish)
    return [first, (TEXT, "stop")] if mends or fault.once else [first]
