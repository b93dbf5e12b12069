"""A helper process of a batch: rows come in over a socket, finished rows go out; it is gone when the batch is.

Started by `engine_processes` as `python -m slipform.runner.helper`, with the socket as its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from slipform.errors import SlipformError
from slipform.runner.asking import Answered, asker_of
from slipform.runner.engine_local import answer_rows, run_loop, until_one_ends
from slipform.runner.jobs import Task
from slipform.runner.pace import Pace, Refusal
from slipform.runner.travel import READ_AHEAD, News, Orders, Sent, pack, unpack

_MOMENT = 0.002


class _Mouth:
    """Sends what happened in a moment as one message: when answers come fast, a message for each would cost more."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._finished: list[Answered] = []
        self._refusals: list[Refusal] = []

    def finished(self, answered: Answered) -> None:
        """A row is finished."""
        self._soon()
        self._finished.append(answered)

    def refused(self, refusal: Refusal) -> None:
        """The vendor asks to slow down."""
        self._soon()
        self._refusals.append(refusal)

    def _soon(self) -> None:
        if not self._finished and not self._refusals:
            asyncio.get_running_loop().call_later(_MOMENT, self.send)

    def send(self, *, over: bool = False, error: SlipformError | None = None) -> None:
        """Send what there is."""
        if self._finished or self._refusals or over:
            self._write(pack(News(tuple(self._finished), tuple(self._refusals), over, error)))
            self._finished.clear()
            self._refusals.clear()


async def _help() -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=0), limit=READ_AHEAD)
    mouth = _Mouth(writer.write)
    error: SlipformError | None = None
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):  # the batch is gone
        try:
            await _work(await unpack(reader), reader, mouth)
        except SlipformError as failure:
            failure.report = None
            error = failure
        mouth.send(over=True, error=error)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def _work(sent: Sent, reader: asyncio.StreamReader, mouth: _Mouth) -> None:
    """Answer the rows that come; `IncompleteReadError` or `OSError` when the batch is gone."""
    job = sent.job()
    asker = asker_of(job, None)
    pace = Pace(job.concurrency, tell=mouth.refused)
    waiting: asyncio.Queue[Task | None] = asyncio.Queue()

    async def take() -> Task | None:
        task = await waiting.get()
        if task is None:
            waiting.put_nowait(None)  # for the next who asks
        return task

    async def listen() -> None:
        while True:
            orders: Orders = await unpack(reader)
            if isinstance(orders, Refusal):
                pace.heard(orders)
            else:
                for task in orders or (None,):
                    waiting.put_nowait(task)

    rows = answer_rows(take, asker, mouth.finished, concurrency=job.concurrency, window=job.window, pace=pace)
    await until_one_ends(rows, listen())


def main() -> None:
    """Help until there is no more to do, or nobody to do it for."""
    run_loop(_help)


if __name__ == "__main__":
    main()
