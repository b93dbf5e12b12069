"""`slipform serve` as a process, its settings file and its log, for the tests that send it signals."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slipform.testing import FakeVendor
from tests.waiting import until

SOURCE = Path(__file__).resolve().parents[2] / "src"
ASK: dict[str, Any] = {"model": "fake/m", "messages": [{"role": "user", "content": "hi"}]}


class Served:
    """A running `slipform serve` and its log."""

    def __init__(
        self,
        folder: Path,
        vendor: FakeVendor,
        workers: int = 1,
        *,
        flags: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        key: str = "",
        **server: Any,
    ) -> None:
        """`flags` stand for `--config FILE`, which is the folder's own `slipform.yaml`; `key` goes with every call."""
        self.file = folder / "slipform.yaml"
        self.vendor = vendor
        self.workers = workers
        self.key = key
        self.server = {"log": "json", "port": 0, "drain_seconds": 10, **server}
        self.configure()
        program = [sys.executable, "-c", "from slipform.cli import main; main()", "serve", "--workers", str(workers)]
        given = ["--config", str(self.file)] if flags is None else flags
        ours = {**os.environ, "FAKE_KEY": "sk-very-secret-key", "PYTHONPATH": str(SOURCE), **(environment or {})}
        self.process = subprocess.Popen([*program, *given], stderr=subprocess.PIPE, text=True, cwd=folder, env=ours)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait_for(lambda: any("serves http://" in line for line in self.lines))
        found = re.search(r"http://([\d.]+):(\d+)", self.lines[0])
        assert found is not None
        self.host, self.port = found[1].replace("0.0.0.0", "127.0.0.1"), int(found[2])
        self.wait_for(lambda: self.get("/readyz")[0] == 200)

    def configure(self, extra: str = "") -> None:
        provider = f"{{kind: openai, base_url: '{self.vendor.base_url}', api_key_env: FAKE_KEY}}"
        text = f"default_model: fake/m\nproviders:\n  fake: {provider}\nserver: {json.dumps(self.server)}\n{extra}"
        self.file.write_text(text)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self.lines.extend(stream)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 40) -> None:
        if not until(condition, seconds, ignoring=(OSError, http.client.HTTPException)):
            pytest.fail("".join(self.lines[-20:]) or "nothing was logged")

    def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=30)) as connection:
            headers = {"authorization": f"Bearer {key}"} if (key := self.key if key is None else key) else {}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()

    def get(self, path: str) -> tuple[int, bytes]:
        return self.call("GET", path)

    def ask(self, key: str | None = None) -> int:
        """The status of a question that is asked with this key."""
        return self.call("POST", "/v1/chat/completions", ASK, key)[0]

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def samples(self, name: str) -> list[float]:
        """The values of a metric, one for each worker."""
        page = self.get("/metrics")[1].decode()
        return [float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)]

    def wait_for_samples(self, name: str, value: float) -> None:
        """Wait until every worker says so."""
        self.wait_for(lambda: self.samples(name) == [value] * self.workers)

    def later(self, body: Any) -> tuple[threading.Thread, list[tuple[int, bytes]]]:
        """Start a call that is answered while other things happen."""
        got: list[tuple[int, bytes]] = []
        asked = len(self.vendor.requests)
        thread = threading.Thread(target=lambda: got.append(self.call("POST", "/v1/chat/completions", body)))
        thread.start()
        assert self.vendor.wait_until(lambda vendor: len(vendor.requests) > asked, timeout=20)
        return thread, got

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait(20)
        self._reader.join(20)
        return code
