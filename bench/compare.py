"""Measure the library and the reading of text beside another slipform, in alternating rounds.

    python -m bench.compare ../before --rounds 11 --only stream

The other is a checkout, a virtual environment or a site-packages folder; `make bench-wheel` takes the wheel that users
install. `bench.client`, `bench.text_stream` and `bench.text_repair` case by case: each has a process of its own (the
same Python, another `PYTHONPATH`), and they take turns, so that a machine that is slower at times is slower for both.
Build both checkouts in place first, or one runs as plain Python: the first line says which. For the proxy:
`python -m bench.proxy --beside ../before`.

CPU time. Printed is the median of the ratios of the rounds and its interval: a case is slower when the whole interval
lies above 1.05. Exits with 1 when there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench import client, text_repair, text_stream
from bench.client import server
from bench.client_shapes import import_ms, per_call, per_stream

HERE = Path(__file__).parent.parent
_SLOWER = 1.05
_BUDGET = 0.04
"""CPU seconds for one measurement of a text, at least: the best call in it counts."""
_LONGEST = 100_000


def package_path(folder: Path) -> Path:
    """What goes into `PYTHONPATH` for the slipform of a checkout, a virtual environment or a site-packages."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = (folder / "src", folder / "lib" / python / "site-packages", folder / "Lib" / "site-packages", folder)
    for place in places:
        if (place / "slipform" / "__init__.py").is_file():
            return place.resolve()
    sys.exit(
        f"{folder} has no slipform: name a checkout, a virtual environment of {python}, or a folder with slipform/"
    )


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median of paired ratios with its 95 % interval.

    The interval of a median leaves out as many of the ordered values at either end as the binomial distribution
    allows: none up to eight rounds, one from nine, two from twelve, three from fifteen.
    """
    found = sorted(ratios)
    cut = max(0, (len(found) - 6) // 3)
    return median(found), found[cut], found[len(found) - 1 - cut]


def cases(url: str) -> dict[str, Callable[[], float]]:
    """Every case by its name: a call gives its CPU time, of whatever slipform is imported."""
    found: dict[str, Callable[[], float]] = {"import slipform": lambda: import_ms(client.CALLERS["slipform ask"][0])}
    for name, (_, make) in client.CALLERS.items():
        found[name] = partial(per_call, make(url))
    found["slipform stream"] = lambda: per_stream(lambda: client.own_stream(url))["seconds"]
    for name, document in text_stream.DOCUMENTS.items():
        chunks = text_stream.pieces(document(_LONGEST), 4)
        found[f"stream: {name}"] = _streaming(chunks)
    resolved = text_stream.pieces(text_stream.records(42_000), 5)
    found["stream: parse and resolve"] = lambda: min(text_stream.resolving(resolved) for _ in range(2))
    for size in text_repair.SIZES:
        value = text_repair.document(size)
        texts = {"valid": json.dumps(value, ensure_ascii=False)}
        texts |= text_repair.broken(value) if size <= _LONGEST else {}
        for kind, text in texts.items():
            found[f"repair: {kind}, {size:,}"] = _reading(text)
    for name, hostile in text_repair.ADVERSARIAL.items():
        found[f"repair: hostile {name}"] = _reading(hostile(_LONGEST))
    return found


def _streaming(chunks: list[str]) -> Callable[[], float]:
    return lambda: sum(text_stream.best_quarters(chunks, 2))


def _reading(text: str) -> Callable[[], float]:
    return lambda: text_repair.cpu_time(lambda: text_repair.attempt(text), _BUDGET)


def work(url: str) -> None:
    """Measure each case whose name comes on standard input."""
    known = cases(url)
    for line in sys.stdin:
        print(known[line.rstrip("\n")](), flush=True)


@contextmanager
def checkout(folder: Path, url: str) -> Iterator[Callable[[str], float]]:
    """Measure the case of that name with the slipform of a folder."""
    path = os.pathsep.join([str(package_path(folder)), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": path, "BENCH_CALLS": "150", "BENCH_PASSES": "2"}
    command = [sys.executable, "-m", "bench.compare", "--work", url]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        asked, told = process.stdin, process.stdout
        assert asked is not None
        assert told is not None

        def measure(name: str) -> float:
            print(name, file=asked, flush=True)
            return float(told.readline() or sys.exit(f"{folder}: the process ended; its error is above"))

        yield measure
        process.terminate()


def main() -> int:
    """Measure, and print case by case; gives the number of cases that are slower."""
    reading = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reading.add_argument(
        "other", type=Path, nargs="?", help="the checkout, environment or site-packages to compare with"
    )
    reading.add_argument("--rounds", type=int, default=9)
    reading.add_argument("--only", default="", help="a part of the names of the cases")
    reading.add_argument("--work", help=argparse.SUPPRESS)
    given = reading.parse_args()
    if given.work:
        work(given.work)
        return 0
    if given.other is None:
        reading.error("name what to compare with")
    slower = 0
    for folder in (HERE, given.other):
        package = package_path(folder) / "slipform"
        print(f"{package}: {'compiled' if any(package.rglob('*.so')) else 'plain Python'}")
    print(f"{'CPU time, here / there':34} {'median':>7} {'interval':>16}")
    with server() as url, checkout(HERE, url) as here, checkout(given.other, url) as there:
        for name in (name for name in cases(url) if given.only in name):
            ratios: list[float] = []
            for turn in range(given.rounds):
                order = (here, there) if turn % 2 == 0 else (there, here)
                spent = {side: side(name) for side in order}
                ratios.append(spent[here] / spent[there])
            middle, low, high = interval(ratios)
            slower += low > _SLOWER
            told = "  SLOWER" if low > _SLOWER else ""
            print(f"{name:34} {middle:7.2f} {low:7.2f} to {high:5.2f}{told}", flush=True)
    print(f"slower: {slower}")
    return slower


if __name__ == "__main__":
    sys.exit(min(main(), 1))
