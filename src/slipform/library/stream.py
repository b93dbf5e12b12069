"""Iterate over an answer while it arrives: `Stream`, and `AsyncStream` for event loops."""

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
    """An answer while it arrives.

    ::

        with client.stream(Invoice, text) as stream:
            for partial in stream:
                show(partial)
            invoice = stream.result.value

    Iterate over it for partial values, over `deltas()` for the changes, over `items()` for the finished items of a
    list: one of these, once. `result` is the whole, valid answer; it reads the stream to its end. When an answer is
    invalid and the budget allows a retry, the stream starts over: `attempt` counts up and `deltas()` yields a
    `restart`. When no answer is valid, the errors of `ask` are raised.
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
        """Yield what each chunk changes in the answer's JSON, and where."""
        for _ in self._pump:
            yield from self._session.deltas()

    def items(self: Stream[list[X]]) -> Iterator[X]:
        """Yield the items of a list, each once it is finished and valid.

        After a retry, items that were yielded before are not repeated; raises `EnforcementError` if one has changed.
        """
        for _ in self._pump:
            yield from self._session.items()
        yield from self._session.last_items()

    @property
    def result(self) -> Result[T]:
        """The whole answer: its value, its JSON, the report and the tokens spent."""
        for _ in self._pump:
            pass
        return self._session.outcome()

    def close(self) -> None:
        """Stop reading, and stop the model where possible."""
        self._pump.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(AbstractAsyncContextManager["AsyncStream[T]"], Generic[T]):
    """`Stream` for event loops; `result` is a method here, because it must be awaited."""

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
        """Yield what each chunk changes in the answer's JSON, and where."""
        async for _ in self._pump:
            for delta in self._session.deltas():
                yield delta

    async def items(self: AsyncStream[list[X]]) -> AsyncIterator[X]:
        """Yield the items of a list, each once it is finished and valid; see `Stream.items`."""
        async for _ in self._pump:
            for item in self._session.items():
                yield item
        for item in self._session.last_items():
            yield item

    async def result(self) -> Result[T]:
        """Return the whole answer: its value, its JSON, the report and the tokens spent."""
        async for _ in self._pump:
            pass
        return self._session.outcome()

    async def close(self) -> None:
        """Stop reading, and stop the model where possible."""
        await self._pump.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _pump(session: Session[Any]) -> Generator[None, None, None]:
    """Send the session's requests and feed it the chunks; yields whenever the session may have changed."""
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
