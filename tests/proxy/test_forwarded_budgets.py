"""Budgets hold for the calls that only go through: embeddings, completions, images, audio and the like."""

from __future__ import annotations

import io
import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from slipform.addons.server.admission.budgets import Standing
from slipform.addons.server.admission.key_file import read_keys
from slipform.providers.http import HttpProvider
from slipform.testing import FakeVendor, Raw, Received
from tests.proxy.account import JSON, answered
from tests.proxy.proxying import Reply, call, keys_path, proxied, running_redis
from tests.proxy.test_budgets import in_ledger, in_redis, key, settings_for, settled, together, two_machines

PRICES: Any = {"*/*": {"input": 1.0, "output": 10.0}}
EVENTS = {"content-type": "text/event-stream"}
EMBEDDED = {"object": "list", "data": [], "usage": {"prompt_tokens": 40, "total_tokens": 40}}
READ = 40 / 1e6
WRITTEN = (40 * 1.0 + 50 * 10.0) / 1e6
TOKENS = {"input_tokens": 40, "output_tokens": 50, "total_tokens": 90}


def event(data: Any) -> Raw:
    return Raw((b"data: %b\n\n" % json.dumps(data).encode(),), headers=EVENTS, chunked=True)


def form(**fields: str) -> tuple[bytes, dict[str, str]]:
    parts = [f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()]
    file = '--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + "\x00" * 300_000 + "\r\n"
    return "".join([*parts, file, "--b--\r\n"]).encode(), {"content-type": "multipart/form-data; boundary=b"}


ROWS: dict[str, tuple[str, Any, Raw, float, str]] = {
    "embeddings": ("/v1/embeddings", {"model": "up/m", "input": "x"}, answered(EMBEDDED), READ, "header"),
    "completions": (
        "/v1/completions",
        {"model": "up/m", "prompt": "x", "max_tokens": 50},
        answered({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 50}}),
        WRITTEN,
        "header",
    ),
    "images": (
        "/v1/images/generations",
        {"model": "up/m", "prompt": "x"},
        answered({"usage": TOKENS}),
        WRITTEN,
        "header",
    ),
    "streamed images": (
        "/v1/images/generations",
        {"model": "up/m", "prompt": "x", "stream": True},
        event({"type": "image_generation.completed", "usage": TOKENS}),
        WRITTEN,
        "event",
    ),
    "transcriptions": ("/v1/audio/transcriptions", form(model="up/m"), answered({"usage": TOKENS}), WRITTEN, "header"),
    "compaction": (
        "/v1/responses/compact",
        {"model": "kept/m", "input": "x"},
        answered({"usage": TOKENS}),
        WRITTEN,
        "header",
    ),
    "embedContent": (
        "/v1beta/models/gem/m:embedContent",
        {"content": {"parts": [{"text": "x"}]}},
        answered({"embedding": {"values": [1.0]}, "usageMetadata": {"promptTokenCount": 40}}),
        READ,
        "header",
    ),
}
"""A row's path, a request, the vendor's answer, what it costs, and where the caller is told."""


def sent(address: str, path: str, body: Any, headers: dict[str, str]) -> Reply:
    if not isinstance(body, tuple):
        return call(address, path, body, headers)
    request = urllib.request.Request(address + path, body[0], {**headers, **body[1]})
    with urllib.request.urlopen(request, timeout=30) as response:
        return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, response.read())


def proxy(vendor: FakeVendor, folder: Path, **more: Any) -> Any:
    providers = {
        "up": HttpProvider("openai", name="up", base_url=vendor.base_url, api_key="k"),
        "kept": HttpProvider("openai-responses", name="kept", base_url=vendor.base_url, api_key="k"),
        "gem": HttpProvider("gemini", name="gem", base_url=vendor.base_url, api_key="k"),
    }
    return proxied(providers, {**settings_for(folder), "prices": PRICES, **more})


@pytest.mark.parametrize("row", ROWS)
def test_what_a_forwarded_call_costs_is_told_and_counted(row: str, tmp_path: Path) -> None:
    path, body, answer, cost, told = ROWS[row]
    headers = key(tmp_path, max_cost=1, period="day")
    with FakeVendor([answer]) as vendor, proxy(vendor, tmp_path) as address:
        reply = sent(address, path, body, headers)
        page = settled(address, headers)
    assert reply.status == 200, reply.body
    assert page["spent"]["cost"] == pytest.approx(cost)
    assert page["requests"] == 1
    assert "x-slipform-budget-remaining" in reply.headers
    if told == "header":
        assert float(reply.headers["x-slipform-cost"]) == pytest.approx(cost)
    else:
        usage = json.loads(reply.body.decode().split("data: ")[1])["usage"]
        assert usage["cost"] == pytest.approx(cost)


def test_two_hundred_embeddings_at_once_never_hold_or_spend_more_than_the_budget(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=0.001, period="day")  # for 25 at the vendor's count; each holds about 50 tokens
    key_id = next(iter(read_keys(keys_path(tmp_path))))
    most, lock = [Standing()], threading.Lock()

    def embed(_: Received) -> Raw:
        stands = in_ledger(tmp_path, key_id)
        with lock:
            most.append(max(most[-1], stands, key=lambda each: each.cost + each.held_cost))
        return answered(EMBEDDED)

    with FakeVendor(embed) as vendor, proxy(vendor, tmp_path) as address:
        replies = together(lambda _: call(address, "/v1/embeddings", {"model": "up/m", "input": "x"}, headers))
        page = settled(address, headers)
    good = [reply.status for reply in replies].count(200)
    assert {reply.status for reply in replies} == {200, 429}
    assert next(r for r in replies if r.status == 429).json["error"]["code"] == "budget_exceeded"
    assert most[-1].cost + most[-1].held_cost <= 1_000_000
    assert page["spent"]["cost"] == pytest.approx(good * READ)
    assert page["spent"]["cost"] <= 0.001
    assert len(vendor.requests) == good


def test_embeddings_over_two_machines_with_redis_never_spend_more_than_the_budget(tmp_path: Path) -> None:
    folders, headers, key_id = two_machines(tmp_path, max_cost=0.001, period="day")
    asked = {"model": "up/m", "input": "x"}
    most, lock = [0], threading.Lock()
    with running_redis() as redis:
        shared = {"redis": {"url": redis.url, "prefix": "f:"}}

        def embed(_: Received) -> Raw:
            stands = in_redis(redis, "f:", key_id)
            with lock:
                most.append(stands.cost + stands.held_cost)
            return answered(EMBEDDED)

        with FakeVendor(embed) as vendor:
            one, two = (proxy(vendor, folder, **shared) for folder in folders)
            with one as first, two as second:
                replies = together(lambda at: call((first, second)[at % 2], "/v1/embeddings", asked, headers), 100)
                page = settled(first, headers)
                assert settled(second, headers)["spent"] == page["spent"]
    good = [reply.status for reply in replies].count(200)
    assert {reply.status for reply in replies} == {200, 429}
    assert next(r for r in replies if r.status == 429).json["error"]["code"] == "budget_exceeded"
    assert max(most) <= 1_000_000
    assert page["spent"]["cost"] == pytest.approx(good * READ)
    assert len(vendor.requests) == good


@pytest.mark.parametrize("row", ["completions", "streamed images", "transcriptions", "embedContent"])
def test_what_a_forwarded_call_cost_on_one_machine_is_known_to_the_other(row: str, tmp_path: Path) -> None:
    path, body, answer, cost, _ = ROWS[row]
    folders, headers, _ = two_machines(tmp_path, max_cost=1, period="day")
    with running_redis() as redis, FakeVendor([answer]) as vendor:
        one, two = (proxy(vendor, folder, redis={"url": redis.url, "prefix": "g:"}) for folder in folders)
        with one as first, two as second:
            assert sent(first, path, body, headers).status == 200
            assert settled(first, headers)["spent"]["cost"] == pytest.approx(cost)
            assert settled(second, headers)["spent"]["cost"] == pytest.approx(cost)


def test_embeddings_hold_nothing_for_words_that_no_model_writes(tmp_path: Path) -> None:
    headers = key(tmp_path, max_tokens=200)
    with FakeVendor([answered(EMBEDDED)]) as vendor, proxy(vendor, tmp_path) as address:
        assert call(address, "/v1/embeddings", {"model": "up/m", "input": "x"}, headers).status == 200
        refused = call(address, "/v1/images/generations", {"model": "up/m", "prompt": "x"}, headers)
    assert refused.status == 429
    assert len(vendor.requests) == 1


def test_a_recording_is_held_by_its_length_and_not_as_text(tmp_path: Path) -> None:
    headers = key(tmp_path, max_tokens=10_000 + 1_024)
    with FakeVendor([answered({"text": "hello"})]) as vendor, proxy(vendor, tmp_path) as address:
        reply = sent(address, "/v1/audio/translations", form(model="up/m"), headers)
        spent = settled(address, headers)["spent"]["tokens"]
    assert reply.status == 200
    assert 300_000 / 40 < spent < 11_000  # the vendor tells nothing, so it counts as it was held


def test_the_vendors_default_model_needs_a_price_too(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=1)
    asked = {"prompt": "x"}
    with FakeVendor([answered({"usage": TOKENS})]) as vendor:
        with proxy(vendor, tmp_path, prices={"up/m": {"input": 1, "output": 1}}) as address:
            refused = call(address, "/v1/images/generations", asked, {**headers, "x-slipform-provider": "up"})
        with proxy(vendor, tmp_path) as address:
            reply = call(address, "/v1/images/generations", asked, {**headers, "x-slipform-provider": "up"})
            page = settled(address, headers)
    assert (refused.status, refused.json["error"]["code"]) == (400, "no_price")
    assert "'up/default'" in refused.json["error"]["message"]
    assert reply.status == 200
    assert page["spent"]["cost"] == pytest.approx(WRITTEN)


def test_a_vendors_refusal_costs_nothing_and_an_answer_that_broke_off_what_was_held(tmp_path: Path) -> None:
    headers = key(tmp_path, max_cost=1)
    broken = Raw((b'{"object": ', b'"list"}'), headers=JSON, cut_after=1, ending="cut")
    asked = {"model": "up/m", "input": "x" * 300}
    with (
        FakeVendor([answered({"error": {"message": "no"}}, 400), broken]) as vendor,
        proxy(vendor, tmp_path) as address,
    ):
        assert call(address, "/v1/embeddings", asked, headers).status == 400
        assert settled(address, headers)["spent"]["cost"] == 0
        assert call(address, "/v1/embeddings", asked, headers).status == 502
        assert settled(address, headers)["spent"]["cost"] > 100 / 1e6


def test_a_key_has_so_many_forwarded_calls_under_way(tmp_path: Path) -> None:
    headers = key(tmp_path, max_concurrent=1)
    here, go_on = threading.Event(), threading.Event()

    def embed(_: Received) -> Raw:
        here.set()
        go_on.wait(20)
        return answered(EMBEDDED)

    asked = {"model": "up/m", "input": "x"}
    with FakeVendor(embed) as vendor, proxy(vendor, tmp_path) as address:
        first: list[Reply] = []
        thread = threading.Thread(target=lambda: first.append(call(address, "/v1/embeddings", asked, headers)))
        thread.start()
        assert here.wait(20)
        second = call(address, "/v1/embeddings", asked, headers)
        go_on.set()
        thread.join(20)
    assert (first[0].status, second.status) == (200, 429)


@pytest.mark.parametrize("limits", [{"max_cost": 1}, {"max_tokens": 9}, {"max_concurrent": 2}], ids=str)
def test_a_key_that_can_run_out_makes_no_batches(tmp_path: Path, limits: Any) -> None:
    headers = key(tmp_path, **limits)
    with (
        FakeVendor([answered({"id": "file-1"}), answered({"id": "batch-1"})]) as vendor,
        proxy(vendor, tmp_path) as address,
    ):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=headers["x-api-key"], max_retries=0)
        line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "up/m", "input": "x"}}
        file = client.files.create(file=io.BytesIO(json.dumps(line).encode()), purpose="batch")
        if "max_concurrent" in limits:
            client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
            return
        with pytest.raises(openai.PermissionDeniedError, match="slipform batch"):
            client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        anthropic = {"requests": [{"custom_id": "a", "params": {"model": "up/m"}}]}
        refused = call(address, "/v1/messages/batches", anthropic, {**headers, "anthropic-version": "2023-06-01"})
    assert refused.status == 403
