"""The proxy, as OpenAI's own SDK and a bare HTTP client see it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from slipform.addons.local import LocalProvider
from slipform.addons.local.weights import QWEN_CODER, find
from slipform.addons.server import App
from slipform.codecs import Capabilities
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Usage
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, ResponseFormat
from slipform.testing import FakeModel
from tests.conftest import PERSON, router_for, serving

pytestmark = pytest.mark.xdist_group("local")

FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ASK: Any = [{"role": "user", "content": "Ada is 36"}]


def call(address: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One bare HTTP call; gives the status and the JSON that came back."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    raw = body if isinstance(body, bytes | None) else json.dumps(body)
    connection.request(method, path, raw, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def chat(address: str, **fields: Any) -> tuple[int, Any]:
    return call(address, "POST", "/v1/chat/completions", {"model": "local", "messages": ASK, **fields})


@pytest.fixture(scope="module")
def sdk(proxy: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy}/v1", api_key="anything", max_retries=0) as client:
        yield client


@pytest.mark.local
@pytest.mark.covers("S2-17", "S2-20", "S2-22", "S2-25", "S2-62", "S2-63")
def test_the_official_sdk_gets_compact_valid_json(sdk: openai.OpenAI) -> None:
    completion = sdk.chat.completions.create(model="local", messages=ASK, response_format=FORMAT)
    assert completion.choices[0].message.content == '{"name":"Ada","age":36}'
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


@pytest.mark.local
@pytest.mark.covers("C11")
def test_the_official_sdk_streams_the_same_answer_in_pieces(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(
        model="local", messages=ASK, response_format=FORMAT, stream_options={"include_usage": True}
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert len(pieces) > 3
    assert "".join(pieces) == final.choices[0].message.content == '{"name":"Ada","age":36}'
    assert final.usage is not None


@pytest.mark.local
def test_the_official_sdk_parses_into_a_model(sdk: openai.OpenAI) -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    parsed = sdk.chat.completions.parse(model="local", messages=ASK, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)


@pytest.mark.local
@pytest.mark.covers("S2-23")
def test_json_mode_gives_an_object(proxy: str) -> None:
    status, answer = chat(proxy, response_format={"type": "json_object"}, max_tokens=300)
    if status == 200:
        assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)
    else:
        assert answer["error"]["code"] == "truncated"


@pytest.mark.local
@pytest.mark.covers("S2-24")
def test_without_a_response_format_the_model_just_talks(proxy: str) -> None:
    status, answer = chat(proxy, max_tokens=8, temperature=0)
    assert status == 200
    assert answer["choices"][0]["message"]["content"]


@pytest.mark.local
def test_a_schema_under_a_token_limit_too_small_ends_as_openai_ends_it(proxy: str, sdk: openai.OpenAI) -> None:
    status, answer = chat(proxy, response_format=FORMAT, max_tokens=4)
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
    pieces = list(
        sdk.chat.completions.create(model="local", messages=ASK, response_format=FORMAT, max_tokens=12, stream=True)
    )
    assert pieces[-1].choices[0].finish_reason == "length"


@pytest.mark.covers("S2-18", "S2-19")
def test_models_and_health(proxy: str) -> None:
    assert call(proxy, "GET", "/healthz") == (200, {"status": "ok"})
    status, answer = call(proxy, "GET", "/v1/models")
    assert status == 200
    here = ["local/qwen2.5-coder-1.5b"] if find(QWEN_CODER) else []
    assert [entry["id"] for entry in answer["data"]] == ["local", "local/smollm2-135m", *here]


def schema(document: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": document}}


@pytest.mark.covers("C31", "S2-65")
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"response_format": schema({"type": "no such type"})}, 400, "invalid_schema"),
        ({"response_format": schema({"$ref": "http://example.test/s.json"})}, 400, "invalid_schema"),
        ({"response_format": schema({"enum": []})}, 422, "unsupported_schema"),
        ({"response_format": schema([])}, 400, "invalid_request"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, 400, "invalid_request"),
        ({"response_format": {"type": "yaml"}}, 400, "invalid_request"),
        ({"messages": []}, 400, "invalid_request"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "invalid_request"),
        ({"n": 0, "response_format": schema({"type": "object"})}, 400, "invalid_request"),
        ({"tools": [{"type": "function"}]}, 400, "invalid_request"),
        ({"model": None}, 400, "invalid_request"),
        ({"model": "locall"}, 404, "model_not_found"),
        ({"model": "local/other"}, 404, "model_not_found"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_said_in_openais_error_shape(
    proxy: str, fields: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    got, answer = chat(proxy, stream=stream, **fields)
    assert (got, answer["error"]["code"]) == (status, code)
    assert answer["error"]["message"]
    assert set(answer["error"]) >= {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b" " * (8 * 1024 * 1024 + 1), 413),
        ("GET", "/v1/chat/completions", None, 405),
        ("GET", "/nowhere", None, 404),
    ],
)
@pytest.mark.covers("S2-70")
def test_bad_http_is_answered_with_what_to_do(
    proxy: str, method: str, path: str, body: bytes | None, status: int
) -> None:
    got, answer = call(proxy, method, path, body)
    assert got == status
    assert answer["error"]["message"]


class Scripted(LocalProvider):
    """Answers with the same words every time."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse(text=self._text, usage=Usage(input=1, output=1))

    async def stream_async(self, request: ModelRequest) -> Any:
        for char in self._text:
            yield CompletionChunk(text=char)
        yield CompletionChunk(finish="stop", usage=Usage(input=1, output=1))

    def warm(self, model: str = "") -> None:
        """Nothing to load."""


def scripted(text: str) -> serving:
    client = AsyncClient(router=router_for(Scripted(text)), options=Options(budget=Budget(attempts=3)))
    return serving(App(client, Settings()))


@pytest.mark.covers("S2-51", "S2-66", "S2-67", "S2-68")
def test_answers_that_stay_invalid_fail_with_the_reasons() -> None:
    with scripted('{"name": "Ada"}') as address:
        status, answer = chat(address, response_format=FORMAT)
    error = answer["error"]
    assert status == 422
    assert error["type"] == "structured_output_failed"
    assert error["message"].startswith("Failed to produce schema-valid JSON after 3 attempts")
    assert error["details"]["validation_errors"][0]["path"] == "$"


@pytest.mark.covers("S2-63")
def test_a_stream_that_turns_out_invalid_never_closes_its_json() -> None:
    with (
        scripted('{"name": "Ada"}') as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(model="local", messages=ASK, response_format=FORMAT, stream=True)
        seen: list[str] = []
        with pytest.raises(openai.APIError, match="age"):
            seen.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(seen) == '{"name":"Ada'


def test_a_large_schema_is_answered_and_the_server_goes_on_meanwhile() -> None:
    """C12, S2-71: what takes long to read is read off the event loop."""
    properties = {f"key_{number}": {"enum": [f"{number}-{each}" * 9 for each in range(9)]} for number in range(1_000)}
    wide = {"type": "object", "properties": properties, "additionalProperties": False}
    with scripted('{"key_1": "1-1"}'.replace("1-1", "1-1" * 9)) as address:
        status, answer = chat(address, response_format=schema(wide))
        assert call(address, "GET", "/healthz")[0] == 200
    assert status == 200
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"key_1": "1-1" * 9}


async def test_a_live_stream_that_has_shown_nothing_asks_again_in_silence() -> None:
    answers = FakeModel(["", '{"name": "Ada", "age": 36}'], capabilities=Capabilities(native=True), models=("m",))
    client = AsyncClient(router=Router({"fake": answers}), options=Options(budget=Budget(attempts=2)))
    wanted = ResponseFormat.strict(JsonSchemaSpec("person", PERSON))
    asked = ModelRequest("fake/m", (Message.user("Ada is 36"),), wanted)
    pieces = [piece async for piece in client.respond_stream(asked) if isinstance(piece, CompletionChunk)]
    assert "".join(piece.text for piece in pieces) == '{"name":"Ada","age":36}'
    assert len(answers.requests) == 2
