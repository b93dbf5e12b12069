"""Bare HTTP for the proxy's tests, and a proxy in front of a fake vendor."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from slipform.addons.server import App
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import FakeVendor
from tests.conftest import serving

KEY = "sk-upstream-secret"
VENDORS = {"openai": "openai", "anthropic": "anthropic", "gemini": "gemini"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, unread."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The data of each event, parsed where it is JSON."""
        blocks = [block for block in self.body.decode().split("\n\n") if block.strip() and block[0] != ":"]
        data = [line[6:] for block in blocks for line in block.splitlines() if line.startswith("data: ")]
        return [each if each == "[DONE]" else json.loads(each) for each in data]


def post(address: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, raw, {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def provider_of(vendor: FakeVendor, kind: str = "openai", *, retries: RetryPolicy | None = None) -> HttpProvider:
    return HttpProvider(kind, base_url=vendor.base_url, api_key=KEY, retries=retries or RetryPolicy(attempts=0))


def before(vendor: FakeVendor, kind: str = "openai", settings: Settings | None = None, attempts: int = 2) -> serving:
    """A proxy whose provider `up` is this vendor."""
    router = Router({"up": provider_of(vendor, kind)}, aliases={"fast": "up/gpt-6-luna"}, default="fast")
    client = AsyncClient(router=router, options=Options(budget=Budget(attempts=attempts)))
    return serving(App(client, settings or Settings()))
