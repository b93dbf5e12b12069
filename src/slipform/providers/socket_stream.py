"""An answer being read from a socket on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from slipform.providers.exchange import Exchange, Take
from slipform.providers.transport import HttpRequest


class AsyncSocketStream:
    """What waits, around an `Exchange`, which does not."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._exchange.link.reader.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case."""
        return self._exchange.link.reader.headers

    async def ask(self, request: HttpRequest, target: str) -> None:
        """Send the request, and wait for the head of its answer."""
        exchange = self._exchange
        link = exchange.link
        try:
            rest = exchange.send(request, target)
            if rest:
                async with asyncio.timeout(exchange.limits.left("first_byte")):
                    await self._send(rest)
            link.asked = True
            while not link.reader.has_head:
                await exchange.wait()
        except BaseException as error:
            exchange.stop()
            exchange.limits.translate(error, "head" if link.asked else "send", "first_byte")
            raise

    async def read(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        exchange = self._exchange
        if not exchange.open:
            return b""
        try:
            while (data := exchange.link.reader.take()) is None:
                await exchange.wait()
        except BaseException as error:
            exchange.stop()
            exchange.limits.translate(error, "body", exchange.limit)
            raise
        exchange.noted(data)
        return data

    async def each(self, take: Take) -> None:
        """Hand what arrives of the body to `take` at once, nothing at its end, until that answers False.

        `take` is called where the event loop says that there is something to read. To wake whoever waits for every
        piece of an answer that comes in many costs more than most of what is done with it.
        """
        exchange = self._exchange
        try:
            if exchange.hand_on(take):
                exchange.take = take
                try:
                    await exchange.wait()
                finally:
                    exchange.take = None
        except BaseException as error:
            exchange.stop()
            exchange.limits.translate(error, "body", exchange.limit)
            raise

    async def close(self) -> None:
        """Stop; the connection is closed if the body was not read to its end."""
        self._exchange.stop()

    async def _send(self, data: bytes) -> None:
        """Send it all, waiting for the server to take it."""
        ear = self._exchange.ear
        while data := data[ear.send(data) :]:
            writable = ear.writable()
            try:
                await writable
            finally:
                ear.written()
