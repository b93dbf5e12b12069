"""Count the instructions that the proxy takes for one call, beside a bare forwarder.

Each of them runs under callgrind, which counts what the process executes and is not disturbed by other load on the
machine. After a warm-up the calls come in three windows, of which the median counts; no two requests and no two answers
are the same, log and metrics are on. Run: `make instructions`, or `python -m bench.instructions --cases "20 tools"`.
`--beside FOLDER` takes another checkout along; with `--ceilings FILE` a ratio above the one in the file is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench._proxy_answers import events_sent, write
from bench.proxy import BEFORE, REST, Case, Target, build, free_port, load, running, started, targets, until_ready

BARE = "bare, on uvicorn"
OURS = "slipform"
_SUMMARY = re.compile(rb"^summary: (\d+)$", re.MULTILINE)
"""Not `totals`: after a zeroing those have a rest of the functions that were running then, up to a sixth too much."""
_START_SECONDS = 240.0
_LOAD_SECONDS = 1_200.0


@dataclass(frozen=True, slots=True)
class Window:
    """How many calls are made before anything is counted, and in each of the counted windows."""

    warm_up: int
    calls: int
    count: int = 3


WHOLE = Window(warm_up=1_000, calls=320)
LARGE = Window(warm_up=200, calls=64)
STREAM = Window(warm_up=128, calls=32)

CASES = (
    (Case("enforced 1 KB, 64 at a time", 64, shaped=True), WHOLE),
    (Case("pass-through, 64 at a time", 64), WHOLE),
    (Case("enforced, 20 tools, 64 at a time", 64, shaped=True, tools=20), WHOLE),
    (Case("enforced, 1,000 messages, 8 at a time", 8, shaped=True, turns=1_000), LARGE),
    (Case("stream, enforced, paced, 8 at a time", 8, shaped=True, stream=True, paced=True), STREAM),
)


@contextlib.contextmanager
def under_callgrind(target: Target, folder: Path) -> Iterator[int]:
    """Run a proxy under callgrind, ready for calls; yields its process id."""
    dump = folder / "counted"
    # One window has one dump; instructions outside of Python's frames count too, so nothing is left out.
    callgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={dump}", "--vgdb-poll=2000"]
    environment = {"PYTHONMALLOC": "pymalloc", **target.env}
    with running([*callgrind, *started(target)], REST, environment) as process:
        if not until_ready(target.port, target.ready, process, _START_SECONDS):
            sys.exit(f"{target.name} did not start under callgrind")
        yield process.pid


def count_window(tool: Path, target: Target, case: Case, calls: int, pid: int, dump: Path) -> float:
    """Return the instructions of one call, over a window of so many."""
    control(pid, "--zero")
    result = load(tool, target, case, _LOAD_SECONDS, calls)
    if result.get("count") != calls or result["wrong"] or result["lost"]:
        sys.exit(f"{target.name}, {case.name}: {result}")
    for old in dump.parent.glob(f"{dump.name}.*"):
        old.unlink()
    control(pid, "--dump")
    (written,) = dump.parent.glob(f"{dump.name}.*")
    summary = _SUMMARY.search(written.read_bytes())
    if summary is None:
        sys.exit(f"{written} has no summary")
    return int(summary[1]) / calls


def control(pid: int, command: str) -> None:
    """Send a command to the callgrind that runs this process."""
    subprocess.run(["callgrind_control", command, str(pid)], check=True, capture_output=True)


def count(tool: Path, target: Target, chosen: list[tuple[Case, Window]], folder: Path) -> dict[str, float]:
    """Return the instructions per call, or per event of a stream, of one proxy, by the case's name."""
    counted = {}
    with under_callgrind(target, folder) as pid:
        for case, window in chosen:
            load(tool, target, case, _LOAD_SECONDS, window.warm_up)
            windows = [
                count_window(tool, target, case, window.calls, pid, folder / "counted") for _ in range(window.count)
            ]
            per_call = statistics.median(windows)
            counted[case.name] = per_call / events_sent(case.shaped) if case.stream else per_call
            print(f"  {target.name:<18} {case.name:<40} {counted[case.name] / 1000:>9,.1f}k", flush=True)
    return counted


def above_ceilings(ratios: dict[str, float], ceilings: dict[str, float]) -> list[str]:
    """Return the cases that take more of the bare forwarder's instructions than they may."""
    return [
        f"{name}: {ratios[name]:.2f} of the bare forwarder, ceiling {ceiling:.2f}"
        for name, ceiling in ceilings.items()
        if ratios.get(name, 0.0) > ceiling
    ]


def main() -> None:
    """Count, and print case by case."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cases", default="", help="only cases whose name has this in it")
    arguments.add_argument("--beside", type=Path, help="another checkout, or an environment, to be counted too")
    arguments.add_argument("--ceilings", type=Path, help="JSON: the ratio that each case may reach")
    chosen = arguments.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: nothing was counted (on Debian: apt install valgrind)")
        return
    cases = [(case, window) for case, window in CASES if chosen.cases in case.name]
    upstream = free_port()
    counted: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tool = build(folder, "_proxy_load")
        write(folder)
        model = [str(build(folder, "_proxy_upstream")), str(upstream), made]
        with running(model, REST) as process:
            until_ready(upstream, "/", process)
            for target in targets(upstream, folder, chosen.beside):
                if target.name in (BARE, OURS, BEFORE):
                    counted[target.name] = count(tool, target, cases, folder)
    ratios = {name: ours / counted[BARE][name] for name, ours in counted[OURS].items()}
    print("\ninstructions of a call, of an event in a stream")
    for case, _ in cases:
        row = "  ".join(f"{name} {figures[case.name] / 1000:,.1f}k" for name, figures in counted.items())
        print(f"  {case.name:<40} {ratios[case.name]:.2f} of the bare forwarder  ({row})")
    if chosen.ceilings is not None:
        problems = above_ceilings(ratios, json.loads(chosen.ceilings.read_text()))
        sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main()
