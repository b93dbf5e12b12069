"""Agents on thinking models get past their second turn, whatever API they speak: what the vendor signed comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types as google_types

from slipform.addons.server import App
from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.calls.signature_stores import MemorySignatures
from slipform.addons.server.calls.signed_turns import SignedTurns
from slipform.addons.server.observability.metrics import WorkerAddress
from slipform.config import Settings, Signatures
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.ir import Message, ModelRequest, ModelResponse, Part, Reasoning, Text, ToolCall
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import FakeVendor
from tests.conftest import serving
from tests.proxy.proxying import call
from tests.proxy.signing_vendors import ARGUMENTS, LAST, MENDED, VENDORS

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
QUESTION = "What will the weather be?"
RESULT = "rain"
_MOST_TURNS = 4


@contextmanager
def proxied(name: str, **settings: Any) -> Iterator[tuple[str, FakeVendor]]:
    vendor = VENDORS[name]
    with FakeVendor(vendor.answer, api=vendor.api) as fake:
        provider = HttpProvider(vendor.row, base_url=fake.base_url, api_key="k")
        router = Router({"up": provider}, aliases={"m": f"up/{vendor.model}"}, default="m")
        client = AsyncClient(router=router, options=Options(budget=Budget(attempts=2)))
        with serving(App(client, Settings(default_model="m", **settings))) as address:
            yield address, fake


def chat(address: str, arguments: Any, *, stream: bool, bare: bool = False) -> str:
    """An agent on Chat Completions; `bare`: it sends back no more of a turn than its types have."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"type": "function", "function": {"name": "forecast", "parameters": SCHEMA}}]
    asked: Any = {"model": "m", "messages": messages, "tools": tools, "reasoning_effort": "low"}
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk:
        for _ in range(_MOST_TURNS):
            if stream:
                with sdk.chat.completions.stream(**asked) as events:
                    for _event in events:
                        pass
                    message: Any = events.get_final_completion().choices[0].message
            else:
                message = sdk.chat.completions.create(**asked).choices[0].message
            if not message.tool_calls:
                return str(message.content)
            turn = message.model_dump(exclude_none=True, exclude={"parsed"})
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in message.tool_calls
            ]
            for call in turn["tool_calls"]:
                call["function"].pop("parsed_arguments", None)
                call.pop("index", None)
            messages.append({"role": "assistant", "content": message.content, "tool_calls": calls} if bare else turn)
            for call in message.tool_calls:
                assert json.loads(call.function.arguments) == arguments
                messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
    raise AssertionError("the loop does not end")


def bare_chat(address: str, arguments: Any, *, stream: bool) -> str:
    return chat(address, arguments, stream=stream, bare=True)


def responses(address: str, arguments: Any, *, stream: bool) -> str:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"type": "function", "name": "forecast", "parameters": SCHEMA, "strict": False}]
    asked: Any = {"model": "m", "input": items, "tools": tools, "store": False, "reasoning": {"effort": "low"}}
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk:
        for _ in range(_MOST_TURNS):
            if stream:
                with sdk.responses.stream(**asked) as events:
                    for _event in events:
                        pass
                    response: Any = events.get_final_response()
            else:
                response = sdk.responses.create(**asked)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            for item in response.output:
                items.append(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}))
            for call in calls:
                assert json.loads(call.arguments) == arguments
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
    raise AssertionError("the loop does not end")


def messages(address: str, arguments: Any, *, stream: bool) -> str:
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"name": "forecast", "input_schema": SCHEMA}]
    asked: Any = {"model": "m", "max_tokens": 4000, "messages": turns, "tools": tools}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 2000}
    with anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as sdk:
        for _ in range(_MOST_TURNS):
            if stream:
                with sdk.messages.stream(**asked) as events:
                    message: Any = events.get_final_message()
            else:
                message = sdk.messages.create(**asked)
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content if block.type == "text")
            turns.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
            assert [call.input for call in calls] == [arguments] * len(calls)
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in calls]
            turns.append({"role": "user", "content": results})
    raise AssertionError("the loop does not end")


def gemini(address: str, arguments: Any, *, stream: bool) -> str:
    contents: list[Any] = [google_types.Content(role="user", parts=[google_types.Part(text=QUESTION)])]
    declared = google_types.FunctionDeclaration(name="forecast", parameters_json_schema=SCHEMA)
    config = google_types.GenerateContentConfig(
        tools=[google_types.Tool(function_declarations=[declared])],
        automatic_function_calling=google_types.AutomaticFunctionCallingConfig(disable=True),
    )
    options = google_types.HttpOptions(base_url=address)
    with genai.Client(api_key="k", http_options=options) as sdk:
        for _ in range(_MOST_TURNS):
            if stream:
                chunks = sdk.models.generate_content_stream(model="m", contents=contents, config=config)
                parts = [part for chunk in chunks for part in _parts(chunk)]
            else:
                parts = _parts(sdk.models.generate_content(model="m", contents=contents, config=config))
            calls = [part.function_call for part in parts if part.function_call]
            if not calls:
                return "".join(part.text or "" for part in parts if not part.thought)
            contents.append(google_types.Content(role="model", parts=parts))
            assert [call.args for call in calls] == [arguments] * len(calls)
            results = [
                google_types.FunctionResponse(id=call.id, name=call.name, response={"output": RESULT}) for call in calls
            ]
            contents.append(
                google_types.Content(
                    role="user", parts=[google_types.Part(function_response=result) for result in results]
                )
            )
    raise AssertionError("the loop does not end")


def _parts(answer: Any) -> list[Any]:
    content = answer.candidates[0].content
    return list(content.parts or ()) if content else []


def warnings_of(address: str, path: str, body: Any) -> tuple[int, list[str]]:
    """The status of a call and what its report warns of."""
    got = call(address, path, {**body, "slipform": {"report": True}})
    data = json.loads(got.body)
    return got.status, [each["message"] for each in data.get("slipform", {}).get("warnings", ())]


CLIENTS = {"chat": chat, "bare chat": bare_chat, "responses": responses, "messages": messages, "gemini": gemini}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("vendor", VENDORS)
def test_an_agent_gets_past_its_second_turn(vendor: str, client: str, *, stream: bool) -> None:
    with proxied(vendor) as (address, fake):
        assert CLIENTS[client](address, MENDED, stream=stream) == LAST
    assert len(fake.requests) == 3


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("vendor", ["claude", "gemini", "responses"])
def test_so_does_one_whose_tools_nobody_enforces(vendor: str, client: str, *, stream: bool) -> None:
    with proxied(vendor, enforcement={"tools": "pass"}) as (address, fake):
        assert CLIENTS[client](address, ARGUMENTS, stream=stream) == LAST
    assert len(fake.requests) == 3


def _forgotten(call_id: str) -> Any:
    """A second turn on Responses, after a first one that nobody knows."""
    tools = [{"type": "function", "name": "forecast", "parameters": SCHEMA}]
    return {
        "model": "m",
        "tools": tools,
        "reasoning": {"effort": "low", "summary": "auto"},
        "input": [
            {"role": "user", "content": QUESTION},
            {"type": "function_call", "call_id": call_id, "name": "forecast", "arguments": json.dumps(MENDED)},
            {"type": "function_call_output", "call_id": call_id, "output": RESULT},
        ],
    }


def test_a_turn_that_is_not_known_goes_without_thinking_and_says_so() -> None:
    with proxied("claude on demand") as (address, fake):
        status, warned = warnings_of(address, "/v1/responses", _forgotten("toolu_1"))
    assert status == 200
    assert "thinking" not in fake.requests[0].json()
    assert any("What was thought in messages[1] is not known" in each for each in warned)


def test_a_call_to_gemini_whose_signature_is_not_known_says_so_in_googles_own_word() -> None:
    with proxied("gemini") as (address, fake):
        _, warned = warnings_of(address, "/v1/responses", _forgotten("call_x"))
    part = fake.requests[0].json()["contents"][1]["parts"][0]
    assert part["thoughtSignature"] == "skip_thought_signature_validator"
    assert any("The signature of this call is not known" in each for each in warned)


def test_another_callers_turn_is_not_restored(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    secrets = [add_key(keys, name)[1] for name in ("ada", "bob")]
    with proxied("claude on demand", server={"keys_file": str(keys)}) as (address, fake):
        answered = call(
            address,
            "/v1/responses",
            {**_forgotten(""), "input": QUESTION},
            {"x-api-key": secrets[0]},
        )
        (called,) = [item for item in json.loads(answered.body)["output"] if item["type"] == "function_call"]
        for secret in secrets:
            call(address, "/v1/responses", _forgotten(called["call_id"]), {"x-api-key": secret})
    own, others = (request.json()["messages"][1]["content"] for request in fake.requests[1:])
    assert [block["type"] for block in own] == ["thinking", "redacted_thinking", "tool_use"]
    assert [block["type"] for block in others] == ["tool_use"]


def test_workers_of_one_server_share_a_file(tmp_path: Path) -> None:
    with FakeVendor(VENDORS["claude"].answer, api="anthropic") as fake:
        apps = [_app(fake, WorkerAddress(index, 2, tmp_path)) for index in range(2)]
        with serving(apps[0]) as one, serving(apps[1]) as two:
            answered = call(one, "/v1/responses", {**_forgotten(""), "input": QUESTION})
            (called,) = [item for item in json.loads(answered.body)["output"] if item["type"] == "function_call"]
            assert call(two, "/v1/responses", _forgotten(called["call_id"])).status == 200


def _app(fake: FakeVendor, worker: WorkerAddress) -> App:
    provider = HttpProvider("anthropic", base_url=fake.base_url, api_key="k")
    router = Router({"up": provider}, aliases={"m": "up/claude-opus-5"}, default="m")
    return App(AsyncClient(router=router), Settings(default_model="m"), worker=worker)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_from_the_cache_is_as_signed_as_the_first(*, stream: bool) -> None:
    with proxied("claude", cache={"enabled": True}) as (address, fake):
        for _ in range(2):
            assert messages(address, MENDED, stream=stream) == LAST
    assert len(fake.requests) == 3


def _kept(*parts: Part) -> SignedTurns:
    turns = SignedTurns(MemorySignatures(Signatures()))
    calls = tuple(part for part in parts if isinstance(part, ToolCall))
    asyncio.run(turns.keep("ada", ModelResponse(tool_calls=calls, parts=parts)))
    return turns


def _restored(turns: SignedTurns, *messages: Message) -> list[tuple[Part, ...]]:
    request = ModelRequest("m", (Message.user("Look"), *messages), extra_for="openai-chat")
    return [message.parts for message in asyncio.run(turns.restored("ada", request)).messages[1:]]


FIRST = Reasoning("hm", {"anthropic": {"type": "thinking", "thinking": "hm", "signature": "c2ln"}})
SECOND = Reasoning("oh", {"anthropic": {"type": "thinking", "thinking": "oh", "signature": "b2g="}})
ONE, TWO = ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}", {"anthropic": {"caller": {"type": "direct"}}})


def test_calls_side_by_side_get_their_thinking_back_in_its_place() -> None:
    turns = _kept(FIRST, Text("Wait"), ONE, SECOND, TWO)
    sent = Message("assistant", (Text("Wait"), ONE, ToolCall("c2", "look", "{}")))
    assert _restored(turns, sent) == [(FIRST, Text("Wait"), ONE, SECOND, TWO)]


def test_a_turn_that_a_client_has_split_gets_its_thinking_once() -> None:
    turns = _kept(FIRST, ONE, TWO)
    split = [Message("assistant", (ONE,)), Message("assistant", (ToolCall("c2", "look", "{}"),))]
    assert _restored(turns, *split) == [(FIRST, ONE), (TWO,)]
    assert _restored(turns, split[1]) == [(FIRST, TWO)]


def test_what_cannot_be_read_is_not_known() -> None:
    turns = SignedTurns(store := MemorySignatures(Signatures()))
    asyncio.run(store.put("ada", {"c1": b'{"parts": [{"kind": "system", "text": "obey"}]}', "c2": b"\x00"}))
    sent = Message("assistant", (ONE, ToolCall("c2", "look", "{}")))
    assert _restored(turns, sent) == [sent.parts]
