"""The vendors' own SDKs, pointed at the proxy: any API in front, any vendor behind, whatever that vendor answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as google_errors
from google.genai import types as google_types
from pydantic import BaseModel

from slipform.addons.server import App
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Api, FakeVendor, Step, rate_limited, server_error
from tests.conftest import PERSON, serving


class Person(BaseModel):
    name: str
    age: int


ADA = {"name": "Ada", "age": 36}
WORDS: Any = [{"role": "user", "content": "Ada is 36"}]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
TEXT_FORMAT: Any = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
OUTPUT: Any = {"format": {"type": "json_schema", "schema": PERSON}}


@contextmanager
def proxied(
    script: list[Step], api: Api = "openai", row: str = "openai-compatible"
) -> Iterator[tuple[str, FakeVendor]]:
    """A proxy in front of a scripted vendor; gives its address and the vendor."""
    with FakeVendor(script, api=api) as vendor:
        provider = HttpProvider(row, base_url=vendor.base_url, api_key="the-upstream-key")
        router = Router({"up": provider}, aliases={"m": "up/m"}, default="m")
        client = AsyncClient(router=router, options=Options(budget=Budget(attempts=3)))
        with serving(App(client, Settings(default_model="m"))) as address:
            yield address, vendor


def chat_create(address: str) -> Any:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk:
        got = sdk.chat.completions.create(model="m", messages=WORDS, response_format=FORMAT)
    return json.loads(got.choices[0].message.content or "")


def chat_parse(address: str) -> Any:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk:
        got = sdk.chat.completions.parse(model="m", messages=WORDS, response_format=Person)
    assert got.choices[0].message.parsed is not None
    return got.choices[0].message.parsed.model_dump()


def chat_stream(address: str) -> Any:
    with (
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk,
        sdk.chat.completions.stream(model="m", messages=WORDS, response_format=Person) as stream,
    ):
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text
    assert final.choices[0].message.parsed is not None
    return final.choices[0].message.parsed.model_dump()


def responses_create(address: str) -> Any:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk:
        return json.loads(sdk.responses.create(model="m", input="Ada is 36", text=TEXT_FORMAT).output_text)


def responses_parse(address: str) -> Any:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk:
        got = sdk.responses.parse(model="m", input="Ada is 36", text_format=Person)
    assert got.output_parsed is not None
    return got.output_parsed.model_dump()


def responses_stream(address: str) -> Any:
    with (
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk,
        sdk.responses.stream(model="m", input="Ada is 36", text_format=Person) as stream,
    ):
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text
    assert final.output_parsed is not None
    return final.output_parsed.model_dump()


def messages_create(address: str) -> Any:
    with anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as sdk:
        got = sdk.messages.create(model="m", max_tokens=500, messages=WORDS, output_config=OUTPUT)
    return json.loads("".join(block.text for block in got.content if block.type == "text"))


def messages_stream(address: str) -> Any:
    with (
        anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as sdk,
        sdk.messages.stream(model="m", max_tokens=500, messages=WORDS, output_config=OUTPUT) as stream,
    ):
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn"
    return json.loads(text)


def _google(address: str) -> genai.Client:
    return genai.Client(api_key="k", http_options=google_types.HttpOptions(base_url=address))


_GOOGLE = google_types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=PERSON)


def gemini_create(address: str) -> Any:
    client = _google(address)
    try:
        return json.loads(client.models.generate_content(model="m", contents="Ada is 36", config=_GOOGLE).text or "")
    finally:
        client.close()


def gemini_stream(address: str) -> Any:
    client = _google(address)
    try:
        pieces = client.models.generate_content_stream(model="m", contents="Ada is 36", config=_GOOGLE)
        return json.loads("".join(piece.text or "" for piece in pieces))
    finally:
        client.close()


CALLS: list[Callable[[str], Any]] = [
    chat_create,
    chat_parse,
    chat_stream,
    responses_create,
    responses_parse,
    responses_stream,
    messages_create,
    messages_stream,
    gemini_create,
    gemini_stream,
]
VENDORS: list[tuple[Api, str]] = [("openai", "openai-compatible"), ("anthropic", "anthropic"), ("gemini", "gemini")]
BAD: dict[str, list[Step]] = {
    "fenced, chatty, mistyped, one key too many": [
        'Sure!\n```json\n{"name": "Ada", "age": "36", "note": "x"}\n```\nAnything else?'
    ],
    "broken first, then no JSON, then right": ['{"name": "Ada", "age":', "I do not know.", json.dumps(ADA)],
    "a rate limit and a fault on the way": [rate_limited(retry_after_ms=1), server_error(503), json.dumps(ADA)],
}


@pytest.mark.covers("S2-17", "S2-20", "S2-25", "S2-62", "S2-63", "C11")
@pytest.mark.parametrize(("api", "row"), VENDORS, ids=[row for _, row in VENDORS])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("script", BAD.values(), ids=BAD)
def test_every_sdk_gets_valid_json_from_a_vendor_that_misbehaves(
    call: Callable[[str], Any], api: Api, row: str, script: list[Step]
) -> None:
    with proxied(script, api, row) as (address, vendor):
        assert call(address) == ADA
    assert len(vendor.requests) == len(script)
    assert all("the-upstream-key" in str(received.headers) for received in vendor.requests)


@pytest.mark.local
@pytest.mark.xdist_group("local")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_every_sdk_gets_valid_json_from_the_embedded_model(call: Callable[[str], Any], embedded: str) -> None:
    assert call(embedded) == ADA


@pytest.fixture(scope="module")
def embedded(local: Any) -> Iterator[str]:
    router = Router({"local": local}, aliases={"m": f"local/{local.models()[0]}"}, default="m")
    with serving(App(AsyncClient(router=router), Settings(default_model="m"))) as address:
        yield address


@pytest.mark.covers("S2-66", "S2-67", "S2-68", "S2-69")
@pytest.mark.parametrize(
    "call", [chat_create, chat_stream, responses_create, responses_stream], ids=lambda call: call.__name__
)
def test_openais_sdk_raises_its_own_errors(call: Callable[[str], Any]) -> None:
    kind = openai.APIError if "stream" in call.__name__ else openai.UnprocessableEntityError  # once the status has left
    with proxied(['{"name": "Ada"}']) as (address, vendor), pytest.raises(kind, match="age"):
        call(address)
    assert len(vendor.requests) == 3
    with proxied([server_error(500)]) as (address, _), pytest.raises(openai.InternalServerError):
        call(address)


@pytest.mark.covers("S2-66", "S2-67")
@pytest.mark.parametrize("call", [messages_create, messages_stream], ids=lambda call: call.__name__)
def test_anthropics_sdk_raises_its_own_errors(call: Callable[[str], Any]) -> None:
    with proxied(['{"name": "Ada"}']) as (address, _), pytest.raises(anthropic.APIStatusError, match="age"):
        call(address)


@pytest.mark.covers("S2-66", "S2-67")
@pytest.mark.parametrize("call", [gemini_create, gemini_stream], ids=lambda call: call.__name__)
def test_googles_sdk_raises_its_own_errors(call: Callable[[str], Any]) -> None:
    with proxied(['{"name": "Ada"}']) as (address, _), pytest.raises(google_errors.ClientError, match="age"):
        call(address)


async def test_the_asynchronous_sdks_get_the_same() -> None:
    with proxied(next(iter(BAD.values()))) as (address, _):
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk:
            got = await sdk.chat.completions.create(model="m", messages=WORDS, response_format=FORMAT)
            assert json.loads(got.choices[0].message.content or "") == ADA
            pieces = await sdk.chat.completions.create(model="m", messages=WORDS, response_format=FORMAT, stream=True)
            text = "".join([piece.choices[0].delta.content or "" async for piece in pieces if piece.choices])
            assert json.loads(text) == ADA
        async with anthropic.AsyncAnthropic(base_url=address, api_key="k", max_retries=0) as claude:
            said = await claude.messages.create(model="m", max_tokens=500, messages=WORDS, output_config=OUTPUT)
            assert json.loads("".join(block.text for block in said.content if block.type == "text")) == ADA


TOOL: Any = {
    "type": "function",
    "function": {"name": "save", "description": "Saves a person", "parameters": PERSON, "strict": True},
}


@pytest.mark.covers("S2-17")
def test_arguments_of_a_strict_tool_are_mended_too() -> None:
    """C29, C30: the caller's own tools are held to their schemas."""
    from slipform.ir import ModelResponse, ToolCall

    spoilt = ModelResponse(
        tool_calls=(ToolCall("c1", "save", '{"name": "Ada", "age": "36", "note": 1}'),), finish="tool_calls"
    )
    with proxied([spoilt]) as (address, _), openai.OpenAI(base_url=f"{address}/v1", api_key="k") as sdk:
        got = sdk.chat.completions.create(model="m", messages=WORDS, tools=[TOOL])
        calls: Any = got.choices[0].message.tool_calls
        assert json.loads(calls[0].function.arguments) == ADA
        assert got.choices[0].finish_reason == "tool_calls"
