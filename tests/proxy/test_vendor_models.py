"""Lists of models hold those of the configured vendors: each is asked once, and none can spoil the list."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.calls.vendor_models import VendorModels
from slipform.providers import Provider
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import FakeVendor, Raw, Received, hang_up, rejected
from tests.proxy.proxying import call, proxied

JSON = {"content-type": "application/json"}
LISTS: Any = {
    "openai": {"object": "list", "data": [{"id": "gpt-a", "object": "model"}, {"id": "gpt-b", "object": "model"}]},
    "anthropic": {"data": [{"type": "model", "id": "claude-a"}], "has_more": False},
    "gemini": {
        "models": [
            {"name": "models/gemini-a", "supportedGenerationMethods": ["generateContent"]},
            {"name": "models/embed-a", "supportedGenerationMethods": ["embedContent"]},
        ]
    },
    "ollama": {"models": [{"name": "qwen:8b", "model": "qwen:8b"}]},
    "cohere": {"models": [{"name": "command-a", "endpoints": ["chat"]}]},
}
NAMES = ["openai/gpt-a", "openai/gpt-b", "anthropic/claude-a", "gemini/gemini-a", "ollama/qwen:8b", "cohere/command-a"]
PATHS = {
    "openai": "/v1/models",
    "anthropic": "/v1/models?limit=1000",
    "gemini": "/models?pageSize=1000",
    "ollama": "/api/tags",
    "cohere": "/v1/models?endpoint=chat&page_size=1000",
}


def listing(body: Any) -> Raw:
    return Raw((json.dumps(body).encode(),), 200, JSON)


def provider(name: str, vendor: FakeVendor) -> HttpProvider:
    return HttpProvider(name, base_url=vendor.base_url, api_key="sk-upstream", retries=RetryPolicy(attempts=0))


@pytest.fixture
def vendors() -> Any:
    made = {name: FakeVendor([listing(body)], api=name) for name, body in LISTS.items()}
    for vendor in made.values():
        vendor.__enter__()
    yield made
    for vendor in made.values():
        vendor.__exit__(None, None, None)


def test_every_listing_holds_the_models_of_all_vendors_aliases_first(vendors: Any) -> None:
    providers = {name: provider(name, vendor) for name, vendor in vendors.items()}
    settings = {"default_model": "openai/gpt-a", "model_aliases": {"fast": "openai/gpt-b"}}
    with proxied(providers, settings) as address:
        openai = [each["id"] for each in call(address, "/v1/models").json["data"]]
        claude = call(address, "/v1/models", headers={"anthropic-version": "2023-06-01"}).json["data"]
        gemini = call(address, "/v1beta/models").json["models"]
        ollama = call(address, "/api/tags").json["models"]
    assert openai == ["fast", *NAMES]
    assert [each["id"] for each in claude] == openai
    assert [each["name"] for each in gemini] == [f"models/{name}" for name in openai]
    assert [each["name"] for each in ollama] == openai
    asked = {name: [each.path for each in vendor.requests] for name, vendor in vendors.items()}
    assert {name: paths for name, paths in asked.items() if len(paths) != 1 or not paths[0].endswith(PATHS[name])} == {}
    assert all("sk-upstream" in str(dict(vendor.requests[0].headers)) for vendor in vendors.values())


def test_a_key_sees_only_what_it_may_use(vendors: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    _, secret = add_key(keys, "ada", models=["openai/gpt-b", "ollama/*"])
    providers = {name: provider(name, vendor) for name, vendor in vendors.items()}
    with proxied(providers, {"default_model": "openai/gpt-a", "server": {"keys_file": str(keys)}}) as address:
        reply = call(address, "/v1/models", headers={"authorization": f"Bearer {secret}"})
        refused = call(address, "/v1/models")
    assert [each["id"] for each in reply.json["data"]] == ["openai/gpt-b", "ollama/qwen:8b"]
    assert refused.status == 401


def test_a_vendor_without_a_list_takes_none_from_the_others() -> None:
    def odd(_: Received) -> Raw:
        return listing({"data": [{"id": 7}, "x", {"id": "a\nb"}, {"id": "x" * 300}, {"id": "good"}, {"id": "good"}]})

    scripts: dict[str, Any] = {
        "gone": [hang_up()],
        "refuses": [rejected("no", 401)],
        "text": ["hello"],
        "html": [Raw((b"<html>",), 200, {"content-type": "text/html"})],
        "list": [listing([])],
        "odd": odd,
    }
    made = {name: FakeVendor(script) for name, script in scripts.items()}
    providers: dict[str, Provider] = {}
    try:
        for name, vendor in made.items():
            vendor.__enter__()
            providers[name] = provider("openai-compatible", vendor)
        with proxied(providers, {"default_model": "odd/good"}) as address:
            reply = call(address, "/v1/models")
    finally:
        for vendor in made.values():
            vendor.__exit__(None, None, None)
    assert [each["id"] for each in reply.json["data"]] == ["odd/good"]


def test_a_list_is_asked_for_once_until_it_is_old_and_a_failure_is_asked_for_again_soon() -> None:
    times = [0.0, 10.0, 31.0, 300.0, 700.0, 731.0]
    with FakeVendor([hang_up(), listing(LISTS["openai"]), rejected("no", 500)]) as vendor:
        models = VendorModels(Router({"up": provider("openai-compatible", vendor)}), lambda: times[0])

        async def story() -> list[tuple[int, int]]:
            counts = []
            while times:
                listed = await asyncio.gather(models.names(), models.names())
                assert listed[0] == listed[1]
                counts.append((len(listed[0]), len(vendor.requests)))
                del times[0]
            return counts

        counts = asyncio.run(story())
    assert counts == [(0, 1), (0, 1), (2, 2), (2, 2), (2, 3), (2, 4)]


def test_vendors_are_not_asked_where_that_is_switched_off(vendors: Any) -> None:
    up = provider("openai", vendors["openai"])
    with proxied({"openai": up}, {"default_model": "openai/gpt-a", "server": {"vendor_models": False}}) as address:
        assert call(address, "/v1/models").json["data"] == []
    assert vendors["openai"].requests == []
