"""Iterate over an answer while it arrives: `Stream`, and `AsyncStream` for event loops."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeAlias, TypeVar

from slipform.library.partial import Partial
from slipform.library.stream_session import CallDelta, Delta, Restart, Result, Session, TextDelta
from slipform.library.tool_loop import BlockingTools, ToolRun, run_calls
from slipform.providers.concurrency import off_loop

T = TypeVar("T")
X = TypeVar("X")
Event: TypeAlias = TextDelta | CallDelta | ToolRun | Restart | Partial[T] | Result[T]
"""What `events()` yields."""

__all__ = ["AsyncStream", "CallDelta", "Delta", "Event", "Restart", "Result", "Stream", "TextDelta"]


def _no_items() -> Iterator[Any]:
    return iter(())


def refuse_read_stream(session: Session[Any], *, closed: bool) -> None:
    """Raise `RuntimeError` for a stream that was read to its end or closed."""
    if closed or session.over:
        state = "was closed" if closed else "has been read to its end"
        raise RuntimeError(f"This stream {state}; take the answer from `result`, or make the call again")


class PendingResult(Generic[T]):
    """`AsyncStream.result` before it is called: using it like the answer raises an error that says to await it."""

    def __init__(self, whole: Callable[[], Coroutine[Any, Any, Result[T]]]) -> None:
        self._whole = whole

    def __call__(self) -> Coroutine[Any, Any, Result[T]]:
        """Read the stream to its end and return the answer."""
        return self._whole()

    def __await__(self) -> NoReturn:
        raise TypeError("`result` is a method here: write `await stream.result()`")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"`result` has to be awaited first: write `(await stream.result()).{name}`")


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
        self._closed = False

    @property
    def attempt(self) -> int:
        """The number of the current attempt, counted from 1; with tools, within the step."""
        return self._session.attempt

    @property
    def step(self) -> int:
        """The number of the model's current answer, counted from 1; more than 1 only after tool calls."""
        return self._session.step

    def __iter__(self) -> Iterator[Partial[T]]:
        return self._iterate(self._session.partials)

    def deltas(self) -> Iterator[Delta]:
        """Yield the changes that each chunk makes to the answer's JSON."""
        return self._iterate(self._session.deltas)

    def events(self) -> Iterator[Event[T]]:
        """Yield every event: text, growing tool calls, their results, partial values, and the result."""
        return self._iterate(self._session.events)

    def items(self: Stream[list[X]]) -> Iterator[X]:
        """Yield the items of a list, each once it is finished and valid.

        After a retry, items that were yielded before are not repeated; raises `EnforcementError` if one has changed.
        """
        return self._iterate(self._session.items, self._session.last_items)

    def _iterate(self, new: Callable[[], Iterator[X]], last: Callable[[], Iterator[X]] = _no_items) -> Iterator[X]:
        refuse_read_stream(self._session, closed=self._closed)
        return self._read(new, last)

    def _read(self, new: Callable[[], Iterator[X]], last: Callable[[], Iterator[X]]) -> Iterator[X]:
        for _ in self._pump:
            yield from new()
        yield from last()

    @property
    def result(self) -> Result[T]:
        """The whole answer: its value, its JSON, the report and the usage."""
        for _ in self._pump:
            pass
        return self._session.outcome()

    def close(self) -> None:
        """Stop reading, and stop the model where possible."""
        self._closed = True
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
        self._closed = False

    @property
    def attempt(self) -> int:
        """The number of the current attempt, counted from 1; with tools, within the step."""
        return self._session.attempt

    @property
    def step(self) -> int:
        """The number of the model's current answer, counted from 1; more than 1 only after tool calls."""
        return self._session.step

    def __aiter__(self) -> AsyncIterator[Partial[T]]:
        return self._iterate(self._session.partials)

    def deltas(self) -> AsyncIterator[Delta]:
        """Yield the changes that each chunk makes to the answer's JSON."""
        return self._iterate(self._session.deltas)

    def events(self) -> AsyncIterator[Event[T]]:
        """Yield every event; see `Stream.events`."""
        return self._iterate(self._session.events)

    def items(self: AsyncStream[list[X]]) -> AsyncIterator[X]:
        """Yield the items of a list, each once it is finished and valid; see `Stream.items`."""
        return self._iterate(self._session.items, self._session.last_items)

    def _iterate(self, new: Callable[[], Iterator[X]], last: Callable[[], Iterator[X]] = _no_items) -> AsyncIterator[X]:
        refuse_read_stream(self._session, closed=self._closed)
        return self._read(new, last)

    async def _read(self, new: Callable[[], Iterator[X]], last: Callable[[], Iterator[X]]) -> AsyncIterator[X]:
        async for _ in self._pump:
            for each in new():
                yield each
        for each in last():
            yield each

    @property
    def result(self) -> PendingResult[T]:
        """The whole answer, by `await stream.result()`: its value, its JSON, the report and the usage."""
        return PendingResult(self._whole)

    async def _whole(self) -> Result[T]:
        async for _ in self._pump:
            pass
        return self._session.outcome()

    async def close(self) -> None:
        """Stop reading, and stop the model where possible."""
        self._closed = True
        await self._pump.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _pump(session: Session[Any]) -> Generator[None, None, None]:
    """Send the session's requests and feed it the chunks; yields whenever the session may have changed."""
    tools = BlockingTools(session.toolbox)
    try:
        while not session.over:
            if session.pending is not None:
                session.add_results(tools.run(session.pending))
                yield
                continue
            if session.call.request.beside:
                session.judge(session.call.answers())
                yield
                continue
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
    finally:
        tools.close()


async def _pump_async(session: Session[Any]) -> AsyncGenerator[None, None]:
    """Feed the session with chunks and tool results until it is over; yield after each."""
    while not session.over:
        if session.pending is not None:
            session.add_results(await run_calls(session.toolbox, session.pending))
            yield
            continue
        if session.call.request.beside:
            await off_loop(session.judge, await session.call.answers_async())
            yield
            continue
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
            judging = session.end()
            next(judging)
            yield
            if session.judges_quickly():
                next(judging)
            else:
                await off_loop(next, judging)
            yield
