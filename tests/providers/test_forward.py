"""Bodies sent as they are: what goes along is worked out once, and never out of date."""

from __future__ import annotations

import pytest

from slipform.errors import AuthenticationError
from slipform.providers.forward import Route
from slipform.providers.http import HttpProvider
from slipform.testing import FakeVendor


async def sent(provider: HttpProvider, headers: dict[str, str] | None = None) -> None:
    route = provider.route("gpt-6-luna", streamed=False)
    assert isinstance(route, Route)
    answer = await provider.forward_async(route, b'{"model":"gpt-6-luna","messages":[]}', headers or {})
    while await answer.read():
        pass
    await answer.close()
    assert answer.status == 200


@pytest.mark.covers("S2-30", "S2-69")
async def test_a_key_and_an_address_that_change_count_from_the_next_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeVendor(["a", "b", "c"]) as first, FakeVendor(["d"]) as second, HttpProvider("openai") as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", first.base_url)
        for key in ("sk-one-0000", "sk-one-0000", "sk-two-0000"):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            await sent(provider)
        monkeypatch.setenv("OPENAI_BASE_URL", second.base_url)
        await sent(provider)
        keys = [request.headers["authorization"][7:] for request in (*first.requests, *second.requests)]
        assert keys == ["sk-one-0000", "sk-one-0000", "sk-two-0000", "sk-two-0000"]
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(AuthenticationError):
            await sent(provider)


async def test_a_callers_headers_are_that_callers_own() -> None:
    with (
        FakeVendor(["a"] * 40) as vendor,
        HttpProvider("openai", base_url=vendor.base_url, api_key="sk-one-0000") as provider,
    ):
        said = [{}, {"openai-beta": "x"}, {}, *({"openai-beta": str(number)} for number in range(20)), {"x": "y"}]
        for headers in said:
            await sent(provider, headers)
        assert [request.headers.get("openai-beta") for request in vendor.requests] == [
            headers.get("openai-beta") for headers in said
        ]
