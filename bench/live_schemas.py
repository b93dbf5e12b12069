"""Measure how much of a valid answer leaves before its end, on real-world schemas in each vendor's dialect.

`python -m bench.live_schemas [--report]` reads the schemas that lie beside the checkout: those to work with, or with
`--report` those that nothing was tuned on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.schema.lowering_encode import encode

from slipform.enforce import Plan, enforce
from slipform.enforce.stream import EnforcedCall, Release
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk, Lift, ModelRequest
from slipform.schema import Schema
from slipform.schema.lowering import lower

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "schemas"
DIALECTS = ("openai", "anthropic", "gemini")
LONG = 60
"""Shorter answers are one or two events: nothing can be seen of a stream there."""


@dataclass(slots=True)
class Figures:
    """What became of the streams of one dialect."""

    schemas: int = 0
    streaming: int = 0
    """Schemas of which at least one answer left in part before its end."""
    answers: int = 0
    shares: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def mean_share(self) -> float:
        """Return the mean share of an answer that left before its end."""
        return sum(self.shares) / max(len(self.shares), 1)


def released_early(schema: Schema[Any], lift: Lift | None, text: str, rng: random.Random) -> tuple[str, str]:
    """Stream one answer in random pieces; return what left before its end, and all that left."""
    plan = Plan(schema)
    call = EnforcedCall(enforce(ModelRequest("m", ()), plan), plan, streaming=True, release=Release(answer=True))
    reader = call.read()
    early: list[str] = []
    at = 0
    while at < len(text):
        size = rng.randint(1, 12)
        chunk = CompletionChunk(text[at : at + size], lift=lift if at == 0 else None)
        early += [each.text for each in reader.push([chunk]) or ()]
        if reader.stopped:
            break
        at += size
    reader.push([CompletionChunk(finish="stop")])
    call.answer(reader.response())
    closing, _ = call.last()
    before = "".join(early)
    return before, before + "".join(each.text for each in closing)


def entries(name: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file of schemas."""
    with (FOLDER / name).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def measure(name: str, every: int = 1, seed: int = 7) -> dict[str, Figures]:
    """Stream the valid instances of every n-th schema in every dialect."""
    rng = random.Random(seed)
    figures = {dialect: Figures() for dialect in DIALECTS}
    for entry in list(entries(name))[::every]:
        values = [test["data"] for test in entry["tests"] if test["valid"]]
        values = [value for value in values if len(json.dumps(value)) >= LONG]
        try:
            schema = Schema.of(entry["schema"])
        except SlipformError:
            continue
        for dialect in DIALECTS:
            _measure_schema(schema, values, dialect, figures[dialect], rng, entry["id"])
    return figures


def _measure_schema(
    schema: Schema[Any], values: list[Any], dialect: str, figures: Figures, rng: random.Random, name: str
) -> None:
    try:
        lowered = lower(schema.document, dialect, open_objects="auto")
    except SlipformError:
        return
    lift = None
    if not lowered.identity:
        lift = Lift(lowered.schema, lowered.lift, lowered.plan)
    shares = []
    for value in values:
        try:
            text = json.dumps(encode(lowered, value))
        except SlipformError:
            continue  # the dialect cannot express this value
        try:
            before, whole = released_early(schema, lift, text, rng)
        except SlipformError as error:
            figures.wrong.append(f"{name}: {type(error).__name__}")
            continue
        if json.loads(whole) != value:
            figures.wrong.append(f"{name}: another value")
        shares.append(len(before) / len(whole))
    if shares:
        figures.schemas += 1
        figures.answers += len(shares)
        figures.streaming += max(shares) > 0
        figures.shares += shares


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="the schemas that nothing was tuned on")
    parser.add_argument("--every", type=int, default=1, help="take every n-th schema")
    given = parser.parse_args()
    name = "real_world_report.jsonl" if given.report else "real_world.jsonl"
    if not (FOLDER / name).is_file():
        sys.exit(f"{name} does not lie beside the checkout: nothing to measure.")
    print(f"{'dialect':<10} {'schemas':>8} {'answers':>8} {'streaming':>10} {'early':>8} {'wrong':>6}")
    for dialect, figures in measure(name, given.every).items():
        streaming = figures.streaming / max(figures.schemas, 1)
        row = f"{dialect:<10} {figures.schemas:>8} {figures.answers:>8} {streaming:>10.1%} {figures.mean_share:>8.1%}"
        print(f"{row} {len(figures.wrong):>6}")
        for each in figures.wrong[:5]:
            print(f"    {each}")


if __name__ == "__main__":
    main()
