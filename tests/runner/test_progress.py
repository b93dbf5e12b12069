"""How far a batch is."""

from __future__ import annotations

import asyncio
import io
import time

import pytest

from slipform.addons.batch import outputs as progress
from slipform.addons.batch.call import FinishedRow
from slipform.addons.batch.journal import JournalEntry
from slipform.addons.batch.outputs import Display, Tally, show
from slipform.ir import Usage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_tally_counts_rows_tokens_and_money() -> None:
    tally = Tally(3)
    tally.add(FinishedRow(JournalEntry(1, "1", True, b""), Usage(input=2, output=1), 0.5))
    tally.add(FinishedRow(JournalEntry(2, "2", False, b""), Usage(input=2, output=1), 0.25))
    assert (tally.done, tally.failed, tally.usage.total, tally.cost) == (2, 1, 6, 0.75)
    assert "2 of 3 rows, 1 failed" in tally.describe()


def test_off_a_terminal_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    with Display(Tally(4, done=1, started=time.monotonic() - 1), stream=out) as display:
        display.step()
        assert out.getvalue() == ""
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
        display.step()
    assert out.getvalue().startswith("slipform: 1 of 4 rows")
    assert out.getvalue().endswith("to go\n")


def test_on_a_terminal_there_is_a_bar_that_goes_away() -> None:
    out = Terminal()
    with Display(Tally(4, done=1), stream=out) as display:
        display.step()
        assert out.getvalue() != ""


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    out = Terminal()
    with Display(Tally(4, done=1), quiet=True, stream=out) as display:
        display.step()
    assert out.getvalue() == ""


async def test_house_is_kept_while_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FRAME_SECONDS", 0.001)
    monkeypatch.setattr(progress, "SYNC_SECONDS", 0.0)
    kept = asyncio.Event()
    loop = asyncio.get_running_loop()

    def keep() -> None:
        loop.call_soon_threadsafe(kept.set)

    shown = asyncio.create_task(show(Display(Tally(1), quiet=True), keep))
    async with asyncio.timeout(10):
        await kept.wait()
    shown.cancel()
    await asyncio.gather(shown, return_exceptions=True)
