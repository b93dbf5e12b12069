"""Send a caller's own body to the vendor and return the response unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson

from slipform.bounded import BoundedCache
from slipform.codecs import EncodedRequest
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import Message, ModelRequest
from slipform.ir.request import CallCount
from slipform.providers import retry
from slipform.providers.call import count_repeat, stream_error, time_left
from slipform.providers.endpoint import Endpoint, PreparedCall
from slipform.providers.masking import mask_whole, masked_async, masked_headers
from slipform.providers.network.async_connection import ResponseStream
from slipform.providers.network.transport import (
    AsyncByteStream,
    HttpRequest,
    Push,
    Timeouts,
    Transport,
    TransportFault,
    Upload,
)

_KEPT = 256
_DRESSED = 16
_PROBE = (Message.user("."),)


@dataclass(frozen=True, slots=True)
class Route:
    """The route of bodies for one model: the path, the required headers, and whether the body names the model."""

    model: str
    """Empty if no model is involved."""
    path: str
    headers: Mapping[str, str]
    in_body: bool
    streamed: bool
    method: str = "POST"
    max_answer_bytes: int | None = None
    """Replaces the provider's own limit, for files: they are passed on in pieces and may take long."""
    prepared: BoundedCache[tuple[str, ...], PreparedCall] = field(
        default_factory=lambda: BoundedCache("headers of a route", entries=_DRESSED, max_bytes=64_000),
        repr=False,
        compare=False,
    )
    """Prepared requests, by everything that they depend on: address, key, and the caller's own headers."""


class Forwarded:
    """The vendor's response: its head, and its body still to be read, both with the call's secrets masked.

    It must be closed unless `take_whole` returned the body.
    """

    __slots__ = ("_masked", "_prepared", "_stream", "headers", "is_closed", "status")

    def __init__(self, stream: AsyncByteStream, prepared: PreparedCall) -> None:
        masked_words = prepared.authorised.masked_words
        self._stream = stream
        self._prepared = prepared
        self._masked: AsyncByteStream | None = None
        self.status = stream.status
        """The HTTP status."""
        self.headers = masked_headers(stream.headers, masked_words) if masked_words else stream.headers
        """The headers, with lower-case names."""
        self.is_closed = False

    def _pieces(self) -> AsyncByteStream:
        """Yield the body piece by piece."""
        if self._masked is None:
            self._masked = masked_async(self._stream, self._prepared.authorised.masked_words)
        return self._masked

    async def read(self) -> bytes:
        """Return the next bytes of the body; empty at its end. Raises an `UpstreamError` if it is cut."""
        try:
            return await self._pieces().read()
        except TransportFault as fault:
            raise stream_error(self._prepared, fault) from fault

    async def on_body(self, push: Push) -> None:
        """Call `push` with each piece of the body as it arrives, with b"" at its end, until it returns False."""
        try:
            await self._pieces().on_body(push)
        except TransportFault as fault:
            raise stream_error(self._prepared, fault) from fault

    def take_whole(self) -> bytes | None:
        """Return the whole body if it arrived together with its head; else None: use `read_whole`."""
        stream = self._stream
        if not isinstance(stream, ResponseStream):
            return None
        try:
            data = stream.take_whole()
        except TransportFault as fault:
            raise stream_error(self._prepared, fault) from fault
        if data is None:
            return None
        self.is_closed = True  # its connection is idle again
        return mask_whole(data, self._prepared.authorised.masked_words)

    async def read_whole(self) -> bytes:
        """Return the whole body, of which nothing has been read."""
        parts: list[bytes] = []
        try:
            while data := await self._stream.read():
                parts.append(data)
        except TransportFault as fault:
            raise stream_error(self._prepared, fault) from fault
        return mask_whole(b"".join(parts), self._prepared.authorised.masked_words)

    async def close(self) -> None:
        """Release the connection; it is closed if the body was not read to its end."""
        await self._stream.close()


def route_of(
    endpoint: Endpoint, routes: dict[tuple[str, bool], Route | None], model: str, *, streamed: bool
) -> Route | None:
    """Return the route for a model, determined once from a request that the codec encodes for it."""
    key = (model, streamed)
    if key in routes:
        return routes[key]
    if len(routes) >= _KEPT:
        routes.clear()
    route: Route | None = None
    try:
        codec = endpoint.codec(model, endpoint.capabilities(model))
        probe = codec.encode_request(ModelRequest(model, _PROBE), stream=streamed)
        in_body = orjson.loads(probe.body).get("model") == model
        # A vendor that puts the model elsewhere changes the rest of the body, too.
        if in_body or codec.name == "gemini":
            headers = {name.lower(): value for name, value in probe.headers.items()}
            route = Route(model, probe.path, headers, in_body, streamed)
    except SlipformError:
        route = None
    routes[key] = route
    return route


async def open_forward(
    endpoint: Endpoint,
    transport: Transport,
    route: Route,
    body: bytes | Upload,
    headers: Mapping[str, str],
    calls: CallCount | None = None,
) -> Forwarded:
    """Send the body; it is resent only while the vendor cannot have seen it, and counted in `calls`.

    An upload is never repeated: its pieces have been consumed.
    """
    timeouts = endpoint.timeouts
    if isinstance(body, Upload) or route.max_answer_bytes is not None:
        timeouts = replace(timeouts, total=None)  # the file takes the time, not the vendor
    deadline = None
    if timeouts.total is not None:
        deadline = endpoint.clock() + timeouts.total
    attempt = 0
    if endpoint.cloud is not None and endpoint.waits_for_credentials:
        await asyncio.to_thread(endpoint.refresh_credentials)
    if calls is not None:
        calls.add(f"{endpoint.name}/{route.model}")
    while True:
        prepared = _prepared(endpoint, route, b"" if isinstance(body, Upload) else body, headers)
        try:
            stream = await transport.open_async(_request(prepared, route, body, timeouts))
        except TransportFault as fault:
            error: UpstreamError = stream_error(prepared, fault)
            is_repeatable = not isinstance(body, Upload) and retry.after_fault(fault)
            pause = endpoint.retries.pause(attempt, None) if is_repeatable else None
            if pause is None or (deadline is not None and endpoint.clock() + pause >= deadline):
                raise error from fault
            count_repeat(calls, f"{endpoint.name}/{route.model}", error)
        else:
            return Forwarded(stream, prepared)
        attempt += 1
        await asyncio.sleep(pause)
        timeouts = time_left(endpoint, prepared, deadline)


def _request(prepared: PreparedCall, route: Route, body: bytes | Upload, timeouts: Timeouts) -> HttpRequest:
    sent = prepared.authorised
    method = route.method
    most = route.max_answer_bytes
    if isinstance(body, Upload):
        return HttpRequest(sent.url, sent.headers, b"", timeouts, prepared.streamed, method, body, most)
    return HttpRequest(sent.url, sent.headers, body, timeouts, prepared.streamed, method, None, most)


def _prepared(endpoint: Endpoint, route: Route, body: bytes, headers: Mapping[str, str]) -> PreparedCall:
    """Return everything but the body, built once for each address and key, which are read again for every call."""
    url = endpoint.url()
    mark = (url, endpoint.key_text(), *headers, *headers.values())
    made = route.prepared.get(mark)
    if made is not None:
        return made
    key = endpoint.call_key()
    capabilities = endpoint.capabilities(route.model)
    made = PreparedCall(
        model=route.model,
        provider=endpoint.name,
        codec=endpoint.codec(route.model, capabilities),
        encoded=EncodedRequest(route.path, b""),
        capabilities=capabilities,
        authorised=endpoint.authorise_uncached(url + route.path, {**route.headers, **headers}, body, key),
        streamed=route.streamed,
        timeouts=endpoint.timeouts,
    )
    if endpoint.vendor.auth != "sigv4":  # a signature is valid for one body only
        route.prepared.put(mark, made, 2_000 + 3 * sum(map(len, mark)))
    return made
