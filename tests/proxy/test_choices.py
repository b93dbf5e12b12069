"""Several answers to one request: each is enforced, and there are never fewer than were asked for."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from slipform.ir import ModelResponse
from slipform.testing import Answer, Api, FakeModel, truncated
from tests.conftest import PERSON
from tests.proxy.agent_wire import data_of
from tests.proxy.proxying import ADA, call, proxied
from tests.proxy.test_outcomes import VENDORS, served

WORDS: Any = [{"role": "user", "content": "Ada is 36"}]
SHAPE: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
PEOPLE = ['{"name":"Ada","age":36}', '{"name":"Bob","age":40}', '{"name":"Eve","age":"50"}']
BOTH = [json.loads(PEOPLE[0]), json.loads(PEOPLE[1])]
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("vendor", VENDORS)
def test_each_choice_is_enforced_whatever_the_vendor(vendor: Api) -> None:
    wrong: list[Any] = []
    for stream in (False, True):
        with (
            served(vendor, list(PEOPLE)) as (address, fake),
            openai.OpenAI(base_url=f"{address}/v1", api_key="k") as sdk,
        ):
            request: dict[str, Any] = {"model": "up/m", "messages": WORDS, "response_format": SHAPE, "n": 3}
            texts: dict[int, str] = {}
            if stream:
                for chunk in sdk.chat.completions.create(**request, stream=True):
                    for choice in chunk.choices:
                        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            else:
                answer = sdk.chat.completions.create(**request)
                texts = {choice.index: choice.message.content or "" for choice in answer.choices}
                if answer.usage is None or answer.usage.prompt_tokens != 21:
                    wrong.append((vendor, answer.usage))
            values = sorted((json.loads(text)["name"], json.loads(text)["age"]) for text in texts.values())
            if values != [("Ada", 36), ("Bob", 40), ("Eve", 50)] or len(fake.requests) != 3:
                wrong.append((vendor, stream, texts, len(fake.requests)))
    assert wrong == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("vendor", ["anthropic", "gemini"])
def test_a_vendor_without_n_is_asked_several_times_without_a_schema_too(vendor: Api, stream: bool) -> None:
    with served(vendor, ["one", "two"]) as (address, fake):
        reply = call(address, CHAT, {"model": "up/m", "messages": WORDS, "n": 2, "stream": stream})
        assert (reply.status, len(fake.requests)) == (200, 2)
        if stream:
            events = [event for event in data_of(iter(reply.body.splitlines())) if event != "[DONE]"]
            texts = {0: "", 1: ""}
            for event in events:
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["delta"].get("content") or ""
            assert sorted(texts.values()) == ["one", "two"]
        else:
            assert sorted(each["message"]["content"] for each in reply.json["choices"]) == ["one", "two"]


@pytest.mark.parametrize("stream", [False, True])
def test_googles_count_of_candidates_is_honoured(stream: bool) -> None:
    config = {"candidateCount": 2, "responseMimeType": "application/json", "responseJsonSchema": PERSON}
    body = {"contents": [{"role": "user", "parts": [{"text": "Ada is 36"}]}], "generationConfig": config}
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    with served("anthropic", PEOPLE[:2]) as (address, fake):
        reply = call(address, f"/v1beta/models/up/m:{method}", body)
        assert (reply.status, len(fake.requests)) == (200, 2)
        texts = {0: "", 1: ""}
        for event in data_of(iter(reply.body.splitlines())) if stream else [reply.json]:
            for candidate in event["candidates"]:
                texts[candidate["index"]] += "".join(part["text"] for part in candidate["content"]["parts"])
    assert sorted([json.loads(text) for text in texts.values()], key=lambda value: str(value["name"])) == BOTH


def test_one_truncated_choice_leaves_the_others() -> None:
    with served("openai", [PEOPLE[0], truncated('{"name":"Bo')]) as (address, _):
        body = {"model": "up/m", "messages": WORDS, "response_format": SHAPE, "n": 2}
        choices = call(address, CHAT, body).json["choices"]
    assert sorted(each["finish_reason"] for each in choices) == ["length", "stop"]


def test_a_choice_that_stays_invalid_is_an_error_and_not_one_choice_less() -> None:
    with proxied({"fake": FakeModel(["no"], models=("m",))}) as address:
        reply = call(address, CHAT, {"model": "fake/m", "messages": WORDS, "response_format": SHAPE, "n": 2})
    assert (reply.status, reply.json["error"]["code"]) == (422, "not_json")


def test_tools_are_enforced_in_each_choice() -> None:
    tool = {"type": "function", "function": {"name": "save", "parameters": PERSON}}
    calls = [Answer(ModelResponse(text=f"No {name}.")) for name in ("Ada", "Bob")]
    with served("openai", calls) as (address, _):
        choices = call(address, CHAT, {"model": "up/m", "messages": WORDS, "tools": [tool], "n": 2}).json["choices"]
    assert sorted(each["message"]["content"] for each in choices) == ["No Ada.", "No Bob."]


@pytest.mark.parametrize("number", [0, -1, "2", 1.5, True, 1000])
def test_a_number_that_cannot_be_served_is_an_error_that_names_it(number: Any) -> None:
    with proxied({"fake": FakeModel([ADA], models=("m",))}) as address:
        body = {"model": "fake/m", "messages": WORDS, "response_format": SHAPE, "n": number}
        reply = call(address, CHAT, body)
    assert (reply.status, reply.json["error"]["param"]) == (400, "n")
