"""A batch on several processes: the same results, one pace, and nothing left behind whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pydantic import BaseModel

from slipform.errors import AuthenticationError, ConfigError, SlipformError
from slipform.providers.router import Router
from slipform.runner import Summary, batch
from slipform.runner.datasets import make_job
from slipform.runner.engine_processes import check_processes
from slipform.testing import Answer, FakeModel, FakeVendor, Received, rate_limited, server_error
from slipform.testing.steps import Step
from tests.conftest import PERSON
from tests.runner.conftest import (
    answer,
    answer_http,
    asked_for,
    command,
    command_line,
    environment,
    fake_router,
    read_rows,
    settings_for,
    settings_of,
    write_rows,
)

pytestmark = [pytest.mark.usefixtures("vendor_key"), pytest.mark.timeout(240)]


def ask_all(folder: Path, vendor: FakeVendor, *, out: str = "out.jsonl", processes: int = 2) -> Summary:
    return batch(
        folder / "in.jsonl",
        schema=PERSON,
        out=folder / out,
        prompt="Who is {name}",
        concurrency=6,
        processes=processes,
        settings=settings_of(vendor),
    )


def rows_of(path: Path) -> list[int]:
    return [row["row"] for row in read_rows(path)]


def helpers_of(pid: int) -> list[int]:
    """The processes that this one started to help it."""
    try:
        children = [int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in _words(task / "children")]
    except OSError:
        pytest.skip("needs /proc")
    return [child for child in children if "slipform.runner.helper" in " ".join(_words(Path(f"/proc/{child}/cmdline")))]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().replace("\0", " ").split()
    except OSError:
        return []


def is_running(pid: int) -> bool:
    status = _words(Path(f"/proc/{pid}/stat"))
    return bool(status) and status[2] != "Z"


def test_several_processes_give_what_one_gives(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 40)

    def script(received: Received) -> Step:
        said = answer_http(received)
        if '"P7"' in said:
            return "no idea"
        return Answer(said, latency=0.02 if '"P3"' in said else 0.0)

    with FakeVendor(script) as vendor:
        one = ask_all(tmp_path, vendor, out="one.jsonl", processes=1)
        two = ask_all(tmp_path, vendor, out="two.jsonl")
    assert (
        (two.rows, two.done, two.failed, two.usage)
        == (one.rows, one.done, one.failed, one.usage)
        == (
            40,
            40,
            1,
            one.usage,
        )
    )
    for ending in ("", ".failures.jsonl"):
        assert (tmp_path / f"two.jsonl{ending}").read_bytes() == (tmp_path / f"one.jsonl{ending}").read_bytes()
    assert helpers_of(os.getpid()) == []


def test_a_refusal_slows_all_of_them_and_no_row_is_lost(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 40)
    arrivals: list[int] = []

    def script(received: Received) -> Step:
        arrivals.append(1)
        return rate_limited(retry_after_ms=30) if 10 <= len(arrivals) < 16 else answer_http(received)

    with FakeVendor(script) as vendor:
        summary = ask_all(tmp_path, vendor)
        assert (summary.done, summary.failed, len(vendor.requests)) == (40, 0, 46)
    assert rows_of(tmp_path / "out.jsonl") == list(range(1, 41))


def test_what_no_row_can_get_past_stops_all_of_them(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 40)

    def script(received: Received) -> Step:
        number = asked_for(received.json()["messages"][-1]["content"])
        return server_error(401) if number > 20 else answer_http(received)

    with FakeVendor(script) as vendor, pytest.raises(AuthenticationError):
        ask_all(tmp_path, vendor)
    assert helpers_of(os.getpid()) == []
    with FakeVendor(answer_http) as vendor:
        assert ask_all(tmp_path, vendor).done < 40
    assert rows_of(tmp_path / "out.jsonl") == list(range(1, 41))


def test_a_helper_that_dies_ends_the_run_which_goes_on_later(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 60)
    killed: list[int] = []

    def script(received: Received) -> Step:
        if asked_for(received.json()["messages"][-1]["content"]) == 30 and not killed:
            killed.append(helpers_of(os.getpid())[0])
            os.kill(killed[0], signal.SIGKILL)
        return Answer(answer_http(received), latency=0.005)

    with FakeVendor(script) as vendor:
        with pytest.raises(SlipformError, match=r"was ended by SIGKILL.*same command again"):
            ask_all(tmp_path, vendor)
        assert ask_all(tmp_path, vendor).failed == 0
        assert len(vendor.requests) <= 60 + 2 * 6  # under way, or done and not yet told
    assert rows_of(tmp_path / "out.jsonl") == list(range(1, 61))


def test_killed_itself_it_leaves_no_helper_and_goes_on_later(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 200)
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    words = ("batch", "in.jsonl", "--schema", "person.json", "--out", "out.jsonl", "--prompt", "Who is {name}")
    with FakeVendor(lambda received: Answer(answer_http(received), latency=0.01)) as vendor:
        (tmp_path / "slipform.yaml").write_text(settings_for(vendor))
        process = subprocess.Popen(
            command_line((*words, "--processes", "2")), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE
        )
        assert vendor.wait_until(lambda vendor: len(vendor.requests) > 50, 60)
        helpers = helpers_of(process.pid)
        process.kill()
        _, said = process.communicate(timeout=60)
        assert (len(helpers), said) == (2, b"")
        deadline = time.monotonic() + 60
        while any(is_running(pid) for pid in helpers):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        asked = len(vendor.requests)
        done = command(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(vendor.requests) - asked < 200
    assert rows_of(tmp_path / "out.jsonl") == list(range(1, 201))


class Here(BaseModel):
    name: str


def test_what_cannot_be_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "in.jsonl", 1)
    out = tmp_path / "out.jsonl"
    with pytest.raises(ConfigError, match="their own router"):
        batch(tmp_path / "in.jsonl", schema=PERSON, out=out, processes=2, router=fake_router(FakeModel(answer)))
    with pytest.raises(ConfigError, match="the cluster says"):
        batch(tmp_path / "in.jsonl", schema=PERSON, out=out, processes=2, engine="ray", model="local/smollm2-135m")
    with pytest.raises(ConfigError, match="at least one process"):
        batch(tmp_path / "in.jsonl", schema=PERSON, out=out, processes=0, model="local/smollm2-135m")
    routes = Router({"fake": FakeModel(answer)})
    job, _ = make_job(tmp_path / "in.jsonl", schema=PERSON, out=out, model="fake/any", router=routes)
    with pytest.raises(ConfigError, match="each load it"):
        check_processes(job, routes, 2)
    monkeypatch.setattr(Here, "__module__", "__main__")
    with FakeVendor(answer_http) as vendor, pytest.raises(ConfigError, match="the script that was started"):
        batch(tmp_path / "in.jsonl", schema=Here, out=out, processes=2, settings=settings_of(vendor))
