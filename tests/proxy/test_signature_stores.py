"""What vendors signed is kept for each key apart, within bytes and time, wherever it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from slipform.addons.server.admission.shared_state import SharedState
from slipform.addons.server.calls.signature_stores import (
    MemorySignatures,
    RedisSignatures,
    SignatureStore,
    SqliteSignatures,
    find_store,
)
from slipform.addons.server.calls.stored_responses import (
    ConversationEntry,
    ResponseStore,
    conversation_key,
    stored_item,
)
from slipform.config import Redis, Signatures
from tests.proxy.proxying import RedisServer, running_redis

LIMITS = Signatures(max_bytes=20_000, max_bytes_per_key=5_000)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


Story: TypeAlias = Callable[[SignatureStore], Coroutine[Any, Any, None]]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Plays a story with each kind of store."""

    async def with_redis(story: Story) -> None:
        server: RedisServer = request.getfixturevalue("redis")
        shared = SharedState(Redis(url=server.url, prefix=f"{tmp_path.name}:"))
        try:
            await story(RedisSignatures(LIMITS, shared))
        finally:
            await shared.close()

    def played(story: Story) -> None:
        if request.param == "memory":
            asyncio.run(story(MemorySignatures(LIMITS)))
        elif request.param == "sqlite":
            asyncio.run(story(SqliteSignatures(LIMITS, tmp_path / "signatures.sqlite")))
        else:
            asyncio.run(with_redis(story))

    return played


def test_what_is_kept_is_found_by_its_own_caller(play: Callable[[Story], None]) -> None:
    async def story(kept: SignatureStore) -> None:
        await kept.put("ada", {"c1": b"one", "c2": b"two"})
        assert await kept.get("ada", ["c2", "c1", "c3"]) == {"c1": b"one", "c2": b"two"}
        assert await kept.get("bob", ["c1"]) == {}
        await kept.put("ada", {"c1": b"other"})
        assert await kept.get("ada", ["c1"]) == {"c1": b"other"}

    play(story)


def test_the_oldest_of_a_key_go_when_it_has_too_many_bytes(play: Callable[[Story], None]) -> None:
    async def story(kept: SignatureStore) -> None:
        await kept.put("bob", {"theirs": b"x" * 1000})
        for at in range(10):
            await kept.put("ada", {f"c{at:02}": b"x" * 1000})
        found = await kept.get("ada", [f"c{at:02}" for at in range(10)])
        assert list(found) == sorted(found)
        assert 3 <= len(found) <= 5
        assert "c09" in found
        assert "c00" not in found
        assert await kept.get("bob", ["theirs"]) == {"theirs": b"x" * 1000}

    play(story)


def test_one_that_is_larger_than_all_a_key_may_have_is_not_kept(play: Callable[[Story], None]) -> None:
    async def story(kept: SignatureStore) -> None:
        await kept.put("ada", {"large": b"x" * 6000})
        assert await kept.get("ada", ["large"]) == {}

    play(story)


@pytest.mark.parametrize("kind", [MemorySignatures, SqliteSignatures])
def test_old_ones_are_not_given_out(kind: type, tmp_path: Path) -> None:
    now = 0.0
    path = () if kind is MemorySignatures else (tmp_path / "file.sqlite",)
    kept = kind(Signatures(ttl_seconds=10), *path, clock=lambda: now)
    asyncio.run(kept.put("ada", {"c1": b"one"}))
    now = 9.0
    assert asyncio.run(kept.get("ada", ["c1"])) == {"c1": b"one"}
    now = 11.0
    assert asyncio.run(kept.get("ada", ["c1"])) == {}


@pytest.mark.parametrize("kind", [MemorySignatures, SqliteSignatures])
def test_all_keys_together_are_bounded(kind: type, tmp_path: Path) -> None:
    path = () if kind is MemorySignatures else (tmp_path / "file.sqlite",)
    kept = kind(LIMITS, *path)
    for at in range(30):
        asyncio.run(kept.put(f"key {at}", {"c1": b"x" * 2000}))
    found = [at for at in range(30) if asyncio.run(kept.get(f"key {at}", ["c1"]))]
    assert 5 <= len(found) <= 10
    assert found[-1] == 29


def test_a_file_that_is_none_costs_no_more_than_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "signatures.sqlite"
    path.write_bytes(b"not a database" * 100)
    kept = SqliteSignatures(LIMITS, path)
    asyncio.run(kept.put("ada", {"c1": b"one"}))
    assert asyncio.run(kept.get("ada", ["c1"])) == {}


def test_a_file_is_its_owners_alone_and_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "signatures.sqlite"
    asyncio.run(SqliteSignatures(LIMITS, path).put("ada", {"c1": b"one"}))
    assert path.stat().st_mode & 0o777 == 0o600
    assert asyncio.run(SqliteSignatures(LIMITS, path).get("ada", ["c1"])) == {"c1": b"one"}


def test_where_it_is_kept_follows_from_the_settings(tmp_path: Path) -> None:
    assert isinstance(find_store(LIMITS, None, None), MemorySignatures)
    assert isinstance(find_store(LIMITS, None, tmp_path), SqliteSignatures)
    assert isinstance(find_store(Signatures(file=str(tmp_path / "a.sqlite")), None, None), SqliteSignatures)


def test_what_is_removed_is_gone_and_leaves_its_room(play: Callable[[Story], None]) -> None:
    async def story(kept: SignatureStore) -> None:
        for _ in range(20):
            await kept.put("ada", {"c1": b"x" * 4000})
            await kept.remove("ada", ["c1", "c2"])
        await kept.put("ada", {"c3": b"x" * 4000})
        assert await kept.get("ada", ["c1", "c3"]) == {"c3": b"x" * 4000}

    play(story)


def test_an_entry_is_replaced_only_while_it_is_what_was_read(play: Callable[[Story], None]) -> None:
    async def story(store: SignatureStore) -> None:
        await store.put("ada", {"c1": b"one"})
        replaced = [
            await store.replace("ada", ("c1", b"one"), {"c1": b"two", "c2": b"new"}),
            await store.replace("ada", ("c1", b"one"), {"c1": b"three"}),
            await store.replace("ada", ("c3", b""), {"c3": b"three"}),
            await store.replace("bob", ("c1", b"two"), {"c1": b"three"}),
        ]
        assert replaced == [True, False, False, False]
        assert await store.get("ada", ["c1", "c2", "c3"]) == {"c1": b"two", "c2": b"new"}

    play(story)


def test_turns_that_are_added_to_a_conversation_at_the_same_time_are_all_stored(play: Callable[[Story], None]) -> None:
    async def story(store: SignatureStore) -> None:
        responses = ResponseStore(store, "ada", ttl_seconds=60, max_bytes=10_000)
        empty = ConversationEntry(responses.clock(), 0, [])
        await responses.put({conversation_key("conv_1"): empty}, [])

        async def add(turn: int) -> None:
            item = stored_item({"role": "user", "content": f"turn {turn}"})

            def append(entry: ConversationEntry) -> None:
                entry.items.append(item[0])

            await responses.change_conversation("conv_1", append, [item])

        await asyncio.gather(*[add(turn) for turn in range(8)])
        grown = await responses.conversation("conv_1")
        assert grown is not None
        assert len(set(grown.items)) == 8
        assert (await responses.items(grown.items)).keys() == set(grown.items)

    play(story)


def test_a_conversation_that_was_deleted_is_not_stored_again(play: Callable[[Story], None]) -> None:
    async def story(store: SignatureStore) -> None:
        responses = ResponseStore(store, "ada", ttl_seconds=60, max_bytes=10_000)
        assert await responses.change_conversation("conv_1", lambda entry: entry.items.append("x")) is None
        assert await responses.conversation("conv_1") is None

    play(story)
