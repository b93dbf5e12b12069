"""Measure repairing and loading JSON from model text, beside json_repair, orjson and others, in one run.

    python -m bench.text_repair [seconds per cell]

Peers are measured when they are installed, and left out when they are not. Times are CPU times of this process, the
best of several passes; a peer that gives a wrong value or raises is shown as such and left out of the ratios.
"""

from __future__ import annotations

import importlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson

from bench.results import record
from slipform import loads
from slipform.text.loads import load

Reader = Callable[[str], Any]
SIZES = (1_000, 10_000, 100_000, 1_000_000)
PEERS = {
    "json_repair": ("json_repair", "loads"),
    "fast_json_repair": ("fast_json_repair", "loads"),
    "pyjson5": ("pyjson5", "loads"),
    "dirtyjson": ("dirtyjson", "loads"),
    "partial_json_parser": ("partial_json_parser", "loads"),
}
WRAPPED = ("fence", "prose", "prosebare", "think")
"""Kinds that hold valid JSON among other text; all others are broken JSON."""
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "Zürich",
    "Ада",
    "naïve",
    "東京",
    "order",
    "invoice",
    "status",
    "pending",
    "note",
    "the",
]


def document(size: int) -> dict[str, Any]:
    """Records of about `size` characters of JSON."""
    rng = random.Random(size)
    records: list[dict[str, Any]] = []
    length = 0
    while length < size:
        record = {
            "id": len(records),
            "name": " ".join(rng.choices(WORDS, k=3)),
            "score": round(rng.random() * 1000, 2),
            "active": rng.random() < 0.5,
            "parent": None,
            "tags": rng.choices(WORDS, k=3),
            "address": {
                "city": rng.choice(WORDS),
                "zip": str(rng.randrange(10_000, 99_999)),
                "floor": rng.randrange(9),
            },
            "text": " ".join(rng.choices(WORDS, k=10)),
        }
        records.append(record)
        length += len(json.dumps(record, ensure_ascii=False))
    return {"records": records}


def broken(value: dict[str, Any]) -> dict[str, str]:
    """The same document broken in each of the usual ways, throughout."""
    text = json.dumps(value, ensure_ascii=False)
    pretty = json.dumps(value, ensure_ascii=False, indent=1)
    return {
        "trailing": text.replace("}", ",}").replace("]", ",]"),
        "pydict": repr(value),
        "unquoted": _unquoted(text),
        "missingcomma": pretty.replace(",\n", "\n"),
        "comments": pretty.replace(",\n", ", // a note\n"),
        "rawnl": text.replace('"text": "', '"text": "a\nb '),
        "innerquote": text.replace('"text": "', '"text": "so "called" '),
        "noclose": text[:-2],
        "smart": _smart(text),
        "fence": f"Here you are:\n```json\n{pretty}\n```\nAnything else?",
        "prose": f"I read {{notes}} and [items] first.\n```json\n{pretty}\n```\nSee {{notes}}.",
        "prosebare": f"The answer is {text} as you asked.",
        "think": f'<think>maybe {{"records": []}} is enough</think>\n{text}',
    }


def expected(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """What a careful reader makes of the broken document."""
    prefix = {"rawnl": "a\nb ", "innerquote": 'so "called" '}.get(kind)
    if prefix is None:
        return value
    return {"records": [{**record, "text": prefix + record["text"]} for record in value["records"]]}


def _unquoted(text: str) -> str:
    for key in (
        "records",
        "id",
        "name",
        "score",
        "active",
        "parent",
        "tags",
        "address",
        "city",
        "zip",
        "floor",
        "text",
    ):
        text = text.replace(f'"{key}":', f"{key}:")
    return text


def _smart(text: str) -> str:
    pieces = text.split('"')
    return "".join(piece + ("“" if index % 2 == 0 else "”") for index, piece in enumerate(pieces))[:-1]


def cpu_time(call: Callable[[], object], budget: float) -> float:
    """The best CPU time of one call within about `budget` seconds."""
    best, spent = math.inf, 0.0
    while spent < budget or best is math.inf:
        begin = time.process_time()
        call()
        taken = time.process_time() - begin
        best, spent = min(best, taken), spent + max(taken, 1e-6)
    return best


def readers() -> dict[str, Reader]:
    """slipform, and every peer that is installed."""
    found: dict[str, Reader] = {"slipform": lambda text: load(text, nan="null").value}
    for name, (module, attribute) in PEERS.items():
        try:
            found[name] = getattr(importlib.import_module(module), attribute)
        except ImportError:
            continue
    return found


def measure(reader: Reader, text: str, right: object, budget: float) -> float | str:
    """MB/s, or why not."""
    try:
        if reader(text) != right:
            return "wrong"
    except Exception as error:
        return type(error).__name__[:12]
    return len(text) / cpu_time(lambda: reader(text), budget) / 1e6


def bench_broken(budget: float, sizes: Sequence[int]) -> None:
    """Throughput over kinds and sizes, and the mean ratio to each peer where both are right or the peer merely slow."""
    tools = readers()
    ratios: dict[tuple[str, str], list[float]] = {}
    for size in sizes:
        value = document(size)
        print(f"\nbroken JSON, {size:,} characters, MB/s\n{'kind':14}" + "".join(f"{name:>20}" for name in tools))
        for kind, text in broken(value).items():
            right = expected(kind, value)
            row = {name: measure(tool, text, right, budget) for name, tool in tools.items()}
            print(f"{kind:14}" + "".join(f"{_cell(cell):>20}" for cell in row.values()), flush=True)
            ours = row["slipform"]
            for name, cell in row.items():
                if name != "slipform" and isinstance(cell, float) and isinstance(ours, float):
                    ratios.setdefault((name, "wrapped" if kind in WRAPPED else "broken"), []).append(ours / cell)
    print()
    for (name, group), values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        record(f"{name}, {group}", mean)
        print(
            f"slipform / {name}, {group}: geometric mean {mean:.1f}x over {len(values)} cells where the peer is right"
        )


def _cell(cell: float | str) -> str:
    return cell if isinstance(cell, str) else f"{cell:.1f}"


def _read_all(tool: Reader, copies: Sequence[str]) -> None:
    for copy in copies:
        tool(copy)


def bench_valid(budget: float, sizes: Sequence[int]) -> None:
    """`loads` beside `orjson.loads` and `json.loads` on valid JSON, each text new to the parser."""
    print("\nvalid JSON: speed of slipform.loads relative to orjson.loads (and json.loads)")
    for size in sizes:
        text = json.dumps(document(size), ensure_ascii=False)
        copies = [(text + " ")[:-1] for _ in range(max(4, 200_000 // size))]
        times = dict.fromkeys(("orjson", "slipform", "json"), math.inf)
        tools: dict[str, Reader] = {"orjson": orjson.loads, "slipform": loads, "json": json.loads}
        for _ in range(max(5, int(budget * 20))):
            for name, tool in tools.items():
                times[name] = min(times[name], cpu_time(partial(_read_all, tool, copies), 0))
        record(f"valid, {size}", times["orjson"] / times["slipform"])
        print(
            f"{size:>10,}  {times['orjson'] / times['slipform']:.2f} of orjson, "
            f"{times['json'] / times['slipform']:.2f} of json"
        )


ADVERSARIAL: dict[str, Callable[[int], str]] = {
    "[ * n": lambda n: "[" * n,
    '{"a": * n': lambda n: '{"a":' * (n // 5),
    "deep valid": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "unclosed string": lambda n: '{"a": "' + "x" * n,
    "backslashes": lambda n: '{"a": "' + "\\" * n,
    "quotes": lambda n: '"' * n,
    "quotes in array": lambda n: "[" + '"' * n,
    'x" repeated': lambda n: '{"a": "' + 'x" ' * (n // 3),
    "x} in string": lambda n: '{"a": "' + "x}" * (n // 2),
    "foo, b: in string": lambda n: '{"a": "' + "foo, b: " * (n // 8),
    '", in string': lambda n: '{"a": "' + '", ' * (n // 3),
    "prose": lambda n: "just some words here. " * (n // 22),
    "{ repeated": lambda n: "{ " * (n // 2),
    "{} repeated": lambda n: "{}" * (n // 2),
    '{"a":1} repeated': lambda n: '{"a":1}' * (n // 7),
    "fences": lambda n: "```json " * (n // 8),
    "open comments": lambda n: "[" + "/*" * (n // 2),
    "digits": lambda n: "[" + "1" * n,
    "commas": lambda n: "[" + "," * n,
    "words": lambda n: "[" + "word " * (n // 5),
    "surrogates": lambda n: '["' + "\\ud83d" * (n // 6),
    "raw surrogates": lambda n: '["' + "\ud83d" * n,
    "think": lambda n: "<think>" * (n // 7),
    "mismatched": lambda n: "[{" * (n // 4) + "]}" * (n // 4),
    "random": lambda n: "".join(random.Random(n).choices('{}[]",:\\ \n1a.-/`<', k=n)),
}


def bench_adversarial() -> None:
    """Milliseconds for hostile texts of 100,000 and 1,000,000 characters, and how the time grows."""
    print(f"\n{'hostile text':22}{'100 kB ms':>12}{'1 MB ms':>12}{'growth':>10}")
    for name, make in ADVERSARIAL.items():
        times = []
        for size in (100_000, 1_000_000):
            text = make(size)
            times.append(cpu_time(partial(attempt, text), 0.02))
        growth = math.log10(max(times[1], 1e-5) / max(times[0], 1e-6))
        print(f"{name:22}{times[0] * 1e3:12.1f}{times[1] * 1e3:12.1f}{growth:10.2f}")


def attempt(text: str) -> None:
    """Read a text, whether or not there is JSON in it."""
    try:
        load(text)
    except Exception as error:
        if type(error).__name__ not in ("JsonEnforcementError", "EmptyAnswerError"):
            raise


def main() -> None:
    """Usage: python -m bench.text_repair [CPU seconds for each cell] [characters of the largest text]."""
    budget = float(sys.argv[1]) if len(sys.argv) > 1 else 0.05
    sizes = [size for size in SIZES if len(sys.argv) < 3 or size <= int(sys.argv[2])]
    bench_valid(budget, sizes)
    bench_adversarial()
    bench_broken(budget, sizes)


if __name__ == "__main__":
    main()
