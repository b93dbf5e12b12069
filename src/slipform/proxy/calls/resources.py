"""Remember which caller's key made which of a vendor's resources, so that no other key can see or use it.

All callers share one key at the vendor, so the vendor would show everybody's files and responses to everybody. A table
of the ledger says whose they are. Without callers' keys there is nobody to tell apart, and no table.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import orjson

from slipform.errors import RequestError, SlipformError
from slipform.proxy.admission.ledger import SpendLedger

T = TypeVar("T")

_MARK: Final = "resp_sf1_"
_PLAIN: Final = re.compile(r"[^A-Za-z0-9.-]")
_QUOTED: Final = re.compile(r"~([0-9a-f]{2})")


class NoSuchResourceError(RequestError):
    """There is no such resource, or it is another key's: callers are not told which."""

    code = "resource_not_found"
    http_status = 404


class ResponseNotStoredError(RequestError):
    """No provider here keeps responses."""

    code = "response_not_stored"
    http_status = 404


class ResourcesUnavailableError(SlipformError):
    """The table of resources cannot be opened or written."""

    code = "resources_unavailable"
    http_status = 503


def mark(provider: str, identity: str) -> str:
    """Return a response's id with the name of the provider that keeps it.

    >>> mark("my_gpu", "resp_1"), unmark("resp_sf1_my~5fgpu_resp_1")
    ('resp_sf1_my~5fgpu_resp_1', ('my_gpu', 'resp_1'))
    """
    plain = _PLAIN.sub(lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode()), provider)
    return f"{_MARK}{plain}_{identity}"


def unmark(identity: str) -> tuple[str | None, str]:
    """Return the provider that an id names, and the vendor's own id; None for an id without a mark."""
    if not identity.startswith(_MARK):
        return None, identity
    name, _, rest = identity.removeprefix(_MARK).partition("_")
    raw = _QUOTED.sub(lambda found: chr(int(found[1], 16)), name)
    return raw.encode("latin-1", "replace").decode("utf-8", "replace"), rest


_LIFECYCLE: Final = b'"response":'


class ResponseMarks:
    """Marks the ids of the responses in one answer with the provider that keeps them, and remembers whose they are.

    Only JSON strings that are such an id change; everything else is passed on byte for byte.
    """

    def __init__(
        self, provider: str, known: Mapping[str, str] = MappingProxyType({}), store: ResourceStore | None = None,
        key: str = "",
    ) -> None:  # fmt: skip
        """`known` are the marked ids that the request itself named, by the vendor's own."""
        self._provider = provider
        self._store = store
        self._key = key
        self._tokens = {_token(each): _token(marked) for each, marked in known.items()}
        self._rest = b""

    def whole(self, data: bytes) -> bytes:
        """Mark a whole answer."""
        try:
            response = orjson.loads(data)
        except orjson.JSONDecodeError:
            return data
        return self._replaced(data) if self._learn(response) else data

    def feed(self, data: bytes) -> bytes:
        """Mark the next piece of a stream, line by line; nothing stands for its end."""
        if not data:
            rest, self._rest = self._rest, b""
            return self._line(rest)
        if not self._rest and data.endswith(b"\n") and _LIFECYCLE not in data:
            return data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return b"".join([self._line(line) + b"\n" for line in lines])

    def _line(self, line: bytes) -> bytes:
        if _LIFECYCLE not in line or not line.startswith(b"data:"):
            return line
        try:
            event = orjson.loads(line[5:])
        except orjson.JSONDecodeError:
            return line
        return self._replaced(line) if isinstance(event, dict) and self._learn(event.get("response")) else line

    def _learn(self, response: Any) -> bool:
        """Note the ids of a response; return False for what is none."""
        identity = response.get("id") if isinstance(response, dict) else None
        if not isinstance(identity, str):
            return False
        token = _token(identity)
        if token not in self._tokens:
            self._tokens[token] = _token(mark(self._provider, identity))
            if self._store is not None:
                self._store.note(self._provider, "response", [identity], self._key)
        output = response.get("output")
        if self._store is not None and isinstance(output, list) and output:
            items = [str(each["id"]) for each in output if isinstance(each, dict) and each.get("id")]
            self._store.note(self._provider, "item", items, self._key)
        return True

    def _replaced(self, data: bytes) -> bytes:
        for token, marked in self._tokens.items():
            data = data.replace(token, marked)
        return data


def _token(text: str) -> bytes:
    """A string as JSON writes it: no other string holds these bytes, for its own quotes are escaped."""
    return orjson.dumps(text)


class ResourceStore:
    """The table `resources` of the ledger's file: whose each resource is."""

    def __init__(self, ledger: SpendLedger) -> None:
        self._ledger = ledger

    def note(self, provider: str, kind: str, ids: Iterable[str], key: str) -> None:
        """Remember whose these are, soon: what is asked afterwards is asked of the same thread."""
        self._ledger.post(_adding(provider, kind, ids, key))

    async def add(self, provider: str, kind: str, ids: Iterable[str], key: str) -> None:
        """Remember whose these are; a resource stays with the key that was first seen with it."""
        await self._run(_adding(provider, kind, ids, key))

    async def remove(self, provider: str, identity: str) -> None:
        """Forget a resource that was deleted."""
        await self._query("DELETE FROM resources WHERE provider = ? AND id = ?", provider, identity)

    async def provider_of(self, kind: str, identity: str, key: str, provider: str | None = None) -> str:
        """Return the provider that keeps a key's resource; raises `NoSuchResourceError` for any other key's."""
        query = "SELECT provider FROM resources WHERE id = ? AND kind = ? AND key = ? AND ? IN (provider, '')"
        rows = await self._query(query, identity, kind, key, provider or "")
        if not rows:
            raise NoSuchResourceError(f"There is no {kind} {identity[:100]!r}", where=kind)
        found: str = rows[0][0]
        return found

    async def owned(self, provider: str, kind: str, key: str, ids: Collection[str]) -> set[str]:
        """Return those of the ids that are the key's."""
        marks = ",".join("?" * len(ids))
        query = f"SELECT id FROM resources WHERE provider = ? AND kind = ? AND key = ? AND id IN ({marks})"  # noqa: S608
        return {row[0] for row in await self._query(query, provider, kind, key, *ids)}

    async def _query(self, query: str, *values: str) -> list[Any]:
        return await self._run(lambda db: db.execute(query, values).fetchall())

    async def _run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._ledger.run(act)
        except (sqlite3.Error, OSError) as error:
            raise ResourcesUnavailableError(
                f"Whose resource this is cannot be looked up: {error}",
                hint="`ledger.path` must be a file that this process can write.",
            ) from error


def _adding(provider: str, kind: str, ids: Iterable[str], key: str) -> Callable[[sqlite3.Connection], object]:
    now = time.time()
    rows = [(provider, each, kind, key, now) for each in ids]
    return lambda db: db.executemany("INSERT OR IGNORE INTO resources VALUES (?, ?, ?, ?, ?)", rows)
