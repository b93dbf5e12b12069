"""The vendors' own SDKs, as clients of our encoders, get what they demand of a server."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as google_errors
from google.genai import types as google_types
from pydantic import BaseModel

from slipform.errors import (
    AuthenticationError,
    RateLimitError,
    RequestError,
    SchemaViolationError,
    UnknownModelError,
    UpstreamError,
)
from slipform.ir import ModelResponse, ToolCall, Usage
from tests.codecs.loopback import Script, server


class City(BaseModel):
    name: str
    population: int


TEXT = '{"name":"Zürich","population":430000}'
USAGE = Usage(input=12, output=7, cached=4, reasoning=3, total=19)
ANSWER = ModelResponse(text=TEXT, usage=USAGE, model="served-model", id="the-id", reasoning="Let me think.")
CALLS = ModelResponse(
    text="I call.",
    tool_calls=(ToolCall("call_a", "weather", '{"zip": "8001"}'), ToolCall("call_b", "weather", '{"zip": "10115"}')),
    finish="tool_calls",
    usage=USAGE,
)
REFUSED = ModelResponse(refusal="I cannot help with that.", finish="refusal")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]}
ASK: Any = [{"role": "user", "content": "Zürich"}]
OPENAI_TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": False}}]
RESPONSES_TOOLS: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]


def openai_client(script: Script) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{script.url}/v1", api_key="x", max_retries=0)


def anthropic_client(script: Script) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=script.url, api_key="x", max_retries=0)


def google_client(script: Script) -> genai.Client:
    return genai.Client(api_key="x", http_options=google_types.HttpOptions(base_url=script.url))


def test_openai_chat_create() -> None:
    with server(Script(ANSWER)) as script, openai_client(script) as client:
        got = client.chat.completions.create(model="m", messages=ASK)
    assert got.choices[0].message.content == TEXT
    assert got.choices[0].finish_reason == "stop"
    assert got.model == "served-model"
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (12, 7, 19)
    assert script.seen[0].request.messages[0].text == "Zürich"


def test_openai_chat_parse() -> None:
    with server(Script(ANSWER)) as script, openai_client(script) as client:
        got = client.chat.completions.parse(model="m", messages=ASK, response_format=City)
    assert got.choices[0].message.parsed == City(name="Zürich", population=430000)
    wanted = script.seen[0].request.response_format
    assert wanted is not None
    assert (wanted.json_schema.name, wanted.strict) == ("City", True)


def test_openai_chat_refusal_and_length_and_calls() -> None:
    with server(Script(REFUSED)) as script, openai_client(script) as client:
        refused = client.chat.completions.parse(model="m", messages=ASK, response_format=City)
        assert refused.choices[0].message.refusal == "I cannot help with that."
        assert refused.choices[0].message.parsed is None
        script.response = ModelResponse(text='{"name":', finish="length")
        with pytest.raises(openai.LengthFinishReasonError):
            client.chat.completions.parse(model="m", messages=ASK, response_format=City)
        script.response = CALLS
        calls = client.chat.completions.create(model="m", messages=ASK, tools=OPENAI_TOOLS)
    found = calls.choices[0].message.tool_calls
    assert found is not None
    assert [(call.id, call.function.arguments) for call in found if call.type == "function"] == [
        ("call_a", '{"zip": "8001"}'),
        ("call_b", '{"zip": "10115"}'),
    ]
    assert calls.choices[0].finish_reason == "tool_calls"


def test_openai_chat_create_streamed() -> None:
    with server(Script(ANSWER, keep_alive=True)) as script, openai_client(script) as client:
        options: Any = {"include_usage": True}
        chunks = list(client.chat.completions.create(model="m", messages=ASK, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 19
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk.id for chunk in chunks} == {"the-id"}


def test_openai_chat_stream_helper_parses_text_and_interleaved_calls() -> None:
    with server(Script(ANSWER)) as script, openai_client(script) as client:
        with client.chat.completions.stream(model="m", messages=ASK, response_format=City) as stream:
            kinds = {event.type for event in stream}
            whole = stream.get_final_completion()
        assert whole.choices[0].message.parsed == City(name="Zürich", population=430000)
        assert {"content.delta", "content.done"} <= kinds
        script.response = CALLS
        with client.chat.completions.stream(model="m", messages=ASK, tools=OPENAI_TOOLS) as calling:
            called = calling.get_final_completion()
    found = called.choices[0].message.tool_calls or []
    assert [(call.id, call.function.name, call.function.arguments) for call in found if call.type == "function"] == [
        ("call_a", "weather", '{"zip": "8001"}'),
        ("call_b", "weather", '{"zip": "10115"}'),
    ]


def test_openai_chat_stream_helper_sees_a_refusal() -> None:
    with (
        server(Script(REFUSED)) as script,
        openai_client(script) as client,
        client.chat.completions.stream(model="m", messages=ASK, response_format=City) as stream,
    ):
        whole = stream.get_final_completion()
    assert whole.choices[0].message.refusal == "I cannot help with that."


def test_openai_chat_error_inside_a_stream_is_raised() -> None:
    script = Script(ANSWER, fail_after=SchemaViolationError("It does not fit"))
    with server(script), openai_client(script) as client:
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
        with pytest.raises(openai.APIError, match="It does not fit"):
            list(stream)


OPENAI_ERRORS = [
    (RequestError("Bad"), openai.BadRequestError),
    (AuthenticationError("Bad"), openai.AuthenticationError),
    (UnknownModelError("Bad"), openai.NotFoundError),
    (RateLimitError("Bad"), openai.RateLimitError),
    (SchemaViolationError("Bad"), openai.UnprocessableEntityError),
    (UpstreamError("Bad"), openai.InternalServerError),
]


@pytest.mark.covers("C31")
@pytest.mark.parametrize(("error", "kind"), OPENAI_ERRORS, ids=[kind.__name__ for _, kind in OPENAI_ERRORS])
def test_openai_raises_its_own_errors_on_both_apis(error: Any, kind: type[openai.APIStatusError]) -> None:
    with server(Script(error=error)) as script, openai_client(script) as client:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(model="m", messages=ASK)
        assert caught.value.code == error.code
        with pytest.raises(kind):
            client.responses.create(model="m", input="Zürich")


def test_openai_responses_create_and_parse() -> None:
    with server(Script(ANSWER)) as script, openai_client(script) as client:
        created = client.responses.create(model="m", input="Zürich", instructions="You extract.")
        parsed = client.responses.parse(model="m", input="Zürich", text_format=City)
    assert created.output_text == TEXT
    assert created.status == "completed"
    assert created.usage is not None
    assert created.usage.input_tokens_details.cached_tokens == 4
    assert parsed.output_parsed == City(name="Zürich", population=430000)
    assert script.seen[0].request.messages[0].role == "system"
    assert script.seen[1].request.response_format is not None


def test_openai_responses_refusal_calls_and_length() -> None:
    with server(Script(REFUSED)) as script, openai_client(script) as client:
        refused = client.responses.parse(model="m", input="Zürich", text_format=City)
        assert refused.output_parsed is None
        script.response = CALLS
        called = client.responses.create(model="m", input="Zürich", tools=RESPONSES_TOOLS)
        script.response = ModelResponse(text="half", finish="length")
        cut = client.responses.create(model="m", input="Zürich")
    calls = [item for item in called.output if item.type == "function_call"]
    assert [(call.call_id, call.arguments) for call in calls] == [
        ("call_a", '{"zip": "8001"}'),
        ("call_b", '{"zip": "10115"}'),
    ]
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    "answer", [ANSWER, CALLS, REFUSED, ModelResponse()], ids=["text", "calls", "refusal", "nothing"]
)
def test_openai_responses_stream_helper(answer: ModelResponse) -> None:
    with server(Script(answer, keep_alive=True)) as script, openai_client(script) as client:
        extra: Any = {"text_format": City} if answer is ANSWER else {}
        with client.responses.stream(model="m", input="Zürich", tools=RESPONSES_TOOLS, **extra) as stream:
            events = list(stream)
            whole = stream.get_final_response()
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(numbers)
    assert whole.output_text == answer.text
    if answer is ANSWER:
        assert whole.output_parsed == City(name="Zürich", population=430000)
        assert any(event.type == "response.reasoning_summary_text.delta" for event in events)
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        (call.id, call.name, call.arguments) for call in answer.tool_calls
    ]


def test_openai_responses_error_inside_a_stream_is_raised() -> None:
    script = Script(ANSWER, fail_after=SchemaViolationError("It does not fit"))
    with server(script), openai_client(script) as client:
        stream = client.responses.create(model="m", input="Zürich", stream=True)
        with pytest.raises(openai.APIError, match="It does not fit"):
            list(stream)


ANTHROPIC_TOOLS: Any = [{"name": "weather", "input_schema": SCHEMA}]


def test_anthropic_create_and_parse() -> None:
    with server(Script(ANSWER)) as script, anthropic_client(script) as client:
        created = client.messages.create(model="m", max_tokens=100, messages=ASK, system="You extract.")
        parsed = client.messages.parse(model="m", max_tokens=100, messages=ASK, output_format=City)
    assert [block.type for block in created.content] == ["thinking", "text"]
    assert created.stop_reason == "end_turn"
    assert (created.usage.input_tokens, created.usage.cache_read_input_tokens) == (8, 4)
    assert parsed.parsed_output == City(name="Zürich", population=430000)
    assert script.seen[0].request.max_tokens == 100
    wanted = script.seen[1].request.response_format
    assert wanted is not None
    assert wanted.json_schema.name == "City"


def test_anthropic_stream_helper_with_text_thinking_and_pings() -> None:
    with (
        server(Script(ANSWER, keep_alive=True)) as script,
        anthropic_client(script) as client,
        client.messages.stream(model="m", max_tokens=100, messages=ASK, output_format=City) as stream,
    ):
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert text == TEXT
    assert whole.parsed_output == City(name="Zürich", population=430000)
    assert whole.content[0].type == "thinking"
    assert whole.content[0].thinking == "Let me think."
    assert whole.usage.output_tokens == 7


def test_anthropic_calls_whole_and_streamed_though_their_pieces_interleave() -> None:
    with server(Script(CALLS)) as script, anthropic_client(script) as client:
        created = client.messages.create(model="m", max_tokens=100, messages=ASK, tools=ANTHROPIC_TOOLS)
        with client.messages.stream(model="m", max_tokens=100, messages=ASK, tools=ANTHROPIC_TOOLS) as stream:
            streamed = stream.get_final_message()
    for message in (created, streamed):
        assert message.stop_reason == "tool_use"
        uses = [block for block in message.content if block.type == "tool_use"]
        assert [(use.id, use.name, use.input) for use in uses] == [
            ("call_a", "weather", {"zip": "8001"}),
            ("call_b", "weather", {"zip": "10115"}),
        ]


def test_anthropic_refusal_carries_its_words() -> None:
    with server(Script(REFUSED)) as script, anthropic_client(script) as client:
        created = client.messages.create(model="m", max_tokens=9, messages=ASK)
        with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
            streamed = stream.get_final_message()
    for message in (created, streamed):
        assert message.stop_reason == "refusal"
        assert message.stop_details is not None
        assert message.stop_details.explanation == "I cannot help with that."


ANTHROPIC_ERRORS = [
    (RequestError("Bad"), anthropic.BadRequestError),
    (AuthenticationError("Bad"), anthropic.AuthenticationError),
    (UnknownModelError("Bad"), anthropic.NotFoundError),
    (RateLimitError("Bad"), anthropic.RateLimitError),
    (SchemaViolationError("Bad"), anthropic.UnprocessableEntityError),
    (UpstreamError("Bad", details={"category": "overloaded"}), anthropic.InternalServerError),
]


@pytest.mark.parametrize(("error", "kind"), ANTHROPIC_ERRORS, ids=[kind.__name__ for _, kind in ANTHROPIC_ERRORS])
def test_anthropic_raises_its_own_errors(error: Any, kind: type[anthropic.APIStatusError]) -> None:
    with (
        server(Script(error=error)) as script,
        anthropic_client(script) as client,
        pytest.raises(kind, match="Bad"),
    ):
        client.messages.create(model="m", max_tokens=9, messages=ASK)


def test_anthropic_error_inside_a_stream_is_raised() -> None:
    script = Script(ANSWER, fail_after=SchemaViolationError("It does not fit"))
    with server(script), anthropic_client(script) as client:
        stream = client.messages.create(model="m", max_tokens=9, messages=ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="It does not fit"):
            list(stream)


def config(**fields: Any) -> google_types.GenerateContentConfig:
    return google_types.GenerateContentConfig(**fields)


def test_google_generate_content() -> None:
    shape = config(response_mime_type="application/json", response_schema=City, system_instruction="You extract.")
    with server(Script(ANSWER)) as script, google_client(script) as client:
        got = client.models.generate_content(model="gemini-3", contents="Zürich", config=shape)
    assert got.parsed == City(name="Zürich", population=430000)
    assert got.usage_metadata is not None
    assert (got.usage_metadata.candidates_token_count, got.usage_metadata.thoughts_token_count) == (4, 3)
    request = script.seen[0].request
    assert request.model == "gemini-3"
    assert request.response_format is not None
    assert request.response_format.json_schema.schema["required"] == ["name", "population"]
    assert [message.role for message in request.messages] == ["system", "user"]


def test_google_stream() -> None:
    with server(Script(ANSWER, keep_alive=True)) as script, google_client(script) as client:
        chunks = list(client.models.generate_content_stream(model="gemini-3", contents="Zürich"))
    assert "".join(chunk.text or "" for chunk in chunks) == TEXT
    last = chunks[-1]
    assert last.candidates is not None
    assert last.candidates[0].finish_reason == google_types.FinishReason.STOP
    assert last.usage_metadata is not None
    assert last.usage_metadata.total_token_count == 19


def test_google_calls_whole_and_streamed() -> None:
    declared = google_types.FunctionDeclaration(name="weather", parameters_json_schema=SCHEMA)
    tools = config(tools=[google_types.Tool(function_declarations=[declared])])
    with server(Script(CALLS)) as script, google_client(script) as client:
        whole = client.models.generate_content(model="gemini-3", contents="Zürich", config=tools)
        streamed = list(client.models.generate_content_stream(model="gemini-3", contents="Zürich", config=tools))
    for got in (whole, streamed[-1]):
        assert [(call.name, call.args) for call in got.function_calls or []] == [
            ("weather", {"zip": "8001"}),
            ("weather", {"zip": "10115"}),
        ]
    assert script.seen[0].request.tools[0].parameters == SCHEMA


@pytest.mark.parametrize(("error", "code"), [(RequestError("Bad"), 400), (RateLimitError("Bad"), 429)])
def test_google_raises_its_own_errors(error: Any, code: int) -> None:
    with (
        server(Script(error=error)) as script,
        google_client(script) as client,
        pytest.raises(google_errors.ClientError) as caught,
    ):
        client.models.generate_content(model="gemini-3", contents="Zürich")
    assert caught.value.code == code


def test_google_error_inside_a_stream_is_raised() -> None:
    script = Script(ANSWER, fail_after=UpstreamError("It broke"))
    with server(script), google_client(script) as client:
        stream = client.models.generate_content_stream(model="gemini-3", contents="Zürich")
        with pytest.raises(google_errors.APIError, match="It broke"):
            list(stream)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_mistake_in_a_request_is_named_with_its_place(path: str) -> None:
    with (
        server(Script(ANSWER)) as script,
        openai_client(script) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.post(path.removeprefix("/v1"), body={"messages": [], "input": []}, cast_to=object)
    assert "model" in str(caught.value)
