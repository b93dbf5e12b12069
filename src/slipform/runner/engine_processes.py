"""The rows of a batch on several processes of this machine: they ask, this one reads, keeps order and writes.

A helper has a few rows more than it has calls at a time, and gets another for each that it finishes. When a vendor
asks one of them to slow down, all of them do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from slipform.errors import ConfigError, SlipformError
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.runner.asking import Answered
from slipform.runner.engine_local import Window
from slipform.runner.jobs import Job, Task
from slipform.runner.pace import Refusal
from slipform.runner.travel import READ_AHEAD, News, Orders, Sent, pack, unpack

_AHEAD = 2
"""Rows of a helper for each of its calls at a time: so that it never waits for the next one."""
_LAST_SECONDS = 5.0


def check_processes(job: Job, router: Router, processes: int) -> None:
    """Raise a `ConfigError` when a job cannot be shared among processes."""
    if processes < 1:
        raise ConfigError("A batch needs at least one process", where="processes")
    if not isinstance(router.resolve(job.model)[0], HttpProvider):
        raise ConfigError(
            f"{job.model} runs on this machine, and several processes would each load it",
            hint="Leave --processes out.",
        )
    if getattr(job.shape, "__module__", None) == "__main__":
        raise ConfigError(
            "Other processes cannot see a type of the script that was started",
            hint="Define it in a module that can be imported, or ask with one process.",
        )


async def answer_on_processes(
    job: Job, tasks: Iterator[Task], finished: Callable[[Answered], None], *, processes: int
) -> None:
    """Answer every row with helpers; `finished` is told of each as its news arrive.

    What no row could get past ends the run with that error; so does a helper that dies.
    """
    crew = _Crew(tasks, finished, Window(job.window))
    count = min(processes, job.concurrency)
    shares = [job.concurrency // count + (at < job.concurrency % count) for at in range(count)]
    try:
        async with asyncio.TaskGroup() as group:
            for share in shares:
                group.create_task(crew.tend(Sent.of(job, share)))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


@dataclass(slots=True, eq=False)
class _Helper:
    """A process that asks, seen from here."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    owed: int
    """How many rows it could be given now."""
    ended: bool = False
    """Whether it knows that there are no more."""

    def send(self, orders: Orders) -> None:
        """Tell it."""
        self.writer.write(pack(orders))


class _Crew:
    """The helpers, the rows that are left, and how far they may run ahead."""

    def __init__(self, tasks: Iterator[Task], finished: Callable[[Answered], None], line: Window) -> None:
        self._tasks = tasks
        self._finished = finished
        self._line = line
        self._places: dict[int, int] = {}
        self._helpers: list[_Helper] = []

    async def tend(self, sent: Sent) -> None:
        """Start a helper, and keep it busy until there are no more rows."""
        async with _started(sent) as helper:
            self._helpers.append(helper)
            self._hand_out()
            while True:
                news = await _news_of(helper)
                self._take(news, helper)
                if news.error is not None:
                    raise news.error
                if news.over:
                    self._helpers.remove(helper)
                    return
                self._hand_out()
                await helper.writer.drain()

    def _take(self, news: News, helper: _Helper) -> None:
        for answered in news.finished:
            self._finished(answered)
            self._line.end(self._places.pop(answered.entry.row))
        helper.owed += len(news.finished)
        for refusal in news.refusals:
            self._pass_on(refusal, helper)

    def _pass_on(self, refusal: Refusal, met_by: _Helper) -> None:
        for other in self._helpers:
            if other is not met_by:
                other.send(refusal)

    def _hand_out(self) -> None:
        """Give each helper the rows it is owed, as far as the window goes."""
        for helper in self._helpers:
            rows = list(islice(self._tasks, min(helper.owed, self._line.room_for)))
            for task in rows:
                self._places[task.number] = self._line.begin()
            helper.owed -= len(rows)
            if rows:
                helper.send(rows)
            elif helper.owed and not self._line.full and not helper.ended:
                helper.ended = True
                helper.send(None)


@contextlib.asynccontextmanager
async def _started(sent: Sent) -> AsyncIterator[_Helper]:
    """A helper that knows its job; when the block is left it is gone, whatever it was at."""
    here, there = socket.socketpair()
    with there:
        # In a session of its own it does not get the terminal's Ctrl-C: this process decides what to stop.
        process = subprocess.Popen(  # noqa: ASYNC220 — a moment
            [sys.executable, "-P", "-m", "slipform.runner.helper"],
            stdin=there.fileno(),
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    try:
        reader, writer = await asyncio.open_connection(sock=here, limit=READ_AHEAD)
        with contextlib.closing(writer):
            writer.write(pack(sent))
            yield _Helper(process, reader, writer, owed=_AHEAD * sent.concurrency)
            await asyncio.to_thread(_wait, process)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Let a helper that is done clear up after itself, but not for ever."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_SECONDS)


async def _news_of(helper: _Helper) -> News:
    try:
        news: News = await unpack(helper.reader)
    except (asyncio.IncompleteReadError, OSError):
        code = await asyncio.to_thread(helper.process.wait)
        fate = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        raise SlipformError(
            f"A helper process of the batch {fate}",
            hint="What is done is kept: run the same command again. If it stays so, give fewer --processes.",
        ) from None
    return news
