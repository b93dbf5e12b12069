"""Nothing that a client asks for is silently ignored: schemas in other servers' fields, state, encodings, paths."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from slipform.codecs.foreign_fields import read_foreign
from slipform.errors import RequestError
from slipform.ir import ModelResponse, ToolCall
from slipform.providers.http import HttpProvider
from slipform.testing import FakeVendor, Raw
from tests.conftest import PERSON
from tests.proxy.proxying import ADA, ASK, call, proxied

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

WRONG = '{"name":"Ada"}'
OTHER: Any = {"type": "object", "properties": {"x": {"type": "integer"}}}
DIALECTS: dict[str, dict[str, Any]] = {
    "json_object with a schema": {"response_format": {"type": "json_object", "schema": PERSON}},
    "Cohere's json_object": {"response_format": {"type": "json_object", "json_schema": PERSON}},
    "llama.cpp's json_schema": {"response_format": {"type": "json_schema", "schema": PERSON}},
    "a schema under json_schema": {"response_format": {"type": "json_schema", "json_schema": PERSON}},
    "the schema itself": {"response_format": PERSON},
    "guided_json": {"guided_json": PERSON},
    "guided_json as text": {"guided_json": json.dumps(PERSON)},
    "structured_outputs": {"structured_outputs": {"json": PERSON}},
    "structured_outputs as text": {"structured_outputs": {"json": json.dumps(PERSON)}},
    "json_schema": {"json_schema": PERSON},
    "json_schema with a name": {"json_schema": {"name": "person", "schema": PERSON}},
    "Ollama's format": {"format": PERSON},
    "the Responses API's text.format": {"text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}},
    "the same twice": {"guided_json": PERSON, "response_format": {"type": "json_object", "schema": PERSON}},
    "beside JSON mode": {"guided_json": PERSON, "response_format": {"type": "json_object"}},
}


def upstream(vendor: FakeVendor, kind: str = "openai-compatible") -> HttpProvider:
    return HttpProvider(kind, base_url=vendor.base_url, api_key="sk-upstream-secret")


@pytest.mark.parametrize("fields", DIALECTS.values(), ids=DIALECTS.keys())
def test_a_schema_in_another_servers_field_is_enforced_and_the_field_is_not_sent(fields: dict[str, Any]) -> None:
    with FakeVendor([WRONG, ADA]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, "/v1/chat/completions", {"model": "up/m", "messages": ASK, **fields})
    assert reply.status == 200
    assert json.loads(reply.json["choices"][0]["message"]["content"]) == {"name": "Ada", "age": 36}
    assert reply.headers["x-slipform-attempts"] == "2"
    sent = vendor.requests[0].json()
    assert sent["response_format"]["json_schema"]["schema"]["properties"] == PERSON["properties"]
    assert not {"guided_json", "structured_outputs", "json_schema", "format", "text"} & set(sent)


@pytest.mark.parametrize("fields", DIALECTS.values(), ids=DIALECTS.keys())
def test_responses_read_the_same_fields(fields: dict[str, Any]) -> None:
    with FakeVendor([WRONG, ADA]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, "/v1/responses", {"model": "up/m", "input": "Ada is 36", **fields})
    assert reply.status == 200
    assert json.loads(reply.json["output"][0]["content"][0]["text"]) == {"name": "Ada", "age": 36}


def test_two_different_schemas_are_refused_with_both_their_names() -> None:
    body = {"model": "up/m", "messages": ASK, "guided_json": PERSON, "json_schema": OTHER}
    with FakeVendor([ADA]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, "/v1/chat/completions", body)
    assert reply.status == 400
    assert "guided_json" in reply.json["error"]["message"]
    assert "json_schema" in reply.json["error"]["message"]
    assert not vendor.requests


def test_json_mode_of_other_servers_is_json_mode() -> None:
    for fields in ({"format": "json"}, {"structured_outputs": {"json_object": True}}):
        with FakeVendor(["Hello", "{}"]) as vendor, proxied({"up": upstream(vendor)}) as address:
            reply = call(address, "/v1/chat/completions", {"model": "up/m", "messages": ASK, **fields})
        assert reply.json["choices"][0]["message"]["content"] == "{}"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["guided_choice", "structured_outputs"])
def test_a_choice_comes_back_as_the_word_alone(field: str, stream: bool) -> None:
    words = ["yes", "no"]
    body = {"model": "up/m", "messages": ASK, "stream": stream}
    body[field] = words if field == "guided_choice" else {"choice": words}
    with FakeVendor(['"perhaps"', '"no"']) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, "/v1/chat/completions", body)
    if stream:
        events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
        assert "".join(each["choices"][0]["delta"].get("content") or "" for each in events) == "no"
    else:
        assert reply.json["choices"][0]["message"]["content"] == "no"


def test_a_schema_as_response_format_is_told_by_a_warning() -> None:
    body = {"model": "up/m", "messages": ASK, "response_format": PERSON, "slipform": {"report": True}}
    with FakeVendor([ADA]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, "/v1/chat/completions", body)
    assert [each["path"] for each in reply.json["slipform"]["warnings"]].count("response_format") == 1


@pytest.mark.parametrize(
    ("kind", "field", "value", "status"),
    [
        ("openai", "guided_regex", "a+", 400),
        ("openai-compatible", "structured_outputs", {"regex": "a+"}, 400),
        ("openai", "grammar", 'root ::= "a"', 400),
        ("vllm", "grammar", 'root ::= "a"', 400),
        ("vllm", "guided_regex", "a+", 200),
        ("vllm", "structured_outputs", {"structural_tag": "x"}, 200),
        ("llamacpp", "grammar", 'root ::= "a"', 200),
    ],
)
def test_a_grammar_goes_only_to_the_server_that_reads_it(kind: str, field: str, value: Any, status: int) -> None:
    with FakeVendor(["a"]) as vendor, proxied({"up": upstream(vendor, kind)}) as address:
        reply = call(address, "/v1/chat/completions", {"model": "up/m", "messages": ASK, field: value})
    assert reply.status == status
    if status == 200:
        assert vendor.requests[0].json()[field] == value
    else:
        assert reply.json["error"]["code"] == "unsupported_field"
        assert reply.json["error"]["param"].startswith(field)
        assert not vendor.requests


def test_a_tool_choice_without_tools_is_left_out_and_warned_about() -> None:
    body = {"model": "up/m", "messages": ASK, "tool_choice": "required"}
    with FakeVendor(["Hello"]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, "/v1/chat/completions", body)
    assert reply.status == 200
    assert reply.headers["x-slipform-warnings"] == "1"
    assert "tool_choice" not in vendor.requests[0].json()


FUNCTIONS: Any = [{"name": "save", "description": "Save", "parameters": PERSON}]
CALLED = ModelResponse(tool_calls=(ToolCall("c1", "save", ADA),), finish="tool_calls")


def test_functions_are_enforced_as_tools_and_come_back_as_function_call() -> None:
    wrong = ModelResponse(tool_calls=(ToolCall("c1", "save", WRONG),), finish="tool_calls")
    with (
        FakeVendor([wrong, CALLED]) as vendor,
        proxied({"up": upstream(vendor)}) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk,
    ):
        got = sdk.chat.completions.create(
            model="up/m", messages=ASK, functions=FUNCTIONS, function_call={"name": "save"}
        )
    message = got.choices[0].message
    assert got.choices[0].finish_reason == "function_call"
    assert message.tool_calls is None
    assert message.function_call is not None
    assert json.loads(message.function_call.arguments) == {"name": "Ada", "age": 36}
    sent = vendor.requests[0].json()
    assert sent["tools"][0]["function"]["name"] == "save"
    assert not {"functions", "function_call"} & set(sent)


def test_streamed_functions_come_back_as_function_call() -> None:
    with (
        FakeVendor([CALLED]) as vendor,
        proxied({"up": upstream(vendor)}) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk,
    ):
        stream = sdk.chat.completions.create(model="up/m", messages=ASK, functions=FUNCTIONS, stream=True)
        choices = [chunk.choices[0] for chunk in stream if chunk.choices]
    calls = [each.delta.function_call for each in choices if each.delta.function_call is not None]
    assert [each.name for each in calls if each.name] == ["save"]
    assert json.loads("".join(each.arguments or "" for each in calls)) == {"name": "Ada", "age": 36}
    assert choices[-1].finish_reason == "function_call"
    assert not any(each.delta.tool_calls for each in choices)


def test_a_history_of_function_calls_becomes_one_of_tool_calls_with_ids_of_their_own() -> None:
    turns: list[dict[str, Any]] = [*ASK]
    for _ in range(2):
        turns.append({"role": "assistant", "content": None, "function_call": {"name": "save", "arguments": "{}"}})
        turns.append({"role": "function", "name": "save", "content": "done"})
    read = read_foreign("openai-chat", {"messages": turns, "functions": FUNCTIONS})
    assert read is not None
    ids = [turn["tool_calls"][0]["id"] for turn in read.data["messages"] if "tool_calls" in turn]
    assert len(set(ids)) == 2
    assert [turn["tool_call_id"] for turn in read.data["messages"] if turn["role"] == "tool"] == ids


def test_functions_beside_tools_are_refused() -> None:
    with pytest.raises(RequestError, match="functions"):
        read_foreign("openai-chat", {"messages": [], "functions": FUNCTIONS, "tools": [{"type": "function"}]})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p_1"}, "input": None}, "prompt"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "x"}, {"type": "compaction", "id": "c"}]}, "input[1].type"),
    ],
)
@pytest.mark.parametrize("shaped", [False, True])
def test_state_that_a_vendor_does_not_keep_is_refused_by_name(fields: Any, named: str, shaped: bool) -> None:
    body = {"model": "up/m", "input": "Ada is 36", **fields}
    if shaped:
        body["text"] = {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}
    off = {"stored_responses": {"enabled": False}}
    with FakeVendor([ADA]) as vendor, proxied({"up": upstream(vendor)}, off) as address:
        reply = call(address, "/v1/responses", {name: value for name, value in body.items() if value is not None})
    assert reply.status == 400
    assert reply.json["error"]["code"] == "unsupported_field"
    assert reply.json["error"]["param"] == named
    assert not vendor.requests


def compressed(encoding: str, body: bytes) -> bytes:
    return gzip.compress(body) if encoding == "gzip" else zstd.compress(body)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("shaped", [False, True])
def test_compressed_requests_are_read(encoding: str, shaped: bool) -> None:
    body = {"model": "up/m", "messages": ASK, **({"guided_json": PERSON} if shaped else {})}
    raw = compressed(encoding, json.dumps(body).encode())
    with FakeVendor([ADA]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = send_raw(address, raw, encoding)
    assert reply.status == 200
    assert vendor.requests[0].json()["messages"][-1] == ASK[0]
    assert "content-encoding" not in vendor.requests[0].headers


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [200_000, 60_000_000])
def test_what_unfolds_beyond_the_limit_is_refused(encoding: str, size: int) -> None:
    raw = compressed(encoding, b'{"model": "up/m", "messages": "' + b"a" * size + b'"}')
    with (
        FakeVendor([ADA]) as vendor,
        proxied({"up": upstream(vendor)}, {"server": {"max_body_bytes": 100_000}}) as address,
    ):
        reply = send_raw(address, raw, encoding)
    assert reply.status == 413
    assert not vendor.requests


def test_an_unknown_encoding_and_a_broken_one_are_told() -> None:
    with FakeVendor([ADA]) as vendor, proxied({"up": upstream(vendor)}) as address:
        assert send_raw(address, b"{}", "compress").status == 415
        broken = send_raw(address, gzip.compress(b"{}")[:-4], "gzip")
    assert broken.status == 400
    assert "gzip" in broken.json["error"]["message"]


def send_raw(address: str, raw: bytes, encoding: str) -> Any:
    import http.client
    from urllib.parse import urlsplit

    from tests.proxy.proxying import Reply

    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.request("POST", "/v1/chat/completions", raw, {"content-encoding": encoding})
    response = connection.getresponse()
    reply = Reply(response.status, {}, response.read())
    connection.close()
    return reply


PATHS = [
    "/chat/completions",
    "/openai/deployments/up/m/chat/completions?api-version=2026-01-01",
    "/openai/v1/chat/completions",
    "/p/up/v1/chat/completions",
    "/p/up/chat/completions",
]


@pytest.mark.parametrize("path", PATHS)
def test_the_same_call_by_other_paths(path: str) -> None:
    model = "m" if path.startswith("/p/") else "up/m" if "deployments" not in path else "something else"
    with FakeVendor(["Hello"]) as vendor, proxied({"up": upstream(vendor), "other": upstream(vendor)}) as address:
        reply = call(address, path, {"model": model, "messages": ASK})
    assert reply.status == 200
    assert vendor.requests[0].json()["model"] == "m"
    assert vendor.requests[0].path == "/v1/chat/completions"


def test_azures_client_finds_chat_and_sends_its_key_its_own_way(tmp_path: Path) -> None:
    from slipform.addons.server.admission.keys import add_key

    keys = tmp_path / "keys.json"
    secret = add_key(keys, "ada")[1]
    with (
        FakeVendor([ADA]) as vendor,
        proxied(
            {"up": upstream(vendor)}, {"server": {"keys_file": str(keys)}, "model_aliases": {"gpt": "up/m"}}
        ) as address,
        openai.AzureOpenAI(azure_endpoint=address, api_key=secret, api_version="2026-01-01") as sdk,
    ):
        got = sdk.chat.completions.create(
            model="gpt",
            messages=ASK,
            response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
        )
    assert json.loads(got.choices[0].message.content or "") == {"name": "Ada", "age": 36}


def test_the_front_page_is_there_and_ollamas_clients_hear_their_own_words() -> None:
    with FakeVendor(["x"]) as vendor, proxied({"up": upstream(vendor)}) as address:
        assert call(address, "/", method="HEAD").status == 200
        assert call(address, "/").json["name"] == "slipform"
        assert call(address, "/", headers={"user-agent": "ollama-python/0.6"}).body == b"Ollama is running"
        assert call(address, "/models").json["object"] == "list"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime", "/v1/live", "/ws/google.ai.BidiGenerateContent"])
def test_a_websocket_is_told_to_use_http(path: str) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    with FakeVendor(["x"]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, path, headers=headers)
    assert reply.status == 426
    assert reply.json["error"]["code"] == "upgrade_required"


@pytest.fixture
def schemas(tmp_path: Path) -> str:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "person.json").write_text(json.dumps(PERSON))
    return str(folder)


ALIASED = {"people": {"model": "up/m", "schema": "person"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASK}),
        ("/v1/responses", {"input": "Ada is 36"}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 100}),
        ("/v1beta/models/MODEL:generateContent", {"contents": [{"parts": [{"text": "Ada is 36"}]}]}),
    ],
)
@pytest.mark.parametrize("by", ["alias", "header", "switch"])
def test_a_schema_of_the_server_can_be_named(path: str, body: Any, by: str, schemas: str) -> None:
    model = "people" if by == "alias" else "up/m"
    body = {**body, "model": model, **({"slipform": {"schema": "person"}} if by == "switch" else {})}
    headers = {"x-slipform-schema": "person"} if by == "header" else {}
    settings = {"schemas": schemas, "model_aliases": ALIASED}
    with FakeVendor([WRONG, ADA]) as vendor, proxied({"up": upstream(vendor)}, settings) as address:
        reply = call(address, path.replace("MODEL", model), body, headers)
    assert reply.status == 200
    assert reply.headers["x-slipform-attempts"] == "2"
    assert "36" in reply.body.decode()


def test_a_named_schema_beside_another_or_one_that_nobody_knows_is_refused(schemas: str) -> None:
    settings = {"schemas": schemas}
    with FakeVendor([ADA]) as vendor, proxied({"up": upstream(vendor)}, settings) as address:
        both = {"model": "up/m", "messages": ASK, "guided_json": OTHER, "slipform": {"schema": "person"}}
        assert call(address, "/v1/chat/completions", both).status == 400
        unknown = call(
            address, "/v1/chat/completions", {"model": "up/m", "messages": ASK}, {"x-slipform-schema": "../person"}
        )
    assert unknown.status == 400
    assert "person" in unknown.json["error"]["message"]
    assert not vendor.requests


def test_plain_bytes_still_go_through_as_they_are() -> None:
    step = Raw((b'{"choices": []}',), headers={"content-type": "application/json"})
    with FakeVendor([step]) as vendor, proxied({"up": upstream(vendor)}) as address:
        call(address, "/v1/chat/completions", {"model": "up/m", "messages": ASK, "new": {"x": 1}})
    assert vendor.requests[0].json()["new"] == {"x": 1}
