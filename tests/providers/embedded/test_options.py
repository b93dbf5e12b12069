"""The prompt-only path, with an engine that says what it is told to."""

from __future__ import annotations

import importlib.metadata
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.local import LocalProvider
from slipform.addons.local.answer import ForceJsonStartLogitsProcessor, StopHook, prompt_grammar
from slipform.addons.local.decoding.constrain import KEY
from slipform.addons.local.decoding.patterns import grammar_problem
from slipform.addons.local.engine import Cancel, GenerationEvent
from slipform.addons.transformers import TransformersProvider
from slipform.enforce import Budget, Outcome, Report
from slipform.engine.setup import Options
from slipform.errors import InvalidResponseFormat, RequestError
from slipform.ir import Message, ModelRequest, Tool
from slipform.ir.request import Guard
from slipform.library.client import Client
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.text.fence import JsonFenceDetector
from tests.conftest import PERSON


class Scripted:
    """An engine that says its pieces, and remembers what it was asked and whether it was stopped."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.body: Mapping[str, Any] = {}
        self.stopped = False

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        self.body = body
        for number, piece in enumerate(self.pieces, 1):
            put({"choices": [{"delta": {"content": piece}}], "timings": {"prompt_n": 3, "predicted_n": number}})
        put({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        put({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(self.pieces)}})
        put(None)
        return self.cancel

    def cancel(self) -> None:
        self.stopped = True

    def warm(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to let go of."""


def asked(**extra: Any) -> ModelRequest:
    shape = ResponseFormat.strict(JsonSchemaSpec("person", PERSON)).with_strategy(OutputStrategy.PROMPTED)
    return ModelRequest("", (Message.user("Ada is 36"),), shape, extra=extra)


def closing(options: Guard) -> StopHook | None:
    """Stops at the last brace; gives up on an answer that begins with an excuse."""

    def hook(piece: str) -> bool:
        if options.response_format_fail_hard and "Sorry" in piece:
            raise InvalidResponseFormat("No JSON was found")
        return "}" in piece

    return hook if options.stop_after_json else None


@pytest.mark.covers("S0-06", "S0-57", "S0-59")
def test_the_options_are_plain_data_read_from_the_request() -> None:
    options = Guard.of({"stop_after_json": True, "other": 1}, Guard(force_json_start=True))
    assert options == Guard(force_json_start=True, stop_after_json=True)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(RequestError, match="stop_after_json"):
        Guard.of({"stop_after_json": "yes"})


@pytest.mark.covers("S0-20", "S0-47")
@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("stop", [True, False])
def test_what_the_options_switch_on_is_a_grammar_the_engine_takes(force: bool, stop: bool) -> None:
    grammar = prompt_grammar(Guard(force, stop), hooked=False)
    assert (grammar is None) == (not force and not stop)
    assert grammar is None or grammar_problem(grammar) is None


@pytest.mark.covers("S0-06")
def test_the_forced_start_is_switched_by_a_flag() -> None:
    engine = Scripted("{}")
    provider = LocalProvider(lambda _: engine)
    provider.complete(asked(force_json_start=True))
    assert engine.body["grammar"] == ForceJsonStartLogitsProcessor().grammar
    provider.complete(asked())
    assert "grammar" not in engine.body


@pytest.mark.covers("S0-71", "S0-72", "S0-73")
def test_without_options_the_text_comes_as_it_was_said() -> None:
    said = 'Sure! {"name": "Ada", "age": 36} Bye.'
    answer = LocalProvider(lambda _: Scripted(said[:9], said[9:])).complete(asked())
    assert (answer.text, answer.finish, answer.warnings) == (said, "stop", ())


@pytest.mark.covers("S0-15", "S0-45", "S0-58", "S0-79", "S0-80", "C01")
@pytest.mark.parametrize(
    ("said", "code"), [("Ada is 36.", "not_json"), ('{"name": "Ada"}', "schema_violation"), ("", "empty_answer")]
)
def test_asked_directly_the_raw_text_comes_with_a_warning_and_the_model_was_instructed(said: str, code: str) -> None:
    engine = Scripted(said)
    answer = LocalProvider(lambda _: engine).complete(asked())
    assert (answer.text, [warning.code for warning in answer.warnings]) == (said, [code])
    system, user = engine.body["messages"]
    assert "Return ONLY valid JSON matching this schema" in system["content"]
    assert user["content"] == "Ada is 36"


def test_an_answer_without_end_is_stopped() -> None:
    engine = Scripted('{"name": "', *["Ada and "] * 2_000)
    answer = LocalProvider(lambda _: engine).complete(asked())
    assert engine.stopped
    assert (answer.finish, len(answer.text) < 5_000) == ("length", True)
    assert [warning.code for warning in answer.warnings] == ["runaway"]


@pytest.mark.covers("S0-78", "C29")
def test_tools_and_a_schema_go_together_whatever_the_strategy() -> None:
    engine = Scripted(f'{{"{KEY}": ', '{"name": "Ada", "age": 36}}')
    tool = Tool("add", {"type": "object", "properties": {"a": {"type": "integer"}}})
    answer = LocalProvider(lambda _: engine).complete(asked().replace(tools=(tool,)))
    assert "call_0" in engine.body["grammar"]
    assert "other" in engine.body["grammar"]
    assert "Ada" in answer.text


@pytest.mark.covers("S0-19", "S0-53", "S0-64", "S0-74", "S0-75")
async def test_a_hook_stops_the_engine_at_the_close_on_every_path() -> None:
    request = asked(stop_after_json=True)
    for path in ("complete", "stream", "complete_async", "stream_async"):
        engine = Scripted('{"a"', ": 1}", " Bye.", " And more.")
        provider = LocalProvider(lambda _, engine=engine: engine, stop_hook=closing)  # type: ignore[misc]
        if path == "complete":
            text, usage = provider.complete(request).text, provider.complete(request).usage
        elif path == "complete_async":
            answer = await provider.complete_async(request)
            text, usage = answer.text, answer.usage
        else:
            chunks = list(provider.stream(request)) if path == "stream" else []
            if path == "stream_async":
                chunks = [chunk async for chunk in provider.stream_async(request)]
            text = "".join(chunk.text for chunk in chunks)
            assert chunks[-1].finish == "stop"
            assert chunks[-1].usage
            usage = chunks[-1].usage
        assert text == '{"a": 1}'
        assert (usage.input, usage.output) == (3, 2)
        assert engine.stopped


@pytest.mark.covers("S0-60", "S0-62", "S0-63")
def test_a_hook_that_raises_ends_the_answer_with_that_error() -> None:
    engine = Scripted("Sorry,", " I cannot.")
    provider = LocalProvider(lambda _: engine, stop_hook=closing)
    with pytest.raises(InvalidResponseFormat):
        list(provider.stream(asked(stop_after_json=True, response_format_fail_hard=True)))
    assert engine.stopped


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (("Sorry, ", "I cannot."), "no JSON"),
        (("x" * 600,), "No JSON"),
        (('{"name": "Ada", ', '"age": }'), "broken|not valid"),
        (('{"name": "Ada"',), '"age" is missing'),
        (("{'name': 'Ada', 'age': 36}",), "broken: wrong_quote"),
        (('Sure: {"name": "Ada", "age": "36"}',), "not valid"),
    ],
)
@pytest.mark.covers("S0-16", "S0-60", "S0-61", "S0-62", "S0-63", "S0-64")
def test_failing_hard_names_what_was_wrong(pieces: tuple[str, ...], said: str) -> None:
    provider = LocalProvider(lambda _: Scripted(*pieces))
    request = asked(response_format_fail_hard=True)
    with pytest.raises(InvalidResponseFormat, match=said):
        provider.complete(request)
    with pytest.raises(InvalidResponseFormat, match=said):
        list(provider.stream(request))


class Turns(Scripted):
    """Says one of its pieces each time it is asked."""

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        turns = self.pieces
        self.pieces = turns[:1]
        cancel = super().start(body, put)
        self.pieces = turns[1:]
        return cancel


@pytest.mark.covers("S0-54", "S0-64")
@pytest.mark.parametrize("is_set_on_the_provider", [False, True])
@pytest.mark.parametrize("provider_class", [LocalProvider, TransformersProvider])
def test_enforced_calls_fail_hard_as_with_any_provider_after_their_attempts_and_with_a_report(
    provider_class: type[LocalProvider | TransformersProvider], is_set_on_the_provider: bool
) -> None:
    hard = Guard(response_format_fail_hard=True)

    def respond(*turns: str) -> Outcome:
        provider = provider_class(lambda _: Turns(*turns), options=hard if is_set_on_the_provider else None)
        options = Options(budget=Budget(attempts=2), guard=Guard() if is_set_on_the_provider else hard)
        client = Client(router=Router({"local": provider}), options=options)
        return client.respond(asked().replace(model="local/any.gguf"))

    outcome = respond("Sorry, I cannot.", '{"name": "Ada", "age": 36}')
    assert outcome.value == {"name": "Ada", "age": 36}
    assert [attempt.outcome for attempt in outcome.report.attempts] == ["not_json", "ok"]
    with pytest.raises(InvalidResponseFormat, match="after 2 attempts") as caught:
        respond("Sorry, I cannot.", '{"name": "Ada", "age": "old"}')
    report = caught.value.report
    assert isinstance(report, Report)
    assert [attempt.outcome for attempt in report.attempts] == ["not_json", "schema_violation"]
    # The second was stopped where it became impossible, so its tokens are estimated.
    assert [attempt.usage.output for attempt in report.attempts] == [1, 8]


def test_guards_in_camel_case_are_followed_and_not_called_unsupported() -> None:
    engine = Scripted('{"name": "Ada", "age": 36}')
    answer = LocalProvider(lambda _: engine).complete(asked(forceJsonStart=True, stopAfterJson=True))
    assert engine.body["grammar"]
    assert answer.warnings == ()


@pytest.mark.covers("S0-47")
@pytest.mark.parametrize("provider_class", [LocalProvider, TransformersProvider])
def test_enforced_calls_force_the_start_wherever_the_engine_can(
    provider_class: type[LocalProvider | TransformersProvider],
) -> None:
    engine = Scripted('{"name": "Ada", "age": 36}')
    client = Client(
        router=Router({"local": provider_class(lambda _: engine)}),
        options=Options(guard=Guard(force_json_start=True)),
    )
    outcome = client.respond(asked().replace(model="local/any.gguf"))
    assert engine.body["grammar"]
    assert [warning.code for warning in outcome.report.warnings] == []


@pytest.mark.covers("S0-51", "S0-52")
def test_the_prose_before_the_json_is_bounded_and_more_so_after_a_forced_start() -> None:
    chatty = LocalProvider(lambda _: Scripted("y" * 100, '{"name": "Ada", "age": 36}'))
    assert chatty.complete(asked(response_format_fail_hard=True)).text.endswith("}")
    with pytest.raises(InvalidResponseFormat, match="No JSON"):
        chatty.complete(asked(response_format_fail_hard=True, force_json_start=True))


@pytest.mark.covers("S0-46")
def test_tools_are_described_the_same_with_a_schema_and_without() -> None:
    tool = Tool("add", {"type": "object", "properties": {"a": {"type": "integer"}}})
    engine = Scripted('{"tool": "add", "arguments": {}}')
    provider = LocalProvider(lambda _: engine)
    provider.complete(ModelRequest("", (Message.user("Add."),), tools=(tool,)))
    plain = engine.body["messages"]
    provider.complete(asked().replace(tools=(tool,), messages=(Message.user("Add."),)))
    assert engine.body["messages"] == plain


def test_a_prompted_schema_with_tools_is_reported_as_what_the_grammar_made_of_it() -> None:
    tool = Tool("add", {"type": "object", "properties": {"a": {"type": "integer"}}})
    provider = LocalProvider(lambda _: Scripted(f'{{"{KEY}": {{"name": "Ada", "age": 36}}}}'))
    router = Router({"local": provider}, default="local")
    report = Client(router=router).respond(asked().replace(tools=(tool,))).report
    assert [each.strategy for each in report.attempts] == [OutputStrategy.NATIVE]
    assert "prompted_constrained" in [each.code for each in report.warnings]


@pytest.mark.covers("S0-05")
def test_the_validator_is_a_dependency_at_run_time() -> None:
    needed = [line for line in importlib.metadata.requires("slipform") or () if "extra ==" not in line]
    assert any(line.startswith("jsonschema-rs") for line in needed)


@pytest.mark.covers("S0-07")
def test_the_fence_detector_is_a_module_of_its_own() -> None:
    assert JsonFenceDetector.__module__ == "slipform.text.fence"


@pytest.mark.covers("S0-48", "S0-56", "S0-76", "S0-77", "S0-78")
def test_the_limits_of_the_prompt_only_path_are_documented() -> None:
    text = " ".join((Path(__file__).parents[3] / "docs" / "local.md").read_text().split())
    for said in (
        "the schema is only in the prompt",
        "a long schema may be shortened there",
        "Text only: no images, no sound",
        "where a backend exposes no logits",
        "Tools and a prompted schema do not go together in one turn",
    ):
        assert said in text
