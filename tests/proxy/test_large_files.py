"""Files of 64 MiB go up and down through the proxy while its memory stays flat, no faster than the other side reads."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import openai
import pytest

from tests.proxy.served import Served

SIZE = 64 * 1024 * 1024
BLOCK = bytes(range(256)) * 256
GROWTH = 24 * 1024 * 1024
"""What the process may grow by, while 128 MiB pass through it."""


class Warehouse(http.server.BaseHTTPRequestHandler):
    """A vendor that reads what is uploaded without keeping it, and sends as much back."""

    protocol_version = "HTTP/1.1"
    sizes: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        left = int(self.headers["content-length"])
        self.sizes.append(left)
        while left:
            left -= len(self.rfile.read(min(left, 1 << 16)))
        self._json(b'{"id": "file-1", "object": "file", "bytes": 1, "created_at": 1, "filename": "f", "purpose": "x"}')

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/octet-stream")
        self.send_header("content-length", str(SIZE))
        self.end_headers()
        for _ in range(SIZE // len(BLOCK)):
            self.wfile.write(BLOCK)

    def _json(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def warehouse() -> Iterator[Any]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Warehouse)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield SimpleNamespace(base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", requests=[])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def peak(process: int) -> int:
    """The most memory that a process has had, in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_64_mib_up_and_down_with_flat_memory(started: Callable[..., Served], tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        for _ in range(SIZE // len(BLOCK)):
            file.write(BLOCK)
    with warehouse() as vendor:
        served = started(vendor)
        address = f"http://{served.host}:{served.port}/v1"
        with openai.OpenAI(base_url=address, api_key="k", max_retries=0) as client:
            client.files.create(file=("small", b"x"), purpose="assistants")  # what the first call loads is not counted
            client.files.content("file-1").close()
            before = peak(served.process.pid)
            with path.open("rb") as file:
                client.files.create(file=file, purpose="assistants")
            digest = hashlib.sha256()
            with client.files.with_streaming_response.content("file-1") as response:
                for piece in response.iter_bytes():
                    digest.update(piece)
            after = peak(served.process.pid)
    assert digest.hexdigest() == hashlib.sha256(BLOCK * (SIZE // len(BLOCK))).hexdigest()
    assert Warehouse.sizes[-1] > SIZE
    assert after - before < GROWTH, f"{(after - before) / 1e6:.0f} MB"
