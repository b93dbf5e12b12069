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


def complete_call(steps: CallSteps, transport: Transport) -> ModelResponse:
    """Perform the steps of a whole answer, blocking, and return the answer."""
    wire = BlockingDriver(transport)
    try:
        effect = next(steps)
        while not isinstance(effect, FinishEffect):
            effect = wire.perform(steps, effect)
        return effect.response
    finally:
        wire.close()


async def complete_call_async(
    endpoint: Endpoint, request: ModelRequest, transport: Transport, prepared: PreparedCall | None = None
) -> ModelResponse:
    """Return the whole answer, on the event loop; cancelling closes the connection.

    Nearly every call ends with its first attempt, `prepared` if its frame has a template, whose body arrives with its
    head. If it does not, the steps of `call.answer` begin with that attempt and continue with retries and downgrades.
    """
    began = endpoint.clock()
    if prepared is None:
        prepared = endpoint.prepare(request, streamed=False)
    masked_words = prepared.authorised.masked_words
    reply: AsyncByteStream | TransportFault
    try:
        reply = raw = await transport.open_async(prepared.http(prepared.timeouts))
        body = _whole_body(raw)
    except TransportFault as fault:
        reply = fault
    else:
        if body is not None:
            return call.read_answer(endpoint, request, prepared, raw.headers, mask_whole(body, masked_words))
    steps = call.answer(endpoint, request.replace(model=prepared.model), FirstTry(prepared, began))
    return await AsyncDriver(transport, first=reply).run(steps)


def _whole_body(raw: AsyncByteStream) -> bytes | None:
    """Return the body of a success that arrived together with its head; its connection is idle again then."""
    if isinstance(raw, ResponseStream) and 200 <= raw.status < 300:
        return raw.take_whole()
    return None


class BlockingDriver:
    """Performs the effects of one call, blocking."""

    __slots__ = ("_stream", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stream: ByteStream | None = None

    def perform(self, steps: CallSteps, effect: Effect) -> Effect:
        """Perform this effect, and return the next one."""
        reply: object = None
        try:
            if isinstance(effect, FetchEffect):
                self.close()
                self._stream = raw = self._transport.open(effect.request)
                if 200 <= raw.status < 300:
                    parts: list[bytes] = []
                    while data := raw.read():
                        parts.append(data)
                    reply = (raw, mask_whole(b"".join(parts), effect.masked_words))
                else:
                    self._stream = masked(raw, effect.masked_words)
                    reply = (self._stream, b"")
            elif isinstance(effect, ReadEffect):
                reply = self._stream.read() if self._stream is not None else b""
            elif isinstance(effect, OpenEffect):
                self.close()
                reply = self._stream = masked(self._transport.open(effect.request), effect.masked_words)
            elif isinstance(effect, SleepEffect):
                time.sleep(effect.seconds)
        except TransportFault as fault:
            return steps.throw(fault)
        return steps.send(reply)

    def close(self) -> None:
        """Release the connection; it is closed if the response was not read to its end."""
        if self._stream is not None:
            self._stream.close()


class AsyncDriver:
    """Performs the effects of one call on the event loop.

    `first` is the reply to its first request, if that was already sent.
    """

    __slots__ = ("_first", "_heavy", "_transport", "_unfed", "stream")

    def __init__(
        self, transport: Transport, *, heavy: bool = False, first: AsyncByteStream | TransportFault | None = None
    ) -> None:
        self._transport = transport
        self._heavy = heavy
        self._first = first
        self._unfed = b""
        """Bytes of the response that are fed before those that arrive."""
        self.stream: AsyncByteStream | None = None

    async def run(self, steps: CallSteps) -> ModelResponse:
        """Perform the steps of a whole answer, and return the answer."""
        try:
            effect = await off_loop(next, steps) if self._heavy else next(steps)
            while not isinstance(effect, FinishEffect):
                effect = await self.perform(steps, effect)
            return effect.response
        finally:
            await self.close()

    async def _fetch(self, request: HttpRequest, masked_words: tuple[bytes, ...]) -> tuple[AsyncByteStream, bytes]:
        """Send this request; return the response's head and, on success, its whole body."""
        first = self._first
        self._first = None
        if isinstance(first, TransportFault):
            raise first
        self.stream = raw = first or await self._transport.open_async(request)
        if not 200 <= raw.status < 300:
            self.stream = masked_async(raw, masked_words)
            return self.stream, b""
        body = _whole_body(raw)
        if body is None:
            parts: list[bytes] = []
            while data := await raw.read():
                parts.append(data)
            body = b"".join(parts)
        return raw, mask_whole(body, masked_words)

    async def perform(self, steps: CallSteps, effect: Effect) -> Effect:
        """Perform this effect, and return the next one."""
        reply: object = None
        try:
            if isinstance(effect, FetchEffect):
                await self.close()
                reply = await self._fetch(effect.request, effect.masked_words)
            elif isinstance(effect, ReadEffect):
                reply = await self.stream.read() if self.stream is not None else b""
            elif isinstance(effect, OpenEffect):
                await self.close()
                reply = self.stream = masked_async(
                    await self._transport.open_async(effect.request), effect.masked_words
                )
            elif isinstance(effect, SleepEffect):
                await asyncio.sleep(effect.seconds)
        except TransportFault as fault:
            return steps.throw(fault)
        if self._heavy:
            return await off_loop(steps.send, reply)
        return steps.send(reply)

    async def feed_stream(
        self, steps: CallSteps, read: ReadEffect, sink: ChunkSink
    ) -> tuple[Effect, Sequence[CompletionChunk] | None]:
        """Read until the steps yield another effect or the sink refuses chunks; return both."""
        decoder = ChunkFeeder(steps, read, sink)
        rest = self._unfed
        try:
            if self.stream is not None and (not rest or decoder.feed(rest)):
                await self.stream.on_body(decoder.feed)
        except TransportFault as fault:
            decoder.effect = steps.throw(fault)
        self._unfed = decoder.rest
        return decoder.effect, decoder.undelivered

    async def close(self) -> None:
        """Release the connection; it is closed if the response was not read to its end."""
        if self.stream is not None:
            await self.stream.close()


class HttpProvider:
    """A client of one vendor of the catalogue.

    `vendor` is a name of slipform's own catalogue or a row from `load_catalog`. The key is read from the environment
    for each call unless `api_key` gives one. `settings` fill the placeholders of the base URL (resource, region,
    project…).

    ::
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
        """Sends its requests."""
        self._routes: dict[tuple[str, bool], Route | None] = {}

    def __repr__(self) -> str:
        return f"HttpProvider({self.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """The base URL of its calls."""
        return self._endpoint.url()

    @property
    def price_list(self) -> str:
        """Its id in the price list that ships with slipform; empty if it is not listed."""
        return self._endpoint.vendor.price_list

    @property
    def version(self) -> Version | None:
        """A value whose change invalidates planned calls; None if it is unknown."""
        return self._endpoint.version

    @property
    def downgrades(self) -> DowngradeStore:
        """The capabilities that the vendor refused, and that calls go without."""
        return self._endpoint.store

    @property
    def has_key(self) -> bool | None:
        """Whether there is a key to call with; None if the vendor needs none."""
        endpoint = self._endpoint
        vendor = self._endpoint.vendor
        if endpoint.key() is not None or endpoint.secrets:
            return True
        if vendor.auth == "sigv4" and from_environment(["AWS_ACCESS_KEY_ID"]) is not None:
            return True
        if endpoint.cloud is not None and endpoint.cloud.is_installed:
            return None  # it is unknown before the first call
        if vendor.auth == "none" or vendor.key != "required":
            return None
        return False

    @property
    def timeouts(self) -> Timeouts:
        """Its time limits."""
        return self._endpoint.timeouts

    def capabilities(self, model: str) -> Capabilities:
        """Return what this model can do here: the catalogue's entry, minus its downgrades."""
        return self._endpoint.capabilities(model)

    def capabilities_for(self, request: ModelRequest) -> Capabilities:
        """Return the same for one request: `auto` uses the next channel if this one cannot carry its schema."""
        return self._endpoint.capabilities_for(request)

    def codec_for(self, model: str, response_format: ResponseFormat | None) -> BoundCodec:
        """Return the codec for this model and response format, after the downgrades of both."""
        return self._endpoint.codec_for(model, response_format)

    @property
    def api(self) -> str:
        """Its API, by the name of the codec."""
        return self._endpoint.vendor.codec

    def route(self, model: str, *, streamed: bool) -> Route | None:
        """Return where a caller's own body for this model can be sent unchanged; None if it must be encoded anew."""
        return route_of(self._endpoint, self._routes, model, streamed=streamed)

    def forward_async(
        self, route: Route, body: bytes | Upload, headers: Mapping[str, str], calls: CallCount | None = None
    ) -> Coroutine[Any, Any, Forwarded]:
        """Send a body unchanged, with this provider's own key; return the response unread, errors included."""
        return open_forward(self._endpoint, self.transport, route, body, headers, calls)

    @property
    def batch_api(self) -> str:
        """The name of its batch API; empty if slipform supports none."""
        return self._endpoint.vendor.batch

    def batch_downgrades(self, request: ModelRequest) -> frozenset[str]:
        """Return the current downgrades of requests like this one."""
        return self._endpoint.bind(request.model, request.response_format).downgrades

    def prepare_batched(self, request: ModelRequest, downgrades: frozenset[str] | None = None) -> PreparedCall:
        """Encode a request for a batch; with these downgrades, by default the current ones."""
        return self._endpoint.prepare_batched(request, downgrades)

    def read_batched(self, request: ModelRequest, prepared: PreparedCall, answer: bytes) -> ModelResponse:
        """Decode an answer from a batch, at the price of a batch; raises its error."""
        response = call.read_answer(self._endpoint, request, prepared, {}, answer)
        return response.replace(usage=response.usage.replace(service_tier=BATCH_TIER))

    def downgrade_batched(self, error: UpstreamError, request: ModelRequest, prepared: PreparedCall) -> bool:
        """Record the feature that the vendor refused in a batch; return True if another batch is worthwhile."""
        return self._endpoint.downgrade_after(error, request, prepared)

    def models(self) -> list[str]:
        """Return the models that its row lists; empty if it accepts any name."""
        return list(self._endpoint.vendor.models)

    def serves(self, model: str) -> bool:
        """Return whether its row lists the model, or it accepts any name."""
        listed = self._endpoint.vendor.models
        return not listed or model in listed

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the answer, blocking."""
        return complete_call(call.answer(self._endpoint, request), self.transport)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Stream the answer, blocking; closing the iterator closes the connection."""
        steps = call.stream(self._endpoint, request)
        wire = BlockingDriver(self.transport)
        try:
            effect = next(steps)
            while not isinstance(effect, FinishEffect):
                if isinstance(effect, ReadEffect):
                    yield from effect.chunks
                effect = wire.perform(steps, effect)
            yield from effect.chunks
        finally:
            wire.close()

    def _is_heavy(self, request: ModelRequest) -> bool:
        """Return whether it takes long to prepare the request: it waits for credentials, or has large new schemas."""
        if self._endpoint.waits_for_credentials:
            return True
        if not is_heavy(request):
            return False
        codec = self._endpoint.codec_for(request.model, request.response_format)
        frame = request.frame
        return frame is None or frame.find(codec) is None

    def complete_async(self, request: ModelRequest, model: str = "") -> Coroutine[Any, Any, ModelResponse]:
        """Return the answer; cancelling closes the connection. `model` replaces the request's, if it differs."""
        endpoint = self._endpoint
        prepared = endpoint.find_prepared(request, model or request.model, streamed=False)
        if prepared is not None:
            return complete_call_async(endpoint, request, self.transport, prepared)
        if model:
            request = request.replace(model=model)
        if self._is_heavy(request):  # its steps, which encode and decode, run in a thread
            return AsyncDriver(self.transport, heavy=True).run(call.answer(endpoint, request))
        return complete_call_async(endpoint, request, self.transport)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Stream the answer; closing the iterator, or cancelling, closes the connection."""
        async with aclosing(self.batches_async(request, PassThroughSink())) as batches:
            async for batch in batches:
                for chunk in batch:
                    yield chunk

    async def batches_async(
        self, request: ModelRequest, sink: ChunkSink
    ) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """Stream the answer into a sink; chunks that arrive together are passed on together."""
        steps = call.stream(self._endpoint, request)
        heavy = self._is_heavy(request)
        wire = AsyncDriver(self.transport, heavy=heavy)
        try:
            effect = await off_loop(next, steps) if heavy else next(steps)
            while not isinstance(effect, FinishEffect):
                if not isinstance(effect, ReadEffect):
                    effect = await wire.perform(steps, effect)
                    continue
                effect, undelivered = await wire.feed_stream(steps, effect, sink)
                if undelivered is not None:
                    yield undelivered
            if effect.chunks and (undelivered := sink.push(effect.chunks)) is not None:
                yield undelivered
        finally:
            await wire.close()

    def warm(self) -> None:
        """Do nothing: connections are opened by the first call."""

    def close(self) -> None:
        """Close pooled connections."""
        self.transport.close()
