"""Keys with budgets: nothing is spent twice, nothing that is spent is forgotten, and what it cost is told."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import http.client
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner

from slipform.addons.server.admission.budgets import KeyBudget, Standing
from slipform.addons.server.admission.key_file import read_keys
from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.admission.ledger import CallEntry, Hold, SpendLedger, open_ledger, reserve, settle, standing
from slipform.addons.server.admission.output_limits import OutputRequest, requested_output
from slipform.addons.server.admission.prompt_size import estimate_input
from slipform.addons.server.commands.serve import app
from slipform.cli.program import app as program
from slipform.codecs import Capabilities
from slipform.config import Settings, read_settings
from slipform.ir import ModelRequest, ModelResponse, Usage
from slipform.testing import Answer, FakeModel, FakeVendor, Step, hang, rejected
from tests.conftest import serving
from tests.proxy.proxying import ADA, ASK, FORMAT, RedisServer, call, chat, keys_path, proxied, running_redis
from tests.proxy.served import Served
from tests.proxy.wire import post, provider_of
from tests.waiting import until

T = TypeVar("T")
PRICES: Any = {"fake/*": {"input": 1.0, "output": 10.0}, "openai/*": {"input": 1.0, "output": 10.0}}
"""A tenth of the budgets below is a hundred thousand tokens read, or ten thousand written."""
SPENT = Usage(input=40, output=50, total=90)
COST = (40 * 1.0 + 50 * 10.0) / 1_000_000
CHEAP = ModelResponse(text=ADA, usage=SPENT)


def settings_for(folder: Path, **more: Any) -> dict[str, Any]:
    return {"server": {"keys_file": str(keys_path(folder))}, "prices": PRICES, **more}


def key(folder: Path, name: str = "ada", **limits: Any) -> dict[str, str]:
    _, secret = add_key(keys_path(folder), name, budget=KeyBudget(**limits))
    return {"x-api-key": secret}


def spend_of(address: str, headers: dict[str, str]) -> Any:
    return call(address, "/v1/slipform/spend", headers=headers).json


def settled(address: str, headers: dict[str, str]) -> Any:
    """What a key has spent, once nothing is held for it."""
    pages: list[Any] = []

    def holds_nothing() -> bool:
        pages.append(spend_of(address, headers))
        return not pages[-1]["held"]["cost"] and not pages[-1]["held"]["calls"]

    assert until(holds_nothing), pages[-1]
    return pages[-1]


def together(ask: Callable[[int], T], count: int = 200) -> list[T]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


class Watched:
    """A model that notes, while a call is under way, what its key has spent and what is held; each takes a moment."""

    def __init__(self, read: Callable[[], Standing]) -> None:
        self.most = 0
        self._read = read
        self._lock = threading.Lock()

    def __call__(self, _: ModelRequest) -> ModelResponse:
        stands = self._read()
        with self._lock:
            self.most = max(self.most, stands.cost + stands.held_cost)
        return CHEAP


def in_ledger(folder: Path, key_id: str) -> Standing:
    with closing(open_ledger(folder / "keys.json.ledger.db", readonly=True)) as connection:
        return standing(connection, key_id, "day", time.time())


def in_redis(redis: RedisServer, prefix: str, key_id: str) -> Standing:
    """What all machines have told Redis of a key."""
    with closing(redis.client()) as client:
        fields = client.hgetall(next(client.scan_iter(f"{prefix}spend:{{{key_id}}}:*")))
    spent = sum(int(value) for name, value in fields.items() if name.startswith(b"c:"))
    return Standing(cost=spent, held_cost=sum(int(v.split()[1]) for n, v in fields.items() if n[:2] == b"h:"))


def two_machines(folder: Path, **limits: Any) -> tuple[list[Path], dict[str, str], str]:
    """Two folders with the same key, its headers, and its id."""
    folders = [folder / "one", folder / "two"]
    for each in folders:
        each.mkdir()
    headers = key(folders[0], **limits)
    keys_path(folders[1]).write_bytes(keys_path(folders[0]).read_bytes())
    return folders, headers, next(iter(read_keys(keys_path(folders[0]))))


def test_two_hundred_calls_at_once_never_hold_or_spend_more_than_the_budget(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=0.0205, period="day")  # for about a tenth of them
    key_id = next(iter(read_keys(keys_path(tmp_path))))
    watched = Watched(lambda: in_ledger(tmp_path, key_id))
    with proxied({"fake": FakeModel(watched)}, settings_for(tmp_path), attempts=1) as address:
        replies = together(lambda _: chat(address, headers, max_tokens=50))
        page = settled(address, headers)
    statuses = [reply.status for reply in replies]
    assert set(statuses) == {200, 429}
    assert watched.most <= 20_500_000
    assert page["spent"]["cost"] == pytest.approx(statuses.count(200) * COST)
    assert page["spent"]["cost"] <= 0.0205
    assert page["requests"] == statuses.count(200)
    refused = next(reply for reply in replies if reply.status == 429)
    assert refused.json["error"]["code"] == "budget_exceeded"
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert refused.headers["x-should-retry"] == "false"
    assert float(refused.headers["x-slipform-budget-remaining"]) < 0.0205


def test_calls_over_two_machines_with_redis_never_spend_more_than_the_budget(tmp_path: Path) -> None:
    folders, headers, key_id = two_machines(tmp_path, max_cost=0.0205, period="day")
    with running_redis() as redis:
        shared = {"redis": {"url": redis.url, "prefix": "b:"}}
        watched = Watched(lambda: in_redis(redis, "b:", key_id))
        one, two = (proxied({"fake": FakeModel(watched)}, settings_for(each, **shared), attempts=1) for each in folders)
        with one as first, two as second:
            replies = together(lambda at: chat((first, second)[at % 2], headers, max_tokens=50))
            page = settled(first, headers)
            assert settled(second, headers)["spent"] == page["spent"]
        good = sum(reply.status == 200 for reply in replies)
        assert {reply.status for reply in replies} == {200, 429}
        assert watched.most <= 20_500_000
        assert page["spent"]["cost"] == pytest.approx(good * COST)
        redis.client().flushall()  # what Redis loses, the machines know
        with (
            proxied({"fake": FakeModel(watched)}, settings_for(folders[0], **shared)) as first,
            two_again(folders[1], shared) as second,
        ):
            assert until(lambda: spend_of(first, headers)["spent"]["cost"] == pytest.approx(good * COST))
            assert spend_of(second, headers)["spent"] == page["spent"]


def two_again(folder: Path, shared: Any) -> serving:
    return proxied({"fake": FakeModel([CHEAP])}, settings_for(folder, **shared))


@pytest.mark.parametrize("on_loss", ["refuse", "local"])
def test_without_redis_keys_with_budgets_are_refused_or_counted_here(tmp_path: Path, on_loss: str) -> None:
    headers, free = key(tmp_path, max_cost=1), key(tmp_path, "free")
    gone = {"redis": {"url": "redis://127.0.0.1:1/0"}, "ledger": {"on_loss": on_loss}}
    with proxied({"fake": FakeModel([CHEAP])}, settings_for(tmp_path, **gone)) as address:
        reply = chat(address, headers)
        assert chat(address, free).status == 200
        if on_loss == "refuse":
            assert (reply.status, reply.json["error"]["code"]) == (503, "ledger_unavailable")
        else:
            assert reply.status == 200
            assert settled(address, headers)["spent"]["cost"] == pytest.approx(COST)


def test_what_is_spent_survives_a_restart(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=COST * 3.5)
    for _ in range(3):
        with proxied({"fake": FakeModel([CHEAP])}, settings_for(tmp_path)) as address:
            assert chat(address, headers, response_format=None, max_tokens=50).status in (200, 429)
    with proxied({"fake": FakeModel([CHEAP])}, settings_for(tmp_path)) as address:
        page = settled(address, headers)
        assert chat(address, headers, max_tokens=50).status == 429
    assert page["spent"] == {"tokens": 90 * page["requests"], "cost": pytest.approx(COST * page["requests"])}
    assert page["requests"] >= 2


def test_a_hold_whose_process_died_stays_counted_but_is_no_call_under_way(tmp_path: Path) -> None:
    budget = KeyBudget(max_cost=1, period="day", max_concurrent=1)
    with closing(open_ledger(tmp_path / "l.db")) as connection:
        now = time.time()
        reserve(connection, Hold("h1", "k", "ada", now), 10, 600_000_000, budget, model="m", owner="dead", now=now)
        assert reserve(connection, Hold("h2", "k", "ada", now), 1, 1, budget, model="m", owner="x", now=now)[1] == (
            "concurrent"
        )
        later = now + 120 if (now + 120) // 86_400 == now // 86_400 else now
        connection.execute("UPDATE holds SET until = 0")
        stands, limit = reserve(
            connection, Hold("h3", "k", "ada", later), 1, 500_000_000, budget, model="m", owner="x", now=later
        )
        assert (limit, stands.held_cost, stands.live) == ("cost", 600_000_000, 0)
    ledger = SpendLedger(tmp_path / "l.db")

    async def read() -> Standing:
        return await ledger.run(lambda connection: standing(connection, "k", "day", later))

    after = asyncio.run(read())  # opening the file counts what was lost an hour ago as spent
    ledger.close()
    assert (after.cost, after.held_cost) == (600_000_000, 0)


def test_a_model_without_a_price_is_refused_for_a_budget_of_money_only(tmp_path: Path) -> None:
    headers, tokens = key(tmp_path, max_cost=1), key(tmp_path, "tokens", max_tokens=100_000)
    config = {**settings_for(tmp_path), "prices": {}}
    with proxied({"fake": FakeModel([CHEAP])}, config) as address:
        reply = chat(address, headers)
        assert (reply.status, reply.json["error"]["code"]) == (400, "no_price")
        assert "fake/m" in reply.json["error"]["message"]
        assert chat(address, tokens).status == 200


def test_a_budget_of_tokens_counts_what_is_read_and_written(tmp_path: Path) -> None:
    headers = key(tmp_path, max_tokens=3_000, period="hour")
    with proxied({"fake": FakeModel([CHEAP])}, settings_for(tmp_path)) as address:
        replies = [chat(address, headers, max_tokens=1_000) for _ in range(20)]
        page = settled(address, headers)
    good = [reply for reply in replies if reply.status == 200]
    assert page["spent"]["tokens"] == 90 * len(good)
    assert 1 < len(good) < 20
    assert int(good[0].headers["x-slipform-tokens-remaining"]) < 3_000


def test_a_key_has_so_many_calls_under_way_over_all_workers(tmp_path: Path) -> None:
    headers = key(tmp_path, max_concurrent=1)
    with FakeVendor([hang(), "hello"]) as vendor:
        config = settings_for(tmp_path)
        one, two = (proxied({"openai": provider_of(vendor)}, config) for _ in range(2))
        with one as first, two as second:
            body = {"model": "openai/m", "messages": [{"role": "user", "content": "hi"}]}
            waiting = threading.Thread(target=lambda: post(first, "/v1/chat/completions", body, headers), daemon=True)
            waiting.start()
            assert vendor.wait_until(lambda each: len(each.requests) == 1)
            for address in (first, second):  # the same process, and another one
                reply = chat(address, headers, model="openai/m")
                assert (reply.status, reply.headers["retry-after"]) == (429, "1")
            assert spend_of(second, headers)["held"]["calls"] == 1
            vendor.hang_up()
            waiting.join(30)


def test_a_retry_is_refused_when_the_budget_has_no_room_for_it(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=0.002)
    model = FakeModel([ModelResponse(text="no", usage=Usage(100, 100)), CHEAP])
    with proxied({"fake": model}, settings_for(tmp_path), attempts=3) as address:
        reply = chat(address, headers, max_tokens=100)
        page = settled(address, headers)
    assert (reply.status, reply.json["error"]["code"]) == (429, "budget_exceeded")
    assert len(model.requests) == 1
    assert page["spent"]["cost"] == pytest.approx(0.0011)


def test_a_soft_limit_warns_and_lets_through(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    headers = key(tmp_path, soft_cost=COST * 1.5, period="month")
    with proxied({"fake": FakeModel([CHEAP])}, settings_for(tmp_path)) as address:
        replies = []
        for _ in range(4):
            replies.append(chat(address, headers, max_tokens=50))
            settled(address, headers)
    assert [reply.status for reply in replies] == [200] * 4
    assert ["x-slipform-budget-soft" in reply.headers for reply in replies] == [False, False, True, True]
    assert sum("soft limit" in record.message for record in caplog.records) == 1


def test_a_refused_call_costs_nothing_and_a_broken_one_what_was_held(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=1)
    body = {"model": "openai/m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
    script: list[Step] = [rejected("no"), Answer("x" * 100, cut_after=2, ending="cut")]
    with FakeVendor(script) as vendor, proxied({"openai": provider_of(vendor)}, settings_for(tmp_path)) as address:
        assert post(address, "/v1/chat/completions", body, headers).status == 400
        assert settled(address, headers)["spent"]["cost"] == 0
        post(address, "/v1/chat/completions", {**body, "stream": True}, headers)
        assert settled(address, headers)["spent"]["cost"] >= 100 * 10 / 1_000_000


STREAMS: Sequence[tuple[str, str, Any, Callable[[Any], Any]]] = [
    ("openai", "/v1/chat/completions", {"stream_options": {"include_usage": True}}, lambda e: e[-2]["usage"]),
    ("openai", "/v1/responses", {"input": "hi"}, lambda e: e[-1]["response"]["usage"]),
    ("openai", "/v1/messages", {}, lambda e: next(x for x in e if x.get("type") == "message_delta")["usage"]),
    ("anthropic", "/v1/messages", {}, lambda e: next(x for x in e if x.get("type") == "message_delta")["usage"]),
    ("gemini", "/v1beta/models/gemini/m:streamGenerateContent?alt=sse", {"contents": [{"parts": [{"text": "hi"}]}]},
     lambda e: e[-1]["usageMetadata"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "fields", "usage"), STREAMS)
@pytest.mark.parametrize("keys", [True, False])
def test_a_streams_last_usage_tells_the_cost(
    tmp_path: Path, kind: Any, path: str, fields: Any, usage: Callable[[Any], Any], keys: bool
) -> None:
    headers = key(tmp_path, max_cost=1) if keys else {}
    config = settings_for(tmp_path) if keys else {}
    config = {**config, "prices": {f"{kind}/*": {"input": 1.0, "output": 10.0}}}
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": f"{kind}/m", "messages": messages, "max_tokens": 50, "stream": True, **fields}
    script = [ModelResponse(text="hello", usage=SPENT)]
    with FakeVendor(script, api=kind) as vendor, proxied({kind: provider_of(vendor, kind)}, config) as address:
        reply = post(address, path, fields if "contents" in fields else body, headers)
        assert reply.status == 200, reply.body
        assert usage(reply.events())["cost"] == pytest.approx(COST)
        if keys:
            assert settled(address, headers)["spent"]["cost"] == pytest.approx(COST)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_whole_answer_tells_its_cost_in_a_header_and_its_usage(tmp_path: Path, wanted: bool) -> None:
    headers = key(tmp_path, max_cost=1)
    with FakeVendor([CHEAP]) as vendor, proxied({"openai": provider_of(vendor)}, settings_for(tmp_path)) as address:
        more = {} if wanted else {"response_format": None}
        reply = chat(address, headers, model="openai/m", **more)
        assert float(reply.headers["x-slipform-cost"]) == pytest.approx(COST)
        if wanted:
            assert reply.json["usage"]["cost"] == pytest.approx(COST)


def test_a_stream_that_would_hide_its_usage_is_counted_all_the_same(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=1)
    body = {"model": "openai/m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with FakeVendor([CHEAP]) as vendor, proxied({"openai": provider_of(vendor)}, settings_for(tmp_path)) as address:
        events = post(address, "/v1/chat/completions", body, headers).events()
        assert all("usage" not in event for event in events[:-1])
        assert settled(address, headers)["spent"]["cost"] == pytest.approx(COST)


@pytest.mark.parametrize("native", [True, False])
def test_an_enforced_stream_tells_its_cost_and_is_counted_with_all_attempts(tmp_path: Path, native: bool) -> None:
    headers = key(tmp_path, max_cost=1)
    model = FakeModel([ModelResponse(text='{"name": 1}', usage=SPENT), CHEAP], capabilities=Capabilities(native=native))
    with proxied({"fake": model}, settings_for(tmp_path)) as address:
        body = {"model": "fake/m", "messages": ASK, "response_format": FORMAT, "stream": True, "max_tokens": 50}
        reply = post(address, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}, headers)
        page = settled(address, headers)
    usage = reply.events()[-2]["usage"]
    assert len(model.requests) == 2
    # The first answer may have been stopped before it told its tokens; they are estimated then.
    assert page["spent"]["cost"] >= 2 * COST - 1e-9
    assert usage["cost"] > COST
    assert usage["prompt_tokens"] > 40
    assert usage["completion_tokens"] > 50


def test_an_answer_without_usage_counts_by_its_text(tmp_path: Path) -> None:
    headers = key(tmp_path, max_tokens=100_000)
    with proxied({"fake": FakeModel([ModelResponse(text=ADA)])}, settings_for(tmp_path)) as address:
        assert chat(address, headers, max_tokens=50_000).status == 200
        assert 6 < settled(address, headers)["spent"]["tokens"] < 3_000


def test_a_cached_answer_costs_nothing(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=1)
    with proxied({"fake": FakeModel([CHEAP])}, settings_for(tmp_path, cache={"enabled": True})) as address:
        replies = [chat(address, headers) for _ in range(2)]
        page = settled(address, headers)
    assert replies[1].headers["x-slipform-cache"] == "hit"
    assert page["spent"]["cost"] == pytest.approx(COST)


def test_a_key_sees_its_own_spending_only(tmp_path: Path) -> None:
    ada, bob = key(tmp_path, max_cost=1), key(tmp_path, "bob")
    with proxied({"fake": FakeModel([CHEAP])}, settings_for(tmp_path)) as address:
        chat(address, ada)
        assert settled(address, ada)["requests"] == 1
        assert spend_of(address, bob)["requests"] == 0
        assert call(address, "/v1/slipform/spend").status == 401


def test_the_command_line_gives_budgets_and_tells_what_is_spent(tmp_path: Path) -> None:
    config = tmp_path / "slipform.yaml"
    config.write_text(f"server: {{keys_file: '{keys_path(tmp_path)}'}}\n")

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--config", str(config)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    options = ["--budget", "1.5", "--per", "month", "--tokens", "2M", "--soft-budget", "1", "--concurrent", "4"]
    secret = run("add", "ada", *options).strip()
    made = next(iter(read_keys(keys_path(tmp_path)).values()))
    assert made.budget == KeyBudget(1.5, 2_000_000, "month", 1.0, None, 4)
    with proxied({"fake": FakeModel([CHEAP])}, settings_for(tmp_path)) as address:
        assert chat(address, {"x-api-key": secret}).status == 200
        settled(address, {"x-api-key": secret})
    assert "spent 0.00054 of 1.5 per month, 90 of 2000000 tokens per month, 0 of 4 under way" in run("list")
    run("change", "ada", "--budget", "none", "--concurrent", "2")
    changed = next(iter(read_keys(keys_path(tmp_path)).values()))
    assert changed.budget == KeyBudget(None, 2_000_000, "month", 1.0, None, 2)
    said = CliRunner().invoke(
        program("spend"), ["spend", "--by", "key,model,day", "--since", "1d", "--config", str(config)]
    )
    row = next(csv.DictReader(said.stdout.splitlines()))
    assert (row["key"], row["model"], row["requests"], row["tokens_in"], row["cost"]) == (
        "ada", "fake/m", "1", "40", "0.00054",
    )  # fmt: skip
    audit = [json.loads(line) for line in keys_path(tmp_path).with_name("keys.json.audit").read_text().splitlines()]
    assert audit[-1]["action"] == "changed"
    assert audit[-1]["after"] == {"max_tokens": 2_000_000, "period": "month", "soft_cost": 1.0, "max_concurrent": 2}


def test_a_ledger_that_cannot_be_written_refuses_only_keys_with_budgets(tmp_path: Path) -> None:
    headers, free = key(tmp_path, max_cost=1), key(tmp_path, "free")
    config = settings_for(tmp_path, ledger={"path": str(tmp_path)})  # a folder
    with proxied({"fake": FakeModel([CHEAP])}, config) as address:
        assert chat(address, free).status == 200
        reply = chat(address, headers)
        assert (reply.status, reply.json["error"]["code"]) == (503, "ledger_unavailable")


@pytest.mark.parametrize(
    ("api", "body", "output"),
    [
        ("openai-chat", {"max_tokens": 7}, OutputRequest(7)),
        ("openai-chat", {"max_completion_tokens": 8, "max_tokens": 3, "n": 3}, OutputRequest(8, 3)),
        ("openai-completions", {"max_tokens": 7, "n": 2, "best_of": 4}, OutputRequest(7, 4)),
        ("openai-responses", {"max_output_tokens": 9, "max_tokens": 99}, OutputRequest(9)),
        ("anthropic", {"max_tokens": 9, "n": 3}, OutputRequest(9)),
        ("gemini", {"generationConfig": {"maxOutputTokens": 5, "candidateCount": 2}}, OutputRequest(5, 2)),
        ("gemini", {"generation_config": {"max_output_tokens": 5}, "max_tokens": 9}, OutputRequest(5)),
        ("ollama", {"options": {"num_predict": 6}, "num_predict": 9}, OutputRequest(6)),
        ("ollama-generate", {"options": {"num_predict": -1}}, OutputRequest()),
        ("openai-chat", {"options": {"num_predict": 6}, "generationConfig": {"maxOutputTokens": 5}}, OutputRequest()),
        ("openai-chat", {"max_tokens": 2**63, "n": 10**9}, OutputRequest()),
        ("openai-chat", {}, OutputRequest()),
        ("openai-chat", [], OutputRequest()),
        ("", {"max_tokens": 7}, OutputRequest()),
    ],
)
def test_what_a_request_lets_the_model_write_is_read_from_its_apis_own_fields(
    api: str, body: Any, output: OutputRequest
) -> None:
    assert requested_output(api, body) == output


def test_an_image_counts_as_some_tokens_not_as_its_bytes() -> None:
    assert estimate_input(b'{"url": "data:image/png;base64,' + b"iVBORw0KGgo" * 100_000 + b'"}') < 30_000


def test_settings_of_the_ledger_are_read() -> None:
    text = "ledger: {path: a.db, keep_days: 3, assumed_output_tokens: 9, on_loss: local}"
    ledger = read_settings(text).ledger
    assert (ledger.path, ledger.keep_days, ledger.assumed_output_tokens, ledger.on_loss) == ("a.db", 3, 9, "local")
    assert Settings().ledger.on_loss == "refuse"


def test_sums_are_of_the_period_in_which_a_call_was_held(tmp_path: Path) -> None:
    hour = 1_794_900_000 // 3600 * 3600
    with closing(open_ledger(tmp_path / "l.db")) as connection:
        for at, cost in ((hour - 1, 5), (hour + 1, 7)):
            settle(connection, None, at, CallEntry(at, "k", "ada", "r", "m", 1, 1, cost, 1, "ok"))
        assert standing(connection, "k", "hour", hour + 2).cost == 7
        assert standing(connection, "k", "day", hour + 2).cost == 12
        assert standing(connection, "k", "", hour + 10**7).cost == 12
        assert isinstance(connection, sqlite3.Connection)


SERVED_PRICES = {"SLIPFORM_PRICES": '{"fake/*": {"input": 1.0, "output": 10.0}}', "SLIPFORM_LEDGER__PATH": "spent.db"}


TINY: Any = {"model": "fake/m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 500}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals and fork")


def shown(served: Served) -> Any:
    return json.loads(served.get("/v1/slipform/spend")[1])


@needs_fork
def test_workers_share_a_budget(tmp_path: Path, started: Callable[..., Served]) -> None:
    _, secret = add_key(keys_path(tmp_path), "ada", budget=KeyBudget(max_cost=0.0205, period="day"))
    with FakeVendor(lambda _: CHEAP) as vendor:
        served = started(vendor, 2, environment=SERVED_PRICES, key=secret, keys_file=str(keys_path(tmp_path)))
        with ThreadPoolExecutor(100) as pool:
            replies = list(pool.map(lambda _: served.call("POST", "/v1/chat/completions", TINY)[0], range(200)))
        served.wait_for(lambda: shown(served)["held"]["calls"] == 0)
        page = shown(served)
    assert set(replies) == {200, 429}
    assert page["spent"]["cost"] == pytest.approx(replies.count(200) * COST)
    assert page["spent"]["cost"] <= 0.0205
    assert len(vendor.requests) == replies.count(200)


@needs_fork
def test_a_killed_server_has_forgotten_nothing_that_was_spent(tmp_path: Path, started: Callable[..., Served]) -> None:
    _, secret = add_key(keys_path(tmp_path), "ada", budget=KeyBudget(max_cost=1.0))
    options: Any = {"environment": SERVED_PRICES, "key": secret, "keys_file": str(keys_path(tmp_path))}

    def ask_in_vain(served: Served) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            served.call("POST", "/v1/chat/completions", TINY)

    with FakeVendor([CHEAP, CHEAP, hang()]) as vendor:
        served = started(vendor, **options)
        assert [served.call("POST", "/v1/chat/completions", TINY)[0] for _ in range(2)] == [200, 200]
        served.wait_for(lambda: shown(served)["requests"] == 2)
        waiting = threading.Thread(target=ask_in_vain, args=(served,))
        waiting.start()
        assert vendor.wait_until(lambda each: len(each.requests) == 3)
        served.stop()  # by SIGKILL
        waiting.join(30)
        page = shown(started(vendor, **options))
    assert page["spent"]["cost"] == pytest.approx(2 * COST)
    assert page["held"]["cost"] > 500 * 10 / 1_000_000  # the third, of which nobody knows what it cost
