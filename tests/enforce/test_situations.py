"""The loop over scripted answers: each situation once blocking, once async, once streamed.

Every row says what the model answers, what must come of it, and how many calls that takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from slipform import AsyncClient, Client
from slipform.codecs import Capabilities
from slipform.enforce import Budget, Outcome, Report, Switches
from slipform.engine.planning import plan_for
from slipform.engine.setup import Options, local_models
from slipform.errors import (
    EmptyAnswerError,
    JsonEnforcementError,
    RateLimitError,
    RefusalError,
    SchemaViolationError,
    SlipformError,
    TruncatedError,
    UpstreamTimeout,
)
from slipform.ir import Message, ModelRequest, ModelResponse, Tool, ToolCall, Usage
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.testing import FakeModel, Turn

INVOICE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "total": {"type": "number"},
        "paid": {"type": "boolean"},
        "status": {"enum": ["Open", "Closed"]},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "qty": {"type": "integer"}},
                "required": ["sku", "qty"],
                "additionalProperties": False,
            },
        },
        "note": {"type": "string"},
    },
    "required": ["id", "total", "paid", "status", "lines"],
    "additionalProperties": False,
}
VALUE: dict[str, Any] = {"id": "A1", "total": 9.5, "paid": True, "status": "Open", "lines": [{"sku": "x", "qty": 2}]}
GOOD = json.dumps(VALUE)
TEXT = json.dumps(VALUE, separators=(",", ":"))

PROMPTED = Capabilities()
NATIVE = Capabilities(native=True)
TOOL = Capabilities(tools=True, forced_tool=True)
WEATHER = Tool("weather", {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]})


def but(**changes: Any) -> str:
    return json.dumps({**VALUE, **changes})


def without(*names: str) -> str:
    return json.dumps({name: value for name, value in VALUE.items() if name not in names})


def said(text: str, **fields: Any) -> ModelResponse:
    return ModelResponse(text=text, usage=Usage(input=10, output=5), **fields)


@dataclass(frozen=True)
class Row:
    name: str
    answers: Sequence[Turn]
    value: Any = None
    error: type[SlipformError] | None = None
    calls: int = 1
    capabilities: Capabilities = PROMPTED
    schema: dict[str, Any] = field(default_factory=lambda: INVOICE)
    options: Options = field(default_factory=lambda: Options(budget=Budget(attempts=3)))
    tools: tuple[Tool, ...] = ()
    patched: bool = False
    repaired: bool = False
    outcomes: tuple[str, ...] | None = None
    strategy: OutputStrategy = OutputStrategy.AUTO


def good(name: str, *answers: Turn, **fields: Any) -> Row:
    fields.setdefault("calls", len(answers))
    fields.setdefault("value", VALUE)
    return Row(name, answers, **fields)


def bad(name: str, error: type[SlipformError], *answers: Turn, **fields: Any) -> Row:
    fields.setdefault("calls", len(answers))
    return Row(name, answers, error=error, **fields)


CUT_IN_ARRAY = said(GOOD[: GOOD.index("}]}") + 1], finish="length")
CLOSED = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
POINT = {"x": 1, "label": "here"}
CUT_AT_END = said('{"x": 1, "label": "here"', finish="length")
UNION = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
            "required": ["kind", "lives"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "dog"}, "tricks": {"type": "array", "items": {"type": "string"}}},
            "required": ["kind", "tricks"],
            "additionalProperties": False,
        },
    ]
}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CAT = {"kind": "cat", "lives": 9}


def one(attempts: int = 1, **fields: Any) -> Options:
    return Options(budget=Budget(attempts=attempts), **fields)


def even(value: Any) -> str | None:
    return None if value["lines"][0]["qty"] % 2 == 0 else "qty must be even"


ROWS = [
    # valid, in all the ways an answer can be valid
    good("valid", GOOD),
    good("valid, native", GOOD, capabilities=NATIVE),
    good("valid, as the forced tool", said("", tool_calls=(ToolCall("c", "output", GOOD),)), capabilities=TOOL),
    good("text where the tool was forced", GOOD, capabilities=TOOL),
    good("pretty-printed", json.dumps(VALUE, indent=2)),
    good("an array root", "[1, 2]", schema={"type": "array", "items": {"type": "integer"}}, value=[1, 2]),
    good("a scalar root", "36", schema={"type": "integer"}, value=36),
    good("a string root", '"blue"', schema={"enum": ["red", "blue"]}, value="blue"),
    good("null", "null", schema={"type": ["null", "integer"]}, value=None),
    good("a union's first branch", json.dumps(CAT), schema=UNION, value=CAT),
    good("length, but whole", said(GOOD, finish="length")),
    good("non-ASCII", but(id="Zoë ☕ 東京"), value={**VALUE, "id": "Zoë ☕ 東京"}),
    good(
        "big integers",
        '{"n": 123456789012345678901234567890}',
        schema={"type": "object"},
        value={"n": 123456789012345678901234567890},
    ),
    # found in what surrounds it
    good("fenced", f"```json\n{GOOD}\n```"),
    good("fenced with chatter", f"Sure, here you go:\n\n```json\n{GOOD}\n```\nAnything else?"),
    good("prose around", f"The invoice is {GOOD} as you asked."),
    good("thinking first", f'<think>maybe {{"id": 1}}?</think>{GOOD}'),
    good("a decoy object first", f'{{"plan": "answer"}} and now: {GOOD}'),
    good("braces in prose", f"Use {{name}} and [note]. {GOOD}"),
    good("the JSON as a string", json.dumps(GOOD)),
    # repaired
    good("a trailing comma", GOOD[:-1] + ",}", repaired=True),
    good("single quotes", str(VALUE).replace("True", "true"), repaired=True),
    good("Python literals", str(VALUE), repaired=True),
    good("comments", GOOD.replace('"total"', '// sum\n"total"'), repaired=True),
    good("unquoted keys", GOOD.replace('"id"', "id").replace('"total"', "total"), repaired=True),
    good("a missing closing bracket", GOOD[:-1], repaired=True),
    good("a missing comma", GOOD.replace(', "paid"', ' "paid"'), repaired=True),
    good("a raw newline in a string", GOOD.replace("A1", "A\n1"), value={**VALUE, "id": "A\n1"}, repaired=True),
    # patched
    good("an extra key", but(extra=1), patched=True),
    good("a nested extra key", but(lines=[{"sku": "x", "qty": 2, "y": 0}]), patched=True),
    good("a number as text", but(total="9.5"), patched=True),
    good("a grouped number as text", but(total="1,009.50"), value={**VALUE, "total": 1009.5}, patched=True),
    good("a boolean as text", but(paid="true"), patched=True),
    good("an enum in another case", but(status="OPEN "), patched=True),
    good("null for an optional key", but(note=None), patched=True),
    good("wrapped in one key", json.dumps({"invoice": VALUE}), patched=True),
    good("a key in another case", GOOD.replace('"paid"', '"Paid"'), patched=True),
    good("the wrong type in a union", '{"kind": "cat", "lives": "9"}', schema=UNION, value=CAT, patched=True),
    good("several slips at once", but(total="9.5", paid="true", extra=1), patched=True),
    good("repaired and patched", but(total="9.5")[:-1] + ",}", patched=True, repaired=True),
    # asked again
    good("a missing key", without("paid"), GOOD, outcomes=("schema_violation", "ok")),
    good("a value of no listed kind", but(status="Unknown"), GOOD),
    good("words for a number", but(total="nine"), GOOD),
    good("the wrong root", "[]", GOOD),
    good("no JSON", "I would rather not say.", GOOD, outcomes=("not_json", "ok")),
    good("nothing", "", GOOD, outcomes=("empty_answer", "ok")),
    good("blanks", " \n ", GOOD),
    good("cut in the middle of a value", GOOD[:-20], GOOD, outcomes=("truncated", "ok")),
    good("a number that the text ends with", '{"n": 12', '{"n": 123}', schema={"type": "object"}, value={"n": 123}),
    good("wrong twice", without("id"), without("total"), GOOD),
    good("chatter, then repaired", "Hm.", GOOD[:-1] + ",}", repaired=True),
    good(
        "the forced tool with wrong arguments",
        said("", tool_calls=(ToolCall("c", "output", "{}"),)),
        GOOD,
        capabilities=TOOL,
    ),
    good("no last bracket, after a blank", '{"n": 36\n', schema=NUMBER, value={"n": 36}, repaired=True),
    good("no last bracket, after a digit", '{"n": 3', '{"n": 36}', schema=NUMBER, value={"n": 36}),
    good("the caller's own check", but(lines=[{"sku": "x", "qty": 3}]), GOOD, options=one(2, validators=(even,))),
    # failed
    bad("always wrong", SchemaViolationError, *[without("paid")] * 3),
    bad("never JSON", JsonEnforcementError, *["no"] * 3),
    bad("always empty", EmptyAnswerError, *[""] * 3),
    bad("one attempt only", SchemaViolationError, without("paid"), options=one()),
    bad("a refusal", RefusalError, said("", refusal="I cannot help with that.")),
    bad("a refusal on the second call", RefusalError, without("paid"), said("", refusal="No.")),
    bad("a safety filter", RefusalError, said('{"id"', finish="content_filter")),
    good("cut off by the limit once", said(GOOD[:30], finish="length"), GOOD, outcomes=("continued", "ok")),
    bad("cut off by the limit, and then again", TruncatedError, *[said(GOOD[:30], finish="length")] * 3),
    bad("cut off before anything", TruncatedError, *[said("", finish="length")] * 2),
    bad("cut off in an array, although all that is required is there", TruncatedError, *[CUT_IN_ARRAY] * 3),
    good("cut off, but only its last bracket is missing", CUT_AT_END, schema=CLOSED, value=POINT, repaired=True),
    bad("cut off by the limit, one attempt", TruncatedError, *[said(GOOD[:30], finish="length")] * 2, options=one()),
    bad("a timeout", UpstreamTimeout, UpstreamTimeout("Too slow")),
    bad("a timeout on the second call", UpstreamTimeout, without("paid"), UpstreamTimeout("Too slow")),
    bad("a rate limit", RateLimitError, RateLimitError("Slow down", retry_after=1)),
    bad("the token budget", SchemaViolationError, said(without("paid")), options=Options(budget=Budget(9, tokens=15))),
    bad(
        "the caller's own check, always",
        SchemaViolationError,
        *[but(lines=[{"sku": "x", "qty": 3}])] * 2,
        options=one(2, validators=(even,)),
    ),
    bad("coercion switched off", SchemaViolationError, but(total="9.5"), options=one(switches=Switches(coerce=False))),
    bad("repair switched off", JsonEnforcementError, GOOD[:-1] + ",}", options=one(repair=False)),
    # a tool instead of text, and text instead of a tool
    good("a tool that nobody offered, with the answer in it", said("", tool_calls=(ToolCall("c", "json", GOOD),))),
    good("a tool that nobody offered, without it", said("", tool_calls=(ToolCall("c", "look_up", "{}"),)), GOOD),
    good(
        "text where the caller's tool could be called",
        f"No need to look it up: {GOOD}",
        tools=(WEATHER,),
        capabilities=TOOL,
    ),
    bad(
        "a tool that nobody offered, always",
        SchemaViolationError,
        *[said("", tool_calls=(ToolCall("c", "look_up", "{}"),))] * 3,
    ),
    # unions
    good("a union by its tag", '{"kind": "CAT", "lives": "9", "x": 0}', schema=UNION, value=CAT, patched=True),
    good("a union without its tag", '{"lives": 9}', schema=UNION, value=CAT, patched=True),
    good("a union of which no branch fits", '{"kind": "cow"}', json.dumps(CAT), schema=UNION, value=CAT),
    bad("a union, always wrong", SchemaViolationError, *['{"kind": "cat"}'] * 3, schema=UNION),
    # several values in one text
    good("two answers, the first does not fit", f'{{"id": 1}} {GOOD}'),
    good("a refusal in words, then the answer", "I am sorry, but no.", GOOD, outcomes=("not_json", "ok")),
    good("an answer in the reasoning only", said("", reasoning=GOOD), GOOD, outcomes=("empty_answer", "ok")),
    bad("a connection that breaks on the second call", UpstreamTimeout, "no", UpstreamTimeout("Gone")),
    # the caller's own tools
    good(
        "a call with slips in its arguments",
        said("", tool_calls=(ToolCall("c1", "weather", "{'zip': 12345,}"),)),
        value=None,
        tools=(WEATHER,),
        capabilities=TOOL,
        repaired=True,
    ),
    good(
        "a call that lacks an argument, then a good one",
        said("", tool_calls=(ToolCall("c1", "weather", "{}"),)),
        said("", tool_calls=(ToolCall("c2", "weather", '{"zip": "1"}'),)),
        value=None,
        tools=(WEATHER,),
        capabilities=TOOL,
    ),
    bad(
        "a call of a tool that is none",
        SchemaViolationError,
        *[said("", tool_calls=(ToolCall("c1", "wether", "{}"),))] * 2,
        tools=(WEATHER,),
        capabilities=TOOL,
        options=one(2),
    ),
]


def request(row: Row) -> ModelRequest:
    wanted = ResponseFormat.strict(JsonSchemaSpec("answer", row.schema)).with_strategy(row.strategy)
    return ModelRequest("fake/m", (Message.user("Which invoice?"),), wanted, tools=row.tools)


def model_for(row: Row) -> tuple[FakeModel, Router]:
    model = FakeModel(row.answers, capabilities=row.capabilities, models=("m",))
    return model, Router({"fake": model})


def check(row: Row, model: FakeModel, got: Outcome | SlipformError) -> None:
    assert len(model.requests) == row.calls
    report = got.report
    assert isinstance(report, Report)
    if row.error is not None:
        assert type(got) is row.error
        if not isinstance(got, UpstreamTimeout | RateLimitError):
            assert len(report.attempts) == row.calls
        return
    assert isinstance(got, Outcome), got
    assert got.value == row.value
    if not row.tools:
        assert json.loads(got.text) == row.value
        assert got.answer.tool_calls == (), "a tool that nobody offered is no one's to call"
        assert got.answer.finish == "stop"
    assert len(report.attempts) == row.calls
    assert report.patched == row.patched
    assert report.repaired == row.repaired
    if row.outcomes is not None:
        assert tuple(attempt.outcome for attempt in report.attempts) == row.outcomes
    for operation in report.to_dict()["attempts"][-1].get("patch", []):
        assert operation["reason"]
        assert operation["risk"] in ("low", "medium", "high")


IDS = [row.name for row in ROWS]


def test_there_are_at_least_sixty_situations_each_with_a_name_of_its_own() -> None:
    assert len(ROWS) >= 60
    assert len(set(IDS)) == len(ROWS)


@pytest.mark.covers("S2-02", "S2-07", "S2-51", "S0-02", "S0-03", "S1-13", "S1-75")
@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_blocking(row: Row) -> None:
    model, router = model_for(row)
    try:
        got: Outcome | SlipformError = Client(router=router, options=row.options).respond(request(row))
    except SlipformError as error:
        got = error
    check(row, model, got)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
async def test_async(row: Row) -> None:
    model, router = model_for(row)
    try:
        got: Outcome | SlipformError = await AsyncClient(router=router, options=row.options).respond(request(row))
    except SlipformError as error:
        got = error
    check(row, model, got)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
async def test_streamed(row: Row) -> None:
    """The pieces that left add up to the outcome's text, or to no finished JSON at all."""
    model, router = model_for(row)
    client = AsyncClient(router=router, options=row.options)
    left: list[str] = []
    got: Outcome | SlipformError | None = None
    try:
        async for piece in client.respond_stream(request(row)):
            if isinstance(piece, Outcome):
                got = piece
            else:
                left.append(piece.text)
    except SlipformError as error:
        got = error
    assert got is not None
    check(row, model, got)
    if isinstance(got, Outcome):
        assert "".join(left) == got.text
    elif left:
        with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
            json.loads("".join(left))


def test_usage_is_summed_over_the_attempts() -> None:
    row = good("usage", said(without("paid")), said(GOOD))
    _, router = model_for(row)
    outcome = Client(router=router, options=row.options).respond(request(row))
    assert outcome.report.usage == Usage(input=20, output=10, total=30)
    assert outcome.answer.usage == outcome.report.usage


def test_a_stronger_strategy_takes_over_after_two_failures() -> None:
    row = good("escalation", "no", "no", GOOD, capabilities=NATIVE, strategy=OutputStrategy.PROMPTED)
    model, router = model_for(row)
    outcome = Client(router=router, options=row.options).respond(request(row))
    assert [attempt.strategy.value for attempt in outcome.report.attempts] == ["prompted", "prompted", "native"]
    assert model.requests[2].response_format is not None
    assert model.requests[2].response_format.strategy is OutputStrategy.NATIVE


@pytest.mark.covers("S2-74")
def test_a_formatter_gets_the_last_attempt_and_only_the_text() -> None:
    talker = FakeModel(["Invoice A1: 9.5 in all, paid, open, two of x."], models=("m",))
    shaper = FakeModel([GOOD], capabilities=NATIVE, models=("m",))
    router = Router({"fake": talker, "shaper": shaper})
    options = Options(budget=Budget(attempts=2), formatter="shaper/m")
    outcome = Client(router=router, options=options).respond(request(ROWS[0]))
    assert outcome.value == VALUE
    assert [message.role for message in shaper.requests[0].messages] == ["system", "user"]
    assert "two of x" in shaper.requests[0].messages[1].text
    assert "Which invoice?" not in shaper.requests[0].messages[1].text


def test_only_the_offending_parts_of_a_large_answer_are_asked_for_again() -> None:
    lines = [{"sku": f"sku-{number}", "qty": number} for number in range(200)]
    wrong = json.dumps({**VALUE, "lines": [*lines[:7], {"sku": "sku-7", "qty": "seven"}, *lines[8:]]})
    fixed = {"$.lines[7].qty": 7}
    model = FakeModel([wrong, json.dumps(fixed)], models=("m",))
    outcome = Client(router=Router({"fake": model}), options=one(2)).respond(request(ROWS[0]))
    assert outcome.value == {**VALUE, "lines": lines}
    asked = model.requests[1]
    assert '"$.lines[7].qty"' in asked.messages[-1].text
    assert asked.response_format is not None
    assert asked.response_format.json_schema.schema["properties"] == {"$.lines[7].qty": {"type": "integer"}}


def test_a_key_that_is_missing_in_a_large_answer_is_asked_for_alone() -> None:
    lines = [{"sku": f"sku-{number}", "qty": number} for number in range(200)]
    wrong = json.dumps({**VALUE, "lines": [*lines[:7], {"sku": "sku-7"}, *lines[8:]]})
    model = FakeModel([wrong, '{"$.lines[7].qty": "7"}'], models=("m",))
    outcome = Client(router=Router({"fake": model}), options=one(2)).respond(request(ROWS[0]))
    assert outcome.value == {**VALUE, "lines": lines}


def test_the_schema_summary_says_when_it_was_cut() -> None:
    wide = {"type": "object", "properties": {f"field_{n}": {"type": "string", "maxLength": n} for n in range(300)}}
    model = FakeModel(["{}"], models=("m",))
    asked = ModelRequest("fake/m", (), ResponseFormat.strict(JsonSchemaSpec("wide", wide)))
    outcome = Client(router=Router({"fake": model})).respond(asked)
    assert [warning.code for warning in outcome.report.warnings] == ["schema_summary_cut"]
    assert len(model.requests[0].messages[0].text) < 2200


def test_what_the_model_wrote_is_kept_only_when_asked_for() -> None:
    for keep in (False, True):
        model = FakeModel([f"Sure: {GOOD}"], models=("m",))
        options = Options(keep_text=keep)
        outcome = Client(router=Router({"fake": model}), options=options).respond(request(ROWS[0]))
        assert outcome.report.attempts[0].text == (f"Sure: {GOOD}" if keep else None)


@pytest.mark.covers("S0-15", "S0-58", "C01")
def test_raw_gives_the_text_back_with_a_warning_but_no_refusal() -> None:
    for text, code in (("no JSON", "not_json"), (without("paid"), "schema_violation")):
        model = FakeModel([text], models=("m",))
        outcome = Client(router=Router({"fake": model}), options=one(on_failure="raw")).respond(request(ROWS[0]))
        assert outcome.text == text
        assert [warning.code for warning in outcome.report.warnings] == [code]
    model = FakeModel([said("", refusal="No.")], models=("m",))
    with pytest.raises(RefusalError):
        Client(router=Router({"fake": model}), options=one(on_failure="raw")).respond(request(ROWS[0]))


def test_a_stream_that_is_asked_again_says_restart_and_ends_with_the_valid_answer() -> None:
    for bad_one in (without("paid"), "no JSON", GOOD[:-20], ""):
        model = FakeModel([bad_one, GOOD], models=("m",))
        client = Client("fake/m", router=Router({"fake": model}), options=one(2))
        with client.stream(INVOICE, "Which invoice?") as stream:
            restarts = [delta.value for delta in stream.deltas() if delta.kind == "restart"]
            assert stream.result.value == VALUE
        assert restarts == [2]


def test_a_stream_that_cannot_be_made_to_fit_never_ends_in_silence() -> None:
    model = FakeModel([without("paid")], models=("m",))
    with pytest.raises(SchemaViolationError) as caught:
        _ = Client("fake/m", router=Router({"fake": model}), options=one(2)).stream(INVOICE, "Which?").result
    assert isinstance(caught.value.report, Report)
    assert len(caught.value.report.attempts) == 2


@pytest.mark.covers("S2-74")
def test_escalation_goes_from_the_same_strategy_to_a_stronger_one_to_the_formatter() -> None:
    talker = FakeModel(["no", "no", "Invoice A1, 9.5, paid.", "never"], capabilities=NATIVE, models=("m",))
    shaper = FakeModel([GOOD], capabilities=NATIVE, models=("m",))
    router = Router({"fake": talker, "shaper": shaper})
    row = good("escalation", "", strategy=OutputStrategy.PROMPTED)
    outcome = Client(router=router, options=one(4, formatter="shaper/m")).respond(request(row))
    assert outcome.value == VALUE
    ways = [(attempt.model, attempt.strategy.value) for attempt in outcome.report.attempts]
    assert ways == [("fake/m", "prompted"), ("fake/m", "prompted"), ("fake/m", "native"), ("shaper/m", "native")]


def test_the_embedded_model_is_the_formatter_only_where_that_is_allowed_and_possible() -> None:
    talker = FakeModel(["Invoice A1."], models=("m",))
    embedded = FakeModel([GOOD], name="local", capabilities=NATIVE, models=("tiny",))
    router = Router({"fake": talker, "local": embedded}, aliases={"local": "local/tiny"})
    asked = request(ROWS[0])
    assert plan_for(router, asked, one(2)).formatter is None
    assert plan_for(Router({"fake": talker}), asked, one(2, formatter="auto")).formatter is None
    own = asked.replace(model="local")
    assert plan_for(router, own, one(2, formatter="auto")).formatter is None
    chosen = plan_for(router, asked, one(2, formatter="auto")).formatter
    if not local_models().is_installed():
        assert chosen is None
        return
    assert chosen is not None
    outcome = Client(router=router, options=one(2, formatter="auto")).respond(asked)
    assert outcome.value == VALUE
    assert [attempt.model for attempt in outcome.report.attempts] == ["fake/m", "local"]
