"""`slipform serve` as a process: it starts, reloads, drains and stops as its signals say, alone or with workers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from slipform.addons.server.http_server.state import ServerLimits
from slipform.addons.server.serve import address, listen, serve
from slipform.errors import ConfigError
from slipform.testing import Answer, FakeVendor
from tests.proxy.served import ASK, Served
from tests.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals and fork")

MAX_HEAD_BYTES = ServerLimits().head_bytes


@pytest.mark.covers("S2-11", "S2-20", "S2-69")
def test_one_process_reloads_drains_and_stops(started: Callable[..., Served]) -> None:
    with FakeVendor([Answer("slowly does it", pace=0.1, chunk_size=1)]) as vendor:
        served = started(vendor)
        assert served.call("POST", "/v1/chat/completions", ASK)[0] == 200
        served.configure("nonsense: true\n")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for(lambda: any("slipform.yaml:5" in line and "refused" in line for line in served.lines))
        assert json.loads(served.get("/readyz")[1])["config"] == 1
        served.configure("model_aliases: {quick: fake/m}\n")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for(lambda: json.loads(served.get("/readyz")[1])["config"] == 2)
        thread, got = served.later({**ASK, "model": "quick", "stream": True})
        served.process.send_signal(signal.SIGTERM)
        thread.join(30)
        assert got[0][0] == 200
        assert got[0][1].endswith(b"data: [DONE]\n\n")
        assert served.process.wait(20) == 0
        served.wait_for(lambda: sum('"slipform.requests"' in line for line in served.lines) == 2)
        assert "very-secret" not in "".join(served.lines)
        with pytest.raises(OSError, match="refused"):
            served.get("/healthz")


def is_refused(served: Served) -> bool:
    """Whether nobody listens any more."""
    try:
        served.get("/healthz")
    except OSError:
        return True
    return False


def test_a_second_signal_does_not_wait(started: Callable[..., Served]) -> None:
    with FakeVendor([Answer("never", latency=120)]) as vendor:
        served = started(vendor, drain_seconds=100)
        thread, _ = served.later({**ASK, "stream": True})
        served.process.send_signal(signal.SIGTERM)
        assert until(lambda: is_refused(served))
        assert served.process.poll() is None
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(20)
        thread.join(20)


def test_the_time_to_drain_ends_and_says_so_in_the_apis_shape(started: Callable[..., Served]) -> None:
    with FakeVendor([Answer("never", latency=120)]) as vendor:
        served = started(vendor, drain_seconds=0.5)
        thread, got = served.later(ASK)
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(20)
        thread.join(20)
        assert got[0][0] == 503
        assert json.loads(got[0][1])["error"]["code"] == "shutting_down"


def test_balancers_have_time_to_notice(started: Callable[..., Served]) -> None:
    with FakeVendor(["hi"]) as vendor:
        served = started(vendor, notice_seconds=3)
        served.process.send_signal(signal.SIGINT)
        served.wait_for(lambda: served.get("/readyz")[0] == 503)
        assert served.call("POST", "/v1/chat/completions", ASK)[0] == 200
        assert served.process.wait(20) == 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not say who the workers are")
def test_workers_stop_when_their_supervisor_is_gone(started: Callable[..., Served]) -> None:
    with FakeVendor(["hi"]) as vendor:
        served = started(vendor, workers=2)
        children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
        assert len(children) == 2
        served.process.kill()

        def have_stopped() -> bool:
            states = [Path(f"/proc/{child}/stat") for child in children]
            return all(not each.exists() or each.read_text().rpartition(")")[2].split()[0] == "Z" for each in states)

        served.wait_for(have_stopped)
        served.wait_for(lambda: "".join(served.lines).count("supervisor is gone, stopping") == 2)


def test_workers_share_a_port_and_their_metrics_and_are_replaced_when_they_die(
    started: Callable[..., Served],
) -> None:
    with FakeVendor(["hi"]) as vendor:
        served = started(vendor, workers=2)

        def births() -> dict[str, int]:
            page = served.get("/metrics")[1].decode()
            found = re.findall(r'process_start_time_seconds\{worker="(\d)"\} (\S+)', page)
            return {worker: int(float(when) * 1000) for worker, when in found}

        served.wait_for(lambda: len(births()) == 2)
        for _ in range(20):
            assert served.call("POST", "/v1/chat/completions", ASK)[0] == 200
        counted = re.findall(r"slipform_requests_total\{.*\} (\S+)", served.get("/metrics")[1].decode())
        assert sum(map(float, counted)) == 20
        children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children")
        if children.exists():
            before = children.read_text().split()
            os.kill(int(before[0]), signal.SIGKILL)
            served.wait_for(lambda: any("starting another" in line for line in served.lines))
            served.wait_for(lambda: len(set(children.read_text().split()) - set(before)) == 1)
            served.wait_for(lambda: len(births()) == 2)
        served.configure("model_aliases: {quick: fake/m}\n")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for(lambda: served.get("/metrics")[1].decode().count('generation{worker="0"} 2.0') == 1)
        served.wait_for(lambda: served.get("/metrics")[1].decode().count('generation{worker="1"} 2.0') == 1)
        served.configure("nonsense: true\n")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for_samples("slipform_config_refused_total", 1)
        served.wait_for_samples("slipform_config_last_reload_refused", 1)
        served.wait_for(lambda: any("nonsense" in line for line in served.lines))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(30) == 0
        with pytest.raises(OSError, match="refused"):
            served.get("/healthz")


def _catches_sighup(process: subprocess.Popen[str]) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) & 1 << (signal.SIGHUP - 1))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not say what a process catches")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_signal_before_the_server_listens_does_not_end_it(workers: int, tmp_path: Path) -> None:
    file = tmp_path / "slipform.yaml"
    provider = "{fake: {kind: openai, base_url: 'http://127.0.0.1:9/v1'}}"
    file.write_text(f"server: {{port: 0, log: json}}\ndefault_model: fake/m\nproviders: {provider}\n")
    program = [sys.executable, "-c", "from slipform.cli import main; main()", "serve", "--config", str(file)]
    with subprocess.Popen([*program, "--workers", str(workers)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert until(lambda: _catches_sighup(process))
            process.send_signal(signal.SIGHUP)
            announced = process.stderr.readline()
            port = re.search(r"http://127.0.0.1:(\d+)", announced)
            assert port is not None, announced + process.stderr.read()
            process.send_signal(signal.SIGHUP)
            ready = f"http://127.0.0.1:{port[1]}/readyz"

            def has_reloaded() -> bool:
                process.send_signal(signal.SIGHUP)
                with urllib.request.urlopen(ready, timeout=10) as response:
                    return bool(json.load(response)["config"] > 1)

            assert until(has_reloaded, ignoring=(OSError,))
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not say who the workers are")
def test_a_worker_that_hangs_is_replaced(started: Callable[..., Served]) -> None:
    with FakeVendor(["hi"]) as vendor:
        served = started(vendor, workers=2)
        children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children")
        before = children.read_text().split()
        os.kill(int(before[0]), signal.SIGSTOP)
        served.wait_for(lambda: any("does not answer its supervisor" in line for line in served.lines))
        served.wait_for(lambda: before[0] not in (now := children.read_text().split()) and len(now) == 2)
        served.wait_for(lambda: len(served.samples("process_start_time_seconds")) == 2)
        assert {served.ask() for _ in range(20)} == {200}


def test_heads_that_are_too_large_are_refused(started: Callable[..., Served]) -> None:
    with FakeVendor(["hi"]) as vendor:
        served = started(vendor)
        with socket.create_connection((served.host, served.port), timeout=20) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-filler: ")
            with contextlib.suppress(OSError):  # it has hung up
                raw.sendall(b"a" * MAX_HEAD_BYTES)
                assert raw.recv(200).startswith(b"HTTP/1.1 431 ")
        with socket.create_connection((served.host, served.port), timeout=20) as raw:
            raw.sendall(b"not http at all\r\n\r\n")
            assert raw.recv(200).startswith(b"HTTP/1.1 400 ")
        assert served.get("/healthz")[0] == 200


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    (first,) = listen("127.0.0.1", 0)
    with first:
        port = first.getsockname()[1]
        assert address(first) == f"127.0.0.1:{port}"
        for count in (1, 2):
            with pytest.raises(ConfigError, match="Cannot listen"):
                listen("127.0.0.1", port, count)
    with pytest.raises(ConfigError, match="Cannot listen"):
        listen("no such host.invalid", 0)


def test_listening_beyond_this_machine_without_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="anyone there could call"):
        serve(host="0.0.0.0", port=0)


@pytest.mark.parametrize(
    ("workers", "mistaken", "said"),
    [
        (1, "providers:\n  mine: {kind: opnai}\n", "slipform.yaml:3 (`providers.mine.kind`). Did you mean openai"),
        (1, "model_aliases:\n  a: nosuch/m\n", "slipform.yaml:3 (`model_aliases.a`)"),
        (
            2,
            "providers:\n  mine:\n    kind: openai\n    ca_file: no.pem\n",
            "slipform.yaml:5 (`providers.mine.ca_file`)",
        ),
    ],
)
def test_a_mistake_in_the_settings_is_told_with_its_line_and_nothing_is_announced(
    workers: int, mistaken: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "slipform.yaml").write_text(f"default_model: openai/m\n{mistaken}")
    done = subprocess.run(
        [sys.executable, "-m", "slipform", "serve", "--port", "0", "--workers", str(workers)],
        cwd=tmp_path,
        env={**os.environ, "OPENAI_API_KEY": "k"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3
    assert said in done.stderr
    assert "serves http" not in done.stderr
