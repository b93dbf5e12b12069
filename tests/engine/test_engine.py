"""Router and enforcement, put together."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from slipform import AsyncClient, Budget, Client
from slipform.codecs import Capabilities
from slipform.config import read_settings
from slipform.enforce import Outcome
from slipform.engine.fallback import respond_batches, respond_chunks
from slipform.engine.planning import plan_for
from slipform.engine.setup import Options, router_of
from slipform.errors import ConfigError, JsonEnforcementError, UpstreamError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Tool, ToolCall
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from slipform.testing import FakeModel

WANTED = ResponseFormat.strict(JsonSchemaSpec("age", {"type": "object", "required": ["age"]}))
ASKED = ModelRequest("fake/m", (Message.user("a secret of mine"),), WANTED)


@pytest.mark.covers("S1-43", "S1-44", "S1-45", "S1-46", "S1-47", "S1-48", "S1-49", "S1-50", "S1-51", "S1-52")
def test_a_call_is_logged_with_its_figures_and_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    model = FakeModel(["no JSON", '{"age": 36}', "{'age': 36}"], models=("m",))
    client = Client(router=Router({"fake": model}), options=Options(budget=Budget(attempts=1)))
    with caplog.at_level(logging.INFO, logger="slipform.calls"):
        with pytest.raises(JsonEnforcementError):
            client.respond(ASKED)
        client.respond(ASKED)
        client.respond(ASKED)
    failed, passed, repaired = (record.__dict__["slipform"] for record in caplog.records)
    assert (failed["outcome"], passed["outcome"]) == ("not_json", "ok")
    assert (passed["provider"], passed["model"], passed["require_json"]) == ("fake", "m", True)
    assert passed["repair_attempted"] == "no"
    assert repaired["repair_attempted"] == "yes"
    assert {"use_response_schema", "streaming", "timeout", "latency", "input_tokens"} <= set(passed)
    assert "secret" not in caplog.text
    written = " ".join(record.getMessage() for record in caplog.records)
    assert "36" not in written.replace(f"{passed['latency']}", "").replace(f"{failed['latency']}", "").replace(
        f"{repaired['latency']}", ""
    )


@pytest.mark.covers("C15", "C16", "S4-28")
@pytest.mark.parametrize(
    ("capabilities", "wanted", "chosen"),
    [
        (Capabilities(native=True, forced_tool=True), OutputStrategy.AUTO, OutputStrategy.NATIVE),
        (Capabilities(forced_tool=True), OutputStrategy.AUTO, OutputStrategy.TOOL),
        (Capabilities(), OutputStrategy.AUTO, OutputStrategy.PROMPTED),
        (Capabilities(native=True), OutputStrategy.PROMPTED, OutputStrategy.PROMPTED),
    ],
)
def test_auto_takes_the_strongest_and_an_explicit_strategy_wins(
    capabilities: Capabilities, wanted: OutputStrategy, chosen: OutputStrategy
) -> None:
    router = Router({"fake": FakeModel(["{}"], capabilities=capabilities, models=("m",))})
    plan = plan_for(router, ASKED.replace(response_format=WANTED.with_strategy(wanted)), Options())
    assert plan.strategy is chosen


def test_a_plan_is_kept_for_a_shape_that_comes_again() -> None:
    router = Router({"fake": FakeModel(["{}"], models=("m",))})
    options, schema = Options(), Schema.of(dict[str, int])
    asked = ASKED.replace(response_format=ResponseFormat.strict(schema.spec))
    plan = plan_for(router, asked, options, schema)
    assert plan_for(router, asked.replace(messages=()), options, schema) is plan
    assert plan_for(router, asked, Options(), schema) is plan
    assert not plan_for(router, asked, Options(repair=False), schema).repair
    assert plan_for(router, asked.replace(extra={"stop_after_json": True}), options, schema).guard.stop_after_json
    assert plan_for(router, asked.replace(tools=(Tool("t", {"type": "object"}),)), options, schema).tools


def test_a_kept_plan_follows_what_the_model_can_do() -> None:
    options, schema = Options(), Schema.of(dict[str, int])
    asked = ASKED.replace(response_format=ResponseFormat.strict(schema.spec))
    strategies = []
    for capabilities in (Capabilities(native=True), Capabilities(forced_tool=True), Capabilities()):
        router = Router({"fake": FakeModel(["{}"], capabilities=capabilities, models=("m",))})
        strategies.append(plan_for(router, asked, options, schema).strategy.value)
    assert strategies == ["native", "tool", "prompted"]


def test_a_schema_that_its_owner_changes_is_read_anew() -> None:
    document: dict[str, object] = {"type": "object", "required": ["age"]}
    router = Router({"fake": FakeModel(["{}"], models=("m",))})
    options = Options()
    asked = ASKED.replace(response_format=ResponseFormat.strict(JsonSchemaSpec("age", document)))
    before = plan_for(router, asked, options).schema
    document["required"] = []
    after = plan_for(router, asked, options).schema
    assert before is not None
    assert after is not None
    assert (before.validate({}) == [], after.validate({}) == []) == (False, True)


def test_tools_are_enforced_unless_passed() -> None:
    router = Router({"fake": FakeModel(["{}"], models=("m",))})
    asked = ASKED.replace(tools=(Tool("t", {"type": "object"}),))
    assert list(plan_for(router, asked, Options()).tools) == ["t"]
    assert not plan_for(router, asked, Options(tools="pass")).tools


@pytest.mark.covers("S2-27", "S2-29", "S2-30", "S2-31")
def test_a_configuration_makes_providers_from_names_and_from_keys() -> None:
    settings = read_settings(
        "providers:\n  mine: {base_url: 'http://127.0.0.1:9/v1', kind: vllm, headers: {x-team: a}}\n"
        "model_aliases: {fast: mine/llama}\n"
    )
    router = router_of(settings, {"ANTHROPIC_API_KEY": "k"})
    assert set(router.providers) == {"local", "transformers", "mine", "anthropic"}
    assert router.resolve("fast")[1] == "llama"
    assert router.resolve(None)[0].name == "local"
    router.close()


def test_the_embedded_models_name_is_taken() -> None:
    with pytest.raises(ConfigError, match="embedded"):
        router_of(read_settings("providers: {local: {base_url: 'http://x'}}"), {})


@pytest.mark.covers("S1-12", "C03")
async def test_a_pause_before_asking_again_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr("asyncio.sleep", sleep)
    options = Options(budget=Budget(attempts=2), backoff_seconds=2)
    for _ in range(2):
        router = Router({"fake": FakeModel(["no", '{"age": 1}'], models=("m",))})
        Client(router=router, options=options).respond(ASKED)
        router = Router({"fake": FakeModel(["no", '{"age": 1}'], models=("m",))})
        await AsyncClient(router=router, options=options).respond(ASKED)
    assert slept == [2, 2, 2, 2]


WEATHER = Tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})


async def test_blocking_and_awaited_streams_give_the_same_pieces_from_the_first_model_that_can() -> None:
    said = ModelResponse(
        text="One moment.", tool_calls=(ToolCall("c", "weather", '{"city": "Oslo"}'),), finish="tool_calls"
    )
    seen: list[list[Any]] = []
    for awaited in (False, True):
        models = {"down": FakeModel([UpstreamError("The server is down")]), "up": FakeModel([said])}
        asked = ModelRequest("down/m", (Message.user("Oslo?"),), tools=(WEATHER,))
        names, options = ["down/m", "up/m"], Options()
        if awaited:
            batches = respond_batches(Router(models), names, asked, options)
            seen.append([batch async for batch in batches])
        else:
            seen.append(list(respond_chunks(Router(models), names, asked, options)))
    chunks = [chunk for chunk in seen[0] if isinstance(chunk, CompletionChunk)]
    flat = [chunk for batch in seen[1] if not isinstance(batch, Outcome) for chunk in batch]
    assert chunks == flat
    assert "".join(chunk.text for chunk in chunks) == "One moment."
    assert "".join(delta.arguments for chunk in chunks for delta in chunk.tool_calls) == '{"city":"Oslo"}'
    outcomes = [piece for pieces in seen for piece in pieces if isinstance(piece, Outcome)]
    assert [outcome.report.fallbacks for outcome in outcomes] == [1, 1]
