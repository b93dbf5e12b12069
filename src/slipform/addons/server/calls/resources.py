"""Record which caller's key created a vendor's resource, so that no other key can see or use it.

All callers share one key at the vendor, which would show everyone's files and responses to each of them. A table of the
ledger has their owners. Without callers' keys, callers cannot be distinguished, and the table is not used.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import orjson

from slipform.addons.server.admission.ledger import SpendLedger
from slipform.errors import RequestError, SlipformError

T = TypeVar("T")

MARK: Final = "resp_sf1_"
"""The prefix of response ids that contain the name of the provider."""
_PLAIN: Final = re.compile(r"[^A-Za-z0-9.-]")
_QUOTED: Final = re.compile(r"~([0-9a-f]{2})")


class NoSuchResourceError(RequestError):
    """The resource does not exist, or belongs to another key: callers do not learn which."""

    code = "resource_not_found"
    http_status = 404


class NoPreviousResponseError(NoSuchResourceError):
    """The response that a request continues is not stored for its key; OpenAI answers this with 400."""

    code = "previous_response_not_found"
    http_status = 400


class ResponseNotStoredError(RequestError):
    """No provider here stores responses."""

    code = "response_not_stored"
    http_status = 404


class ResourcesUnavailableError(SlipformError):
    """The table of resources cannot be opened or written."""

    code = "resources_unavailable"
    http_status = 503


def mark(provider: str, identity: str) -> str:
    """Return a response's id with the name of the provider that stores it.

    >>> mark("my_gpu", "resp_1"), unmark("resp_sf1_my~5fgpu_resp_1")
    ('resp_sf1_my~5fgpu_resp_1', ('my_gpu', 'resp_1'))
    """
    plain = _PLAIN.sub(lambda match: "".join(f"~{byte:02x}" for byte in match[0].encode()), provider)
    return f"{MARK}{plain}_{identity}"


def unmark(identity: str) -> tuple[str | None, str]:
    """Return the provider that an id names, and the vendor's own id; None for an id without a mark."""
    if not identity.startswith(MARK):
        return None, identity
    name, _, rest = identity.removeprefix(MARK).partition("_")
    raw = _QUOTED.sub(lambda match: chr(int(match[1], 16)), name)
    return raw.encode("latin-1", "replace").decode("utf-8", "replace"), rest


_LIFECYCLE: Final = b'"response"'
_CREATING: Final = (b'"container', b'"file_id"', b'"audio"')
"""Texts of which every event that creates a resource of `created_in` contains one."""
_MOST_IDS: Final = 500
"""Ids in one query; SQLite takes 999 values at least."""


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        return (each for each in value if isinstance(each, dict))
    return iter(())


def _inner(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    return None


def created_in(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the kinds and ids of the resources that a model's answer has created.

    In Responses: items, and the containers in which code ran. In Messages: the container, and the files written there.
    In Chat Completions: audio, to which a later turn can refer.

    >>> list(created_in({"output": [{"id": "ci_1", "container_id": "cntr_1"}], "container": {"id": "c_2"}}))
    [('item', 'ci_1'), ('container', 'cntr_1'), ('container', 'c_2')]
    """
    created: list[tuple[str, Any]] = []
    for item in _objects(answer.get("output")):
        created += [("item", item.get("id")), ("container", item.get("container_id"))]
        created.append(("container", _inner(item.get("environment"), "container_id")))
    created.append(("container", _inner(answer.get("container"), "id")))
    for block in _objects(answer.get("content")):
        written = _objects(_inner(block.get("content"), "content"))
        created += [("file", each.get("file_id")) for each in written]
    for choice in _objects(answer.get("choices")):
        created += [("audio", _inner(_inner(choice.get(name), "audio"), "id")) for name in ("message", "delta")]
    return ((kind, identity) for kind, identity in created if isinstance(identity, str) and identity)


class CreationNotes:
    """Records the resources that a forwarded answer has created, and their owner."""

    def __init__(self, provider: str, store: ResourceStore, key: str) -> None:
        self._provider = provider
        self._store = store
        self._key = key
        self._rest = b""

    def whole(self, data: bytes) -> bytes:
        """Record the resources of a whole answer, and return it unchanged."""
        self._record(data)
        return data

    def feed(self, data: bytes) -> bytes:
        """Record the resources of a stream's next piece, and return it unchanged. An empty piece is the end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines if data else [self._rest]:
            if line.startswith(b"data:") and any(word in line for word in _CREATING):
                self._record(line[5:])
        return data

    def _record(self, data: bytes) -> None:
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        parts = [answer, _inner(answer, "message"), _inner(answer, "delta")]
        parts.append({"content": [_inner(answer, "content_block")]})
        for part in parts:
            if isinstance(part, dict):
                self._store.note_created(self._provider, part, self._key)


class ResponseMarks:
    """Marks the ids of the responses in one answer with the provider that stores them, and records their owner.

    Only JSON strings that are such an id are changed; all other bytes stay the same.
    """

    def __init__(
        self,
        provider: str,
        marked_ids: Mapping[str, str] = MappingProxyType({}),
        store: ResourceStore | None = None,
        key: str = "",
    ) -> None:
        """Take `marked_ids`, the marked ids in the request by the vendor's ids."""
        self._provider = provider
        self._store = store
        self._key = key
        self._tokens = {_token(each): _token(marked) for each, marked in marked_ids.items()}
        self._rest = b""

    def keep(self, response: str, items: Iterable[str]) -> None:
        """Record the owner of a response and its items that the vendor stores under other ids than the caller saw."""
        if self._store is not None:
            self._store.note(self._provider, "response", [response], self._key)
            self._store.note(self._provider, "item", items, self._key)

    def whole(self, data: bytes) -> bytes:
        """Mark a whole answer."""
        try:
            response = orjson.loads(data)
        except orjson.JSONDecodeError:
            return data
        if self._record_ids(response):
            return self._replace_tokens(data)
        return data

    def feed(self, data: bytes) -> bytes:
        """Mark the next piece of a stream, line by line; an empty piece is the end."""
        if not data:
            rest = self._rest
            self._rest = b""
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
        if isinstance(event, dict) and self._record_ids(event.get("response")):
            return self._replace_tokens(line)
        return line

    def _record_ids(self, response: Any) -> bool:
        """Record the ids of a response; return False for any other value."""
        identity = response.get("id") if isinstance(response, dict) else None
        if not isinstance(identity, str):
            return False
        token = _token(identity)
        if token not in self._tokens:
            self._tokens[token] = _token(mark(self._provider, identity))
            if self._store is not None:
                self._store.note(self._provider, "response", [identity], self._key)
        if self._store is not None and response.get("output"):
            self._store.note_created(self._provider, response, self._key)
        return True

    def _replace_tokens(self, data: bytes) -> bytes:
        for token, marked in self._tokens.items():
            data = data.replace(token, marked)
        return data


AnswerMarks: TypeAlias = ResponseMarks | CreationNotes


def _token(text: str) -> bytes:
    """Return a string as JSON; no other JSON string contains these bytes, because quotes inside it are escaped."""
    return orjson.dumps(text)


class ResourceStore:
    """The table `resources` of the ledger's file: the owner of each resource."""

    def __init__(self, ledger: SpendLedger) -> None:
        self._ledger = ledger

    def note(self, provider: str, kind: str, ids: Iterable[str], key: str) -> None:
        """Record the owner of these in the background; later queries run in the same thread, after it."""
        self._ledger.post(_insert_rows(provider, kind, ids, key))

    def note_created(self, provider: str, answer: Mapping[str, Any], key: str) -> None:
        """Record the owner of the resources that a model's answer has created, in the background."""
        by_kind: dict[str, list[str]] = {}
        for kind, identity in created_in(answer):
            by_kind.setdefault(kind, []).append(identity)
        for kind, ids in by_kind.items():
            self.note(provider, kind, ids, key)

    async def add(self, provider: str, kind: str, ids: Iterable[str], key: str) -> None:
        """Record the owner of these; a resource stays with its first owner."""
        await self._run(_insert_rows(provider, kind, ids, key))

    async def remove(self, provider: str, identity: str) -> None:
        """Remove a resource that was deleted."""
        await self._query("DELETE FROM resources WHERE provider = ? AND id = ?", provider, identity)
        await self._query("DELETE FROM batch_files WHERE provider = ? AND id = ?", provider, identity)
        await self._query("DELETE FROM batch_shapes WHERE provider = ? AND id = ?", provider, identity)

    async def add_batch_file(self, provider: str, identity: str, models: Iterable[str]) -> None:
        """Record that every line of a file was checked, and the models in them, in the caller's spelling."""
        names = orjson.dumps(list(models)).decode()
        await self._query("INSERT OR REPLACE INTO batch_files VALUES (?, ?, ?)", provider, identity, names)

    async def batch_models(self, provider: str, identity: str) -> tuple[str, ...] | None:
        """Return the models that the lines of a file name; None for a file whose lines were not checked."""
        query = "SELECT models FROM batch_files WHERE provider = ? AND id = ?"
        rows = await self._query(query, provider, identity)
        return tuple(orjson.loads(rows[0][0])) if rows else None

    async def add_batch_shapes(self, provider: str, identity: str, shapes: str) -> None:
        """Store the shapes that the requests in a file, or a batch, ask for."""
        await self._query("INSERT OR REPLACE INTO batch_shapes VALUES (?, ?, ?)", provider, identity, shapes)

    async def copy_batch_shapes(self, provider: str, sources: Iterable[str], results: Iterable[str]) -> None:
        """Copy the shapes of a file to its batch and result files: the file may be deleted before them."""
        query = (
            "INSERT OR IGNORE INTO batch_shapes SELECT provider, ?, shapes FROM batch_shapes "
            "WHERE provider = ? AND id = ?"
        )
        rows = [(result, provider, source) for source in sources for result in results if result != source]
        await self._run(lambda db: db.executemany(query, rows))

    async def batch_shapes(self, provider: str, identity: str) -> str | None:
        """Return the shapes that the requests of a batch with these results ask for; None where none has a schema."""
        query = "SELECT shapes FROM batch_shapes WHERE provider = ? AND id = ?"
        rows = await self._query(query, provider, identity)
        return str(rows[0][0]) if rows else None

    async def owners(self, resources: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Return the providers and keys of these resources, by their kinds and ids."""
        owners: dict[tuple[str, str], list[tuple[str, str]]] = {}
        ids = sorted({identity for _, identity in resources})
        for start in range(0, len(ids), _MOST_IDS):
            batch = ids[start : start + _MOST_IDS]
            placeholders = ",".join("?" * len(batch))
            query = f"SELECT kind, id, provider, key FROM resources WHERE id IN ({placeholders})"  # noqa: S608
            for kind, identity, provider, key in await self._query(query, *batch):
                owners.setdefault((kind, identity), []).append((provider, key))
        return owners

    async def provider_of(self, kind: str, identity: str, key: str, provider: str | None = None) -> str:
        """Return the provider that stores a key's resource; raises `NoSuchResourceError` for another key's."""
        query = "SELECT provider FROM resources WHERE id = ? AND kind = ? AND key = ? AND ? IN (provider, '')"
        rows = await self._query(query, identity, kind, key, provider or "")
        if not rows:
            raise NoSuchResourceError(f"Unknown {kind} {identity[:100]!r}", where=kind)
        owner: str = rows[0][0]
        return owner

    async def owned(self, provider: str, kind: str, key: str, ids: Collection[str]) -> set[str]:
        """Return the ids that belong to the key."""
        placeholders = ",".join("?" * len(ids))
        query = f"SELECT id FROM resources WHERE provider = ? AND kind = ? AND key = ? AND id IN ({placeholders})"  # noqa: S608
        return {row[0] for row in await self._query(query, provider, kind, key, *ids)}

    async def _query(self, query: str, *values: str) -> list[Any]:
        return await self._run(lambda db: db.execute(query, values).fetchall())

    async def _run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._ledger.run(act)
        except (sqlite3.Error, OSError) as error:
            raise ResourcesUnavailableError(
                f"The owner of this resource cannot be looked up: {error}",
                hint="`ledger.path` must be a file that this process can write.",
            ) from error


def _insert_rows(provider: str, kind: str, ids: Iterable[str], key: str) -> Callable[[sqlite3.Connection], object]:
    now = time.time()
    rows = [(provider, each, kind, key, now) for each in ids]
    return lambda db: db.executemany("INSERT OR IGNORE INTO resources VALUES (?, ?, ?, ?, ?)", rows)
