"""A 400 that says "not supported" teaches a downgrade, once for each (address, model)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from slipform.codecs import Capabilities
from slipform.errors import UpstreamRequestError
from slipform.ir import Message, ModelRequest
from slipform.providers.http import HttpProvider
from slipform.providers.refusals import record_refusal
from slipform.providers.retry import MemoryDowngrades, apply_downgrades
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.testing import FakeVendor, Received, Step, refusal, rejected
from tests.providers.chat import ChatCodec, ask
from tests.providers.conftest import QUICK, AsyncFace, SyncFace

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
"""One that no dialect changes, so that the only warnings are those of the downgrades."""
EVERYTHING = Capabilities(native=True, tools=True, forced_tool=True, json_mode=True, max_tokens_field="max_tokens")


def provider_for(vendor: FakeVendor, **options: Any) -> HttpProvider:
    return HttpProvider(
        "openai", base_url=vendor.base_url, api_key="k-123456", codec=ChatCodec, retries=QUICK, **options
    )


def no_native(received: Received) -> Step:
    if "json_schema" in received.body.decode():
        return rejected("This model does not support response format json_schema")
    return "fine"


@pytest.mark.covers("C16", "S4-17", "S4-19")
def test_native_refused_becomes_a_forced_tool(face: SyncFace | AsyncFace, caplog: pytest.LogCaptureFixture) -> None:
    with FakeVendor(no_native) as vendor:
        provider = provider_for(vendor)
        assert provider.capabilities("m-1").auto_strategy is OutputStrategy.NATIVE
        with caplog.at_level(logging.WARNING, "slipform.providers"):
            response = face.complete(provider, ask(schema=SCHEMA))
        again = face.complete(provider, ask(schema=SCHEMA))
        assert provider.capabilities("m-1").auto_strategy is OutputStrategy.TOOL
        assert provider.capabilities("m-2").auto_strategy is OutputStrategy.NATIVE
    bodies = [request.json() for request in vendor.requests]
    assert ["response_format" in body for body in bodies] == [True, False, False]
    assert all("tool_choice" in body for body in bodies[1:])
    assert [warning.path for warning in response.warnings] == ["no_native"]
    assert [warning.code for warning in again.warnings] == ["capability_downgraded"]
    assert "openai/m-1: request refused, downgrade=no_native" in caplog.text
    assert "k-123456" not in caplog.text


def test_the_warning_goes_on_the_first_chunk_of_a_stream(face: SyncFace | AsyncFace) -> None:
    with FakeVendor(no_native) as vendor:
        chunks = face.stream(provider_for(vendor), ask(schema=SCHEMA))
    assert [len(chunk.warnings) for chunk in chunks][:2] == [1, 0]
    assert chunks[0].warnings[0].path == "no_native"


def test_a_refusal_that_teaches_nothing_new_is_the_answer() -> None:
    with FakeVendor([rejected("response_format is not supported"), rejected("messages are missing")]) as vendor:
        provider = provider_for(vendor)
        with pytest.raises(UpstreamRequestError, match="messages"):
            provider.complete(ask(schema=SCHEMA))
    assert len(vendor.requests) == 2


def test_a_refused_schema_is_remembered_for_that_schema_only() -> None:
    def picky(received: Received) -> Step:
        if b"too deep" in received.body and b"json_schema" in received.body:
            return rejected("The schema is too complex")
        return "fine"

    with FakeVendor(picky) as vendor:
        provider = provider_for(vendor)
        provider.complete(ask(schema={"type": "object", "title": "too deep"}))
        provider.complete(ask(schema={"type": "object", "title": "too deep"}))
        provider.complete(ask(schema=SCHEMA))
        assert provider.capabilities("m-1").native
    natives = ["response_format" in request.json() for request in vendor.requests]
    assert natives == [True, False, False, True]


def test_a_channel_the_caller_insists_on_is_not_replaced() -> None:
    with FakeVendor([rejected("response_format is not supported")]) as vendor:
        with pytest.raises(UpstreamRequestError):
            provider_for(vendor).complete(ask(schema=SCHEMA, strategy=OutputStrategy.NATIVE))
        assert len(vendor.requests) == 1


def test_sampling_and_the_token_limits_name_are_learned() -> None:
    def script(received: Received) -> Step:
        body = received.json()
        if "temperature" in body:
            return rejected("Unsupported value: 'temperature' does not support 0.5 with this model.")
        if "max_completion_tokens" in body:
            return rejected("Unsupported parameter: 'max_completion_tokens'")
        return "fine"

    with FakeVendor(script) as vendor:
        provider = provider_for(vendor)
        response = provider.complete(ask(temperature=0.5))
        assert {warning.code for warning in response.warnings} == {"capability_downgraded", "lossy_encode"}
        assert provider.complete(ask(max_tokens=9)).text == "fine"
    assert vendor.requests[-1].json()["max_tokens"] == 9


def test_a_plain_bad_request_teaches_nothing() -> None:
    with FakeVendor([rejected("messages[0].content is missing")]) as vendor:
        with pytest.raises(UpstreamRequestError):
            provider_for(vendor).complete(ask(schema=SCHEMA))
        assert len(vendor.requests) == 1


def test_lessons_can_be_shared_between_providers() -> None:
    store = MemoryDowngrades()
    with FakeVendor(no_native) as vendor:
        provider_for(vendor, downgrades=store).complete(ask(schema=SCHEMA))
        provider_for(vendor, downgrades=store).complete(ask(schema=SCHEMA))
    assert len(vendor.requests) == 3


@pytest.mark.parametrize(
    ("message", "lesson"),
    [
        ("Model m does not support response format 'json_schema'", "no_native"),
        ("This response_format type is unavailable now", "no_native"),
        ("output_config.format: Extra inputs are not permitted", "no_native"),
        ("'response_format.type' must be 'json_schema' or 'text'", "no_native"),
        ("temperature is not supported with this model", "no_sampling"),
        ("`temperature` is deprecated for this model.", "no_sampling"),
        ("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "use_max_completion_tokens"),
        ("`strict` is not supported", "no_strict"),
    ],
)
def test_what_vendors_words_teach(message: str, lesson: str) -> None:
    assert record_refusal(message, ask(schema=SCHEMA, max_tokens=5), EVERYTHING) == (lesson, False)


@pytest.mark.parametrize(
    "message",
    [
        "Thinking mode does not support this tool_choice",
        "Thinking may not be enabled when tool_choice forces tool use.",
        "tool_choice 'required' is not supported",
    ],
)
def test_the_ladder_goes_from_tool_to_json_mode_to_the_prompt(message: str) -> None:
    no_native = apply_downgrades(EVERYTHING, frozenset({"no_native"}))
    assert record_refusal(message, ask(schema=SCHEMA), no_native) == ("no_forced_tool", False)
    neither = apply_downgrades(EVERYTHING, frozenset({"no_native", "no_forced_tool"}))
    assert neither.auto_strategy is OutputStrategy.PROMPTED
    assert record_refusal("response_format is not supported", ask(schema=SCHEMA), neither) == ("no_json_mode", False)
    nothing = apply_downgrades(neither, frozenset({"no_json_mode"}))
    assert record_refusal("response_format is not supported", ask(schema=SCHEMA), nothing) is None


def test_a_tool_choice_of_the_callers_own_teaches_nothing() -> None:
    assert record_refusal("tool_choice is not supported", ask(), EVERYTHING) is None


def test_the_store_is_bounded_and_forgets() -> None:
    now = [0.0]
    store = MemoryDowngrades(size=2, lifetime=10, clock=lambda: now[0])
    for key in "abc":
        store.add(key, "no_native")
    assert [len(store.get(key)) for key in "abc"] == [0, 1, 1]
    store.add("c", "no_sampling")
    assert store.get("c") == {"no_native", "no_sampling"}
    now[0] = 11
    assert store.get("c") == frozenset()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refusal_in_words_is_not_taken_for_a_schema_that_was_ignored(streamed: bool) -> None:
    shape = ResponseFormat.strict(JsonSchemaSpec("person", SCHEMA))
    request = ModelRequest("claude-opus-5-5", (Message.user("Ada is 36"),), shape)
    with FakeVendor([refusal()], api="anthropic") as vendor:
        provider = HttpProvider("anthropic", base_url=vendor.base_url, api_key="k")
        if streamed:
            list(provider.stream(request))
        else:
            provider.complete(request)
        assert "schema_in_prompt" not in provider.capabilities(request.model).quirks
