"""Persist the downgrades of vendors' models in a file, for the next start and `slipform models show`."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import orjson

from slipform.providers.retry import DOWNGRADE_SECONDS, DOWNGRADES, Downgrade, MemoryDowngrades
from slipform.state_folder import state_folder

_log = logging.getLogger("slipform.providers")
_MOST_LINES = 2_000
_LONGEST_KEY = 2_000


def downgrade_file() -> Path:
    """Return the path of the file, in the state folder."""
    return state_folder() / "downgrades.jsonl"


def read_downgrades(path: Path) -> list[Downgrade]:
    """Return the downgrades of the file that have not expired, the newest last; unreadable lines are skipped."""
    try:
        lines = path.read_bytes().splitlines()[-_MOST_LINES:]
    except OSError:
        return []
    now = time.time()
    downgrades: dict[tuple[str, str], Downgrade] = {}
    for line in lines:
        try:
            row = orjson.loads(line)
            key = str(row["key"])
            name = str(row["lesson"])
            left = float(row["until"]) - now
        except (ValueError, KeyError, TypeError):
            continue
        # An expired line cancels an earlier one: the downgrade was dropped.
        downgrades.pop((key, name), None)
        if name in DOWNGRADES and len(key) <= _LONGEST_KEY and 0 < left <= DOWNGRADE_SECONDS:
            downgrades[key, name] = Downgrade(key, name, left)
    return list(downgrades.values())


def remembered_downgrades(path: Path) -> MemoryDowngrades:
    """Return a store that starts with the downgrades of the file, and appends new ones to it."""
    stored = read_downgrades(path)
    if stored and path.stat().st_size > _MOST_LINES * 100:
        _write(path, stored, mode="wb")

    def append(each: Downgrade) -> None:
        _write(path, [each], mode="ab")

    stored_keys = {(each.key, each.name) for each in stored}
    # Downgrades read from the file are not appended to it again.
    store = MemoryDowngrades(on_add=lambda each: None if (each.key, each.name) in stored_keys else append(each))
    for each in stored:
        store.add(each.key, each.name, each.seconds)
    stored_keys.clear()
    return store


def _write(path: Path, rows: list[Downgrade], *, mode: str) -> None:
    now = time.time()
    lines = [{"key": each.key, "lesson": each.name, "until": int(now + each.seconds)} for each in rows]
    text = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if mode == "ab" else os.O_TRUNC)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, flags, 0o600)
        try:
            os.write(handle, text)
        finally:
            os.close(handle)
    except OSError as error:
        _log.info("downgrades: cannot be saved, file=%s, error=%s", path, error.strerror)
