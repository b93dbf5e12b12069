from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.providers.base import Provider
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import Transport
from slipform.providers.retry import RetryPolicy
from tests.providers.chat import ChatCodec

QUICK = RetryPolicy(attempts=2, base=0.002, cap=0.01, longest_wait=5.0)


class SyncFace:
    """The blocking half of a provider."""

    def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        return provider.complete(request)

    def stream(self, provider: Provider, request: ModelRequest) -> list[CompletionChunk]:
        return list(provider.stream(request))


class AsyncFace:
    """The async half, each call on an event loop of its own."""

    def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        return asyncio.run(_awaited(provider, request))

    def stream(self, provider: Provider, request: ModelRequest) -> list[CompletionChunk]:
        return asyncio.run(_collected(provider, request))


async def _awaited(provider: Provider, request: ModelRequest) -> ModelResponse:
    return await provider.complete_async(request)


async def _collected(provider: Provider, request: ModelRequest) -> list[CompletionChunk]:
    return [chunk async for chunk in provider.stream_async(request)]


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> SyncFace | AsyncFace:
    return SyncFace() if request.param == "sync" else AsyncFace()


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = HttpTransport()
    yield made
    made.close()


@pytest.fixture
def make(transport: Transport) -> Callable[..., HttpProvider]:
    """Makes a provider for a fake vendor, over one transport."""

    def build(base_url: str, **given: Any) -> HttpProvider:
        options: dict[str, Any] = {"api_key": "sk-test-1234567890", "retries": QUICK, "transport": transport, **given}
        row = options.pop("row", "openai")
        vendor = load_catalog().vendor(row) if isinstance(row, str) else row
        return HttpProvider(vendor, base_url=base_url, codec=ChatCodec, **options)

    return build
