"""Token probabilities on their way: asked for through any API, and those of the text that is given back, or none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.addons.server import App
from slipform.codecs import CODECS, Capabilities, find_api, make_codec
from slipform.config import Settings
from slipform.ir import Message, ModelRequest, ModelResponse
from slipform.ir.logprobs import cut_logprobs, fit_logprobs, tokens_of
from slipform.library.async_client import AsyncClient
from slipform.providers.refusals import record_refusal
from slipform.providers.retry import apply_downgrades
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import PERSON
from tests.evidence.test_confidence import as_logprobs, cut
from tests.proxy.asgi import post

GOOD = '{"name":"Ada","age":36}'
BLANKS = '{"name": "Ada",\n "age": 36}'
SHAPE = {"type": "json_schema", "name": "answer", "schema": PERSON}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "hi"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": PERSON}},
            "logprobs": True,
            "top_logprobs": 2,
        },
    ),
    "openai-responses": (
        "/v1/responses",
        {"input": "hi", "text": {"format": SHAPE}, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ),
    "gemini": (
        "/v1beta/models/fake/m:generateContent",
        {
            "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
            "generationConfig": {
                "responseMimeType": "application/json",
                "responseJsonSchema": PERSON,
                "responseLogprobs": True,
                "logprobs": 2,
            },
        },
    ),
}


def said(text: str) -> ModelResponse:
    return ModelResponse(text=text, extra={"logprobs": as_logprobs(cut(text, seed=3))})


def joined(api: str, answer: Any) -> bytes | None:
    """The bytes of all tokens that an answer tells of; None for none."""
    if api == "openai-chat":
        entries = (answer["choices"][0]["logprobs"] or {}).get("content")
    elif api == "openai-responses":
        entries = answer["output"][-1]["content"][0]["logprobs"]
    else:
        result = answer["candidates"][0].get("logprobsResult")
        return None if result is None else "".join(each["token"] for each in result["chosenCandidates"]).encode()
    return b"".join(bytes(each["bytes"]) for each in entries) if entries else None


def text_of(api: str, answer: Any) -> str:
    if api == "openai-chat":
        return str(answer["choices"][0]["message"]["content"])
    if api == "openai-responses":
        return str(answer["output"][-1]["content"][0]["text"])
    return "".join(part["text"] for part in answer["candidates"][0]["content"]["parts"])


async def asked(api: str, response: ModelResponse) -> tuple[Any, FakeModel]:
    model = FakeModel([response], capabilities=Capabilities(native=True))
    app = App(AsyncClient(router=Router({"fake": model}, default="fake/m")), Settings())
    path, body = REQUESTS[api]
    named = {} if api == "gemini" else {"model": "fake/m"}
    reply = await post(app, path, {**body, **named, "slipform": {"report": True}})
    assert reply.status == 200
    return reply.json(), model


@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize("text", [GOOD, BLANKS, f"Sure:\n```json\n{BLANKS}\n```\nDone."])
def test_tokens_join_to_the_text_that_is_given_back(api: str, text: str) -> None:
    answer, model = asyncio.run(asked(api, said(text)))
    assert model.requests[0].logprobs == 2
    assert joined(api, answer) == text_of(api, answer).encode()
    assert not answer["slipform"]["warnings"]


@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize("text", ['{"name":"Ada","age":"36"}', "{'name': 'Ada', 'age': 36,}"])
def test_tokens_of_a_text_that_was_changed_are_left_out_with_a_warning(api: str, text: str) -> None:
    answer, _ = asyncio.run(asked(api, said(text)))
    assert joined(api, answer) is None
    assert [each["code"] for each in answer["slipform"]["warnings"]] == ["logprobs_left_out"]


def test_tokens_of_a_streamed_answer_join_to_its_text() -> None:
    async def run() -> list[Any]:
        model = FakeModel([said(BLANKS)], capabilities=Capabilities(native=True))
        app = App(AsyncClient(router=Router({"fake": model}, default="fake/m")), Settings())
        path, body = REQUESTS["openai-chat"]
        reply = await post(app, path, {**body, "model": "fake/m", "stream": True})
        return [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]

    choices = [choice for event in asyncio.run(run()) for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    entries = [entry for choice in choices for entry in (choice["logprobs"] or {}).get("content", ())]
    assert json.loads(text) == {"name": "Ada", "age": 36}
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == text.encode()


@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_asked_for_in_one_api_reaches_vendors_of_another_or_is_named(api: str, codec: str) -> None:
    body = {**REQUESTS[api][1], "model": "m"}
    request = find_api(api).decode_request(body, path="/v1/models/m:generateContent").request
    sent = make_codec(codec, Capabilities(native=True)).encode_request(request, stream=False)
    wire = json.loads(sent.body)
    expected: dict[str, dict[str, Any]] = {
        "openai-chat": {"logprobs": True, "top_logprobs": 2},
        "openai-responses": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "gemini": {"responseLogprobs": True, "logprobs": 2},
    }
    if codec in expected:
        assert expected[codec].items() <= {**wire, **wire.get("generationConfig", {})}.items()
        assert not [each for each in sent.warnings if "logprobs" in (each.path or "")]
    else:
        assert "logprobs" in {each.path for each in sent.warnings}


def test_other_things_that_are_included_stay() -> None:
    body = {"model": "m", "input": "hi", "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]}
    request = find_api("openai-responses").decode_request(body).request
    assert request.logprobs == 0
    sent = make_codec("openai-responses", Capabilities()).encode_request(request, stream=False)
    assert sorted(json.loads(sent.body)["include"]) == sorted(body["include"])


def test_a_vendor_that_refuses_them_is_asked_without() -> None:
    request = ModelRequest("m", (Message.user("hi"),), logprobs=0)
    learned = record_refusal("`logprobs` is not supported with this model", request, Capabilities())
    assert learned == ("no_logprobs", False)
    able = apply_downgrades(Capabilities(), frozenset({"no_logprobs"}))
    sent = make_codec("openai-chat", able).encode_request(request, stream=False)
    assert "logprobs" not in json.loads(sent.body)
    assert [each.path for each in sent.warnings] == ["logprobs"]


def test_the_tokens_of_every_vendor_come_in_one_form() -> None:
    entry = {"token": "36", "logprob": -0.5, "bytes": [51, 54], "top_logprobs": []}
    message = {"type": "message", "content": [{"type": "output_text", "text": "36", "logprobs": [entry]}]}
    bodies: dict[str, Any] = {
        "openai-chat": {
            "choices": [{"message": {"content": "36"}, "finish_reason": "stop", "logprobs": {"content": [entry]}}]
        },
        "openai-responses": {"status": "completed", "output": [message]},
        "gemini": {
            "candidates": [
                {
                    "content": {"parts": [{"text": "36"}]},
                    "finishReason": "STOP",
                    "logprobsResult": {"chosenCandidates": [{"token": "36", "tokenId": 7, "logProbability": -0.5}]},
                }
            ]
        },
    }
    for name, body in bodies.items():
        codec = make_codec(name, Capabilities())
        sent = codec.encode_request(ModelRequest("m", (Message.user("hi"),)), stream=False)
        answer = codec.decode_response(json.dumps(body).encode(), sent)
        assert tokens_of(answer.extra["logprobs"]) == [(b"36", -0.5)], name


WORDS = st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@given(JSON, st.integers(0, 9), st.sampled_from([None, 1, "\t"]), st.text(max_size=8), st.text(max_size=8))
def test_cut_and_fitted_tokens_join_to_the_compact_text(
    value: Any, seed: int, indent: Any, before: str, after: str
) -> None:
    written = json.dumps(value, ensure_ascii=False, indent=indent)
    text, compact = before + written + after, json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    kept = cut_logprobs(as_logprobs(cut(text, seed)), text, len(before), len(before) + len(written))
    fitted = fit_logprobs(kept, compact)
    assert fitted is not None
    tokens = tokens_of(fitted)
    assert tokens is not None
    assert b"".join(token.data for token in tokens) == compact.encode("utf-8", "surrogatepass")
    assert fit_logprobs(kept, compact + "1") is None
