"""Serve a scripted vendor on loopback: answers, errors, hangs and broken connections, a step per request."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from slipform.errors import ConfigError
from slipform.ir import ModelResponse, Usage
from slipform.testing.wire_formats import SHAPES, Api, VendorFormat

Ending: TypeAlias = Literal["clean", "cut", "reset", "hang"]
Gate: TypeAlias = Callable[[int], Awaitable[None]]
_SPENT = Usage(input=7, output=5, total=12)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in the vendor's own format, streamed when the request asks for it.

    `latency` is the wait before the answer's head, `pace` the wait between pieces, in seconds. `gate` is awaited before
    each piece with its number, on the vendor's own event loop. After `cut_after` pieces the connection ends in the way
    `ending` says.

    >>> Answer("hello", chunk_size=2).response.text
    'hello'
    """

    content: str | ModelResponse
    chunk_size: int = 4
    latency: float = 0.0
    pace: float = 0.0
    cut_after: int | None = None
    ending: Ending = "clean"
    headers: Mapping[str, str] = field(default_factory=dict)
    gate: Gate | None = None

    @property
    def response(self) -> ModelResponse:
        """The content as a response."""
        if isinstance(self.content, str):
            return ModelResponse(text=self.content, usage=_SPENT)
        return self.content


@dataclass(frozen=True, slots=True)
class Raw:
    """Arbitrary bytes: `pieces` are the body, sent one by one; after `cut_after` of them comes the `ending`."""

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    latency: float = 0.0
    pace: float = 0.0
    cut_after: int | None = None
    ending: Ending = "clean"
    gate: Gate | None = None
    chunked: bool = False
    """Whether the body has chunked framing; otherwise its length is announced."""
    unframed: bool = False
    """Whether the pieces are sent raw, without status and headers."""


Step: TypeAlias = str | ModelResponse | Answer | Raw


def rate_limited(*, retry_after: float | str | None = None, retry_after_ms: float | None = None) -> Raw:
    """Return a 429, with the wait in the given header."""
    headers = {"content-type": "application/json"}
    if retry_after is not None:
        headers["retry-after"] = f"{retry_after:g}" if isinstance(retry_after, float) else str(retry_after)
    if retry_after_ms is not None:
        headers["retry-after-ms"] = f"{retry_after_ms:g}"
    return Raw((_error("Rate limit reached", "rate_limit_exceeded"),), 429, headers)


def server_error(status: int = 500, message: str = "The server had an error") -> Raw:
    """Return a server error of the vendor: 500, 502, 503, 529 and the like."""
    return Raw((_error(message, "server_error"),), status, {"content-type": "application/json"})


def rejected(message: str, status: int = 400, code: str = "invalid_request_error") -> Raw:
    """Return a refusal of the request, with the vendor's own error message."""
    return Raw((_error(message, code),), status, {"content-type": "application/json"})


def hang() -> Raw:
    """Return a response that never arrives; the connection stays open."""
    return Raw(ending="hang", unframed=True)


def reset() -> Raw:
    """Return a step that resets the connection instead of answering."""
    return Raw(ending="reset", unframed=True)


def hang_up() -> Raw:
    """Return a step that closes the connection cleanly instead of answering."""
    return Raw(ending="cut", unframed=True)


def garbage(data: bytes = b"\x00\xff<<not http>>\r\n\r\n") -> Raw:
    """Return bytes that are not HTTP."""
    return Raw((data,), ending="cut", unframed=True)


def garbage_body(data: bytes = b"<html>Bad gateway</html>", status: int = 200) -> Raw:
    """Return valid HTTP with a body that is not an answer."""
    return Raw((data,), status, {"content-type": "text/html"})


def refusal(text: str = "I can't help with that.") -> Answer:
    """Return a refusal of the model."""
    return Answer(ModelResponse(refusal=text, usage=_SPENT))


def truncated(text: str) -> Answer:
    """Return an answer that stops at a token limit."""
    return Answer(ModelResponse(text=text, finish="length", usage=_SPENT))


def trickle(text: str, pace: float) -> Answer:
    """Return an answer that is sent one character at a time."""
    return Answer(text, chunk_size=1, pace=pace)


def cut_stream(text: str, after: int, ending: Ending = "cut") -> Answer:
    """Return an answer whose connection ends after a number of pieces."""
    return Answer(text, cut_after=after, ending=ending)


def _error(message: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": code, "param": None, "code": code}}).encode()


_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests", 500: "Internal Server Error"}


@dataclass(slots=True)
class Received:
    """A request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    """The number of its connection, counted from 1."""
    answered: bool = field(default=False)
    """Whether the whole step of the script was sent."""
    aborted: bool = field(default=False)
    """Whether the client disconnected before that."""

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


class FakeVendor:
    """A vendor that follows a script, on a free port of the loopback address.

    Each request takes the next step of the script; the last step also serves all that come after. A step is a text (an
    answer), a `ModelResponse`, an `Answer` or a `Raw`; a function from `Received` to a step can replace the list.

    >>> with FakeVendor(["Hello"]) as vendor:
    ...     vendor.base_url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, script: Sequence[Step] | Callable[[Received], Step], *, api: Api = "openai") -> None:
        if not callable(script) and not script:
            raise ConfigError("A fake vendor needs a script of at least one step")
        self._script = script if callable(script) else list(script)
        self._shape = SHAPES[api]
        self.requests: list[Received] = []
        """All requests, in order."""
        self.connections_made = 0
        """The number of connections so far."""
        self._open: set[_Peer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """Return the base URL for a client of this API."""
        return f"http://127.0.0.1:{self._port}{self._shape.prefix}"

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def wait_until(self, condition: Callable[[FakeVendor], bool], timeout: float = 5.0) -> bool:
        """Wait until a condition is true; return False after a timeout."""
        end = time.monotonic() + timeout
        while not condition(self):
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def hang_up(self) -> None:
        """Close the server and its connections."""
        if self._loop is not None:
            for peer in list(self._open):
                self._loop.call_soon_threadsafe(peer.abort)
            self.wait_until(lambda vendor: vendor.open_connections == 0)

    def __enter__(self) -> Self:
        started = threading.Event()
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(loop, started), name="fake-vendor", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop, started: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(loop.create_server(lambda: _Peer(self, loop), "127.0.0.1", 0, backlog=1024))
        self._port = server.sockets[0].getsockname()[1]
        started.set()
        try:
            loop.run_forever()
        finally:
            for listening in server.sockets:  # a closed server does not know a connection that it is just accepting
                loop.remove_reader(listening.fileno())
            loop.run_until_complete(_finish(self._open))
            server.close()
            loop.close()

    def _next(self, received: Received) -> Raw:
        self.requests.append(received)
        if callable(self._script):
            step = self._script(received)
        else:
            step = self._script[min(len(self.requests), len(self._script)) - 1]
        return _encode_step(step, received, self._shape)


async def _finish(peers: AbstractSet[_Peer]) -> None:
    """Close all connections and end all tasks, including a connection that was accepted during shutdown."""
    this = asyncio.current_task()
    while peers or len(asyncio.all_tasks()) > 1:
        for peer in list(peers):
            peer.abort()
        await asyncio.sleep(0)
        tasks = [task for task in asyncio.all_tasks() if task is not this]
        if tasks:
            await asyncio.wait(tasks, timeout=0.1)


def _encode_step(step: Step, received: Received, shape: VendorFormat) -> Raw:
    """Return a step of the script as a response, streamed where the request asks for that."""
    if isinstance(step, Raw):
        return step
    answer = step if isinstance(step, Answer) else Answer(step)
    try:
        body = received.json()
    except ValueError:
        body = {}
    if shape.streamed(received.path, body if isinstance(body, dict) else {}):
        pieces = tuple(shape.events(answer.response, answer.chunk_size))
        kind = shape.content_type
        chunked = True
    else:
        whole = json.dumps(shape.whole(answer.response)).encode()
        # Paced or cut, even a whole answer is sent in pieces.
        size = max(1, len(whole) // 8) if answer.pace or answer.cut_after is not None else len(whole)
        pieces = tuple(whole[start : start + size] for start in range(0, len(whole), size))
        kind = "application/json"
        chunked = False
    return Raw(
        pieces=pieces,
        headers={"content-type": kind, "x-request-id": "req_fake", **answer.headers},
        latency=answer.latency,
        pace=answer.pace,
        cut_after=answer.cut_after,
        ending=answer.ending,
        gate=answer.gate,
        chunked=chunked,
    )


class _Peer(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, vendor: FakeVendor, loop: asyncio.AbstractEventLoop) -> None:
        self._vendor = vendor
        self._loop = loop
        self._buffer = b""
        self._number = 0
        self._transport: asyncio.Transport | None = None
        self._current: Received | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
        self._vendor.connections_made += 1
        self._number = self._vendor.connections_made
        self._vendor._open.add(self)  # noqa: SLF001 — a peer is a part of its vendor

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 — the protocol's signature
        if self._current is not None and not self._current.answered:
            self._current.aborted = True
        if self.task is not None:
            self.task.cancel()
        self._vendor._open.discard(self)  # noqa: SLF001

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _read(self) -> None:
        if self.task is not None:
            return
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, path, _ = first.split(" ", 2)
        received = self._current = Received(method, path, headers, rest[:length], self._number)
        step = self._vendor._next(received)  # noqa: SLF001
        self.task = self._loop.create_task(self._play(step, received))

    async def _play(self, step: Raw, received: Received) -> None:
        """Write a response as its step defines: paced, cut off, hanging or unframed."""
        if step.latency:
            await asyncio.sleep(step.latency)
        if not step.unframed:
            self._write(_head(step))
        sent = step.pieces if step.cut_after is None else step.pieces[: step.cut_after]
        for index, piece in enumerate(sent):
            if index and step.pace:
                await asyncio.sleep(step.pace)
            if step.gate is not None:
                await step.gate(index)
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if step.chunked else piece)
        if step.ending == "hang":
            await self._loop.create_future()
        received.answered = True
        if step.ending == "clean" and step.cut_after is None:
            if step.chunked:
                self._write(b"0\r\n\r\n")
            self.task = None
            self._read()
        else:
            self._end(step)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _end(self, step: Raw) -> None:
        if self._transport is None:
            return
        if step.ending == "reset":
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()


def _head(step: Raw) -> bytes:
    headers = dict(step.headers)
    if step.chunked:
        headers["transfer-encoding"] = "chunked"
    else:
        headers["content-length"] = str(sum(len(piece) for piece in step.pieces))
    lines = [f"HTTP/1.1 {step.status} {_REASONS.get(step.status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
