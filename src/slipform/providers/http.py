"""`HttpProvider`: a vendor over HTTP, blocking and async, over one implementation (`calls.py`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, closing
from typing import Self

from slipform.codecs.base import Capabilities
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.providers import calls
from slipform.providers.calls import Effect, Emit, Finish, Open, Read, Steps
from slipform.providers.catalog import Vendor, load_catalog
from slipform.providers.codecs_by_name import CodecFactory, codec_factory
from slipform.providers.endpoint import Endpoint
from slipform.providers.lessons import LessonStore, MemoryLessons
from slipform.providers.retry import Retries
from slipform.providers.secrets import Secret
from slipform.providers.sockets import SocketTransport
from slipform.providers.transport import AsyncByteStream, ByteStream, Timeouts, Transport, TransportFault


class HttpProvider:
    """One vendor of the catalogue, ready to answer.

    `vendor` is a name of slipform's own catalogue or a row from `load_catalog`. The key is read from the environment at
    each call unless `api_key` gives one. `settings` fill the blanks of the base URL (resource, region, project…).

    ::

        with HttpProvider("openai") as provider:
            provider.complete(ModelRequest("gpt-6-luna", (Message.user("Hello"),))).text
    """

    def __init__(
        self,
        vendor: str | Vendor,
        *,
        name: str | None = None,
        base_url: str | None = None,
        api_key: str | Secret | None = None,
        headers: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        transport: Transport | None = None,
        lessons: LessonStore | None = None,
        codec: CodecFactory | None = None,
    ) -> None:
        row = load_catalog().vendor(vendor) if isinstance(vendor, str) else vendor
        self.name = name or row.name
        self._endpoint = Endpoint(
            vendor=row,
            make_codec=codec or codec_factory(row.codec),
            store=lessons if lessons is not None else MemoryLessons(),
            name=self.name,
            base_url=base_url,
            api_key=Secret(api_key) if isinstance(api_key, str) else api_key,
            headers=dict(headers or {}),
            settings=dict(settings or {}),
            timeouts=timeouts or Timeouts(),
            retries=retries or Retries(),
        )
        self._transport: Transport = transport or SocketTransport()

    def __repr__(self) -> str:
        return f"HttpProvider({self.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """Where it calls."""
        return self._endpoint.url()

    def capabilities(self, model: str) -> Capabilities:
        """What this model can do here: the catalogue's word, less what was learned from refusals."""
        return self._endpoint.capabilities(model)

    def models(self) -> list[str]:
        """The models its row lists; empty when any name goes."""
        return list(self._endpoint.vendor.models)

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        with closing(_drive(self._transport, calls.answer(self._endpoint, request))) as effects:
            return _response(next(effects))

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Answer piece by piece, blocking; closing the iterator closes the connection."""
        with closing(_drive(self._transport, calls.stream(self._endpoint, request))) as effects:
            for effect in effects:
                if isinstance(effect, Emit):
                    yield from effect.chunks

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        """Answer; cancelling closes the connection."""
        async with aclosing(_drive_async(self._transport, calls.answer(self._endpoint, request))) as effects:
            return _response(await anext(effects))

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer piece by piece; closing the iterator, or cancelling, closes the connection."""
        async with aclosing(_drive_async(self._transport, calls.stream(self._endpoint, request))) as effects:
            async for effect in effects:
                if isinstance(effect, Emit):
                    for chunk in effect.chunks:
                        yield chunk

    def close(self) -> None:
        """Let go of pooled connections."""
        self._transport.close()


def _response(effect: Effect) -> ModelResponse:
    if not isinstance(effect, Finish):
        raise TypeError(f"Expected the end of the call, found {effect!r}")
    return effect.response


def _drive(transport: Transport, steps: Steps) -> Generator[Emit | Finish, None, None]:
    """Do what the steps ask, blocking; what is meant for the caller is passed on."""
    stream: ByteStream | None = None
    reply: object = None
    try:
        effect = next(steps)
        while True:
            try:
                if isinstance(effect, Read):
                    reply = stream.read() if stream is not None else b""
                elif isinstance(effect, Emit | Finish):
                    reply = yield effect
                elif isinstance(effect, Open):
                    if stream is not None:
                        stream.close()
                    reply = stream = transport.open(effect.request)
                else:
                    time.sleep(effect.seconds)
                    reply = None
            except TransportFault as fault:
                effect = steps.throw(fault)
            else:
                effect = steps.send(reply)
    except StopIteration:
        return
    finally:
        if stream is not None:
            stream.close()


async def _drive_async(transport: Transport, steps: Steps) -> AsyncGenerator[Emit | Finish, None]:
    """Do what the steps ask, without blocking; what is meant for the caller is passed on."""
    stream: AsyncByteStream | None = None
    reply: object = None
    try:
        effect = next(steps)
        while True:
            try:
                if isinstance(effect, Read):
                    reply = await stream.read() if stream is not None else b""
                elif isinstance(effect, Emit | Finish):
                    reply = yield effect
                elif isinstance(effect, Open):
                    if stream is not None:
                        await stream.close()
                    reply = stream = await transport.open_async(effect.request)
                else:
                    await asyncio.sleep(effect.seconds)
                    reply = None
            except TransportFault as fault:
                effect = steps.throw(fault)
            else:
                effect = steps.send(reply)
    except StopIteration:
        return
    finally:
        if stream is not None:
            await stream.close()
