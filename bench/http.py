"""Measure the CPU of a call: of `HttpProvider`, of the plain clients below it, and of common ones beside it.

All of them ask the same canned server, in a process of its own, for the same answer. Run: `python -m bench.http`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import orjson

from slipform.codecs import Capabilities, EncodedRequest
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import HttpRequest
from slipform.testing.wire_formats import SHAPES

TEXT = '{"name": "Ada Lovelace", "age": 36, "born": "1815-12-10"}' * 4
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Who was Ada Lovelace? " * 20}]})
STREAM_BODY = BODY[:-1] + b',"stream":true}'
HEADERS = {"content-type": "application/json", "authorization": "Bearer x"}
REQUEST = ModelRequest("m", (Message.user("hi"),))
Call = Callable[[], Awaitable[object]]


def serve() -> None:
    """The canned server: a whole answer, or a stream of about sixty pieces when asked for one."""
    response = ModelResponse(text=TEXT)
    whole = orjson.dumps(SHAPES["openai"].whole(response))
    json_answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole) + whole
    )
    events = [b"%x\r\n%b\r\n" % (len(e), e) for e in SHAPES["openai"].events(response, 4)] + [b"0\r\n\r\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    class Canned(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            self.buffer = b""

        def data_received(self, data: bytes) -> None:
            self.buffer += data
            head_end = self.buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            lines = self.buffer[:head_end].lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            if len(self.buffer) < head_end + 4 + length:
                return
            streamed = b'"stream":true' in self.buffer
            self.buffer = b""
            if not streamed:
                self.transport.write(json_answer)  # type: ignore[attr-defined]
                return
            self.transport.write(head)  # type: ignore[attr-defined]
            for event in events:
                self.transport.write(event)  # type: ignore[attr-defined]

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


class PlainCodec:
    """As little as a codec can do, so that the network's part is what is measured."""

    name = "plain"

    def __init__(self, capabilities: Capabilities) -> None:
        self.strategy = capabilities.auto_strategy

    def encode_request(self, request: ModelRequest, *, stream: bool) -> EncodedRequest:  # noqa: ARG002
        """The canned request."""
        return EncodedRequest("/chat/completions", STREAM_BODY if stream else BODY)

    def decode_response(self, body: bytes, encoded: EncodedRequest) -> ModelResponse:  # noqa: ARG002
        """The text."""
        return ModelResponse(text=orjson.loads(body)["choices"][0]["message"]["content"])

    def decode_stream(self, encoded: EncodedRequest) -> _Events:  # noqa: ARG002
        """A reader of events."""
        return _Events()

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:  # noqa: ARG002
        """Any error."""
        return UpstreamError(f"status {status}")


class _Events:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Sequence[CompletionChunk]:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        chunks = []
        for event in events:
            if event != b"data: [DONE]":
                choices = orjson.loads(event[6:])["choices"]
                chunks.append(CompletionChunk(text=choices[0]["delta"].get("content") or "" if choices else ""))
        return chunks

    def finish(self) -> Sequence[CompletionChunk]:
        return ()


async def measure(call: Call, calls: int, workers: int, passes: int) -> float:
    """Microseconds of CPU per call, the best of a few passes."""
    await asyncio.gather(*(call() for _ in range(workers)))
    best = float("inf")
    for _ in range(passes):

        async def work() -> None:
            for _ in range(calls // workers):
                await call()

        start = time.process_time()
        await asyncio.gather(*(work() for _ in range(workers)))
        best = min(best, (time.process_time() - start) / (calls // workers * workers))
    return best * 1e6


async def callers(url: str) -> AsyncIterator[tuple[str, int, Call, Call]]:
    """Each client with a whole call and a streamed one; the number is how much dearer it is, to keep the run short."""
    transport = HttpTransport()
    yield "HttpTransport", 1, _bare(transport, url, BODY), _bare(transport, url, STREAM_BODY)
    provider = HttpProvider("openai", base_url=url, api_key="x", codec=PlainCodec, transport=transport)
    yield "HttpProvider", 1, lambda: provider.complete_async(REQUEST), _streamed(provider)
    provider.close()
    if importlib.util.find_spec("pyreqwest"):
        yield "pyreqwest", 1, *_pyreqwest(url)
    for module in ("httpx2", "httpx", "aiohttp", "openai"):
        if importlib.util.find_spec(module):
            async with _OTHERS[module](url) as pair:
                yield module, 8 if module != "aiohttp" else 2, *pair


def _bare(transport: HttpTransport, url: str, body: bytes) -> Call:
    request = HttpRequest(f"{url}/chat/completions", HEADERS, body)

    async def call() -> bytes:
        stream = await transport.open_async(request)
        parts = []
        while data := await stream.read():
            parts.append(data)
        return b"".join(parts)

    return call


def _streamed(provider: HttpProvider) -> Call:
    async def call() -> int:
        return len([chunk async for chunk in provider.stream_async(REQUEST)])

    return call


def _pyreqwest(url: str) -> tuple[Call, Call]:
    from pyreqwest.client import ClientBuilder

    client = ClientBuilder().build()
    address = f"{url}/chat/completions"

    async def whole() -> object:
        response = await client.post(address).headers(HEADERS).body_bytes(BODY).build().send()
        return orjson.loads(bytes(await response.bytes()))

    async def streamed() -> object:
        built = client.post(address).headers(HEADERS).body_bytes(STREAM_BODY).streamed_read_buffer_limit(0)
        decoder, chunks = _Events(), 0
        async with built.build_streamed() as response:
            while (data := await response.body_reader.read_chunk()) is not None:
                chunks += len(decoder.feed(bytes(data)))
        return chunks

    return whole, streamed


def _httpx_like(module: str) -> Callable[[str], contextlib.AbstractAsyncContextManager[tuple[Call, Call]]]:
    @contextlib.asynccontextmanager
    async def make(url: str) -> AsyncIterator[tuple[Call, Call]]:
        library = importlib.import_module(module)
        address = f"{url}/chat/completions"
        async with library.AsyncClient() as client:

            async def whole() -> object:
                return orjson.loads((await client.post(address, headers=HEADERS, content=BODY)).content)

            async def streamed() -> object:
                decoder, chunks = _Events(), 0
                async with client.stream("POST", address, headers=HEADERS, content=STREAM_BODY) as response:
                    async for data in response.aiter_bytes():
                        chunks += len(decoder.feed(data))
                return chunks

            yield whole, streamed

    return make


@contextlib.asynccontextmanager
async def _aiohttp(url: str) -> AsyncIterator[tuple[Call, Call]]:
    import aiohttp

    address = f"{url}/chat/completions"
    async with aiohttp.ClientSession() as client:

        async def whole() -> object:
            async with client.post(address, headers=HEADERS, data=BODY) as response:
                return orjson.loads(await response.read())

        async def streamed() -> object:
            decoder, chunks = _Events(), 0
            async with client.post(address, headers=HEADERS, data=STREAM_BODY) as response:
                async for data in response.content.iter_any():
                    chunks += len(decoder.feed(data))
            return chunks

        yield whole, streamed


@contextlib.asynccontextmanager
async def _openai(url: str) -> AsyncIterator[tuple[Call, Call]]:
    import openai

    messages = orjson.loads(BODY)["messages"]
    async with openai.AsyncOpenAI(base_url=url, api_key="x") as client:

        async def whole() -> object:
            return await client.chat.completions.create(model="m", messages=messages)

        async def streamed() -> object:
            return [c async for c in await client.chat.completions.create(model="m", messages=messages, stream=True)]

        yield whole, streamed


_OTHERS: Mapping[str, Callable[[str], contextlib.AbstractAsyncContextManager[tuple[Call, Call]]]] = {
    "httpx2": _httpx_like("httpx2"),
    "httpx": _httpx_like("httpx"),
    "aiohttp": _aiohttp,
    "openai": _openai,
}


async def run(url: str, calls: int, workers: int, passes: int) -> None:
    rows = []
    async for name, dearer, whole, streamed in callers(url):
        each = max(workers, calls // dearer)
        rows.append(
            (name, await measure(whole, each, workers, passes), await measure(streamed, each // 4, workers, passes))
        )
    base = next(row for row in rows if row[0].startswith("HttpProvider over sockets"))
    print(f"{workers} at a time, CPU µs, best of {passes}; × is against HttpProvider over sockets")
    print(f"{'':28} {'whole':>8} {'×':>6} {'stream':>8} {'×':>6}")
    for name, whole_us, stream_us in rows:
        print(f"{name:28} {whole_us:8.0f} {whole_us / base[1]:6.2f} {stream_us:8.0f} {stream_us / base[2]:6.2f}")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--serve", action="store_true")
    options.add_argument("--calls", type=int, default=2000)
    options.add_argument("--workers", type=int, default=16)
    options.add_argument("--passes", type=int, default=3)
    given = options.parse_args()
    if given.serve:
        serve()
        return
    server = subprocess.Popen([sys.executable, "-m", "bench.http", "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        port = server.stdout.readline().strip() if server.stdout else ""
        for workers in dict.fromkeys((1, given.workers)):
            asyncio.run(run(f"http://127.0.0.1:{port}/v1", given.calls, workers, given.passes))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
