"""How an answer ends, in every served API from every vendor: refused, filtered, cut off, failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import ollama
import openai
import pytest
from google.genai import errors as google_errors
from google.genai import types as google_types
from pydantic import BaseModel

from slipform.addons.server import App
from slipform.config import Settings, read_settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.errors import RefusalError, TruncatedError
from slipform.ir import ModelResponse, Usage
from slipform.library.async_client import AsyncClient
from slipform.library.client import Client
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import (
    Answer,
    Api,
    FakeVendor,
    Received,
    Step,
    calling,
    cut_stream,
    rejected,
    reset,
    server_error,
    truncated,
)
from tests.conftest import PERSON, serving
from tests.proxy.agent_wire import APIS, StreamReader, agent_request, data_of
from tests.proxy.proxying import call
from tests.sdk_clients import SdkClients

GOOD = '{"name":"Ada Lovelace","age":36}'
CUT = '{"name":"Ada Lovel'
NO = "I can't help with that."
SPENT = Usage(input=7, output=5, total=12)
WORDS: Any = [{"role": "user", "content": "Ada is 36"}]
VENDORS: dict[Api, str] = {
    "openai": "openai-compatible",
    "openai-responses": "openai-responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "bedrock": "bedrock",
    "cohere": "cohere",
    "ollama": "ollama",
}


@dataclass(frozen=True)
class End:
    """How a call ended for the SDK's caller."""

    kind: str
    """`refusal`, `filter`, `length`, `stop`, or the class of the SDK's error."""
    detail: Any = None
    """The words of a refusal, the text of an answer, or the status of an error."""
    message: str = field(default="", compare=False)
    """What the SDK's error says."""


STEPS: dict[str, Step] = {
    "refusal": Answer(ModelResponse(refusal=NO, usage=SPENT)),
    "filter": Answer(ModelResponse(finish="content_filter", usage=SPENT)),
    "length": Answer(ModelResponse(text=CUT, finish="length", usage=SPENT)),
    "401": rejected("wrong key", 401, "invalid_api_key"),
    "403": rejected("no access to this model", 403, "permission_denied"),
    "404": rejected("no such model", 404, "not_found_error"),
    "413": rejected("too large", 413, "request_too_large"),
    "429": rejected("slow down", 429, "rate_limit_error"),
    "500": server_error(500),
    "503": server_error(503),
    "529": server_error(529, "overloaded"),
    "dies before the head": reset(),
    "dies after the head": cut_stream(GOOD, after=0),
    "dies in the middle": cut_stream(GOOD, after=6),
}
WORDLESS = {("cohere", "refusal"), ("cohere", "filter"), ("ollama", "refusal"), ("ollama", "filter")}
"""How no answer of these vendors ends: their APIs have no word for it."""
VENDOR_WORDS = {
    "401": "wrong key",
    "403": "no access to this model",
    "404": "no such model",
    "413": "too large",
    "429": "slow down",
    "500": "The server had an error",
    "529": "overloaded",
}
STATUSES = {
    "401": 401,
    "403": 403,
    "404": 404,
    "413": 413,
    "429": 429,
    "500": 502,
    "503": 502,
    "529": 503,
    "dies before the head": 502,
    "dies after the head": 502,
    "dies in the middle": 502,
}
OPENAI = {
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    413: "APIStatusError",
    429: "RateLimitError",
    502: "InternalServerError",
    503: "InternalServerError",
}
ANTHROPIC = {**OPENAI, 413: "ContentTooLargeError", 529: "OverloadedError"}
GOOGLE = {status: "ServerError" if status >= 500 else "ClientError" for status in OPENAI}
OLLAMA = dict.fromkeys(OPENAI, "ResponseError")
CLASSES = {"chat": OPENAI, "responses": OPENAI, "messages": ANTHROPIC, "gemini": GOOGLE, "ollama": OLLAMA}
BROKEN = {
    "chat": "APIError",
    "responses": "APIError",
    "messages": "APIStatusError",
    "gemini": "ServerError",
    "ollama": "ResponseError",
}
"""What the SDK raises for an error in a stream that has begun."""


def script(received: Received) -> Step:
    """What the vendor does: the name of the model says it."""
    body = received.json()
    name = body.get("model") or re.split("models?/", received.path)[-1]
    return STEPS[re.split("[:/]", name)[0].replace("_", " ")]


@contextmanager
def served(api: Api, script: Any = script, settings: Settings | None = None) -> Iterator[tuple[str, FakeVendor]]:
    with FakeVendor(script, api=api) as vendor:
        provider = HttpProvider(VENDORS[api], base_url=vendor.base_url, api_key="k", retries=RetryPolicy(attempts=0))
        router = Router({"up": provider}, default="up/m")
        client = AsyncClient(router=router, options=Options(budget=Budget(attempts=2)))
        with serving(App(client, settings or Settings())) as address:
            yield address, vendor


class Clients(SdkClients):
    """The official SDKs, as callers use them."""

    def chat(self, model: str, *, stream: bool) -> End:
        shape: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        request: dict[str, Any] = {"model": model, "messages": WORDS, "response_format": shape}
        if stream:
            chunks = list(self.openai.chat.completions.create(**request, stream=True))
            choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
            refusal = "".join(choice.delta.refusal or "" for choice in choices)
            text = "".join(choice.delta.content or "" for choice in choices)
            finish = next(choice.finish_reason for choice in reversed(choices) if choice.finish_reason)
        else:
            choice = self.openai.chat.completions.create(**request).choices[0]
            refusal, text, finish = choice.message.refusal or "", choice.message.content or "", choice.finish_reason
        if refusal:
            return End("refusal", refusal)
        return End({"content_filter": "filter"}.get(finish, finish), text)

    def responses(self, model: str, *, stream: bool) -> End:
        shape: Any = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
        request: dict[str, Any] = {"model": model, "input": "Ada is 36", "text": shape}
        if stream:
            events = list(self.openai.responses.create(**request, stream=True))
            failed = next((event for event in events if event.type == "error"), None)
            if failed is not None:
                raise openai.APIError(failed.message, request=None, body=None)  # type: ignore[arg-type]
            answer = events[-1].response
        else:
            answer = self.openai.responses.create(**request)
        parts = [part for item in answer.output if item.type == "message" for part in item.content]
        refusal = "".join(part.refusal for part in parts if part.type == "refusal")
        if refusal:
            return End("refusal", refusal)
        reason = None if answer.incomplete_details is None else answer.incomplete_details.reason
        return End(
            {"max_output_tokens": "length", "content_filter": "filter", None: "stop"}[reason], answer.output_text
        )

    def messages(self, model: str, *, stream: bool) -> End:
        shape: Any = {"format": {"type": "json_schema", "schema": PERSON}}
        request: dict[str, Any] = {"model": model, "max_tokens": 50, "messages": WORDS, "output_config": shape}
        if stream:
            with self.anthropic.messages.stream(**request) as events:
                answer = events.get_final_message()
        else:
            answer = self.anthropic.messages.create(**request)
        text = "".join(block.text for block in answer.content if block.type == "text")
        details: Any = getattr(answer, "stop_details", None)
        if answer.stop_reason == "refusal":
            words = text or (
                details["explanation"] if isinstance(details, dict) else getattr(details, "explanation", "")
            )
            return End("refusal", words or "")
        return End({"max_tokens": "length", "end_turn": "stop"}[str(answer.stop_reason)], text)

    def gemini(self, model: str, *, stream: bool) -> End:
        config = google_types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=PERSON)
        request: dict[str, Any] = {"model": model, "contents": "Ada is 36", "config": config}
        if stream:
            pieces = list(self.google.models.generate_content_stream(**request))
        else:
            pieces = [self.google.models.generate_content(**request)]
        candidates = [each.candidates[0] for each in pieces if each.candidates]
        text = "".join(part.text or "" for each in candidates if each.content for part in each.content.parts or ())
        last = candidates[-1]
        finish = getattr(last.finish_reason, "value", last.finish_reason)
        if finish == "SAFETY":
            return End("filter", text)
        return End({"MAX_TOKENS": "length", "STOP": "stop"}[str(finish)], text)

    def ollama_chat(self, model: str, *, stream: bool) -> End:
        request: dict[str, Any] = {"model": model, "messages": WORDS, "format": PERSON}
        pieces = list(self.ollama.chat(**request, stream=True)) if stream else [self.ollama.chat(**request)]
        text = "".join(piece.message.content or "" for piece in pieces)
        return End(str(pieces[-1].done_reason), text)


def ended(call: Callable[..., End], name: str, *, stream: bool) -> End:
    try:
        return call(f"up/{name.replace(' ', '_')}", stream=stream)
    except (openai.APIStatusError, anthropic.APIStatusError, ollama.ResponseError) as error:
        return End(type(error).__name__, error.status_code, str(error))
    except google_errors.APIError as error:
        return End(type(error).__name__, error.code, str(error))
    except (openai.APIError, anthropic.APIError) as error:
        return End(type(error).__name__, message=str(error))


def expected_end(name: str, served_api: str, vendor: Api, *, stream: bool) -> End:
    """What the SDK of this API is to show."""
    if name == "length":
        return End("length", CUT)
    if served_api == "gemini" and name in ("refusal", "filter"):  # its SDK does not show the words of a refusal
        return End("filter", "")
    if name == "filter" or (name == "refusal" and vendor in ("gemini", "bedrock")):
        return _filtered(served_api, vendor)
    if name == "refusal":
        return End("stop", NO) if served_api == "ollama" else End("refusal", NO)
    status = 529 if (name, served_api) == ("529", "messages") else STATUSES[name]
    if stream and name == "dies in the middle" and vendor != "bedrock":  # its sixth frame is before the text
        return End(BROKEN[served_api], {"messages": 200, "gemini": 502, "ollama": -1}.get(served_api))
    return End(CLASSES[served_api][status], status)


def _filtered(served_api: str, vendor: Api) -> End:
    """Anthropic says of a filter that the model refused; Gemini and Bedrock of a refusal that a filter stopped it."""
    if served_api == "ollama":
        return End("stop", "The model declined to answer." if vendor == "anthropic" else "")
    if served_api == "messages":
        return End("refusal", "The model declined to answer." if vendor == "anthropic" else "")
    return End("refusal", "The model declined to answer.") if vendor == "anthropic" else End("filter", "")


@pytest.mark.covers("S2-66", "S2-67", "S2-68", "S2-69")
@pytest.mark.parametrize("vendor", VENDORS)
def test_every_end_of_an_answer_is_in_the_served_apis_own_form(vendor: Api) -> None:
    wrong: list[str] = []
    with served(vendor) as (address, _):
        clients = Clients(address)
        calls = {
            "chat": clients.chat,
            "responses": clients.responses,
            "messages": clients.messages,
            "gemini": clients.gemini,
            "ollama": clients.ollama_chat,
        }
        for name in [each for each in STEPS if (vendor, each) not in WORDLESS]:
            for served_api, call in calls.items():
                for stream in (False, True):
                    end = ended(call, name, stream=stream)
                    expected = expected_end(name, served_api, vendor, stream=stream)
                    if end != expected or VENDOR_WORDS.get(name, "") not in end.message:
                        wrong.append(
                            f"{name}, {served_api}, {'streamed' if stream else 'whole'}: {end}, not {expected}"
                        )
        clients.close()
    assert wrong == []


class Person(BaseModel):
    name: str
    age: int


def test_openais_parse_raises_its_own_error_for_a_truncated_answer() -> None:
    with served("openai") as (address, vendor), openai.OpenAI(base_url=f"{address}/v1", api_key="k") as sdk:
        with pytest.raises(openai.LengthFinishReasonError):
            sdk.chat.completions.parse(model="up/length", messages=WORDS, response_format=Person)
        message = (
            sdk.chat.completions.parse(model="up/refusal", messages=WORDS, response_format=Person).choices[0].message
        )
        assert (message.refusal, message.content, message.parsed) == (NO, None, None)
        assert len(vendor.requests) == 2


CUT_CALL = Answer(calling(("save", '{"name": "Ada Lovel')).replace(finish="length"))
CUT_ENDS: dict[str, list[Any]] = {
    "chat": ["length", '{"name": "Ada Lovel'],
    "responses": ["max_output_tokens", '{"name": "Ada Lovel'],
    "messages": ["max_tokens", {"name": "Ada Lovel"}],
    "gemini": ["MAX_TOKENS", {"name": "Ada Lovel"}],
}


def end_of_call(api: str, body: Any) -> list[Any]:
    """Why a whole answer ended, and the arguments of its call."""
    if api == "chat":
        choice = body["choices"][0]
        return [choice["finish_reason"], choice["message"]["tool_calls"][0]["function"]["arguments"]]
    if api == "responses":
        return [body["incomplete_details"]["reason"], body["output"][0]["arguments"]]
    if api == "messages":
        return [body["stop_reason"], body["content"][0]["input"]]
    candidate = body["candidates"][0]
    return [candidate["finishReason"], candidate["content"]["parts"][0]["functionCall"]["args"]]


def test_a_tool_call_that_meets_the_token_limit_is_not_asked_for_again() -> None:
    wrong: list[Any] = []
    for api in APIS:
        path, body = agent_request(api, {"save": PERSON}, model="up/m")
        with served("openai", [CUT_CALL, CUT_CALL]) as (address, vendor):
            reply = call(address, path, body)
            if (reply.status, end_of_call(api, reply.json), len(vendor.requests)) != (200, CUT_ENDS[api], 1):
                wrong.append((api, reply.body))
            path, body = agent_request(api, {"save": PERSON}, model="up/m", stream=True)
            streamed = StreamReader(api).read(list(data_of(iter(call(address, path, body).body.splitlines()))))
            if (streamed.finish, len(vendor.requests)) != ("length", 2):
                wrong.append((api, streamed))
    assert wrong == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "code", "requests"), [("refusal", "refusal", 1), ("length", "truncated", 2)])
def test_the_setting_makes_them_errors(name: str, code: str, requests: int, stream: bool) -> None:
    settings = read_settings("enforcement: {on_incomplete: raise, stream_mode: buffer}")
    shape = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    body = {"model": f"up/{name}", "messages": WORDS, "response_format": shape, "stream": stream}
    with served("openai", settings=settings) as (address, vendor):
        reply = call(address, "/v1/chat/completions", body)
        assert (reply.status, reply.json["error"]["code"], len(vendor.requests)) == (422, code, requests)


def test_a_truncated_answer_of_a_rewritten_schema_is_in_the_callers_shape() -> None:
    shape = {
        "type": "json_schema",
        "json_schema": {"name": "tags", "schema": {"type": "array", "items": {"type": "string"}}},
    }
    body = {"model": "up/gpt-6-luna", "messages": WORDS, "response_format": shape}
    with FakeVendor([truncated('{"value":["red","bl')]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k")
        client = AsyncClient(router=Router({"up": provider}, default="up/m"))
        with serving(App(client, Settings())) as address:
            choice = call(address, "/v1/chat/completions", body).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('["red","bl', "length")


def test_the_library_raises_its_typed_errors() -> None:
    for name, kind in (("refusal", RefusalError), ("length", TruncatedError)):
        with FakeVendor([STEPS[name], STEPS[name]]) as vendor:
            provider = HttpProvider("openai-compatible", base_url=vendor.base_url, api_key="k")
            with Client(router=Router({"up": provider}, default="up/m")) as client, pytest.raises(kind):
                client.ask(Person, "Ada is 36")


def test_the_parameter_of_an_error_is_named_or_null() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    requests: dict[str | None, dict[str, Any]] = {
        None: {"model": "up/403"},
        "model": {"model": "nobody/x"},
        "messages": {"model": "up/m", "messages": []},
    }
    with served("openai") as (address, _):
        named = {
            param: call(address, "/v1/chat/completions", {"messages": WORDS, "response_format": shape, **body}).json
            for param, body in requests.items()
        }
    assert {param: body["error"]["param"] for param, body in named.items()} == {param: param for param in requests}
