"""Whatever is sent, an answer or an error of the API's own shape comes back, and never a 500."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipform import AsyncClient, Budget, Options
from slipform.addons.server import App
from slipform.addons.server.calls.routes import api_at
from slipform.codecs import Capabilities
from slipform.config import Settings
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, FakeModel, FakeVendor
from tests.conftest import examples
from tests.proxy.asgi import Reply, post
from tests.proxy.fuzzing import APIS, WRONG, check, places, replaced, samples, without
from tests.proxy.test_openapi import obedient

MODEST = settings(max_examples=examples(120), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
ANSWER = Answer('{"name": "Ada", "age": 36}')


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    """A proxy in front of a scripted model, and of a vendor for each API."""
    everything = Capabilities(native=True, tools=True, forced_tool=True, json_mode=True)
    fake = FakeModel(obedient, models=("m",), capabilities=everything)
    with FakeVendor([ANSWER]) as first, FakeVendor([ANSWER], api="anthropic") as second:
        providers: Any = {
            "fake": fake,
            "openai": HttpProvider("openai", base_url=first.base_url, api_key="any"),
            "anthropic": HttpProvider("anthropic", base_url=second.base_url, api_key="any"),
        }
        yield App(AsyncClient(router=Router(providers), options=Options(budget=Budget(attempts=1))), Settings())


def sent(app: App, path: str, body: Any) -> Reply:
    return asyncio.run(post(app, path, body))


@pytest.mark.covers("C31", "S2-03", "S2-21")
@pytest.mark.parametrize("api", APIS)
async def test_a_wrong_value_in_any_field_is_never_a_fault_of_the_server(app: App, api: str) -> None:
    path, whole = APIS[api]
    check(api, await post(app, path, whole))
    for place in places(whole):
        check(api, await post(app, path, without(whole, place)))
        for value in WRONG:
            check(api, await post(app, path, replaced(whole, place, value)))


@pytest.mark.parametrize("model", ["openai/gpt-6-luna", "anthropic/claude-opus-5-5"])
@pytest.mark.parametrize("api", APIS)
async def test_nor_is_one_that_goes_on_to_a_vendor(app: App, api: str, model: str) -> None:
    path, whole = APIS[api]
    path = path.replace("fake/m", model)
    body = {**whole, "model": model} if "model" in whole else whole
    for index, place in enumerate(places(body)):
        if place != ("model",):
            reply = await post(app, path, replaced(body, place, WRONG[index % len(WRONG)]))
            if reply.status != 502:  # the fake vendor has one answer, which may not fit
                check(api, reply)


def nested(levels: int, value: Any = 1, *, lists: bool = False) -> Any:
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("model", ["fake/m", "openai/gpt-6-luna", "anthropic/claude-opus-5-5"])
@pytest.mark.parametrize("api", APIS)
async def test_nor_is_json_that_can_be_read_but_is_too_deep_to_be_written_again(app: App, api: str, model: str) -> None:
    path, whole = APIS[api]
    path = path.replace("fake/m", model)
    body = {**whole, "model": model} if "model" in whole else whole
    for index, place in enumerate([*places(body), ("unknown",)]):
        deep = nested((228, 260, 700)[index % 3], lists=index % 2 == 0)
        reply = await post(app, path, replaced(body, place, deep))
        if reply.status != 502:
            check(api, reply)


async def test_a_deep_body_goes_through_where_its_bytes_can(app: App) -> None:
    body = {"model": "openai/gpt-6-luna", "messages": [], "new": nested(300)}
    assert (await post(app, "/v1/chat/completions", body)).status == 200
    twice = b'{"metadata": {"model": "x"}, ' + json.dumps(body).encode()[1:]
    assert (await post(app, "/v1/chat/completions", twice)).status == 200
    deeper = twice.replace(b": 1}", b": " + b"[" * 700 + b"]" * 700 + b"}")
    reply = await post(app, "/v1/chat/completions", deeper)
    refused = (reply.status, "too deeply" in reply.body.decode()) == (400, True)
    assert refused or (sys.version_info >= (3, 12) and reply.status == 200)  # which reads as deep as `orjson` does


def text_of(api: str) -> bytes:
    return json.dumps(APIS[api][1]).encode()


@pytest.mark.parametrize("api", APIS)
@given(data=st.data())
@MODEST
def test_bytes_that_are_bent_at_random_places(app: App, api: str, data: st.DataObject) -> None:
    raw = bytearray(text_of(api))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(start, min(len(raw), start + 20)))
        raw[start:end] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"\x00", b"\xff\xfe", b'"', b"{", b"\\ud800"])
        )
    check(api, sent(app, APIS[api][0], bytes(raw)))


@pytest.mark.parametrize("api", APIS)
@given(body=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
@MODEST
def test_bodies_of_any_kind(app: App, api: str, body: bytes) -> None:
    check(api, sent(app, APIS[api][0], body))


@pytest.mark.parametrize("api", APIS)
@given(data=st.data(), value=JSON)
@MODEST
def test_any_json_in_any_field(app: App, api: str, data: st.DataObject, value: Any) -> None:
    path, whole = APIS[api]
    place = data.draw(st.sampled_from(list(places(whole))))
    check(api, sent(app, path, replaced(whole, place, value)))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"model":' * 50_000,
        b'{"model":"fake/m","messages":' + b"[" * 2000 + b"]" * 2000 + b"}",
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"model":"fake/m","max_tokens":' + b"9" * 5000 + b"}",
        b'{"model":"fake/m","max_tokens":1e999}',
        b'{"model":"\\ud800","messages":[{"role":"user","content":"\\udfff"}]}',
        b'{"model":"fake/m","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"model":"fake/m\\u0000","messages":[{"role":"user","content":"\\u0000"}]}',
        b"\xef\xbb\xbf{}",
        b"",
        b"null",
        b"NaN",
    ],
    ids=range(13),
)
@pytest.mark.covers("S2-70")
async def test_hostile_bodies(app: App, api: str, body: bytes) -> None:
    reply = await post(app, APIS[api][0], body)
    check(api, reply)
    assert 400 <= reply.status < 500


@pytest.mark.covers("S2-71")
@pytest.mark.parametrize("depth", [50, 900, 5000])
async def test_deep_schemas(app: App, depth: int) -> None:
    deep = b'{"type":"object","properties":{"a":' * depth + b"{}" + b"}}" * depth
    body = b'{"model":"fake/m","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema",'
    body += b'"json_schema":{"name":"s","schema":' + deep + b"}}}"
    check("openai-chat", await post(app, "/v1/chat/completions", body))


async def test_what_the_official_sdks_send_bent_in_every_field(app: App) -> None:
    found = [(path, body) for path, body in samples() if api_at(path.partition("?")[0]) is not None]
    if not found:
        pytest.skip("the samples of the SDKs' requests are not here")
    for number, (address, body) in enumerate(found):
        path = address.partition("?")[0]
        serving = api_at(path)
        assert serving is not None
        if "model" in body:
            body["model"] = "fake/m"
        elif "/models/" in path:
            path = f"{path.partition('/models/')[0]}/models/fake/m:{path.rpartition(':')[2]}"
        check(serving.name, await post(app, path, body))
        for index, place in enumerate(places(body)):
            check(serving.name, await post(app, path, replaced(body, place, WRONG[(index + number) % len(WRONG)])))
