"""The fourteen faults that structured-output libraries were tried with, through `ask`, over real HTTP.

Run with `PYTHONPATH=src python -m bench.faults`. Each fault is answered twice over: by a model that repeats itself
however often it is asked, as in the published trial, and by one that gives the right answer when asked again. The
budget is three calls. A number is how many calls it took to the right value, `error` an error that says why; `WRONG`
would be a value that is not the right one. The columns of other libraries are those of the published trial (their
versions of November 2026, same kinds of faults, re-ask budget 2, a model that repeats itself), not of this run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from slipform import Budget, Client, EnforcementError, Options
from slipform.ir import ModelResponse
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import FakeVendor, Step


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


def changed(old: str, new: str) -> str:
    """The right answer with one thing in it changed."""
    assert old in TEXT
    return TEXT.replace(old, new, 1)


def without(name: str) -> str:
    """The right answer without one of its fields."""
    return json.dumps({key: value for key, value in json.loads(TEXT).items() if key != name})


def single_quoted() -> str:
    """As Python would print it, which many models do."""
    plain = RIGHT.model_copy(update={"notes": "due soon"})
    return repr(plain.model_dump())


@dataclass(frozen=True)
class Fault:
    """A bad answer, and how the best of the others did with it in the published trial."""

    name: str
    answer: Step
    published: str
    right: Invoice | None = None
    """The right value, where it is another than for the rest."""
    mends: bool = False
    """Whether the model gives the right answer at the second call even in the published trial."""


OTHERS = ("Instructor MD_JSON", "pydantic-ai native", "LangChain json_mode", "DSPy", "BAML")
FAULTS = (
    Fault("fenced, with chatter", f"Sure! Here it is:\n```json\n{TEXT}\n```\nAnything else?", "1 1 1 1 1"),
    Fault("prose around", f"The invoice is {TEXT} as you asked.", "1 error error 1 1"),
    Fault("reasoning first", f'<think>Maybe {{"number": "?"}} or so.</think>{TEXT}', "1 1 error 1 1"),
    Fault("trailing comma", TEXT[:-1] + ",}", "error error error 1 1"),
    Fault(
        "single quotes",
        single_quoted(),
        "error error error 1 1",
        RIGHT.model_copy(update={"notes": "due soon"}),
    ),
    Fault(
        "cut off by the token limit", ModelResponse(text=TEXT[:90], finish="length"), "error error error error error"
    ),
    Fault('whole number as "3"', changed('"quantity":3', '"quantity":"3"'), "error 1 1 1 1"),
    Fault('number as "1,234.50"', changed("1234.5", '"1,234.50"'), "error error error error 1"),
    Fault("listed value in another case", changed('"paid"', '"PAID"'), "error error error error 1"),
    Fault("required field missing", without("notes"), "error error error error error"),
    Fault("a field too many", TEXT[:-1] + ',"currency":"EUR"}', "1 1 1 1 1"),
    Fault("wrapped in one more key", f'{{"invoice": {TEXT}}}', "error error error error error"),
    Fault("a value not listed, once", changed('"paid"', '"settled"'), "2 2 error error error", mends=True),
    Fault("nothing at all", "", "error error error error error"),
)


def tried(fault: Fault, *, mends: bool) -> str:
    """How many calls it took, or what came of it."""
    script: list[Step] = [fault.answer, TEXT] if mends else [fault.answer]
    with (
        FakeVendor(script) as vendor,
        HttpProvider("openai", base_url=vendor.base_url, api_key="any") as provider,
    ):
        client = Client("openai/gpt-5", router=Router({"openai": provider}), options=Options(budget=Budget(attempts=3)))
        try:
            found = client.ask(Invoice, "Read this invoice.")
        except EnforcementError as error:
            return f"error: {error.code}"
        calls = len(vendor.requests)
        return str(calls) if found in (fault.right or RIGHT, RIGHT) else "WRONG"


def main() -> None:
    """Print the table."""
    print(f"{'':28} {'repeats itself':>24} {'right when asked again':>24}   published: {', '.join(OTHERS)}")
    rows = [(fault, tried(fault, mends=fault.mends), tried(fault, mends=True)) for fault in FAULTS]
    for fault, repeats, again in rows:
        print(
            f"{fault.name:28} {repeats:>24} {again:>24}   {' '.join(f'{each:>6}' for each in fault.published.split())}"
        )
    first = sum(repeats == "1" for _, repeats, _ in rows)
    repeated, asked = (sum(row[column].isdigit() for row in rows) for column in (1, 2))
    wrong = sum("WRONG" in row[1:] for row in rows)
    others = [sum(fault.published.split()[at].isdigit() for fault in FAULTS) for at in range(len(OTHERS))]
    print(f"{'recovered of 14':28} {repeated:>24} {asked:>24}   {' '.join(f'{each:>6}' for each in others)}")
    print(f"{first} without a second call; {wrong} wrong.")


if __name__ == "__main__":
    main()
