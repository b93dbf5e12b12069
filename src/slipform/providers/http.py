"""Call vendors over HTTP: `HttpProvider`, with a driver for event loops and one for threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self

from slipform.codecs import BoundCodec, Capabilities, find_codec
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.request import CallCount, is_heavy
from slipform.ir.response import ChunkSink, PassThroughSink
from slipform.prices import BATCH_TIER
from slipform.providers import call
from slipform.providers.auth import Secret, from_environment
from slipform.providers.call import (
    CallSteps,
    ChunkFeeder,
    Effect,
    FetchEffect,
    FinishEffect,
    FirstTry,
    OpenEffect,
    ReadEffect,
    SleepEffect,
)
from slipform.providers.catalog import Vendor, load_catalog
from slipform.providers.concurrency import off_loop
from slipform.providers.endpoint import Endpoint, PreparedCall, Version
from slipform.providers.forward import Forwarded, Route, open_forward, route_of
from slipform.providers.masking import mask_whole, masked, masked_async
from slipform.providers.network.async_connection import ResponseStream
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import (
    AsyncByteStream,
    ByteStream,
    HttpRequest,
    Timeouts,
    Transport,
    TransportFault,
    Upload,
)
from slipform.providers.retry import DowngradeStore, MemoryDowngrades, RetryPolicy
from slipform.schema import ResponseFormat


def answered(steps: CallSteps, transport: Transport) -> ModelResponse:
    """Do what the steps of a whole answer ask for, and give the answer; blocking."""
    wire = BlockingDriver(transport)
    try:
        effect = next(steps)
        while not isinstance(effect, FinishEffect):
            effect = wire.step(steps, effect)
        return effect.response
    finally:
        wire.close()


async def answered_async(
    endpoint: Endpoint,
    request: ModelRequest,
    transport: Transport,
    prepared: PreparedCall | None = None,
    *,
    heavy: bool = False,
) -> ModelResponse:
    """The whole answer, on the event loop; cancelling closes the connection.

    Nearly every call ends with its first try, `prepared` where its frame has it. Where that fails, the steps of
    `call.answer` begin with it and continue with retries and downgrades. `heavy` says that the steps themselves, which
    encode and decode, take long.
    """
    wire = AsyncDriver(transport, heavy=heavy)
    try:
        if heavy:
            steps = call.answer(endpoint, request)
            effect = await off_loop(next, steps)
        else:
            began = endpoint.clock()
            if prepared is None:
                prepared = endpoint.prepare(request, streamed=False)
            reply: tuple[AsyncByteStream, bytes] | TransportFault
            words = prepared.authorised.words
            try:
                wire.stream = raw = await transport.open_async(prepared.http(prepared.timeouts))
                reply = wire.received(raw, words) or await wire.read_whole(raw, words)
            except TransportFault as fault:
                reply = fault
            else:
                if 200 <= raw.status < 300:
                    return call.read_answer(endpoint, request, prepared, raw.headers, reply[1])
            steps = call.answer(endpoint, request.replace(model=prepared.model), FirstTry(prepared, began))
            next(steps)
            effect = steps.throw(reply) if isinstance(reply, TransportFault) else steps.send(reply)
        while not isinstance(effect, FinishEffect):
            effect = await wire.step(steps, effect)
        return effect.response
    finally:
        if wire.stream is not None:
            await wire.stream.close()


class BlockingDriver:
    """Does what the steps of one call ask for, blocking."""

    __slots__ = ("_stream", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stream: ByteStream | None = None

    def step(self, steps: CallSteps, effect: Effect) -> Effect:
        """Do this, and come back with what is to be done next."""
        reply: object = None
        try:
            if isinstance(effect, FetchEffect):
                self.close()
                self._stream = raw = self._transport.open(effect.request)
                if 200 <= raw.status < 300:
                    parts: list[bytes] = []
                    while data := raw.read():
                        parts.append(data)
                    reply = (raw, mask_whole(b"".join(parts), effect.words))
                else:
                    self._stream = masked(raw, effect.words)
                    reply = (self._stream, b"")
            elif isinstance(effect, ReadEffect):
                reply = self._stream.read() if self._stream is not None else b""
            elif isinstance(effect, OpenEffect):
                self.close()
                reply = self._stream = masked(self._transport.open(effect.request), effect.words)
            elif isinstance(effect, SleepEffect):
                time.sleep(effect.seconds)
        except TransportFault as fault:
            return steps.throw(fault)
        return steps.send(reply)

    def close(self) -> None:
        """Release the connection, closing it when the answer was not read to its end."""
        if self._stream is not None:
            self._stream.close()


class AsyncDriver:
    """Does what the steps of one call ask for, on the event loop."""

    __slots__ = ("_heavy", "_rest", "_transport", "stream")

    def __init__(self, transport: Transport, *, heavy: bool = False) -> None:
        self._transport = transport
        self._heavy = heavy
        self._rest = b""
        """Bytes of the answer that are to be fed before those that arrive."""
        self.stream: AsyncByteStream | None = None

    async def fetch(
        self, request: HttpRequest, words: tuple[bytes, ...]
    ) -> tuple[AsyncByteStream, bytes] | TransportFault:
        """Send this: the answer's head and, where its status is a success, its whole body; or the network's fault."""
        try:
            self.stream = raw = await self._transport.open_async(request)
            return self.received(raw, words) or await self.read_whole(raw, words)
        except TransportFault as fault:
            return fault

    def received(self, raw: AsyncByteStream, words: tuple[bytes, ...]) -> tuple[AsyncByteStream, bytes] | None:
        """Return the head and the body as far as it is wanted; None where that has not arrived."""
        if not 200 <= raw.status < 300:
            self.stream = masked_async(raw, words)
            return self.stream, b""
        body = raw.take_whole() if isinstance(raw, ResponseStream) else None
        if body is None:
            return None
        self.stream = None  # it has ended, and its connection is idle again
        return raw, mask_whole(body, words)

    async def read_whole(self, raw: AsyncByteStream, words: tuple[bytes, ...]) -> tuple[AsyncByteStream, bytes]:
        """Return the head and the whole body, of which nothing was read."""
        parts: list[bytes] = []
        while data := await raw.read():
            parts.append(data)
        return raw, mask_whole(b"".join(parts), words)

    async def step(self, steps: CallSteps, effect: Effect) -> Effect:
        """Do this, and come back with what is to be done next."""
        reply: object = None
        try:
            if isinstance(effect, FetchEffect):
                await self.close()
                reply = await self.fetch(effect.request, effect.words)
                if isinstance(reply, TransportFault):
                    return steps.throw(reply)
            elif isinstance(effect, ReadEffect):
                reply = await self.stream.read() if self.stream is not None else b""
            elif isinstance(effect, OpenEffect):
                await self.close()
                reply = self.stream = masked_async(await self._transport.open_async(effect.request), effect.words)
            elif isinstance(effect, SleepEffect):
                await asyncio.sleep(effect.seconds)
        except TransportFault as fault:
            return steps.throw(fault)
        if self._heavy:
            return await off_loop(steps.send, reply)
        return steps.send(reply)

    async def follow(
        self, steps: CallSteps, read: ReadEffect, sink: ChunkSink
    ) -> tuple[Effect, Sequence[CompletionChunk] | None]:
        """Read until the steps want something else or the sink leaves something of their chunks; gives both."""
        decoder = ChunkFeeder(steps, read, sink)
        rest = self._rest
        try:
            if self.stream is not None and (not rest or decoder.feed(rest)):
                await self.stream.on_body(decoder.feed)
        except TransportFault as fault:
            decoder.effect = steps.throw(fault)
        self._rest = decoder.rest
        return decoder.effect, decoder.left

    async def close(self) -> None:
        """Release the connection, closing it when the answer was not read to its end."""
        if self.stream is not None:
            await self.stream.close()


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
        retries: RetryPolicy | None = None,
        transport: Transport | None = None,
        downgrades: DowngradeStore | None = None,
        codec: Callable[[Capabilities], BoundCodec] | None = None,
    ) -> None:
        row = load_catalog().vendor(vendor) if isinstance(vendor, str) else vendor
        self.name = name or row.name
        self._endpoint = Endpoint(
            vendor=row,
            make_codec=codec or partial(BoundCodec, find_codec(row.codec)),
            store=downgrades if downgrades is not None else MemoryDowngrades(),
            name=self.name,
            base_url=base_url,
            api_key=Secret(api_key) if isinstance(api_key, str) else api_key,
            headers=headers,
            settings=settings,
            timeouts=timeouts,
            retries=retries,
        )
        self.transport: Transport = transport or HttpTransport()
        """What sends its requests."""
        self._routes: dict[tuple[str, bool], Route | None] = {}

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

    @property
    def price_list(self) -> str:
        """Its id in the list of prices that ships with slipform; empty where that has none."""
        return self._endpoint.vendor.price_list

    @property
    def version(self) -> Version | None:
        """What changes when calls are to be planned again; None where that is unknown."""
        return self._endpoint.version

    @property
    def downgrades(self) -> DowngradeStore:
        """Capabilities that the vendor refused, and that calls do without."""
        return self._endpoint.store

    @property
    def has_key(self) -> bool | None:
        """Whether there is a key to call with; None where the vendor wants none."""
        endpoint = self._endpoint
        vendor = self._endpoint.vendor
        if endpoint.key() is not None or endpoint.secrets:
            return True
        if vendor.auth == "sigv4" and from_environment(["AWS_ACCESS_KEY_ID"]) is not None:
            return True
        if endpoint.cloud is not None and endpoint.cloud.is_installed:
            return None  # it is not known before the first call
        if vendor.auth == "none" or vendor.key != "required":
            return None
        return False

    @property
    def timeouts(self) -> Timeouts:
        """How long it waits."""
        return self._endpoint.timeouts

    def capabilities(self, model: str) -> Capabilities:
        """Return what this model can do here: the catalogue's entry, less its downgrades."""
        return self._endpoint.capabilities(model)

    def capabilities_for(self, request: ModelRequest) -> Capabilities:
        """The same for one request: `auto` takes the next channel where this one cannot carry its schema."""
        return self._endpoint.capabilities_for(request)

    def codec_for(self, model: str, response_format: ResponseFormat | None) -> BoundCodec:
        """Return the codec for this model and this shape, after the downgrades of both."""
        return self._endpoint.codec_for(model, response_format)

    @property
    def api(self) -> str:
        """The API it speaks, by the name of its codec."""
        return self._endpoint.vendor.codec

    def route(self, model: str, *, streamed: bool) -> Route | None:
        """Where a caller's own body for this model can be sent unchanged; None where it has to be spelled anew."""
        return route_of(self._endpoint, self._routes, model, streamed=streamed)

    def forward_async(
        self, route: Route, body: bytes | Upload, headers: Mapping[str, str], calls: CallCount | None = None
    ) -> Coroutine[Any, Any, Forwarded]:
        """Send a body as it is, under this provider's own key; the answer comes back unread, errors included."""
        return open_forward(self._endpoint, self.transport, route, body, headers, calls)

    @property
    def batch_api(self) -> str:
        """The name of its batch API; empty where slipform knows none."""
        return self._endpoint.vendor.batch

    def batch_downgrades(self, request: ModelRequest) -> frozenset[str]:
        """What requests like this one do without now."""
        return self._endpoint.bind(request.model, request.response_format).downgrades

    def prepare_batched(self, request: ModelRequest, downgrades: frozenset[str] | None = None) -> PreparedCall:
        """Encode a request for a batch; with these downgrades, those of now by default."""
        return self._endpoint.prepare_batched(request, downgrades)

    def read_batched(self, request: ModelRequest, prepared: PreparedCall, answer: bytes) -> ModelResponse:
        """Decode an answer from a batch, which has the price of a batch; raises what is wrong with it."""
        response = call.read_answer(self._endpoint, request, prepared, {}, answer)
        return response.replace(usage=response.usage.replace(service_tier=BATCH_TIER))

    def downgrade_batched(self, error: UpstreamError, request: ModelRequest, prepared: PreparedCall) -> bool:
        """Record what the vendor refused of a request of a batch; True when it is worth another batch without that."""
        return self._endpoint.downgrade_after(error, request, prepared)

    def models(self) -> list[str]:
        """The models its row lists; empty when any name goes."""
        return list(self._endpoint.vendor.models)

    def serves(self, model: str) -> bool:
        """Whether its row lists the model, or any name goes."""
        listed = self._endpoint.vendor.models
        return not listed or model in listed

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        return answered(call.answer(self._endpoint, request), self.transport)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Answer piece by piece, blocking; closing the iterator closes the connection."""
        steps = call.stream(self._endpoint, request)
        wire = BlockingDriver(self.transport)
        try:
            effect = next(steps)
            while not isinstance(effect, FinishEffect):
                if isinstance(effect, ReadEffect):
                    yield from effect.chunks
                effect = wire.step(steps, effect)
            yield from effect.chunks
        finally:
            wire.close()

    def _is_heavy(self, request: ModelRequest) -> bool:
        """Whether it takes long to prepare the request: it waits for credentials, or has large schemas that are new."""
        if self._endpoint.waits_for_credentials:
            return True
        if not is_heavy(request):
            return False
        codec = self._endpoint.codec_for(request.model, request.response_format)
        frame = request.frame
        return frame is None or frame.find(codec) is None

    def complete_async(self, request: ModelRequest, model: str = "") -> Coroutine[Any, Any, ModelResponse]:
        """Answer; cancelling closes the connection. `model` is its name here, where the request has another."""
        endpoint = self._endpoint
        prepared = endpoint.find_prepared(request, model or request.model, streamed=False)
        if prepared is not None:
            return answered_async(endpoint, request, self.transport, prepared)
        if model:
            request = request.replace(model=model)
        return answered_async(endpoint, request, self.transport, heavy=self._is_heavy(request))

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer piece by piece; closing the iterator, or cancelling, closes the connection."""
        async with aclosing(self.batches_async(request, PassThroughSink())) as batches:
            async for batch in batches:
                for chunk in batch:
                    yield chunk

    async def batches_async(
        self, request: ModelRequest, sink: ChunkSink
    ) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """`stream_async` into a sink, which gets the chunks that arrived together as soon as they have."""
        steps = call.stream(self._endpoint, request)
        heavy = self._is_heavy(request)
        wire = AsyncDriver(self.transport, heavy=heavy)
        try:
            effect = await off_loop(next, steps) if heavy else next(steps)
            while not isinstance(effect, FinishEffect):
                if not isinstance(effect, ReadEffect):
                    effect = await wire.step(steps, effect)
                    continue
                effect, left = await wire.follow(steps, effect, sink)
                if left is not None:
                    yield left
            if effect.chunks and (left := sink.push(effect.chunks)) is not None:
                yield left
        finally:
            await wire.close()

    def warm(self) -> None:
        """Nothing to wait for: connections are made by the first call and kept."""

    def close(self) -> None:
        """Close pooled connections."""
        self.transport.close()
