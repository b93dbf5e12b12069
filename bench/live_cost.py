"""Measure the memory of a long enforced stream, and how early invalid answers are stopped, beside llguidance.

    python -m bench.live_cost [--every 1] [--report]

Memory: one answer of 20,000 events, lifted from OpenAI's dialect, as many short rows and as one long string; resident
megabytes of this process, and CPU time per event, at 2,000 and at 20,000 events. What an event costs a proxy is
measured by `python -m bench.stream_tools`.

Stops: the invalid instances of the real-world schemas that lie beside the checkout, and the valid ones with one scalar
replaced, fed token by token with their keys in the schema's order. The earliest token is the first at which either tool
stops. Schemas of which llguidance rejects a valid instance are left out; where it does not know a keyword, it runs in
its lenient mode. It wants keys in the schema's order, so it stops at the key after a missing one, which another order
would make valid: such instances are counted apart. slipform is measured without patches, which would correct some.
"""

from __future__ import annotations

import argparse
import collections
import copy
import itertools
import json
import random
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import llguidance

from bench.live_schemas import FOLDER, entries
from bench.local_instances import in_schema_order
from slipform.enforce import Plan, Switches, enforce
from slipform.enforce.stream import EnforcedCall, EnforcedStream, Release
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk, Lift, ModelRequest
from slipform.schema import Schema
from slipform.schema.lowering import lower

EVENTS: Final = 20_000
EARLY: Final = 2_000
TOKEN: Final = re.compile(r"\s?[^\W\d_]{1,6}|\s?\d{1,3}|[^\w\s]{1,3}|.", re.DOTALL)
"""About what a tokenizer makes of JSON."""
NEVER: Final = 1 << 30
"""The token of an answer that nothing stops."""
KINDS: Final = ("earliest token", "next token", "later", "only at the end", "admitted")
_TOKENIZER: Final = llguidance.LLTokenizer("byte")
_OTHER_VALUES: Final[tuple[Any, ...]] = ("no such word", -7.25, True, None, {})
_ROW: Final = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "note": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
LONG_ANSWERS: Final[dict[str, tuple[dict[str, Any], str, str]]] = {
    "many rows": ({"type": "array", "items": _ROW}, '{"value": [', '{"name": "word %d", "note": null, "count": 12}, '),
    "one string": ({"type": "array", "items": {"type": "string"}}, '{"value": ["', "word %d of a long text, "),
}
"""By name: a schema, how its answer begins, and how it goes on, with a number that no two places share."""
PIECE: Final = 8
"""Characters of an event."""


def open_stream(schema: Schema[Any]) -> EnforcedStream:
    """Return the reader of an enforced stream that releases its answer live and patches nothing."""
    plan = Plan(schema, switches=Switches.none())
    call = EnforcedCall(enforce(ModelRequest("m", ()), plan), plan, streaming=True, release=Release(answer=True))
    return call.read()


class Usage(NamedTuple):
    """What this process has used when so many events have been read."""

    events: int
    megabytes: float
    microseconds: float
    """CPU time per event since the figure before."""


def resident_megabytes() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def pieces_of(row: str) -> Iterator[str]:
    """Yield the events of an answer that never ends."""
    text = ""
    for number in itertools.count():
        text += row % number
        while len(text) >= PIECE:
            yield text[:PIECE]
            text = text[PIECE:]


def usage_of_long_stream(name: str) -> Iterator[Usage]:
    """Read a long answer event by event; yields its figures twice."""
    document, begin, row = LONG_ANSWERS[name]
    lowered = lower(document, "openai", open_objects="auto")
    reader = open_stream(Schema.of(document))
    reader.push([CompletionChunk(begin, lift=Lift(lowered.schema, lowered.lift, lowered.plan))])
    started = time.process_time()
    counted = 0
    released = 0
    for event, piece in zip(range(1, EVENTS + 1), pieces_of(row), strict=False):
        released += sum(len(chunk.text) for chunk in reader.push_texts([piece]) or ())
        if event in (EARLY, EVENTS):
            spent = time.process_time() - started
            yield Usage(event, resident_megabytes(), spent / (event - counted) * 1e6)
            counted = event
            started = time.process_time()
    if reader.stopped or released < EVENTS:
        raise SystemExit(f"{name}: the stream was stopped, or hardly anything was released")


def stop_of_slipform(schema: Schema[Any], tokens: list[str]) -> int:
    """Return the token at which the model is stopped; the number of tokens where only the end is invalid."""
    reader = open_stream(schema)
    for at, token in enumerate(tokens):
        reader.push([CompletionChunk(token)])
        if reader.stopped:
            return at
    return NEVER if schema_accepts(schema, "".join(tokens)) else len(tokens)


def schema_accepts(schema: Schema[Any], text: str) -> bool:
    """Whether the validator takes the value of a text."""
    return schema.fits(json.loads(text))


def stop_of_llguidance(grammar: str, tokens: list[str]) -> int:
    """Return the token at which the grammar admits no more; the number of tokens where it may not end there."""
    data = list("".join(tokens).encode("utf-8", "replace"))
    matcher = llguidance.LLMatcher(_TOKENIZER, grammar, log_level=0)
    admitted = matcher.validate_tokens(data)
    if admitted == len(data):
        return NEVER if matcher.consume_tokens(data) and matcher.is_accepting() else len(tokens)
    length = 0
    for at, token in enumerate(tokens):
        length += len(token.encode("utf-8", "replace"))
        if length > admitted:
            return at
    return len(tokens)


def grammar_of(schema: Any) -> str:
    """Return llguidance's grammar of a schema: the strict one where it knows every keyword."""
    grammar: str = llguidance.LLMatcher.grammar_from_json_schema(schema)
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if not failed and not messages:
        return grammar
    return str(llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": True}))


def scalars(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container that holds a scalar, and the scalar's key."""
    if isinstance(value, dict | list):
        for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(each, dict | list):
                yield from scalars(each)
            else:
                yield value, key


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a copy with one scalar replaced by a value of another kind."""
    changed = copy.deepcopy(value)
    places = list(scalars(changed))
    if places:
        container, key = rng.choice(places)
        others = [each for each in _OTHER_VALUES if type(each) is not type(container[key])]
        container[key] = rng.choice(others)
    return changed


def invalid_instances(entry: dict[str, Any], schema: Schema[Any], rng: random.Random) -> Iterator[Any]:
    """Yield the invalid instances of an entry, and those that a change to a valid one gives."""
    for test in entry["tests"]:
        value = mutated(test["data"], rng) if test["valid"] else test["data"]
        if not schema.fits(value):
            yield in_schema_order(value, entry["schema"], entry["schema"])


def tokens_of(value: Any) -> list[str]:
    """Return the tokens of a value's compact JSON."""
    return TOKEN.findall(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def kind_of_stop(stop: int, earliest: int, count: int) -> str:
    """Return how early a stop is."""
    if stop == NEVER:
        return "admitted"
    if stop >= count:
        return "only at the end"
    return {0: "earliest token", 1: "next token"}.get(stop - earliest, "later")


def admits_all(grammar: str, entry: dict[str, Any]) -> bool:
    """Whether llguidance admits every valid instance of an entry, and there is one."""
    schema = entry["schema"]
    values = [in_schema_order(test["data"], schema, schema) for test in entry["tests"] if test["valid"]]
    return bool(values) and all(stop_of_llguidance(grammar, tokens_of(value)) == NEVER for value in values)


def stops(name: str, every: int) -> dict[tuple[str, str], collections.Counter[str]]:
    """Count how early each tool stops the invalid instances of every n-th schema, by group and tool."""
    rng = random.Random(7)
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for entry in list(entries(name))[::every]:
        try:
            schema = Schema.of(entry["schema"])
        except SlipformError:
            continue
        grammar = grammar_of(entry["schema"])
        if not admits_all(grammar, entry):
            continue
        for value in invalid_instances(entry, schema, rng):
            is_missing = any(violation.keyword == "required" for violation in schema.validate(value))
            group = "a key is missing" if is_missing else "a value is wrong"
            tokens = tokens_of(value)
            found = {"slipform": stop_of_slipform(schema, tokens), "llguidance": stop_of_llguidance(grammar, tokens)}
            earliest = min(found.values())
            for tool, stop in found.items():
                counts[group, tool][kind_of_stop(stop, earliest, len(tokens))] += 1
    return counts


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="the schemas that nothing was tuned on")
    parser.add_argument("--every", type=int, default=1, help="take every n-th schema")
    options = parser.parse_args()
    print(f"{'long stream':<12} {'events':>8} {'MB':>8} {'µs per event':>14}")
    for name in LONG_ANSWERS:
        for usage in usage_of_long_stream(name):
            print(f"{name:<12} {usage.events:>8} {usage.megabytes:>8.1f} {usage.microseconds:>14.1f}")
    file = "real_world_report.jsonl" if options.report else "real_world.jsonl"
    if not (FOLDER / file).is_file():
        sys.exit(f"{file} does not lie beside the checkout: no stops to measure.")
    print(f"\n{'stopped':<30}" + "".join(f"{kind:>16}" for kind in KINDS) + f"{'instances':>11}")
    for (group, tool), counts in sorted(stops(file, options.every).items()):
        total = sum(counts.values())
        shares = "".join(f"{counts[kind] / max(total, 1):>16.1%}" for kind in KINDS)
        print(f"{f'{group}, {tool}':<30}{shares}{total:>11}")


if __name__ == "__main__":
    main()
