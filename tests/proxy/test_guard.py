"""Who may call, what, how many at once and for how long; and what no caller can do."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as google_errors
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from slipform.addons.server import App
from slipform.addons.server.admission.admission import AdmissionControl, Caller, check_exposed
from slipform.addons.server.admission.keys import add_key, disable_key, remove_key
from slipform.addons.server.admission.refusals import KeyRefused, NotAllowed
from slipform.config import Settings, read_settings
from slipform.engine.setup import router_of
from slipform.errors import ConfigError
from slipform.library.async_client import AsyncClient
from slipform.testing import Answer, FakeModel, FakeVendor, Raw
from tests.conftest import PERSON, examples, serving
from tests.proxy.proxying import ADA, ASK, FORMAT, call, chat, keys_path, proxied
from tests.waiting import until

GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Ada is 36"}]}]}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keys_path(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def key(keys: Path) -> str:
    return add_key(keys, "ada")[1]


@pytest.fixture(scope="module")
def narrow(keys: Path) -> str:
    return add_key(keys, "narrow", models=["fake/m*", "quick"])[1]


@pytest.fixture(scope="module")
def locked(keys: Path, key: str, narrow: str) -> Iterator[str]:
    """A proxy that wants keys."""
    del key, narrow
    models = {"fake": FakeModel([ADA], models=["m", "m2", "x"]), "other": FakeModel([ADA], models=["o"])}
    aliases = {"quick": "other/o", "both": ["fake/m", "other/o"], "mine": ["fake/m", "fake/m2"]}
    with proxied(models, {"server": {"keys_file": str(keys)}, "model_aliases": aliases}) as address:
        yield address


@pytest.mark.covers("C31", "S2-03")
@pytest.mark.parametrize("given", ["anything", "sf-000000000000-wrong"])
def test_the_official_sdks_raise_their_authentication_errors(locked: str, given: str) -> None:
    with openai.OpenAI(base_url=f"{locked}/v1", api_key=given, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model="fake/m", messages=ASK)
        assert caught.value.code == "invalid_api_key"
        assert caught.value.response.headers["www-authenticate"] == "Bearer"
        with pytest.raises(openai.AuthenticationError):
            client.responses.create(model="fake/m", input="hi")
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    with (
        anthropic.Anthropic(base_url=locked, api_key=given, max_retries=0) as claude,
        pytest.raises(anthropic.AuthenticationError),
    ):
        claude.messages.create(model="fake/m", max_tokens=9, messages=ASK)
    gemini = genai.Client(api_key=given, http_options=genai.types.HttpOptions(base_url=locked))
    with pytest.raises(google_errors.ClientError) as said:
        gemini.models.generate_content(model="fake%2Fm", contents="hi")
    assert (said.value.code, said.value.status) == (401, "UNAUTHENTICATED")
    gemini.close()


def test_the_official_sdks_get_in_with_a_key(locked: str, key: str) -> None:
    with openai.OpenAI(base_url=f"{locked}/v1", api_key=key, max_retries=0) as client:
        assert client.chat.completions.create(model="fake/m", messages=ASK).choices[0].message.content == ADA
        assert "fake/x" in [model.id for model in client.models.list()]
    with anthropic.Anthropic(base_url=locked, api_key=key, max_retries=0) as claude:
        assert claude.messages.create(model="fake/m", max_tokens=9, messages=ASK).content[0].type == "text"
    gemini = genai.Client(api_key=key, http_options=genai.types.HttpOptions(base_url=locked))
    assert gemini.models.generate_content(model="quick", contents="hi").text == ADA
    gemini.close()


def test_geminis_key_in_the_address_works_and_no_key_says_so(locked: str, key: str) -> None:
    path = "/v1beta/models/quick:generateContent"
    assert call(locked, f"{path}?key={key}", GEMINI).status == 200
    assert call(locked, f"{path}?alt=sse&key=nonsense", GEMINI).status == 401
    without = call(locked, path, GEMINI)
    assert without.status == 401
    assert "No API key was given" in without.json["error"]["message"]
    assert call(locked, "/healthz").status == 200


@pytest.mark.covers("S2-18")
def test_a_key_may_use_its_models_only_and_sees_no_others(locked: str, narrow: str) -> None:
    with openai.OpenAI(base_url=f"{locked}/v1", api_key=narrow, max_retries=0) as client:
        listed = [model.id for model in client.models.list()]
        for model in ("fake/m", "fake/m2", "quick", "mine"):
            assert client.chat.completions.create(model=model, messages=ASK).choices
            assert model in listed
        for model in ("fake/x", "other/o", "both", "other"):
            with pytest.raises(openai.PermissionDeniedError):
                client.chat.completions.create(model=model, messages=ASK)
            assert model not in listed
        assert client.chat.completions.create(model="fake", messages=ASK).choices  # its first model is fake/m
    both = chat(locked, {"x-api-key": narrow}, model=["fake/m", "other/o"])
    assert (both.status, both.json["error"]["code"]) == (403, "not_allowed")
    with (
        anthropic.Anthropic(base_url=locked, api_key=narrow, max_retries=0) as claude,
        pytest.raises(anthropic.PermissionDeniedError, match="may not use"),
    ):
        claude.messages.create(model="fake/x", max_tokens=9, messages=ASK)


def test_a_removed_or_disabled_key_is_refused_by_a_running_proxy(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    _, ada = add_key(path, "ada")
    _, bob = add_key(path, "bob")
    with proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(path)}}) as address:
        assert chat(address, {"x-api-key": ada}).status == 200
        remove_key(path, "ada")
        disable_key(path, "bob")
        assert until(lambda: chat(address, {"x-api-key": ada}).status == 401)
        refused = chat(address, {"x-api-key": bob})
    assert refused.status == 401
    assert "disabled" in refused.json["error"]["message"]


@pytest.mark.covers("S2-20")
def test_without_a_file_of_keys_any_key_will_do_on_this_machine() -> None:
    with proxied({"fake": FakeModel([ADA])}) as address:
        assert chat(address, {"authorization": "Bearer anything"}).status == 200
        assert chat(address).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.test", ""])
def test_an_address_others_can_reach_needs_keys_or_a_word(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="anyone there could call"):
        check_exposed(Settings(), host or "0.0.0.0")
    settings = Settings.model_validate({"server": {"host": host or "0.0.0.0"}})
    with pytest.raises(ConfigError, match="keys_file"):
        App(AsyncClient(), settings)
    check_exposed(settings, insecure=True)
    check_exposed(Settings.model_validate({"server": {"host": "0.0.0.0", "allow_anonymous": True}}))
    check_exposed(Settings.model_validate({"server": {"host": "0.0.0.0", "keys_file": str(tmp_path / "k")}}))
    for local in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_exposed(Settings(), local)


def test_patterns_are_held_against_the_whole_name() -> None:
    caller = Caller("ada", ("openai/gpt-*",))
    assert caller.allows("openai/gpt-6")
    assert not caller.allows("openai/other")
    assert not caller.allows("xopenai/gpt-6")
    assert not caller.allows("OPENAI/GPT-6")


@pytest.mark.covers("C31")
def test_more_calls_than_allowed_are_told_to_come_back() -> None:
    with FakeVendor([Answer(ADA, latency=1.0)]) as vendor, _over(vendor, max_concurrent=2) as address:
        with ThreadPoolExecutor(2) as pool:
            slow = [pool.submit(chat, address, model="mine/m") for _ in range(2)]
            assert vendor.wait_until(lambda each: len(each.requests) == 2)
            refused = chat(address, model="mine/m")
            with (
                openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0) as client,
                pytest.raises(openai.InternalServerError),
            ):
                client.chat.completions.create(model="mine/m", messages=ASK)
            assert [each.result().status for each in slow] == [200, 200]
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json["error"]["code"] == "overloaded"
        assert until(lambda: chat(address, model="mine/m").status == 200)  # the places were given back


def test_a_client_that_goes_away_gives_its_place_back_and_the_vendor_stops() -> None:
    with FakeVendor([Answer(ADA, latency=30.0), ADA]) as vendor, _over(vendor, max_concurrent=1) as address:
        where = urlsplit(address)
        body = json.dumps({"model": "mine/m", "messages": ASK}).encode()
        with socket.create_connection((where.hostname, where.port), 10) as connection:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            assert vendor.wait_until(lambda each: len(each.requests) == 1)
            assert chat(address, model="mine/m").status == 503
        assert vendor.wait_until(lambda each: each.requests[0].aborted)
        assert until(lambda: chat(address, model="mine/m").status == 200)


@given(
    headers=st.dictionaries(
        st.sampled_from([b"authorization", b"x-api-key", b"x-goog-api-key", b"origin", b"host"]),
        st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(lambda rest: b"Bearer sf-" + rest)),
    ),
    query=st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(lambda rest: b"key=" + rest)),
)
@settings_of(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_sent_as_a_key_is_refused_and_nothing_else(
    headers: dict[bytes, bytes], query: bytes, keys: Path, key: str
) -> None:
    del key
    wants = AdmissionControl(Settings.model_validate({"server": {"keys_file": str(keys)}}))
    with pytest.raises(KeyRefused):
        wants.caller(headers, query)
    with contextlib.suppress(NotAllowed):
        assert AdmissionControl(Settings()).caller(headers, query) == Caller()


@contextlib.contextmanager
def _over(vendor: FakeVendor, **server: Any) -> Iterator[str]:
    """A proxy over a vendor's address, from a configuration."""
    text = json.dumps(
        {
            "server": server,
            "default_model": "mine/m",
            "providers": {
                "mine": {
                    "kind": "openai",
                    "base_url": vendor.base_url,
                    "api_key_env": "MINE_KEY",
                    "headers": {"x-team": "blue"},
                }
            },
        }
    )
    settings = read_settings(text)
    os.environ["MINE_KEY"] = "upstream-secret-0001"
    try:
        with serving(App(AsyncClient(router=router_of(settings, {})), settings)) as address:
            yield address
    finally:
        del os.environ["MINE_KEY"]


def test_a_body_that_does_not_come_is_a_408() -> None:
    with proxied({"fake": FakeModel([ADA])}, {"server": {"body_seconds": 0.2}}) as address:
        where = urlsplit(address)
        with socket.create_connection((where.hostname, where.port), 10) as connection:
            head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n{"
            connection.sendall(head.encode())
            answer = connection.recv(65536)
            while b"request_timeout" not in answer and (more := connection.recv(65536)):
                answer += more
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"request_timeout" in answer
        assert chat(address).status == 200


@pytest.mark.covers("C31")
@pytest.mark.parametrize("body_seconds", [0.05, 30.0])
def test_a_request_that_takes_too_long_is_a_504_and_the_vendor_is_let_go(body_seconds: float) -> None:
    with (
        FakeVendor([Answer(ADA, latency=30.0)]) as vendor,
        _over(vendor, request_seconds=0.3, body_seconds=body_seconds) as address,
    ):
        late = chat(address, model="mine/m")
        assert (late.status, late.json["error"]["code"]) == (504, "timeout")
        assert vendor.wait_until(lambda each: each.requests[0].aborted)
        assert call(address, "/v1/messages", {"model": "mine/m", "max_tokens": 9, "messages": ASK}).status == 504


@pytest.mark.covers("S2-73")
def test_a_stream_that_takes_too_long_ends_with_the_apis_error_event() -> None:
    with FakeVendor([Answer("word " * 200, pace=0.05)]) as vendor, _over(vendor, request_seconds=0.5) as address:
        with (
            openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0) as client,
            pytest.raises(openai.APIError, match="longer than"),
        ):
            list(client.chat.completions.create(model="mine/m", messages=ASK, stream=True))
        assert vendor.wait_until(lambda each: each.requests[0].aborted)


@pytest.mark.covers("S2-30", "S2-31", "S1-52")
@pytest.mark.parametrize("schema", [FORMAT, None])
@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_cannot_choose_where_a_request_goes(schema: Any, stream: bool) -> None:
    """And the callers' own keys are never sent on."""
    with FakeVendor([ADA]) as vendor, FakeVendor([ADA]) as trap, _over(vendor) as address:
        tricks = {
            "base_url": trap.base_url,
            "api_base": trap.base_url,
            "endpoint": trap.base_url,
            "extra_body": {"base_url": trap.base_url},
        }
        headers = {
            "authorization": "Bearer callers-secret",
            "x-api-key": "callers-secret",
            "x-base-url": trap.base_url,
            "x-portkey-custom-host": trap.base_url,
            "x-forwarded-host": urlsplit(trap.base_url).netloc,
            "host": urlsplit(trap.base_url).netloc,
            "cookie": "callers-secret",
        }
        assert chat(address, headers, model="mine/m", response_format=schema, stream=stream, **tricks).status == 200
        for model in (f"{trap.base_url}/m", f"mine@{urlsplit(trap.base_url).netloc}/m", "//mine/m"):
            assert chat(address, headers, model=model, response_format=schema).status == 404
        absolute = call(address, f"{trap.base_url}/chat/completions", {"model": "mine/m", "messages": ASK}, headers)
        assert absolute.status in (200, 404)
        odd = chat(address, headers, model="mine/../../admin?x=y#z", response_format=schema)
        assert odd.status == 200
    assert trap.requests == []
    assert {request.path for request in vendor.requests} == {"/v1/chat/completions"}
    for request in vendor.requests:
        assert "callers-secret" not in str(request.headers) + request.body.decode()
        assert request.headers["authorization"] == "Bearer upstream-secret-0001"
        assert request.headers["x-team"] == "blue"
        assert request.headers["host"] == urlsplit(vendor.base_url).netloc


@pytest.mark.covers("S1-52")
@pytest.mark.parametrize("schema", [FORMAT, None])
@pytest.mark.parametrize("status", [400, 401, 500])
def test_no_upstream_key_ever_leaves(schema: Any, status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    def echo(received: Any) -> Raw:
        said = {"error": {"message": f"bad key {received.headers['authorization']}", "type": "x"}}
        return Raw(
            (json.dumps(said).encode(),), status, {"content-type": "application/json", "x-should-retry": "false"}
        )

    with FakeVendor(echo) as vendor, _over(vendor) as address:
        for stream in (False, True):
            reply = chat(
                address, {"authorization": "Bearer callers"}, model="mine/m", response_format=schema, stream=stream
            )
            assert reply.status >= 400
            assert "upstream-secret-0001" not in reply.body.decode() + str(reply.headers)
        assert "upstream-secret-0001" not in call(address, "/v1/models").body.decode()
    assert len(vendor.requests) == 3  # the last one asks for the vendor's models
    assert "upstream-secret-0001" not in caplog.text


class _Trap(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.fetched += 1  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()


@pytest.mark.parametrize("schema", [FORMAT, None])
def test_the_addresses_of_images_are_passed_on_and_never_fetched(schema: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("private words")
    trap = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Trap)
    trap.fetched = 0  # type: ignore[attr-defined]
    threading.Thread(target=trap.serve_forever, daemon=True).start()
    web, file = f"http://127.0.0.1:{trap.server_port}/x.png", f"file://{secret}"
    refs = {"type": "object", "properties": {"a": {"$ref": f"{web}#/a"}}}
    with FakeVendor([ADA]) as vendor, _over(vendor) as address:
        for url in (web, file):
            words: Any = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
            said = chat(address, model="mine/m", response_format=schema, messages=[{"role": "user", "content": words}])
            assert said.status in (200, 400)
        outside = {"type": "json_schema", "json_schema": {"name": "s", "schema": refs}}
        assert chat(address, model="mine/m", response_format=outside).status == 400
        image: Any = {"type": "image", "source": {"type": "url", "url": web}}
        claude = {"model": "mine/m", "max_tokens": 99, "messages": [{"role": "user", "content": [image]}]}
        shaped = {**claude, "output_config": {"format": {"type": "json_schema", "schema": PERSON}}}
        for body in (claude, shaped):
            assert call(address, "/v1/messages", body).status in (200, 400)
    trap.shutdown()
    trap.server_close()
    assert trap.fetched == 0  # type: ignore[attr-defined]
    sent = "".join(request.body.decode() for request in vendor.requests)
    assert web in sent
    assert "private words" not in sent


def test_without_keys_a_web_page_cannot_spend_the_models_of_who_looks_at_it() -> None:
    with proxied({"fake": FakeModel([ADA])}, {"server": {"cors_origins": ["https://good.test"]}}) as address:
        own = urlsplit(address).netloc
        assert chat(address, {"origin": "https://good.test"}).status == 200
        assert chat(address, {"origin": f"http://{own}"}).status == 200
        for origin in ("https://evil.test", "null", "http://localhost:1", "http://[", "", "\xff://"):
            refused = chat(address, {"origin": origin})
            assert (refused.status, refused.json["error"]["type"]) == (403, "permission_error")
        for host in ("evil.test:8080", "[", "127.0.0.1.evil.test"):  # a name that was made to lead here
            assert chat(address, {"origin": f"http://{host}", "host": host}).status == 403


def test_with_keys_the_key_is_what_counts_not_the_page(locked: str, key: str) -> None:
    assert chat(locked, {"origin": "https://any.test", "x-api-key": key}).status == 200
