"""Limit concurrent calls to a provider, and run work on large schemas outside of the event loops."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import msgspec

from slipform.providers.network.transport import (
    AsyncByteStream,
    ByteStream,
    HttpRequest,
    Push,
    Transport,
    TransportFault,
)
from slipform.providers.vendor_limits import Reservation, VendorBudget

_NOTICED = 0.001
_LOOK_AGAIN = 1.0
"""Seconds after which a call that waits for its minute checks whether it may start sooner; longer waits check later."""


@dataclass(eq=False, slots=True)
class _Waiter:
    """A waiting call: a thread waits for its event, a task for its future."""

    event: threading.Event | None = None
    future: asyncio.Future[None] | None = None
    granted: bool = field(default=False)

    def wake(self) -> bool:
        """Let it continue; return False if its event loop has been closed."""
        self.granted = True
        if self.event is not None:
            self.event.set()
        elif self.future is not None:
            try:
                self.future.get_loop().call_soon_threadsafe(_settle, self.future)
            except RuntimeError:
                return False
        return True


class ConcurrencyLimit:
    """Admits a limited number of calls at a time, first come first served, for threads and event loops alike.

    >>> slots = ConcurrencyLimit(1)
    >>> slots.acquire(timeout=0), slots.acquire(timeout=0)
    (True, False)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait for a slot, blocking; return False if none became free in time."""
        waiter = self._enqueue(_Waiter(event=threading.Event()))
        if waiter is None or waiter.event is None:
            return True
        try:
            waiter.event.wait(timeout)
        except BaseException:
            self._give_up(waiter, keep=False)
            raise
        return self._give_up(waiter, keep=True)

    async def acquire_async(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 — as above, for event loops
        """Wait for a slot; return False if none became free in time. Cancelling does not affect later waiters."""
        waiter = self._enqueue(_Waiter(future=asyncio.get_running_loop().create_future()))
        if waiter is None or waiter.future is None:
            return True
        try:
            await asyncio.wait((waiter.future,), timeout=timeout)
        except BaseException:
            self._give_up(waiter, keep=False)
            raise
        return self._give_up(waiter, keep=True)

    @property
    def usage(self) -> tuple[int, int]:
        """Return how many slots are in use, and how many calls wait for one."""
        return self.limit - self._free, len(self._waiting)

    def release(self) -> None:
        """Release a slot to the longest waiting call, if any."""
        with self._lock:
            while self._waiting:
                if self._waiting.popleft().wake():
                    return
            self._free += 1

    def _enqueue(self, waiter: _Waiter) -> _Waiter | None:
        """Take a slot at once and return None, or join the queue."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return None
            self._waiting.append(waiter)
            return waiter

    def _give_up(self, waiter: _Waiter, *, keep: bool) -> bool:
        """Leave the queue; return whether a slot was granted, which is released again unless `keep` is set."""
        with self._lock:
            if not waiter.granted:
                self._waiting.remove(waiter)
                return False
        if not keep:
            self.release()
        return True


class ThrottledTransport:
    """A transport with limits on concurrent exchanges, and on requests and tokens per minute.

    An exchange lasts from the request until its response is closed. Time spent in the queue counts towards the call's
    total time.
    """

    def __init__(self, transport: Transport, limit: int | None, budget: VendorBudget | None = None) -> None:
        self._transport = transport
        self._slots = ConcurrencyLimit(limit if limit is not None else _UNLIMITED)
        self._budget = budget
        self._limit = limit

    @property
    def slots(self) -> tuple[int, int, int] | None:
        """Return the limit of exchanges, how many are open, and how many wait; None without a limit."""
        if self._limit is None:
            return None
        return (self._limit, *self._slots.usage)

    def open(self, request: HttpRequest) -> ByteStream:
        """Wait for a slot, send, and wait for the response's head."""
        began = time.monotonic()
        turn = _Reservations(self._slots, self._budget)
        try:
            if self._budget is not None:
                reservation = turn.set_reservation(self._budget.reserve(request))
                pause = reservation.seconds
                while pause > _LOOK_AGAIN:
                    time.sleep(part := max(_LOOK_AGAIN, pause / 4))
                    pause = self._budget.remaining(reservation, pause - part)
                time.sleep(pause)
            turn.require_slot(self._slots.acquire(_remaining_seconds(request, began)))
            stream = self._transport.open(_shortened(request, began))
            if self._budget is not None:
                self._budget.apply_pause(stream.status, stream.headers)
            return _SlotStream(stream, turn)
        except BaseException as error:
            turn.end_without_response(error)
            raise

    async def open_async(self, request: HttpRequest) -> AsyncByteStream:
        """Wait for a slot, send, and wait for the response's head."""
        began = time.monotonic()
        turn = _Reservations(self._slots, self._budget)
        try:
            if self._budget is not None:
                reservation = turn.set_reservation(await self._budget.reserve_async(request))
                pause = reservation.seconds
                while pause > _LOOK_AGAIN:
                    await asyncio.sleep(part := max(_LOOK_AGAIN, pause / 4))
                    pause = await self._budget.remaining_async(reservation, pause - part)
                if pause:
                    await asyncio.sleep(pause)
            turn.require_slot(await self._slots.acquire_async(_remaining_seconds(request, began)))
            stream = await self._transport.open_async(_shortened(request, began))
            if self._budget is not None:
                await self._budget.apply_pause_async(stream.status, stream.headers)
            return _AsyncSlotStream(stream, turn)
        except BaseException as error:
            turn.end_without_response(error)
            raise

    def close(self) -> None:
        """Close pooled connections."""
        self._transport.close()
        if self._budget is not None:
            self._budget.close()


def throttled(transport: Transport, limit: int | None, budget: VendorBudget | None = None) -> Transport:
    """Return the transport with a limit of concurrent exchanges and a budget per minute, if they are set."""
    if limit is None and budget is None:
        return transport
    return ThrottledTransport(transport, limit, budget)


class _Reservations:
    """The reservations of one exchange, each released once: its slot, and its share of the provider's minute."""

    __slots__ = ("_budget", "_has_slot", "_is_whole", "_reservation", "_slots", "_tail")

    def __init__(self, slots: ConcurrencyLimit, budget: VendorBudget | None) -> None:
        self._slots = slots
        self._has_slot = False
        self._budget = budget
        self._reservation: Reservation | None = None
        self._tail = None if budget is None else budget.usage_reader()
        self._is_whole = False

    def set_reservation(self, reservation: Reservation | None) -> Reservation:
        """Store the reservation of the call; raises if the call would time out before its start."""
        if reservation is None:
            raise TransportFault("the provider's calls of this minute are used up", phase="connect", limit="total")
        self._reservation = reservation
        return reservation

    def require_slot(self, has_slot: bool) -> None:
        """Record whether a slot became free in time; raises if not."""
        if not has_slot:
            raise TransportFault("all the provider's slots stayed in use", phase="connect", limit="total")
        self._has_slot = True

    def end_without_response(self, error: BaseException) -> None:
        """End a call without a response: release the reservation if the vendor cannot have seen the request."""
        is_unsent = not self._has_slot or (isinstance(error, TransportFault) and error.unsent)
        self._free_slot()
        if self._budget is not None and self._reservation is not None and is_unsent:
            self._budget.cancel(self._reservation)

    def read(self, data: bytes) -> bytes:
        """Count the next piece of the response, empty at its end; return it."""
        if not data:
            self._is_whole = True
        elif self._tail is not None:
            self._tail.add(data)
        return data

    def reading(self, push: Push) -> Push:
        """Return a function that counts each piece and then pushes it."""
        if self._tail is None:
            return push
        return lambda data: push(self.read(data))

    def finish(self, status: int) -> None:
        """Release everything once the response was read or abandoned. Harmless when repeated."""
        self._free_slot()
        reservation = self._reservation
        self._reservation = None
        if self._budget is not None and reservation is not None:
            self._budget.settle(reservation, status, self._tail if self._is_whole else None)

    def _free_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._slots.release()


class _SlotStream:
    """A response that releases its slot when it is closed."""

    __slots__ = ("_stream", "_turn")

    def __init__(self, stream: ByteStream, turn: _Reservations) -> None:
        self._stream = stream
        self._turn = turn

    @property
    def status(self) -> int:
        return self._stream.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._stream.headers

    def read(self) -> bytes:
        return self._turn.read(self._stream.read())

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._turn.finish(self._stream.status)


class _AsyncSlotStream:
    """The same for event loops."""

    __slots__ = ("_stream", "_turn")

    def __init__(self, stream: AsyncByteStream, turn: _Reservations) -> None:
        self._stream = stream
        self._turn = turn

    @property
    def status(self) -> int:
        return self._stream.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._stream.headers

    async def read(self) -> bytes:
        return self._turn.read(await self._stream.read())

    async def on_body(self, push: Push) -> None:
        await self._stream.on_body(self._turn.reading(push))

    async def close(self) -> None:
        try:
            await self._stream.close()
        finally:
            self._turn.finish(self._stream.status)


_UNLIMITED = 1 << 30


def _remaining_seconds(request: HttpRequest, began: float) -> float | None:
    """Return the remainder of a request's total time."""
    total = request.timeouts.total
    if total is None:
        return None
    return max(0.0, total - (time.monotonic() - began))


def _shortened(request: HttpRequest, began: float) -> HttpRequest:
    """Return the request with its waiting time subtracted from its total time."""
    total = request.timeouts.total
    waited = time.monotonic() - began
    if total is None or waited < _NOTICED:
        return request
    return msgspec.structs.replace(request, timeouts=replace(request.timeouts, total=max(_NOTICED, total - waited)))


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 2
"""Every busy thread delays each turn of the event loop by its own."""


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="slipform-schemas")


async def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` on large schemas in a thread and return its result. It must not raise `StopIteration`.

    Most of that work is Python, which releases the interpreter every few milliseconds. Compiling validators holds it
    throughout: about 3 µs for each value of a schema and 60 µs for each pattern, so the limits on a request's schemas
    (`server.max_schema_nodes`) bound it.
    """
    context = contextvars.copy_context()
    task = functools.partial(context.run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads(), task)
