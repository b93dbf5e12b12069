"""Run the judge on as many random cases as you like; a failure is made small and printed with its seed.

    python -m tests.fuzz.fuzz_judge --cases 20000
    python -m tests.fuzz.fuzz_judge --case case.json

Exits with 1 when the proxy gave an invalid 200, a 500, or a stream without its end.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.judge.cases import Case, random_case
from tests.judge.proxy import Judge
from tests.judge.smaller import smallest, told

_SHARD = 250


def shard(seed: str, start: int, end: int) -> tuple[Counter[str], list[str]]:
    """Run these cases: how often each kind of answer came, and what failed."""
    logging.disable(logging.CRITICAL)
    failures: list[str] = []
    with Judge() as judge:
        for number in range(start, end):
            case = random_case(seed, number)
            verdict = judge.run(case)
            if verdict.problem:
                failures.append(told(*smallest(case, verdict, judge)))
        return judge.kinds + Counter({"(from the cache)": judge.kept, "(by the fallback)": judge.fallen_back}), failures


def run_all(seed: str, cases: int, processes: int) -> int:
    """Run cases 0 to `cases` of a seed; how many failed."""
    print(f"the judge: {cases:,} cases of seed {seed} in {processes} processes", flush=True)
    began, kinds, failed = time.monotonic(), Counter[str](), 0
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        starts = range(0, cases, _SHARD)
        for found, failures in pool.map(
            shard, [seed] * len(starts), starts, [min(start + _SHARD, cases) for start in starts]
        ):
            kinds += found
            failed += len(failures)
            for failure in failures:
                print(f"\nFAILED: {failure}", flush=True)
    counted = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
    answers = sum(count for kind, count in kinds.items() if not kind.startswith("("))
    print(f"{answers:,} answers in {time.monotonic() - began:.0f} s: {counted}")
    print(f"invalid 200, 500 or unfinished: {failed}")
    return failed


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", default=str(int(time.time())))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--case", type=Path, help="one case, as a failure printed it")
    given = parser.parse_args()
    if given.case is None:
        return 1 if run_all(given.seed, given.cases, given.processes) else 0
    with Judge() as judge:
        verdict = judge.run(case := Case.from_json(given.case.read_text("utf-8")))
    print(told(case, verdict) if verdict.problem else f"holds: {', '.join(verdict.kinds)}")
    return 1 if verdict.problem else 0


if __name__ == "__main__":
    sys.exit(main())
