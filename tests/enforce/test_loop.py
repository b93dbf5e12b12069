"""The loop over scripted answers."""

from __future__ import annotations

import dataclasses

import pytest

from slipform.enforce import Budget, Outcome, Plan, Report, Wording, enforce
from slipform.enforce.prompts import first_request
from slipform.errors import JsonEnforcementError, RefusalError, SchemaViolationError, SlipformError, UpstreamTimeout
from slipform.ir import Message, ModelRequest, ModelResponse, ModelWarning, Tool, Usage
from slipform.prices import Price
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from tests.conftest import PERSON

REQUEST = ModelRequest(
    "m", (Message.user("Ada is 36"),), response_format=ResponseFormat.strict(JsonSchemaSpec("person", PERSON))
)
GOOD = '{"name":"Ada","age":36}'


def run(plan: Plan, *answers: ModelResponse) -> tuple[list[ModelRequest], Outcome | SlipformError]:
    """Drive the loop with scripted answers; gives what was asked and how it ended."""
    steps = enforce(REQUEST, plan)
    asked = [next(steps)]
    try:
        for answer in answers:
            asked.append(steps.send(answer))
    except StopIteration as done:
        outcome: Outcome = done.value
        return asked, outcome
    except SlipformError as error:
        return asked, error
    raise AssertionError("the loop wants more answers than were scripted")


def plan(strategy: OutputStrategy = OutputStrategy.NATIVE, *, max_attempts: int = 3, list_keys: bool = False) -> Plan:
    return Plan(Schema[object]("person", PERSON), strategy, Budget(max_attempts), Wording(list_keys))


def test_a_valid_answer_ends_the_loop() -> None:
    asked, outcome = run(plan(), ModelResponse(text=GOOD))
    assert asked == [REQUEST]
    assert isinstance(outcome, Outcome)
    assert outcome.value == {"name": "Ada", "age": 36}
    assert outcome.text == GOOD


@pytest.mark.covers("S0-01", "S0-11", "S0-12", "S0-13", "S0-44", "S0-45", "S2-33", "S2-34")
def test_the_prompted_strategy_puts_the_schema_before_the_conversation() -> None:
    asked, _ = run(plan(OutputStrategy.PROMPTED), ModelResponse(text=GOOD))
    first = asked[0].messages[0]
    assert first.role == "system"
    assert first.text.startswith('Return ONLY valid JSON matching this schema: {"type":"object",')
    sentence, example = first.text.split("\n")
    assert sentence.endswith("}. No prose.")
    assert example.endswith('made-up values: {"name":"text","age":1}')
    assert asked[0].messages[1:] == REQUEST.messages


def test_what_is_said_of_the_schema_joins_the_system_message_there_is() -> None:
    own = REQUEST.replace(messages=(Message.system("Be brief."), *REQUEST.messages))
    worded = first_request(own, OutputStrategy.PROMPTED, Wording()).request
    assert [message.role for message in worded.messages] == ["system", "user"]
    assert worded.messages[0].text.endswith("\n\nBe brief.")


def test_a_system_message_without_words_takes_those_of_the_prompt() -> None:
    own = REQUEST.replace(messages=(Message("system", ()), Message.user("hi")))
    worded = first_request(own, OutputStrategy.PROMPTED, Wording()).request
    assert [message.role for message in worded.messages] == ["system", "user"]
    assert worded.messages[0].text.startswith("Return ONLY")


def test_a_schema_that_the_server_does_not_show_stands_in_the_prompt_too() -> None:
    worded = first_request(REQUEST, OutputStrategy.NATIVE, Wording(schema_in_prompt=True)).request
    assert worded.messages[0].text.startswith("Return ONLY valid JSON matching this schema: ")
    assert worded.response_format == REQUEST.response_format


@pytest.mark.parametrize("answer", ['{"name":"Ada"}', "Hm."])
def test_a_server_that_ignores_the_schema_is_told_it_in_words_the_second_time(answer: str) -> None:
    asked, _ = run(plan(), ModelResponse(text=answer), ModelResponse(text=GOOD))
    assert "schema" not in asked[0].messages[-1].text
    assert 'The answer must be JSON matching this schema: {"type":"object",' in asked[1].messages[-1].text


def test_keys_are_listed_to_models_that_need_it() -> None:
    asked, _ = run(plan(list_keys=True), ModelResponse(text=GOOD))
    assert asked[0].messages[-1].text == "Ada is 36\nReply in JSON with the keys: name, age."


@pytest.mark.covers("S2-48", "S2-49", "S2-50", "S2-51", "S2-64")
def test_a_bad_answer_is_asked_again_with_its_faults_and_usage_is_summed() -> None:
    bad = ModelResponse(text='{"name":"Ada"}', usage=Usage(input=5, output=3))
    asked, outcome = run(plan(), bad, ModelResponse(text=GOOD, usage=Usage(input=9, output=4)))
    assert [message.role for message in asked[1].messages] == ["user", "assistant", "user"]
    assert asked[1].messages[1].text == '{"name":"Ada"}'
    assert "$: " in asked[1].messages[2].text
    assert asked[1].messages[2].text.endswith("Return corrected JSON only. No prose. No code fences.")
    assert isinstance(outcome, Outcome)
    assert outcome.report.usage == Usage(input=14, output=7, total=21)
    assert [attempt.outcome for attempt in outcome.report.attempts] == ["schema_violation", "ok"]


@pytest.mark.covers("S1-30", "S1-34", "S1-37")
@pytest.mark.covers("S1-41", "C14")
def test_an_answer_without_json_is_asked_again_in_the_repair_words() -> None:
    asked, outcome = run(plan(), ModelResponse(text="Hm."), ModelResponse(text=GOOD))
    assert asked[1].messages[-1].text.endswith("\nReturn ONLY valid compact JSON. No markdown, no prose.")
    assert isinstance(outcome, Outcome)


@pytest.mark.covers("S2-51", "S2-52", "S1-53")
@pytest.mark.parametrize(
    ("text", "kind"), [('{"name":"Ada"}', SchemaViolationError), ("no json here", JsonEnforcementError)]
)
def test_the_last_bad_answer_raises_with_the_report(text: str, kind: type[SlipformError]) -> None:
    asked, error = run(plan(max_attempts=2), *[ModelResponse(text=text)] * 2)
    assert len(asked) == 2
    assert type(error) is kind
    assert isinstance(error.report, Report)
    assert len(error.report.attempts) == 2


@pytest.mark.covers("S2-54")
def test_a_refusal_ends_the_loop_at_once() -> None:
    asked, error = run(plan(), ModelResponse(refusal="No."))
    assert len(asked) == 1
    assert isinstance(error, RefusalError)


def test_a_providers_warnings_are_in_the_report_once() -> None:
    warning = ModelWarning("constraint_weakened", "uniqueItems")
    bad = ModelResponse(text="{}", warnings=(warning,))
    _, outcome = run(plan(), bad, ModelResponse(text=GOOD, warnings=(warning,)))
    assert isinstance(outcome, Outcome)
    assert outcome.report.to_dict()["warnings"] == [{"code": "constraint_weakened", "message": "uniqueItems"}]


@pytest.mark.covers("S2-08")
@pytest.mark.parametrize("budget", [Budget(9, money=0.02), Budget(9, seconds=10), Budget(9, tokens=20)])
def test_whichever_budget_ends_first_ends_the_loop_with_all_that_was_learnt(budget: Budget) -> None:
    ticks = iter(range(0, 1000, 2))
    spent = ModelResponse(text='{"name":"Ada"}', usage=Usage(input=8, output=2))
    limited = dataclasses.replace(
        plan(), budget=budget, prices={"*": Price(1000, 1000)}, clock=lambda: float(next(ticks))
    )
    asked, error = run(limited, *[spent] * 9)
    assert len(asked) == 2
    assert isinstance(error, SchemaViolationError)
    assert isinstance(error.report, Report)
    assert len(error.report.attempts) == 2
    assert error.report.cost == pytest.approx(0.02)
    assert "budget of" in (error.hint or "")


def test_a_retry_that_runs_out_of_the_calls_time_reports_what_was_wrong_before_it() -> None:
    now = [0.0]
    limited = dataclasses.replace(plan(), budget=Budget(9, seconds=2), clock=lambda: now[0])
    steps = enforce(REQUEST, limited)
    next(steps)
    now[0] = 1.8
    steps.send(ModelResponse(text='{"name": "Ada"}'))
    now[0] = 2.0
    with pytest.raises(SchemaViolationError, match='"age" is missing') as caught:
        steps.throw(UpstreamTimeout("No complete answer within 0.2 s", hint="Raise `runtime.timeout_seconds`."))
    assert "budget of seconds" in (caught.value.hint or "")


def test_a_first_answer_that_runs_out_of_the_calls_time_names_that_limit() -> None:
    now = [0.0]
    limited = dataclasses.replace(plan(), budget=Budget(9, seconds=2), clock=lambda: now[0])
    steps = enforce(REQUEST, limited)
    next(steps)
    now[0] = 2.0
    with pytest.raises(UpstreamTimeout, match="within 2 s") as caught:
        steps.throw(UpstreamTimeout("No complete answer within 1.99 s", hint="Raise `runtime.timeout_seconds`."))
    assert "enforcement.max_seconds" in (caught.value.hint or "")


def test_an_answer_that_did_not_fit_is_asked_for_again_shorter_and_without_it() -> None:
    cut = ModelResponse(text='{"name": "A', finish="length")
    asked, outcome = run(plan(), cut, ModelResponse(text=GOOD))
    assert isinstance(outcome, Outcome)
    assert [message.role for message in asked[1].messages] == ["user", "user"]
    assert asked[1].messages[-1].text.endswith("Return ONLY valid compact JSON. No markdown, no prose.")


@pytest.mark.covers("S0-12", "S2-34")
def test_a_small_model_is_shown_worked_examples_and_told_the_kinds_of_the_keys() -> None:
    asked, _ = run(plan(OutputStrategy.PROMPTED, list_keys=True), ModelResponse(text=GOOD))
    roles = [message.role for message in asked[0].messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant", "user"]
    assert asked[0].messages[0].text.startswith("Return ONLY valid JSON matching this schema: ")
    assert asked[0].messages[-1].text == "Ada is 36\nReply in JSON with the keys: name (text), age (whole number)."


def test_a_small_model_is_asked_again_for_the_wrong_keys_only() -> None:
    small = plan(OutputStrategy.PROMPTED, list_keys=True)
    asked, outcome = run(small, ModelResponse(text='{"name":"Ada"}'), ModelResponse(text='{"age": "36"}'))
    assert isinstance(outcome, Outcome)
    assert outcome.value == {"name": "Ada", "age": 36}
    assert asked[1].messages[0].text == "Return JSON only."
    assert asked[1].messages[-1].text.endswith("Reply in JSON with the keys: age (whole number).")


def test_an_answer_that_copies_a_worked_example_is_not_taken() -> None:
    small = plan(OutputStrategy.PROMPTED, list_keys=True, max_attempts=2)
    copy = ModelResponse(text='{"name": "Ottilie", "age": 7}')
    _, error = run(small, copy, copy)
    assert isinstance(error, SchemaViolationError)
    assert "copies" in error.message
    _, outcome = run(small, copy, ModelResponse(text=GOOD))
    assert isinstance(outcome, Outcome)


@pytest.mark.covers("S0-81", "S2-32", "S1-17")
def test_json_without_a_schema_is_asked_for_in_three_words_and_means_any_object() -> None:
    bare = ModelRequest("m", (Message.user("Ada is 36"),), json_mode=True)
    steps = enforce(bare, Plan(Schema("object", {"type": "object"})))
    assert next(steps).messages[0] == Message.system("Return JSON only.")
    with pytest.raises(StopIteration) as done:
        steps.send(ModelResponse(text='{"anything": [1]}'))
    assert done.value.value.value == {"anything": [1]}


@pytest.mark.covers("S0-46", "C29")
def test_the_tools_of_a_request_stay_as_they_are_beside_the_instruction() -> None:
    tool = Tool("look", {"type": "object"}, description="Look it up.")
    steps = enforce(REQUEST.replace(tools=(tool,)), Plan(Schema[object]("person", PERSON)))
    asked = next(steps)
    assert asked.tools == (tool,)
    assert all("Look it up." not in message.text for message in asked.messages)


@pytest.mark.covers("S2-53", "C03")
def test_there_is_no_pause_between_attempts_unless_asked_for() -> None:
    assert Plan(None).backoff_seconds == 0


@pytest.mark.covers("S1-54", "S1-55", "S1-67")
def test_an_error_says_in_short_what_happened_and_what_to_do() -> None:
    _, error = run(plan(max_attempts=2), ModelResponse(text="no"), ModelResponse(text="Still no."))
    assert isinstance(error, JsonEnforcementError)
    assert error.message.startswith("Failed to produce schema-valid JSON after 2 attempts: ")
    assert len(str(error)) < 400
    assert error.hint


@pytest.mark.covers("S2-68")
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ModelResponse(text="no json"), "not_json"),
        (ModelResponse(text=""), "empty_answer"),
        (ModelResponse(text='{"name":', finish="length"), "truncated"),
        (ModelResponse(text="", refusal="No."), "refusal"),
        (ModelResponse(text='{"name":"Ada"}'), "required"),
    ],
)
def test_every_failure_has_a_list_of_validation_errors(answer: ModelResponse, code: str) -> None:
    _, error = run(plan(max_attempts=1), answer)
    assert isinstance(error, SlipformError)
    assert [each["keyword"] for each in error.details["validation_errors"]] == [code]
