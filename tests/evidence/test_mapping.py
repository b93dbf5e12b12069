"""From tokens to values through everything that is done to an answer: exact, or no score and a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from bench.faults_data import ALL, RIGHT, TEXT, Fault, Invoice

from slipform import Client, Evidence, FieldEvidence, JsonSchemaSpec, Options
from slipform.addons.evidence.lifting import lifted_paths
from slipform.codecs import Capabilities
from slipform.ir import RESERVED_TOOL, ModelResponse, ToolCall
from slipform.ir.logprobs import Token
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor, Raw
from tests.evidence.test_confidence import as_logprobs, cut, expected

LOGPROBS = Evidence(confidence="logprobs")
SEEDS = range(3)


def said(text: str, seed: int, finish: Any = "stop") -> ModelResponse:
    return ModelResponse(text=text, finish=finish, extra={"logprobs": as_logprobs(cut(text, seed))})


def evidence_of(shape: Any, script: Sequence[ModelResponse], **more: Any) -> tuple[Any, dict[str, FieldEvidence]]:
    model = FakeModel(list(script), capabilities=Capabilities(native=True))
    client = Client(router=Router({"fake": model}, default="fake/m"))
    result = client.ask_full(shape, "Read this.", evidence=LOGPROBS, max_attempts=2, **more)
    return result.value, dict(result.evidence)


SPELLED: dict[str, dict[str, str]] = {
    'whole number as "3"': {"/lines/0/quantity": '"3"'},
    'number as "1,234.50"': {"/total": '"1,234.50"'},
    "listed value in another case": {"/status": "PAID"},
    "listed value in quotes, with a stop": {"/status": "'Paid'."},
}
"""How the model wrote a value, where it is not as in the right answer."""
OWN = {
    "/number": "A-17",
    "/status": "paid",
    "/total": "1234.5",
    "/lines/0/name": "Bolt, M8",
    "/lines/0/quantity": "3",
    "/lines/0/price": "400.0",
    "/lines/1/name": "Nut",
    "/lines/1/quantity": "5",
    "/lines/1/price": "6.9",
    "/notes": "due soon",
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_every_fault_is_mapped_exactly_or_has_a_reason(fault: Fault, seed: int) -> None:
    script = [said(fault.text, seed, fault.finish), said(TEXT, seed + 7)]
    model = FakeModel(script, capabilities=Capabilities(native=True))
    client = Client(router=Router({"fake": model}, default="fake/m"))
    result = client.ask_full(Invoice, "Read this.", evidence=LOGPROBS, max_attempts=2)
    last = script[len(result.report.attempts) - 1]
    tokens = cut(last.text, seed if len(result.report.attempts) == 1 else seed + 7)
    scored = 0
    for pointer, spelled in OWN.items():
        known = result.evidence[pointer]
        if known.confidence is None:
            assert known.reason, pointer
            continue
        assert known.signal == "logprobs"
        spelled = SPELLED.get(fault.name, {}).get(pointer, spelled).strip('"')
        if pointer == "/notes" and result.value.notes == RIGHT.notes:
            spelled = json.dumps(RIGHT.notes)[1:-1]
        text = last.text
        if fault.name == "reasoning first" and "</think>" in text:
            text = "\0" * text.index("</think>") + text[text.index("</think>") :]
        if pointer.startswith("/lines/1"):  # what stands before it may hold the same digits
            text = "\0" * text.index("Nut") + text[text.index("Nut") :]
        if pointer in ("/total", "/lines/0/quantity", "/lines/0/price", "/lines/1/quantity", "/lines/1/price"):
            key = pointer.rpartition("/")[2]
            text = "\0" * text.index(key) + text[text.index(key) :]
        if fault.name == "a list inside a string" and "/lines/" in pointer:
            pytest.fail("the values of a text inside a string have no tokens of their own")
        assert known.confidence == pytest.approx(expected(tokens, text, spelled)), pointer
        scored += 1
    if fault.name != "the JSON inside a JSON string":
        assert scored >= 4


ITEMS = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "note": {"type": "string"},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
        "ok": {"type": "boolean"},
    },
    "required": ["title", "tags", "ok"],
    "additionalProperties": False,
}


def test_a_lifted_answer_keeps_the_tokens_of_its_values() -> None:
    text = '{"title": "Ada", "note": null, "tags": [{"key": "x", "value": 41}, {"key": "y", "value": 7}], "ok": true}'
    tokens = cut(text, seed=5)
    entries = as_logprobs(tokens)
    body = {
        "choices": [{"message": {"content": text}, "finish_reason": "stop", "logprobs": entries}],
        "model": "m",
        "id": "1",
    }
    with FakeVendor([Raw((json.dumps(body).encode(),), 200, {"content-type": "application/json"})]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k")
        client = Client(router=Router({"openai": provider}, default="openai/gpt-6-luna"))
        result = client.ask_full(JsonSchemaSpec("items", ITEMS), "Read this.", evidence=LOGPROBS)
    assert vendor.requests[0].json()["logprobs"] is True
    assert result.value == {"title": "Ada", "tags": {"x": 41, "y": 7}, "ok": True}
    for pointer, spelled in {"/title": "Ada", "/tags/x": "41", "/tags/y": "7", "/ok": "true"}.items():
        assert result.evidence[pointer].confidence == pytest.approx(expected(tokens, text, spelled)), pointer


def test_a_part_that_was_asked_for_again_has_the_tokens_of_its_own_answer() -> None:
    names = [f"a long name of a thing, number {number}" for number in range(40)]
    shape = {
        "type": "object",
        "properties": {"names": {"type": "array", "items": {"type": "string"}}, "age": {"type": "integer"}},
        "required": ["names", "age"],
        "additionalProperties": False,
    }
    first = json.dumps({"names": names, "age": "old"})
    second = '{"$.age": 36}'
    value, found = evidence_of(shape, [said(first, 1), said(second, 2)], options=Options(reask_scope="parts"))
    assert value["age"] == 36
    assert found["/age"].confidence == pytest.approx(expected(cut(second, 2), second, "36"))
    assert found["/age"].touched == ("re-asked",)
    assert found["/names/7"].confidence == pytest.approx(expected(cut(first, 1), first, names[7]))
    assert found["/names/7"].touched == ()


def test_an_answer_that_was_asked_for_again_has_the_tokens_of_the_last() -> None:
    value, found = evidence_of(int, [said("none", 1), said("36", 2)])
    assert value == 36
    assert found[""].confidence == pytest.approx(math.exp(sum(token.logprob for token in cut("36", 2))))
    assert found[""].touched == ("re-asked",)


def test_a_stripped_text_has_no_score_and_a_reason() -> None:
    whole = '\n{"a": 36}'
    response = ModelResponse(text=whole.strip(), extra={"logprobs": as_logprobs(cut(whole, 1))})
    _, found = evidence_of({"type": "object", "properties": {"a": {"type": "integer"}}}, [response])
    assert found["/a"].confidence is None
    assert found["/a"].reason == "the tokens do not join to the model's text"


def test_the_arguments_of_a_call_have_no_score_and_the_reason_says_so() -> None:
    call = ToolCall("1", RESERVED_TOOL, '{"a": 36}')
    _, found = evidence_of(
        {"type": "object", "properties": {"a": {"type": "integer"}}}, [ModelResponse(tool_calls=(call,))]
    )
    assert found["/a"].confidence is None
    assert "tool call" in (found["/a"].reason or "")


def test_what_slipform_put_in_has_no_score() -> None:
    shape = {
        "type": "object",
        "properties": {"kind": {"const": "person"}, "age": {"type": "integer"}},
        "required": ["kind", "age"],
    }
    _, found = evidence_of(shape, [said('{"age": 36}', 1)])
    assert (found["/kind"].confidence, found["/kind"].touched) == (None, ("filled",))
    assert found["/age"].confidence is not None


def test_a_value_that_no_lift_can_be_followed_through_is_unknown() -> None:
    found = lifted_paths({("a",): 1, ("b",): 2}, {"a": "[1]", "b": 2}, lambda value: json.loads(value["a"]), 0)
    assert found == {("0",): 0}


def test_nothing_is_certain_for_want_of_tokens() -> None:
    tokens = [Token(b"{", 0.0)]
    response = ModelResponse(text='{"a": ""}', extra={"logprobs": as_logprobs(tokens)})
    _, found = evidence_of({"type": "object", "properties": {"a": {"type": "string"}}}, [response])
    assert found["/a"].confidence is None
