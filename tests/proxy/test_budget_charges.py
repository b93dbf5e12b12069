"""What a call is charged when its client leaves, when its vendor counts oddly, and when the ledger cannot write it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from slipform.addons.server.admission.admission import Caller
from slipform.addons.server.admission.budgets import KeyBudget, Standing
from slipform.addons.server.admission.ledger import CallEntry, Hold, SpendLedger, open_ledger, reserve, settle, standing
from slipform.addons.server.admission.output_limits import OutputRequest
from slipform.addons.server.admission.spending import CallSpending, Spending
from slipform.addons.server.observability.call_record import CallRecord
from slipform.config import Settings
from slipform.ir import ModelResponse, Usage
from slipform.testing import Answer, Api, FakeModel, FakeVendor, Raw
from tests.proxy.budgeted import APIS, ServedApi, proxy
from tests.proxy.proxying import ADA, call, chat, proxied
from tests.proxy.test_budgets import key, settings_for, settled, together
from tests.proxy.wire import post
from tests.waiting import for_ever, turns, until_async

WORDS = 3_000
TEXT = "".join(f" word{at:04d}" for at in range(WORDS))
PIECE = 45
"""Characters of an event: five words."""
LIMIT = 50
"""What the requests allow, and the vendor ignores."""
PERSON_TEXT = json.dumps({"name": TEXT, "age": 36})


async def _stop_at_the_end(index: int) -> None:
    """Let the words go, and never what comes after them."""
    if index >= len(TEXT) // PIECE:
        await for_ever()


def _lines(make: Callable[[str], Any], mark: bytes) -> Raw:
    """A stream of words in a form that the fake vendor does not write."""
    pieces = [TEXT[at : at + PIECE] for at in range(0, len(TEXT), PIECE)]
    kind = {"content-type": "text/event-stream" if mark else "application/x-ndjson"}
    events = tuple(mark + json.dumps(make(piece)).encode() + (b"\n\n" if mark else b"\n") for piece in pieces)
    return Raw((*events, b""), headers=kind, chunked=True, gate=_stop_at_the_end)


STREAMS: Mapping[str, Raw] = {
    "completions": _lines(lambda text: {"object": "text_completion", "choices": [{"text": text}]}, b"data: "),
    "generate": _lines(lambda text: {"model": "m", "response": text, "done": False}, b""),
}


def stream_of(name: str, *, enforced: bool) -> Answer | Raw:
    """What the vendor of an API streams: all words, and then nothing more."""
    if enforced:
        return Answer(PERSON_TEXT, chunk_size=PIECE, gate=_stop_at_the_end)
    return STREAMS.get(name) or Answer(TEXT, chunk_size=PIECE, gate=_stop_at_the_end)


def read_and_leave(address: str, path: str, body: Any, headers: Mapping[str, str], words: int) -> int:
    """Read a stream until it has so many words, and close the connection; gives how many there were."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    with closing(connection):
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **headers})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        data = b""
        while (count := data.count(b"word")) < words:
            piece = response.read1(65536)
            assert piece, data[-500:]
            data += piece
        return count


def request_for(api: ServedApi, *, enforced: bool) -> dict[str, Any]:
    request = {**api.request(**{api.field: LIMIT}), "stream": True, "stream_options": {"include_usage": True}}
    if api.vendor != "openai":
        del request["stream_options"]
    if api.vendor == "gemini":
        del request["stream"]
    return api.enforced(request) if enforced else request


@pytest.mark.parametrize("way", ["passed through", "enforced", "to another vendor"])
@pytest.mark.parametrize("name", APIS)
def test_who_leaves_a_stream_pays_for_what_was_relayed(name: str, way: str, tmp_path: Path) -> None:
    api = APIS[name]
    headers = key(tmp_path, max_tokens=1_000_000)
    kind: Api = api.vendor
    if way == "to another vendor":
        kind = "anthropic" if api.vendor == "openai" else "openai"
    script = [stream_of(name if kind == api.vendor else "", enforced=way == "enforced")]
    with FakeVendor(script, api=kind) as vendor, proxy(vendor, kind, tmp_path) as address:
        request = request_for(api, enforced=way == "enforced")
        read = read_and_leave(address, api.stream_path, request, headers, WORDS - 100)
        spent = settled(address, headers)["spent"]["tokens"]
    assert read <= spent <= 3 * WORDS


ODD: Any = [
    -1,
    -5_000_000,
    10**12 + 1,
    2**63,
    10**19,
    1e300,
    float("nan"),
    float("inf"),
    "7",
    "",
    True,
    [],
    {},
    [1],
    None,
]
"""Counts of tokens that are none."""


def entries(folder: Path) -> list[tuple[int, int, int | None]]:
    with closing(open_ledger(folder / "keys.json.ledger.db", readonly=True)) as connection:
        return connection.execute("SELECT tokens_in, tokens_out, cost FROM calls").fetchall()


@pytest.mark.parametrize("enforced", [False, True], ids=["passed through", "enforced"])
@pytest.mark.parametrize("name", APIS)
def test_an_odd_count_of_tokens_is_charged_as_reserved(name: str, enforced: bool, tmp_path: Path) -> None:
    api = APIS[name]
    headers = key(tmp_path, max_cost=1.0)
    failures: list[Any] = []
    usages: list[Any] = [Usage(each, each, total=each) for each in ODD]
    usages += [Usage(5, each) for each in ODD] + [Usage(each, 5) for each in ODD]
    script = [ModelResponse(text=ADA, usage=usage) for usage in usages for _ in range(2)]
    with FakeVendor(script, api=api.vendor) as vendor, proxy(vendor, api.vendor, tmp_path) as address:
        before = 0.0
        for usage in usages:
            request = api.request(**{api.field: LIMIT})
            request = api.enforced(request) if enforced else request
            whole = post(address, api.path, request, headers)
            streamed = post(address, api.stream_path, request_for(api, enforced=enforced), headers)
            page = settled(address, headers)
            cost = page["spent"]["cost"] - before
            before = page["spent"]["cost"]
            if not 0 < cost < 0.002 or page["held"]["calls"]:
                failures.append((usage, cost, page, whole.body[:200], streamed.body[:200]))
    assert not failures
    rows = entries(tmp_path)
    assert len(rows) == 2 * len(usages)
    assert all(0 <= given < 1_000 and 0 <= written <= 1_000 for given, written, _ in rows)


@pytest.mark.parametrize("usage", ["x", 5, [], [1], None, {"prompt_tokens_details": [1], "prompt_tokens": 3}], ids=str)
def test_a_usage_that_is_none_at_all_does_not_fail_the_call(usage: Any, tmp_path: Path) -> None:
    headers = key(tmp_path, max_tokens=10_000)
    message = {"message": {"role": "assistant", "content": ADA}, "finish_reason": "stop", "index": 0}
    answer = Raw((json.dumps({"id": "x", "choices": [message], "usage": usage}).encode(),), headers=JSON)
    with FakeVendor([answer]) as vendor, proxy(vendor, "openai", tmp_path) as address:
        replies = [
            chat(address, headers, model="up/m", max_tokens=50, **more) for more in ({}, {"response_format": None})
        ]
        page = settled(address, headers)
    assert [reply.status for reply in replies] == [200, 200]
    assert page["requests"] == 2
    assert 0 < page["spent"]["tokens"] < 2_000


JSON = {"content-type": "application/json"}


def test_odd_counts_of_a_provider_without_http_are_charged_as_reserved(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=1.0)
    usages = [Usage(each, each, total=each) for each in (-1, -5_000_000, 2**63, 10**19, 0)]
    model = FakeModel([ModelResponse(text=ADA, usage=usage) for usage in usages])
    with proxied({"fake": model}, settings_for(tmp_path), attempts=1) as address:
        assert {chat(address, headers, max_tokens=LIMIT).status for _ in usages} == {200}
        page = settled(address, headers)
    assert len(entries(tmp_path)) == len(usages)
    assert 0 < page["spent"]["cost"] < 0.05


def test_a_job_of_the_ledger_that_raises_is_settled_as_reserved(tmp_path: Path) -> None:
    ledger = SpendLedger(tmp_path / "l.db")
    budget = KeyBudget(max_cost=1, max_concurrent=1)
    hold = Hold("h", "k", "ada", 1_000.0, 70, 900)
    reserved = CallEntry(1_000.0, "k", "ada", "r", "m", 70, 0, 900, 1, "ok")

    def fail(_: sqlite3.Connection) -> None:
        raise RuntimeError("anything")

    def write(entry: CallEntry, db: sqlite3.Connection) -> None:
        settle(db, "h", 1_000.0, entry)

    async def run() -> Standing:
        await ledger.run(lambda db: reserve(db, hold, 70, 900, budget, model="m", owner="x", now=1_000.0))
        wrong: list[Any] = [reserved._replace(tokens_in=2**70), reserved._replace(model=object())]  # type: ignore[arg-type]
        for entry in wrong:
            ledger.post(partial(write, entry), partial(write, reserved))
        ledger.post(fail)
        return await ledger.run(lambda db: standing(db, "k", "", 1_000.0))

    stands = asyncio.run(run())
    ledger.close()
    assert stands == Standing(2, 140, 1_800, 0, 0, 0)


def test_sums_do_not_overflow(tmp_path: Path) -> None:
    with closing(open_ledger(tmp_path / "l.db")) as connection:
        for _ in range(200):
            settle(connection, None, 0.0, CallEntry(0.0, "k", "ada", "r", "m", 10**13, 0, 10**17, 1, "ok"))
        stands = standing(connection, "k", "", 0.0)
    assert (stands.requests, stands.tokens, stands.cost) == (200, 10**15, 10**18)


async def test_a_call_that_is_cancelled_while_it_reserves_holds_nothing(tmp_path: Path) -> None:
    budget = KeyBudget(max_tokens=1_000)
    ledger = SpendLedger(tmp_path / "l.db")
    spending = Spending(lambda _: None, ledger, Settings())
    caller = Caller("ada", id="k", budget=budget)
    for number in range(40):
        call = CallSpending(spending, caller, CallRecord("r"))
        task = asyncio.create_task(call.begin("m", b"hi", OutputRequest(900)))
        await turns(number)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
            call.refused()
        call.finish()
    assert await until_async(lambda: is_free(spending, budget))
    await spending.close()


async def is_free(spending: Spending, budget: KeyBudget) -> bool:
    stands = await spending.standing("k", budget)
    return (stands.held_tokens, stands.live) == (0, 0)


def test_a_half_spent_budget_refuses_nobody_for_what_is_only_reserved(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=10.0)
    answer = Answer(ModelResponse(text=ADA, usage=Usage(10, 5, total=15)), latency=0.05)
    prices = {"up/*": {"input": 1_000.0, "output": 1_000.0}}
    with FakeVendor([answer]) as vendor, proxy(vendor, "openai", tmp_path, prices=prices) as address:
        first = together(lambda _: chat(address, headers, model="up/m", max_tokens=5), 200)
        half = settled(address, headers)["spent"]["cost"]
        second = together(lambda _: chat(address, headers, model="up/m", max_tokens=5), 200)
        spent = settled(address, headers)["spent"]["cost"]
    assert {reply.status for reply in (*first, *second)} == {200}
    assert (half, spent) == (pytest.approx(3.0), pytest.approx(6.0))


def test_a_budget_of_one_takes_its_first_small_call(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=1.0)
    prices = {"up/*": {"input": 1_000.0, "output": 1_000.0}}
    with FakeVendor([ADA]) as vendor, proxy(vendor, "openai", tmp_path, prices=prices) as address:
        assert chat(address, headers, model="up/m", max_tokens=5).status == 200


def test_a_refusal_for_others_reservations_may_be_repeated_and_one_for_a_spent_budget_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipform.addons.server.admission.spending._WAIT_SECONDS", 0.05)
    headers = key(tmp_path, max_tokens=1_000, period="day")

    async def wait(_: int) -> None:
        await for_ever()

    slow = Answer("hello", gate=wait)
    with FakeVendor([slow, "hello"]) as vendor, proxy(vendor, "openai", tmp_path) as address:
        body = {**APIS["chat"].body, "max_tokens": 500}
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(call, address, "/v1/chat/completions", body, headers)
            assert vendor.wait_until(lambda each: len(each.requests) == 1)
            early = call(address, "/v1/chat/completions", body, headers)
            vendor.hang_up()
            first.result()
        settled(address, headers)
        late = call(address, "/v1/chat/completions", body, headers)
    assert (early.status, early.headers["retry-after"]) == (429, "1")
    assert "x-should-retry" not in early.headers
    assert early.json["error"]["code"] == late.json["error"]["code"] == "budget_exceeded"
    assert (late.status, late.headers["x-should-retry"]) == (429, "false")
    assert int(late.headers["retry-after"]) > 1
