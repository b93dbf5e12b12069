"""Every face asks alike: the same requests, the same value, the same report, the same error.

A face is a way to make an enforced call: the clients, their streams, `respond`, the proxy, `run`, `batch`, `wrap`. All
of them are driven by `engine.drive`. What cannot apply to a face is listed in `NOT_FOR`, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest

import slipform
from slipform.addons.batch.call import Adapter, resolved_models
from slipform.addons.server import App
from slipform.codecs import Capabilities, ServedRequest, find_api
from slipform.config import Settings, read_settings
from slipform.enforce import Budget, Guard, Outcome, Report, Switches
from slipform.engine.setup import Options
from slipform.errors import RequestError, SlipformError, UpstreamError, UpstreamRequestError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Usage
from slipform.ir.evidence import Evidence
from slipform.library.async_client import AsyncClient
from slipform.library.client import Client
from slipform.providers.router import Router
from slipform.runner import batch
from slipform.schema import ResponseFormat, Schema
from slipform.testing import FakeModel, Interrupted, Turn
from tests.conftest import PERSON
from tests.proxy.asgi import post

RAISING = read_settings("enforcement: {on_incomplete: raise}")
"""Refusals are errors on this face too, as they are in Python."""
PROMPT = "Ada is 36"
GOOD = '{"name":"Ada","age":36}'
ADA = {"name": "Ada", "age": 36}
NATIVE = Capabilities(native=True)
SCHEMA: Schema[Any] = Schema.of(PERSON)
SHAPE = ResponseFormat.strict(SCHEMA.spec)


@dataclass(frozen=True)
class Case:
    """What the models say under these options, and what becomes of it on every face."""

    script: Sequence[Turn]
    options: Options
    outcomes: tuple[str, ...]
    """The report's attempts."""
    value: Any = None
    error: str | None = None
    second: Sequence[Turn] = (GOOD,)
    """What the model `second/m` says."""
    asked: tuple[int, int] = (0, 0)
    """How many requests each of the two models gets; as many as there are outcomes, all to the first, if not given."""
    native: bool = True
    report: Mapping[str, Any] = field(default_factory=dict)
    """What else the report says."""


@dataclass
class Seen:
    """What a caller of some face got to see."""

    value: Any = None
    error: str | None = None
    report: Any = None
    """As a dictionary; None on faces that do not show it, or not with an error."""


@dataclass(frozen=True)
class Setting:
    """The models of one test, and how they are called."""

    models: Mapping[str, FakeModel]
    options: Options
    folder: Path
    model: str | list[str] = "fake/m"

    @property
    def router(self) -> Router:
        return Router(self.models, aliases={"listed": ["fake/m", "second/m"]}, default="fake/m")

    @property
    def name(self) -> str:
        """The model's name where there is place for one: an alias stands for the list."""
        return self.model if isinstance(self.model, str) else "listed"


def seen_of(work: Callable[[], tuple[Any, Report | None]]) -> Seen:
    try:
        value, report = work()
    except SlipformError as error:
        told = error.report if isinstance(error.report, Report) else None
        return Seen(error=error.code, report=told and told.to_dict())
    return Seen(value, report=report and report.to_dict())


def by_client(given: Setting) -> Seen:
    def work() -> tuple[Any, Report]:
        result = Client(given.model, router=given.router, options=given.options).ask_full(PERSON, PROMPT)
        return result.value, result.report

    return seen_of(work)


def by_async_client(given: Setting) -> Seen:
    async def work() -> tuple[Any, Report]:
        result = await AsyncClient(given.model, router=given.router, options=given.options).ask_full(PERSON, PROMPT)
        return result.value, result.report

    return seen_of(lambda: asyncio.run(work()))


def by_stream(given: Setting) -> Seen:
    def work() -> tuple[Any, Report]:
        with Client(given.model, router=given.router, options=given.options).stream(PERSON, PROMPT) as stream:
            return stream.result.value, stream.result.report

    return seen_of(work)


def by_async_stream(given: Setting) -> Seen:
    async def work() -> tuple[Any, Report]:
        client = AsyncClient(given.model, router=given.router, options=given.options)
        async with client.stream(PERSON, PROMPT) as stream:
            result = await stream.result()
            return result.value, result.report

    return seen_of(lambda: asyncio.run(work()))


def request(given: Setting) -> ModelRequest:
    return ModelRequest(given.name, (Message.user(PROMPT),), response_format=SHAPE)


def by_respond(given: Setting) -> Seen:
    def work() -> tuple[Any, Report]:
        outcome = Client(router=given.router, options=given.options).respond(request(given))
        return outcome.value, outcome.report

    return seen_of(work)


def by_async_respond(given: Setting) -> Seen:
    async def work() -> tuple[Any, Report]:
        outcome = await AsyncClient(router=given.router, options=given.options).respond(request(given))
        return outcome.value, outcome.report

    return seen_of(lambda: asyncio.run(work()))


def by_respond_stream(given: Setting) -> Seen:
    async def work() -> tuple[Any, Report]:
        client = AsyncClient(router=given.router, options=given.options)
        pieces = [piece async for piece in client.respond_stream(request(given), mode="buffer")]
        (outcome,) = [piece for piece in pieces if isinstance(piece, Outcome)]
        said = "".join(piece.text for piece in pieces if not isinstance(piece, Outcome))
        assert said == outcome.text
        return outcome.value, outcome.report

    return seen_of(lambda: asyncio.run(work()))


def through_proxy(given: Setting, *, stream: bool) -> Seen:
    async def work() -> Seen:
        app = App(AsyncClient(router=given.router, options=given.options), RAISING)
        body = {
            "model": given.model,
            "messages": [{"role": "user", "content": PROMPT}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": PERSON}},
            "stream": stream,
            "slipform": {"report": True, "stream_mode": "buffer"},
        }
        reply = await post(app, "/v1/chat/completions", body)
        if reply.status != 200:
            return Seen(error=reply.json()["error"]["code"])
        if not stream:
            told = reply.json()
            return Seen(_read(told["choices"][0]["message"]["content"]), report=told["slipform"])
        events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in event.get("choices", ())]
        said = "".join(choice["delta"].get("content") or "" for choice in choices)
        (report,) = [event["slipform"] for event in events if "slipform" in event]
        return Seen(_read(said), report=report)

    return asyncio.run(work())


def by_run(given: Setting) -> Seen:
    async def work() -> tuple[Any, None]:
        first, *others = resolved_models(given.router, given.model)
        adapter = Adapter(given.router, first, given.options, tuple(others))
        text = await adapter.invoke(instructions="Be brief.", payload=PROMPT, schema=SCHEMA, timeout=60)
        return _read(text), None

    return seen_of(lambda: asyncio.run(work()))


def by_batch(given: Setting) -> Seen:
    source, out = given.folder / "rows.jsonl", given.folder / "out.jsonl"
    source.write_text(json.dumps({"text": PROMPT}) + "\n")
    batch(
        source,
        schema=PERSON,
        out=out,
        prompt="{text}",
        model=given.model,
        settings=Settings(),
        options=given.options,
        router=given.router,
    )
    if done := out.read_text():
        return Seen(json.loads(done)["value"])
    failed = json.loads((given.folder / "out.jsonl.failures.jsonl").read_text())
    return Seen(error=failed["error"]["code"])


def _answered(given: Setting) -> Callable[[httpx2.Request], httpx2.Response]:
    """A vendor in the SDK's own process, with the script of `fake/m`."""
    api = find_api("openai-chat")

    def answer(sent: httpx2.Request) -> httpx2.Response:
        served: ServedRequest = api.decode_request(json.loads(sent.content))
        response = given.models["fake"].complete(served.request)
        whole = msgspec.structs.replace(response, id="chatcmpl-1", model="m")
        return httpx2.Response(200, content=api.encode_response(whole, served))

    return answer


WRAPPED: Any = {
    "model": "m",
    "messages": [{"role": "user", "content": PROMPT}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": PERSON}},
}


def by_wrap(given: Setting) -> Seen:
    def work() -> tuple[Any, Report | None]:
        with httpx2.Client(transport=httpx2.MockTransport(_answered(given))) as http:
            client = slipform.wrap(openai.OpenAI(api_key="-", http_client=http, max_retries=0), options=given.options)
            response: Any = client.chat.completions.create(**WRAPPED)
        return _read(response.choices[0].message.content), getattr(response, "slipform_report", None)

    return seen_of(work)


def by_async_wrap(given: Setting) -> Seen:
    async def work() -> tuple[Any, Report | None]:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(_answered(given))) as http:
            sdk = openai.AsyncOpenAI(api_key="-", http_client=http, max_retries=0)
            client = slipform.wrap(sdk, options=given.options)
            response: Any = await client.chat.completions.create(**WRAPPED)
        return _read(response.choices[0].message.content), getattr(response, "slipform_report", None)

    return seen_of(lambda: asyncio.run(work()))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


FACES: dict[str, Callable[[Setting], Seen]] = {
    "Client.ask": by_client,
    "AsyncClient.ask": by_async_client,
    "Client.stream": by_stream,
    "AsyncClient.stream": by_async_stream,
    "Client.respond": by_respond,
    "AsyncClient.respond": by_async_respond,
    "respond_stream": by_respond_stream,
    "proxy": lambda given: through_proxy(given, stream=False),
    "proxy stream": lambda given: through_proxy(given, stream=True),
    "run": by_run,
    "batch": by_batch,
    "wrap": by_wrap,
    "wrap async": by_async_wrap,
}
STREAMS = ("Client.stream", "AsyncClient.stream", "respond_stream", "proxy stream")
WRAPS = ("wrap", "wrap async")


def old_enough(value: Any) -> str | None:
    return None if value["age"] > 30 else "the age must be over 30"


YOUNG = '{"name":"Ada","age":3}'
COERCED = '{"name":"Ada","age":"36"}'
SPENT = Usage(input=10, output=10, total=20)
ONCE = Budget(attempts=1)
TWICE = Budget(attempts=2)

CASES: dict[str, Case] = {
    "good at once": Case([GOOD], Options(), ("ok",), ADA),
    "attempts": Case(["no", GOOD], Options(budget=TWICE), ("not_json", "ok"), ADA),
    "attempts spent": Case(["no", "no", GOOD], Options(budget=TWICE), ("not_json", "not_json"), error="not_json"),
    "seconds spent": Case(["no", GOOD], Options(budget=Budget(3, seconds=0)), ("not_json",), error="not_json"),
    "tokens spent": Case(
        [ModelResponse(text="no", usage=SPENT), GOOD],
        Options(budget=Budget(3, tokens=20)),
        ("not_json",),
        error="not_json",
    ),
    "calls spent": Case(["no", "no", GOOD], Options(budget=Budget(3, calls=2)), ("not_json",) * 2, error="not_json"),
    "stop after JSON": Case(
        [Interrupted(GOOD + " and more, and more", UpstreamError("read too far"), after=8)],
        Options(guard=Guard(stop_after_json=True)),
        ("ok",),
        ADA,
    ),
    "fail hard": Case(
        ["no"],
        Options(budget=ONCE, guard=Guard(response_format_fail_hard=True)),
        ("not_json",),
        error="invalid_response_format",
    ),
    "force JSON start": Case(
        [GOOD],
        Options(guard=Guard(force_json_start=True)),
        ("ok",),
        ADA,
        native=False,
        report={"warnings": ["force_json_start_ignored"]},
    ),
    "patched": Case([COERCED], Options(), ("ok",), ADA, report={"patches": 1}),
    "not patched": Case(
        [COERCED],
        Options(budget=ONCE, switches=Switches(coerce=False)),
        ("schema_violation",),
        error="schema_violation",
    ),
    "validators": Case(
        [YOUNG, GOOD], Options(budget=TWICE, validators=(old_enough,)), ("schema_violation", "ok"), ADA
    ),
    "must be grounded": Case(
        ['{"name":"Eve","age":36}', GOOD],
        Options(budget=TWICE, evidence=Evidence(require_grounded=("/name",))),
        ("schema_violation", "ok"),
        ADA,
        report={"evidence": {"/name": (0, 3), "/age": (7, 9)}},
    ),
    "stays ungrounded": Case(
        ['{"name":"Eve","age":36}'],
        Options(budget=ONCE, evidence=Evidence(require_grounded=("/name",))),
        ("schema_violation",),
        error="schema_violation",
    ),
    "evidence": Case(
        [GOOD],
        Options(evidence=Evidence(source="by Ada, who is 36", confidence="logprobs")),
        ("ok",),
        ADA,
        report={"evidence": {"/name": (3, 6), "/age": (15, 17)}},
    ),
    "formatter": Case(
        ["Ada is 36"], Options(budget=TWICE, formatter="second/m"), ("not_json", "ok"), ADA, asked=(1, 1)
    ),
    "backoff": Case(["no", GOOD], Options(budget=TWICE, backoff_seconds=0.375), ("not_json", "ok"), ADA),
    "keep text": Case(
        [f"```json\n{GOOD}\n```"], Options(keep_text=True), ("ok",), ADA, report={"text": f"```json\n{GOOD}\n```"}
    ),
    "raw": Case(["no"], Options(budget=ONCE, on_failure="raw"), ("not_json",), "no", report={"warnings": ["not_json"]}),
    "reask in parts": Case(
        ['{"name":"Ada","age":"old"}', '{"$.age":36}'],
        Options(budget=TWICE, reask_scope="parts"),
        ("schema_violation", "ok"),
        ADA,
    ),
    "reask in full": Case(
        ['{"name":"Ada","age":"old"}', GOOD],
        Options(budget=TWICE, reask_scope="full"),
        ("schema_violation", "ok"),
        ADA,
    ),
    "vendor down": Case([UpstreamError("down")], Options(budget=TWICE), (), error="upstream_error", asked=(1, 0)),
}  # fmt: skip

NOT_FOR: dict[str, dict[str, str]] = {
    "stop after JSON": dict.fromkeys(WRAPS, "the SDK gives whole answers, so there is nothing to stop"),
    "force JSON start": dict.fromkeys(WRAPS, "the schema goes out as the SDK wrote it, never in the prompt"),
    "formatter": dict.fromkeys(WRAPS, "an SDK's client calls no other vendor"),
    "reask in parts": dict.fromkeys(WRAPS, "the SDK sends the caller's own schema with every call"),
    "vendor down": {
        **dict.fromkeys(WRAPS, "the SDK raises errors of its own"),
        "batch": "a row that the vendor fails is repeated by the scheduler, see runner/test_batch.py",
    },
}
PAIRS = [(face, case) for case in CASES for face in FACES if face not in NOT_FOR.get(case, {})]


def played(case: Case, face: str, folder: Path, model: str | list[str] = "fake/m") -> tuple[Seen, Setting]:
    capabilities = NATIVE if case.native else Capabilities()
    models = {
        "fake": FakeModel(case.script, capabilities=capabilities),
        "second": FakeModel(case.second, name="second", capabilities=capabilities),
    }
    given = Setting(models, case.options, folder, model)
    return FACES[face](given), given


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the driver paused; nobody waits for it."""
    pauses: list[float] = []
    really = asyncio.sleep

    async def sleep(seconds: float, *_: Any) -> None:
        pauses.append(seconds)
        await really(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def talk(asked: Sequence[ModelRequest]) -> list[list[tuple[str, str]]]:
    """What each request says, but for the system's words, of which `run` has some of its own."""
    return [[(each.role, each.text) for each in one.messages if each.role != "system"] for one in asked]


@pytest.mark.parametrize(("face", "name"), PAIRS)
def test_a_face_asks_and_tells_like_the_others(face: str, name: str, tmp_path: Path, slept: list[float]) -> None:
    case = CASES[name]
    seen, given = played(case, face, tmp_path)
    assert (seen.value, seen.error) == (case.value, case.error)
    expected = (len(case.outcomes), 0) if case.asked == (0, 0) else case.asked
    assert (len(given.models["fake"].requests), len(given.models["second"].requests)) == expected
    pauses = [each for each in slept if each == case.options.backoff_seconds]
    if case.options.backoff_seconds:
        assert len(pauses) == (0 if face in STREAMS else 1), "streams do not pause"
    if seen.report is not None:
        assert tuple(each["outcome"] for each in seen.report["attempts"]) == case.outcomes
        for pointer, (start, end) in case.report.get("evidence", {}).items():
            (span,) = seen.report["evidence"][pointer]["spans"]
            assert (span["start"], span["end"]) == (start, end)
        if "warnings" in case.report:
            assert [each["code"] for each in seen.report["warnings"]] == case.report["warnings"]
        if "patches" in case.report:
            assert len(seen.report["attempts"][-1]["patch"]) == case.report["patches"]
        assert seen.report["attempts"][-1:] == [] or seen.report["attempts"][-1].get("text") == case.report.get("text")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if len(case.outcomes) > 1])
def test_what_is_asked_again_is_the_same_on_every_face(name: str, tmp_path: Path, slept: list[float]) -> None:
    case = CASES[name]
    _, first = played(case, "Client.ask", tmp_path)
    for face in FACES:
        if face not in NOT_FOR.get(name, {}) and face != "Client.ask":
            folder = tmp_path / face
            folder.mkdir()
            _, given = played(case, face, folder)
            for model in ("fake", "second"):
                assert talk(given.models[model].requests) == talk(first.models[model].requests), face


REFUSED = ModelResponse(refusal="I will not", finish="refusal")
NO_MODEL = UpstreamRequestError("no such model", details={"category": "not_found"})

LISTS: dict[str, Case] = {
    "answers": Case([GOOD], Options(), ("ok",), ADA, asked=(1, 0)),
    "down": Case([UpstreamError("down")], Options(), ("ok",), ADA, asked=(1, 1)),
    "not found": Case([NO_MODEL], Options(), ("ok",), ADA, asked=(1, 1)),
    "invalid": Case(["no"], Options(budget=TWICE), ("not_json", "not_json", "ok"), ADA, asked=(2, 1)),
    "invalid, then down": Case(
        ["no"],
        Options(budget=ONCE),
        ("not_json",),
        error="upstream_error",
        second=[UpstreamError("down")],
        asked=(1, 1),
    ),
    "all invalid": Case(
        ["no"], Options(budget=ONCE), ("not_json", "not_json"), error="not_json", second=["no"], asked=(1, 1)
    ),
    "calls spent": Case(["no"], Options(budget=Budget(calls=1)), ("not_json",), error="not_json", asked=(1, 0)),
    "refuses": Case([REFUSED], Options(), ("refusal",), error="refusal", asked=(1, 0)),
    "bad request": Case(
        [UpstreamRequestError("too long")], Options(), (), error="upstream_rejected_request", asked=(1, 0)
    ),
    "our mistake": Case([RequestError("no such field")], Options(), (), error="invalid_request", asked=(1, 0)),
}
"""What the first model of a list does, and who is asked then."""

NO_LIST = dict.fromkeys(WRAPS, "an SDK's client calls one vendor")
NOT_LISTED = {
    "invalid, then down": {"batch": "a row that all vendors fail is repeated by the scheduler"},
}
LISTED = [
    (face, case) for case in LISTS for face in FACES if face not in NO_LIST and face not in NOT_LISTED.get(case, {})
]


@pytest.mark.parametrize(("face", "name"), LISTED)
def test_the_next_model_is_asked_alike_on_every_face(face: str, name: str, tmp_path: Path, slept: list[float]) -> None:
    case = LISTS[name]
    seen, given = played(case, face, tmp_path, ["fake/m", "second/m"])
    assert (seen.value, seen.error) == (case.value, case.error)
    assert (len(given.models["fake"].requests), len(given.models["second"].requests)) == case.asked
    if seen.report is not None and not face.startswith("proxy"):  # which tells of the answer's own attempts
        assert tuple(each["outcome"] for each in seen.report["attempts"]) == case.outcomes
        assert seen.report.get("fallbacks", 0) == case.asked[1]


class Silent(FakeModel):
    """A model that never answers."""

    asked: asyncio.Event

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        self.asked.set()
        never: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        return await never

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        yield CompletionChunk(text=(await self.complete_async(request)).text)


async def _whole(client: AsyncClient) -> None:
    await client.ask(PERSON, PROMPT)


async def _streamed(client: AsyncClient) -> None:
    async with client.stream(PERSON, PROMPT) as stream:
        await stream.result()


async def _responded(client: AsyncClient) -> None:
    request = ModelRequest("", (Message.user(PROMPT),), response_format=SHAPE)
    async with aclosing(client.respond_stream(request)) as pieces:
        async for _ in pieces:
            pass


async def _invoked(client: AsyncClient) -> None:
    await Adapter(client.router, "fake/m", Options()).invoke(instructions="Be brief.", payload=PROMPT, schema=SCHEMA)


@pytest.mark.parametrize("work", [_whole, _streamed, _responded, _invoked])
async def test_a_call_that_is_cancelled_is_logged_once_as_cancelled(
    work: Callable[[AsyncClient], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    model = Silent([GOOD], capabilities=NATIVE)
    model.asked = asyncio.Event()
    client = AsyncClient("fake/m", router=Router({"fake": model}, default="fake/m"))
    with caplog.at_level(logging.INFO, "slipform.calls"):
        task = asyncio.create_task(work(client))
        await model.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        logged = [each for each in caplog.records if each.name == "slipform.calls"]
    assert ["outcome=cancelled" in each.getMessage() for each in logged] == [True]
