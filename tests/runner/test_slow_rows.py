"""One slow row does not hold up the rows behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from slipform.addons.batch.call import FinishedRow
from slipform.addons.batch.jobs import BatchJob, Task
from slipform.addons.batch.journal import JournalEntry
from slipform.addons.batch.rows import Template
from slipform.addons.batch.scheduler import answer_rows
from slipform.config import Settings
from slipform.engine import Options
from slipform.errors import SlipformError
from slipform.schema import Schema

ROWS = 10_000
SLOW = 7


class OneSlowRow:
    """Answers every row at once, but for one that is answered when all others have been."""

    def __init__(self) -> None:
        self.others_done = asyncio.Event()

    async def ask(self, task: Task) -> FinishedRow:
        if task.number == SLOW:
            await self.others_done.wait()
        return FinishedRow(JournalEntry(task.number, task.key, True, b"{}"))

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:
        raise error


async def test_ten_thousand_rows_finish_while_one_is_still_being_answered(tmp_path: Path) -> None:
    job = BatchJob(
        tmp_path / "in.jsonl",
        tmp_path / "out.jsonl",
        Schema.of({}),
        Template.read("{text}"),
        "m",
        Options(),
        Settings(),
    )
    caller = OneSlowRow()
    finished: list[int] = []

    def on_row(row: FinishedRow) -> None:
        finished.append(row.entry.row)
        if len(finished) == ROWS - 1:
            caller.others_done.set()

    tasks = (Task(number, str(number), {}) for number in range(1, ROWS + 1))
    await asyncio.wait_for(
        answer_rows(tasks, caller, on_row, concurrency=job.concurrency, window=job.window), timeout=60
    )
    assert finished[-1] == SLOW
    assert sorted(finished) == list(range(1, ROWS + 1))
