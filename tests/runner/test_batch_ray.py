"""The same job on a real Ray cluster of this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slipform.testing import FakeVendor, Received
from tests.runner.conftest import answer_http, environment, read_rows, settings_for, write_rows

pytest.importorskip("ray")

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}


def script(received: Received) -> str:
    said = answer_http(received)
    return "no idea" if '"P7"' in said or '"P13"' in said else said


@pytest.mark.timeout(240)
def test_ray_gives_what_one_machine_gives(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 20)
    (tmp_path / "ray_shapes.py").write_text(
        "from pydantic import BaseModel\nclass Person(BaseModel):\n    name: str\n    age: int\n"
    )
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
    assert done.stdout.split("\n")[:2] == ["local 20 20 2 240", "ray 20 20 2 240"]
    for ending in ("jsonl", "jsonl.failures.jsonl"):
        assert (tmp_path / f"ray.{ending}").read_bytes() == (tmp_path / f"local.{ending}").read_bytes()
    assert [row["row"] for row in read_rows(tmp_path / "ray.jsonl")] == [n for n in range(1, 21) if n not in (7, 13)]
    assert [row["row"] for row in read_rows(tmp_path / "ray.jsonl.failures.jsonl")] == [7, 13]
