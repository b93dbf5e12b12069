"""The calls of an agent's conversation are linked from call to call, in every API, and never across keys."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.genai import types as google_types

from slipform.addons.server import App
from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.console.conversations import link_calls, read_calls
from slipform.addons.server.console.history import CallHistory
from slipform.addons.server.observability.call_record import CallRecord, CallTrace
from slipform.config import Settings
from slipform.engine.setup import options_of
from slipform.ir import ModelRequest, ModelResponse, ToolCall
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor
from tests.conftest import serving
from tests.proxy.proxying import chat, keys_path
from tests.proxy.served import Served
from tests.proxy.test_console import cookie, read
from tests.sdk_clients import SdkClients

MODEL = "fake/m"
ARGUMENTS = {"city": "Paris", "days": 2}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "forecast", "parameters": CITY}}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def agent(request: ModelRequest) -> ModelResponse | str:
    """Call the tool first, then answer with what the conversation has so far."""
    last = request.messages[-1]
    if not request.tools or last.tool_results or len(request.messages) > 2:
        return f"  answer {len(request.messages)} "
    return ModelResponse(tool_calls=(ToolCall("call_7", "forecast", json.dumps(ARGUMENTS)),), finish="tool_calls")


@contextlib.contextmanager
def server(**options: Any) -> Iterator[str]:
    settings = Settings.model_validate({"default_model": MODEL, "server": {"traces": "on", **options}})
    router = Router({"fake": FakeModel(agent, models=["m"])})
    with serving(App(AsyncClient(router=router, options=options_of(settings)), settings)) as address:
        yield address


def talk_chat(sdks: SdkClients) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}]
    for said in (None, "And tomorrow?"):
        if said:
            messages.append({"role": "user", "content": said})
        answer = sdks.openai.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
        message = answer.choices[0].message
        messages.append(message)
        for each in message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": each.id, "content": "sunny"})
            answer = sdks.openai.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        messages[0] = {"role": "system", "content": "It is later now."}


def talk_chat_streamed(sdks: SdkClients) -> None:
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    for said in ("Shorter.", "And tomorrow?", None):
        with sdks.openai.chat.completions.stream(model=MODEL, messages=messages) as stream:
            text = stream.get_final_completion().choices[0].message.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": said}]


def talk_responses(sdks: SdkClients) -> None:
    items: list[Any] = [{"role": "user", "content": "Weather?"}]
    tools: Any = [{"type": "function", "name": "forecast", "parameters": CITY, "strict": False}]
    for result in ("sunny", None):
        answer = sdks.openai.responses.create(model=MODEL, input=items, tools=tools, store=False)
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        for item in answer.output:
            if item.type == "function_call":
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": result})
    items.append({"role": "user", "content": "And tomorrow?"})
    sdks.openai.responses.create(model=MODEL, input=items, tools=tools, store=False)


def talk_responses_by_id(sdks: SdkClients) -> None:
    before = None
    for said in ("Weather?", "Shorter.", "And tomorrow?"):
        before = sdks.openai.responses.create(model=MODEL, input=said, previous_response_id=before).id


def talk_responses_streamed_by_id(sdks: SdkClients) -> None:
    before: Any = None
    for said in ("Weather?", "Shorter.", "And tomorrow?"):
        with sdks.openai.responses.stream(model=MODEL, input=said, previous_response_id=before) as stream:
            before = stream.get_final_response().id


def talk_responses_in_a_conversation(sdks: SdkClients) -> None:
    conversation = sdks.openai.conversations.create().id
    for said in ("Weather?", "Shorter.", "And tomorrow?"):
        sdks.openai.responses.create(model=MODEL, input=said, conversation=conversation)


def talk_messages(sdks: SdkClients, *, stream: bool = False) -> None:
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    tools: Any = [{"name": "forecast", "input_schema": CITY}]
    for result in ("sunny", "And tomorrow?", None):
        request: Any = {"model": MODEL, "max_tokens": 99, "system": f"Reminder: {result}", "messages": messages}
        if stream:
            with sdks.anthropic.messages.stream(**request, tools=tools) as events:
                answer = events.get_final_message()
        else:
            answer = sdks.anthropic.messages.create(**request, tools=tools)
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": each.id, "content": result} for each in calls]
        marked = [{"type": "text", "text": str(result), "cache_control": {"type": "ephemeral"}}]
        messages.append({"role": "user", "content": results or marked})


def talk_messages_streamed(sdks: SdkClients) -> None:
    talk_messages(sdks, stream=True)


def talk_gemini(sdks: SdkClients) -> None:
    contents: list[Any] = [google_types.UserContent("Weather?")]
    declaration = google_types.FunctionDeclaration(name="forecast", parameters_json_schema=CITY)
    config = google_types.GenerateContentConfig(
        tools=[google_types.Tool(function_declarations=[declaration])],
        automatic_function_calling=google_types.AutomaticFunctionCallingConfig(disable=True),
    )
    for result in ("sunny", "And tomorrow?", None):
        answer = sdks.google.models.generate_content(model=MODEL, contents=contents, config=config)
        assert answer.candidates
        contents.append(answer.candidates[0].content)
        part = google_types.Part(text=str(result))
        if answer.function_calls:
            part = google_types.Part.from_function_response(name="forecast", response={"result": result})
        contents.append(google_types.UserContent(part))


def talk_gemini_streamed(sdks: SdkClients) -> None:
    chat_session = sdks.google.chats.create(model=MODEL)
    for said in ("Weather?", "Shorter.", "And tomorrow?"):
        assert "".join(chunk.text or "" for chunk in chat_session.send_message_stream(said))


def talk_ollama(sdks: SdkClients) -> None:
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    for result in ("sunny", "And tomorrow?", None):
        message = sdks.ollama.chat(model=MODEL, messages=messages, tools=[CHAT_TOOL]).message
        messages.append(message)
        role = "tool" if message.tool_calls else "user"
        messages.append({"role": role, "content": str(result), "tool_name": "forecast"})


def talk_ollama_streamed(sdks: SdkClients) -> None:
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    for said in ("Shorter.", "And tomorrow?", None):
        pieces = sdks.ollama.chat(model=MODEL, messages=messages, stream=True)
        messages.append({"role": "assistant", "content": "".join(each.message.content or "" for each in pieces)})
        messages.append({"role": "user", "content": said})


TALKS: list[Callable[[SdkClients], None]] = [
    talk_chat, talk_chat_streamed, talk_responses, talk_responses_by_id, talk_responses_streamed_by_id,
    talk_responses_in_a_conversation, talk_messages, talk_messages_streamed, talk_gemini, talk_gemini_streamed,
    talk_ollama, talk_ollama_streamed,
]  # fmt: skip


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.__name__.removeprefix("talk_"))
def test_the_calls_of_a_conversation_are_linked_in_their_order(talk: Callable[[SdkClients], None]) -> None:
    with server() as address:
        sdks = SdkClients(address)
        chat(address, response_format=None, messages=[{"role": "user", "content": "Something else"}])
        talk(sdks)
        sdks.close()
        session = cookie(address)
        rows = [row for row in read(address, "requests", session)["rows"] if row["model"]][::-1]
        places = read(address, "conversations", session)["places"]
        assert [places.get(row["id"]) for row in rows] == [None, [1, 3], [2, 3], [3, 3]]
        listed = read(address, f"conversations/{rows[2]['id']}", session)["calls"]
        assert [each["id"] for each in listed] == [row["id"] for row in rows[1:]]


def test_calls_of_another_key_are_never_linked(tmp_path: Path) -> None:
    keys = keys_path(tmp_path)
    ada = add_key(keys, "ada")[1]
    bob = add_key(keys, "bob")[1]
    operator = add_key(keys, "ops", operator=True)[1]
    opening: list[Any] = [{"role": "user", "content": "Hi"}]
    with server(keys_file=str(keys), console="on") as address:
        answer = chat(address, {"authorization": f"Bearer {ada}"}, response_format=None, messages=opening).json
        longer = [*opening, answer["choices"][0]["message"], {"role": "user", "content": "Go on"}]
        chat(address, {"authorization": f"Bearer {bob}"}, response_format=None, messages=longer)
        session = cookie(address, key=operator)
        assert read(address, "conversations", session) == {"places": {}}
        chat(address, {"authorization": f"Bearer {ada}"}, response_format=None, messages=longer)
        by_caller = {row["caller"]: row["id"] for row in read(address, "requests", session)["rows"]}
        places = read(address, "conversations", session)["places"]
        assert sorted(places.values()) == [[1, 2], [2, 2]]
        assert by_caller["bob"] not in places


@pytest.mark.skipif(not hasattr(os, "fork"), reason="several workers need fork")
def test_calls_that_different_workers_served_are_linked(started: Callable[..., Served], tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    with FakeVendor(["sunny"]) as vendor:
        served = started(vendor, workers=2, environment={"XDG_STATE_HOME": str(tmp_path)})
        address = f"http://{served.host}:{served.port}"
        session = cookie(address)
        served.wait_for(lambda: read(address, "me", session)["workers"] == {"count": 2, "reached": 2})
        for _ in range(10):  # each on a connection of its own, which the system gives to either worker
            answer = chat(address, model=MODEL, response_format=None, messages=messages).json
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        places = read(address, "conversations", session)["places"]
    assert sorted(places.values()) == [[number, 10] for number in range(1, 11)]


def test_two_conversations_with_the_same_first_question_stay_apart() -> None:
    answers = iter(["one", "two", "one again", "two again"])
    settings = Settings.model_validate({"default_model": MODEL, "server": {"traces": "on"}})
    router = Router({"fake": FakeModel(lambda _request: next(answers), models=["m"])})
    opening: list[Any] = [{"role": "user", "content": "Hi"}]
    with serving(App(AsyncClient(router=router, options=options_of(settings)), settings)) as address:
        first, second = (chat(address, response_format=None, messages=opening).json for _ in range(2))
        for answer in (first, second):
            longer = [*opening, answer["choices"][0]["message"], {"role": "user", "content": "Go on"}]
            chat(address, response_format=None, messages=longer)
        session = cookie(address)
        rows = read(address, "requests", session)["rows"][::-1]
        one, two = ({each["id"] for each in read(address, f"conversations/{rows[at]['id']}", session)["calls"]}
                    for at in (0, 1))  # fmt: skip
    assert one == {rows[0]["id"], rows[2]["id"]}
    assert two == {rows[1]["id"], rows[3]["id"]}


def end_call(history: CallHistory, request: Any, response: bytes, **fields: Any) -> str:
    """Let a recorded call begin and end; return its id."""
    trace = CallTrace()
    trace.request = json.dumps(request).encode()
    trace.response = response
    record = CallRecord("r", **{"api": "openai-chat", **fields})
    record.close()
    identity = history.begin(record)
    history.end(identity, record, trace)
    return identity


QUESTION = {"messages": [{"role": "user", "content": "Hi"}]}


DEEP_CALL = {"name": "f", "arguments": "[" * 400 + "]" * 400}
DEEP = {"messages": [*QUESTION["messages"], {"role": "assistant", "tool_calls": [{"id": "c", "function": DEEP_CALL}]}]}
"""A conversation with arguments that are nested more deeply than JSON is written."""


def follow_up(answer: str) -> dict[str, Any]:
    """A request that continues `QUESTION` after this answer."""
    turns = [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on"}]
    return {"messages": [*QUESTION["messages"], *turns]}


def answered(text: str) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}).encode()


def links(history: CallHistory) -> list[list[str]]:
    """The ids of each conversation, read as a page has them read."""
    history.conversations.keep(read_calls(history.conversations.unread()))
    return [[each["id"] for each in conversation] for conversation in link_calls(history.conversations.calls())]


@pytest.mark.parametrize(
    ("response", "fields"),
    [
        (answered("long " * 20)[:40], {}),
        (b'data: {"choices": [{"delta": {"content": "lo', {"stream": True}),
        (b"", {"outcome": "client_gone"}),
    ],
    ids=["cut", "cut stream", "client gone"],
)
def test_an_answer_that_was_not_recorded_to_its_end_may_have_any_words(response: bytes, fields: dict[str, Any]) -> None:
    history = CallHistory(1 << 20, 1 << 20)
    first = end_call(history, QUESTION, response, **fields)
    second = end_call(history, follow_up("what the client has of it"), answered("more"))
    assert links(history) == [[first, second]]


@pytest.mark.parametrize(
    ("request_body", "fields"),
    [
        (QUESTION, {"outcome": "upstream_error", "status": 502}),
        ({"prompt": "Hi"}, {"api": "openai-completions"}),
        ({"messages": "Hi"}, {}),
        (["Hi"], {}),
        (DEEP, {}),
    ],
    ids=["failed", "one prompt", "no messages", "no object", "too deep"],
)
def test_calls_without_an_answer_or_messages_are_followed_by_none(request_body: Any, fields: dict[str, Any]) -> None:
    history = CallHistory(1 << 20, 1 << 20)
    end_call(history, request_body, answered("Hello"), **fields)
    end_call(history, follow_up("Hello"), answered("more"))
    assert links(history) == []


def test_a_call_between_that_was_not_recorded_is_skipped() -> None:
    history = CallHistory(1 << 20, 1 << 20)
    first = end_call(history, QUESTION, answered("Hello"))
    longer = follow_up("Hello")
    longer["messages"] += [{"role": "assistant", "content": "more"}, {"role": "user", "content": "And on"}]
    third = end_call(history, longer, answered("end"))
    assert links(history) == [[first, third]]


def test_the_words_of_linked_calls_are_not_needed_any_longer() -> None:
    history = CallHistory(1 << 20, 10_000)
    first = end_call(history, QUESTION, answered("Hello"))
    assert links(history) == []
    end_call(history, {"messages": [{"role": "user", "content": "Something else"}]}, answered("Hello"))
    second = end_call(history, follow_up("Hello"), answered("more"))
    found = history.find(first)
    assert found is not None
    assert found["trace"] is None
    assert links(history) == [[first, second]]


def test_only_the_last_calls_are_linked_and_none_after_a_clear() -> None:
    history = CallHistory(1 << 26, 1 << 26)
    for number in range(2_001):
        end_call(history, {"messages": [{"role": "user", "content": f"Hi {number}"}]}, answered("Hello"))
    links(history)
    assert len(history.conversations.calls()) == 2_000
    history.clear()
    assert history.conversations.calls() == []


def test_a_call_without_recorded_words_leaves_nothing_to_link() -> None:
    history = CallHistory(1 << 20, 1 << 20)
    record = CallRecord("r", api="openai-chat")
    history.end(history.begin(record), record)
    assert history.conversations.unread() == {}
