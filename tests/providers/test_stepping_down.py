"""`auto` takes the next channel by itself: native, tool, JSON mode, prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipform import Client
from slipform.config import Settings, read_settings
from slipform.engine.setup import router_of
from slipform.errors import ConfigError, UpstreamRequestError
from slipform.ir import Message, ModelRequest
from slipform.providers.downgrade_file import read_downgrades, remembered_downgrades
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.testing import Answer, FakeVendor, Received, Step, calling, rejected
from tests.providers.conftest import QUICK

ADA = {"name": "Ada", "age": 36}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def channel(received: Received) -> str:
    """How a request in the OpenAI or Gemini API asks for its schema."""
    body = received.json()
    generation = body.get("generationConfig", {})
    if body.get("response_format", {}).get("type") == "json_schema" or "responseJsonSchema" in generation:
        return "native"
    if "tools" in body:
        return "tool"
    if "response_format" in body or "responseMimeType" in generation:
        return "json_mode"
    return "prompt"


def refusing(**refusals: str) -> Callable[[Received], Step]:
    """A vendor that refuses some channels, each in its own words, and answers on the others."""

    def script(received: Received) -> Step:
        asked = channel(received)
        if asked in refusals:
            return rejected(refusals[asked])
        return Answer(calling(("output", ADA))) if asked == "tool" else json.dumps(ADA)

    return script


def client_for(vendor: FakeVendor, row: str = "openai", **options: Any) -> Client:
    provider = HttpProvider(row, base_url=vendor.base_url, api_key="k-123456", retries=QUICK, **options)
    return Client("v/m-1", router=Router({"v": provider}, default="v/m-1"))


def settings_of(given: dict[str, Any]) -> Settings:
    return read_settings(json.dumps(given))


def strategies(client: Client) -> list[str]:
    return [attempt.strategy.value for attempt in client.ask_full(PERSON, "Who is Ada?").report.attempts]


@pytest.mark.covers("S4-17", "S4-18")
@pytest.mark.parametrize(
    ("refusals", "way", "strategy"),
    [
        ({"native": "This response_format type is unavailable now"}, ["native", "tool"], "tool"),
        # pydantic-ai#2976
        (
            {"native": "JSON mode is not enabled for models/gemma-3", "tool": "Function calling is not enabled for m"},
            ["native", "tool", "json_mode"],
            "prompted",
        ),
        # pydantic-ai#2800
        (
            {
                "native": "response_format is not supported",
                "tool": "registry.ollama.ai/library/gemma3:4b does not support tools",
                "json_mode": "json_object is not supported with this model",
            },
            ["native", "tool", "json_mode", "prompt"],
            "prompted",
        ),
    ],
)
def test_one_call_goes_down_as_far_as_it_must(refusals: dict[str, str], way: list[str], strategy: str) -> None:
    with FakeVendor(refusing(**refusals)) as vendor:
        client = client_for(vendor)
        assert strategies(client) == [strategy]
        assert [channel(request) for request in vendor.requests] == way
        assert strategies(client) == [strategy]
        assert [channel(request) for request in vendor.requests] == [*way, way[-1]]
    if strategy == "prompted":
        assert "schema" in json.dumps(vendor.requests[len(way) - 1].json()["messages"])


def test_a_schema_that_gemini_finds_too_deep_goes_another_way_and_others_do_not() -> None:
    """Portkey-AI/gateway#1546."""
    deep = "A schema in GenerationConfig in the request exceeds the maximum allowed nesting depth."
    too_deep = "A FunctionDeclaration in the request exceeds the maximum allowed nesting depth."

    def script(received: Received) -> Step:
        asked = channel(received)
        if b"too_deep" in received.body and asked in ("native", "tool"):
            return rejected(deep if asked == "native" else too_deep)
        return json.dumps({"too_deep": 1} if b"too_deep" in received.body else ADA)

    schema = {"type": "object", "properties": {"too_deep": {"type": "integer"}}, "required": ["too_deep"]}
    with FakeVendor(script, api="gemini") as vendor:
        client = client_for(vendor, "gemini", settings={"host": vendor.base_url.removesuffix("/v1")})
        assert client.ask(schema, "How deep?") == {"too_deep": 1}
        assert client.ask(schema, "How deep?") == {"too_deep": 1}
        assert client.ask(PERSON, "Who is Ada?") == ADA
    assert [channel(request) for request in vendor.requests] == ["native", "tool", "json_mode", "json_mode", "native"]


def test_a_schema_without_a_place_in_the_native_channel_is_not_even_tried_there() -> None:
    many = {f"p{at}": {"type": "string"} for at in range(5_001)}
    wide = {"type": "object", "properties": many, "required": ["p0"], "additionalProperties": False}
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": wide}}, "required": ["rows"]}
    value = {"rows": [{"p0": "x"}]}

    def script(received: Received) -> Step:
        return Answer(calling(("output", value))) if channel(received) == "tool" else json.dumps(value)

    with FakeVendor(script) as vendor:
        result = client_for(vendor).ask_full(schema, "Fill this in.")
    assert result.value == value
    assert [channel(request) for request in vendor.requests] == ["tool"]
    assert [attempt.strategy.value for attempt in result.report.attempts] == ["tool"]
    assert any("5002 properties" in warning.message for warning in result.report.warnings)


def test_a_server_that_ignores_the_schema_is_shown_it_from_then_on() -> None:
    def script(received: Received) -> Step:
        told = "schema" in json.dumps(received.json()["messages"])
        return json.dumps(ADA) if told else "Ada was a mathematician."

    with FakeVendor(script) as vendor:
        client = client_for(vendor)
        first = client.ask_full(PERSON, "Who is Ada?", max_attempts=2)
        again = client.ask_full(PERSON, "Who is Ada?")
    assert (len(first.report.attempts), len(again.report.attempts)) == (2, 1)
    assert [channel(request) for request in vendor.requests] == ["native"] * 3
    assert "schema_unseen" in [warning.path for warning in again.report.warnings]


def test_a_streamed_answer_that_ignores_the_schema_is_noticed_too() -> None:
    with FakeVendor(["Ada was a mathematician.", json.dumps(ADA)]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k-123456", retries=QUICK)
        wanted = ResponseFormat(JsonSchemaSpec("person", PERSON))
        list(provider.stream(ModelRequest("m-1", (Message.user("Who?"),), wanted)))
        assert "schema_in_prompt" in provider.capabilities("m-1").quirks


@pytest.mark.parametrize("pinned", ["native", "tool"])
def test_a_pinned_strategy_never_steps_down(pinned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k-123456")
    settings = settings_of(
        {"providers": {"v": {"kind": "openai", "base_url": "http://127.0.0.1:1", "strategy": pinned}}}
    )
    capabilities = router_of(settings, {}).providers["v"].capabilities("gpt-3.5-turbo")
    assert capabilities.auto_strategy.value == pinned
    vendor_row = {"native": "response_format is not supported", "tool": "tool_choice is not supported"}
    with FakeVendor(refusing(**vendor_row)) as vendor:
        given = {"v": {"kind": "openai", "base_url": vendor.base_url, "strategy": pinned, "headers": {"x-a": "b"}}}
        router = router_of(settings_of({"providers": given}), retries=QUICK)
        with pytest.raises(UpstreamRequestError):
            Client("v/m-1", router=router).ask(PERSON, "Who is Ada?")
        assert len(vendor.requests) == 1


def test_capabilities_in_the_config_win_over_the_catalogue() -> None:
    given = {"kind": "openai", "capabilities": {"native": True, "dialect": "anthropic", "quirks": ["no_strict"]}}
    router = router_of(settings_of({"providers": {"v": given}, "enforcement": {"open_objects": "kept"}}), {})
    capabilities = router.providers["v"].capabilities("gpt-3.5-turbo")
    assert (capabilities.native, capabilities.dialect, capabilities.open_objects) == (True, "anthropic", "kept")
    with pytest.raises(ConfigError, match="nativ") as caught:
        router_of(settings_of({"providers": {"v": {"kind": "openai", "capabilities": {"nativ": True}}}}), {})
    assert caught.value.where == "providers.v.capabilities.nativ"


def test_what_was_learned_is_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "downgrades.jsonl"
    with FakeVendor(refusing(native="response_format is not supported")) as vendor:
        client_for(vendor, downgrades=remembered_downgrades(path)).ask(PERSON, "Who is Ada?")
        client_for(vendor, downgrades=remembered_downgrades(path)).ask(PERSON, "Who is Ada?")
    assert [channel(request) for request in vendor.requests] == ["native", "tool", "tool"]
    assert [each.name for each in read_downgrades(path)] == ["no_native"]
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("not json\n{}\n")
    assert read_downgrades(path) == []


def test_a_strategy_may_be_given_by_its_name() -> None:
    shape = ResponseFormat(JsonSchemaSpec("person", PERSON))
    assert shape.with_strategy("native") == shape.with_strategy(OutputStrategy.NATIVE)
    with pytest.raises(ConfigError, match="Unknown strategy 'natively'"):
        shape.with_strategy("natively")


@pytest.mark.covers("S4-18")
def test_a_provider_that_does_not_step_down_sends_the_same_request_on_every_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k-123456")
    with FakeVendor(refusing(native="Invalid schema: too many states")) as vendor:
        provider = f"{{kind: openai, base_url: '{vendor.base_url}', step_down: false}}"
        settings = read_settings(f"default_model: v/m-1\nproviders:\n  v: {provider}\n")
        client = Client(router=router_of(settings))
        for _ in range(2):
            with pytest.raises(UpstreamRequestError, match="too many states"):
                client.ask(PERSON, "Ada is 36")
        assert [channel(request) for request in vendor.requests] == ["native", "native"]
