"""A batch that is killed, interrupted, or runs out of disk loses no row and does none twice."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slipform.runner import batch
from slipform.schema import Schema
from slipform.testing import Answer, FakeModel, FakeVendor, Received
from tests.conftest import PERSON, THOROUGH
from tests.runner.conftest import (
    answer,
    answer_http,
    command,
    command_line,
    environment,
    fake_router,
    read_rows,
    settings_for,
    write_rows,
)

ROWS, KILLS = (2_000, 10) if THOROUGH else (600, 3)
JOB = ("batch", "in.jsonl", "--schema", "person.json", "--out", "out.jsonl", "--prompt", "Who is {name}")


def prepared(folder: Path, vendor: FakeVendor, rows: int) -> None:
    write_rows(folder / "in.jsonl", rows)
    (folder / "person.json").write_text(json.dumps(PERSON))
    (folder / "slipform.yaml").write_text(settings_for(vendor))


def begun(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command_line(JOB), cwd=folder, env=environment(), stderr=subprocess.PIPE)


def check_results(folder: Path, rows: int) -> None:
    found = read_rows(folder / "out.jsonl")
    assert [row["row"] for row in found] == list(range(1, rows + 1))
    assert len({row["key"] for row in found}) == rows
    schema: Schema[object] = Schema.of(PERSON)
    assert all(schema.validate(row["value"]) == [] for row in found)
    assert [row["value"]["name"] for row in found] == [f"P{number}" for number in range(1, rows + 1)]


@pytest.mark.timeout(300)  # eleven processes start one after another, on a machine that may be busy
def test_killed_again_and_again_at_random_moments_it_has_every_row_once(tmp_path: Path) -> None:
    draw = random.Random(9)
    moments = sorted(draw.randrange(ROWS) for _ in range(KILLS))
    with FakeVendor(answer_http) as vendor:
        prepared(tmp_path, vendor, ROWS)
        for moment in moments:
            process = begun(tmp_path)
            assert vendor.wait_until(lambda vendor, at=moment: len(vendor.requests) > at, 60)  # type: ignore[misc]
            time.sleep(draw.random() * 0.01)
            process.kill()
            process.communicate()
        asked_before = len(vendor.requests)
        done = command(*JOB, cwd=tmp_path)
        asked = len(vendor.requests)
    assert done.returncode == 0, done.stderr
    assert asked > asked_before
    assert asked <= ROWS + 16 * len(moments)  # what was under way at a kill is asked again, nothing else
    check_results(tmp_path, ROWS)
    finished = [line["done"]["row"] for line in read_rows(tmp_path / "out.jsonl.journal") if "done" in line]
    assert sorted(finished) == list(range(1, ROWS + 1))


def test_ctrl_c_leaves_what_is_done_and_goes_on_later(tmp_path: Path) -> None:
    with FakeVendor(lambda received: Answer(answer_http(received), latency=0.01)) as vendor:
        prepared(tmp_path, vendor, 300)
        process = begun(tmp_path)
        assert vendor.wait_until(lambda vendor: len(vendor.requests) > 50, 60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 130
        assert b"the same command to resume" in said
        assert b"Traceback" not in said
        before = len(read_rows(tmp_path / "out.jsonl"))
        assert 30 <= before < 300
        assert command(*JOB, cwd=tmp_path).returncode == 0
    check_results(tmp_path, 300)


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    with FakeVendor(answer_http) as vendor:
        prepared(tmp_path, vendor, 300)
        # What `make coverage` measures would not find space either.
        around = {name: value for name, value in environment().items() if not name.startswith("COVERAGE")}
        process = subprocess.Popen(
            command_line(JOB),
            cwd=tmp_path,
            env=around,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),  # noqa: PLW1509
        )
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert b"cannot be written: File too large" in said
        assert b"out.jsonl.journal" in said
        assert b"run the same command again" in said
        assert b"Traceback" not in said
        for left in ("out.jsonl", "out.jsonl.journal"):
            assert (tmp_path / left).read_bytes()[-1:] in (b"\n", b"")
        asked = len(vendor.requests)
        assert command(*JOB, cwd=tmp_path).returncode == 0
        assert len(vendor.requests) < asked + 300
    check_results(tmp_path, 300)


@pytest.mark.parametrize("cut", [1, 20, 500])
def test_a_torn_journal_costs_its_last_rows_and_no_more(tmp_path: Path, cut: int) -> None:
    write_rows(tmp_path / "in.jsonl", 50)

    def go_on(model: FakeModel) -> None:
        batch(
            tmp_path / "in.jsonl",
            schema=PERSON,
            out=tmp_path / "out.jsonl",
            prompt="Who is {name}",
            router=fake_router(model),
        )

    go_on(FakeModel(answer))
    journal = tmp_path / "out.jsonl.journal"
    journal.write_bytes(journal.read_bytes()[:-cut])
    rest = FakeModel(answer)
    go_on(rest)
    assert 1 <= len(rest.requests) <= 1 + cut // 60
    check_results(tmp_path, 50)


def test_rows_under_way_when_the_vendor_hangs_up_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "any")
    broken = {5, 6, 17}

    def script(received: Received) -> Answer:
        said = answer_http(received)
        number = int(json.loads(said)["name"][1:])
        if number in broken:
            broken.discard(number)
            return Answer(said, cut_after=1, ending="reset")
        return Answer(said)

    with FakeVendor(script) as vendor:
        prepared(tmp_path, vendor, 30)
        assert command(*JOB, cwd=tmp_path).returncode == 5
        assert [row["row"] for row in read_rows(tmp_path / "out.jsonl.failures.jsonl")] == [5, 6, 17]
        assert command(*JOB, "--retry-failures", cwd=tmp_path).returncode == 0
    check_results(tmp_path, 30)
