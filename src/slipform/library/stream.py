"""Stream and AsyncStream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from slipform.library.partial import Partial
from slipform.library.stream_session import Delta, Result, Session

T = TypeVar("T")
X = TypeVar("X")

__all__ = ["AsyncStream", "Delta", "Result", "Stream"]


class Stream(AbstractContextManager["Stream[T]"], Generic[T]):
    """An answer while it is written.

    ::

        with client.stream(Invoice, text) as stream:
            for partial in stream:
                show(partial)
            invoice = stream.result.value

    Iterate over it for partial values, over `deltas()` for what is new in them, over `items()` for the finished items
    of a list: one of these, once. `result` is the whole, valid answer; asking for it reads the stream to its end. When
    an answer turns out wrong and the budget allows another, the stream goes on with it from the start: `attempt` counts
    up and `deltas()` has a `restart`. When there is no valid answer in the end, the errors of `ask` are raised.
    """

    def __init__(self, session: Session[T]) -> None:
        self._session = session
        self._pump = _pump(session)

    @property
    def attempt(self) -> int:
        """Which attempt is being read, counted from 1."""
        return self._session.attempt

    def __iter__(self) -> Iterator[Partial[T]]:
        session = self._session
        for _ in self._pump:
            partial = session.partial()
            if partial is not None:
                yield partial

    def deltas(self) -> Iterator[Delta]:
        """What each piece of the stream changes in the answer's JSON, and where."""
        for _ in self._pump:
            yield from self._session.deltas()

    def items(self: Stream[list[X]]) -> Iterator[X]:
        """The items of a list, each once it is finished and valid.

        If the answer is asked for again, items that were given out are not given again; if one of them has changed,
        that is an `EnforcementError`.
        """
        for _ in self._pump:
            yield from self._session.items()
        yield from self._session.last_items()

    @property
    def result(self) -> Result[T]:
        """The whole answer: its value, its JSON, the report and what it cost."""
        for _ in self._pump:
            pass
        return self._session.outcome()

    def close(self) -> None:
        """Stop reading, and stop the model where that is possible."""
        self._pump.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(AbstractAsyncContextManager["AsyncStream[T]"], Generic[T]):
    """The same for event loops; `result` is a method there, because it has to be awaited."""

    def __init__(self, session: Session[T]) -> None:
        self._session = session
        self._pump = _pump_async(session)

    @property
    def attempt(self) -> int:
        """Which attempt is being read, counted from 1."""
        return self._session.attempt

    async def __aiter__(self) -> AsyncIterator[Partial[T]]:
        session = self._session
        async for _ in self._pump:
            partial = session.partial()
            if partial is not None:
                yield partial

    async def deltas(self) -> AsyncIterator[Delta]:
        """What each piece of the stream changes in the answer's JSON, and where."""
        async for _ in self._pump:
            for delta in self._session.deltas():
                yield delta

    async def items(self: AsyncStream[list[X]]) -> AsyncIterator[X]:
        """The items of a list, each once it is finished and valid; see `Stream.items`."""
        async for _ in self._pump:
            for item in self._session.items():
                yield item
        for item in self._session.last_items():
            yield item

    async def result(self) -> Result[T]:
        """The whole answer: its value, its JSON, the report and what it cost."""
        async for _ in self._pump:
            pass
        return self._session.outcome()

    async def close(self) -> None:
        """Stop reading, and stop the model where that is possible."""
        await self._pump.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _pump(session: Session[Any]) -> Generator[None, None, None]:
    """Send what the session asks for and give it what comes; each step is a moment to look at it."""
    while not session.over:
        chunks = session.call.stream()
        try:
            try:
                for chunk in chunks:
                    session.push(chunk)
                    yield
                    if session.stopped:
                        break
            finally:
                if isinstance(chunks, Generator):
                    chunks.close()
        except BaseException as error:  # noqa: BLE001 — raised again, unless another model is asked
            session.fail(error)
            yield
        else:
            yield from session.end()


async def _pump_async(session: Session[Any]) -> AsyncGenerator[None, None]:
    while not session.over:
        chunks = session.call.stream_async()
        try:
            try:
                async for chunk in chunks:
                    session.push(chunk)
                    yield
                    if session.stopped:
                        break
            finally:
                if isinstance(chunks, AsyncGenerator):
                    await chunks.aclose()
        except BaseException as error:  # noqa: BLE001 — raised again, unless another model is asked
            session.fail(error)
            yield
        else:
            for _ in session.end():
                yield
