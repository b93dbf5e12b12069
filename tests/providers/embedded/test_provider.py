"""The embedded model, for real: every case through a worker process and in this one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from slipform.addons.local import LocalProvider
from slipform.addons.local.call import prepare
from slipform.addons.local.engine import LlamaEngine
from slipform.addons.local.llama import IS_SHORT, EngineSlots, GenerationJob
from slipform.addons.local.weights import SMOLLM2, find
from slipform.addons.local.worker import WorkerEngine
from slipform.errors import (
    InvalidResponseFormat,
    LocalModelError,
    RequestError,
    UnknownModelError,
    UpstreamRequestError,
    UpstreamTimeout,
)
from slipform.ir import (
    CompletionChunk,
    LossyEncode,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    NamedTool,
    Reasoning,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.request import Guard
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from tests.conftest import PERSON
from tests.providers.embedded.conftest import events_of
from tests.waiting import until_async

pytestmark = [pytest.mark.local, pytest.mark.xdist_group("local")]

LONG = {"type": "array", "items": {"type": "integer"}, "minItems": 400, "maxItems": 400}
WEATHER = Tool(
    "get_weather",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    "Tells the weather in a city.",
)
ADD = Tool("add", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})


def fold(chunks: list[CompletionChunk]) -> ModelResponse:
    reducer = Reducer()
    reducer.start(Snapshot())
    for chunk in chunks:
        reducer.push(chunk)
    return reducer.finish()


def request(text: str = "Ada is 36\nReply in JSON with the keys: name, age.", **changes: Any) -> ModelRequest:
    spec = JsonSchemaSpec("person", changes.pop("schema", PERSON))
    return ModelRequest("smollm2-135m", (Message.user(text),), ResponseFormat.strict(spec), **changes)


def prompted(**extra: Any) -> ModelRequest:
    asked = request("Say hello.", max_tokens=60, extra=extra)
    assert asked.response_format
    return asked.replace(response_format=asked.response_format.with_strategy(OutputStrategy.PROMPTED))


@pytest.mark.covers("S0-02", "S0-03", "S0-04", "S0-08", "S0-21")
def test_an_answer_has_the_shape_asked_for(either: LocalProvider) -> None:
    response = either.complete(request())
    assert json.loads(response.text) == {"name": "Ada", "age": 36}
    assert response.finish == "stop"
    assert response.usage.output
    assert response.usage.input
    assert response.warnings == ()


@pytest.mark.covers("S0-02")
def test_the_stream_adds_up_to_the_same_answer(either: LocalProvider) -> None:
    chunks = list(either.stream(request()))
    assert len(chunks) > 5
    assert fold(chunks).text == either.complete(request()).text
    assert fold(chunks).usage.output


async def test_the_async_paths_give_the_same_answer(either: LocalProvider) -> None:
    chunks = [chunk async for chunk in either.stream_async(request())]
    assert fold(chunks).text == (await either.complete_async(request())).text


def test_both_ways_give_the_same_answer(local: LocalProvider, inside: LocalProvider) -> None:
    asked = request("Grace Hopper was born in 1906.\nReply in JSON with the keys: name, age.")
    assert local.complete(asked).text == inside.complete(asked).text


def test_several_requests_are_answered_at_once(either: LocalProvider) -> None:
    with ThreadPoolExecutor(6) as pool:
        texts = [f"Ada is {age}\nReply in JSON with the keys: name, age." for age in range(30, 36)]
        answers = [
            json.loads(response.text) for response in pool.map(lambda text: either.complete(request(text)), texts)
        ]
    assert all(Schema[object]("person", PERSON).validate(answer) == [] for answer in answers)


def test_two_answers_grow_side_by_side(either: LocalProvider) -> None:
    streams = [either.stream(request("Count up.", schema=LONG, max_tokens=300)) for _ in range(2)]
    seen = [next(stream) for stream in streams for _ in range(5)]
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    assert len(seen) == 10


def test_the_same_seed_gives_the_same_words(either: LocalProvider) -> None:
    asked = ModelRequest(
        "", (Message.user("Tell a story."),), max_tokens=16, sampling=Sampling(temperature=1.2, seed=7)
    )
    assert either.complete(asked).text == either.complete(asked).text


def test_an_answer_over_the_limit_says_that_it_was_cut(either: LocalProvider) -> None:
    assert either.complete(request(max_tokens=4)).finish == "length"


def test_closing_the_stream_stops_the_engine(either: LocalProvider) -> None:
    # Both slots are taken by answers that would take most of a minute; the next request waits for neither.
    streams = [either.stream(request("Count up.", schema=LONG, max_tokens=3000)) for _ in range(2)]
    for stream in streams:
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert either.complete(request(max_tokens=4)).usage.output == 4


async def test_cancelling_stops_the_engine(either: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    either.warm()
    (engine,) = either._engines.loaded().values()
    generated = events_of(engine, monkeypatch)
    long = request("Count up.", schema=LONG, max_tokens=3000)
    tasks = [asyncio.create_task(either.complete_async(long)) for _ in range(2)]
    assert await until_async(lambda: generated)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert (await asyncio.wait_for(either.complete_async(request(max_tokens=4)), 20)).finish == "length"


def test_plain_text_needs_no_schema(either: LocalProvider) -> None:
    asked = ModelRequest("", (Message.user("Say hi."),), max_tokens=12, sampling=Sampling(temperature=0, seed=1))
    assert either.complete(asked).text.strip()


def test_json_mode_gives_an_object(either: LocalProvider) -> None:
    asked = ModelRequest("", (Message.user("Ada is 36\nReply in JSON."),), json_mode=True, max_tokens=200)
    assert isinstance(json.loads(either.complete(asked).text), dict)


def test_a_prompt_over_the_context_is_refused_with_the_reason(either: LocalProvider) -> None:
    with pytest.raises(UpstreamRequestError, match=r"too long.*\d{4,} tokens.*4096 tokens"):
        either.complete(request("word " * 9000))
    with pytest.raises(UpstreamRequestError, match="too long"):
        list(either.stream(request("word " * 9000)))


@pytest.mark.covers("S0-56")
def test_what_a_text_model_cannot_read_is_refused(either: LocalProvider) -> None:
    image = Message("user", (Media("image", url="data:,"),))
    with pytest.raises(RequestError, match=r"text only.*\(image\)"):
        either.complete(request().replace(messages=(image,)))
    shown = Message("tool", (ToolResult("1", (Media("image", url="data:,"),)),))
    with pytest.raises(RequestError, match="text only"):
        either.complete(request().replace(messages=(shown,)))


@pytest.mark.parametrize("kind", [LlamaEngine, WorkerEngine])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "not.gguf").write_bytes(b"nothing")
    with pytest.raises(LocalModelError, match="could not load"):
        kind(tmp_path / "not.gguf").warm()


def test_any_gguf_file_answers(local: LocalProvider) -> None:
    path = find(SMOLLM2)
    assert path
    assert local.serves(str(path))
    with contextlib.closing(LocalProvider()) as provider:
        answer = provider.complete(request().replace(model=str(path)))
    assert json.loads(answer.text) == {"name": "Ada", "age": 36}


def test_names_that_are_no_model_are_refused_with_what_there_is(local: LocalProvider) -> None:
    with pytest.raises(UnknownModelError, match="smollm2-135m"):
        local.complete(request().replace(model="gpt-9"))
    with pytest.raises(LocalModelError, match="model file does not exist"):
        local.complete(request().replace(model="nowhere/model.gguf"))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "multipleOf": 7, "minimum": 30, "maximum": 99}, "Pick a number."),
        ({"type": "number", "minimum": 50.5, "maximum": 51}, "Pick a number."),
        ({"type": "string", "format": "ipv4"}, "Give an address."),
        ({"type": "string", "pattern": "zq", "maxLength": 8}, "Say something."),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"enum": ["x", "y"]}}}, "Pick one."),
    ],
)
def test_the_engine_decodes_under_llguidance_and_not_its_own_grammar(
    either: LocalProvider, schema: dict[str, Any], words: str
) -> None:
    """A contract with the engine: its own converter ignores each of these keywords."""
    answer = json.loads(either.complete(request(words, schema=schema)).text)
    assert Schema[object]("answer", schema).validate(answer) == []


@pytest.mark.parametrize("choice", ["required", NamedTool("get_weather")])
def test_a_tool_that_must_be_called_is_called_with_arguments_that_fit(either: LocalProvider, choice: Any) -> None:
    asked = ModelRequest("", (Message.user("How is the weather in Paris?"),), tools=(WEATHER,), tool_choice=choice)
    answer = either.complete(asked)
    (call,) = answer.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert call.id
    assert (answer.finish, answer.text) == ("tool_calls", "")


def test_a_streamed_call_comes_in_pieces(either: LocalProvider) -> None:
    asked = ModelRequest("", (Message.user("Add 2 and 3."),), tools=(WEATHER, ADD), tool_choice=NamedTool("add"))
    chunks = list(either.stream(asked))
    deltas = [delta for chunk in chunks for delta in chunk.tool_calls]
    assert deltas[0].name == "add"
    assert len(deltas) > 3
    assert set(json.loads("".join(delta.arguments for delta in deltas))) <= {"a", "b"}
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["tool_calls"]


def test_a_tool_that_may_be_called_leaves_room_for_text(either: LocalProvider) -> None:
    call = ToolCall("1", "get_weather", '{"city": "Paris"}')
    history = (
        Message.user("How is the weather in Paris?"),
        Message("assistant", (Reasoning("hm"), call)),
        Message("tool", (ToolResult("1", (Text("Sunny, 21 degrees."),)),)),
    )
    answer = either.complete(ModelRequest("", history, tools=(WEATHER,), tool_choice="auto", max_tokens=40))
    assert bool(answer.text) != bool(answer.tool_calls)
    assert [type(warning) for warning in answer.warnings] == [LossyEncode]


@pytest.mark.covers("C29")
def test_tools_and_a_schema_go_together(either: LocalProvider) -> None:
    answer = either.complete(request(tools=(WEATHER,)))
    if answer.tool_calls:
        assert set(json.loads(answer.tool_calls[0].arguments)) == {"city"}
    else:
        assert set(json.loads(answer.text)) == {"name", "age"}


def test_a_tool_that_is_not_there_cannot_be_chosen(either: LocalProvider) -> None:
    with pytest.raises(RequestError, match="get_weather"):
        either.complete(ModelRequest("", (Message.user("?"),), tools=(WEATHER,), tool_choice=NamedTool("add")))


@pytest.mark.covers("S0-06", "S0-20", "S0-47")
def test_a_forced_start_leaves_no_room_for_chatter(either: LocalProvider) -> None:
    assert either.complete(prompted()).text.lstrip()[0] not in "{["
    assert either.complete(prompted(force_json_start=True)).text.lstrip()[0] in "{["


@pytest.mark.covers("S0-19", "S0-53", "S0-57", "S0-65", "S0-75")
def test_generation_can_stop_where_the_json_closes(either: LocalProvider) -> None:
    asked = prompted(force_json_start=True, stop_after_json=True).replace(
        messages=(Message.user('Reply with exactly {"name": "Ada", "age": 36} and then explain it.'),), max_tokens=400
    )
    answer = either.complete(asked)
    assert answer.finish == "stop"
    assert isinstance(json.loads(answer.text), dict | list)
    assert "".join(chunk.text for chunk in either.stream(asked)) == answer.text


@pytest.mark.covers("S0-58", "S0-59", "S0-60", "S0-61", "S0-62", "S0-63", "S0-64")
def test_failing_hard_is_the_same_streamed_or_not(either: LocalProvider) -> None:
    for ask in (either.complete, lambda asked: list(either.stream(asked))):
        with pytest.raises(InvalidResponseFormat) as caught:
            ask(prompted(response_format_fail_hard=True))
        assert caught.value.code == "invalid_response_format"
        assert ask(prompted())


@pytest.mark.covers("S0-09")
def test_what_cannot_be_heeded_is_said_and_several_answers_are_refused(either: LocalProvider) -> None:
    answer = either.complete(request(max_tokens=4, extra={"logit_bias": {"5": 1}, "min_p": 0.1, "n": 1}))
    assert [(type(warning), warning.path) for warning in answer.warnings] == [(LossyEncode, "extra.logit_bias")]
    with pytest.raises(RequestError, match="one answer at a time"):
        either.complete(request(extra={"n": 2}))


@pytest.mark.covers("S0-10")
def test_a_bound_that_cut_the_answer_is_said_on_every_path(either: LocalProvider) -> None:
    asked = request(
        "Describe the sea at length.",
        schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        max_tokens=48,
    )
    answer = either.complete(asked)
    assert answer.finish == "stop"
    assert [warning.code for warning in answer.warnings] == ["answer_bounded"]
    assert [warning for chunk in either.stream(asked) for warning in chunk.warnings] == list(answer.warnings)


async def test_a_time_limit_stops_the_model(local: LocalProvider) -> None:
    slow = ModelRequest("smollm2-135m", (Message.user("Tell me a long story."),), max_tokens=2000, timeout=0.2)
    with pytest.raises(UpstreamTimeout, match="time limit"):
        local.complete(slow)
    with pytest.raises(UpstreamTimeout, match="time limit"):
        await local.complete_async(slow)


class _Slow:
    """A model that writes until it is told to stop."""

    def __init__(self) -> None:
        self.writes = threading.Event()
        self.has_ended = False

    def handle_chat_completions(self, body: Any, forward: Callable[[Any], bool]) -> None:
        assert body["stream"]
        while not forward({"choices": []}):
            self.writes.set()
        self.has_ended = True


def test_a_short_request_does_not_wait_for_long_ones() -> None:
    model, chunks, short = _Slow(), SimpleQueue[Any](), SimpleQueue[Any]()
    slots = EngineSlots(model, 1, 1)
    for _ in range(3):
        slots.start(GenerationJob({}, chunks.put))
    slots.start(GenerationJob({IS_SHORT: True}, short.put))
    assert short.get(timeout=10) == {"choices": []}
    slots.close()


@pytest.mark.parametrize(
    ("is_short", "fields"),
    [
        (True, {"max_tokens": 100}),
        (False, {"max_tokens": 900}),
        (False, {}),
        (True, {"response_format": ResponseFormat.strict(Schema.of(PERSON).spec)}),
        (False, {"response_format": ResponseFormat.strict(Schema.of({"type": "array"}).spec)}),
        (False, {"max_tokens": 100, "messages": (Message.user("word " * 2_000),)}),
    ],
)
def test_requests_are_short_by_their_limit_or_their_schema(is_short: bool, fields: dict[str, Any]) -> None:
    request = ModelRequest("smollm2-135m", (Message.user("Who is Ada?"),)).replace(**fields)
    assert (IS_SHORT in prepare(request, Guard(), None).body) is is_short


@pytest.mark.covers("S0-02")
def test_closing_an_engine_stops_its_generations_and_waits_for_their_threads() -> None:
    """A thread inside the engine when the interpreter ends would abort the program."""
    others = set(threading.enumerate())  # other engines of this process
    model, chunks = _Slow(), SimpleQueue[Any]()
    slots = EngineSlots(model, 2)
    slots.start(GenerationJob({}, chunks.put))
    assert model.writes.wait(10)
    slots.close()
    assert model.has_ended
    assert set(threading.enumerate()) <= others
    slots.start(GenerationJob({}, chunks.put))  # is told that the model has gone
