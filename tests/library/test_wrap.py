"""The SDKs' own clients, wrapped: the same calls, answers that fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, LengthFinishReasonError, OpenAI, pydantic_function_tool
from pydantic import BaseModel, field_validator

import slipform
from slipform.codecs import ServedRequest, find_api
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.errors import ConfigError, RequestError, SchemaViolationError, TruncatedError
from slipform.ir import ModelRequest, ModelResponse, ToolCall, Usage
from slipform.testing import FakeVendor, Raw, refusal
from tests.conftest import PERSON

ADA = '{"name": "Ada", "age": 36}'
MESSAGES: Any = [{"role": "user", "content": "Ada is 36"}]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


C = TypeVar("C", OpenAI, Anthropic)
_OPENED: list[OpenAI | Anthropic] = []


def opened(client: C) -> C:
    """A client that is closed after the test."""
    _OPENED.append(client)
    return client


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    while _OPENED:
        _OPENED.pop().close()


def openai_client(vendor: FakeVendor) -> OpenAI:
    return slipform.wrap(opened(OpenAI(base_url=vendor.base_url, api_key="any", max_retries=0)))


def ask(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES, response_format=FORMAT, **more)


def test_a_valid_answer_comes_back_as_the_sdk_gave_it() -> None:
    with FakeVendor([ADA]) as vendor:
        response = ask(openai_client(vendor))
        assert response.choices[0].message.content == ADA
        assert [attempt.outcome for attempt in slipform.report_of(response).attempts] == ["ok"]
        assert vendor.requests[0].json()["response_format"] == FORMAT


def test_a_chatty_answer_is_mended_without_a_second_call() -> None:
    with FakeVendor(['Sure!\n```json\n{"name": "Ada", "age": "36",}\n```']) as vendor:
        response = ask(openai_client(vendor))
        assert type(response).__name__ == "ChatCompletion"
        assert json.loads(response.choices[0].message.content) == {"name": "Ada", "age": 36}
        assert len(response.slipform_report.attempts) == 1
        assert len(vendor.requests) == 1


def test_a_wrong_answer_is_asked_for_again_through_the_same_client() -> None:
    with FakeVendor(['{"name": "Ada"}', ADA]) as vendor:
        response = ask(openai_client(vendor), temperature=0.5)
        assert json.loads(response.choices[0].message.content) == {"name": "Ada", "age": 36}
        assert response.usage.prompt_tokens == 14
        second = vendor.requests[1].json()
        assert second["temperature"] == 0.5
        assert second["messages"][:2] == [*MESSAGES, {"role": "assistant", "content": '{"name":"Ada"}'}]
        assert '"age" is missing' in second["messages"][2]["content"]


def test_what_cannot_be_made_to_fit_raises() -> None:
    with FakeVendor(['{"name": "Ada"}']) as vendor:
        with pytest.raises(SchemaViolationError, match="3 attempts"):
            ask(openai_client(vendor))
        assert len(vendor.requests) == 3
        once = slipform.wrap(
            opened(OpenAI(base_url=vendor.base_url, api_key="any")), options=Options(budget=Budget(attempts=1))
        )
        with pytest.raises(SchemaViolationError, match="1 attempt"):
            ask(once)


def test_a_refusal_stays_what_it_is_in_the_sdk() -> None:
    with FakeVendor([refusal("I must not.")]) as vendor:
        client = openai_client(vendor)
        response = ask(client)
        assert response.choices[0].message.refusal == "I must not."
        assert slipform.report_of(response).attempts[0].outcome == "refusal"
        parsed = client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Person)
        assert (parsed.choices[0].message.refusal, parsed.choices[0].message.parsed) == ("I must not.", None)
        streamed = ask(client, stream=True)
        assert slipform.report_of(streamed).attempts[0].outcome == "refusal"
        assert "".join(event.choices[0].delta.refusal or "" for event in streamed if event.choices) == "I must not."
        assert len(vendor.requests) == 3


async def test_a_refusal_stays_what_it_is_in_the_async_sdk() -> None:
    with FakeVendor([refusal("I must not.")]) as vendor:
        async with AsyncOpenAI(base_url=vendor.base_url, api_key="any", max_retries=0) as plain:
            client = slipform.wrap(plain)
            create: Any = client.chat.completions.create
            response = await create(model="m", messages=MESSAGES, response_format=FORMAT)
            assert response.choices[0].message.refusal == "I must not."
            streamed = await create(model="m", messages=MESSAGES, response_format=FORMAT, stream=True)
            said = [event.choices[0].delta.refusal or "" async for event in streamed if event.choices]
            assert "".join(said) == "I must not."


def test_an_answer_that_was_cut_off_is_the_sdks_error_where_it_has_one() -> None:
    with FakeVendor([ModelResponse(text='{"name": "A', finish="length")]) as vendor:
        with pytest.raises(LengthFinishReasonError):
            openai_client(vendor).chat.completions.parse(model="m", messages=MESSAGES, response_format=Person)
        with pytest.raises(TruncatedError):
            ask(openai_client(vendor))


def test_what_has_no_report_says_so() -> None:
    with FakeVendor(["Hello"]) as vendor:
        response = openai_client(vendor).chat.completions.create(model="m", messages=MESSAGES)
        with pytest.raises(TypeError, match="ChatCompletion has no report"):
            slipform.report_of(response)


def test_calls_without_a_schema_are_not_touched() -> None:
    with FakeVendor(["not JSON"]) as vendor:
        client = openai_client(vendor)
        assert client.chat.completions.create(model="m", messages=MESSAGES).choices[0].message.content == "not JSON"
        chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "not JSON"


def test_json_mode_and_tool_calls() -> None:
    with FakeVendor(["Here: {'a': 1}"]) as vendor:
        response = openai_client(vendor).chat.completions.create(
            model="m", messages=MESSAGES, response_format={"type": "json_object"}
        )
        assert response.choices[0].message.content == '{"a":1}'
    call = ModelResponse(tool_calls=(ToolCall("1", "look", "{}"),), finish="tool_calls", usage=Usage(1, 1))
    with FakeVendor([call]) as vendor:
        assert ask(openai_client(vendor)).choices[0].message.tool_calls[0].function.name == "look"


def test_it_passes_for_the_client_it_wraps() -> None:
    with FakeVendor(['{"name": "Ada", "age": "36"}']) as vendor, openai_client(vendor) as client:
        assert isinstance(client, OpenAI)
        assert client.api_key == "any"
        client.timeout = 5.0
        other = client.with_options(max_retries=1)
        assert other.timeout == 5.0
        assert json.loads(ask(other).choices[0].message.content)["age"] == 36
    with pytest.raises(ConfigError, match="cannot be wrapped"):
        slipform.wrap(object())


async def test_the_async_client() -> None:
    with FakeVendor(['{"name": "Ada"}', ADA]) as vendor:
        async with slipform.wrap(AsyncOpenAI(base_url=vendor.base_url, api_key="any")) as client:
            response = await client.chat.completions.create(model="m", messages=MESSAGES, response_format=FORMAT)
        assert json.loads(response.choices[0].message.content or "") == {"name": "Ada", "age": 36}


def spoken(said: str | ModelResponse) -> Raw:
    """An answer of the Responses API."""
    served = ServedRequest(ModelRequest("m", ()))
    response = ModelResponse(text=said, usage=Usage(7, 5)) if isinstance(said, str) else said
    body = find_api("openai-responses").encode_response(response, served)
    return Raw((body,), headers={"content-type": "application/json"})


def test_the_responses_api() -> None:
    wanted: Any = {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}
    with FakeVendor([spoken('{"name": "Ada"}'), spoken(f"Here you are: {ADA}")]) as vendor:
        response = openai_client(vendor).responses.create(model="m", input="Ada is 36", text=wanted)
        assert type(response).__name__ == "Response"
        assert response.usage is not None
        assert response.usage.input_tokens == 14
        assert json.loads(response.output_text) == {"name": "Ada", "age": 36}
        assert vendor.requests[1].json()["input"][0] == {"role": "user", "content": "Ada is 36"}


def test_anthropic() -> None:
    wanted: Any = {"format": {"type": "json_schema", "schema": PERSON}}
    with FakeVendor(['{"name": "Ada"}', f"Here you are: {ADA}"], api="anthropic") as vendor:
        client = slipform.wrap(opened(Anthropic(base_url=vendor.base_url, api_key="any", max_retries=0)))
        response = client.messages.create(model="m", max_tokens=99, messages=MESSAGES, output_config=wanted)
        assert [json.loads(block.text) for block in response.content if block.type == "text"] == [
            {"name": "Ada", "age": 36}
        ]
        assert response.usage.input_tokens == 14
        assert len(vendor.requests[1].json()["messages"]) == 3


class Person(BaseModel):
    name: str
    age: int
    note: str | None = None


BAD, CHATTY = '{"name": "Ada"}', 'Sure: {"name": "Ada", "age": "36", "note": null}'


def test_parse_gives_the_typed_object_of_a_valid_answer() -> None:
    with FakeVendor([BAD, CHATTY]) as vendor:
        client = openai_client(vendor)
        response = client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Person)
        assert type(response).__name__.startswith("ParsedChatCompletion")
        assert response.choices[0].message.parsed == Person(name="Ada", age=36)
        assert len(vendor.requests) == 2
        sent = vendor.requests[0].json()["response_format"]["json_schema"]
        assert sent["schema"]["required"] == ["name", "age", "note"]
        with pytest.raises(RequestError, match="asks for more"):
            client.chat.completions.create(model="m", messages=MESSAGES, response_format=FORMAT, n=2)


def test_parse_of_the_responses_api_and_of_anthropic() -> None:
    with FakeVendor([spoken(BAD), spoken(CHATTY)]) as vendor:
        response = openai_client(vendor).responses.parse(model="m", input="Ada is 36", text_format=Person)
        assert response.output_parsed == Person(name="Ada", age=36)
    with FakeVendor([BAD, CHATTY], api="anthropic") as vendor:
        client = slipform.wrap(opened(Anthropic(base_url=vendor.base_url, api_key="any", max_retries=0)))
        message = client.messages.parse(model="m", max_tokens=99, messages=MESSAGES, output_format=Person)
        assert message.parsed_output == Person(name="Ada", age=36)


def test_a_streamed_call_is_judged_first_and_then_told_as_a_stream() -> None:
    with FakeVendor([BAD, CHATTY]) as vendor:
        events: Any = ask(openai_client(vendor), stream=True)
        chunks = [next(events), *events]
        assert {type(chunk).__name__ for chunk in chunks} == {"ChatCompletionChunk"}
        told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert json.loads(told)["age"] == 36
        assert "stream" not in vendor.requests[0].json()
    wanted: Any = {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}
    with FakeVendor([spoken(BAD), spoken(ADA)]) as vendor:
        with openai_client(vendor).responses.create(model="m", input="x", text=wanted, stream=True) as stream:
            pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert json.loads("".join(pieces)) == {"name": "Ada", "age": 36}
    with FakeVendor([BAD, ADA], api="anthropic") as vendor:
        client = slipform.wrap(opened(Anthropic(base_url=vendor.base_url, api_key="any", max_retries=0)))
        events = client.messages.create(
            model="m", max_tokens=9, messages=MESSAGES, output_config={"format": wanted["format"]}, stream=True
        )
        texts = [event.delta.text for event in events if event.type == "content_block_delta"]
        assert json.loads("".join(texts)) == {"name": "Ada", "age": 36}


async def test_the_async_client_parses_and_streams() -> None:
    with FakeVendor([CHATTY, BAD, ADA]) as vendor:
        async with slipform.wrap(AsyncOpenAI(base_url=vendor.base_url, api_key="any")) as client:
            parsed = await client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Person)
            assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)
            stream: Any = await client.chat.completions.create(
                model="m", messages=MESSAGES, response_format=FORMAT, stream=True
            )
            async with stream:
                told = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert json.loads("".join(told)) == {"name": "Ada", "age": 36}


def test_the_stream_helpers_tell_a_valid_answer() -> None:
    with FakeVendor([BAD, CHATTY]) as vendor:
        with openai_client(vendor).chat.completions.stream(
            model="m", messages=MESSAGES, response_format=Person
        ) as stream:
            kinds = {event.type for event in stream}
            assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ada", age=36)
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert len(vendor.requests) == 2
    with (
        FakeVendor([spoken(BAD), spoken(CHATTY)]) as vendor,
        openai_client(vendor).responses.stream(model="m", input="Ada is 36", text_format=Person) as told,
    ):
        assert told.get_final_response().output_parsed == Person(name="Ada", age=36)
    with FakeVendor([BAD, CHATTY], api="anthropic") as vendor:
        client = slipform.wrap(opened(Anthropic(base_url=vendor.base_url, api_key="any", max_retries=0)))
        with client.messages.stream(model="m", max_tokens=99, messages=MESSAGES, output_format=Person) as written:
            assert json.loads("".join(written.text_stream))["age"] == 36
            assert written.get_final_message().parsed_output == Person(name="Ada", age=36)


async def test_the_stream_helpers_of_the_async_clients() -> None:
    with FakeVendor([BAD, CHATTY]) as vendor:
        async with (
            slipform.wrap(AsyncOpenAI(base_url=vendor.base_url, api_key="any")) as client,
            client.chat.completions.stream(model="m", messages=MESSAGES, response_format=Person) as stream,
        ):
            completion = await stream.get_final_completion()
        assert completion.choices[0].message.parsed == Person(name="Ada", age=36)
    with FakeVendor([BAD, CHATTY], api="anthropic") as vendor:
        async with (
            slipform.wrap(AsyncAnthropic(base_url=vendor.base_url, api_key="any")) as other,
            other.messages.stream(model="m", max_tokens=9, messages=MESSAGES, output_format=Person) as written,
        ):
            message = await written.get_final_message()
        assert message.parsed_output == Person(name="Ada", age=36)


def called(arguments: str) -> ModelResponse:
    return ModelResponse(tool_calls=(ToolCall("1", "keep", arguments),), finish="tool_calls", usage=Usage(7, 5))


TOOL = {"name": "keep", "description": "Keep a person.", "parameters": PERSON}
TOOLS: Any = [{"type": "function", "function": TOOL}]


def test_tool_calls_are_mended_and_asked_for_again() -> None:
    """Issue 6: arguments of the caller's own tools are repaired, validated and patched, with re-ask."""
    with FakeVendor([called("{name: 'Ada', age: '36',}")]) as vendor:
        response = openai_client(vendor).chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)
        call: Any = (response.choices[0].message.tool_calls or [])[0]
        assert json.loads(call.function.arguments) == {"name": "Ada", "age": 36}
        assert call.id == "1"
        assert type(call).__name__ == "ChatCompletionMessageFunctionToolCall"
        assert len(vendor.requests) == 1
    with FakeVendor([called(BAD), called(ADA)], api="anthropic") as vendor:
        client = slipform.wrap(opened(Anthropic(base_url=vendor.base_url, api_key="any", max_retries=0)))
        tools: Any = [{"name": "keep", "input_schema": PERSON}]
        message = client.messages.create(model="m", max_tokens=99, messages=MESSAGES, tools=tools)
        block: Any = message.content[0]
        assert block.input == {"name": "Ada", "age": 36}
        assert message.usage.input_tokens == 14
        turns = vendor.requests[1].json()["messages"]
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert turns[1]["content"][0]["type"] == "tool_use"
    with FakeVendor([spoken(called(BAD)), spoken(called(ADA))]) as vendor:
        tools = [{"type": "function", **TOOL}]
        answer = openai_client(vendor).responses.create(model="m", input="x", tools=tools)
        item: Any = answer.output[0]
        assert (type(item).__name__, json.loads(item.arguments)) == (
            "ResponseFunctionToolCall",
            {"name": "Ada", "age": 36},
        )
        assert answer.usage is not None
        assert answer.usage.input_tokens == 14
    with FakeVendor([called(BAD)]) as vendor, pytest.raises(SchemaViolationError, match="tool call's arguments"):
        openai_client(vendor).chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)


def test_text_in_place_of_a_required_call_becomes_that_call() -> None:
    with FakeVendor([f"I keep {ADA}"]) as vendor:
        response = openai_client(vendor).chat.completions.create(
            model="m", messages=MESSAGES, tools=TOOLS, tool_choice="required"
        )
        call: Any = (response.choices[0].message.tool_calls or [])[0]
        assert json.loads(call.function.arguments) == {"name": "Ada", "age": 36}
        assert response.choices[0].finish_reason == "tool_calls"


def test_tools_can_be_left_alone() -> None:
    with FakeVendor([called(BAD)]) as vendor:
        client = slipform.wrap(opened(OpenAI(base_url=vendor.base_url, api_key="any")), options=Options(tools="pass"))
        response = client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)
        call: Any = (response.choices[0].message.tool_calls or [])[0]
        assert call.function.arguments == BAD


def test_parse_with_tools_gives_their_parsed_arguments() -> None:
    tools: Any = [pydantic_function_tool(Person, name="keep")]
    with FakeVendor([called('{"name": "Ada"}'), called('{"name": "Ada", "age": "36", "note": null}')]) as vendor:
        response = openai_client(vendor).chat.completions.parse(
            model="m", messages=MESSAGES, response_format=Person, tools=tools
        )
        calls: Any = response.choices[0].message.tool_calls
        assert calls[0].function.parsed_arguments == Person(name="Ada", age=36)
        assert len(vendor.requests) == 2


def test_a_tool_of_the_vendors_does_not_take_the_schema_away() -> None:
    wanted: Any = {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}
    tools: Any = [{"type": "a_new_thing"}]
    with FakeVendor([spoken(f"Here you are: {ADA}")]) as vendor:
        response = openai_client(vendor).responses.create(model="m", input="x", text=wanted, tools=tools)
        assert json.loads(response.output_text) == {"name": "Ada", "age": 36}


def test_a_schema_in_the_extra_body_counts() -> None:
    with FakeVendor([CHATTY]) as vendor:
        response = openai_client(vendor).chat.completions.create(
            model="m", messages=MESSAGES, extra_body={"response_format": FORMAT}
        )
        assert json.loads(response.choices[0].message.content or "")["age"] == 36


class Grown(Person):
    @field_validator("age")
    @classmethod
    def is_grown(cls, age: int) -> int:
        if age < 18:
            raise ValueError("must be 18 or more")
        return age


def test_what_the_types_own_validators_say_is_asked_for_again() -> None:
    young, grown = '{"name": "Ada", "age": 3}', '{"name": "Ada", "age": 36}'
    with FakeVendor([young, grown]) as vendor:
        response = openai_client(vendor).chat.completions.parse(model="m", messages=MESSAGES, response_format=Grown)
        assert response.choices[0].message.parsed == Grown(name="Ada", age=36)
        assert "must be 18 or more" in vendor.requests[1].json()["messages"][-1]["content"]


def test_what_is_not_enforced_says_so() -> None:
    with FakeVendor([CHATTY]) as vendor:
        raw: Any = openai_client(vendor).chat.completions.with_raw_response
        with pytest.warns(UserWarning, match="does not enforce raw responses"):
            response = raw.create(model="m", messages=MESSAGES, response_format=FORMAT)
        assert response.parse().choices[0].message.content == CHATTY
