"""Measure the streaming parser: the cost of a chunk at the start and at the end, beside peers.

Run with `PYTHONPATH=src python bench/text_stream.py`. CPU time, best of a few passes; the peers `jiter` and `jsonriver`
are measured when they are installed. jiter re-parses the whole text for every chunk; its total is integrated from
sampled prefixes. Figures to beat: total at most 1/30 of jiter's, and at most jsonriver's; last quarter at most 1.3
times the first; parse and resolve of 42 kB in 5-character chunks at most 0.15 s.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

from bench.results import record
from slipform.text import parser as parser_module
from slipform.text.parser import Parser
from slipform.text.resolve import ResolveCache, resolve

PROSE = "the answer to life is größer than 42 and needs “quotes”, naïveté and some 漢字 as well"
WORDS = PROSE.split()


def records(size: int) -> str:
    """A list of records, the usual answer of a model."""
    rows: list[dict[str, Any]] = []
    length = 0
    while length < size:
        n = len(rows)
        row = {
            "id": n,
            "name": f"{WORDS[n % 17]} {WORDS[n % 13]}",
            "score": n / 7,
            "active": n % 2 == 0,
            "tags": WORDS[n % 11 : n % 11 + 3],
            "address": {"street": f"{n} Main St", "zip": str(10000 + n), "geo": None},
        }
        rows.append(row)
        length += len(json.dumps(row, ensure_ascii=False)) + 2
    return json.dumps({"records": rows}, ensure_ascii=False)


def one_string(size: int) -> str:
    """A file in a tool call: one long string with escapes."""
    line = 'def f(x):\n    return "naïve" + x  # \\o/\n'
    return json.dumps({"path": "a.py", "content": line * (size // len(line))}, ensure_ascii=False)


def wide_array(size: int) -> str:
    """Thousands of short items in one open list."""
    return json.dumps([n % 97 for n in range(size // 4)])


def wide_object(size: int) -> str:
    """Thousands of keys in one open object."""
    return json.dumps({f"k{n}": "v" for n in range(size // 13)})


DOCUMENTS: dict[str, Callable[[int], str]] = {
    "records": records,
    "one string": one_string,
    "wide array": wide_array,
    "wide object": wide_object,
}


def pieces(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), width)]


def quarters(chunks: list[str]) -> list[float]:
    """CPU seconds of each quarter, the value read after every chunk and the last one held."""
    parser = Parser()
    value: Any = None
    marks = [time.process_time()]
    quarter = len(chunks) // 4
    for start in (0, quarter, 2 * quarter, 3 * quarter):
        stop = start + quarter if start < 3 * quarter else len(chunks)
        for chunk in chunks[start:stop]:
            parser = parser.feed(chunk)
            value = parser.value
        marks.append(time.process_time())
    assert parser.finish().error is None
    assert value is not None
    return [after - before for before, after in pairwise(marks)]


def best_quarters(chunks: list[str], passes: int = 5) -> list[float]:
    runs = [quarters(chunks) for _ in range(passes)]
    return [min(column) for column in zip(*runs, strict=True)]


def jiter_total(text: str, chunks: int, samples: int = 30) -> float | None:
    """Re-parsing for every chunk, integrated over prefixes."""
    try:
        jiter = import_module("jiter")
    except ImportError:
        return None
    costs = []
    data = text.encode()
    for sample in range(samples):
        prefix = data[: len(data) * (2 * sample + 1) // (2 * samples)]
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            jiter.from_json(prefix, partial_mode="trailing-strings")
            best = min(best, time.perf_counter() - start)
        costs.append(best)
    return sum(costs) / samples * chunks


def jsonriver_total(chunks: list[str], passes: int = 3) -> float | None:
    try:
        jsonriver = import_module("jsonriver")
    except ImportError:
        return None

    async def stream() -> AsyncIterator[str]:
        for chunk in chunks:
            yield chunk

    async def run() -> float:
        start = time.process_time()
        async for _ in jsonriver.parse(stream()):
            pass
        return time.process_time() - start

    return min(asyncio.run(run()) for _ in range(passes))


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"records": {"type": "array", "items": {"$ref": "#/$defs/record"}}},
    "required": ["records"],
    "additionalProperties": False,
    "$defs": {
        "record": {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "name": {"type": "string"},
                "score": {"type": "number"},
                "active": {"type": "boolean"},
                "tags": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                "address": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
            },
            "required": ["id", "name", "score", "active", "tags", "address"],
            "additionalProperties": False,
        },
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}, "geo": {"type": "null"}},
            "required": ["street", "zip", "geo"],
            "additionalProperties": False,
        },
    },
}


def resolving(chunks: list[str]) -> float:
    """CPU seconds to parse and resolve, the result looked at after every chunk."""
    start = time.process_time()
    parser, cache = Parser(), ResolveCache()
    result: Any = None
    for chunk in chunks:
        parser = parser.feed(chunk)
        result = resolve(SCHEMA, parser, cache)
    spent = time.process_time() - start
    assert result.value is parser.value  # a match; what is pending has no value
    return spent


def main() -> None:
    compiled = not str(parser_module.__file__).endswith(".py")
    print(f"100 KB in 4-character chunks, value read after every chunk ({'compiled' if compiled else 'pure Python'})")
    print(f"{'document':12} {'total s':>8} {'µs/chunk':>9} {'last/first':>10} {'vs jiter':>9} {'vs jsonriver':>12}")
    for name, make in DOCUMENTS.items():
        text = make(100_000)
        chunks = pieces(text, 4)
        parts = best_quarters(chunks)
        total = sum(parts)
        jiter, river = jiter_total(text, len(chunks)), jsonriver_total(chunks)
        record(name, {"seconds": total, "jiter": jiter, "jsonriver": river})
        against_jiter = f"1/{jiter / total:.0f}" if jiter else "-"
        against_river = f"{total / river:.2f}x" if river else "-"
        print(
            f"{name:12} {total:8.3f} {total / len(chunks) * 1e6:9.2f} {parts[3] / parts[0]:10.2f}"
            f" {against_jiter:>9} {against_river:>12}"
        )

    text = records(42_000)
    best = min(resolving(pieces(text, 5)) for _ in range(3))
    record("resolve", best)
    print(f"parse and resolve {len(text) / 1000:.0f} kB in 5-character chunks: {best:.3f} s (to beat: 0.150 s)")


if __name__ == "__main__":
    main()
