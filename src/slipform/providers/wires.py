"""What does the work that the steps of a call ask for (`calls.py`): one wire that blocks, and one for event loops."""

from __future__ import annotations

import asyncio
import time

from slipform.ir import ModelResponse
from slipform.off_loop import off_loop
from slipform.providers.base import Made, Through
from slipform.providers.calls_types import Effect, Fetch, Finish, Open, Read, Sleep, Steps
from slipform.providers.following import Following
from slipform.providers.masking import masked, masked_async
from slipform.providers.network.transport import AsyncByteStream, Begun, ByteStream, Transport, TransportFault


def answered(steps: Steps, transport: Transport) -> ModelResponse:
    """Do what the steps of a whole answer ask for, and give the answer; blocking."""
    wire = Wire(transport)
    try:
        effect = next(steps)
        while not isinstance(effect, Finish):
            effect = wire.step(steps, effect)
        return effect.response
    finally:
        wire.close()


async def answered_async(
    steps: Steps, transport: Transport, begun: Begun | None = None, *, heavy: bool = False
) -> ModelResponse:
    """`answered`, on the event loop; cancelling closes the connection. What has begun is not sent again.

    `heavy` says that the steps themselves, which spell the request and read the answer, take long.
    """
    wire = AsyncWire(transport, heavy=heavy)
    try:
        effect = await wire.begin(steps)
        if begun is not None:
            wire.stream = begun.stream
            effect = await wire.go_on(steps, (begun.stream, begun.body))
        while not isinstance(effect, Finish):
            effect = await wire.step(steps, effect)
        return effect.response
    finally:
        if wire.stream is not None:
            await wire.stream.close()


class Wire:
    """Does what the steps of one call ask for, blocking."""

    __slots__ = ("_stream", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stream: ByteStream | None = None

    def step(self, steps: Steps, effect: Effect) -> Effect:
        """Do this, and come back with what is to be done next."""
        reply: object = None
        try:
            if isinstance(effect, Fetch):
                self.close()
                head = self._stream = masked(self._transport.open(effect.request), effect.secrets)
                parts: list[bytes] = []
                good = 200 <= head.status < 300
                while good and (data := head.read()):
                    parts.append(data)
                reply = (head, b"".join(parts))
            elif isinstance(effect, Read):
                reply = self._stream.read() if self._stream is not None else b""
            elif isinstance(effect, Open):
                self.close()
                reply = self._stream = masked(self._transport.open(effect.request), effect.secrets)
            elif isinstance(effect, Sleep):
                time.sleep(effect.seconds)
        except TransportFault as fault:
            return steps.throw(fault)
        return steps.send(reply)

    def close(self) -> None:
        """Let go of the connection, closing it when the answer was not read to its end."""
        if self._stream is not None:
            self._stream.close()


class AsyncWire:
    """Does what the steps of one call ask for, on the event loop."""

    __slots__ = ("_heavy", "_transport", "stream")

    def __init__(self, transport: Transport, *, heavy: bool = False) -> None:
        self._transport = transport
        self._heavy = heavy
        self.stream: AsyncByteStream | None = None

    async def begin(self, steps: Steps) -> Effect:
        """What is to be done first."""
        return await off_loop(next, steps) if self._heavy else next(steps)

    async def go_on(self, steps: Steps, reply: object) -> Effect:
        """What is to be done after this has come back."""
        return await off_loop(steps.send, reply) if self._heavy else steps.send(reply)

    async def step(self, steps: Steps, effect: Effect) -> Effect:
        """Do this, and come back with what is to be done next."""
        reply: object = None
        try:
            if isinstance(effect, Fetch):
                if self.stream is not None:  # a repeat
                    await self.stream.close()
                head = self.stream = masked_async(await self._transport.open_async(effect.request), effect.secrets)
                parts: list[bytes] = []
                good = 200 <= head.status < 300
                while good and (data := await head.read()):
                    parts.append(data)
                reply = (head, b"".join(parts))
            elif isinstance(effect, Read):
                reply = await self.stream.read() if self.stream is not None else b""
            elif isinstance(effect, Open):
                await self.close()
                reply = self.stream = masked_async(await self._transport.open_async(effect.request), effect.secrets)
            elif isinstance(effect, Sleep):
                await asyncio.sleep(effect.seconds)
        except TransportFault as fault:
            return steps.throw(fault)
        return await self.go_on(steps, reply)

    async def follow(self, steps: Steps, read: Read, through: Through[Made]) -> tuple[Effect, Made | None]:
        """Read until the steps want something else or something was made of their chunks; gives both."""
        following = Following(steps, read, through)
        try:
            if self.stream is not None:
                await self.stream.on_body(following)
        except TransportFault as fault:
            following.effect = steps.throw(fault)
        return following.effect, following.made

    async def close(self) -> None:
        """Let go of the connection, closing it when the answer was not read to its end."""
        if self.stream is not None:
            await self.stream.close()
