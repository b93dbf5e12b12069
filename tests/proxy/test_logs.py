"""Log lines: figures and names in, words and keys out."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import logging
import re
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform import AsyncClient, Budget, Client, Options
from slipform.addons.server import App
from slipform.addons.server.observability.call_record import CallRecord
from slipform.addons.server.observability.logs import LogFormatter, log_request, redact, set_up
from slipform.config import ServerSettings, Settings
from slipform.engine.setup import options_of
from slipform.engine.tracing import pairs
from slipform.errors import UpstreamError
from slipform.ir import ModelResponse, Usage
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import PERSON, examples
from tests.proxy.asgi import post
from tests.waiting import until_async

ASK: dict[str, Any] = {"model": "fake/m", "messages": [{"role": "user", "content": "my private words"}]}
WANTED = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
GOOD = ModelResponse(text='{"name": "Grace", "age": 36}', usage=Usage(input=7, output=5))
Start = Callable[[Literal["text", "json", "off"]], io.StringIO]


class Written(io.StringIO):
    """What was logged, with what is still gathered."""

    def getvalue(self) -> str:
        for handler in logging.getLogger().handlers:
            handler.flush()
        return super().getvalue()


@pytest.fixture
def logging_to() -> Iterator[Start]:
    """Sets the process's logging up, and puts it back as it was."""
    root = logging.getLogger()
    names = ("slipform", "slipform.calls", "slipform.requests")
    before = list(root.handlers), root.level, [logging.getLogger(name).level for name in names]

    def start(style: Literal["text", "json", "off"]) -> io.StringIO:
        stream = Written()
        set_up(style, secrets=["hunter2hunter2"], stream=stream)
        return stream

    yield start
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for name, level in zip(names, before[2], strict=True):
        logging.getLogger(name).setLevel(level)


def app_for(*script: Any, traces: bool = False) -> App:
    router = Router({"fake": FakeModel(list(script), models=("m",))})
    client = AsyncClient(router=router, options=Options(budget=Budget(attempts=2)))
    return App(client, Settings(server=ServerSettings(debug_traces=traces)))


@pytest.mark.covers(
    "S1-43", "S1-44", "S1-45", "S1-46", "S1-47", "S1-48", "S1-49", "S1-50", "S1-51", "S1-52", "S2-11", "S2-12", "C32"
)
async def test_a_request_is_one_line_of_json_with_its_figures_and_without_its_words(logging_to: Start) -> None:
    stream = logging_to("json")
    app = app_for("no", GOOD)
    headers = {"x-request-id": "r-1", "authorization": "Bearer my-own-key-123"}
    await post(app, "/v1/chat/completions", {**ASK, "response_format": WANTED}, headers)
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    expected = {
        "id": "r-1",
        "api": "openai-chat",
        "model": "fake/m",
        "provider": "fake",
        "upstream_model": "m",
        "strategy": "prompted",
        "require_json": True,
        "use_response_schema": True,
        "schema": "person",
        "streaming": False,
        "attempts": 2,
        "repair_attempted": "yes",
        "input_tokens": 7,
        "output_tokens": 5,
        "status": 200,
        "outcome": "ok",
        "config": 1,
        "level": "info",
    }
    assert {name: said[name] for name in expected} == expected
    assert {"latency_ms", "overhead_ms", "first_byte_ms", "timeout", "time"} <= set(said)
    assert "private" not in line
    assert "Grace" not in line
    assert "my-own-key" not in line


async def test_failures_and_streams_have_their_line_too(logging_to: Start) -> None:
    stream = logging_to("json")
    app = app_for(UpstreamError("down", status=500), GOOD, GOOD)
    await post(app, "/v1/chat/completions", {**ASK, "response_format": WANTED})
    await post(app, "/v1/chat/completions", {**ASK, "stream": True})
    await post(app, "/v1/chat/completions", b"{")
    failed, streamed, broken = map(json.loads, stream.getvalue().splitlines())
    assert (failed["status"], failed["outcome"], failed["upstream_status"]) == (502, "upstream_error", 500)
    assert (streamed["streaming"], streamed["outcome"], streamed["output_tokens"]) == (True, "ok", 5)
    assert (broken["status"], broken["outcome"]) == (400, "invalid_request")


async def test_text_lines_and_silence(logging_to: Start) -> None:
    stream = logging_to("text")
    await post(app_for(GOOD), "/v1/chat/completions", {**ASK, "model": "fake/m\nforged line"})
    (line,) = stream.getvalue().splitlines()
    assert " status=400 " in line
    stream = logging_to("off")
    await post(app_for(GOOD), "/v1/chat/completions", ASK)
    assert stream.getvalue() == ""
    logging.getLogger("slipform.server").error("broken")
    assert "broken" in stream.getvalue()


@pytest.mark.covers("S1-52", "S2-11")
@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    ("model", "identity"),
    [
        ("fake/m", ""),
        ("fake/m", "order-17"),
        ("fake/bearer sk-live-abcdefgh1234", ""),
        ("fake/m\r\nforged", ""),
        ("fake/hunter2hunter2", ""),
        ("fake/m", "sk-live-abcdefgh1234"),
        ("fake/m", "hunter2hunter2"),
    ],
)
def test_the_line_is_the_same_for_our_own_handler_alone_and_beside_others(
    logging_to: Start, monkeypatch: pytest.MonkeyPatch, style: Literal["text", "json"], model: str, identity: str
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.125)
    stream = logging_to(style)
    call = CallRecord(identity or "0" * 32, "openai-chat", not identity, model=model, provider="fake")
    call.usage = Usage(7, 5)
    call.ended, call.first_byte, call.status = call.started + 0.5, call.started + 0.25, 200
    log_request(call)
    other = logging.NullHandler()
    logging.getLogger("slipform").addHandler(other)
    log_request(call)
    logging.getLogger("slipform").removeHandler(other)
    alone, beside = stream.getvalue().splitlines()
    assert alone == beside
    assert "2023-11-14T22:13:20.125+00:00" in alone
    assert "abcdefgh1234" not in alone
    assert "hunter2" not in alone


@pytest.mark.parametrize("who", ["handler", "logger"])
def test_a_filter_is_heeded(logging_to: Start, who: str) -> None:
    stream = logging_to("text")
    filtered = logging.getLogger().handlers[0] if who == "handler" else logging.getLogger("slipform.requests")
    filtered.addFilter(_nothing)
    log_request(CallRecord("0" * 32))
    filtered.removeFilter(_nothing)
    assert stream.getvalue() == ""
    log_request(CallRecord("0" * 32))
    assert stream.getvalue()


def _nothing(record: logging.LogRecord) -> bool:
    return not record.name


@pytest.mark.covers("S2-12")
@pytest.mark.parametrize("traces", [False, True])
async def test_words_are_logged_only_when_asked_for(logging_to: Start, traces: bool) -> None:
    stream = logging_to("json")
    body = {**ASK, "messages": [{"role": "user", "content": "my private words, key sk-live-abcdefgh1234"}]}
    await post(app_for(GOOD, traces=traces), "/v1/chat/completions", body)
    text = stream.getvalue()
    assert ("private words" in text, "Grace" in text) == (traces, traces)
    assert "abcdefgh1234" not in text


@pytest.mark.covers("S1-52")
def test_keys_are_masked_wherever_they_stand(logging_to: Start) -> None:
    stream = logging_to("json")
    log = logging.getLogger("somebody.else")
    log.warning("GET https://example.test/v1?key=AIzaSyA-secret-1&x=1 %s", {"Authorization": "Bearer secret-2.abc"})
    log.warning("x-api-key: secret-3 sk-ant-secret-4-0123456789 hunter2hunter2")
    try:
        raise ValueError("api_key='secret-5'")
    except ValueError:
        log.exception("headers %r", [(b"x-goog-api-key", b"secret-6")])
    text = stream.getvalue()
    assert "secret" not in text
    assert "hunter2" not in text
    assert text.count("[redacted]") >= 6
    assert "example.test" in text


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=80), st.from_regex(r"sk-[A-Za-z0-9]{20,40}", fullmatch=True)
)
@settings(max_examples=examples(120), deadline=None)
def test_a_key_is_masked_whatever_stands_before_it(before: str, key: str) -> None:
    assert key not in redact(f"{before} {key} after")
    assert redact("plain words, nothing hidden") == "plain words, nothing hidden"


async def test_lines_of_requests_leave_together_and_others_at_once_after_them(logging_to: Start) -> None:
    stream = logging_to("text")
    writes: list[str] = []
    stream.write = writes.append  # type: ignore[assignment,method-assign]
    record = CallRecord("r1", api="openai-chat", status=200)
    log_request(record)
    log_request(record)
    assert writes == []
    assert await until_async(lambda: writes)
    (both,) = writes
    assert both.count("\n") == 2
    log_request(record)
    logging.getLogger("slipform.server").warning("attention")
    assert ["id=r1" in writes[1], "attention" in writes[2]] == [True, True]
    log_request(CallRecord("r2", outcome="timeout"))
    assert "id=r2" in writes[3]
    for _ in range(500):
        log_request(record)
    assert [len(each.splitlines()) for each in writes[4:]] == [500]


HOSTILE = 'a status=200 outcome=ok caller=admin "quoted" \x1b[2J\x9b1m\r\n\u2028\u202e\x00 end'


def fields_of(line: str) -> list[tuple[str, str]]:
    """The fields of a text line, as whoever splits it with a shell's rules sees them."""
    found = [each.partition("=") for each in shlex.split(line) if "=" in each]
    return [(name, value) for name, _, value in found]


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("place", ["model", "upstream_model", "caller", "schema", "provider"])
def test_no_name_can_pass_for_another_field_or_reach_the_terminal(
    logging_to: Start, style: Literal["text", "json"], place: str
) -> None:
    stream = logging_to(style)
    record = CallRecord("r", api="openai-chat", model="m", status=404, outcome="model_not_found")
    setattr(record, place, HOSTILE)
    log_request(record)
    written = stream.getvalue()
    (line,) = written.splitlines()
    assert line.isprintable()
    said = json.loads(line) if style == "json" else dict(fields_of(line))
    assert (str(said["status"]), said["outcome"]) == ("404", "model_not_found")
    if place != "caller":
        assert "caller" not in said
    if style == "text":
        assert len(fields_of(line)) == len({name for name, _ in fields_of(line)})


@pytest.mark.parametrize("style", ["text", "json"])
def test_messages_and_tracebacks_reach_no_terminal_either(logging_to: Start, style: Literal["text", "json"]) -> None:
    stream = logging_to(style)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("slipform.server").exception("it failed: %s", HOSTILE)
    assert all(line.isprintable() for line in stream.getvalue().rstrip("\n").split("\n"))


@pytest.mark.parametrize("style", ["text", "json"])
def test_every_field_and_message_of_a_line_is_cut(logging_to: Start, style: Literal["text", "json"]) -> None:
    stream = logging_to(style)
    fields = {"model": "m" * 100_000, "reason": "r " * 100_000}
    logging.getLogger("slipform.server").warning("w" * 100_000, extra={"slipform": fields})
    record = CallRecord("r", model="m" * 100_000, upstream_model="u" * 100_000, caller="c" * 100_000, status=200)
    log_request(record)
    assert max(map(len, stream.getvalue().splitlines())) < 10_000


@given(st.dictionaries(st.sampled_from("abc"), st.text(max_size=40), min_size=1))
def test_whatever_is_in_the_fields_each_is_read_back_under_its_own_name(fields: dict[str, str]) -> None:
    line = pairs(fields)
    assert line.isprintable()
    assert [name for name, _ in fields_of(line)] == list(fields)


def test_without_an_event_loop_or_after_its_end_no_line_is_lost(logging_to: Start) -> None:
    stream = logging_to("text")

    async def log() -> None:
        log_request(CallRecord("r1"))

    asyncio.run(log())
    asyncio.run(log())
    assert io.StringIO.getvalue(stream) == ""
    log_request(CallRecord("r2"))
    assert [line.split("id=")[1][:2] for line in io.StringIO.getvalue(stream).splitlines()] == ["r1", "r1", "r2"]


@pytest.mark.covers("S2-12")
async def test_traces_hold_every_attempt(logging_to: Start) -> None:
    stream = logging_to("json")
    router = Router({"fake": FakeModel(["no", GOOD], models=("m",))})
    settings = Settings(server=ServerSettings(debug_traces=True))
    options = dataclasses.replace(options_of(settings), budget=Budget(attempts=2))
    app = App(AsyncClient(router=router, options=options), settings)
    await post(app, "/v1/chat/completions", {**ASK, "response_format": WANTED})
    (trace,) = [json.loads(line) for line in stream.getvalue().splitlines() if '"asked"' in line]
    attempts = json.loads(trace["attempts"])
    assert [(each["outcome"], each["text"]) for each in attempts] == [("not_json", "no"), ("ok", GOOD.text)]
    assert "JSON" in attempts[1]["asked"]


async def test_the_line_of_a_request_names_its_warnings(logging_to: Start) -> None:
    stream = logging_to("json")
    await post(
        app_for('{"name": "A", "age": 1} {"name": "B", "age": 2}'),
        "/v1/chat/completions",
        {**ASK, "response_format": WANTED},
    )
    (line,) = stream.getvalue().splitlines()
    assert "several_candidates" in json.loads(line)["warnings"]


async def test_the_line_of_a_request_says_that_its_answer_was_repaired_or_patched(logging_to: Start) -> None:
    stream = logging_to("json")
    answers = ['{"name": "Ada", "age": 36}', "{'name': 'Ada', 'age': 36}", '{"name": "Ada", "age": "36"}']
    app = app_for(*answers, *answers)
    headers: list[str] = []
    for streaming in (False, True):
        for _ in answers:
            body = {**ASK, "response_format": WANTED, "stream": streaming}
            reply = await post(app, "/v1/chat/completions", body)
            if not streaming:
                flags = {reply.headers["x-slipform-repaired"], reply.headers["x-slipform-patched"]}
                headers.append("yes" if "true" in flags else "no")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert headers == ["no", "yes", "yes"]
    assert [line["repair_attempted"] for line in lines] == headers * 2


def test_the_line_of_a_librarys_call_has_every_field_once(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(router=Router({"fake": FakeModel(['{"a": 1}'], models=("m",))}))
    with caplog.at_level(logging.INFO, logger="slipform.calls"):
        client.ask({"type": "object"}, "go", model="fake/m")
    line = LogFormatter("text").format(caplog.records[0])
    names = re.findall(r" (\w+)=", line)
    assert "outcome" in names
    assert sorted(names) == sorted(set(names))
