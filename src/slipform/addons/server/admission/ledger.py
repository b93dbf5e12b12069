"""Store in SQLite what keys have spent, what is reserved for running calls, and every call.

One thread of a process writes; several processes share the file, whose locks isolate their transactions. Jobs that
are queued together share a transaction. The event loop never waits for the thread: callers await a future, and
writes that are not awaited are retried until they succeed.

A reservation counts until it is settled, even after its process has ended: the cost of its call is then unknown, so
the reserved amount is counted. Only the number of calls in progress drops it, after a minute without renewal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from slipform.addons.server.admission.budgets import PERIODS, KeyBudget, Standing, bucket_of, period_end, period_start

T = TypeVar("T")
_log = logging.getLogger("slipform.server")
LEASE_SECONDS: Final = 60.0
"""Seconds after which a reservation that is not renewed no longer counts as a running call."""
_LOST_SECONDS = 3600.0
"""Seconds after which an unsettled reservation that is not renewed is recorded as spent."""
_DAY = 86_400.0
_KEEP_SUMS_DAYS = 400
_MOST_TOGETHER = 256
_RETRY_SECONDS = 0.2
_MOST_KEPT = 10_000
"""The most entries in memory while the file cannot be written."""
_BUSY_MS = 5_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sums(
    key TEXT, bucket TEXT, requests INTEGER, tokens INTEGER, cost INTEGER, ends REAL, PRIMARY KEY (key, bucket)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds(
    id TEXT PRIMARY KEY, key TEXT, name TEXT, model TEXT, owner TEXT, at REAL, until REAL, tokens INTEGER, cost INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holds_of_key ON holds(key, at, until, tokens, cost);
CREATE TABLE IF NOT EXISTS calls(
    at REAL, key TEXT, name TEXT, request TEXT, model TEXT, tokens_in INTEGER, tokens_out INTEGER, cost INTEGER,
    attempts INTEGER, outcome TEXT
);
CREATE INDEX IF NOT EXISTS calls_at ON calls(at);
CREATE TABLE IF NOT EXISTS untold(hold TEXT PRIMARY KEY, key TEXT, bucket TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS resources(
    provider TEXT, id TEXT, kind TEXT, key TEXT, created REAL, PRIMARY KEY (provider, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS resources_by_id ON resources(id);
CREATE TABLE IF NOT EXISTS batch_files(provider TEXT, id TEXT, models TEXT, PRIMARY KEY (provider, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch_shapes(provider TEXT, id TEXT, shapes TEXT, PRIMARY KEY (provider, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""


class Hold(NamedTuple):
    """A reservation for one call; `at` is when the call began, which determines the period."""

    id: str
    key: str
    name: str
    at: float
    tokens: int = 0
    cost: int = 0


class CallEntry(NamedTuple):
    """A line of the ledger: one call that has ended. `cost` is None where no price is known."""

    at: float
    key: str
    name: str
    request: str
    model: str
    tokens_in: int
    tokens_out: int
    cost: int | None
    attempts: int
    outcome: str


@dataclass(eq=False, slots=True)
class _Job:
    act: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any] | None
    """The waiting task; None for a write that is not awaited."""
    otherwise: Callable[[sqlite3.Connection], Any] | None = None
    """The job to run instead if this one is at fault."""


class SpendLedger:
    """The file and the thread that writes it; it is opened on first use."""

    def __init__(self, path: Path, keep_days: int = 90) -> None:
        self.path = path
        self.owner = secrets.token_hex(8)
        """Identifies this process in its reservations."""
        self._keep_days = keep_days
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._complained = False

    async def run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Run `act` in the thread, and return its result once its transaction is committed; raises its exceptions."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Job(act, future))
        return await future

    def post(
        self,
        act: Callable[[sqlite3.Connection], Any],
        otherwise: Callable[[sqlite3.Connection], Any] | None = None,
    ) -> None:
        """Queue a write without waiting for it; it is retried until it succeeds, or until `otherwise` replaces it."""
        self._put(_Job(act, None, otherwise))

    def close(self) -> None:
        """Run the queued jobs and close the file; blocks until that is done."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _put(self, job: _Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="slipform-ledger", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        """Write jobs to the database, one batch after another, until the ledger is closed."""
        connection: sqlite3.Connection | None = None
        going = True
        pruned = 0.0
        unwritten: list[_Job] = []
        while going:
            going, jobs = self._next(pause=bool(unwritten))
            jobs = [*unwritten, *jobs]
            try:
                if connection is None:
                    connection = open_ledger(self.path)
                if time.monotonic() - pruned > _LOST_SECONDS or not pruned:
                    _prune(connection, time.time(), self._keep_days)
                    pruned = time.monotonic()
            except Exception as error:  # noqa: BLE001 — without this thread no caller would get an answer
                unwritten = self._failed(jobs, error)
            else:
                unwritten = self._run_jobs(connection, jobs) if jobs else []
            if len(unwritten) > _MOST_KEPT or (unwritten and not going):
                _log.error(
                    "ledger: entries lost, their reservations stay, file=%s, entries=%d", self.path, len(unwritten)
                )
                unwritten = []
        if connection is not None:
            connection.close()

    def _next(self, *, pause: bool) -> tuple[bool, list[_Job]]:
        """Return the queued jobs, and whether more will follow; none after a pause, so that failed jobs are retried."""
        jobs: list[_Job] = []
        try:
            job = self._jobs.get(timeout=_RETRY_SECONDS if pause else None)
            while job is not None:
                jobs.append(job)
                if len(jobs) == _MOST_TOGETHER:
                    return True, jobs
                job = self._jobs.get_nowait()
        except queue.Empty:
            return True, jobs
        return False, jobs

    def _run_jobs(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Job]:
        """Run jobs in one transaction; return those to retry."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [job.act(connection) for job in jobs]
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 — whatever it is, nothing of the transaction counts
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(jobs) > 1:  # one job or all of them may be at fault
                return [unwritten for job in jobs for unwritten in self._run_jobs(connection, [job])]
            if _is_of_file(error) or jobs[0].future is not None:
                return self._failed(jobs, error)
            _log.error("ledger: entry cannot be written, error=%r", error)
            otherwise = jobs[0].otherwise
            if otherwise is None:
                return []
            return self._run_jobs(connection, [_Job(otherwise, None)])
        self._complained = False
        _deliver(jobs, results)
        return []

    def _failed(self, jobs: list[_Job], error: Exception) -> list[_Job]:
        """Fail the jobs that are awaited; return the others, to be retried."""
        waited = [job for job in jobs if job.future is not None]
        _deliver(waited, [error] * len(waited))
        if not self._complained:
            self._complained = True
            _log.error(
                "ledger: cannot be written, refusing keys with budgets until it can, file=%s, error=%s",
                self.path,
                error,
            )
        return [job for job in jobs if job.future is None]


def _is_of_file(error: Exception) -> bool:
    """Return whether an error comes from the file and may be temporary, rather than from the job."""
    return isinstance(error, sqlite3.OperationalError | OSError) or type(error) is sqlite3.DatabaseError


def _deliver(jobs: Sequence[_Job], results: Sequence[Any]) -> None:
    """Pass the results of these jobs to the event loop in one call."""
    waited = [(job.future, result) for job, result in zip(jobs, results, strict=True) if job.future is not None]
    loops = {future.get_loop() for future, _ in waited}
    for loop in loops:
        here = [(future, result) for future, result in waited if future.get_loop() is loop]
        try:
            loop.call_soon_threadsafe(_resolve, here)
        except RuntimeError:  # the loop is closed, and no caller waits any more
            continue


def _resolve(results: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in results:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def open_ledger(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Connect to a ledger's file, which is created if missing; raises `sqlite3.Error` or `OSError`."""
    if readonly:
        return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # not for other users
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
        connection.execute("INSERT OR IGNORE INTO facts VALUES ('machine', ?)", (secrets.token_hex(8),))
    except BaseException:
        connection.close()
        raise
    return connection


def machine_of(connection: sqlite3.Connection) -> str:
    """Return the name of this file among those of several machines."""
    machine: str = connection.execute("SELECT value FROM facts WHERE name = 'machine'").fetchone()[0]
    return machine


def standing(connection: sqlite3.Connection, key: str, kind: str, now: float) -> Standing:
    """Return the standing of a key in its current period."""
    sums = connection.execute(
        "SELECT requests, tokens, cost FROM sums WHERE key = ? AND bucket = ?", (key, bucket_of(kind, now))
    ).fetchone()
    reserved = connection.execute(
        "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost), 0), coalesce(sum(until > ?), 0) FROM holds "
        "WHERE key = ? AND at >= ?",
        (now, key, period_start(kind, now).timestamp()),
    ).fetchone()
    return Standing(*(sums or (0, 0, 0)), *reserved)


def reserve(
    connection: sqlite3.Connection,
    hold: Hold,
    tokens: int,
    cost: int,
    budget: KeyBudget,
    *,
    model: str,
    owner: str,
    now: float,
) -> tuple[Standing, str | None]:
    """Reserve this total for a call if the budget has room; return the key's standing, and the limit without room.

    The total is stored, not a difference, so that the step may be repeated.
    """
    previous_hold: tuple[int, int] | None = connection.execute(_HELD, (hold.id,)).fetchone()
    held_tokens, held_cost = previous_hold or (0, 0)
    more_tokens = tokens - held_tokens
    more_cost = cost - held_cost
    stands = standing(connection, hold.key, budget.period, now)
    if (limit := stands.refusal(budget, more_tokens, more_cost, further=previous_hold is not None)) is not None:
        return stands, limit
    connection.execute(
        "INSERT OR REPLACE INTO holds(id, key, name, model, owner, at, until, tokens, cost) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (hold.id, hold.key, hold.name, model, owner, hold.at, now + LEASE_SECONDS, tokens, cost),
    )
    return stands.with_hold(more_tokens, more_cost, further=previous_hold is not None), None


_HELD = "SELECT tokens, cost FROM holds WHERE id = ?"


def settle(
    connection: sqlite3.Connection, hold_id: str | None, held_at: float, entry: CallEntry, tell: str | None = None
) -> None:
    """Record the cost of a call in the periods of its reservation, and release the reservation.

    `tell` is the bucket in which the release has to be published to other machines.
    """
    if hold_id is not None:
        release(connection, hold_id, entry.key, tell)
    connection.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", entry)
    tokens = entry.tokens_in + entry.tokens_out
    for kind in PERIODS:
        end = period_end(kind, held_at)
        connection.execute(
            "INSERT INTO sums VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "requests = requests + 1, tokens = min(tokens + excluded.tokens, ?), cost = min(cost + excluded.cost, ?)",
            (
                entry.key,
                bucket_of(kind, held_at),
                tokens,
                entry.cost or 0,
                end.timestamp() if end else None,
                *_MOST_SUMS,
            ),
        )


_MOST_SUMS = (10**15, 10**18)
"""Limit tokens and nanos so that SQLite's integers, and their sums with those of other machines, do not overflow."""


def release(connection: sqlite3.Connection, hold_id: str, key: str, tell: str | None = None) -> None:
    """Release a reservation, and note that the release has to be published to the machines that share this bucket."""
    if tell is not None:
        connection.execute("INSERT OR IGNORE INTO untold VALUES (?, ?, ?)", (hold_id, key, tell))
    connection.execute("DELETE FROM holds WHERE id = ?", (hold_id,))


def renew(connection: sqlite3.Connection, owner: str, now: float) -> None:
    """Renew the reservations of this process, whose calls are still in progress."""
    connection.execute("UPDATE holds SET until = ? WHERE owner = ?", (now + LEASE_SECONDS, owner))


class SpentHere(NamedTuple):
    """Return the spending of a key here in a period, and the settled reservations that Redis may not know yet."""

    tokens: int
    cost: int
    settled_holds: tuple[str, ...]


def snapshot(connection: sqlite3.Connection, key: str, bucket: str) -> SpentHere:
    """Return the spending of a key in a period that is published to Redis."""
    sums = connection.execute("SELECT tokens, cost FROM sums WHERE key = ? AND bucket = ?", (key, bucket)).fetchone()
    rows = connection.execute("SELECT hold FROM untold WHERE key = ? AND bucket = ?", (key, bucket)).fetchall()
    tokens, cost = sums or (0, 0)
    return SpentHere(tokens, cost, tuple([hold for (hold,) in rows]))


def prune_published(connection: sqlite3.Connection, holds: Sequence[str]) -> None:
    """Note that Redis knows that these reservations are settled."""
    connection.executemany("DELETE FROM untold WHERE hold = ?", [(hold,) for hold in holds])


def untold_buckets(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the keys and buckets with changes that Redis does not have yet."""
    return connection.execute("SELECT DISTINCT key, bucket FROM untold").fetchall()


def sums_at(connection: sqlite3.Connection, now: float) -> list[tuple[str, str]]:
    """Return the keys that have spent something here in a current period, and the period's bucket."""
    return connection.execute("SELECT key, bucket FROM sums WHERE ends IS NULL OR ends > ?", (now,)).fetchall()


def _prune(connection: sqlite3.Connection, now: float, keep_days: int) -> None:
    """Count lost reservations as spent, and delete old entries."""
    connection.execute("BEGIN IMMEDIATE")
    lost = connection.execute(
        "SELECT id, key, name, model, at, tokens, cost FROM holds WHERE until < ?", (now - _LOST_SECONDS,)
    ).fetchall()
    for hold_id, key, name, model, at, tokens, cost in lost:
        settle(connection, hold_id, at, CallEntry(at, key, name, hold_id, model, 0, tokens, cost, 1, "lost"))
    connection.execute("DELETE FROM calls WHERE at < ?", (now - keep_days * _DAY,))
    connection.execute("DELETE FROM sums WHERE ends < ?", (now - _KEEP_SUMS_DAYS * _DAY,))
    # Vendors keep responses for 30 days at most, items and containers no longer; files until they are deleted.
    connection.execute(
        "DELETE FROM resources WHERE kind IN ('response', 'item', 'container', 'audio') AND created < ?",
        (now - 31 * _DAY,),
    )
    connection.execute("COMMIT")
