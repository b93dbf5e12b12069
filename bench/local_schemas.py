"""Run the embedded model over real-world schemas: every answer must be valid, or reported as truncated.

    python -m bench.local_schemas ../shared/schemas/real_world.jsonl --share           # what decoding is held to: quick
    python -m bench.local_schemas ../shared/schemas/real_world.jsonl --max-tokens 256  # with answers: many minutes
    python -m bench.local_schemas ../shared/schemas/real_world.jsonl --part weak       # only those not held exactly

Prints one line for each answer that is not plainly valid, then the table. "Invalid, presented as valid" must be 0: it
counts answers that the enforcement loop gave back and an independent validation refuses.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema_rs
import llguidance

from slipform import Client
from slipform.addons.local import LocalProvider
from slipform.addons.local.decoding.constrain import constrain
from slipform.addons.local.decoding.weaken import problem
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.errors import SchemaError, SlipformError
from slipform.providers.router import Router

WORDS = "Write one short, realistic example."
KINDS = ("held exactly", "held exactly on a second try", "held but for named keywords", "refused")


def judge(client: Client, schema: dict[str, Any], max_tokens: int) -> tuple[str, str]:
    """The outcome of one schema, and what to say about it."""
    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True, offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return "not a usable schema", str(error).splitlines()[0][:120]
    try:
        outcome = client.ask_full(schema, WORDS, max_tokens=max_tokens)
    except SlipformError as error:
        return error.code, error.message[:120]
    if not validator.is_valid(outcome.value):
        return "INVALID, presented as valid", outcome.text[:120]
    return "valid", outcome.text


def constraint_of(schema: dict[str, Any], max_tokens: int) -> str:
    """How decoding is held to a schema: the first answer, and the one after an invalid one."""
    try:
        if constrain(schema, max_tokens).exact:
            return KINDS[0]
        return KINDS[1] if constrain(schema, max_tokens, exact=True).exact else KINDS[2]
    except SchemaError:
        return KINDS[3]


def answers(rows: list[Any], arguments: argparse.Namespace) -> None:
    """Ask for one answer to each schema, and show what became of them."""
    held: collections.Counter[str] = collections.Counter()
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
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


def show(rows: list[Any], held: collections.Counter[str], outcomes: dict[str, collections.Counter[str]]) -> None:
    names = [
        "valid",
        "truncated",
        *sorted({name for each in outcomes.values() for name in each} - {"valid", "truncated"}),
    ]
    print(f"\n| {len(rows)} schemas | all | {' | '.join(names)} |")
    print("|---|--:|" + "--:|" * len(names))
    for held_as in (kind for kind in KINDS if held[kind]):
        print(f"| {held_as} | {held[held_as]} | {' | '.join(str(outcomes[held_as][name]) for name in names)} |")


def share(rows: list[Any], max_tokens: int) -> None:
    """How many schemas decoding is held to, beside what llguidance takes by itself; no model is needed."""
    held = collections.Counter(constraint_of(row["schema"], max_tokens) for row in rows)
    strict = sum(complaint(row["schema"]) is None for row in rows)
    dropped = sum(is_taken_in_part(row["schema"]) for row in rows)
    engine = sum(problem(row["schema"]) is None for row in rows)
    print(f"\n| of {len(rows)} schemas, decoding is held to | |\n|---|--:|")
    print(f"| llguidance from PyPI, strictly | {strict} |")
    print(f"| the same, with only the keywords dropped that it names | {dropped} |")
    print(f"| the llguidance inside the engine, strictly | {engine} |")
    print(f"| slipform, exactly | {held[KINDS[0]]} |")
    print(f"| slipform, exactly, with those that are on a second try | {held[KINDS[0]] + held[KINDS[1]]} |")
    print(f"| slipform, with named keywords dropped | {len(rows) - held[KINDS[3]]} |")


def complaint(schema: Any) -> str | None:
    """What PyPI's llguidance has against a schema."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    return "; ".join(messages) if failed else None


def is_taken_in_part(schema: Any) -> bool:
    """Whether llguidance takes a schema without the keywords that it names, and with `oneOf` taken for `anyOf`."""
    for _ in range(20):
        said = complaint(schema)
        if said is None:
            return True
        smaller = dropped_from(schema, set(named_in(said)))
        if smaller == schema:
            return False
        schema = smaller
    return False


def named_in(said: str) -> Iterator[str]:
    if found := re.search(r"Unimplemented keys: (\[.*?\])", said):
        yield from json.loads(found[1])
    if "Unknown format" in said:
        yield "format"
    if "oneOf" in said:
        yield "oneOf"
    if "regex" in said:
        yield "pattern"
    if "min/maxProperties" in said:
        yield from ("minProperties", "maxProperties")


def dropped_from(schema: Any, keywords: set[str]) -> Any:
    """The schema without these keywords, and without properties of such names, on which no verdict here depends."""
    if isinstance(schema, list):
        return [dropped_from(each, keywords) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: dropped_from(value, keywords) for key, value in schema.items() if key not in keywords - {"oneOf"}}
    if "oneOf" in keywords and isinstance(kept.get("oneOf"), list):
        kept["anyOf"] = kept.pop("oneOf")
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--share", action="store_true", help="only what decoding is held to; nothing is generated")
    parser.add_argument("--part", choices=["all", "exact", "weak"], default="all", help="which schemas to take")
    parser.add_argument("--named", default="", help="only schemas whose name has this in it")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--every", type=int, default=1, help="take one schema in so many")
    parser.add_argument("--first", type=int, default=0, help="begin with the schema of this number")
    parser.add_argument("--model", default="local")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.schemas.read_text().splitlines()][arguments.first :: arguments.every]
    rows = [row for row in rows if arguments.named in row["id"]]
    if arguments.part != "all":
        exact = arguments.part == "exact"
        rows = [row for row in rows if (constraint_of(row["schema"], arguments.max_tokens) == KINDS[0]) is exact]
    started = time.monotonic()
    if not arguments.share:
        answers(rows, arguments)
    share(rows, arguments.max_tokens)
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
