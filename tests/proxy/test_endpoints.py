"""Forwarded endpoints, called by the official SDKs in front of scripted vendors."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from google import genai

from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import Api, FakeVendor, Raw, Received
from tests.conftest import PERSON
from tests.proxy.account import JSON, KEY, Account, answered, part
from tests.proxy.proxying import call, proxied

EVENTS = {"content-type": "text/event-stream"}


def upstream(vendor: FakeVendor, kind: str = "openai") -> HttpProvider:
    base = vendor.base_url if kind != "anthropic" else vendor.base_url.removesuffix("/v1")
    return HttpProvider(kind, base_url=base, api_key=KEY, retries=RetryPolicy(attempts=0))


@contextlib.contextmanager
def sdk(step: Any, settings: Any = None, kind: str = "openai") -> Iterator[tuple[openai.OpenAI, FakeVendor]]:
    """OpenAI's client in front of a vendor that answers so."""
    script = step if callable(step) else [step]
    with (
        FakeVendor(script) as vendor,
        proxied({"up": upstream(vendor, kind)}, {"model_aliases": {"small": "up/m"}, **(settings or {})}) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client, vendor


def test_embeddings_of_2048_inputs() -> None:
    def embed(received: Received) -> Raw:
        count = len(received.json()["input"])
        data = [{"object": "embedding", "index": at, "embedding": [0.25, float(at)]} for at in range(count)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return answered({"object": "list", "data": data, "model": "m", "usage": usage})

    with sdk(embed) as (client, vendor):
        got = client.embeddings.create(
            model="small", input=[f"text {at}" for at in range(2048)], encoding_format="float"
        )
        raw = client.embeddings.with_raw_response.create(model="small", input="x", encoding_format="float")
    assert len(got.data) == 2048
    assert got.data[2047].embedding == [0.25, 2047.0]
    assert got.usage.prompt_tokens == 2048
    assert vendor.requests[0].path == "/v1/embeddings"
    assert vendor.requests[0].json()["model"] == "m"
    assert vendor.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert raw.headers["x-slipform-provider"] == "up"
    assert "x-slipform-strategy" not in raw.headers


def test_moderations_without_a_model_go_to_the_only_provider() -> None:
    with sdk(answered({"id": "modr-1", "model": "o", "results": []})) as (client, vendor):
        client.moderations.create(input="hello")
        client.moderations.create(input="hello", model="small")
    assert "model" not in vendor.requests[0].json()
    assert vendor.requests[1].json()["model"] == "m"


def test_images_are_streamed_while_they_are_made() -> None:
    events: list[Any] = [
        {"type": "image_generation.partial_image", "b64_json": "YQ==", "partial_image_index": 0},
        {"type": "image_generation.completed", "b64_json": "YWI=", "usage": {"input_tokens": 3, "output_tokens": 4}},
    ]
    pieces = tuple(b"event: %b\ndata: %b\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in events)
    with sdk(Raw(pieces, headers=EVENTS, chunked=True, pace=0.01)) as (client, vendor):
        stream = client.images.generate(model="small", prompt="a cat", stream=True, partial_images=1)
        kinds = [event.type for event in stream]
    assert kinds == ["image_generation.partial_image", "image_generation.completed"]
    assert vendor.requests[0].json()["model"] == "m"


@pytest.mark.parametrize("field_last", [False, True])
def test_an_edit_of_an_image_is_renamed_in_its_part(field_last: bool) -> None:
    with sdk(answered({"created": 1, "data": [{"b64_json": "YQ=="}]})) as (client, vendor):
        if field_last:  # as the SDK for Node writes it
            body = (
                b'--b\r\ncontent-disposition: form-data; name="image"; filename="i.png"\r\n\r\n\x89PNG\r\n--b\r\n'
                b'content-disposition: form-data; name="model"\r\n\r\nsmall\r\n--b--\r\n'
            )
            headers = {"content-type": "multipart/form-data; boundary=b"}
            raw_post(str(client.base_url).removesuffix("/v1/"), "/v1/images/edits", body, headers)
        else:
            client.images.edit(model="small", image=io.BytesIO(b"\x89PNG"), prompt="a hat")
    assert part(vendor.requests[0].body, "model") == b"m"
    assert b"\x89PNG" in vendor.requests[0].body


def test_speech_comes_back_as_bytes_while_it_is_spoken() -> None:
    sound = bytes(range(256)) * 400
    step = Raw((sound[:50_000], sound[50_000:]), headers={"content-type": "audio/mpeg"}, chunked=True)
    with (
        sdk(step) as (client, vendor),
        client.audio.speech.with_streaming_response.create(model="small", voice="alloy", input="hi") as response,
    ):
        heard = b"".join(response.iter_bytes())
        kind = response.headers["content-type"]
    assert heard == sound
    assert kind == "audio/mpeg"
    assert vendor.requests[0].json()["model"] == "m"


def test_transcriptions_are_sent_as_forms_and_streamed() -> None:
    sound = b"RIFF" + b"\r\n--b\x00" * 1000
    whole = answered({"text": "hello", "usage": {"type": "tokens", "input_tokens": 5, "output_tokens": 2}})
    pieces = (
        b'data: {"type": "transcript.text.delta", "delta": "hel"}\n\n',
        b'data: {"type": "transcript.text.done", "text": "hello"}\n\n',
    )

    def step(received: Received) -> Raw:
        return Raw(pieces, headers=EVENTS, chunked=True) if b'name="stream"' in received.body else whole

    with sdk(step) as (client, vendor):
        got = client.audio.transcriptions.create(model="small", file=("a.wav", sound))
        stream = client.audio.transcriptions.create(model="small", file=("a.wav", sound), stream=True)
        types = [event.type for event in stream]
    assert got.text == "hello"
    assert types == ["transcript.text.delta", "transcript.text.done"]
    for received in vendor.requests:
        assert part(received.body, "model") == b"m"
        assert sound in received.body


def test_reranking_by_all_its_paths() -> None:
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        with FakeVendor([answered({"results": []})]) as vendor, proxied({"up": upstream(vendor, "vllm")}) as address:
            assert call(address, path, {"model": "up/m", "query": "q", "documents": ["a"]}).status == 200
        assert vendor.requests[0].path == "/v1/rerank"


def test_azures_client_finds_embeddings_and_audio() -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    step = answered({"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}})
    with (
        FakeVendor([step]) as vendor,
        proxied({"up": upstream(vendor)}, {"model_aliases": {"e": "up/m"}}) as address,
        openai.AzureOpenAI(azure_endpoint=address, api_key="k", api_version="2026-01-01") as client,
    ):
        client.embeddings.create(model="e", input="x", encoding_format="float")
        client.audio.transcriptions.create(model="e", file=("a.wav", b"RIFF"))
    assert [each.path for each in vendor.requests] == ["/v1/embeddings", "/v1/audio/transcriptions"]
    assert part(vendor.requests[1].body, "model") == b"m"


def test_files_go_up_and_down_and_batches_run() -> None:
    account = Account()
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "small", "messages": []},
    }
    with (
        account.vendor as vendor,
        proxied({"up": upstream(vendor)}, {"model_aliases": {"small": "up/m"}}) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
    ):
        made = client.files.create(file=("notes.txt", b"hello\r\nworld"), purpose="assistants")
        assert client.files.retrieve(made.id).bytes == 12
        assert client.files.content(made.id).read() == b"hello\r\nworld"
        assert [each.id for each in client.files.list()] == [made.id]
        lines = b"\n".join([json.dumps(line).encode()] * 3)
        batch_file = client.files.create(file=("b.jsonl", lines), purpose="batch")
        assert [json.loads(each)["body"]["model"] for each in account.contents[batch_file.id].split(b"\n")] == ["m"] * 3
        batch = client.batches.create(
            input_file_id=batch_file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        assert client.batches.retrieve(batch.id).id == batch.id
        assert client.batches.cancel(batch.id).id == batch.id
        assert client.files.delete(made.id).deleted


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_batch_with_a_schema_is_refused_wherever_its_purpose_stands(where: str) -> None:
    account = Account()
    body = {"model": "up/m", "messages": [], "guided_json": PERSON}
    line = json.dumps({"custom_id": "1", "url": "/v1/chat/completions", "body": body}).encode()
    file = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n' + line + b"\r\n"
    purpose = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    form = (purpose + file if where == "first" else file + purpose) + b"--b--\r\n"
    with account.vendor as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = raw_post(address, "/v1/files", form)
    assert reply.status == 501
    assert "slipform batch" in reply.json["error"]["message"]
    assert not vendor.requests


def raw_post(address: str, path: str, form: bytes, headers: Any = None) -> Any:
    import http.client
    from urllib.parse import urlsplit

    from tests.proxy.proxying import Reply

    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.request("POST", path, form, {"content-type": "multipart/form-data; boundary=b", **(headers or {})})
    response = connection.getresponse()
    reply = Reply(response.status, dict(response.getheaders()), response.read())
    connection.close()
    return reply


def test_anthropics_batches_are_renamed_and_their_results_come_from_here() -> None:
    account = Account()
    with (
        account.vendor as vendor,
        proxied({"up": upstream(vendor, "anthropic")}, {"model_aliases": {"small": "up/m"}}) as address,
        anthropic.Anthropic(base_url=address, api_key="callers-key", max_retries=0) as client,
    ):
        request: Any = {"custom_id": "1", "params": {"model": "small", "max_tokens": 5, "messages": []}}
        made = client.messages.batches.create(requests=[request])
        assert account.kept[made.id]["requests"][0]["params"]["model"] == "m"
        assert made.results_url == f"{address}/v1/messages/batches/{made.id}/results"
        account.contents[made.id] = b'{"custom_id": "1", "result": {"type": "canceled"}}\n'
        results = list(client.messages.batches.results(made.id))
        listed = list(client.messages.batches.list())
        client.messages.batches.cancel(made.id)
        client.messages.batches.delete(made.id)
    assert [each.custom_id for each in results] == ["1"]
    assert [each.results_url for each in listed] == [made.results_url]
    assert not any("callers-key" in str(each.headers) for each in vendor.requests)
    assert all(each.path.startswith("/v1/messages/batches") for each in vendor.requests)


def test_anthropics_files_are_told_apart_from_openais() -> None:
    account, other = Account(), Account()
    providers = {"a": upstream(account.vendor, "anthropic"), "o": upstream(other.vendor)}
    with account.vendor, other.vendor:
        providers = {"a": upstream(account.vendor, "anthropic"), "o": upstream(other.vendor)}
        with proxied(providers, {"default_model": "o/m"}) as address:
            with anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as client:
                made = client.beta.files.upload(file=("a.txt", b"hello"))
                assert client.beta.files.download(made.id).read() == b"hello"
            with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk_:
                sdk_.files.create(file=("a.txt", b"world"), purpose="assistants")
    assert list(account.contents.values()) == [b"hello"]
    assert list(other.contents.values()) == [b"world"]


CLAUDE_CODE: Any = {
    "system": [{"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "Bash", "description": "Run", "input_schema": PERSON}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "list the files " * 50}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a b c"}]},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}


@pytest.mark.parametrize(
    ("kind", "step", "path", "how"),
    [
        ("anthropic", {"input_tokens": 321}, "/v1/messages/count_tokens", None),
        ("gemini", {"totalTokens": 321}, "/v1/models/m:countTokens", "counted"),
        ("openai", {"error": {"message": "?"}}, None, "estimated"),
    ],
)
def test_claude_code_counts_tokens_with_any_vendor(kind: str, step: Any, path: str | None, how: str | None) -> None:
    with (
        FakeVendor([answered(step)]) as vendor,
        proxied({"up": upstream(vendor, kind)}) as address,
        anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as client,
    ):
        got = client.messages.with_raw_response.count_tokens(model="up/m", **CLAUDE_CODE)
    tokens = got.parse().input_tokens
    assert got.headers.get("x-slipform-token-count") == how
    if path is None:
        assert not vendor.requests
        assert 200 < tokens < 600
    else:
        assert tokens == 321
        assert vendor.requests[0].path == path


def gemini_client(address: str) -> genai.Client:
    return genai.Client(api_key="k", http_options={"base_url": address})


@pytest.mark.parametrize(("kind", "step"), [("gemini", {"totalTokens": 7}), ("anthropic", {"input_tokens": 7})])
def test_geminis_client_counts_tokens(kind: str, step: Any) -> None:
    with FakeVendor([answered(step)]) as vendor, proxied({"up": upstream(vendor, kind)}) as address:
        client = gemini_client(address)
        assert client.models.count_tokens(model="up/m", contents="hello").total_tokens == 7
    assert len(vendor.requests) == 1


def test_geminis_client_embeds() -> None:
    step = answered({"embeddings": [{"values": [0.5]}, {"values": [0.25]}]})
    with FakeVendor([step]) as vendor, proxied({"up": upstream(vendor, "gemini")}) as address:
        client = gemini_client(address)
        texts: list[Any] = ["a", "b"]
        got = client.models.embed_content(model="up/m", contents=texts)
    assert [each.values for each in got.embeddings or ()] == [[0.5], [0.25]]
    assert vendor.requests[0].path.startswith("/v1/models/m:")
    assert "up/m" not in vendor.requests[0].body.decode()


def test_another_model_inside_a_gemini_body_is_refused() -> None:
    body = {"requests": [{"model": "models/secret", "content": {"parts": [{"text": "x"}]}}]}
    with FakeVendor([answered({})]) as vendor, proxied({"up": upstream(vendor, "gemini")}) as address:
        assert call(address, "/v1beta/models/up/m:batchEmbedContents", body).status == 400
    assert not vendor.requests


def test_a_vendors_error_comes_back_as_it_is_without_its_key() -> None:
    step = Raw((json.dumps({"error": {"message": f"bad key {KEY}"}}).encode(),), 401, JSON)
    with FakeVendor([step]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, "/v1/embeddings", {"model": "up/m", "input": "x"})
    assert reply.status == 401
    assert KEY not in reply.body.decode()


def test_several_providers_and_no_name_is_a_question_back() -> None:
    with (
        FakeVendor([answered({})]) as one,
        FakeVendor([answered({})]) as two,
        proxied({"a": upstream(one), "b": upstream(two)}, {"default_model": "a/m"}) as address,
    ):
        asked = call(address, "/v1/files")
        assert asked.status == 400
        assert "x-slipform-provider" in asked.json["error"]["message"]
        assert call(address, "/v1/files", headers={"x-slipform-provider": "b"}).status == 200
        assert call(address, "/p/a/v1/files").status == 200
    assert (len(one.requests), len(two.requests)) == (1, 1)


def test_a_provider_without_the_endpoint_is_named_with_those_that_have_it() -> None:
    with FakeVendor([answered({})]) as one, FakeVendor([answered({})]) as two:
        providers = {"claude": upstream(one, "anthropic"), "gpt": upstream(two)}
        with proxied(providers, {"default_model": "gpt/m"}) as address:
            reply = call(address, "/v1/embeddings", {"model": "claude/m", "input": "x"})
    assert reply.status == 501
    assert reply.json["error"]["code"] == "not_served"
    assert "gpt" in reply.json["error"]["message"]


HOSTILE = ["/v1/files/..", "/v1/files/%2e%2e/models", "/v1/files/a%2fb", "/v1/files/a?b", "/v1/files/" + "a" * 300,
           "/v1/files/a%0d%0ax", "/v1/files/a%3fb", "/v1/files/a%23b", "/v1/batches/../files/x"]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_no_path_reaches_anything_but_the_rows_own(path: str) -> None:
    with FakeVendor([answered({"id": "x"})]) as vendor, proxied({"up": upstream(vendor)}) as address:
        call(address, f"{path}?limit=5&x=1&purpose=a%26b")
    assert all(each.path == "/v1/files/a" for each in vendor.requests)


def test_only_the_rows_own_parameters_and_headers_go_along() -> None:
    account = Account()
    headers = {"cookie": "a=b", "x-api-key": "callers", "openai-beta": "b=1", "x-forwarded-for": "1.2.3.4"}
    with account.vendor as vendor, proxied({"up": upstream(vendor)}) as address:
        call(address, "/v1/files?limit=2&key=callers&purpose=x%26y&evil=1", headers=headers)
    assert vendor.requests[0].path == "/v1/files?limit=2&purpose=x%26y"
    sent = vendor.requests[0].headers
    assert sent["openai-beta"] == "b=1"
    assert "callers" not in str(sent)
    assert not {"cookie", "x-forwarded-for"} & set(sent)


def test_a_form_that_could_be_read_in_two_ways_is_refused() -> None:
    twice = b"".join(
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n' % name for name in (b"up/m", b"other")
    )
    with FakeVendor([answered({})]) as vendor, proxied({"up": upstream(vendor)}) as address:
        assert raw_post(address, "/v1/audio/transcriptions", twice + b"--b--\r\n").status == 400
        assert raw_post(address, "/v1/audio/transcriptions", twice).status == 400
        assert raw_post(address, "/v1/audio/transcriptions", b"no form").status == 400
    assert not vendor.requests


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/v1/assistants", 501, "Responses"),
        ("/v1/fine_tuning/jobs", 501, "vendor"),
        ("/v1/uploads", 501, "/v1/files"),
        ("/v1/organization/admin_api_keys", 404, "account"),
        ("/v1/agents", 404, "vendor"),
        ("/api/pull", 403, "machine"),
        ("/v1/nothing/here", 404, "slipform serves"),
    ],
)
def test_what_is_not_served_is_refused_by_name(path: str, status: int, word: str) -> None:
    with FakeVendor([answered({})]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, path, {"model": "up/m"})
    assert reply.status == status
    error = reply.json["error"]
    assert word in (error if isinstance(error, str) else error["message"])  # Ollama's is a text
    assert not vendor.requests


PROMPT: Any = {"model": "up/m", "prompt": "Ada is 36"}
PERSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}


def test_completions_with_a_schema_are_enforced_with_any_vendor() -> None:
    kinds: list[Api] = ["openai", "anthropic"]
    for kind in kinds:
        with (
            FakeVendor(['{"name": "Ada"}', '{"name": "Ada", "age": 36}'], api=kind) as vendor,
            proxied({"up": HttpProvider(kind, base_url=vendor.base_url, api_key=KEY)}) as address,
            openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
        ):
            got = client.completions.create(**PROMPT, extra_body={"guided_json": PERSON})
            stream = client.completions.create(**PROMPT, stream=True, extra_body={"response_format": PERSON_FORMAT})
            text = "".join(each.choices[0].text for each in stream if each.choices)
        assert json.loads(got.choices[0].text) == {"name": "Ada", "age": 36}
        assert got.object == "text_completion"
        assert json.loads(text) == {"name": "Ada", "age": 36}


def test_completions_without_a_schema_go_through_where_the_vendor_has_them() -> None:
    step = answered({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": []})
    with sdk(step) as (client, vendor):
        client.completions.create(model="small", prompt=["a", "b"], suffix="c")
    assert vendor.requests[0].path == "/v1/completions"
    assert vendor.requests[0].json() == {"model": "m", "prompt": ["a", "b"], "suffix": "c"}
    with (
        FakeVendor(["Hello"], api="anthropic") as other,
        proxied({"up": HttpProvider("anthropic", base_url=other.base_url, api_key=KEY)}) as address,
    ):
        assert call(address, "/v1/completions", PROMPT).json["choices"][0]["text"] == "Hello"
        assert call(address, "/v1/completions", {**PROMPT, "suffix": "x"}).status == 400
