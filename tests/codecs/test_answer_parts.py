"""What an answer holds besides text and calls reaches a client of the vendor's own API: enforced, mended, streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from slipform.codecs import Capabilities, EncodedRequest, ServedRequest, find_api, make_codec
from slipform.enforce import Outcome, Plan, enforce
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Opaque, Part, Reasoning, Text, Tool
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.response import ENVELOPE
from slipform.library.client import Client
from slipform.providers.base import as_chunks
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.testing import FakeVendor, Raw
from tests.codecs import recorded

NOTHING_SENT = EncodedRequest("", b"")
SERVED = ServedRequest(ModelRequest("m", ()), stream=True, options={"include_usage": True})
LOOK = Schema.of({"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]})
MISSPELT, MENDED = {"days": "3"}, {"days": 3}

CLAUDE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "gAAA"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]},
        {"type": "text", "text": "As "},
        {"type": "text", "text": "they say", "citations": [{"type": "web_search_result_location", "url": "https://e"}]},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": MISSPELT, "caller": {"type": "direct"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "container": {"id": "c_1"},
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
GEMINI = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"executableCode": {"language": "PYTHON", "code": "1"}},
                    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
                    {"text": "They say", "thoughtSignature": "c2ln"},
                    {"functionCall": {"id": "f1", "name": "look", "args": MISSPELT}, "thoughtSignature": "c2lo"},
                ],
            },
            "finishReason": "STOP",
            "index": 0,
            "groundingMetadata": {"webSearchQueries": ["x"]},
        }
    ],
    "modelVersion": "gemini",
    "responseId": "r1",
}
RESPONSES = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt",
    "status": "completed",
    "output": [
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "phase": "final_answer",
            "content": [
                {
                    "type": "output_text",
                    "text": "They say",
                    "annotations": [{"type": "url_citation", "url": "https://e", "start_index": 0, "end_index": 4}],
                    "logprobs": [],
                }
            ],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "call_1",
            "name": "look",
            "arguments": json.dumps(MISSPELT),
            "status": "completed",
            "namespace": "crm",
        },
    ],
}
CHAT = {
    "id": "gen-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "They say",
                "reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA"}],
                "annotations": [{"type": "url_citation", "url_citation": {"url": "https://e"}}],
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "look", "arguments": json.dumps(MISSPELT)},
                        "extra_content": {"google": {"thought_signature": "c2ln"}},
                    },
                    {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "x"}},
                ],
            },
        }
    ],
}
ANSWERS: dict[str, dict[str, Any]] = {
    "anthropic": CLAUDE,
    "gemini": GEMINI,
    "openai-responses": RESPONSES,
    "openai-chat": CHAT,
}


def _decoded(api: str, body: Any) -> ModelResponse:
    return make_codec(api, Capabilities()).decode_response(json.dumps(body).encode(), NOTHING_SENT)


def _enforced(response: ModelResponse) -> Outcome:
    steps = enforce(ModelRequest("m", ()), Plan(None, tools={"look": LOOK}))
    next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send(response)
    outcome: Outcome = ended.value.value
    return outcome


def _folded(chunks: Sequence[CompletionChunk]) -> ModelResponse:
    reducer = Reducer()
    reducer.start(Snapshot())
    for chunk in chunks:
        reducer.push(chunk)
    return reducer.finish(check=False)


def _streamed(api: str, chunks: Sequence[CompletionChunk]) -> ModelResponse:
    """What a client of this API reads of these chunks."""
    encoder = find_api(api).encode_stream(SERVED)
    decoder = make_codec(api, Capabilities()).decode_stream(NOTHING_SENT)
    data = b"".join([*map(encoder.feed, chunks), encoder.finish()])
    return _folded([*decoder.feed(data), *decoder.finish()])


def _with_mended_call(api: str, body: Any) -> Any:
    text = json.dumps(body)
    for before, after in ((MISSPELT, MENDED), (json.dumps(MISSPELT), json.dumps(MENDED, separators=(",", ":")))):
        text = text.replace(json.dumps(before), json.dumps(after))
    return json.loads(text)


def _holds(whole: Any, part: Any) -> bool:
    """Whether all of a part stands in the same place of the whole; what says nothing may be left out."""
    if isinstance(part, Mapping):
        return all(value in (None, [], "") or _holds(whole.get(key), value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole or ()) == len(part) and all(_holds(*pair) for pair in zip(whole, part, strict=True))
    return bool(whole == part)


@pytest.mark.parametrize("api", ANSWERS)
def test_an_enforced_answer_holds_all_that_its_vendor_wrote(api: str) -> None:
    answer = _enforced(_decoded(api, ANSWERS[api])).answer
    written = json.loads(find_api(api).encode_response(answer, SERVED))
    expected = _with_mended_call(api, ANSWERS[api])
    assert _holds({**written, "usage": expected.get("usage"), "created_at": 1, "created": 1}, expected)


def _opaque(parts: Sequence[Part]) -> list[Any]:
    """What only the vendor knows, in order."""
    return [
        part.opaque if isinstance(part, Reasoning) else dict(part.data)
        for part in parts
        if (isinstance(part, Reasoning) and part.opaque) or (isinstance(part, Opaque) and part.data.get("text") is None)
    ]


@pytest.mark.parametrize("api", ANSWERS)
def test_so_does_a_streamed_one(api: str) -> None:
    answer = _enforced(_decoded(api, ANSWERS[api])).answer
    read = _streamed(api, list(as_chunks(answer)))
    assert _opaque(read.parts) == _opaque(answer.parts)
    assert [(call.id, call.arguments, call.extra) for call in read.tool_calls] == [
        (call.id, call.arguments, call.extra) for call in answer.tool_calls
    ]
    assert read.text == answer.text
    said = {key: value for key, value in answer.extra.items() if key not in ("usage", "stop_details", ENVELOPE)}
    assert {key: read.extra.get(key) for key in said} == said


def test_citations_stay_with_the_text_that_they_are_about() -> None:
    answer = _enforced(_decoded("anthropic", CLAUDE)).answer
    read = _streamed("anthropic", list(as_chunks(answer)))
    assert [part for part in read.parts if isinstance(part, Text)] == [
        part for part in answer.parts if isinstance(part, Text)
    ]


_APIS = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic-messages": "anthropic",
    "gemini-generate-content": "gemini",
}


@cache
def _recordings() -> list[recorded.Recording]:
    found = (recorded.load(name) for name in recorded.names())
    return [each for each in found if each.api in _APIS and each.status == 200 and each.derived["error"] is None]


@pytest.mark.parametrize("spelled", _APIS)
def test_what_a_vendor_wants_back_survives_any_recorded_answer(spelled: str) -> None:
    recordings = [each for each in _recordings() if each.api == spelled]
    if not recordings:
        pytest.skip("the recordings are not beside this repository")
    api = _APIS[spelled]
    codec = make_codec(api, Capabilities())
    for recording in recordings:
        if recording.stream:
            decoder = codec.decode_stream(NOTHING_SENT)
            chunks = [*decoder.feed(recording.body), *decoder.finish()]
            first = _folded(chunks)
        else:
            first = codec.decode_response(recording.body, NOTHING_SENT)
            chunks = list(as_chunks(first))
        whole = json.loads(find_api(api).encode_response(first, SERVED))
        assert _signed(_streamed(api, chunks).parts) == _signed(first.parts), recording.name
        assert _signed(_decoded(api, whole).parts) == _signed(first.parts), recording.name


_SIGNED = ("signature", "data", "encrypted_content", "thoughtSignature", "thought_signature", "reasoning_details")


def _signed(parts: Sequence[Part]) -> list[Any]:
    """All signatures, in order."""
    found: list[Any] = []

    def look(value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                if key in _SIGNED and item:
                    found.append(item)
                else:
                    look(item)
        elif isinstance(value, list):
            for item in value:
                look(item)

    for part in parts:
        if not isinstance(part, Text) or part.text:
            look(part.opaque if isinstance(part, Reasoning) else getattr(part, "extra", None))
        if isinstance(part, Opaque):
            look(part.data)
    return found


def test_the_library_gives_the_answer_with_its_parts_and_its_mended_call() -> None:
    body = json.dumps(CLAUDE).encode()
    with FakeVendor([Raw((body,), headers={"content-type": "application/json"})], api="anthropic") as vendor:
        provider = HttpProvider("anthropic", base_url=vendor.base_url, api_key="k")
        with Client(router=Router({"up": provider}, default="up/claude-opus-5")) as client:
            tools = (Tool("look", LOOK.document),)
            outcome = client.respond(ModelRequest("up/claude-opus-5", (Message.user("Look"),), tools=tools))
    assert outcome.answer.message == outcome.response.message
    assert [json.loads(call.arguments) for call in outcome.answer.message.tool_calls] == [MENDED]
    assert _opaque(outcome.answer.parts) == _opaque(_decoded("anthropic", CLAUDE).parts)


BLOCKS = {
    "anthropic": {"server_tool_use", "web_search_tool_result", "citations"},
    "gemini": {"executableCode", "codeExecutionResult", "groundingMetadata"},
    "openai-responses": {"web_search_call", "annotations", "namespace"},
    "openai-chat": {"custom", "annotations", "search_results"},
}


@pytest.mark.parametrize("served", BLOCKS)
@pytest.mark.parametrize("vendor", BLOCKS)
def test_what_another_api_has_no_place_for_is_named(vendor: str, served: str) -> None:
    bodies = {**ANSWERS, "openai-chat": {**ANSWERS["openai-chat"], "search_results": [{"url": "https://e"}]}}
    response = _decoded(vendor, bodies[vendor])
    api = find_api(served)
    assert api is not None
    left_out = api.unrepresented(response)
    if served == vendor:
        assert left_out == ()
        assert "https://e" in api.encode_response(response, SERVED).decode() or vendor == "gemini"
        return
    (warning,) = left_out
    assert warning.code == "lossy_answer"
    assert all(name in warning.message for name in BLOCKS[vendor])
    assert api.unrepresented(_decoded(served, bodies[served])) == ()


def test_sources_reach_a_streaming_client_of_the_same_api() -> None:
    response = _decoded("openai-chat", {**ANSWERS["openai-chat"], "citations": ["https://source.example"]})
    api = find_api("openai-chat")
    assert api is not None
    encoder = api.encode_stream(SERVED)
    data = b"".join(map(encoder.feed, as_chunks(response))) + encoder.finish()
    assert b"https://source.example" in data
