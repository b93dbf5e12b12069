"""The report is complete and quiet: what was left out, what was closed, which channel was used, what is only noted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform import Budget, Client, Guard, Options, loads_report
from slipform.codecs import Capabilities
from slipform.config import read_settings
from slipform.enforce import Outcome, Requirement, judge
from slipform.engine.setup import options_of
from slipform.errors import JsonEnforcementError, RequestError
from slipform.ir import Message, ModelRequest, ModelResponse, ToolCall
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from slipform.testing import FakeModel, FakeVendor
from slipform.testing.vendor import Step, rejected

OPEN: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
SHAPE: dict[str, Any] = {**OPEN, "additionalProperties": False}
ADA = '{"name":"Ada","age":36}'


def _request(shape: dict[str, Any] = SHAPE, **extra: Any) -> ModelRequest:
    wanted = ResponseFormat.strict(JsonSchemaSpec("person", shape))
    return ModelRequest("fake/m", (Message.system("Be kind."), Message.user("Who?")), wanted, extra=extra)


def _respond(*script: Any, guard: Guard | None = None, attempts: int = 2, **extra: Any) -> Outcome:
    model = FakeModel(list(script), models=("m",))
    options = Options(budget=Budget(attempts), guard=guard or Guard())
    return Client(router=Router({"fake": model}), options=options).respond(_request(**extra))


LEFT_OUT = [
    ("prose before", "Sure! Here: " + ADA, [(0, 11)]),
    ("prose after", ADA + " Note: I made this up.", [(len(ADA) + 1, len(ADA) + 22)]),
    ("both", f"Sure:\n{ADA}\nDone.", [(0, 5), (len(ADA) + 7, len(ADA) + 12)]),
    ("prose around a fence", f"Here:\n```json\n{ADA}\n```\nBye", [(0, 5), (len(ADA) + 19, len(ADA) + 22)]),
    ("only a fence", f"```json\n{ADA}\n```", []),
    ("only tags", f"<answer>{ADA}</answer>", []),
    ("only thinking", f"<think>Hm, 36.</think>\n{ADA}", []),
    ("only special tokens", f"<|channel|>final<|message|>{ADA}<|end|>", []),
    ("nothing", ADA + "\n", []),
]


@pytest.mark.covers("C08", "S0-27")
@pytest.mark.parametrize(("text", "spans"), [row[1:] for row in LEFT_OUT], ids=[row[0] for row in LEFT_OUT])
def test_text_left_out_is_one_note_with_its_span(text: str, spans: list[tuple[int, int]]) -> None:
    outcome = _respond(text)
    assert outcome.report.warnings == ()
    assert [note.code for note in outcome.report.notes] == (["text_left_out"] if spans else [])
    if spans:
        assert outcome.report.notes[0].path == ",".join(f"{start}:{end}" for start, end in spans)
    assert list(loads_report(text, SHAPE).left_out) == spans
    assert [text[start:end] for start, end in spans] == [text[start:end].strip() for start, end in spans]


@pytest.mark.covers("C08")
@pytest.mark.parametrize(("text", "spans"), [row[1:] for row in LEFT_OUT], ids=[row[0] for row in LEFT_OUT])
def test_strict_trailing_makes_it_a_fault(text: str, spans: list[tuple[int, int]]) -> None:
    outcome = _respond(text, ADA, guard=Guard(strict_trailing=True))
    expected = ["not_json", "ok"] if spans else ["ok"]
    assert [attempt.outcome for attempt in outcome.report.attempts] == expected
    if spans:
        with pytest.raises(JsonEnforcementError, match="text around the JSON"):
            _respond(text, attempts=1, strict_trailing=True)


@pytest.mark.covers("C33", "C06", "C12", "S0-24", "S0-55")
def test_guards_are_settings_and_may_be_spelled_in_camel_case() -> None:
    settings = read_settings("enforcement: {strictTrailing: true, stopAfterJson: true, max_prefix_chars: 80}")
    assert options_of(settings).guard == Guard(strict_trailing=True, stop_after_json=True, max_prefix_chars=80)
    for spelled in ("response_format_max_schema_chars", "responseFormatMaxSchemaChars"):
        assert options_of(read_settings(f"enforcement: {{{spelled}: 321}}")).max_schema_chars == 321
    asked = {"responseFormatFailHard": True, "maxPrefixChars": 9, "other": 1}
    assert Guard.of(asked) == Guard(response_format_fail_hard=True, max_prefix_chars=9)
    assert Guard.without(asked) == {"other": 1}
    with pytest.raises(RequestError, match="number of characters"):
        Guard.of({"max_prefix_chars": True})


@pytest.mark.covers("S2-16")
@pytest.mark.parametrize("text", [f"Sure: {ADA}!", f"```json\n{ADA}\n```"])
def test_without_repair_json_is_still_found(text: str) -> None:
    assert judge(ModelResponse(text=text), Requirement(Schema.of(SHAPE), repair=False)).value == json.loads(ADA)
    broken = judge(ModelResponse(text=text.replace('"Ada"', "'Ada'")), Requirement(Schema.of(SHAPE), repair=False))
    assert isinstance(broken.error, JsonEnforcementError)


@pytest.mark.covers("S0-19", "S0-53", "S0-54")
def test_a_single_quoted_answer_is_followed_by_the_guards_as_by_the_judge() -> None:
    chatty = "{'name': 'Ada }', age: 36}" + " and so on" * 200
    outcome = _respond(chatty, guard=Guard(stop_after_json=True, response_format_fail_hard=True), attempts=1)
    assert outcome.value == {"name": "Ada }", "age": 36}


@pytest.mark.covers("S2-36")
def test_a_tool_call_that_was_the_answer_does_not_leave_as_one() -> None:
    outcome = _respond(ModelResponse(tool_calls=(ToolCall("c1", "person", ADA),), finish="tool_calls"))
    answer = outcome.answer
    assert (answer.text, answer.tool_calls, answer.finish) == (ADA, (), "stop")
    assert answer.content_resolved == json.loads(ADA)


def _vendor_client(vendor: FakeVendor, kind: str, attempts: int = 2) -> Client:
    row = load_catalog({"v": {"extends": kind, "base_url": vendor.base_url}}).vendors["v"]
    options = Options(budget=Budget(attempts))
    return Client(router=Router({"v": HttpProvider(row, api_key="k")}), options=options)


@pytest.mark.covers("C16", "S4-33")
def test_the_first_call_after_a_refusal_names_the_channel_that_was_used() -> None:
    script: list[Step] = [rejected("response_format json_schema is not supported by this model"), ADA, ADA]
    with FakeVendor(script) as vendor, _vendor_client(vendor, "openai") as client:
        reports = [client.respond(_request().replace(model="v/gpt-6-luna")).report for _ in range(2)]
        sent = [received.json() for received in vendor.requests]
    used = [OutputStrategy.TOOL if "tools" in body else OutputStrategy.PROMPTED for body in sent[1:]]
    assert [report.attempts[-1].strategy for report in reports] == used
    assert "json_schema" in json.dumps(sent[0]["response_format"])


@pytest.mark.covers("S4-33")
def test_objects_that_were_closed_are_noted_and_no_loss() -> None:
    with FakeVendor([ADA]) as vendor, _vendor_client(vendor, "openai") as client:
        report = client.respond(_request(OPEN).replace(model="v/gpt-6-luna")).report
    assert [warning.code for warning in report.warnings if warning.code == "lossy_encode"] == []
    assert all(note.informs for note in report.notes)


@pytest.mark.covers("S2-33", "S0-45")
@pytest.mark.parametrize("kind", ["openai-compatible", "vllm", "together", "lmstudio"])
def test_a_server_that_hides_the_schema_from_its_model_is_helped_at_once(kind: str) -> None:
    with FakeVendor([ADA]) as vendor, _vendor_client(vendor, kind) as client:
        client.respond(_request().replace(model="v/m"))
        (body,) = [received.json() for received in vendor.requests]
    (system,) = [message for message in body["messages"] if message["role"] == "system"]
    assert isinstance(system["content"], str)
    assert "matching this schema" in system["content"]
    assert system["content"].endswith("Be kind.")


@pytest.mark.covers("S2-33")
def test_a_server_that_ignores_the_schema_is_told_in_words_on_the_second_attempt() -> None:
    with FakeVendor(["Ada is 36.", ADA]) as vendor, _vendor_client(vendor, "openai") as client:
        assert client.respond(_request().replace(model="v/gpt-6-luna")).text == ADA
        first, second = [received.json() for received in vendor.requests]
    assert "schema" not in json.dumps(first["messages"])
    assert '"additionalProperties":false' in second["messages"][-1]["content"]


@pytest.mark.covers("S2-35", "C21")
@pytest.mark.parametrize("answer", ['{"value": [1, 2]}', "[1, 2]"])
def test_a_root_that_is_no_object_is_wrapped_for_json_mode(answer: str) -> None:
    request = _request({"type": "array", "items": {"type": "integer"}}).replace(model="v/deepseek-chat")
    with FakeVendor([answer]) as vendor, _vendor_client(vendor, "deepseek") as client:
        outcome = client.respond(request)
        (body,) = [received.json() for received in vendor.requests]
    assert outcome.value == [1, 2]
    assert body["response_format"] == {"type": "json_object"}
    assert '"properties":{"value":{"type":"array"' in body["messages"][0]["content"]


def test_the_report_keeps_what_was_asked_and_said_when_told_to() -> None:
    model = FakeModel(["no", ADA], models=("m",))
    options = Options(budget=Budget(2), keep_text=True)
    report = Client(router=Router({"fake": model}), options=options).respond(_request()).report
    assert [attempt.text for attempt in report.attempts] == ["no", ADA]
    assert report.attempts[0].asked == "Who?"
    assert "valid" in (report.attempts[1].asked or "")


def test_a_native_root_keeps_its_own_shape() -> None:
    model = FakeModel(["[1]"], models=("m",), capabilities=Capabilities(native=True, json_mode=True))
    client = Client(router=Router({"fake": model}))
    assert client.respond(_request({"type": "array", "items": {"type": "integer"}})).value == [1]
