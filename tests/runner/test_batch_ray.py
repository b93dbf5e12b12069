"""The same job on a real Ray cluster of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipform.testing import Answer, FakeVendor, Received, Step, rate_limited
from tests.runner.conftest import (
    answer_http,
    asked_for,
    command,
    command_line,
    environment,
    read_rows,
    settings_for,
    write_rows,
)
from tests.runner.test_batch_kill import JOB, prepared

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


@pytest.mark.slow
@pytest.mark.parametrize("listening", [False, True])
def test_a_cluster_that_does_not_answer_is_an_error_soon(tmp_path: Path, listening: bool) -> None:
    """Also where something listens that is no Ray; the test's own timeout is what soon means."""
    with FakeVendor(answer_http) as vendor, socket.create_server(("127.0.0.1", 0)) as other:
        prepared(tmp_path, vendor, 3)
        address = f"127.0.0.1:{other.getsockname()[1]}"
        if not listening:
            other.close()
        done = command(*JOB, "--engine", "ray", cwd=tmp_path, more={"RAY_ADDRESS": address})
    assert done.returncode == 1
    assert f"The Ray cluster cannot be reached: {'it does not' if listening else 'Connection refused'}" in done.stderr
    assert f"RAY_ADDRESS={address}" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def _speak_http2_and_no_more(listening: socket.socket) -> None:
    """Answer every connection with a frame of HTTP/2 settings, as Ray's control service does, and then nothing."""
    connections = []
    with contextlib.suppress(OSError):  # the test closes the socket
        while True:
            connection, _ = listening.accept()
            connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            connections.append(connection)


@pytest.mark.slow
def test_a_cluster_that_speaks_and_never_comes_up_is_an_error_within_20_seconds(tmp_path: Path) -> None:
    with FakeVendor(answer_http) as vendor, socket.create_server(("127.0.0.1", 0)) as other:
        prepared(tmp_path, vendor, 3)
        threading.Thread(target=_speak_http2_and_no_more, args=[other], daemon=True).start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = command(*JOB, "--engine", "ray", cwd=tmp_path, more={"RAY_ADDRESS": address})
    assert done.returncode == 1
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("slipform: "))  # Ray writes lines, too
    assert "The Ray cluster cannot be reached: no answer within 10 s" in error
    assert f"RAY_ADDRESS={address}" in error


def named(name: str, *more: str) -> tuple[str, ...]:
    """The job with another file of results."""
    return tuple(f"{name}.jsonl" if word == "out.jsonl" else word for word in JOB) + more


class Crowd:
    """Answers after a moment and counts the calls under way; the first row's answer waits until the others were asked.

    `refuse` has these rows asked to slow down, once each.
    """

    def __init__(self, refuse: range = range(0)) -> None:
        self.asked: Counter[int] = Counter()
        self.most = self._now = 0
        self._refuse = set(refuse)
        self._many_asked = asyncio.Event()

    def __call__(self, received: Received) -> Step:
        number = asked_for(received.json()["messages"][-1]["content"])
        self.asked[number] += 1
        if len(self.asked) == 100:
            self._many_asked.set()
        if number in self._refuse:
            self._refuse.discard(number)
            return rate_limited(retry_after_ms=50)

        async def gate(piece: int) -> None:
            if piece == 0:
                self._now += 1
                self.most = max(self.most, self._now)
                await asyncio.sleep(0.02)
                if number == 1:
                    await self._many_asked.wait()
                self._now -= 1

        return Answer(answer_http(received), gate=gate)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two Ray nodes on loopback, of two processors each."""
    from ray.cluster_utils import Cluster

    for name, value in {**QUIET, "FAKE_KEY": "any", "TEST_FOLDER": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        made.second = made.add_node(num_cpus=2)
        yield made
    finally:
        made.shutdown()


def actors_of(folder: Path) -> list[int]:
    """The processes of actors that answer rows on the cluster of this test."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                b"RowActor" in (each / "cmdline").read_bytes()
                and str(folder).encode() in (each / "environ").read_bytes()
            ):
                found.append(int(each.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_lose_an_actor_a_node_the_vendors_patience_and_the_driver_but_no_row(
    tmp_path: Path, cluster: Any
) -> None:
    rows, on_ray = 400, ("--engine", "ray", "--concurrency", "8")
    there = {"RAY_ADDRESS": cluster.address}
    with FakeVendor(answer_http) as vendor:
        prepared(tmp_path, vendor, rows)
        assert command(*JOB, cwd=tmp_path).returncode == 0
    expected = (tmp_path / "out.jsonl").read_bytes()
    with FakeVendor(crowd := Crowd()) as vendor:
        prepared(tmp_path, vendor, rows)
        done = command(*named("calm", *on_ray), cwd=tmp_path, more=there)
        assert (done.returncode, (tmp_path / "calm.jsonl").read_bytes() == expected) == (0, True), done.stderr
        assert set(crowd.asked.values()) == {1}
        assert 4 < crowd.most <= 8
        assert [line for line in done.stderr.splitlines() if not line.startswith("slipform: ")] == []
    with FakeVendor(crowd := Crowd(refuse=range(150, 160))) as vendor:
        prepared(tmp_path, vendor, rows)
        job = named("rough", *on_ray)
        driver = subprocess.Popen(command_line(job), cwd=tmp_path, env=environment(there), stderr=subprocess.DEVNULL)
        assert vendor.wait_until(lambda _: len(crowd.asked) > 60, 200)
        os.kill(actors_of(tmp_path)[0], signal.SIGKILL)
        assert vendor.wait_until(lambda _: len(crowd.asked) > 120, 60)
        cluster.remove_node(cluster.second, allow_graceful=False)
        assert vendor.wait_until(lambda _: len(crowd.asked) > 250, 60)
        driver.kill()
        driver.wait()
        done = command(*job, cwd=tmp_path, more=there)
        assert (done.returncode, (tmp_path / "rough.jsonl").read_bytes() == expected) == (0, True), done.stderr
        assert sum(crowd.asked.values()) <= rows + 10 + 3 * 8  # refused once, and under way at the three losses
        assert crowd.most <= 16  # the killed driver's calls may still be under way
