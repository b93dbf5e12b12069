"""What a scraper reads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipform import AsyncClient, Budget, Options
from slipform.addons.server import App
from slipform.addons.server.observability.call_record import CallRecord
from slipform.addons.server.observability.metrics import Metrics, WorkerAddress
from slipform.config import Cache, Settings
from slipform.enforce.plan import Attempt, Report
from slipform.errors import RateLimitError
from slipform.ir import ModelResponse, Usage
from slipform.providers.router import Router
from slipform.schema import OutputStrategy
from slipform.testing import FakeModel
from tests.conftest import PERSON
from tests.proxy.asgi import call, get, post

ASK: dict[str, Any] = {"model": "fake/m", "messages": [{"role": "user", "content": "Ada is 36"}]}
WANTED = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
SPENT = Usage(input=7, output=5)


def values(page: bytes | str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = page if isinstance(page, str) else page.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found.get((name, frozenset(labels.items())), 0)


def app_for(*script: Any, settings: Settings | None = None) -> App:
    router = Router({"fake": FakeModel(list(script), models=("m",))})
    return App(AsyncClient(router=router, options=Options(budget=Budget(attempts=2))), settings or Settings())


async def test_requests_attempts_repairs_and_tokens_are_counted() -> None:
    good = '{"name": "Ada", "age": 36}'
    answers = [good, '{"name": "Ada", "age": 36,}', '{"name": "Ada"}', good, "no", "no", "hello"]
    app = app_for(*(ModelResponse(text=text, usage=SPENT) for text in answers))
    for _ in range(4):
        await post(app, "/v1/chat/completions", {**ASK, "response_format": WANTED})
    await post(app, "/v1/chat/completions", ASK)
    found = values((await get(app, "/metrics")).body)
    done = {"api": "openai-chat", "provider": "fake", "model": "fake/m"}
    assert value(found, "slipform_requests_total", **done, strategy="prompted", outcome="ok") == 3
    assert value(found, "slipform_requests_total", **done, strategy="enforced", outcome="not_json") == 1
    assert value(found, "slipform_requests_total", **done, strategy="pass", outcome="ok") == 1
    stages = ("first_try", "after_repair", "after_reask", "failed")
    assert [value(found, "slipform_schema_valid_total", stage=stage) for stage in stages] == [1, 1, 1, 1]
    assert value(found, "slipform_attempts_total", reason="ok") == 3
    assert value(found, "slipform_attempts_total", reason="schema_violation") == 1
    assert value(found, "slipform_repairs_total", kind="trailing_comma") == 1
    assert value(found, "slipform_tokens_total", type="input", purpose="answer") == 35
    assert value(found, "slipform_tokens_total", type="output", purpose="reask") == 10
    for name in ("request", "ttfc", "overhead"):
        assert value(found, f"slipform_{name}_seconds_count", api="openai-chat") == 5
    assert value(found, "slipform_inflight") == 0


async def test_upstream_errors_are_counted_by_status() -> None:
    app = app_for(RateLimitError("slow down", status=429))
    assert (await post(app, "/v1/chat/completions", ASK)).status == 429
    found = values((await get(app, "/metrics")).body)
    assert value(found, "slipform_upstream_errors_total", provider="fake", status="429") == 1


async def test_names_that_callers_make_up_do_not_become_labels() -> None:
    app = app_for("hi")
    for number in range(300):
        assert (await post(app, "/v1/chat/completions", {**ASK, "model": f"made-up-{number}"})).status == 404
    page = (await get(app, "/metrics")).body
    assert b"made-up" not in page
    assert b'model="other"' in page


def test_models_that_answer_become_labels_up_to_a_limit() -> None:
    metrics = Metrics(lambda: ())
    for number in range(300):
        metrics.call_ended(CallRecord("r", api="a", provider="p", model=f"p/{number}", status=200))
    page = metrics.render()[0].decode()
    assert page.count("slipform_requests_total{") == 201
    assert 'model="p/7"' in page


def test_the_cache_is_counted_where_there_is_one() -> None:
    metrics = Metrics(lambda: ())
    metrics.call_ended(CallRecord("r", enforced=True, cached=True), caching=True)
    metrics.call_ended(CallRecord("r", enforced=True), caching=True)
    metrics.call_ended(CallRecord("r", enforced=True), caching=False)
    found = values(metrics.render()[0].decode())
    assert (value(found, "slipform_cache_hits_total"), value(found, "slipform_cache_misses_total")) == (1, 1)


async def test_an_app_has_its_own_registry() -> None:
    first, second = app_for("hi"), app_for("hi", settings=Settings(cache=Cache(enabled=True)))
    await post(first, "/v1/chat/completions", ASK)
    assert b"slipform_requests_total{" in (await get(first, "/metrics")).body
    assert b"slipform_requests_total{" not in (await get(second, "/metrics")).body


@pytest.mark.parametrize("query", [b"a=%C2%B2", b"b=%ff", b"=&&=;", b"worker=%D9%A3"])
async def test_an_odd_query_keeps_nobody_from_the_metrics(query: bytes) -> None:
    assert (await call(app_for("hi"), "GET", "/metrics", query=query)).status == 200


async def test_a_query_of_very_many_fields_is_refused() -> None:
    reply = await call(app_for("hi"), "GET", "/metrics", query=b"&".join([b"a=1"] * 65))
    assert reply.status == 400
    assert b"more than 64 fields" in reply.body


async def test_openmetrics_is_given_to_those_who_ask_for_it() -> None:
    reply = await get(app_for("hi"), "/metrics", {"accept": "application/openmetrics-text; version=1.0.0"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert reply.body.endswith(b"# EOF\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="several workers need fork")
async def test_a_scrape_of_one_worker_has_the_metrics_of_all(tmp_path: Path) -> None:
    worker = WorkerAddress(0, 3, tmp_path)  # the third one is dead
    router = Router({"fake": FakeModel(["hi"], models=("m",))})
    one = App(AsyncClient(router=router), Settings(), worker=worker)
    other = App(AsyncClient(router=router), Settings(), worker=WorkerAddress(1, 3, tmp_path))
    await post(one, "/v1/chat/completions", ASK)
    for _ in range(2):
        await post(other, "/v1/chat/completions", ASK)

    alone = other.metrics.render()[0].decode()
    assert "worker=" not in alone

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"worker=self" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + alone.encode())
        writer.close()

    server = await asyncio.start_unix_server(plain, str(worker.socket_path(1)))
    async with contextlib.AsyncExitStack() as closing:
        closing.callback(server.close)
        found = values((await get(one, "/metrics")).body)
    labels = {"api": "openai-chat", "provider": "fake", "model": "fake/m", "strategy": "pass", "outcome": "ok"}
    assert value(found, "slipform_requests_total", **labels, worker="0") == 1
    assert value(found, "slipform_requests_total", **labels, worker="1") == 2


def test_names_that_vendors_take_do_not_crowd_out_those_that_are_configured() -> None:
    metrics = Metrics(lambda: ("mine/a", "mine/b"))
    for number in range(300):
        metrics.call_ended(CallRecord("r", api="a", provider="p", model=f"p/{number}", status=200))
    for name in ("mine/a", "mine/b"):
        metrics.call_ended(CallRecord("r", api="a", provider="mine", model=name, status=502, outcome="upstream_error"))
    page = metrics.render()[0].decode()
    names = {line.split('model="')[1].split('"')[0] for line in page.splitlines() if 'model="' in line}
    assert {"mine/a", "mine/b", "other"} <= names
    assert len(names - {"other"}) == 200


def test_a_name_that_only_errors_answered_to_is_counted_with_the_others() -> None:
    metrics = Metrics(lambda: ())
    metrics.call_ended(CallRecord("r", api="a", provider="p", model="p/gone", status=404))
    assert 'model="other"' in metrics.render()[0].decode()


def test_the_page_stays_small_whatever_callers_and_vendors_make_up() -> None:
    metrics = Metrics(lambda: ())
    for number in range(20_000):
        name = f"p/{number % 400}" + "x" * 5_000
        record = CallRecord("r", api=f"a{number % 4}", provider="p" * 5_000, model=name, status=200)
        record.strategy, record.upstream_status = ("native", "tool", "prompted")[number % 3], 100 + number % 900
        record.outcome = "ok" if number % 2 else f"code_{number % 40}"
        metrics.call_ended(record)
    page = metrics.render()[0].decode()
    assert len(page) < 4_000_000
    assert page.count("slipform_upstream_errors_total{") < 80


def test_the_text_of_large_answers_is_not_held_until_calls_are_counted() -> None:
    metrics = Metrics(lambda: ())
    attempt = Attempt("ok", OutputStrategy.NATIVE, "m", "x" * 100_000)
    report = Report((attempt,))
    record = CallRecord("r", api="a", model="m", status=200, report=report)
    held = sys.getrefcount(record), sys.getrefcount(report), sys.getrefcount(attempt)
    metrics.call_ended(record)
    assert (sys.getrefcount(record), sys.getrefcount(report), sys.getrefcount(attempt)) == held
