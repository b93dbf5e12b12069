"""The same job on a real Ray cluster of this machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from slipform.testing import FakeVendor, Received, rate_limited
from slipform.testing.vendor import Step
from tests.runner.conftest import answer_http, asked_for, environment, read_rows, settings_for, write_rows

pytest.importorskip("ray")

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}


class Weak:
    """Knows nothing of two people at first, and learns about one of them; asks to slow down once for each engine."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def __call__(self, received: Received) -> Step:
        number = asked_for(received.json()["messages"][-1]["content"])
        self.asked[number] += 1
        if number == 4 and self.asked[4] in (1, 3):
            return rate_limited(retry_after_ms=20)
        weak = number == 13 or (number == 7 and self.asked[7] <= 2)
        return "no idea" if weak else answer_http(received)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ray_gives_what_one_machine_gives_also_for_failures_tried_again(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 20)
    (tmp_path / "ray_shapes.py").write_text(
        "from pydantic import BaseModel\nclass Person(BaseModel):\n    name: str\n    age: int\n"
    )
    script = Weak()
    with FakeVendor(script) as vendor:
        (tmp_path / "slipform.yaml").write_text(settings_for(vendor))
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("ray_job.py")), str(tmp_path)],
            cwd=tmp_path,
            env=environment(QUIET),
            capture_output=True,
            text=True,
            check=False,
            timeout=220,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["local 20 20 2 240", "ray 20 20 2 240", "local 20 2 1 24", "ray 20 2 1 24"]
    for ending in ("jsonl", "jsonl.failures.jsonl"):
        assert (tmp_path / f"ray.{ending}").read_bytes() == (tmp_path / f"local.{ending}").read_bytes()
    assert [row["row"] for row in read_rows(tmp_path / "ray.jsonl")] == [n for n in range(1, 21) if n != 13]
    assert [row["row"] for row in read_rows(tmp_path / "ray.jsonl.failures.jsonl")] == [13]
    assert (script.asked[7], script.asked[13], script.asked[4]) == (4, 4, 4)
