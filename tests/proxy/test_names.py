"""The names of models as they come in: checked first, matched by keys as they are sent on, and nothing else chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from slipform.addons.server import App
from slipform.addons.server.admission.refusals import NotAllowed
from slipform.addons.server.calls.model_names import check_fields
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.testing import FakeVendor
from tests.conftest import PERSON, examples, serving
from tests.proxy.asgi import call as call_app
from tests.proxy.proxying import ADA, ASK, FORMAT, call, keys_path
from tests.proxy.wire import Reply, post, provider_of

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TALK: Any = [{"role": "user", "content": "hi"}]
TURN: Any = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
SHAPED: Any = {**TURN, "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": PERSON}}
BODIES: Mapping[str, Any] = {
    CHAT: {"messages": TALK},
    MESSAGES: {"messages": TALK, "max_tokens": 9},
    RESPONSES: {"input": "hi"},
}


class Proxy:
    """A proxy before an OpenAI, an Anthropic and a Gemini, with a key for everything and one for little."""

    def __init__(self, address: str, vendors: Mapping[str, FakeVendor], keys: Mapping[str, str]) -> None:
        self.address, self._vendors, self._keys = address, vendors, keys

    def post(self, path: str, body: Any, key: str = "all") -> Reply:
        """One call, after which `sent` holds what it caused."""
        for vendor in self._vendors.values():
            vendor.requests.clear()
        return post(self.address, path, body, {"authorization": f"Bearer {self._keys[key]}"})

    @property
    def sent(self) -> list[Any]:
        return [request for vendor in self._vendors.values() for request in vendor.requests]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    from slipform.addons.server.admission.keys import add_key

    path = keys_path(tmp_path_factory.mktemp("keys"))
    few = ["cheap", "claude", "up/gpt-4o-mini", "gem/gemini-3-flash*"]
    keys = {"all": add_key(path, "all")[1], "few": add_key(path, "few", models=few)[1]}
    aliases = {"cheap": "up/gpt-4o-mini", "claude": "an/claude-5", "gpt-4o-mini": "up/gpt-4o-mini"}
    with FakeVendor([ADA]) as openai, FakeVendor([ADA], api="anthropic") as an, FakeVendor([ADA], api="gemini") as gem:
        providers = {
            "up": provider_of(openai),
            "an": provider_of(an, "anthropic"),
            "gem": provider_of(gem, "gemini"),
        }
        settings = Settings.model_validate({"server": {"keys_file": str(path)}})
        client = AsyncClient(router=Router(providers, aliases=aliases, default="cheap"))
        with serving(App(client, settings)) as address:
            yield Proxy(address, {"openai": openai, "anthropic": an, "gemini": gem}, keys)


# The name itself


@pytest.mark.parametrize(
    "name", ["m" * 257, "up/" + "x" * 2_000_000, "up/a\nb", "up/\u0000", "up/a\u001b[31m"], ids=ascii
)
@pytest.mark.parametrize("path", BODIES)
def test_a_long_name_or_one_with_control_characters_is_refused_in_the_apis_shape(
    proxy: Proxy, path: str, name: str
) -> None:
    reply = proxy.post(path, {**BODIES[path], "model": name})
    assert reply.status == 400
    message = reply.json()["error"]["message"]
    assert "characters" in message or "control character U+" in message
    assert message.isprintable()
    assert len(reply.body) < 1000
    assert proxy.sent == []
    assert reply.headers.get("x-slipform-model") is None


def test_every_name_of_a_list_is_checked(proxy: Proxy) -> None:
    reply = proxy.post(CHAT, {"model": ["cheap", "x" * 300], "messages": TALK})
    assert reply.status == 400
    assert "model[1]" in reply.json()["error"]["message"]
    assert proxy.sent == []


def test_a_list_of_one_model_is_that_model(proxy: Proxy) -> None:
    assert proxy.post(CHAT, {"model": ["cheap"], "messages": TALK}).status == 200
    assert [request.json()["model"] for request in proxy.sent] == ["gpt-4o-mini"]


def test_the_longest_name_is_served(proxy: Proxy) -> None:
    name = "up/" + "x" * 253
    assert proxy.post(CHAT, {"model": name, "messages": TALK}).status == 200
    assert proxy.sent[0].json()["model"] == name[3:]


@pytest.mark.parametrize("name", ["m" * 257, "gem/a%0Ab", "gem/a%00"])
@pytest.mark.parametrize("form", [TURN, SHAPED], ids=["plain", "shaped"])
def test_geminis_name_in_the_path_is_checked_decoded(proxy: Proxy, name: str, form: Any) -> None:
    reply = proxy.post(f"/v1beta/models/{name}:generateContent", form)
    assert reply.status == 400
    assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert proxy.sent == []


def test_a_path_without_a_model_says_so(proxy: Proxy) -> None:
    reply = proxy.post("/v1beta/models/:generateContent", {**TURN, "model": "gem/gemini-3-pro"})
    assert reply.status == 400
    assert "names no model" in reply.json()["error"]["message"]


async def test_pages_of_one_model_check_its_name_too() -> None:
    app = App(AsyncClient(router=Router({})), Settings())
    for name in ("x" * 300, "a\nb"):
        reply = await call_app(app, "GET", f"/v1/models/{name}")
        assert reply.status == 400
        assert len(reply.body) < 1000


def test_a_switch_that_is_not_known_is_shown_in_short(proxy: Proxy) -> None:
    for switches in ({"x" * 100_000: 1}, {"strategy": "x" * 100_000}, {"report": ["x" * 100_000]}):
        reply = proxy.post(CHAT, {"model": "cheap", "messages": TALK, "slipform": switches})
        assert reply.status == 400
        assert len(reply.body) < 1000


# In a URL


@pytest.mark.parametrize("form", [TURN, SHAPED], ids=["plain", "shaped"])
@pytest.mark.parametrize("key", ["all", "few"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gem/gemini-3-flash/../models/gemini-3-pro", "`..`"),
        ("gem/gemini-3-flash/%2e%2e/models/gemini-3-pro", "`..`"),
        ("gem/gemini-3-flash%2F..%2Fmodels%2Fgemini-3-pro", "`..`"),
        ("gem/gemini-3-flash%2523", "`%`"),
        ("gem/gemini-3-flash%252f..%252fx", "`%`"),
        ("gem/gemini-3-flash%23", "`#`"),
        ("gem/gemini-3-flash%3Fx=1%26y=", "`?`"),
        ("gem/gemini-3-flash%5C..%5Cx", "`\\`"),
        ("gem/gemini-3-flash//x", "empty segment"),
    ],
)
def test_a_name_cannot_leave_its_place_in_the_url(proxy: Proxy, name: str, why: str, key: str, form: Any) -> None:
    reply = proxy.post(f"/v1beta/models/{name}:generateContent", form, key)
    assert reply.status == 400
    assert why in reply.json()["error"]["message"]
    assert proxy.sent == []


def test_the_same_name_in_a_body_cannot_either(proxy: Proxy) -> None:
    body = {"model": "gem/gemini-3-flash/../../cachedContents#", "messages": ASK, "response_format": FORMAT}
    for path in (CHAT, MESSAGES, RESPONSES):
        reply = proxy.post(path, {**BODIES[path], **body})
        assert reply.status == 400
        assert proxy.sent == []


def test_names_that_are_legal_reach_the_path_they_mean(proxy: Proxy) -> None:
    for name, path in {
        "gem/gemini-3-flash": "/models/gemini-3-flash:generateContent",
        "gem/gemini-3-flash%20x": "/models/gemini-3-flash%20x:generateContent",
        "gem/tunedModels/mine": "/tunedModels/mine:generateContent",
        "gem/a:b": "/models/a%3Ab:generateContent",
    }.items():
        assert proxy.post(f"/v1beta/models/{name}:generateContent", TURN).status == 200
        assert [request.path.endswith(path) for request in proxy.sent] == [True]


# What is sent is what was matched


SPELLINGS = [
    rb'{"\u006dodel":"NAME","metadata":{"model":"NAME"},BODY}',
    rb'{"metadata":{"model":"NAME"},"\u006d\u006F\u0064\u0065\u006c":"NAME",BODY}',
    rb'{"metadata":{"model":"NAME"},"model":"NAME",BODY}',
    rb'{"model" :  "NAME","metadata":{"a":"\"model\":\"NAME\""},BODY}',
    rb'{"metadata":{"a\"model":"NAME"},"model":"NAME",BODY}',
    rb'{"metadata":{"mode\u006c":"NAME"},"model":"NAME",BODY}',
    rb'{"metadata":["model","NAME",{"model":["NAME"]}],"model":"NAME",BODY}',
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("path", "name", "upstream"), [(CHAT, "cheap", "gpt-4o-mini"), (MESSAGES, "claude", "claude-5")]
)
def test_an_alias_is_renamed_however_the_body_spells_its_key(
    proxy: Proxy, path: str, name: str, upstream: str, spelling: bytes
) -> None:
    rest = json.dumps(BODIES[path]).encode()[1:-1]
    body = spelling.replace(b"NAME", name.encode()).replace(b"BODY", rest)
    assert proxy.post(path, body, "few").status == 200
    (sent,) = proxy.sent
    assert sent.json() == {**json.loads(body), "model": upstream}
    assert [key for key, _ in json.loads(sent.body, object_pairs_hook=list)].count("model") == 1


@pytest.mark.parametrize("first", ["cheap", "up/gpt-5-pro"])
@pytest.mark.parametrize(
    "spelling",
    [
        '{"model":"%s","model":"cheap","messages":[]}',
        '{"\\u006dodel":"%s","model":"cheap","messages":[]}',
        '{"mo\\u0064el":"%s","mod\\u0065l":"cheap","messages":[]}',
        '{"model":"%s","messages":[{"role":"user","content":"\\u0022model\\u0022"}],"model":"gpt-4o-mini"}',
        '{"model":"%s","model":"cheap","slipform":{"report":true},"messages":[]}',
    ],
)
@pytest.mark.parametrize("key", ["all", "few"])
def test_a_body_that_names_the_model_twice_is_refused(proxy: Proxy, spelling: str, first: str, key: str) -> None:
    reply = proxy.post(CHAT, (spelling % first).encode(), key)
    assert reply.status == 400
    assert "`model`" in reply.json()["error"]["message"]
    assert "twice" in reply.json()["error"]["message"]
    assert proxy.sent == []


_NESTED = st.recursive(
    st.sampled_from(["model", "cheap", "x", '"model":"cheap"', 1.5, None]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", 'b"model']), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(st.sampled_from(["metadata", "user", "x", 'y"model']), _NESTED, max_size=3),
    first=st.booleans(),
)
@settings_of(max_examples=examples(200), deadline=None)
def test_the_alias_is_renamed_and_all_else_is_as_it_was(proxy: Proxy, fields: dict[str, Any], first: bool) -> None:
    named = {"model": "cheap", "messages": TALK}
    body = {**named, **fields} if first else {**fields, **named}
    assert proxy.post(CHAT, body, "few").status == 200
    (sent,) = proxy.sent
    assert sent.json() == {**body, "model": "gpt-4o-mini"}


# Fields that choose a model


CHOOSING: list[dict[str, Any]] = [
    {"models": ["openai/gpt-5-pro"]},
    {"Models": ["openai/gpt-5-pro"]},
    {"model\u017f": ["openai/gpt-5-pro"]},
    {"route": "fallback"},
    {"provider": {"order": ["x"]}},
    {"plugins": [{"id": "auto-router"}]},
    {"preset": "p"},
    {"fallbacks": [{"model": "x"}]},
    {"context_window_fallbacks": [{"a": ["b"]}]},
    {"model_fallbacks": ["x"]},
    {"fallback_models": ["x"]},
    {"fallbackModels": ["x"]},
    {"fallback-models": ["x"]},
    {"user_config": {"model_list": []}},
    {"deployment_id": "x"},
    {"providerOptions": {"gateway": {"models": ["x"]}}},
    {"prompt": {"id": "pmpt_1"}},
    {"compound_custom": {"models": {"answering_model": "x"}}},
    {"extra_body": {"models": ["x"]}},
    {"extra_body": {"model": "x"}},
    {"extra_body": {"extra_body": {"fallbacks": ["x"]}}},
    {"MODEL": "up/gpt-5-pro"},
    {"Model": "up/gpt-5-pro"},
    {"engine": "gpt-5-pro"},
    {"model_id": "gpt-5-pro"},
    {"deployment": "gpt-5-pro"},
    {"custom_llm_provider": "other"},
    {"api_base": "http://other.internal/v1"},
    {"tools": [{"type": "image_generation", "model": "gpt-image-2"}]},
    {"tools": [{"type": "image_generation", "Model": "gpt-image-2"}]},
]


@pytest.mark.parametrize("fields", CHOOSING, ids=json.dumps)
def test_a_field_that_chooses_a_model_is_refused_for_keys_with_limits_only(proxy: Proxy, fields: Any) -> None:
    for more in ({}, {"response_format": FORMAT}):
        body = {"model": "cheap", "messages": ASK, **more, **fields}
        reply = proxy.post(CHAT, body, "few")
        assert reply.status == 403
        assert next(iter(fields)) in reply.json()["error"]["message"]
        assert proxy.sent == []
        assert proxy.post(CHAT, body, "all").status == 200
        assert len(proxy.sent) == 1


@pytest.mark.parametrize(("path", "name"), [(RESPONSES, "cheap"), (MESSAGES, "claude")])
def test_the_other_apis_refuse_them_too(proxy: Proxy, path: str, name: str) -> None:
    body = {**BODIES[path], "model": name}
    assert proxy.post(path, {**body, "fallbacks": ["x"]}, "few").status == 403
    advisor = {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-5"}
    assert proxy.post(path, {**body, "tools": [advisor]}, "few").status == 403
    assert proxy.sent == []
    assert proxy.post(path, body, "few").status == 200


def test_geminis_body_names_no_second_model_for_keys_with_limits(proxy: Proxy) -> None:
    path = "/v1beta/models/gem/gemini-3-flash:generateContent"
    routing = {"generationConfig": {"routingConfig": {"manualRoutingMode": {"modelName": "gemini-3-pro"}}}}
    others: list[Any] = [{"model": "models/gemini-3-pro"}, routing, {"generation_config": {"routing_config": {}}}]
    for more in others:
        assert proxy.post(path, {**TURN, **more}, "few").status == 403
        assert proxy.sent == []
    assert proxy.post(path, TURN, "few").status == 200


def test_fields_left_empty_and_those_of_tools_called_model_pass() -> None:
    car = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"model": {}}}}}
    check_fields({"model": "a", "models": None, "tools": [car], "metadata": {"models": ["a"]}}, names_model=True)
    with pytest.raises(NotAllowed, match="models"):
        check_fields({"model": "a", "models": []}, names_model=True)


# Before anything is kept


@pytest.mark.parametrize("name", ["up/gpt-5-pro", "nowhere/x", "gem/gemini-3-pro", "up/" + "y" * 300])
async def test_nothing_is_kept_for_a_model_that_the_caller_may_not_use(tmp_path: Path, name: str) -> None:
    from slipform.addons.server.admission.keys import add_key

    key = add_key(keys_path(tmp_path), "few", models=["up/gpt-4o-mini"])[1]
    with FakeVendor([ADA]) as vendor:
        router = Router({"up": provider_of(vendor), "gem": provider_of(vendor, "gemini")})
        app = App(
            AsyncClient(router=router), Settings.model_validate({"server": {"keys_file": str(keys_path(tmp_path))}})
        )
        gate = app.deployments.current.gate
        for body in ({"messages": TALK}, {"messages": ASK, "response_format": FORMAT}):
            raw = json.dumps({"model": name, **body}).encode()
            for _ in range(3):
                reply = await call_app(app, "POST", CHAT, raw, {"authorization": f"Bearer {key}"})
                assert reply.status in (400, 403, 404)
        assert gate.forward_routes._targets == {}
        assert vendor.requests == []


def test_a_key_with_limits_still_gets_its_models_enforced_and_through(proxy: Proxy) -> None:
    for _ in range(4):
        assert proxy.post(CHAT, {"model": "cheap", "messages": ASK, "response_format": FORMAT}, "few").status == 200
        assert [request.json()["model"] for request in proxy.sent] == ["gpt-4o-mini"]
    assert call(proxy.address, "/healthz").status == 200
