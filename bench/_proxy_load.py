"""Load for a proxy: `python -m bench._proxy_load '{"port": …}'` prints what it saw as JSON. For `bench.proxy`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Job:
    """What to send, over how many connections, for how long."""

    port: int
    path: str
    body: str
    connections: int
    seconds: float
    headers: dict[str, str] = field(default_factory=dict)
    most: int = 1_000_000

    def request(self) -> bytes:
        """The request's bytes."""
        raw = self.body.encode()
        lines = [f"POST {self.path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, f"content-length: {len(raw)}", "", ""]).encode() + raw


class Client(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, job: Job, request: bytes, seen: Seen) -> None:
        self._job = job
        self._request = request
        self._seen = seen
        self._transport: Any = None
        self._buffer = b""
        self._sent = 0.0
        self._first = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        if self._first:
            self._first = False
            self._seen.firsts.append(time.perf_counter() - self._sent)
        self._buffer += data
        if self._is_whole():
            self._seen.note(time.perf_counter() - self._sent, self._buffer)
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 — the protocol's signature
        self._seen.lost += 1

    def _is_whole(self) -> bool:
        if self._buffer.endswith(b"0\r\n\r\n"):
            return b"chunked" in self._buffer[:2000].lower()
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        at = head.lower().find(b"content-length:")
        return bool(found) and at >= 0 and len(rest) >= int(head[at + 15 :].split(b"\r\n", 1)[0])

    def _ask(self) -> None:
        if time.perf_counter() > self._seen.until or self._seen.count >= self._job.most:
            self._seen.finished()
            return
        self._buffer, self._first, self._sent = b"", True, time.perf_counter()
        self._transport.write(self._request)


class Seen:
    """What all connections saw together."""

    def __init__(self, job: Job) -> None:
        self.began = time.perf_counter()
        self.until = self.began + job.seconds
        self.times: list[float] = []
        self.firsts: list[float] = []
        self.events = 0
        self.wrong = 0
        self.lost = 0
        self.last = b""
        self._left = job.connections
        self.done = asyncio.get_running_loop().create_future()

    @property
    def count(self) -> int:
        return len(self.times)

    def note(self, seconds: float, answer: bytes) -> None:
        self.times.append(seconds)
        self.events += answer.count(b"data: {")
        if not answer.startswith(b"HTTP/1.1 200"):
            self.wrong += 1
            self.last = answer[-300:]

    def finished(self) -> None:
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


async def run(job: Job) -> dict[str, Any]:
    """Send it all."""
    seen = Seen(job)
    request = job.request()
    loop = asyncio.get_running_loop()
    for _ in range(job.connections):
        await loop.create_connection(lambda: Client(job, request, seen), "127.0.0.1", job.port)
    await asyncio.wait_for(seen.done, job.seconds + 10)
    times, firsts = sorted(seen.times), sorted(seen.firsts)
    return {
        "count": seen.count,
        "seconds": time.perf_counter() - seen.began,
        "events": seen.events,
        "wrong": seen.wrong,
        "last": seen.last.decode("latin-1"),
        "p50": times[len(times) // 2] * 1e3 if times else None,
        "p99": times[int(len(times) * 0.99)] * 1e3 if times else None,
        "first": firsts[len(firsts) // 2] * 1e3 if firsts else None,
    }


if __name__ == "__main__":
    import uvloop

    print(json.dumps(uvloop.run(run(Job(**json.loads(sys.argv[1]))))))
