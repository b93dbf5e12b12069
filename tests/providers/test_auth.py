"""Keys: where they come from, how they travel, and that they never show."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from slipform.errors import AuthenticationError, SlipformError, UpstreamError
from slipform.providers import call
from slipform.providers.auth import Secret, authorise, from_environment, scrub, scrub_error
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import HttpRequest
from slipform.testing import FakeVendor, rejected, server_error
from tests.providers.chat import ChatCodec, ask
from tests.providers.conftest import QUICK, AsyncFace, SyncFace

KEY = "sk-very-secret-0123456789"


def dressed(vendor: str, key: str | None = KEY, **settings: str) -> tuple[str, dict[str, str]]:
    made = authorise(
        load_catalog().vendor(vendor),
        url="https://host/path",
        headers={"content-type": "application/json"},
        body=b"{}",
        key=None if key is None else Secret(key),
        settings=settings,
    )
    assert KEY not in repr(made)
    return made.url, made.headers


@pytest.mark.parametrize(
    ("vendor", "header", "value"),
    [
        ("openai", "authorization", f"Bearer {KEY}"),
        ("anthropic", "authorization", f"Bearer {KEY}"),
        ("azure", "api-key", KEY),
        ("gemini", "x-goog-api-key", KEY),
        ("vertex", "authorization", f"Bearer {KEY}"),
        ("bedrock", "authorization", f"Bearer {KEY}"),
        ("ollama", "authorization", f"Bearer {KEY}"),
    ],
)
def test_each_vendor_sees_the_key_in_its_own_header(vendor: str, header: str, value: str) -> None:
    assert dressed(vendor)[1][header] == value


def test_a_key_in_the_query_is_escaped() -> None:
    row = load_catalog({"q": {"base_url": "http://h", "auth": "query", "key": "required"}}).vendor("q")
    made = authorise(row, url="http://h/p?a=1", headers={}, body=b"", key=Secret("a/b&c"), settings={})
    assert made.url == "http://h/p?a=1&key=a%2Fb%26c"


def test_bedrock_signs_when_there_is_no_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-token-1")
    _, headers = dressed("bedrock", key=None, region="eu-west-1")
    scope = f"AKIDEXAMPLE/{headers['x-amz-date'][:8]}/eu-west-1/bedrock/aws4_request"
    assert headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=content-type;host;")
    assert headers["x-amz-security-token"] == "session-token-1"


@pytest.mark.covers("S2-30")
def test_the_key_is_read_from_the_environment_at_each_call(
    face: SyncFace | AsyncFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = load_catalog({"mine": {"base_url": "http://unused", "api_key_env": "MINE_KEY"}}).vendor("mine")
    with FakeVendor(["x"]) as vendor:
        provider = HttpProvider(row, base_url=vendor.base_url, codec=ChatCodec)
        for key in ("first-key", "second-key"):
            monkeypatch.setenv("MINE_KEY", key)
            face.complete(provider, ask())
    assert [request.headers["authorization"] for request in vendor.requests] == [
        "Bearer first-key",
        "Bearer second-key",
    ]


def test_without_a_key_no_call_is_made(face: SyncFace | AsyncFace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FakeVendor(["x"]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, codec=ChatCodec)
        with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
            face.complete(provider, ask())
    assert vendor.requests == []


def test_bedrock_without_keys_names_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AuthenticationError, match="AWS_BEARER_TOKEN_BEDROCK or AWS_ACCESS_KEY_ID and AWS_SECRET"):
        dressed("bedrock", key=None)


@pytest.mark.covers("S2-31")
def test_headers_of_the_settings_are_sent_and_can_carry_the_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FakeVendor(["x"]) as vendor:
        headers = {"X-Title": "tests", "Authorization": "Token gateway-secret"}
        provider = HttpProvider("openai", base_url=vendor.base_url, codec=ChatCodec, headers=headers)
        provider.complete(ask())
    assert vendor.requests[0].headers["x-title"] == "tests"
    assert vendor.requests[0].headers["authorization"] == "Token gateway-secret"


def test_keys_show_nowhere(face: SyncFace | AsyncFace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    steps = [server_error(500, f"crashed with {KEY}"), rejected(f"Incorrect API key provided: {KEY}", status=401)]
    with FakeVendor(steps) as vendor:
        provider = HttpProvider(
            "openai",
            base_url=vendor.base_url,
            codec=ChatCodec,
            api_key=KEY,
            retries=QUICK,
            headers={"x-token": "t0ps3cret"},
        )
        with pytest.raises(AuthenticationError) as caught:
            face.complete(provider, ask())
    error = caught.value
    shown = [str(error), repr(error), repr(error.details), str(error.to_dict()), caplog.text, repr(provider)]
    shown += [repr(provider._endpoint), repr(pickle.loads(pickle.dumps(error)))]
    assert len(vendor.requests) == 2
    assert "[redacted]" in str(error)
    for text in shown:
        assert KEY not in text
        assert "t0ps3cret" not in text


@pytest.mark.parametrize("steps", [call.answer, call.stream])
def test_no_variable_of_a_call_shows_its_key_to_who_reports_errors_with_them(steps: Any) -> None:
    provider = HttpProvider("openai", base_url="http://h", codec=ChatCodec, api_key=KEY)
    under_way = steps(provider._endpoint, ask())
    effect = next(under_way)
    inner = under_way.gi_yieldfrom  # what sends, and holds what it sends
    assert inner.gi_frame.f_locals["prepared"].authorised.secrets == (Secret(KEY),)
    assert KEY not in repr([effect, under_way.gi_frame.f_locals, inner.gi_frame.f_locals])


def test_a_request_does_not_show_its_headers_or_query() -> None:
    request = HttpRequest("http://h/p?key=abc", {"authorization": "Bearer abc"}, b"body")
    assert repr(request) == "HttpRequest(POST http://h/p, 4 bytes)"


def test_a_secret_does_not_show_or_travel() -> None:
    secret = Secret("abc")
    assert [repr(secret), str(secret), f"{secret}"] == ["Secret([redacted])"] * 3
    assert secret == Secret("abc")
    assert len({secret, Secret("abc")}) == 1
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(secret)


def test_the_first_variable_that_is_set_wins() -> None:
    found = from_environment(["A", "B", "C"], {"A": "", "B": " two ", "C": "three"})
    assert found == Secret("two")
    assert from_environment(["A"], {}) is None


def test_scrubbing_reaches_every_string() -> None:
    secrets = [Secret("abcdef")]
    masked = {"[redacted]": ["x [redacted]", ("[redacted]", 1)]}
    assert scrub({"abcdef": ["x abcdef", ("abcdef", 1)]}, secrets) == masked
    assert scrub("axb", [Secret(""), Secret("x")]) == "axb"
    error: SlipformError = UpstreamError("abcdef", where="abcdef", hint="abcdef", details={"a": "abcdef"})
    scrub_error(error, secrets)
    assert "abcdef" not in str(error.to_dict())


def test_a_key_that_was_changed_is_sent_with_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeVendor(["x", "y", "z"]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, codec=ChatCodec)
        for key in ("first-key", "second-key", "first-key"):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            provider.complete(ask())
    sent = [request.headers["authorization"] for request in vendor.requests]
    assert sent == ["Bearer first-key", "Bearer second-key", "Bearer first-key"]


def test_an_address_in_the_environment_that_was_changed_is_called_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeVendor(["x"]) as first, FakeVendor(["y"]) as second:
        provider = HttpProvider("openai", codec=ChatCodec, api_key=KEY)
        for vendor in (first, second):
            monkeypatch.setenv("OPENAI_BASE_URL", vendor.base_url)
            provider.complete(ask())
    assert (len(first.requests), len(second.requests)) == (1, 1)
