"""Send rows through each vendor's batch API and live, some answered invalidly: valid rows, batches, tokens and cost.

    python -m bench.batch_apis                 10,000 rows, 7 % of the first answers invalid
    python -m bench.batch_apis --rows 1000     fewer

The vendors are scripted and in this process, prices are those of the list that ships with slipform, and a token is four
bytes. So the figures say what is sent and what it costs, not how long a vendor takes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.runner.batch_vendors import BASES, BatchVendor, DirectTransport

from slipform.addons.batch.batched_calls import BatchPolicy
from slipform.addons.batch.datasets import Summary, make_job, start
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.ir import Usage
from slipform.ir.response import guess_tokens
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import Schema

MODELS = {"openai": "gpt-6-luna", "anthropic": "claude-opus-5-5", "gemini": "gemini-3.8-flash"}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string", "enum": ["Oslo", "Rome", "Lima"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
LETTER = "Dear all, this is P{number}. I am {age} years old and I have lived in {city} since the bridge was built. " * 8
CITIES = ("Oslo", "Rome", "Lima")
INVALID_PERCENT = 7


def answer(prompt: str, turn: int) -> str:
    """What the model says of a letter: to seven of a hundred a city that is not in the schema, when first asked."""
    number = int(prompt.partition("P")[2].partition(".")[0])
    city = CITIES[number % 3]
    if turn == 0 and number * 31 % 100 < INVALID_PERCENT:
        city = f"near {city}"
    return json.dumps({"name": f"P{number}", "age": number % 90, "city": city})


def tokens(body: dict[str, Any], text: str) -> Usage:
    """A token for every four bytes."""
    return Usage(input=guess_tokens(json.dumps(body)), output=guess_tokens(text))


async def no_sleep(_: float) -> None:
    """Wait for nothing: a scripted vendor is done when it is looked at."""


def run(api: str, via: str, folder: Path) -> tuple[Summary, BatchVendor]:
    """Ask about all letters in one way."""
    vendor = BatchVendor(api, answer, tokens=tokens)
    provider = HttpProvider(api, base_url=BASES[api], api_key="sk-bench-key", transport=DirectTransport(vendor))
    router = Router({api: provider}, default=f"{api}/{MODELS[api]}")
    job, _ = make_job(
        folder / "in.jsonl",
        schema=SCHEMA,
        out=folder / f"{api}-{via}.jsonl",
        prompt="{text}",
        settings=Settings(),
        options=Options(budget=Budget(attempts=3)),
        router=router,
        via=via,  # type: ignore[arg-type]
    )
    return start(job, router, policy=BatchPolicy(sleep=no_sleep)), vendor


def valid_rows(path: Path) -> int:
    """How many rows of the results fit the schema."""
    schema: Schema[Any] = Schema.of(SCHEMA)
    return sum(not schema.validate(json.loads(line)["value"]) for line in path.read_bytes().splitlines())


def main() -> None:
    """Print the table of the docs."""
    reading = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reading.add_argument("--rows", type=int, default=10_000)
    rows = reading.parse_args().rows
    print("| model | valid rows | batches | requests | live calls | tokens in, out | cost | live: calls | live: cost |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "in.jsonl").open("w") as file:
            for number in range(rows):
                text = LETTER.format(number=number, age=number % 90, city=CITIES[number % 3])
                file.write(json.dumps({"text": text}) + "\n")
        for api, model in MODELS.items():
            began = time.process_time()
            batched, _ = run(api, "batch", folder)
            seconds = time.process_time() - began
            live, vendor = run(api, "live", folder)
            totals = batched.batches
            assert totals is not None
            assert batched.cost is not None
            assert live.cost is not None
            usage = batched.usage
            valid = valid_rows(folder / f"{api}-batch.jsonl")
            counts = f"{valid:,} | {totals.batches} | {totals.requests:,} | {totals.live_calls}"
            spent = f"{usage.input or 0:,}, {usage.output or 0:,} | ${batched.cost:.2f}"
            print(f"| `{api}/{model}` | {counts} | {spent} | {len(vendor.live):,} | ${live.cost:.2f} |")
            print(f"<!-- {seconds:.1f} s of CPU, {1000 * seconds / rows:.2f} ms a row -->")


if __name__ == "__main__":
    main()
