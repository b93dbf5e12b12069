"""The console's history on disk: what it keeps, for how long, and what becomes of calls when it cannot be written."""

from __future__ import annotations

import logging
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from slipform.addons.server.console.archive import CallArchive
from slipform.addons.server.console.history import CallHistory
from slipform.addons.server.observability.call_record import CallRecord, CallTrace
from slipform.testing import FakeModel
from tests.proxy.proxying import call, chat, proxied
from tests.proxy.test_console import API, cookie, own, read

CANARY = "xyzzy-canary"
DAY = 86_400.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def ended(history: CallHistory, name: str, *, traced: bool = False) -> str:
    """A call that is over."""
    record = CallRecord(name, api="openai-chat", model="m")
    trace = CallTrace() if traced else None
    if trace is not None:
        trace.request = b"words of " + name.encode()
    entry = history.begin(record)
    history.end(entry, record, trace)
    return entry


def test_calls_are_kept_over_a_restart_with_their_words_and_found_by_their_id(tmp_path: Path) -> None:
    file = tmp_path / "calls.sqlite"
    first = CallArchive(file)
    history = CallHistory(10_000, 10_000, first)
    plain, traced = ended(history, "plain"), ended(history, "traced", traced=True)
    first.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = CallHistory(10_000, 10_000, CallArchive(file))
    assert again.find(plain) is None
    found = again.find_archived(traced)
    assert found is not None
    assert "words of traced" in found["trace"]["request"]["text"]
    assert again.archive is not None
    assert {row["id"] for row in again.archive.rows(time.time() + 1)} == {traced, plain}
    assert again.pin(plain) is True
    assert [row["id"] for row in again.pinned()] == [plain]


def test_figures_expire_later_than_words_and_pinned_calls_stay(tmp_path: Path) -> None:
    file = tmp_path / "calls.sqlite"
    archive = CallArchive(file, days=10, text_days=1)
    now = time.time()
    for name, age in (("new", 0.1), ("older", 2), ("old", 20), ("pinned", 20)):
        row = orjson.dumps([name, *[None] * 26])
        archive.add(name, now - age * DAY, row, b'{"words": 1}')
    archive.pin("pinned", pinned=True)
    archive.close()
    pruning = CallArchive(file, days=10, text_days=1)
    assert pruning.flush()
    pruning.close()
    with sqlite3.connect(file) as database:
        kept = dict(database.execute("SELECT id, words IS NOT NULL FROM calls"))
    database.close()
    assert kept == {"new": 1, "older": 0, "pinned": 1}


def test_a_file_that_is_too_large_loses_its_oldest_calls(tmp_path: Path) -> None:
    file = tmp_path / "calls.sqlite"
    archive = CallArchive(file, max_bytes=1024 * 1024)
    now = time.time()
    for number in range(1500):
        archive.add(f"c{number}", now - 1500 + number, orjson.dumps([f"c{number}", *[None] * 26]), b"x" * 2000)
    archive.close()
    again = CallArchive(file, max_bytes=1024 * 1024)
    assert again.flush()
    again.close()
    names = [row["id"] for row in again.rows(now + 1)]
    assert "c1499" in names
    assert "c0" not in names


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_damaged_file_is_set_aside_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "calls.sqlite"
    file.write_bytes(b"this is not a database, " * 200)
    archive = CallArchive(file)
    history = CallHistory(10_000, 10_000, archive)
    kept = ended(history, "one")
    assert archive.flush()
    archive.close()
    (aside,) = tmp_path.glob("calls.sqlite.damaged-*")
    assert aside.read_bytes().startswith(b"this is not")
    assert aside.name in caplog.text
    assert archive.find(kept) is not None


def test_what_cannot_be_written_is_told_and_counted_and_calls_go_on(tmp_path: Path) -> None:
    archive = CallArchive(tmp_path / "no" / "such" / "folder" / "calls.sqlite")
    history = CallHistory(10_000, 10_000, archive)
    kept = ended(history, "one")
    archive.close()
    assert archive.problem
    assert archive.sizes()["dropped"] >= 1
    assert history.find(kept) is not None


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "calls.sqlite"
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    archive = CallArchive(file)
    ended(CallHistory(10_000, 10_000, archive), "one")
    archive.close()
    assert "newer slipform" in archive.problem
    assert list(tmp_path.glob("*.damaged-*")) == []


def test_older_calls_are_read_from_disk_and_filtered_like_others(tmp_path: Path) -> None:
    settings = {
        "default_model": "fake/m",
        "server": {"history": str(tmp_path / "calls.sqlite"), "console_bytes": 65536},
    }
    for _ in range(2):
        with proxied({"fake": FakeModel(['{"name":"Ada","age":36}'], models=["m"])}, settings) as address:
            assert chat(address).status == 200
            session = cookie(address)
            found = read(address, "requests?q=model:fake/m", session)["rows"]
            oldest = read(address, f"requests/{found[-1]['id']}", session)
            assert oldest["stage"] == "first"
    assert len(found) == 2
    assert len({row["id"] for row in found}) == 2


def test_with_traces_off_the_words_of_a_call_are_in_no_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """In prompt, answer, keys of an open map, a wrong value, tool arguments and names of callers' own fields."""
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "calls.sqlite"
    answers = [
        "{'" + CANARY + "': 1, 'name': '" + CANARY + "', 'age': '" + CANARY + "'}",
        '{"name": "' + CANARY + '", "age": 36,}',
    ]
    settings = {"default_model": "fake/m", "server": {"history": str(file)}}
    with proxied({"fake": FakeModel(answers * 4, models=["m"])}, settings) as address:
        session = cookie(address)
        said = [{"role": "user", "content": CANARY}]
        streamed: dict[str, Any] = {"stream": True, "slipform": {"stream_mode": "live"}}
        for more in ({}, streamed):
            chat(address, messages=said, **more)
        chat(address, messages=said, response_format=None, user=CANARY)
        chat(address, messages=said, response_format=None, stream=True)
        rows = read(address, "requests", session)["rows"]
        assert len(rows) == 4
        paths = ["requests", "stats", "schemas", "providers", "me", "keys", "models"]
        paths += [f"requests/{row['id']}" for row in rows] + [f"requests/{row['id']}/export" for row in rows]
        for path in paths:
            assert CANARY.encode() not in orjson.dumps(read(address, path, session)), path
        pinned = call(address, f"{API}requests/{rows[0]['id']}/pin", {}, own(address, cookie=session), method="PUT")
        assert pinned.json == {"pinned": True}
    stored = b"".join(each.read_bytes() for each in tmp_path.glob("calls.sqlite*"))
    assert b"fake/m" in stored
    assert CANARY.encode() not in stored
    out, err = capfd.readouterr()
    assert CANARY not in caplog.text + out + err
