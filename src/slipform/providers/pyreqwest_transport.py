"""An optional transport over pyreqwest (Rust's reqwest): HTTP/2 where the server offers it.

It is not the default, because of two things seen with pyreqwest 0.15.1 on loopback:

- a call that is cancelled before the answer's head has arrived leaves its connection open, and the vendor working,
  until the answer comes or the `total` limit ends it (not even closing the client ends it);
- blocking callers have one limit for silence, fixed per client: the longer of `first_byte` and `between_chunks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias, TypeVar

from pyreqwest.client import Client, ClientBuilder, SyncClient, SyncClientBuilder
from pyreqwest.exceptions import PyreqwestError, RequestTimeoutError
from pyreqwest.request import RequestBuilder, StreamRequest, SyncRequestBuilder, SyncStreamRequest
from pyreqwest.response import Response, SyncResponse

from slipform.providers.limits import Limits
from slipform.providers.transport import HttpRequest, Limit, Phase, Timeouts, TransportFault

Builder = TypeVar("Builder", ClientBuilder, SyncClientBuilder)
Sending = TypeVar("Sending", RequestBuilder, SyncRequestBuilder)
_Key: TypeAlias = tuple[float | None, float | None]


class PyreqwestTransport:
    """Sends requests with pyreqwest; one instance serves all threads and event loops.

    `root_certificate` is one more PEM certificate to trust. Clients are made for each pair of connect and silence
    limits, so keep those few.
    """

    def __init__(self, *, http2: bool = True, idle: float = 30.0, root_certificate: bytes | None = None) -> None:
        self._http2 = http2
        self._idle = idle
        self._certificate = root_certificate
        self._sync: dict[_Key, SyncClient] = {}
        self._async: dict[_Key, Client] = {}
        self._lock = threading.Lock()

    def open(self, request: HttpRequest) -> PyreqwestStream:
        """Send, and wait for the answer's head."""
        limits = Limits(request.timeouts)
        limits.sending()
        wire = _dress(self._client(request.timeouts).request(request.method, request.url), request).build_streamed()
        try:
            response = wire.__enter__()
        except PyreqwestError as error:
            raise _fault(error, "head", limits, "first_byte") from error
        return PyreqwestStream(wire, response, limits, response.status, _headers(response))

    async def open_async(self, request: HttpRequest) -> AsyncPyreqwestStream:
        """Send, and wait for the answer's head. See above for what cancelling it does not do."""
        limits = Limits(request.timeouts)
        limits.sending()
        client = self._async_client(request.timeouts)
        wire = _dress(client.request(request.method, request.url), request).build_streamed()
        try:
            async with asyncio.timeout(limits.left("first_byte")):
                response = await wire.__aenter__()
        except (PyreqwestError, TimeoutError) as error:
            raise _fault(error, "head", limits, "first_byte") from error
        return AsyncPyreqwestStream(wire, response, limits, response.status, _headers(response))

    def close(self) -> None:
        """Let go of the blocking clients; the async ones go with their last reference."""
        with self._lock:
            clients, self._sync, self._async = self._sync, {}, {}
        for client in clients.values():
            client.close()

    def _client(self, timeouts: Timeouts) -> SyncClient:
        silences = (timeouts.first_byte, timeouts.between_chunks)
        silence = None if None in silences else max(value for value in silences if value is not None)
        key = (timeouts.connect, silence)
        with self._lock:
            found = self._sync.get(key)
            if found is None:
                found = self._sync[key] = self._build(SyncClientBuilder(), key).build()
            return found

    def _async_client(self, timeouts: Timeouts) -> Client:
        key = (timeouts.connect, None)
        with self._lock:
            found = self._async.get(key)
            if found is None:
                found = self._async[key] = self._build(ClientBuilder(), key).build()
            return found

    def _build(self, builder: Builder, key: _Key) -> Builder:
        connect, silence = key
        builder = builder.http2(self._http2).follow_redirects(False).referer(False)
        builder = builder.pool_idle_timeout(timedelta(seconds=self._idle))
        if connect is not None:
            builder = builder.connect_timeout(timedelta(seconds=connect))
        if silence is not None:
            builder = builder.read_timeout(timedelta(seconds=silence))
        if self._certificate is not None:
            builder = builder.add_root_certificate_pem(self._certificate)
        return builder


@dataclass(slots=True)
class PyreqwestStream:
    """An answer being read, blocking."""

    _wire: SyncStreamRequest
    _response: SyncResponse
    _limits: Limits
    status: int
    headers: Mapping[str, str]
    _open: bool = True

    def read(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        if not self._open:
            return b""
        try:
            data = self._response.body_reader.read_chunk()
        except PyreqwestError as error:
            self.close()
            raise _fault(error, "body", self._limits, "between_chunks") from error
        if data is None:
            self.close()
            return b""
        return bytes(data)

    def close(self) -> None:
        """Stop; the connection is closed if the body was not read to its end."""
        if self._open:
            self._open = False
            with contextlib.suppress(PyreqwestError):
                self._wire.__exit__(None, None, None)


@dataclass(slots=True)
class AsyncPyreqwestStream:
    """An answer being read, on an event loop."""

    _wire: StreamRequest
    _response: Response
    _limits: Limits
    status: int
    headers: Mapping[str, str]
    _limit: Limit = "first_byte"
    _open: bool = True

    async def read(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        if not self._open:
            return b""
        try:
            async with asyncio.timeout(self._limits.left(self._limit)):
                data = await self._response.body_reader.read_chunk()
        except (PyreqwestError, TimeoutError) as error:
            await self.close()
            raise _fault(error, "body", self._limits, self._limit) from error
        if data is None:
            await self.close()
            return b""
        self._limit = "between_chunks"
        return bytes(data)

    async def close(self) -> None:
        """Stop; the connection is closed if the body was not read to its end."""
        if self._open:
            self._open = False
            with contextlib.suppress(PyreqwestError):
                await self._wire.__aexit__(None, None, None)


def _dress(builder: Sending, request: HttpRequest) -> Sending:
    builder = builder.headers(dict(request.headers)).body_bytes(request.body)
    if request.timeouts.total is not None:
        builder = builder.timeout(timedelta(seconds=request.timeouts.total))
    # By default pyreqwest reads ahead and holds the first chunks back until 64 kB or the end have come.
    return builder.streamed_read_buffer_limit(0)


def _headers(response: Response | SyncResponse) -> dict[str, str]:
    return {name: ", ".join(response.get_header_all(name)) for name in response.headers}


def _fault(error: Exception, phase: Phase, limits: Limits, limit: Limit) -> TransportFault:
    if isinstance(error, PyreqwestError):
        causes = [cause["message"] for cause in (getattr(error, "details", None) or {}).get("causes") or ()]
        if any("(Connect)" in cause for cause in causes):
            phase, limit = "connect", "connect"
        if not isinstance(error, RequestTimeoutError):
            # The first causes name the address, which may hold a key; the last one says what happened.
            return TransportFault(causes[-1] if causes else error.message, phase=phase)
    return TransportFault("time ran out", phase=phase, limit=limits.ran_out(limit))
