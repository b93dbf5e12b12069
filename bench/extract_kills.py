"""Kill `slipform extract` at random moments, run it again, and compare with a run that was left alone.

python -m bench.extract_kills               # 200 kills, about five minutes of CPU time
python -m bench.extract_kills --kills 20

Half of the kills come after a random number of requests, half after a random time, so that they hit the start, the
calls, the journal and the writing of the table. Whenever a run reaches its end, its table is compared and it begins
anew. Calls are repeated where the journal's answers and the calls of a process are together more than a run takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.records.generate import statement
from tests.runner.conftest import ROOT, environment, settings_for

from slipform.testing import FakeVendor, Received

_FILES = 40
_ROWS = 40
_CONCURRENCY = 4
_LONGEST_LIFE = 2.5


@dataclass
class Kills:
    """What the kills did."""

    kills: int = 0
    finished: int = 0
    """Runs that reached their end."""
    differing: int = 0
    repeated: int = 0
    """Calls beyond what the answers in the journal left to ask."""
    lost: int = 0
    """Calls that were sent again: at most those that were under way at a kill."""


def answer(received: Received) -> str:
    """Read the text of a question, with a tenth of its records left out: the same ones for the same question."""
    text = received.json()["messages"][-1]["content"]
    chance = random.Random(text)
    return json.dumps({"records": [row for row in statement(1).read(text) if chance.random() > 0.1]})


def prepare(folder: Path, vendor: FakeVendor) -> None:
    """Write the documents, the schema and the settings."""
    folder.mkdir()
    for number in range(_FILES):
        (folder / f"in{number:02}.txt").write_text(statement(_ROWS, number).text)
    (folder / "row.json").write_text(json.dumps(statement(1).item))
    (folder / "slipform.yaml").write_text(settings_for(vendor))


def command() -> list[str]:
    """The command that is killed."""
    files = [f"in{number:02}.txt" for number in range(_FILES)]
    program = [sys.executable, "-c", "from slipform.cli import main; main()", "extract", *files]
    return [*program, "--schema", "row.json", "--list", "-o", "out.csv", "--concurrency", str(_CONCURRENCY)]


def journal_keys(folder: Path) -> int:
    """Return how many answers the journal has; a line that a kill has cut does not count."""
    path = folder / "out.csv.journal"
    if not path.exists():
        return 0
    return sum(b'"call"' in line for line in path.read_bytes().split(b"\n")[:-1])


def is_killed(process: subprocess.Popen[bytes], vendor: FakeVendor, chance: random.Random) -> bool:
    """Kill the process at a random moment; False where it ended before."""
    if chance.random() < 0.5:
        enough = len(vendor.requests) + chance.randint(1, 3 * _CONCURRENCY)
        while len(vendor.requests) < enough and process.poll() is None:
            time.sleep(0.001)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, _LONGEST_LIFE))
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def run(kills: int, seed: int, folder: Path) -> Kills:
    """Kill so many times, and return what became of the runs."""
    chance = random.Random(seed)
    surroundings = environment({"PYTHONPATH": str(ROOT / "src")})
    result = Kills()
    with FakeVendor(answer) as vendor:
        prepare(folder / "whole", vendor)
        subprocess.run(command(), cwd=folder / "whole", env=surroundings, check=True, stderr=subprocess.DEVNULL)
        expected = (folder / "whole" / "out.csv").read_bytes()
        calls = len(vendor.requests)
        prepare(folder / "killed", vendor)
        sent = Counter[str]()
        while result.kills < kills:
            known = journal_keys(folder / "killed")
            before = len(vendor.requests)
            process = subprocess.Popen(command(), cwd=folder / "killed", env=surroundings, stderr=subprocess.DEVNULL)
            killed = is_killed(process, vendor, chance)
            result.kills += killed
            texts = [each.json()["messages"][-1]["content"] for each in vendor.requests[before:]]
            again = sum(sent[text] > 0 for text in texts)
            sent.update(texts)
            result.lost += again
            result.repeated += max(0, known + len(texts) - calls)
            if killed:
                continue
            result.finished += 1
            result.differing += (folder / "killed" / "out.csv").read_bytes() != expected
            shutil.rmtree(folder / "killed")
            prepare(folder / "killed", vendor)
            sent.clear()
    return result


def main() -> None:
    """Print what the kills did; fail where a result differs or an answered call was repeated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(arguments.kills, arguments.seed, Path(folder))
    print(
        f"{result.kills} kills, {result.finished} runs to their end, {result.differing} with another table, "
        f"{result.repeated} answered calls repeated, {result.lost} sent again that were under way at a kill"
    )
    too_many = result.lost > result.kills * _CONCURRENCY
    raise SystemExit(bool(result.differing or result.repeated or too_many or not result.finished))


if __name__ == "__main__":
    main()
