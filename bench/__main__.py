"""Run the benchmarks one after another and write docs/benchmarks.md from their figures: `make bench`.

    python -m bench                  # all that stand on the page, at most --minutes (20)
    python -m bench --quick          # the same in short rounds, to see that everything runs
    python -m bench faults client    # some, by name

Each part runs in a process of its own and is stopped at its limit. The figures of a run are one JSON file,
docs/assets/benchmarks.json; a part that is not run, or that fails, keeps its figures of before, marked with their date.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.page import FIGURES, write_pages
from bench.results import FILE, circumstances, recorded

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Part:
    """One benchmark: its arguments in a full and in a quick run, and the seconds it may take in a full one."""

    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    limit: int = 60


PARTS = {
    "faults": Part(limit=60),
    "client": Part(limit=300),
    "proxy": Part(("--seconds", "0.5", "--rounds", "3"), ("--seconds", "0.1", "--rounds", "1"), 600),
    "text_stream": Part(limit=60),
    "text_repair": Part(("0.02", "100000"), ("0.002", "1000"), 90),
    "validate": Part(limit=40),
    "codecs": Part(limit=40),
    "stream_tools": Part(("--rounds", "5"), ("--rounds", "1"), 60),
    "batch": Part(
        ("--rows", "3000", "--passes", "2", "--memory", "0"), ("--rows", "300", "--passes", "1", "--memory", "0"), 120
    ),
    "situations": Part(("slipform",), ("slipform",), 120),  # the gateways repeat failed calls for minutes: by hand
    "lowering": Part(limit=120),
    "judge": Part(quick=("--every", "20"), limit=300),
}
"""What stands on the page; what the README quotes comes first, should the time run out."""


def main() -> int:
    """Run the parts; the exit code is the number of those that failed."""
    reading = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reading.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    reading.add_argument("--quick", action="store_true", help="short rounds: shows that it runs; the figures are rough")
    reading.add_argument("--minutes", type=float, default=20, help="what is not done by then keeps its older figures")
    reading.add_argument("--limit", type=float, default=1.0, help="times the seconds that a part may take")
    reading.add_argument("--no-page", action="store_true", help="leave the pages and the kept figures alone")
    given = reading.parse_args()
    run: dict[str, Any] = circumstances(quick=given.quick)
    kept = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    parts: dict[str, Any] = kept.get("parts", {})
    failed = []
    end = time.monotonic() + given.minutes * 60
    for name in given.parts or PARTS:
        print(f"\n=== {name} ===", flush=True)
        part = PARTS[name]
        began = time.monotonic()
        figures = measured(name, min(part.limit * given.limit, end - time.monotonic()), quick=given.quick)
        took = round(time.monotonic() - began)
        if figures:
            parts[name] = {"date": run["date"], "quick": given.quick, "seconds": took, "figures": figures}
        else:
            failed.append(name)
        print(f"--- {name}: {'figures' if figures else 'FAILED'} after {took} s", flush=True)
        if figures and not given.no_page:  # after each part, so that a run that is broken off leaves what it has
            data = json.dumps({**run, "parts": parts}, indent=1, ensure_ascii=False)
            FIGURES.write_text(f"{data}\n", encoding="utf-8")
            write_pages()
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'all parts ran'}; the figures are in {FIGURES.name}")
    return len(failed)


def measured(name: str, limit: float, *, quick: bool) -> dict[str, Any]:
    """Run one part and return its figures; none if it fails or takes longer than its limit."""
    if limit <= 0:
        print("no time left")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.jsonl")
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environment = {**os.environ, FILE: str(file), "PYTHONPATH": path}
        environment |= {"BENCH_PASSES": "1", "BENCH_CALLS": "30"} if quick else {}
        command = [sys.executable, "-m", f"bench.{name}", *(PARTS[name].quick if quick else PARTS[name].full)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        try:
            code = process.wait(limit)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, KeyboardInterrupt):
                raise
            print(f"stopped after {limit:.0f} s")
            return {}
        if code not in (0, 1):  # 1 is a limit of its own that was missed: its figures count
            print(f"ended with code {code}")
            return {}
        return recorded(file)


if __name__ == "__main__":
    sys.exit(main())
