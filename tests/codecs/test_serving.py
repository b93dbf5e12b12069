"""What the serving side reads from clients, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from slipform.codecs import APIS, ServedRequest, find_api
from slipform.codecs.gemini.serve_decode import to_json_schema
from slipform.errors import RequestError, SchemaViolationError, UpstreamError
from slipform.ir import (
    CompletionChunk,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    NamedTool,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolDelta,
    ToolResult,
)
from tests.codecs.loopback import STAMP

PATH = "/v1beta/models/gemini-3:generateContent"


def read(api: str, **body: Any) -> Any:
    return find_api(api).decode_request(body, path=PATH).request


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("openai-chat", {"messages": []}, "model"),
    ("openai-chat", {"model": "m", "messages": "hi"}, "messages"),
    ("openai-chat", {"model": "m", "messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ("openai-chat", {"model": "m", "messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ("openai-chat", {"model": "m", "messages": [], "temperature": "hot"}, "temperature"),
    ("openai-chat", {"model": "m", "messages": [], "max_tokens": 1.5}, "max_tokens"),
    ("openai-chat", {"model": "m", "messages": [], "response_format": {"type": "xml"}}, "response_format.type"),
    (
        "openai-chat",
        {"model": "m", "messages": [], "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    (
        "openai-chat",
        {"model": "m", "messages": [], "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema",
    ),
    ("openai-chat", {"model": "m", "messages": [], "tools": [{"type": "function"}]}, "tools[0].function.name"),
    ("openai-responses", {"model": "m", "input": [{"role": "king", "content": "x"}]}, "input[0].role"),
    ("openai-responses", {"model": "m", "input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
    ("anthropic", {"model": "m", "messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    (
        "anthropic",
        {"model": "m", "messages": [], "output_config": {"format": {"type": "x"}}},
        "output_config.format.type",
    ),
    ("anthropic", {"model": "m", "messages": [], "tool_choice": {"type": "x"}}, "tool_choice.type"),
    ("gemini", {"contents": [{"role": "king", "parts": []}]}, "contents[0].role"),
    (
        "gemini",
        {"contents": [], "toolConfig": {"functionCallingConfig": {"mode": "X"}}},
        "toolConfig.functionCallingConfig.mode",
    ),
    ("gemini", {"contents": [{"parts": [{"inlineData": {"data": "é"}}]}]}, "contents[0].parts[0].inlineData.data"),
]


@pytest.mark.parametrize(("api", "body", "where"), MISTAKES, ids=[f"{api}:{where}" for api, _, where in MISTAKES])
def test_a_mistake_is_refused_with_its_place(api: str, body: dict[str, Any], where: str) -> None:
    with pytest.raises(RequestError) as caught:
        find_api(api).decode_request(body, path=PATH)
    assert caught.value.where == where


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
def test_a_body_that_is_no_object_is_refused(api: str, body: bytes) -> None:
    with pytest.raises(RequestError, match="The body is not"):
        find_api(api).decode_request(body, path=PATH)


def test_chat_keeps_what_it_does_not_know() -> None:
    request = read(
        "openai-chat",
        model="m",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "new_kind", "x": 1}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "done"},
        ],
        tools=[{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"name": "f"}]}},
        logit_bias={"1": 2},
        stop="END",
        max_completion_tokens=5,
    )  # fmt: skip
    assert request.messages[0] == Message("system", (Text("Be brief."),), extra={"openai-chat": {"role": "developer"}})
    assert request.messages[1].parts[1] == Opaque("openai-chat", {"type": "new_kind", "x": 1})
    thought = Reasoning("hm", {"openai-chat": {"reasoning_content": "hm"}})
    assert request.messages[2].parts == (thought, ToolCall("a", "f", "{}"))
    assert request.messages[3] == Message("tool", (ToolResult("a", (Text("done"),)),))
    assert [tool.name for tool in request.tools] == ["f"]
    assert request.tool_choice == "required"
    assert (dict(request.extra), request.extra_for) == ({"logit_bias": {"1": 2}}, "openai-chat")
    assert (request.sampling.stop, request.max_tokens) == (("END",), 5)


def test_responses_puts_the_items_of_a_turn_together() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    request = read(
        "openai-responses",
        model="m",
        input=[
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}]},
            thought,
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "done"},
        ],
        tool_choice={"type": "function", "name": "f"},
        text={"verbosity": "low"},
    )
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[0].parts == (Media("image", "image/png", b"hi"),)
    assert request.messages[1].parts == (Reasoning("hm", {"openai-responses": thought}), ToolCall("a", "f", "{}"))
    assert request.tool_choice == NamedTool("f")
    assert request.extra["text"] == {"verbosity": "low"}


def test_anthropic_keeps_signed_thinking_and_cache_marks() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": "s"}
    request = read(
        "anthropic",
        model="m",
        max_tokens=5,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "assistant", "content": [signed, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True},
                {"type": "text", "text": "Go on."}]},
        ],
        thinking={"type": "enabled", "budget_tokens": 7},
    )  # fmt: skip
    assert request.messages[0].parts[0].extra == {"anthropic": {"cache_control": {"type": "ephemeral"}}}
    assert request.messages[1].parts == (Reasoning("hm", {"anthropic": signed}), ToolCall("a", "f", '{"x":1}'))
    assert request.messages[2].role == "user"
    assert request.messages[2].parts[0] == ToolResult("a", (Text("no"),), is_error=True)
    assert request.reasoning == {"enabled": True, "budget": 7}


def test_gemini_takes_both_spellings_and_matches_answers_to_calls_by_name() -> None:
    request = read(
        "gemini",
        system_instruction={"parts": [{"text": "Be brief."}]},
        contents=[
            {"role": "model", "parts": [
                {"function_call": {"name": "f", "args": {"x": 1}}},
                {"functionCall": {"name": "f", "args": {"x": 2}}, "thoughtSignature": "s"}]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "f", "response": {"output": "one"}}},
                {"function_response": {"name": "f", "response": {"error": "two"}}}]},
        ],
        generation_config={"response_mime_type": "application/json", "max_output_tokens": 5, "newField": 1},
        safety_settings=[],
    )  # fmt: skip
    assert request.model == "gemini-3"
    first, second = request.messages[1].tool_calls
    assert second.extra == {"gemini": {"thoughtSignature": "s"}}
    assert request.messages[2].parts == (
        ToolResult(first.id, (Text("one"),), name="f"),
        ToolResult(second.id, (Text("two"),), is_error=True, name="f"),
    )
    assert (request.json_mode, request.max_tokens) == (True, 5)
    assert request.extra == {"safetySettings": [], "generationConfig": {"newField": 1}}


def test_the_openapi_subset_is_turned_into_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "b": {"type": "INTEGER", "minimum": 0.0},
            "a": {"type": "ARRAY", "items": {"type": "STRING", "nullable": True, "enum": ["x"]}, "min_items": "2"},
            "c": {"anyOf": [{"type": "NUMBER"}], "nullable": True},
        },
        "propertyOrdering": ["a", "b"],
    }
    assert to_json_schema(schema) == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": ["string", "null"], "enum": ["x", None]}, "minItems": 2},
            "b": {"type": "integer", "minimum": 0},
            "c": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
    }
    assert list(to_json_schema(schema)["properties"]) == ["a", "b", "c"]
    counts = {"minItems": "3", "maxItems": "²", "maxLength": "9" * 5_000}
    assert to_json_schema(counts) == {**counts, "minItems": 3}, "what is no number is left for the check of the schema"


@pytest.mark.parametrize("api", APIS)
def test_a_name_that_comes_late_still_reaches_the_client_first(api: str) -> None:
    serving = find_api(api)
    encoder = serving.encode_stream(serving.decode_request({"model": "m", "messages": [], "contents": []}, path=PATH))
    body = encoder.feed(CompletionChunk(tool_calls=(ToolDelta(5, arguments='{"a":'),)))
    body += encoder.feed(CompletionChunk(tool_calls=(ToolDelta(5, id="x", name="f"),)))
    body += encoder.feed(CompletionChunk(tool_calls=(ToolDelta(5, arguments="1}"),), finish="stop"))
    text = (body + encoder.finish()).decode()
    arguments = '{"a":1}' if api == "gemini" else '{\\"a\\":'
    assert text.index('"name":"f"') < text.index(arguments)


def test_no_keep_alive_for_google_s_clients() -> None:
    served = find_api("gemini").decode_request({"contents": []}, path=PATH)
    assert find_api("gemini").encode_stream(served).keep_alive() == b""


@pytest.mark.parametrize("api", APIS)
def test_the_vendor_s_raw_error_body_is_not_passed_on(api: str) -> None:
    error = UpstreamError("It broke", details={"category": "server", "raw": {"secret": "sk-1"}})
    status, body = find_api(api).encode_error(error)
    assert status == 502
    assert b"sk-1" not in body
    assert b"It broke" in body
    assert find_api(api).encode_error(SchemaViolationError("No"))[0] == 422


def test_ids_and_times_come_from_the_stamp() -> None:
    from slipform.ir import ModelResponse

    serving = replace(find_api("openai-chat"), stamp=STAMP)
    served = serving.decode_request({"model": "m", "messages": []})
    answer = json.loads(serving.encode_response(ModelResponse(text="x"), served))
    assert (answer["id"], answer["created"]) == ("chatcmpl-0123456789abcdef", 1_700_000_000)
    assert "usage" not in answer


@pytest.mark.parametrize("seed", [2**53 + 1, -(2**63), 2**63 - 1, 7.0])
def test_a_whole_number_keeps_all_its_digits(seed: float) -> None:
    found = read("openai-chat", model="m", messages=[], seed=seed).sampling.seed
    assert type(found) is int
    assert found == seed


@pytest.mark.parametrize("seed", [2**63, 0.5, True, "1"])
def test_what_is_no_whole_number_of_64_bits_is_refused_by_name(seed: object) -> None:
    with pytest.raises(RequestError) as caught:
        read("openai-chat", model="m", messages=[], seed=seed)
    assert caught.value.where == "seed"


@pytest.mark.parametrize(
    ("api", "part", "where"),
    [
        (
            "openai-chat",
            {"type": "file", "file": {"file_id": "f", "filename": 3}},
            "messages[0].content[0].file.filename",
        ),
        ("anthropic", {"type": "document", "title": 3, "source": {}}, "messages[0].content[0].title"),
        (
            "anthropic",
            {"type": "image", "source": {"type": "base64", "media_type": 3}},
            "messages[0].content[0].source.media_type",
        ),
    ],
)
def test_a_name_or_kind_of_a_file_that_is_no_text_is_refused_by_its_place(
    api: str, part: dict[str, Any], where: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(api, model="m", max_tokens=1, messages=[{"role": "user", "content": [part]}])
    assert caught.value.where == where


@pytest.mark.parametrize("api", APIS)
def test_arguments_that_a_model_nests_deeply_are_written(api: str) -> None:
    serving = find_api(api)
    served = ServedRequest(ModelRequest("m", (Message.user("hi"),)))
    arguments = '{"a":' * 400 + "1" + "}" * 400
    answer = ModelResponse(tool_calls=(ToolCall("c1", "f", arguments),), finish="tool_calls")
    written = serving.encode_response(answer, served)
    assert written.replace(b"\\", b"").count(b'"a":') == 400


def test_an_item_of_a_streamed_response_ends_before_the_next_begins() -> None:
    """Clients keep the items in the order in which they end: Codex had a call before the words that led up to it."""
    encoder = find_api("openai-responses").encode_stream(ServedRequest(ModelRequest("m", ()), stream=True))
    chunks = [
        CompletionChunk(reasoning="Hm. "),
        CompletionChunk("I will "),
        CompletionChunk("look."),
        CompletionChunk(tool_calls=(ToolDelta(0, "c1", "look", "{}", done=True),)),
        CompletionChunk("Or not."),
        CompletionChunk(finish="tool_calls"),
    ]
    said = b"".join([*(encoder.feed(chunk) for chunk in chunks), encoder.finish()]).decode()
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: ")]
    items = [(each["type"][21:], each["item"]["type"]) for each in events if "output_item" in each["type"]]
    kinds = ["reasoning", "message", "function_call", "message"]
    assert items == [(moment, kind) for kind in kinds for moment in ("added", "done")]
    output = events[-1]["response"]["output"]
    assert [item["content"][0]["text"] for item in output if item["type"] == "message"] == ["I will look.", "Or not."]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT")),
        (404, ("invalid_request_error", "not_found_error", "NOT_FOUND")),
        (415, ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT")),
        (426, ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT")),
        (500, ("server_error", "api_error", "INTERNAL")),
        (501, ("server_error", "api_error", "UNIMPLEMENTED")),
    ],
)
def test_an_error_of_the_caller_is_called_one_in_every_api(status: int, words: tuple[str, str, str]) -> None:
    error = RequestError("No")
    error.http_status = status  # type: ignore[misc]
    openai, anthropic, gemini = (
        json.loads(find_api(api).encode_error(error)[1]) for api in ("openai-chat", "anthropic", "gemini")
    )
    assert (openai["error"]["type"], anthropic["error"]["type"], gemini["error"]["status"]) == words
