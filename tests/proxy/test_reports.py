"""What callers are told of an answer that could not be made valid, and of one that must be JSON whatever they ask."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.ir import ModelResponse
from slipform.testing import FakeModel
from tests.proxy.proxying import ADA, call, chat, proxied

FAILURES = {"prose": "Ada is 36.", "empty": "", "invalid": '{"name": 1}'}


@pytest.mark.covers("S2-65", "S2-68", "C31")
@pytest.mark.parametrize("said", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("asked", [True, False])
def test_an_error_has_its_list_and_the_report_if_it_was_asked_for(said: Any, asked: bool) -> None:
    with proxied({"fake": FakeModel([said, said], models=("m",))}) as address:
        reply = chat(address, slipform={"report": asked})
    assert reply.status == 422
    assert reply.json["error"]["details"]["validation_errors"]
    assert ("slipform" in reply.json) == asked
    if asked:
        assert len(reply.json["slipform"]["attempts"]) == 2


@pytest.mark.covers("S2-68")
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_the_list_is_there_in_every_api(path: str) -> None:
    shape = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    bodies: dict[str, Any] = {
        "/v1/messages": {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hi"}],
            "output_config": {"format": {"type": "json_schema", "schema": shape}},
        },
        "/v1/responses": {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": shape}}},
    }
    with proxied({"fake": FakeModel(["no", "no"], models=("m",))}) as address:
        reply = call(address, path, {"model": "fake/m", **bodies[path], "slipform": {"report": True}})
    assert "validation_errors" in json.dumps(reply.json)
    assert "attempts" in reply.json["slipform"]


@pytest.mark.covers("S1-01")
def test_with_require_json_every_answer_is_json_or_an_error() -> None:
    model = FakeModel(["Sure: " + ADA, "Ada is 36.", "no"], models=("m",))
    with proxied({"fake": model}, {"output": {"require_json": True}}) as address:
        good = chat(address, response_format=None)
        bad = chat(address, response_format=None)
    assert (good.status, good.json["choices"][0]["message"]["content"]) == (200, ADA)
    assert bad.status == 422
    assert "JSON" in model.requests[0].messages[0].text
    assert model.requests[0].json_mode


@pytest.mark.parametrize("stream", [False, True])
def test_a_value_in_unfinished_reasoning_is_not_taken_out_of_it(stream: bool) -> None:
    text = f"<think>Maybe {ADA}? Let me check"
    cut = ModelResponse(text=text, finish="length")
    with proxied({"fake": FakeModel([cut], models=("m",))}) as address:
        reply = chat(address, stream=stream)
    assert json.dumps(text)[1:-1] in reply.body.decode(), "the text as it was cut off, which is not JSON"
    assert b'"finish_reason":"length"' in reply.body
    raising = {"enforcement": {"on_incomplete": "raise"}}
    with proxied({"fake": FakeModel([cut] * 2, models=("m",))}, raising) as address:
        reply = chat(address, stream=stream)
    assert (reply.status, reply.json["error"]["code"]) == (422, "truncated")


def test_without_a_schema_an_error_speaks_of_json_and_not_of_a_schema() -> None:
    wrong: list[Any] = []
    for answer in ("42", "null", '"text"', "nothing"):
        with proxied({"fake": FakeModel([answer] * 2, models=("m",))}, {"output": {"require_json": True}}) as address:
            reply = chat(address, response_format=None)
        if reply.status != 422 or "schema" in reply.json["error"]["message"]:
            wrong.append((answer, reply.status, reply.json))
    assert wrong == []


def test_the_count_of_warnings_leaves_out_what_is_only_noted() -> None:
    with proxied({"fake": FakeModel(["Sure: " + ADA], models=("m",))}) as address:
        reply = chat(address, slipform={"report": True})
    assert reply.headers["x-slipform-warnings"] == "0"
    assert [note["code"] for note in reply.json["slipform"]["notes"]] == ["text_left_out"]
