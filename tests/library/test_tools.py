"""Conversations with tools: what is run, told and bounded, whole and streamed, blocking and on event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from slipform import (
    AsyncClient,
    Budget,
    CallDelta,
    Client,
    ConfigError,
    Message,
    ModelRequest,
    ModelResponse,
    Options,
    Partial,
    Result,
    SchemaError,
    SchemaViolationError,
    TextDelta,
    Tool,
    ToolCall,
    ToolLoopError,
    ToolRun,
    Usage,
    image,
    testing,
)
from slipform.errors import UpstreamError
from slipform.ir import Reasoning, ToolResult
from slipform.library.stream_session import Restart
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor, Interrupted, Turn
from slipform.testing.wire_formats import Api


class Trip(BaseModel):
    city: str
    sunny: bool


TRIP = '{"city": "Rome", "sunny": true}'


def forecast(city: str, days: int = 1) -> dict[str, Any]:
    """Forecast the weather.

    Args:
        city: Name of the city.
        days: How many days ahead.
    """
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "days": days, "sky": "clear"}


async def population(city: str) -> int:
    """Count who lives in a city."""
    await asyncio.sleep(0)
    return len(city)


def calling(*calls: tuple[str, str], text: str = "") -> ModelResponse:
    return testing.calling(*calls, text=text).replace(usage=Usage(input=5, output=5))


def told(request: ModelRequest) -> list[tuple[str, bool]]:
    """The results that a request sends back to the model."""
    return [
        (part.parts[0].text, part.is_error)  # type: ignore[union-attr]
        for message in request.messages
        for part in message.parts
        if isinstance(part, ToolResult)
    ]


Asked = Callable[..., Result[Trip]]


def whole(router: Router, **given: Any) -> Result[Trip]:
    return Client("fake/m", router=router).ask_full(Trip, "Where is it sunny?", **given)


def streamed(router: Router, **given: Any) -> Result[Trip]:
    with Client("fake/m", router=router).stream(Trip, "Where is it sunny?", **given) as stream:
        return stream.result


def awaited(router: Router, **given: Any) -> Result[Trip]:
    return asyncio.run(AsyncClient("fake/m", router=router).ask_full(Trip, "Where is it sunny?", **given))


def awaited_stream(router: Router, **given: Any) -> Result[Trip]:
    async def read() -> Result[Trip]:
        async with AsyncClient("fake/m", router=router).stream(Trip, "Where is it sunny?", **given) as stream:
            return await stream.result()

    return asyncio.run(read())


FACES = [whole, streamed, awaited, awaited_stream]


@dataclass(frozen=True)
class Situation:
    """A script of the model, what the tools are told to do, and what comes of it."""

    script: Sequence[Turn]
    results: Sequence[tuple[str, bool]] = ()
    """What the model is told in the last request, and whether as an error."""
    runs: Sequence[str] = ()
    error: type[Exception] | None = None
    given: dict[str, Any] | None = None


def refuse(call: ToolCall) -> bool:
    return bool(call.arguments_resolved["city"] != "Rome")


async def refuse_later(call: ToolCall) -> str | bool:
    return "the budget is for Oslo" if call.arguments_resolved["city"] == "Rome" else True


ROME = ("forecast", '{"city": "Rome"}')
OSLO = ("forecast", '{"city": "Oslo"}')
CLEAR = '{"city":"Rome","days":1,"sky":"clear"}'
SITUATIONS = {
    "no call": Situation([TRIP]),
    "one call": Situation([calling(ROME), TRIP], [(CLEAR, False)], ["forecast"]),
    "text, then a call": Situation([calling(ROME, text="One moment."), TRIP], [(CLEAR, False)], ["forecast"]),
    "a call of an async tool": Situation(
        [calling(("population", '{"city": "Rome"}')), TRIP], [("4", False)], ["population"]
    ),
    "two calls side by side": Situation(
        [calling(ROME, ("population", '{"city": "Rome"}')), TRIP],
        [(CLEAR, False), ("4", False)],
        ["forecast", "population"],
    ),
    "two steps": Situation(
        [calling(ROME), calling(("population", '{"city": "Oslo"}')), TRIP],
        [(CLEAR, False), ("4", False)],
        ["forecast", "population"],
    ),
    "arguments that are mended": Situation(
        [calling(("forecast", "{city: 'Rome', days: '2',}")), TRIP],
        [('{"city":"Rome","days":2,"sky":"clear"}', False)],
        ["forecast"],
    ),
    "arguments that are asked for again": Situation(
        [calling(("forecast", '{"days": 2}')), calling(ROME), TRIP], [(CLEAR, False)], ["forecast"]
    ),
    "two calls of which one is bad": Situation(
        [calling(ROME, ("forecast", "{}")), calling(ROME, OSLO), TRIP],
        [(CLEAR, False), (CLEAR.replace("Rome", "Oslo"), False)],
        ["forecast", "forecast"],
    ),
    "arguments that stay bad": Situation([calling(("forecast", "{}"))], error=SchemaViolationError),
    "one attempt only": Situation([calling(("forecast", "{}"))], error=SchemaViolationError, given={"max_attempts": 1}),
    "a tool that is not there": Situation(
        [calling(("forcast", '{"city": "Rome"}')), calling(ROME), TRIP], [(CLEAR, False)], ["forecast"]
    ),
    "a tool that raises": Situation(
        [calling(("forecast", '{"city": "Atlantis"}')), TRIP], [("LookupError: no such city", True)], ["forecast"]
    ),
    "one tool raises and the other does not": Situation(
        [calling(("forecast", '{"city": "Atlantis"}'), ROME), TRIP],
        [("LookupError: no such city", True), (CLEAR, False)],
        ["forecast", "forecast"],
    ),
    "a call that is not approved": Situation(
        [calling(ROME, OSLO), TRIP],
        [("Not run: the user did not approve this call.", True), (CLEAR.replace("Rome", "Oslo"), False)],
        ["forecast", "forecast"],
        given={"approve": refuse},
    ),
    "a call that is not approved, with a reason": Situation(
        [calling(ROME), TRIP],
        [("Not run: the budget is for Oslo.", True)],
        ["forecast"],
        given={"approve": refuse_later},
    ),
    "a loop without end": Situation([calling(ROME)], error=ToolLoopError, given={"max_steps": 4}),
    "tokens that are spent": Situation(
        [calling(ROME)], error=ToolLoopError, given={"options": Options(budget=Budget(tokens=25))}
    ),
    "an answer that is asked for again": Situation([calling(ROME), "Rome.", TRIP], [(CLEAR, False)], ["forecast"]),
    "a vendor that fails after a call": Situation(
        [calling(ROME), UpstreamError("down")], error=UpstreamError
    ),
}  # fmt: skip


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_conversation_with_tools(name: str, face: Asked) -> None:
    situation = SITUATIONS[name]
    model = FakeModel(list(situation.script))
    given = {"tools": [forecast, population], **(situation.given or {})}
    if situation.error is not None:
        with pytest.raises(situation.error) as caught:
            face(Router({"fake": model}), **given)
        answered = len(model.requests) - (situation.error is UpstreamError)
        assert len(caught.value.report.attempts) == answered  # type: ignore[attr-defined]
        return
    result = face(Router({"fake": model}), **given)
    assert result.value == Trip(city="Rome", sunny=True)
    results = told(model.requests[-1])
    assert results[len(results) - len(situation.results) :] == list(situation.results)
    assert [run.call.name for run in result.runs] == list(situation.runs)
    assert len(result.report.attempts) == len(model.requests)
    assert result.messages[-1].text == result.text


def test_the_events_of_a_stream_show_text_calls_results_partials_and_the_result() -> None:
    model = FakeModel([calling(ROME, text="One moment."), TRIP], chunk_size=6)
    with Client("fake/m", router=Router({"fake": model})).stream(Trip, "Where?", tools=[forecast]) as stream:
        events = list(stream.events())
    kinds = [type(event) for event in events]
    assert list(dict.fromkeys(kinds)) == [TextDelta, CallDelta, ToolRun, Partial, Result]
    grown = [event.arguments for event in events if isinstance(event, CallDelta)]
    assert grown == [{"city": "Ro"}, {"city": "Rome"}]
    assert stream.step == 2
    assert stream.result is events[-1]


async def test_an_async_stream_says_which_step_is_read() -> None:
    model = FakeModel([calling(ROME), TRIP])
    async with AsyncClient("fake/m", router=Router({"fake": model})).stream(Trip, "Where?", tools=[forecast]) as stream:
        assert stream.step == 1
        async for _ in stream.events():
            pass
        assert stream.step == 2


def test_a_call_that_is_asked_for_again_restarts_its_step() -> None:
    model = FakeModel([calling(("forecast", '{"town": "Rome"}')), calling(ROME), TRIP])
    with Client("fake/m", router=Router({"fake": model})).stream(Trip, "Where?", tools=[forecast]) as stream:
        events = list(stream.events())
    assert [event for event in events if isinstance(event, Restart)] == [Restart(attempt=2, step=1)]


def search(text: str, limit: Annotated[int, Field(le=20)] = 5, kind: Literal["web", "news"] = "web") -> str:
    """Search."""
    return f"{limit} {kind} results for {text}"


FAULTY = [
    ("search", '{"text": "bolts", "limit": "m', 'any", "kind": "web"}', {"text": "bolts"}),
    ("search", '{"text": "bolts", "limit": 99,', ' "kind": "web"}', {"text": "bolts"}),
    ("search", '{"text": "bolts", "kind": "m', 'aps"}', {"text": "bolts"}),
    ("search", '{"kind": "news", "text": [', '"bolts"]}', {"kind": "news"}),
    ("find", "", '{"text": "bolts"}', None),
]
"""A tool, its arguments up to the character after which they can become no valid call, the rest, what was shown."""


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
@pytest.mark.parametrize(("tool", "read", "unread", "certain"), FAULTY)
def test_a_streamed_call_stops_the_model_where_it_can_become_no_valid_call(
    tool: str, read: str, unread: str, certain: dict[str, Any] | None, blocking: bool
) -> None:
    error = UpstreamError("it was read on")
    broken = Interrupted(calling((tool, read + unread)), error, after=1 + len(read))
    model = FakeModel([broken, calling(("search", '{"text": "nuts", "limit": "7"}')), '"done"'], chunk_size=1)
    events: list[Any] = []

    async def awaited() -> None:
        client = AsyncClient("fake/m", router=Router({"fake": model}))
        async with client, client.stream(str, "Find it.", tools=[search]) as stream:
            events.extend([event async for event in stream.events()])

    if blocking:
        with Client("fake/m", router=Router({"fake": model})).stream(str, "Find it.", tools=[search]) as stream:
            events.extend(stream.events())
    else:
        asyncio.run(awaited())
    at = events.index(Restart(attempt=2, step=1))
    assert [event.arguments for event in events[:at]][-1:] == ([] if certain is None else [certain])
    ran = next(event for event in events if isinstance(event, ToolRun))
    assert ran.value == "7 web results for nuts"
    shown = [event for event in events[:-1] if isinstance(event, CallDelta)]
    assert shown[-1].arguments == ran.call.arguments_resolved == {"text": "nuts", "limit": 7}


def test_calls_of_one_step_run_at_the_same_time() -> None:
    together = threading.Barrier(8, timeout=20)

    def meet(number: int) -> int:
        together.wait()
        return number

    calls = calling(*(("meet", f'{{"number": {number}}}') for number in range(8)))
    for face in FACES:
        result = face(Router({"fake": FakeModel([calls, TRIP])}), tools=[meet])
        assert [run.value for run in result.runs] == list(range(8))


def test_a_blocking_call_runs_async_tools_inside_a_running_event_loop() -> None:
    async def notebook() -> Result[Trip]:
        return whole(
            Router({"fake": FakeModel([calling(("population", '{"city": "Rome"}')), TRIP])}), tools=[population]
        )

    assert asyncio.run(notebook()).runs[0].value == 4


def test_tools_that_take_longer_than_the_budget_end_the_conversation() -> None:
    async def sleepy() -> None:
        await asyncio.Event().wait()

    for face in FACES:
        with pytest.raises(ToolLoopError, match="budget of seconds"):
            face(Router({"fake": FakeModel([calling(("sleepy", "{}")), TRIP])}), tools=[sleepy], timeout=0.05)


def test_text_comes_out_of_a_conversation_too() -> None:
    def client() -> Client:
        return Client("fake/m", router=Router({"fake": FakeModel([calling(ROME), "Rome is sunny."])}))

    assert client().text("Where?", tools=[forecast]) == "Rome is sunny."
    twin = AsyncClient(router=client().router, model="fake/m")
    assert asyncio.run(twin.text("Where?", tools=[forecast])) == "Rome is sunny."


def test_a_model_that_could_not_answer_is_not_asked_in_the_next_step() -> None:
    down, good = FakeModel([UpstreamError("down")]), FakeModel([calling(ROME), TRIP])
    result = Client(["down/m", "good/m"], router=Router({"down": down, "good": good})).ask_full(
        Trip, "Where?", tools=[forecast]
    )
    assert (len(down.requests), len(good.requests), result.report.fallbacks) == (1, 2, 1)


def test_what_a_vendor_wants_back_unchanged_goes_back_with_the_mended_call() -> None:
    thought = Reasoning("hm", {"anthropic": {"signature": "REAL"}})
    call = ToolCall("call_1", "forecast", "{city: 'Rome'}")
    answer = ModelResponse(tool_calls=(call,), finish="tool_calls", parts=(thought, call))
    model = FakeModel([answer, TRIP])
    Client("fake/m", router=Router({"fake": model})).ask(Trip, "Where?", tools=[forecast])
    sent = next(message for message in model.requests[-1].messages if message.role == "assistant")
    assert sent.parts == (thought, ToolCall("call_1", "forecast", '{"city":"Rome"}'))


def test_a_conversation_goes_on_with_its_messages() -> None:
    model = FakeModel([calling(ROME), TRIP, '{"city": "Oslo", "sunny": false}'])
    client = Client("fake/m", router=Router({"fake": model}))
    first = client.ask_full(Trip, "Where?", tools=[forecast])
    assert client.ask(Trip, [*first.messages, "And where not?"]).city == "Oslo"
    assert [message.role for message in model.requests[-1].messages][1:] == [
        "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip


@pytest.mark.parametrize("api", ["openai", "openai-responses", "anthropic", "gemini"])
def test_every_api_carries_a_conversation(api: Api) -> None:
    vendor_name = {"openai": "openai-compatible"}.get(api, api)
    with FakeVendor([calling(ROME, text="One moment."), TRIP], api=api) as vendor:
        provider = HttpProvider(vendor_name, base_url=vendor.base_url, api_key="k")
        for face in FACES:
            result = face(Router({"fake": provider}), tools=[forecast], strategy="prompted")
            assert result.value.city == "Rome"
            vendor.requests.clear()


@pytest.mark.parametrize("strategy", ["native", "tool", "prompted"])
@pytest.mark.parametrize("api", ["openai", "openai-responses", "anthropic", "gemini"])
def test_every_channel_streams_a_conversation(api: Api, strategy: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = calling(("output", TRIP)) if strategy == "tool" else TRIP
    with FakeVendor([calling(ROME, text="One moment."), answer], api=api) as vendor:
        router = Router({"fake": HttpProvider(api, base_url=vendor.base_url, api_key="k")})
        given: Any = {"tools": [forecast], "strategy": strategy}
        with Client("fake/m", router=router).stream(Trip, "Where?", **given) as stream:
            kinds = [type(event) for event in stream.events()]
    assert list(dict.fromkeys(kinds)) == [TextDelta, CallDelta, ToolRun, Partial, Result]
    assert "schema ignored" not in caplog.text


def test_an_image_that_a_tool_returns_is_shown_to_the_model() -> None:
    def photo(city: str) -> list[Any]:
        return [f"This is {city}:", image(b"\x89PNG\r\n\x1a\n")]

    model = FakeModel([calling(("photo", '{"city": "Rome"}')), TRIP])
    Client("fake/m", router=Router({"fake": model})).ask(Trip, "Where?", tools=[photo])
    result = model.requests[-1].messages[-1].parts[0]
    assert isinstance(result, ToolResult)
    assert [type(part).__name__ for part in result.parts] == ["Text", "Media"]


def untyped(city):  # type: ignore[no-untyped-def]
    return city


def starred(*cities: str) -> None: ...


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"tools": forecast}, ConfigError, "list of functions"),
        ({"tools": [forecast, forecast]}, ConfigError, "Two tools are called 'forecast'"),
        ({"tools": [Tool("search", {"type": "object"})]}, ConfigError, "'search' has no function"),
        ({"tools": [untyped]}, SchemaError, "parameter 'city' of the tool 'untyped' has no type"),
        ({"tools": [starred]}, SchemaError, "cities"),
        ({"tools": [lambda: None]}, SchemaError, "not a name for a tool"),
        ({"tools": [3]}, SchemaError, "made of a function"),
        ({"tools": [forecast], "max_steps": 0}, ConfigError, "max_steps"),
        ({"tools": [forecast], "max_steps": "3"}, ConfigError, "max_steps"),
        ({"tools": [forecast], "approve": True}, ConfigError, "`approve` must be a function"),
        ({"approve": refuse}, TypeError, "`tools`"),
    ],
)
def test_a_mistake_with_tools_is_refused_before_anything_is_sent(
    given: dict[str, Any], error: type[Exception], says: str
) -> None:
    model = FakeModel([TRIP])
    for face in FACES:
        with pytest.raises(error, match=says):
            face(Router({"fake": model}), **given)
    assert model.requests == []


def test_mistakes_of_the_caller_are_raised_and_not_told_to_the_model() -> None:
    def handle() -> object:
        return object()

    def yes(call: ToolCall) -> None:
        return None

    def router() -> Router:
        return Router({"fake": FakeModel([calling(("handle", "{}")), TRIP])})

    with pytest.raises(TypeError, match="'handle' returned a object, which cannot be written as JSON"):
        whole(router(), tools=[handle])
    with pytest.raises(TypeError, match="`approve` returned None"):
        whole(router(), tools=[handle], approve=yes)


def test_respond_is_for_who_drives_the_loop() -> None:
    tool = Tool.of(forecast)
    client = Client("fake/m", router=Router({"fake": FakeModel([calling(ROME), "It is sunny in Rome."])}))
    request = ModelRequest("fake/m", (Message.user("Where?"),), tools=(tool,))
    answer = client.respond(request).answer
    results = tuple(
        ToolRun(call, 1, tool.call(call.arguments_resolved)).result for call in answer.tool_calls
    )  # fmt: skip
    done = client.respond(request.replace(messages=(*request.messages, answer.message, Message("tool", results))))
    assert done.text == "It is sunny in Rome."
