"""A job with batches that is killed at any point has the rows, the requests and the costs of one that never was."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from slipform.addons.batch.batch_log import ResultCounts
from slipform.addons.batch.batched_calls import BatchPolicy
from slipform.addons.batch.datasets import Summary
from slipform.addons.batch.journal import Journal
from tests.conftest import THOROUGH
from tests.runner.batch_vendors import BatchVendor, Faults
from tests.runner.conftest import asked_for, person
from tests.runner.test_batched_rows import APIS, INVALID, ROW, Clock, run

ROWS = 24
FAULTS = {
    "a good vendor": Faults(),
    "an odd vendor": Faults(missing=0.1, duplicated=0.2, foreign=2, errored=0.1, expired=0.1),
    "results gone": Faults(gone=True),
    "a deadline": Faults(never_ends=True),
}


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Killer:
    """Ends a process after so many calls and lines of the journal, before or after one of them."""

    left: int

    def __call__(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed  # and again, whatever the process still tries


def answer(prompt: str, turn: int) -> str:
    """A model whose answer to every third row is invalid at first, and to every eighth always."""
    number = asked_for(prompt)
    is_invalid = (number % 3 == 0 and turn == 0) or number % 8 == 0
    return INVALID if is_invalid else person(number)


def finish(folder: Path, vendor: BatchVendor, killer: Killer) -> Summary:
    clock = Clock()
    clock.now = vendor._clock()
    policy = BatchPolicy(3600.0, last_few=4, max_requests=10, clock=clock, sleep=clock.sleep)
    return run(folder, vendor, ROWS, policy, killer)


def counted(summary: Summary) -> ResultCounts:
    """What batches held; the sum of costs depends on the order by a last digit."""
    assert summary.batches is not None
    results = summary.batches.results
    return msgspec.structs.replace(results, cost=None if results.cost is None else round(results.cost, 9))


def attempt(folder: Path, api: str, faults: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compare a run that is killed several times with one that is not; return how often it was killed."""
    draw = random.Random(f"{api}-{faults}-{seed}")
    write = Journal._write
    killer = Killer(1_000_000)

    def killed_write(journal: Journal, name: bytes, body: bytes, content: bytes = b"") -> None:
        killer()
        write(journal, name, body, content)
        killer()

    monkeypatch.setattr(Journal, "_write", killed_write)
    (folder / "whole").mkdir(parents=True)
    (folder / "killed").mkdir()
    reference = BatchVendor(api, answer, replace(FAULTS[faults]), random.Random(seed))
    whole = finish(folder / "whole", reference, killer)
    vendor = BatchVendor(api, answer, replace(FAULTS[faults]), random.Random(seed))
    kills = 0
    while True:
        killer.left = draw.randrange(120) if kills < 6 else 1_000_000
        try:
            summary = finish(folder / "killed", vendor, killer)
            break
        except Killed:
            kills += 1
    for name in ("out.jsonl", "out.jsonl.failures.jsonl"):
        assert (folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert summary.failed == ROWS // 8
    assert summary.batches is not None
    assert whole.batches is not None
    if faults != "a deadline":  # there, a kill decides what is asked live
        assert Counter(vendor.billed) == Counter(reference.billed)
        assert vendor.calls["batches"] == reference.calls["batches"]
        assert counted(summary) == counted(whole)
        assert summary.batches.retries == whole.batches.retries
        assert set(vendor.live) == set(reference.live)
    assert len(vendor.live) >= summary.batches.live_calls  # a call under way at a kill is made again
    assert summary.batches.live_calls >= len(set(vendor.live))
    assert summary.cost == pytest.approx(summary.batches.results.answers * ROW / 2 + summary.batches.live_calls * ROW)
    return kills


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("faults", FAULTS)
def test_killed_at_random_points_it_takes_what_a_whole_run_takes(
    tmp_path: Path, api: str, faults: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 40 if THOROUGH else 2
    kills = 0
    for seed in range(runs):
        with monkeypatch.context() as patched:
            kills += attempt(tmp_path / str(seed), api, faults, seed, patched)
    assert kills >= runs
