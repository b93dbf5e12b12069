"""Define what `bench.client` and its peers share: the answer, and how a call and a stream are measured.

Nothing of slipform's is imported here, because the peers run in an environment of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

MODEL = "gpt-5"
PROMPT = "Read this invoice."
CALLS = int(os.environ.get("BENCH_CALLS", "300"))
PASSES = int(os.environ.get("BENCH_PASSES", "3"))


class Line(BaseModel):
    """Part of the answer."""

    description: str
    quantity: int
    price: float


class Party(BaseModel):
    """Part of the answer."""

    name: str
    street: str
    city: str


class Invoice(BaseModel):
    """Part of the answer."""

    number: str
    seller: Party
    buyer: Party
    lines: list[Line]
    notes: str


def invoice(lines: int) -> str:
    """An answer with so many lines."""
    party = {"name": "Acme Ltd", "street": "1 Mill Road", "city": "Bath"}
    rows = [{"description": f"Part {n}, zinc plated", "quantity": n, "price": n * 1.25} for n in range(1, lines + 1)]
    whole = {"number": "A-1", "seller": party, "buyer": party, "lines": rows, "notes": "Pay within 30 days."}
    return json.dumps(whole)


def import_ms(statement: str, *, installed: bool = False) -> float:
    """The best cold start, with bytecode: an installed package has its own, for others it is made first."""
    script = f"import time\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def once() -> float:
            command = [sys.executable, "-c", script]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            return float(done.stdout) * 1000

        if installed:
            environment.pop("PYTHONPYCACHEPREFIX")
            return min(once() for _ in range(2))
        once()  # compiles
        return min(once() for _ in range(5))


def per_call(call: Callable[[], object]) -> float:
    """µs of CPU: the 10th percentile, the best of a few passes."""
    best = float("inf")
    for _ in range(PASSES):
        spent: list[float] = []
        for _ in range(CALLS):
            start = time.process_time()
            call()
            spent.append(time.process_time() - start)
        best = min(best, sorted(spent)[len(spent) // 10])
    return best * 1e6


def first_line(partial: Any) -> Any:
    """The first line of an invoice, once it is finished."""
    lines = partial.get("lines") if isinstance(partial, dict) else getattr(partial, "lines", None)
    return lines[0] if lines and len(lines) > 1 else None


def per_stream(run: Callable[[], Iterator[Any]]) -> dict[str, float]:
    """CPU seconds of a stream (the best pass), its partials, and how often a finished item stays the same object."""
    best, count, same, pairs = float("inf"), 0, 0, 0
    for _ in range(PASSES):
        count = same = pairs = 0
        before: Any = None
        start = time.process_time()
        for partial in run():
            count += 1
            line = first_line(partial)
            if before is not None and line is not None:
                pairs += 1
                same += line is before
            before = line
        best = min(best, time.process_time() - start)
        if best > 10:  # some take half a minute: once is enough
            break
    return {"seconds": best, "partials": count, "same": same / max(pairs, 1)}
