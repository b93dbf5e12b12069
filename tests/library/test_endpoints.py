"""A client of one endpoint without settings, local servers without a key, and streams that were read."""

from __future__ import annotations

import pytest

from slipform import AsyncClient, Client, ConfigError, UpstreamError
from slipform.config import Settings
from slipform.engine.setup import default_router, router_of
from slipform.errors import UnknownModelError
from slipform.providers.network.client import HttpTransport
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor
from slipform.testing.wire_formats import Api


@pytest.mark.parametrize(
    ("model", "api", "sent"),
    [
        ("my-model", "openai", "my-model"),
        ("org/my-model", "openai", "org/my-model"),
        ("openai/gpt-4o", "openai", "gpt-4o"),
        ("openai-responses/gpt-4o", "openai-responses", "gpt-4o"),
        ("anthropic/claude-opus-5-5", "anthropic", "claude-opus-5-5"),
        ("lmstudio/openai/gpt-oss-20b", "openai", "openai/gpt-oss-20b"),
    ],
)
async def test_one_endpoint_needs_no_settings(model: str, api: Api, sent: str) -> None:
    with FakeVendor(["36"], api=api) as vendor:
        with Client(model, base_url=vendor.base_url, api_key="sk-secret", http=HttpTransport(proxy="none")) as client:
            assert client.ask(int, "How old?", strategy="prompted") == 36
            assert client.text("How old?") == "36"
        async with AsyncClient(model, base_url=vendor.base_url, api_key="sk-secret") as twin:
            assert await twin.ask(int, "How old?", strategy="prompted") == 36
        assert [received.json()["model"] for received in vendor.requests] == [sent] * 3
        assert all("sk-secret" in str(received.headers) for received in vendor.requests)


def test_a_call_may_name_another_model_of_the_endpoint() -> None:
    with FakeVendor(["36"]) as vendor, Client("a", base_url=vendor.base_url) as client:
        client.text("Hi", model="b")
        client.text("Hi", model=["c", "d"])
        assert [received.json()["model"] for received in vendor.requests] == ["b", "c"]


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="without `config` or `router`"):
        Client("m", base_url="http://127.0.0.1:9", router=Router({"fake": FakeModel(["x"])}))
    with pytest.raises(ConfigError, match=r"names no vendor.*Name the model as"):
        Client("gpt-4o", api_key="k")


@pytest.mark.parametrize("name", ["ollama", "vllm", "lmstudio", "llamacpp", "sglang"])
def test_a_local_server_needs_no_key(name: str) -> None:
    assert name in default_router(Settings()).providers
    with pytest.raises(UnknownModelError, match=f"{name} is known; it needs no key"):
        router_of(Settings(), {}).resolve(f"{name}/m")


def test_a_local_server_is_asked_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)
    with FakeVendor(["Hello"], api="ollama") as vendor:
        monkeypatch.setenv("OLLAMA_HOST", vendor.base_url)
        assert Client(config=Settings()).text("Hi", model="ollama/llama3.2") == "Hello"
        assert "authorization" not in vendor.requests[0].headers
    with pytest.raises(UpstreamError, match="Cannot connect"):
        Client(config=Settings()).text("Hi", model="ollama/llama3.2")


def fake(text: str = "[1, 2]") -> Router:
    return Router({"fake": FakeModel([text])})


def test_a_stream_that_was_read_says_so() -> None:
    with Client("fake/m", router=fake()).stream(list[int], "Numbers.") as stream:
        assert list(stream.items()) == [1, 2]
        for again in (stream.__iter__, stream.items, stream.deltas, stream.events):
            with pytest.raises(RuntimeError, match="has been read to its end; take the answer from `result`"):
                again()
        assert stream.result.value == [1, 2]
    with Client("fake/m", router=fake()).stream(list[int], "Numbers.") as stream:
        pass
    with pytest.raises(RuntimeError, match="was closed"):
        iter(stream)


async def test_an_async_stream_that_was_read_says_so() -> None:
    async with AsyncClient("fake/m", router=fake()).stream(list[int], "Numbers.") as stream:
        assert [item async for item in stream.items()] == [1, 2]
        with pytest.raises(RuntimeError, match="has been read to its end"):
            stream.items()


async def test_a_result_that_is_not_awaited_says_what_to_write() -> None:
    async with AsyncClient("fake/m", router=fake()).stream(list[int], "Numbers.") as stream:
        with pytest.raises(TypeError, match=r"write `await stream.result\(\)`"):
            await stream.result
        with pytest.raises(AttributeError, match=r"write `\(await stream.result\(\)\).value`"):
            _ = stream.result.value
        assert (await stream.result()).value == [1, 2]
