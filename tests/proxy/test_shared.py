"""What several machines share through Redis, and what happens when it goes away."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis as redis_py
from typer.testing import CliRunner

from slipform.addons.server.admission.budgets import KeyBudget
from slipform.addons.server.admission.key_file import KeyFile, read_keys, revocation_of
from slipform.addons.server.admission.keys import add_key, disable_key
from slipform.addons.server.admission.revocations import Revocation
from slipform.addons.server.admission.shared_state import SharedDowngrades, SharedState, tell_machines
from slipform.addons.server.commands.serve import app
from slipform.config import Redis, Settings
from slipform.errors import ConfigError
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.retry import MemoryDowngrades
from slipform.testing import FakeModel, FakeVendor, Received, Step, rejected
from tests.conftest import serving
from tests.proxy.proxying import ADA, FORMAT, RedisServer, call, chat, proxied, running_redis
from tests.waiting import until, until_async


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def test_a_key_revoked_on_one_machine_is_refused_on_all(redis: RedisServer, tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    _, secret = add_key(here, "ada")
    there.write_bytes(here.read_bytes())
    shared = {"url": redis.url, "prefix": "revoke:"}
    config = tmp_path / "slipform.yaml"
    config.write_text(f"server: {{keys_file: {here}}}\nredis: {{url: '{redis.url}', prefix: 'revoke:'}}\n")
    with proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(there)}, "redis": shared}) as address:
        assert chat(address, {"x-api-key": secret}).status == 200
        removed = CliRunner().invoke(app, ["remove", "ada", "--config", str(config)])
        assert removed.exit_code == 0
        assert until(lambda: chat(address, {"x-api-key": secret}).status == 401)


class Machine:
    """A machine with its own copy of a key file, which shares a Redis with others."""

    def __init__(self, folder: Path, redis: RedisServer, prefix: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.keys = folder / "keys.json"
        self._shared = {"url": redis.url, "prefix": prefix}
        self._config = folder / "slipform.yaml"
        self._config.write_text(
            f"server: {{keys_file: '{self.keys}'}}\nredis: {{url: '{redis.url}', prefix: '{prefix}'}}\n"
        )

    def run(self, *words: str) -> int:
        return CliRunner().invoke(app, [*words, "--config", str(self._config)]).exit_code

    def serving(self) -> serving:
        return proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(self.keys)}, "redis": self._shared})


def lets_in(address: str, secret: str) -> bool:
    return call(address, "/v1/models", headers={"x-api-key": secret}).status == 200


@pytest.fixture
def two(redis: RedisServer, tmp_path: Path) -> tuple[Machine, Machine, str]:
    """Two machines whose files have the same key, and that key."""
    one, two = (Machine(tmp_path / name, redis, f"{tmp_path.name}:") for name in ("one", "two"))
    _, secret = add_key(one.keys, "ada")
    two.keys.write_bytes(one.keys.read_bytes())
    return one, two, secret


def test_a_key_disabled_on_one_machine_is_refused_on_all_until_it_is_enabled(two: tuple[Machine, Machine, str]) -> None:
    one, other, secret = two
    with other.serving() as address:
        assert lets_in(address, secret)
        assert one.run("disable", "ada") == 0
        assert until(lambda: not lets_in(address, secret))
        reply = chat(address, {"x-api-key": secret})
        assert "disabled" in reply.json["error"]["message"]
        assert one.run("enable", "ada") == 0
        assert until(lambda: lets_in(address, secret))
        assert one.run("disable", "ada") == 0
        assert until(lambda: not lets_in(address, secret))
        assert other.run("enable", "ada") == 0  # where its own file never said anything else
        assert until(lambda: lets_in(address, secret))


def test_the_clock_of_the_machine_does_not_decide_which_command_was_last(
    two: tuple[Machine, Machine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, secret = two
    with other.serving() as address:
        assert one.run("enable", "ada") == 0
        day = 86_400.0
        monkeypatch.setattr(
            "slipform.addons.server.admission.keys.time.time", lambda: time.monotonic() + day
        )  # half a century ago
        assert one.run("disable", "ada") == 0
        assert until(lambda: not lets_in(address, secret))


@pytest.mark.parametrize("command", ["remove", "disable"])
def test_a_revoked_key_stays_so_when_redis_comes_back_empty_and_servers_start_again(
    tmp_path: Path, command: str
) -> None:
    with running_redis() as own:
        one, two = (Machine(tmp_path / name, own, "empty:") for name in ("one", "two"))
        _, secret = add_key(one.keys, "ada")
        _, good = add_key(one.keys, "bob")
        two.keys.write_bytes(one.keys.read_bytes())
        with two.serving() as address:
            assert one.run(command, "ada") == 0
            assert until(lambda: not lets_in(address, secret))
            own.kill()
            own.start()
            # Two has heard it, and tells the empty Redis.
            assert until(lambda: bool(own.client().hlen("empty:revocations")))
            assert not lets_in(address, secret)
        own.client().flushall()
        with two.serving() as address:  # which has nothing but what it wrote down
            assert not lets_in(address, secret)
            assert lets_in(address, good)
        two.keys.with_name("keys.json.revoked").unlink()
        own.client().flushall()
        with one.serving(), two.serving() as address:  # and nothing but what the first machine's file says
            assert until(lambda: not lets_in(address, secret))
            assert lets_in(address, good)


def test_a_revocation_made_while_redis_is_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    with running_redis() as own:
        one, two = (Machine(tmp_path / name, own, "away:") for name in ("one", "two"))
        _, secret = add_key(one.keys, "ada")
        two.keys.write_bytes(one.keys.read_bytes())
        with one.serving(), two.serving() as address:
            own.kill()
            assert one.run("remove", "ada") != 0
            assert lets_in(address, secret)
            own.start()
            assert until(lambda: not lets_in(address, secret))
        assert one.run("remove", "ada") == 0  # may be repeated


GARBAGE: list[object] = [
    b"",
    b"\xff\xfe",
    b"on",
    b"on 999999999999999",
    b"on 999999999999999 " + b"0" * 64,
    b"on -1",
    b"on 1e9",
    b"enabled",
    b"off 1 junk",
    b"off 99999999999999999999",
    b"{}",
    b"removed",
]


@pytest.mark.parametrize("said", GARBAGE)
def test_nothing_in_redis_lets_a_key_in_again(two: tuple[Machine, Machine, str], said: bytes) -> None:
    _, other, secret = two
    identity = next(iter(read_keys(other.keys)))
    keys = KeyFile(other.keys)
    keys.apply_published({identity: said})
    assert keys.find(secret) is not None
    assert not keys.find(secret).disabled  # type: ignore[union-attr]
    keys.apply_published({identity: b"off 7"})
    keys.apply_published({identity: said})
    found = keys.find(secret)
    assert found is not None
    assert found.disabled
    keys.apply_published({identity: b"removed 0"})
    keys.apply_published({identity: said})
    assert keys.find(secret) is None
    assert KeyFile(other.keys).find(secret) is None


def test_an_older_proof_does_not_undo_a_later_switch(two: tuple[Machine, Machine, str]) -> None:
    one, other, secret = two
    enabled = disable_key(one.keys, "ada", disabled=False)
    disabled = disable_key(one.keys, "ada")
    keys = KeyFile(other.keys)
    keys.apply_published({enabled.id: str(revocation_of(disabled))})
    keys.apply_published({enabled.id: str(revocation_of(enabled))})
    found = keys.find(secret)
    assert found is not None
    assert found.disabled
    later = disable_key(one.keys, "ada", disabled=False)
    keys.apply_published({enabled.id: str(revocation_of(later))})
    assert keys.find(secret) == read_keys(other.keys)[enabled.id]


def test_a_redis_full_of_something_else_harms_nothing(
    two: tuple[Machine, Machine, str], redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, secret = two
    place = f"{one.folder.parent.name}:revocations"
    client = redis.client()
    client.set(place, b"not a hash at all")
    with other.serving() as address:
        assert lets_in(address, secret)
        assert one.run("remove", "ada") == 0
        assert until(lambda: not lets_in(address, secret))
        client.delete(place)
        client.set(place, b"again")
        assert until(lambda: client.type(place) == b"hash")
        assert not lets_in(address, secret)
    assert "goes on alone" not in caplog.text


def test_what_was_remembered_is_damaged_and_the_server_says_so_and_serves(
    two: tuple[Machine, Machine, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, other, secret = two
    other.keys.with_name("keys.json.revoked").write_text("{")
    assert KeyFile(other.keys).find(secret) is not None
    assert "not known until Redis tells" in caplog.text
    other.keys.with_name("keys.json.revoked").write_text('["x"]')
    assert KeyFile(other.keys).find(secret) is not None


def test_rate_limits_count_over_all_machines(redis: RedisServer) -> None:
    settings = {"server": {"requests_per_minute": 4}, "redis": {"url": redis.url, "prefix": "rates:"}}
    with proxied({"fake": FakeModel([ADA])}, settings) as one, proxied({"fake": FakeModel([ADA])}, settings) as two:
        replies = [chat(address) for _ in range(4) for address in (one, two)]
    assert [each.status for each in replies].count(200) == 4
    assert replies[-1].status == 429
    assert 1 <= int(replies[-1].headers["retry-after"]) <= 15


def test_what_one_machine_learns_of_a_vendor_the_others_know(redis: RedisServer) -> None:
    def vendor_without_schemas(received: Received) -> Step:
        if "response_format" in received.json():
            return rejected("'response_format' of type 'json_schema' is not supported with this model")
        return ADA

    settings = {"redis": {"url": redis.url, "prefix": "lessons:"}}
    with FakeVendor(vendor_without_schemas) as vendor:
        row = load_catalog({"mine": {"extends": "openai", "base_url": vendor.base_url}}).vendor("mine")
        made = [HttpProvider(row, api_key="k-000000") for _ in range(2)]
        with proxied({"mine": made[0]}, settings) as one, proxied({"mine": made[1]}, settings) as two:
            assert chat(one, model="mine/gpt-4o").status == 200
            refused = len(vendor.requests) - 1
            assert refused >= 1
            assert until(lambda: not made[1].capabilities("gpt-4o").native)
            assert chat(two, model="mine/gpt-4o").status == 200
            assert len(vendor.requests) == refused + 2


async def test_lessons_are_told_once_and_forgotten_when_they_are_old(redis: RedisServer) -> None:
    settings = Redis(url=redis.url, prefix="told:")
    shared = SharedState(settings)
    one, two = MemoryDowngrades(), MemoryDowngrades()
    first, second = SharedDowngrades(shared, lambda: [one]), SharedDowngrades(shared, lambda: [two])
    one.add("url model", "no_native")
    one.add("url model", "no_json_mode")
    one.add("url old", "no_strict", 0.4)
    await first.refresh()
    await second.refresh()
    assert two.get("url model") == {"no_native", "no_json_mode"}
    before = {each.name: each.seconds for each in await shared.exchange_downgrades([])}

    async def is_older() -> bool:
        await first.refresh()
        after = {each.name: each.seconds for each in await shared.exchange_downgrades([])}
        return "no_strict" not in after and after["no_native"] < before["no_native"]

    assert await until_async(is_older)
    await shared.close()


def test_the_proxy_serves_on_while_redis_is_gone_and_comes_back_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    _, secret = add_key(path, "ada", requests_per_minute=1000)
    with running_redis() as own:
        settings = {
            "server": {"keys_file": str(path)},
            "cache": {"enabled": True},
            "redis": {"url": own.url, "prefix": "gone:"},
        }
        model = FakeModel([ADA])
        said = {"x-api-key": secret}
        with proxied({"fake": model}, settings) as address:
            assert chat(address, said).status == 200
            own.kill()
            for number in range(5):
                assert chat(address, said, seed=number).status == 200
            assert chat(address, {"x-api-key": "wrong"}).status == 401
            assert call(address, "/healthz").status == 200
            assert "goes on alone" in caplog.text
            own.start()
            assert until(lambda: chat(address, said).status == 200 and "redis: reachable again" in caplog.text)
        assert caplog.text.count("goes on alone") == 1


async def test_more_calls_than_connections_wait_for_one(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedState(Redis(url=redis.url, prefix="many:"))
    names = [f"k{number}" for number in range(400)]
    await asyncio.gather(*[shared.put(name, b"x", 60) for name in names])
    found = await asyncio.gather(*[shared.get(name, 10) for name in names])
    with closing(redis.client()) as client:
        connections = len(client.client_list())
    await shared.close()
    assert found == [b"x"] * 400
    assert connections < 50
    assert "goes on alone" not in caplog.text


@pytest.mark.parametrize("count", [200, 400])
async def test_calls_of_a_key_with_a_budget_are_all_answered_however_many_come_at_once(
    count: int, redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, secret = add_key(tmp_path / "keys.json", "ada", budget=KeyBudget(max_cost=100_000))
    settings = {
        "server": {"keys_file": str(tmp_path / "keys.json")},
        "prices": {"fake/*": {"input": 1.0, "output": 1.0}},
        "cache": {"enabled": True},
        "redis": {"url": redis.url, "prefix": f"{tmp_path.name}:"},
    }
    with proxied({"fake": FakeModel([ADA])}, settings) as address:
        host, port = urlsplit(address).hostname, urlsplit(address).port
        connections = [await asyncio.open_connection(host, port) for _ in range(count)]
        for number, (_, writer) in enumerate(connections):
            ask = [{"role": "user", "content": f"Ada is {number}"}]
            body = json.dumps({"model": "fake/m", "messages": ask, "response_format": FORMAT, "max_tokens": 5}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {secret}\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        statuses = await asyncio.gather(*[reader.readline() for reader, _ in connections])
        for _, writer in connections:
            writer.close()
    assert Counter(statuses) == {b"HTTP/1.1 200 OK\r\n": count}
    assert "goes on alone" not in caplog.text


async def test_a_restart_of_redis_is_one_outage_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with running_redis() as own:
        shared = SharedState(Redis(url=own.url, prefix="once:"))

        async def ask_many() -> list[Any]:
            return await asyncio.gather(*[shared.permits(f"k{number}", 60, 1) for number in range(30)])

        assert None not in await ask_many()
        own.kill()
        assert await ask_many() == [None] * 30
        own.start()

        async def is_back() -> bool:
            await ask_many()
            return "redis: reachable again" in caplog.text

        assert await until_async(is_back)
        assert None not in await ask_many()
        await shared.close()
    assert caplog.text.count("goes on alone") == 1
    assert caplog.text.count("redis: reachable again") == 1


async def test_a_connection_that_redis_has_closed_is_not_an_outage(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    shared = SharedState(Redis(url=redis.url, prefix="stale:"))
    await asyncio.gather(*[shared.put(f"k{number}", b"x", 60) for number in range(16)])
    with closing(redis.client()) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    found = await asyncio.gather(*[shared.get(f"k{number}", 10) for number in range(16)])
    await shared.close()
    assert found == [b"x"] * 16
    assert "goes on alone" not in caplog.text


def test_a_proxy_starts_without_redis_being_there() -> None:
    settings = {"redis": {"url": "redis://127.0.0.1:1/0"}, "cache": {"enabled": True}}
    with proxied({"fake": FakeModel([ADA])}, settings) as address:
        assert chat(address).status == 200


def test_a_revocation_that_nobody_hears_is_said_so() -> None:
    with pytest.raises(ConfigError, match="could not be notified"):
        tell_machines(Redis(url="redis://127.0.0.1:1/0"), "x", Revocation("removed", 0))


def test_what_is_missing_or_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"redis://host:6379/0"):
        SharedState(Redis(url="nonsense"))
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'slipform\[redis\]'"):
        SharedState(Redis(url="redis://127.0.0.1/0"))
    assert Settings().redis is None


async def test_only_lessons_that_could_be_ours_are_taken_from_redis(redis: RedisServer) -> None:
    prefix, soon = "odd-lessons:", time.time() + 1000
    fields: Any = {
        "no_native http://a m": f"{soon:.0f}",
        "by_schema http://a m": f"{soon:.0f}",
        "use_telepathy http://a m": f"{soon:.0f}",
        "no_strict ": f"{soon:.0f}",
        "no_strict http://a old": "12",
        "no_strict http://a forever": "1e300",
        "no_strict http://a nan": "nan",
        "no_strict http://a words": "tomorrow",
        f"no_strict {'k' * 5000}": f"{soon:.0f}",
        b"no_strict \xff": f"{soon:.0f}",
    }
    shared = SharedState(Redis(url=redis.url, prefix=prefix))
    with closing(redis_py.Redis(port=redis.port)) as client:
        client.hset(f"{prefix}lessons", mapping=fields)
        store = MemoryDowngrades()
        await SharedDowngrades(shared, lambda: [store]).refresh()
        await shared.close()
        assert client.hlen(f"{prefix}lessons") == 2
    assert {(each.key, each.name) for each in store.active()} == {
        ("http://a m", "no_native"),
        ("http://a m", "by_schema"),
    }


async def test_a_wrong_kind_of_value_in_redis_does_not_count_as_redis_being_away(redis: RedisServer) -> None:
    shared = SharedState(Redis(url=redis.url, prefix="wrong-kind:"))
    with closing(redis_py.Redis(port=redis.port)) as client:
        client.set("wrong-kind:lessons", "words")
    store = MemoryDowngrades()
    store.add("http://a m", "no_native")
    await SharedDowngrades(shared, lambda: [store]).refresh()
    assert not shared.down
    assert await shared.permits("ada", 60, 1) is not None
    await shared.close()
