"""`batch(via="batch")`: rows go through a vendor's batch API, and only valid ones come back."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.batch.batched_calls import BatchPolicy
from slipform.addons.batch.datasets import Summary, make_job, plan, start
from slipform.addons.batch.jobs import BatchJob
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.errors import AuthenticationError, ConfigError, UpstreamError
from slipform.prices import Price
from slipform.providers.concurrency import throttled
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.providers.vendor_limits import MinuteLimits, VendorBudget
from slipform.testing import FakeVendor
from tests.conftest import PERSON
from tests.runner.batch_vendors import BASES, Batch, BatchVendor, DirectTransport, Faults, no_sleep
from tests.runner.conftest import (
    asked_for,
    command,
    command_line,
    environment,
    person,
    read_rows,
    settings_for,
    write_rows,
)

APIS = ["openai", "azure", "anthropic", "gemini"]
MODELS = {"openai": "gpt-6-luna", "azure": "gpt-6-luna", "anthropic": "claude-opus-5-5", "gemini": "gemini-3-flash"}
INVALID = json.dumps({"name": "nobody", "age": "unknown"})
PRICE = Price(input=2.0, output=10.0)
"""A row's 100 tokens in and 20 out cost 0.0004 live."""
ROW = 0.0004


def good(prompt: str, _: int) -> str:
    return person(asked_for(prompt))


def sometimes_invalid(share: int) -> Callable[[str, int], str]:
    """A model whose first answer to every n-th row is not valid."""

    def answer(prompt: str, turn: int) -> str:
        number = asked_for(prompt)
        return INVALID if number % share == 0 and turn == 0 else person(number)

    return answer


class Clock:
    """A clock that sleeping sets forward."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def router_for(vendor: BatchVendor, around: Callable[[], None] = lambda: None) -> Router:
    provider = HttpProvider(
        vendor.api,
        base_url=BASES[vendor.api],
        api_key="sk-test-key",
        transport=DirectTransport(vendor, around),
        retries=RetryPolicy(attempts=0),
    )
    return Router({vendor.api: provider}, default=f"{vendor.api}/{MODELS[vendor.api]}")


def job_for(folder: Path, vendor: BatchVendor, router: Router, rows: int = 60, **more: Any) -> BatchJob:
    path = folder / "in.jsonl"
    if not path.exists():
        write_rows(path, rows)
    options = Options(budget=Budget(attempts=3), prices={f"{vendor.api}/*": PRICE})
    job, _ = make_job(
        path,
        schema=PERSON,
        out=folder / "out.jsonl",
        prompt="Who is {name}",
        settings=Settings(),
        router=router,
        **{"via": "batch", "options": options, **more},
    )
    return job


def run(
    folder: Path,
    vendor: BatchVendor,
    rows: int = 60,
    policy: BatchPolicy | None = None,
    around: Callable[[], None] = lambda: None,
    **more: Any,
) -> Summary:
    router = router_for(vendor, around)
    clock = Clock()
    usual = BatchPolicy(clock=clock, sleep=clock.sleep)
    return start(job_for(folder, vendor, router, rows, **more), router, policy=policy or usual)


def check(folder: Path, rows: int) -> None:
    results = read_rows(folder / "out.jsonl")
    assert [row["row"] for row in results] == list(range(1, rows + 1))
    assert [row["value"] for row in results] == [json.loads(person(number)) for number in range(1, rows + 1)]


@pytest.mark.parametrize("api", APIS)
def test_rows_come_back_valid_at_half_the_price(tmp_path: Path, api: str) -> None:
    vendor = BatchVendor(api, good)
    summary = run(tmp_path, vendor)
    check(tmp_path, 60)
    assert summary.failed == 0
    assert summary.batches is not None
    assert (summary.batches.batches, summary.batches.requests, summary.batches.live_calls) == (1, 60, 0)
    assert summary.cost == pytest.approx(60 * ROW / 2)
    assert vendor.live == []
    assert not (tmp_path / "out.jsonl.batches").exists()


@pytest.mark.parametrize("api", APIS)
def test_only_invalid_rows_go_into_the_next_batch_with_their_violations(tmp_path: Path, api: str) -> None:
    vendor = BatchVendor(api, sometimes_invalid(2))
    summary = run(tmp_path, vendor)
    check(tmp_path, 60)
    assert [len(batch.requests) for batch in vendor.batches.values()] == [60, 30]
    second = json.dumps([body for _, body in list(vendor.batches.values())[1].requests])
    assert second.count("Return corrected JSON only") == 30
    assert second.count("unknown") >= 30
    assert summary.batches is not None
    assert (summary.batches.retries, summary.batches.live_calls) == (30, 0)
    assert summary.cost == pytest.approx(90 * ROW / 2)


@pytest.mark.parametrize("api", APIS)
def test_the_last_few_are_asked_live_from_where_they_are(tmp_path: Path, api: str) -> None:
    vendor = BatchVendor(api, sometimes_invalid(10))
    summary = run(tmp_path, vendor)
    check(tmp_path, 60)
    assert len(vendor.batches) == 1
    assert len(vendor.live) == 6
    assert summary.batches is not None
    assert summary.batches.live_calls == 6
    assert summary.batches.live_cost == pytest.approx(6 * ROW)
    assert summary.cost == pytest.approx(60 * ROW / 2 + 6 * ROW)


def test_a_row_that_stays_invalid_fails_with_all_its_attempts(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", lambda prompt, _: INVALID if asked_for(prompt) == 7 else good(prompt, 0))
    summary = run(tmp_path, vendor)
    assert summary.failed == 1
    (failure,) = read_rows(tmp_path / "out.jsonl.failures.jsonl")
    assert failure["row"] == 7
    assert failure["error"]["details"]["attempts"] == 3
    assert len(vendor.live) == 2


ODD = {
    "missing lines": Faults(missing=0.3),
    "duplicated lines": Faults(duplicated=0.5),
    "ids that were never sent": Faults(foreign=5),
    "errors per line": Faults(errored=0.3),
    "expired lines": Faults(end="expired", expired=0.4),
    "a cut file": Faults(cut=1.0),
    "answers of the API that are lost": Faults(lost_answers=0.2),
    "an overloaded API": Faults(refused=0.2),
    "everything": Faults(
        missing=0.1, duplicated=0.2, foreign=3, errored=0.1, expired=0.1, cut=0.5, lost_answers=0.1, refused=0.1
    ),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("odd", ODD)
def test_odd_results_lose_and_double_no_row(tmp_path: Path, api: str, odd: str) -> None:
    vendor = BatchVendor(api, sometimes_invalid(4), replace(ODD[odd]), random.Random(5))
    for _ in range(30):
        try:
            run(tmp_path, vendor)
            break
        except UpstreamError:  # the vendor was down for long: the same command goes on
            continue
    check(tmp_path, 60)
    if not ODD[odd].missing and not ODD[odd].cut:  # a result that the vendor loses is asked for, and billed, again
        assert max(Counter(vendor.billed).values()) == 1


def test_a_result_that_is_there_twice_is_taken_once(tmp_path: Path) -> None:
    summary = run(tmp_path, BatchVendor("openai", good, Faults(duplicated=1.0)))
    assert summary.batches is not None
    assert summary.batches.results.duplicates == 60
    assert summary.cost == pytest.approx(60 * ROW / 2)


@pytest.mark.parametrize("api", APIS)
def test_rows_whose_results_are_gone_are_asked_again(tmp_path: Path, api: str) -> None:
    vendor = BatchVendor(api, good, Faults(gone=True))
    run(tmp_path, vendor, rows=25)
    check(tmp_path, 25)
    assert len(vendor.batches) == 2
    assert len(vendor.live) == 25


@pytest.mark.parametrize("api", APIS)
def test_a_batch_that_is_listed_late_is_not_submitted_again(tmp_path: Path, api: str) -> None:
    vendor = BatchVendor(api, good, Faults(lost_creates=1, unlisted=4))
    run(tmp_path, vendor)
    check(tmp_path, 60)
    assert len(vendor.batches) == 1
    assert len(vendor.billed) == 60


@pytest.mark.parametrize("api", ["openai", "azure", "gemini"])
def test_a_batch_that_is_listed_after_it_was_submitted_again_is_canceled(tmp_path: Path, api: str) -> None:
    vendor = BatchVendor(api, good, Faults(lost_creates=1, unlisted=6))
    run(tmp_path, vendor)
    check(tmp_path, 60)
    assert [batch.state for batch in vendor.batches.values()] == ["cancelled", "completed"]
    assert vendor.live == []


def test_files_stay_within_the_vendors_limits(tmp_path: Path) -> None:
    vendor = BatchVendor("anthropic", good)
    run(tmp_path, vendor, policy=BatchPolicy(max_requests=25, sleep=no_sleep))
    check(tmp_path, 60)
    assert [len(batch.requests) for batch in vendor.batches.values()] == [25, 25, 10]


def test_a_full_queue_makes_batches_smaller(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", good, Faults(refuse_larger_than=30))
    summary = run(tmp_path, vendor, rows=100)
    check(tmp_path, 100)
    assert summary.batches is not None
    assert summary.batches.requests == 100
    assert [len(batch.requests) for batch in vendor.batches.values()][:3] == [100, 50, 25]


def test_a_refused_feature_is_left_out_of_the_next_batch(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", good, Faults(wrong_line="response_format"))
    run(tmp_path, vendor)
    check(tmp_path, 60)
    assert len(vendor.batches) == 2
    assert vendor.live == []


def test_at_the_deadline_the_rest_is_asked_live(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", good, Faults(never_ends=True))
    clock = Clock()
    begun = clock.now
    summary = run(tmp_path, vendor, policy=BatchPolicy(3600.0, clock=clock, sleep=clock.sleep))
    check(tmp_path, 60)
    assert clock.now - begun <= 3600
    assert summary.batches is not None
    assert summary.batches.live_calls == len(vendor.live)
    assert 0 < len(vendor.live) < 60  # what was done when the batch was canceled counts
    assert {f"{prompt} #0" for prompt in vendor.live}.isdisjoint(vendor.billed)


def test_a_vendor_without_a_batch_api_says_so_before_anything_is_sent(tmp_path: Path) -> None:
    router = Router({"groq": HttpProvider("groq", api_key="any-key")}, default="groq/any")
    with pytest.raises(ConfigError, match="no batch API of 'groq'"):
        job_for(tmp_path, BatchVendor("openai", good), router)


def test_a_missing_key_ends_the_job_without_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    vendor = BatchVendor("anthropic", good)
    provider = HttpProvider("anthropic", base_url=BASES["anthropic"], transport=DirectTransport(vendor))
    router = Router({"anthropic": provider}, default="anthropic/claude-opus-5-5")
    with pytest.raises(AuthenticationError, match="no API key"):
        start(job_for(tmp_path, vendor, router), router, policy=BatchPolicy(sleep=no_sleep))
    assert "searching" not in caplog.text
    run(tmp_path, vendor)
    check(tmp_path, 60)


def test_a_job_through_batches_is_not_continued_live(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", good)
    run(tmp_path, vendor)
    with pytest.raises(ConfigError, match="its via differed"):
        run(tmp_path, vendor, via="live")


def test_a_finished_job_is_done_once_and_says_what_it_took(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", sometimes_invalid(10))
    first = run(tmp_path, vendor)
    again = run(tmp_path, vendor)
    assert again.batches == first.batches
    assert len(vendor.batches) == 1


def test_the_estimate_is_half_of_live_calls(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", good)
    estimated = plan(job_for(tmp_path, vendor, router_for(vendor)))
    assert estimated.cost is None or estimated.live_cost == pytest.approx(2 * estimated.cost)
    assert vendor.calls.total() == 0


@pytest.mark.parametrize("api", APIS)
def test_the_command_shows_the_state_and_goes_on(tmp_path: Path, api: str) -> None:
    vendor = BatchVendor(api, sometimes_invalid(10), Faults(never_ends=True))
    write_rows(tmp_path / "in.jsonl", 60)
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    arguments = ("batch", "in.jsonl", "--schema", "person.json", "--out", "out.jsonl", "--prompt", "Who is {name}")
    with FakeVendor(vendor) as server:
        base = server.base_url.removesuffix("/v1") + BASES[api].removeprefix("http://127.0.0.1:9")
        settings = settings_for(server, "prices: {'fake/*': {input: 2, output: 10}}", kind=api)
        settings = settings.replace(server.base_url, base).replace("gpt-6-luna", MODELS[api])
        settings = settings.replace("attempts: 0", "attempts: 2")
        (tmp_path / "slipform.yaml").write_text(settings)
        process = subprocess.Popen(
            command_line((*arguments, "--via", "batch")), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE
        )
        assert server.wait_until(lambda _: any(batch.looks for batch in vendor.batches.values()), 60)
        process.kill()
        process.communicate()
        state = command(*arguments, "--via", "batch", "--status", cwd=tmp_path)
        assert state.returncode == 0, state.stderr
        assert "rows: 0 done, 0 failed" in state.stdout
        assert "60 requests" in state.stdout
        assert "at the vendor" in state.stdout
        vendor.faults.never_ends = False
        done = command(*arguments, "--via", "batch", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    check(tmp_path, 60)
    assert len(vendor.batches) == 1
    assert "batches: 1 with 60 requests (0 retries), live calls: 6" in done.stderr
    assert "cost 0.0144, 0.0024 of it live" in done.stderr


class LosesFirst(BatchVendor):
    """A vendor with a batch of somebody else's, at which the first submit of ours breaks before it arrives."""

    def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        is_create = method == "POST" and path.startswith(("/v1/batches", "/v1/messages/batches?"))
        if (is_create or ":batchGenerateContent" in path) and not self.batches:
            requests = [(f"theirs-{number}", {"messages": [{"role": "user", "content": "P1"}]}) for number in range(60)]
            self.batches["theirs"] = Batch("theirs", "theirs", requests, self._clock(), state="completed")
            self.batches["theirs"].results = [self._succeeded(name, {}) for name, _ in requests]
            return 502, {}, b"bad gateway"
        return super().handle(method, path, headers, body)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_batch_of_the_same_size_that_is_not_ours_is_not_taken_for_it(tmp_path: Path, api: str) -> None:
    vendor = LosesFirst(api, good)
    summary = run(tmp_path, vendor)
    check(tmp_path, 60)
    assert len(vendor.batches) == 2
    assert sorted(Counter(vendor.billed).values()) == [1] * 60
    assert summary.batches is not None
    assert summary.batches.live_calls == 0


@pytest.mark.timeout(60)
def test_a_limit_of_live_tokens_does_not_hold_up_a_batch(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", good)
    budget = VendorBudget(MinuteLimits(tokens=500))
    transport = throttled(DirectTransport(vendor), None, budget)
    provider = HttpProvider("openai", base_url=BASES["openai"], api_key="sk-test-key", transport=transport)
    router = Router({"openai": provider}, default="openai/gpt-6-luna")
    start(job_for(tmp_path, vendor, router), router, policy=BatchPolicy(sleep=no_sleep))
    check(tmp_path, 60)


def test_rows_that_are_added_later_have_a_deadline_of_their_own(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", good)
    clock = Clock()
    policy = BatchPolicy(3600.0, clock=clock, sleep=clock.sleep)
    run(tmp_path, vendor, policy=policy)
    clock.now += 24 * 3600
    write_rows(tmp_path / "in.jsonl", 90)
    summary = run(tmp_path, vendor, policy=policy)
    check(tmp_path, 90)
    assert [len(batch.requests) for batch in vendor.batches.values()] == [60, 30]
    assert summary.batches is not None
    assert (summary.batches.requests, summary.batches.retries, summary.batches.live_calls) == (90, 0, 0)


def test_failed_rows_are_retried_live(tmp_path: Path) -> None:
    bad = {7}
    vendor = BatchVendor("openai", lambda prompt, _: INVALID if asked_for(prompt) in bad else good(prompt, 0))
    assert run(tmp_path, vendor).failed == 1
    bad.clear()
    router = router_for(vendor)
    assert start(job_for(tmp_path, vendor, router), router, retry_failures=True).failed == 0
    check(tmp_path, 60)
    assert len(vendor.batches) == 1
