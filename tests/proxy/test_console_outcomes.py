"""What the console's rows say of calls that were not answered at the first try."""

from __future__ import annotations

from slipform.addons.server import App
from slipform.config import Settings
from slipform.engine.setup import Options, alias_targets
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import FakeVendor, cut_stream, rate_limited, server_error
from tests.conftest import serving
from tests.proxy.proxying import ADA, call, chat


def provider_of(vendor: FakeVendor, retries: int) -> HttpProvider:
    policy = RetryPolicy(attempts=retries)
    return HttpProvider("openai-compatible", base_url=vendor.base_url, api_key="k", retries=policy)


def test_a_row_says_that_a_vendor_was_asked_again_after_a_pause() -> None:
    with FakeVendor([rate_limited(retry_after_ms=1), ADA]) as vendor:
        app = App(AsyncClient(router=Router({"up": provider_of(vendor, 1)}), options=Options()), Settings())
        with serving(app) as address:
            report = chat(address, model="up/m", slipform={"report": True}).json["slipform"]
        row = next(iter(app.console.history.rows()))
    assert [note["code"] for note in report["notes"]] == ["vendor_retried"]
    assert "slipform waited" in report["notes"][0]["message"]
    assert row["detail"]["notes"] == ["vendor_retried"]
    assert row["stage"] == "reasked"


def test_a_row_says_which_model_failed_before_another_answered() -> None:
    settings = Settings.model_validate({"default_model": "list", "model_aliases": {"list": ["down/m", "up/m"]}})
    with FakeVendor([server_error(503, "overloaded")]) as down, FakeVendor([ADA]) as up:
        providers = {"down": provider_of(down, 0), "up": provider_of(up, 0)}
        router = Router(providers, aliases=alias_targets(settings), default="list")
        app = App(AsyncClient(router=router, options=Options()), settings)
        with serving(app) as address:
            assert chat(address, model="list").status == 200
        row = next(iter(app.console.history.rows()))
    assert row["detail"]["fallbacks"] == [{"model": "down/m", "code": "upstream_error"}]
    assert row["stage"] == "reasked"


def test_a_row_says_how_long_a_vendor_asks_to_wait_also_of_a_call_that_passed_through() -> None:
    with FakeVendor([rate_limited(retry_after=600)]) as vendor:
        app = App(AsyncClient(router=Router({"up": provider_of(vendor, 1)}), options=Options()), Settings())
        with serving(app) as address:
            assert chat(address, model="up/m").status == 429
            assert chat(address, model="up/m", response_format=None).status == 429
        rows = list(app.console.history.rows())
    assert [row["detail"]["retry_after"] for row in rows] == [600.0, 600.0]
    assert [row["upstream_status"] for row in rows] == [429, 429]


def test_an_error_lists_each_try_of_the_vendor() -> None:
    with FakeVendor([server_error(503, "overloaded")]) as vendor:
        app = App(AsyncClient(router=Router({"up": provider_of(vendor, 1)}), options=Options()), Settings())
        with serving(app) as address:
            details = chat(address, model="up/m").json["error"]["details"]
    assert details["attempts"] == 2
    assert len(details["retries"]) == 1
    assert details["retries"][0].startswith("overloaded; slipform waited ")


def test_an_attempt_whose_answer_broke_off_says_why() -> None:
    with FakeVendor([cut_stream(ADA, 2), ADA]) as vendor:
        app = App(AsyncClient(router=Router({"up": provider_of(vendor, 0)}), options=Options()), Settings())
        with serving(app) as address:
            report = chat(address, model="up/m", slipform={"report": True}).json["slipform"]
    assert "connection" in report["attempts"][0]["error"]
    assert "error" not in report["attempts"][1]


def test_a_fallback_without_a_schema_is_shown_with_its_tokens() -> None:
    settings = Settings.model_validate({"default_model": "list", "model_aliases": {"list": ["down/m", "up/m"]}})
    with FakeVendor([server_error(503)]) as down, FakeVendor([ADA]) as up:
        providers = {"down": provider_of(down, 0), "up": provider_of(up, 0)}
        router = Router(providers, aliases=alias_targets(settings), default="list")
        app = App(AsyncClient(router=router, options=Options()), settings)
        with serving(app) as address:
            assert chat(address, model="list", response_format=None).status == 200
        row = next(iter(app.console.history.rows()))
    assert (row["input"], row["output"], row["fallbacks"]) == (7, 5, 1)


def test_a_row_says_that_a_vendor_was_asked_again_for_a_call_without_a_schema() -> None:
    with FakeVendor([rate_limited(retry_after_ms=1), ADA]) as vendor:
        app = App(AsyncClient(router=Router({"up": provider_of(vendor, 1)}), options=Options()), Settings())
        with serving(app) as address:
            body = {"model": "up/m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
            assert call(address, "/v1/messages", body).status == 200
        row = next(iter(app.console.history.rows()))
    assert row["detail"]["notes"] == ["vendor_retried"]
