"""A vendor that repeats the operator's key: it leaves in no body, event, header or log line, enforced or passed on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from slipform.errors import SlipformError
from slipform.ir import Message, ModelRequest
from slipform.providers.auth import MIN_MASKED, Secret, spellings
from slipform.providers.http import HttpProvider
from slipform.providers.masking import Masker, mask_of
from slipform.providers.retry import RetryPolicy
from slipform.testing import Answer, FakeVendor, Raw, Received
from slipform.testing.vendor import _encode_step
from slipform.testing.wire_formats import SHAPES, Api
from tests.conftest import PERSON
from tests.proxy.proxying import FORMAT, Reply, call, proxied

KEY = "sk-operator/9f8e7d6c+5b4a="
MASKED = mask_of(KEY.encode()).decode()
APIS: list[Api] = ["openai", "openai-responses", "anthropic", "gemini"]
SAID = "Ada is 36"


def request_of(api: Api, *, stream: bool, enforced: bool) -> tuple[str, dict[str, Any]]:
    """A call of each API, with a schema or without."""
    turns = [{"role": "user", "content": SAID}]
    model = f"{api}/m"
    if api == "openai":
        wanted = {"response_format": FORMAT} if enforced else {}
        return "/v1/chat/completions", {"model": model, "messages": turns, "stream": stream, **wanted}
    if api == "openai-responses":
        text = {"text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}} if enforced else {}
        return "/v1/responses", {"model": model, "input": SAID, "stream": stream, **text}
    if api == "anthropic":
        form = {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}} if enforced else {}
        return "/v1/messages", {"model": model, "max_tokens": 99, "messages": turns, "stream": stream, **form}
    config = {"responseMimeType": "application/json", "responseJsonSchema": PERSON} if enforced else {}
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    contents = [{"role": "user", "parts": [{"text": SAID}]}]
    return f"/v1beta/models/{model}:{method}", {"contents": contents, "generationConfig": config}


def cut_in_the_key(raw: Raw) -> Raw:
    """The same bytes, in pieces that end in the middle of every key, and one by one there."""
    whole = b"".join(raw.pieces)
    pieces = []
    while (at := whole.find(b"sk-operator")) >= 0:
        pieces += [whole[: at + 1], whole[at + 1 : at + 6]]
        whole = whole[at + 6 :]
    return dataclasses.replace(raw, pieces=(*pieces, whole), pace=0.002)


def tells(api: Api, word: str, *, cut: bool) -> Callable[[Received], Raw]:
    """A vendor whose answer holds the key, and whose headers do."""

    def answer(received: Received) -> Raw:
        said = json.dumps({"name": word, "age": 36})
        headers = {"x-ratelimit-remaining-requests": KEY, "anthropic-ratelimit-x": KEY, "request-id": KEY}
        raw = _encode_step(Answer(said, chunk_size=1_000, headers=headers), received, SHAPES[api])
        return cut_in_the_key(raw) if cut else raw

    return answer


def ask(api: Api, script: Callable[[Received], Raw], *, stream: bool, enforced: bool) -> Reply:
    with FakeVendor(script, api=api) as vendor:
        provider = HttpProvider(api, base_url=vendor.base_url, api_key=KEY, retries=RetryPolicy(0))
        with proxied({api: provider}) as address:
            replies = [call(address, *request_of(api, stream=stream, enforced=enforced)) for _ in range(3)]
    assert {reply.status for reply in replies} == {replies[0].status}
    return replies[-1]


def shows_no_key(reply: Reply) -> None:
    shown = reply.body.decode() + str(reply.headers)
    for word in spellings((Secret(KEY),)):
        assert word.decode() not in shown
        assert word.decode() not in shown.replace("\\/", "/")


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("enforced", [False, True], ids=["passed", "enforced"])
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
@pytest.mark.parametrize("api", APIS)
def test_a_key_in_an_answer_or_a_header_is_masked(api: Api, stream: bool, enforced: bool, cut: bool) -> None:
    reply = ask(api, tells(api, KEY, cut=cut), stream=stream, enforced=enforced)
    assert reply.status == 200
    shows_no_key(reply)
    assert "[redacted]" in reply.body.decode()
    if not enforced:
        assert "[redacted]" in str(reply.headers)


@pytest.mark.parametrize("enforced", [False, True], ids=["passed", "enforced"])
@pytest.mark.parametrize("api", APIS)
def test_a_key_in_an_error_event_is_masked(api: Api, enforced: bool) -> None:
    error = {"error": {"message": f"bad key {KEY}", "code": 500, "type": "api_error"}}
    if api == "anthropic":
        event = b"event: error\ndata: " + json.dumps({"type": "error", **error}).encode() + b"\n\n"
    elif api == "openai-responses":
        event = b"event: error\ndata: " + json.dumps({"type": "error", **error["error"]}).encode() + b"\n\n"
    else:
        event = b"data: " + json.dumps(error).encode() + b"\n\n"
    raw = Raw(pieces=(event,), headers={"content-type": "text/event-stream"}, chunked=True)
    reply = ask(api, lambda _: cut_in_the_key(raw), stream=True, enforced=enforced)
    shows_no_key(reply)


def test_the_length_of_an_answer_is_right_after_masking() -> None:
    body = json.dumps({"choices": [], "key": KEY}).encode()
    with FakeVendor([Raw(pieces=(body,), headers={"content-type": "application/json"})]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key=KEY)
        with proxied({"openai": provider}) as address:
            reply = call(address, *request_of("openai", stream=False, enforced=False))
    assert reply.json == {"choices": [], "key": MASKED}
    assert int(reply.headers["content-length"]) == len(reply.body)


@pytest.mark.parametrize(
    "spelled",
    [KEY, quote(KEY, safe=""), quote(KEY), KEY.replace("/", "\\/"), KEY.replace("=", "\\u003d")],
)
def test_other_spellings_of_the_key_are_masked_too(spelled: str) -> None:
    body = b'{"choices": [], "key": "%s"}' % spelled.encode()
    with FakeVendor([Raw(pieces=(body,), headers={"content-type": "application/json"})]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key=KEY)
        with proxied({"openai": provider}) as address:
            reply = call(address, *request_of("openai", stream=False, enforced=False))
    assert spelled.encode() not in reply.body
    assert reply.json["key"].startswith("[redacted]")


def test_words_that_are_hardly_keys_are_left_alone() -> None:
    assert len("ollama") < MIN_MASKED
    with FakeVendor(["I run on ollama."]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="ollama")
        with proxied({"openai": provider}) as address:
            reply = call(address, *request_of("openai", stream=False, enforced=False))
    assert "I run on ollama." in reply.body.decode()


def test_blocking_calls_of_the_library_are_masked_too() -> None:
    request = ModelRequest("m", (Message.user(SAID),))
    with (
        FakeVendor(tells("openai", KEY, cut=True)) as vendor,
        HttpProvider("openai", base_url=vendor.base_url, api_key=KEY) as provider,
    ):
        assert json.loads(provider.complete(request).text)["name"] == MASKED
        assert json.loads("".join(chunk.text or "" for chunk in provider.stream(request)))["name"] == MASKED


def test_a_key_that_is_told_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    ask("openai", lambda _: Raw(pieces=(b"not JSON: " + KEY.encode(),)), stream=False, enforced=True)
    assert KEY not in caplog.text


def test_a_key_cut_anywhere_is_masked_and_nothing_else_is_held_back() -> None:
    text = f"before {KEY} and {KEY}{KEY} sk-op sk-operator/9 after".encode()
    expected = text.replace(KEY.encode(), MASKED.encode())
    words = spellings((Secret(KEY),))
    for first in range(len(text)):
        for second in (first, min(first + 3, len(text)), len(text)):
            masker = Masker(words)
            told = masker.feed(text[:first]) + masker.feed(text[first:second]) + masker.feed(text[second:])
            assert told + masker.finish() == expected
    masker = Masker(words)
    assert masker.feed(b'data: {"text": "words"}\n\n') == b'data: {"text": "words"}\n\n'


def test_an_error_before_the_answer_is_masked() -> None:
    step = Raw(status=400, pieces=(b'{"error": {"message": "key %s"}}' % KEY.encode(),))
    with (
        FakeVendor([step]) as vendor,
        HttpProvider("openai", base_url=vendor.base_url, api_key=KEY, retries=RetryPolicy(0)) as provider,
        pytest.raises(SlipformError) as caught,
    ):
        provider.complete(ModelRequest("m", (Message.user(SAID),)))
    assert KEY not in str(caught.value)
