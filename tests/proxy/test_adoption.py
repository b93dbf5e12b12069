"""Schemas from prompts, through the proxy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.codecs import find_api
from slipform.config import Enforcement, Settings
from slipform.enforce.adoption import find_schema
from slipform.testing import FakeModel, FakeVendor
from tests.codecs.recorded import SHARED
from tests.enforce.test_adoption import INSTRUCTOR, LLAMA_INDEX
from tests.proxy.proxying import ADA, Reply, chat, proxied
from tests.proxy.wire import before, post

SYSTEM: Any = [{"role": "system", "content": INSTRUCTOR}, {"role": "user", "content": "Ada is 36"}]
USER: Any = [{"role": "user", "content": LLAMA_INDEX}]
CAPTURED = SHARED / "prompted-clients" / "captured.jsonl"
PROMPTED = {
    "lc-PydanticOutputParser", "lc-JsonOutputParser", "pa-Prompted", "pa-Prompted-union", "ds-JSON",
    "ll-structured_predict-chat", "ll-TextProgram", "ll-as_structured_llm",
    "in-JSON-sys", "in-JSON-nosys", "in-MD_JSON-sys", "in-MD_JSON-nosys",
}  # fmt: skip
JSON: Any = {"type": "json_object"}


def prompted(address: str, messages: Any = SYSTEM, wanted: Any = JSON, **headers: str) -> Reply:
    return chat(address, headers, messages=messages, response_format=wanted)


def test_a_schema_from_the_prompt_is_enforced_and_told() -> None:
    model = FakeModel(['{"name": "Ada"}', ADA])
    with proxied({"fake": model}) as address:
        reply = chat(address, messages=SYSTEM, response_format=JSON, slipform={"report": True})
    assert reply.status == 200
    assert reply.headers["x-slipform-schema-from"] == "instructor"
    assert reply.headers["x-slipform-attempts"] == "2"
    assert reply.json["choices"][0]["message"]["content"] == ADA
    assert [each["code"] for each in reply.json["slipform"]["warnings"]] == ["schema_adopted"]
    first = model.requests[0]
    assert [message.text for message in first.messages] == [INSTRUCTOR, "Ada is 36"]  # no second schema in the prompt


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_never_fits_goes_back_as_it_is(stream: bool) -> None:
    with proxied({"fake": FakeModel(["I cannot say.", "I do not know."])}) as address:
        reply = chat(address, messages=SYSTEM, response_format=JSON, stream=stream)
    assert reply.status == 200
    assert b"I do not know." in reply.body


def test_other_places_are_taken_on_demand_only() -> None:
    model = FakeModel(['{"name": "Ada", "age": "36", "more": 1}'] * 3)
    with proxied({"fake": model}) as address:
        assert "x-slipform-schema-from" not in prompted(address, USER, None).headers
        found = prompted(address, USER, None, **{"x-slipform-adopt": "all"})
        assert found.headers["x-slipform-schema-from"] == "llama-index"
        assert '"age":36' in found.json["choices"][0]["message"]["content"]
        assert "x-slipform-schema-from" not in prompted(address, **{"x-slipform-adopt": "off"}).headers
        wrong = prompted(address, **{"x-slipform-adopt": "some"})
        assert (wrong.status, "adopt" in wrong.json["error"]["message"]) == (400, True)


def test_a_schema_over_the_limits_is_not_taken() -> None:
    with proxied({"fake": FakeModel(["{}"])}, {"server": {"max_schema_nodes": 100}}) as address:
        properties = ", ".join(f'"p{at}": {{"type": "string"}}' for at in range(200))
        text = INSTRUCTOR.replace('"properties": {', f'"properties": {{{properties}, ')
        reply = prompted(address, [{"role": "system", "content": text}, {"role": "user", "content": "hi"}])
        assert (reply.status, reply.headers.get("x-slipform-schema-from")) == (200, None)


def test_words_of_a_library_without_its_schema_do_not_keep_a_call_from_being_forwarded() -> None:
    question = b'{"model":"fast", "messages": [{"role":"user","content":"Who says compatible with this schema:?"}]}'
    settings = Settings(enforcement=Enforcement(adopt_schemas="all"))
    with FakeVendor(["somebody"]) as vendor, before(vendor, settings=settings) as address:
        assert post(address, "/v1/chat/completions", question).status == 200
    assert vendor.requests[0].body == question.replace(b"fast", b"gpt-6-luna")


@pytest.mark.skipif(not CAPTURED.is_file(), reason="the captured requests are not beside this repository")
def test_captured_requests_of_libraries_that_prompt_are_recognised_and_no_other() -> None:
    found: dict[str, set[str | None]] = {}
    for line in CAPTURED.read_text().splitlines():
        captured = json.loads(line)
        body = captured["body"]
        adopted = find_schema(find_api("openai-chat").decode_request(body).request, "all")
        tag = "ds-JSON" if "Outputs will be a JSON object" in str(body) else captured["tag"]  # DSPy tries that last
        found.setdefault(tag, set()).add(adopted and adopted.library)
    libraries = {"lc": "langchain", "pa": "pydantic-ai", "ll": "llama-index", "ds": "dspy", "in": "instructor"}
    for tag, names in found.items():
        assert names == ({libraries[tag[:2]]} if tag in PROMPTED else {None}), tag
    assert found.keys() >= PROMPTED
