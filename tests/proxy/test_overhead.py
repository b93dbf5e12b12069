"""What a call reports as slipform's own time: waiting for vendors, their failures and pauses are not part of it."""

from __future__ import annotations

import re
import urllib.request

import pytest

from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import Answer, FakeVendor, Raw
from tests.proxy.proxying import ADA, chat, proxied

WAIT = 0.6
SLOW = Answer(ADA, latency=WAIT)
DOWN = Raw((b'{"error": {"message": "overloaded"}}',), status=503, latency=WAIT)
ONCE = RetryPolicy(attempts=0)
TWICE = RetryPolicy(attempts=1, base=WAIT)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("a slow vendor", "slow/m"),
        ("a vendor that fails, then the next", ["down/m", "slow/m"]),
        ("a vendor that fails", "down/m"),
        ("a vendor that fails at first", "again/m"),
        ("an invalid answer, a pause, a valid one", "invalid/m"),
    ],
)
def test_only_slipforms_own_time_is_overhead(name: str, model: str | list[str]) -> None:
    with (
        FakeVendor([SLOW]) as slow,
        FakeVendor([DOWN]) as down,
        FakeVendor([DOWN, SLOW]) as again,
        FakeVendor([Answer("no", latency=WAIT), SLOW]) as invalid,
    ):
        vendors = {"slow": slow, "down": down, "again": again, "invalid": invalid}
        providers = {
            key: HttpProvider(
                "openai-compatible",
                name=key,
                base_url=vendor.base_url,
                api_key="k",
                retries=TWICE if key == "again" else ONCE,
            )
            for key, vendor in vendors.items()
        }
        settings = {"default_model": "slow/m", "model_aliases": {"listed": model}}
        with proxied(providers, settings) as address:
            reply = chat(address, model="listed")
            with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
                metrics = answer.read().decode()
    (total,) = re.findall(r"^slipform_overhead_seconds_sum\{.*\} (.*)$", metrics, re.MULTILINE)
    assert float(total) < 0.5 * WAIT, (name, total)
    assert float(reply.headers["x-slipform-overhead-ms"]) < 500 * WAIT, (name, reply.headers)
