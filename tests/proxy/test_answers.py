"""Enforced answers on the proxy: what a caller may switch, and what they are told of it."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from slipform.config import read_settings
from slipform.testing import FakeVendor
from tests.conftest import PERSON
from tests.proxy.wire import before, post

CHAT = "/v1/chat/completions"
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ASK: Any = {"model": "fast", "messages": [{"role": "user", "content": "Ada is 36"}], "response_format": FORMAT}
GOOD = '{"name": "Ada", "age": 36}'
COMPACT = '{"name":"Ada","age":36}'
WRONG = '{"name": "Ada", "age": "36 or so"}'


@pytest.mark.covers("S2-63", "S2-64", "S1-50")
def test_the_headers_and_on_request_a_field_tell_what_was_done() -> None:
    with FakeVendor([WRONG, GOOD]) as vendor, before(vendor) as address:
        reply = post(address, CHAT, {**ASK, "slipform": {"report": True}})
    answer = reply.json()
    assert answer["choices"][0]["message"]["content"] == COMPACT
    assert reply.headers["x-slipform-attempts"] == "2"
    assert reply.headers["x-slipform-strategy"] == "native"
    assert [each["outcome"] for each in answer["slipform"]["attempts"]] == ["schema_violation", "ok"]
    cost = answer["usage"].pop("cost")
    assert cost == pytest.approx(float(reply.headers["x-slipform-cost"]), abs=1e-9)
    assert answer["usage"] == {"prompt_tokens": 14, "completion_tokens": 10, "total_tokens": 24}
    assert all("slipform" not in request.json() for request in vendor.requests)


def test_without_being_asked_for_there_is_no_report() -> None:
    with FakeVendor([GOOD]) as vendor, before(vendor) as address:
        assert "slipform" not in post(address, CHAT, ASK).json()


@pytest.mark.parametrize(
    ("field", "headers"),
    [
        ({"strategy": "prompted", "max_attempts": 1}, {}),
        (None, {"x-slipform-strategy": "prompted", "x-slipform-max-attempts": "1"}),
    ],
    ids=["body", "headers"],
)
def test_a_request_may_choose_the_strategy_and_fewer_attempts(field: Any, headers: Any) -> None:
    with FakeVendor([WRONG, GOOD]) as vendor, before(vendor) as address:
        reply = post(address, CHAT, {**ASK, **({"slipform": field} if field else {})}, headers)
    assert reply.status == 422
    assert len(vendor.requests) == 1
    assert "matching this schema" in str(vendor.requests[0].json()["messages"])


@pytest.mark.parametrize(
    ("field", "headers", "said"),
    [
        ({"reprot": True}, {}, "reprot"),
        ({"strategy": "magic"}, {}, "magic"),
        ({"max_attempts": 99}, {}, "Between 1 and 3"),
        ({"max_attempts": True}, {}, "max_attempts"),
        ({"stream_mode": ["live"]}, {}, "stream_mode"),
        ([], {}, "object"),
        (None, {"x-slipform-reprot": "true"}, "reprot"),
        (None, {"x-slipform-report": "maybe"}, "maybe"),
    ],
)
@pytest.mark.parametrize("shaped", [True, False])
@pytest.mark.covers("C31")
def test_a_switch_that_does_not_exist_is_named(field: Any, headers: Any, said: str, shaped: bool) -> None:
    body = ASK if shaped else {key: ASK[key] for key in ("model", "messages")}
    with FakeVendor([GOOD]) as vendor, before(vendor) as address:
        reply = post(address, CHAT, {**body, **({} if field is None else {"slipform": field})}, headers)
    assert reply.status == 400
    assert said in str(reply.json()["error"])
    assert vendor.requests == []


def test_the_switches_are_taken_out_of_what_goes_through() -> None:
    with FakeVendor(["Hello"]) as vendor, before(vendor) as address:
        body = {"model": "fast", "messages": ASK["messages"], "slipform": {"report": True}, "odd": 1}
        assert post(address, CHAT, body).status == 200
    assert vendor.requests[0].json() == {"model": "gpt-6-luna", "messages": ASK["messages"], "odd": 1}


@pytest.mark.covers("S2-72", "C11")
def test_streams_with_a_schema_can_be_switched_off_by_the_operator_or_for_one_request() -> None:
    settings = read_settings("enforcement: {stream_mode: reject}")
    with FakeVendor([GOOD]) as vendor, before(vendor, settings=settings) as address:
        assert post(address, CHAT, {**ASK, "stream": True}).status == 400
        asked = {**ASK, "stream": True, "slipform": {"stream_mode": "buffer"}}
        assert post(address, CHAT, asked).status == 200


# The report in a stream, where the official clients must not stumble over it.


@pytest.mark.covers("S2-26")
def test_openais_streams_bring_the_report_in_their_last_event() -> None:
    with FakeVendor([GOOD]) as vendor, before(vendor) as address:
        asked = {**ASK, "stream": True, "slipform": {"report": True}}
        plain, with_usage = (
            post(address, CHAT, {**asked, **more}).events()
            for more in ({}, {"stream_options": {"include_usage": True}})
        )
        assert plain[-1] == with_usage[-1] == "[DONE]"
        assert plain[-2]["slipform"]["attempts"][0]["outcome"] == "ok"
        assert plain[-2]["choices"][0]["finish_reason"] == "stop"
        assert with_usage[-2]["slipform"]["attempts"][0]["outcome"] == "ok"
        assert not any("slipform" in event for event in with_usage[:-2])
        with openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0) as client:
            with client.chat.completions.stream(
                model="fast",
                messages=ASK["messages"],
                response_format=FORMAT,
                extra_body={"slipform": {"report": True}},
            ) as stream:
                stream.until_done()
                assert stream.get_final_completion().choices[0].message.content == COMPACT
            reply = client.responses.create(
                model="fast",
                input="Ada is 36",
                text={"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}},
                extra_body={"slipform": {"report": True}},
                stream=True,
            )
            events = list(reply)
            assert events[-1].type == "response.completed"
            extra: Any = events[-1].response
            assert extra.slipform["attempts"][0]["outcome"] == "ok"
            assert events[-1].response.output_text == COMPACT


def test_anthropics_stream_brings_the_report_in_the_message_delta() -> None:
    with (
        FakeVendor([GOOD]) as vendor,
        before(vendor) as address,
        anthropic.Anthropic(base_url=address, api_key="-", max_retries=0) as client,
    ):
        extra = {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}, "slipform": {"report": True}}
        with client.messages.stream(
            model="fast", max_tokens=99, messages=[{"role": "user", "content": "Ada"}], extra_body=extra
        ) as stream:
            events: list[Any] = list(stream)
            last: Any = stream.get_final_message().content[0]
    assert last.text == COMPACT
    delta = next(event for event in events if event.type == "message_delta")
    assert delta.slipform["attempts"][0]["outcome"] == "ok"


def test_googles_stream_brings_the_report_where_its_client_takes_no_notice() -> None:
    with FakeVendor([GOOD]) as vendor, before(vendor) as address:
        client = genai.Client(
            api_key="-", http_options=types.HttpOptions(base_url=address, headers={"x-slipform-report": "true"})
        )
        config = types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=PERSON)
        parts = list(client.models.generate_content_stream(model="fast", contents="Ada", config=config))
        assert "".join(part.text or "" for part in parts) == COMPACT
        path = "/v1beta/models/fast:streamGenerateContent"
        body = {
            "contents": [{"parts": [{"text": "Ada"}]}],
            "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": PERSON},
            "slipform": {"report": True},
        }
        assert post(address, path, body).events()[-1]["slipform"]["attempts"][0]["outcome"] == "ok"
