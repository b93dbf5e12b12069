"""The embedded model over real-world schemas: every answer valid against the full schema, or a clear error.

    python -m bench.local_schemas ../shared/schemas/real_world.jsonl --max-tokens 256

Prints one line for each answer that is not plainly valid, then the table. "Invalid, presented as valid" must be 0: it
counts answers that the enforcement loop gave back and an independent validation refuses.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema_rs
import llguidance

from slipform import Client
from slipform.enforce import Budget
from slipform.engine import Options
from slipform.errors import SchemaError, SlipformError
from slipform.providers.local import LocalProvider
from slipform.providers.local.constraint import constrain
from slipform.providers.local.weaken import problem, weaken
from slipform.providers.router import Router

WORDS = "Write one short, realistic example."


def judge(client: Client, schema: dict[str, Any], max_tokens: int) -> tuple[str, str]:
    """The outcome of one schema, and what to say about it."""
    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True, offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return "not a usable schema", str(error).splitlines()[0][:120]
    try:
        outcome = client.ask_full(schema, WORDS, max_tokens=max_tokens)
    except SchemaError as error:
        return error.code, error.message[:120]
    except SlipformError as error:
        return error.code, error.message[:120]
    if not validator.is_valid(outcome.value):
        return "INVALID, presented as valid", outcome.text[:120]
    return "valid", outcome.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--every", type=int, default=1, help="take one schema in so many")
    parser.add_argument("--first", type=int, default=0, help="begin with the schema of this number")
    parser.add_argument("--model", default="local")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.schemas.read_text().splitlines()][arguments.first :: arguments.every]
    held: collections.Counter[str] = collections.Counter()
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    started = time.monotonic()
    options = Options(budget=Budget(attempts=3))
    client = Client(arguments.model, router=Router({"local": LocalProvider()}), options=options)
    with client:
        pool = ThreadPoolExecutor(2)  # as many as the engine decodes at once
        judged = pool.map(lambda row: judge(client, row["schema"], arguments.max_tokens), rows)
        for row, (outcome, said) in zip(rows, judged, strict=True):
            held_as = constraint_of(row["schema"], arguments.max_tokens)
            held[held_as] += 1
            outcomes[held_as][outcome] += 1
            if sum(held.values()) % 50 == 0:
                print(f"{sum(held.values())} done: {dict(sum(outcomes.values(), collections.Counter()))}", flush=True)
            if outcome != "valid":
                print(f"{row['id']}: {held_as}: {outcome}: {said}", flush=True)
    show(rows, held, outcomes)
    show_share(rows, held)
    print(f"\n{time.monotonic() - started:.0f} s")


def constraint_of(schema: dict[str, Any], max_tokens: int) -> str:
    try:
        return "held exactly" if constrain(schema, max_tokens).exact else "held but for named keywords"
    except SchemaError:
        return "refused"


def show_share(rows: list[Any], held: collections.Counter[str]) -> None:
    """How many schemas decoding is held to, beside what llguidance takes by itself."""
    strict = engine = dropped = 0
    for row in rows:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(row["schema"])
        strict += not llguidance.LLMatcher.validate_grammar_with_warnings(grammar)[0]
        engine += problem(row["schema"]) is None
        dropped += weaken(row["schema"])[2] is None
    ours = len(rows) - held["refused"]
    print(f"\nheld by decoding: {ours} of {len(rows)}, {held['held exactly']} of them exactly")
    print(f"llguidance as it is: {strict} (PyPI), {engine} (the engine's); with only named keywords dropped: {dropped}")


def show(rows: list[Any], held: collections.Counter[str], outcomes: dict[str, collections.Counter[str]]) -> None:
    names = [
        "valid",
        "truncated",
        *sorted({name for each in outcomes.values() for name in each} - {"valid", "truncated"}),
    ]
    print(f"\n| {len(rows)} schemas | all | {' | '.join(names)} |")
    print("|---|--:|" + "--:|" * len(names))
    for held_as, count in held.most_common():
        print(f"| {held_as} | {count} | {' | '.join(str(outcomes[held_as][name]) for name in names)} |")


if __name__ == "__main__":
    main()
