"""Attack a real `slipform serve` with its default settings, as a caller and as a vendor.

Run with `PYTHONPATH=src python -m bench.hostile` (`make hostile`); it stops by itself after about two minutes and
exits with 1 when a bar is missed. All of it stays on 127.0.0.0/8.

- slow readers: 1,000 sockets from 127.0.0.2 ask for long streams and never read, while a caller from 127.0.0.1 goes on
  asking. Every one of its calls must be served.
- gzip bomb: an upstream answers 1 GB of JSON in about 1 MB of gzip, to a call without a schema, one with, and a
  streamed one. Memory stays within 150 MB of idle, and a client that pings never waits 0.5 s.
- schemas: the costliest that are let in, and some that are not, to every way an answer can take. A client that pings
  never waits 0.5 s, and what is over a limit is told so (413).
- texts: answers of 20 KB in 150 shapes that are costly to read, whole and streamed, and evidence of values that stand
  in the prompt thousands of times. A client that pings never waits 0.5 s, and none costs 5 s of the processor's time.
- long names: 500 requests with model names of 1 MB. Memory stays within 20 MB, and `/metrics` within 100 KB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench._hostile_schemas import schemas
from bench._hostile_texts import SHAPES
from bench._soak_clients import PERSON, Address, http
from bench.soak import sample, started

_SOCKETS = 1000
_HOSTILE = "127.0.0.2"
_BOMB_BYTES = 1 << 30
_NAMES, _NAME_BYTES = 500, 1_000_000
_TEXT_BYTES = 20_000
_EVIDENCE = "evidence of numbers that are everywhere"
_MB = 1e6
_LONGEST = 300.0
"""Seconds for one attack; a server that takes longer has lost."""
_GOOD = '{"name": "Ada", "age": 36}'
_SLOW_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


# The upstream, in a process of its own, so that the work it makes does not blur what the callers see.


def _upstream(ready: Connection, with_bombs: bool) -> None:
    bombs = {kind: _bomb(kind) for kind in ("whole", "stream")} if with_bombs else {}
    asyncio.run(_serve_upstream(ready, bombs))


async def _serve_upstream(ready: Connection, bombs: dict[str, bytes]) -> None:

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                streamed = b'"stream":true' in body.replace(b" ", b"")
                if b"a bomb" in body:
                    _send_bomb(writer, bombs["stream" if streamed else "whole"], streamed=streamed)
                elif b"a long one" in body:
                    await _send_long(writer)
                elif b"a shape:" in body:
                    _send_text(writer, _shape_text(body), streamed=streamed)
                else:
                    _send_good(writer)
                await writer.drain()
        writer.close()

    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    # Elsewhere the vendor's buffers are not this machine's: here they would fill what it has for all connections.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    server = await asyncio.start_server(answer, sock=listening)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _bomb(kind: str) -> bytes:
    """1 GB of an answer's text as gzip."""
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": "{"}, "message": {"content": "{"}}]})
    opening, closing = event.split('"{"', 1)[0] + '"{', '"' + event.split('"{"', 1)[1]
    prefix, suffix = (f"data: {opening}", f"{closing}\n\n") if kind == "stream" else (opening, closing)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    filling = b" " * (1 << 20)
    pieces = [packer.compress(prefix.encode())]
    pieces += [packer.compress(filling) for _ in range(_BOMB_BYTES >> 20)]
    return b"".join([*pieces, packer.compress(suffix.encode()), packer.flush()])


def _send_bomb(writer: asyncio.StreamWriter, bomb: bytes, *, streamed: bool) -> None:
    kind = "text/event-stream" if streamed else "application/json"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n"
    writer.write(head.encode() + bomb)


async def _send_long(writer: asyncio.StreamWriter) -> None:
    """16 MB of events, as fast as they are taken."""
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 16_000}}]})
    piece = f"data: {event}\n\n".encode()
    writer.write(_SLOW_HEAD)
    for _ in range(1000):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


def _shape_text(body: bytes) -> str:
    """The text that a request asks for by the name of its shape; a retry has further messages after it."""
    contents = [message["content"] for message in json.loads(body)["messages"]]
    name = next(content for content in contents if content.startswith("a shape:")).removeprefix("a shape:")
    return "[" + ", ".join(["1"] * 300) + "]" if name == _EVIDENCE else SHAPES[name].text(_TEXT_BYTES)


def _send_text(writer: asyncio.StreamWriter, text: str, *, streamed: bool) -> None:
    if not streamed:
        _send_good(writer, text)
        return
    pieces = [text[at : at + 40] for at in range(0, len(text), 40)]
    events = [{"index": 0, "delta": {"content": piece}} for piece in pieces]
    events.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    lines = [f"data: {json.dumps({'id': 'x', 'model': 'm', 'choices': [event]})}\n\n" for event in events]
    data = "".join([*lines, "data: [DONE]\n\n"]).encode()
    writer.write(_SLOW_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))


def _send_good(writer: asyncio.StreamWriter, text: str = _GOOD) -> None:
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    body = json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", **answer}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )


# What is measured.


@dataclass(slots=True)
class Calls:
    """The calls of one phase."""

    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        """How many were not served."""
        return sum(count for kind, count in self.outcomes.items() if kind != "200")

    def at(self, part: float) -> float:
        """A quantile of the latencies, in milliseconds."""
        ranked = sorted(self.seconds)
        return 1000 * ranked[min(len(ranked) - 1, int(part * len(ranked)))] if ranked else 0.0

    def row(self, name: str) -> str:
        """The phase in one line."""
        total = sum(self.outcomes.values())
        share = 100 * (total - self.failed) / total if total else 0.0
        kinds = ", ".join(f"{kind} × {count}" for kind, count in self.outcomes.most_common())
        return (
            f"  {name:8} {total:6,} calls, {share:6.2f} % served; p50 {self.at(0.5):7.1f} ms, "
            f"p99 {self.at(0.99):7.1f} ms, worst {self.at(1):7.1f} ms  ({kinds})"
        )


@dataclass(frozen=True, slots=True)
class Server:
    """A running proxy."""

    address: Address
    pid: int
    log: Path

    def memory(self, name: str = "VmRSS") -> float:
        """Resident bytes now, or with `VmHWM` the most there were since `forget_peak`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return 1024.0 * int(line.split()[1])
        raise RuntimeError(f"/proc has no {name}")

    def processor_seconds(self) -> float:
        """Seconds of the processor's time so far, in all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Begin to measure the peak anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


@contextmanager
def proxied(upstream: int) -> Iterator[Server]:
    """A proxy of its own in front of the upstream, with the settings that it has by default."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        row = f"up: {{kind: openai-compatible, base_url: 'http://127.0.0.1:{upstream}/v1', api_key_env: SOAK_KEY}}"
        settings = f"default_model: up/m\nproviders:\n  {row}\nserver: {{port: 0, log: json}}\n"
        with started(settings, log) as (address, pid):
            yield Server(address, pid, log)


def _chat(said: str, *, model: str = "up/m", shaped: bool = False, stream: bool = False) -> bytes:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": said}], "stream": stream}
    if shaped:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    return json.dumps(body).encode()


async def _timed(call: Awaitable[tuple[int, bytes]], calls: Calls) -> None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(_LONGEST):
            status, _ = await call
        calls.outcomes[str(status)] += 1
    except (OSError, TimeoutError, AssertionError) as error:
        calls.outcomes[type(error).__name__] += 1
    calls.seconds.append(time.monotonic() - began)


@asynccontextmanager
async def repeating(
    make: Callable[[], Awaitable[tuple[int, bytes]]], calls: Calls, pause: float
) -> AsyncIterator[None]:
    """One call after another for as long as the block runs."""

    async def again() -> None:
        while True:
            await _timed(make(), calls)
            await asyncio.sleep(pause)

    task = asyncio.create_task(again())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _verdict(name: str, good: bool, bar: str) -> bool:
    print(f"  {'PASS' if good else 'FAIL'}: {name} ({bar})", flush=True)
    return good


# The attacks.


async def slow_readers(server: Server, seconds: float) -> bool:
    """1,000 sockets that ask for long streams and do not read, beside a caller who wants to be served."""
    print(f"slow readers: {_SOCKETS:,} sockets from {_HOSTILE} that ask and never read, for {seconds:g} s", flush=True)
    phases = {name: Calls() for name in ("before", "during", "after")}

    def ask() -> Awaitable[tuple[int, bytes]]:
        return http(server.address, "POST", "/v1/chat/completions", _chat("Ada is 36", shaped=True))

    async with repeating(ask, phases["before"], 0.01):
        await asyncio.sleep(4)
    idle = server.memory()
    server.forget_peak()
    open_sockets: list[socket.socket] = []
    under_way: list[float] = []
    async with repeating(ask, phases["during"], 0.01), repeating(ask, phases["during"], 0.01):
        end = time.monotonic() + seconds
        open_sockets += await asyncio.gather(*(_silent(server.address) for _ in range(_SOCKETS)))
        while time.monotonic() < end:
            await asyncio.sleep(1)
            under_way.append((await sample(server.address)).inflight)
    peak = server.memory("VmHWM")
    for each in open_sockets:
        each.close()
    await asyncio.sleep(1)
    async with repeating(ask, phases["after"], 0.01):
        await asyncio.sleep(4)
    for name, calls in phases.items():
        print(calls.row(name))
    slower = phases["during"].at(0.5) / max(phases["before"].at(0.5), 0.001)
    print(f"  requests under way, second by second: {' '.join(f'{each:g}' for each in under_way)}")
    print(f"  memory: {idle / _MB:.0f} MB idle, {peak / _MB:.0f} MB at most; median {slower:.1f} × that of before")
    served = phases["during"].outcomes["200"]
    held = _verdict("the other caller was served", not phases["during"].failed, "no call may fail")
    return held & _verdict("throughout", served >= seconds, f"{served} calls of at least one a second")


async def _silent(address: Address) -> socket.socket:
    """A socket that has asked for a long stream; nobody will read from it."""
    loop = asyncio.get_running_loop()
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.bind((_HOSTILE, 0))
    body = _chat("a long one", stream=True)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.host}\r\ncontent-type: application/json\r\n"
    with suppress(OSError):
        await loop.sock_connect(made, (address.host, address.port))
        await loop.sock_sendall(made, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return made


async def gzip_bomb(server: Server) -> bool:
    """An upstream whose answer is a thousand times as large as what it sends."""
    print(f"gzip bomb: an upstream answers {_BOMB_BYTES / 1e9:.2f} GB in gzip", flush=True)
    held = True
    ways: list[tuple[str, dict[str, bool]]] = [
        ("no schema", {}),
        ("schema", {"shaped": True}),
        ("streamed", {"stream": True}),
        ("streamed, schema", {"stream": True, "shaped": True}),
    ]
    await http(server.address, "POST", "/v1/chat/completions", _chat("Ada is 36", shaped=True))
    for name, way in ways:
        idle = server.memory()
        server.forget_peak()
        pings, bombed = Calls(), Calls()

        def ping() -> Awaitable[tuple[int, bytes]]:
            return http(server.address, "GET", "/healthz")

        async with repeating(ping, pings, 0.005):
            await _timed(http(server.address, "POST", "/v1/chat/completions", _chat("a bomb", **way)), bombed)
            await asyncio.sleep(0.5)
        above, stall = server.memory("VmHWM") - idle, pings.at(1) / 1000
        told = ", ".join(bombed.outcomes)
        spent = f"{above / _MB:.0f} MB above idle; longest ping {stall:.3f} s"
        print(f"  {name}: {told} after {bombed.at(1) / 1000:.2f} s; {spent}")
        held &= _verdict(f"memory, {name}", above < 150 * _MB, "under 150 MB above idle")
        held &= _verdict(f"event loop, {name}", stall < 0.5 and not pings.failed, "no ping of 0.5 s")
    return held


async def costly_schemas(server: Server) -> bool:
    """Schemas that take long to make ready or to hold an answer to, one after the other and several at a time."""
    cases = list(schemas())
    print(f"schemas: {len(cases)} that are costly, as response format, in a prompt, streamed and of a tool", flush=True)
    pings, asked, worst = Calls(), Calls(), dict[str, float]()

    def ping() -> Awaitable[tuple[int, bytes]]:
        return http(server.address, "GET", "/healthz")

    async with repeating(ping, pings, 0.002):
        for name, schema in cases:
            seen = len(pings.seconds)
            bodies = [_shaped(schema, **way) for way in _SCHEMA_WAYS]
            await asyncio.gather(
                *(_timed(http(server.address, "POST", "/v1/chat/completions", body), asked) for body in bodies)
            )
            worst[name] = max(pings.seconds[seen:], default=0.0)
        refused = Calls()
        for schema in ({"enum": ["x" * 600_000]}, {"enum": list(range(30_000))}):
            await _timed(http(server.address, "POST", "/v1/chat/completions", _shaped(schema)), refused)
    print(asked.row("asked"))
    for name in sorted(worst, key=lambda each: -worst[each])[:5]:
        print(f"  {name}: longest ping {worst[name]:.3f} s")
    held = _verdict("event loop", pings.at(1) < 500 and not pings.failed, "no ping of 0.5 s")
    return held & _verdict("limits", refused.outcomes["413"] == 2, "413 over them")


_SCHEMA_WAYS: list[dict[str, Any]] = [
    {},
    {"slipform": {"strategy": "native"}},
    {"slipform": {"strategy": "prompted"}},
    {"stream": True, "slipform": {"strategy": "native", "stream_mode": "live"}},
    {"tool": True},
]


def _shaped(schema: dict[str, Any], *, tool: bool = False, **more: Any) -> bytes:
    body: dict[str, Any] = {"model": "up/m", "messages": [{"role": "user", "content": "Ada is 36"}], **more}
    if tool:
        body["tools"] = [{"type": "function", "function": {"name": "save", "parameters": schema}}]
    else:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "costly", "schema": schema}}
    return json.dumps(body).encode()


async def costly_texts(server: Server) -> bool:
    """Answers that are costly to read, and values whose places are costly to find, one after the other."""
    names = [name for name, shape in SHAPES.items() if "\ud83d" not in shape.unit]
    print(f"texts: {len(names)} shapes of {_TEXT_BYTES:,} bytes, whole and streamed, and evidence", flush=True)
    pings, asked = Calls(), Calls()
    costs: dict[str, tuple[float, float]] = {}

    def ping() -> Awaitable[tuple[int, bytes]]:
        return http(server.address, "GET", "/healthz")

    cases = [(f"{name}{', streamed' * stream}", _text_call(name, stream)) for name in names for stream in (False, True)]
    cases.append((_EVIDENCE, _evidence_call()))
    idle = server.memory()
    server.forget_peak()
    async with repeating(ping, pings, 0.005):
        for name, body in cases:
            count, spent = len(pings.seconds), server.processor_seconds()
            await _timed(http(server.address, "POST", "/v1/chat/completions", body), asked)
            costs[name] = (server.processor_seconds() - spent, max(pings.seconds[count:], default=0.0))
    print(asked.row("asked"))
    for name in sorted(costs, key=lambda each: -costs[each][0])[:8]:
        print(f"  {name}: {costs[name][0]:.2f} s of the processor, longest ping {costs[name][1]:.3f} s")
    print(f"  memory {idle / _MB:.0f} MB → {(server.memory('VmHWM') - idle) / _MB:+.0f} MB at most")
    held = _verdict("event loop", pings.at(1) < 500 and not pings.failed, "no ping of 0.5 s")
    held &= _verdict("no internal error", not asked.outcomes["500"], "no 500")
    return held & _verdict("processor", max(cost for cost, _ in costs.values()) < 5, "under 5 s each")


def _text_call(name: str, stream: bool) -> bytes:
    return _chat(f"a shape:{name}", shaped=True, stream=stream)


def _evidence_call() -> bytes:
    schema = {"type": "array", "items": {"type": "integer"}}
    numbers = {"role": "user", "content": "1 " * 25_000}
    body = json.loads(_shaped(schema, slipform={"evidence": True}))
    body["messages"] = [numbers, {"role": "user", "content": f"a shape:{_EVIDENCE}"}]
    return json.dumps(body).encode()


async def long_names(server: Server) -> bool:
    """Names as large as bodies."""
    print(f"long names: {_NAMES} requests with model names of {_NAME_BYTES / _MB:g} MB", flush=True)
    calls, warm = Calls(), Calls()

    async def ask(number: int, kept: Calls) -> None:
        name = f"up/{number}" + "n" * _NAME_BYTES
        await _timed(http(server.address, "POST", "/v1/chat/completions", _chat("Ada", model=name)), kept)

    async def ask_all(first: int, last: int, kept: Calls) -> None:
        for start in range(first, last, 4):
            await asyncio.gather(*(ask(number, kept) for number in range(start, start + 4)))

    await ask_all(-100, 0, warm)  # bodies of this size need some memory while they are read
    idle, written = server.memory(), server.log.stat().st_size
    _, page = await http(server.address, "GET", "/metrics")
    await ask_all(0, _NAMES, calls)
    began = time.monotonic()
    _, grown = await http(server.address, "GET", "/metrics")
    took = time.monotonic() - began
    above, logged = server.memory() - idle, server.log.stat().st_size - written
    print(calls.row("asked"))
    print(
        f"  memory {idle / _MB:.0f} MB → {above / _MB:+.1f} MB; /metrics {len(page):,} → {len(grown):,} bytes "
        f"in {1000 * took:.0f} ms; {logged / _NAMES:,.0f} bytes of log a request"
    )
    held = _verdict("memory", above < 20 * _MB, "within 20 MB")
    return held & _verdict("/metrics", len(grown) < 100_000, "under 100 KB")


async def _within(seconds: float, name: str, attack: Awaitable[bool]) -> bool:
    try:
        return await asyncio.wait_for(attack, seconds)
    except TimeoutError:
        return _verdict(name, False, f"must be over in {seconds:g} s")


def main() -> int:
    """Run the attacks that the command line names, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "attacks", nargs="*", choices=["slow", "bomb", "names", "schemas", "texts", []], help="all by default"
    )
    parser.add_argument("--seconds", type=float, default=40, help="how long the slow readers stay")
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    here, there = multiprocessing.Pipe()
    chosen = given.attacks or ["slow", "bomb", "names", "schemas", "texts"]
    making = (there, "bomb" in chosen)
    upstream = multiprocessing.get_context("spawn").Process(target=_upstream, args=making, daemon=True)
    upstream.start()
    try:
        port = here.recv()
        attacks: dict[str, Callable[[Server], Awaitable[bool]]] = {
            "slow": lambda server: slow_readers(server, given.seconds), "bomb": gzip_bomb, "names": long_names,
            "schemas": costly_schemas, "texts": costly_texts,
        }  # fmt: skip
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        print(f"slipform {commit.stdout.strip()}, {os.cpu_count()} cores", flush=True)
        held = True
        for name in chosen:
            with proxied(port) as server:
                held &= asyncio.run(_within(_LONGEST, name, attacks[name](server)))
    finally:
        upstream.terminate()
        upstream.join()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
