from __future__ import annotations

from typing import Any

import pytest

from slipform.errors import (
    EmptyAnswerError,
    EnforcementError,
    JsonEnforcementError,
    SchemaViolationError,
    TruncatedError,
    UpstreamError,
)
from slipform.ir import (
    UNRESOLVED,
    CompletionChunk,
    Lift,
    ModelWarning,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolDelta,
    Usage,
)
from slipform.ir.reducer import Reducer, Snapshot
from slipform.schema.lowering import lower
from tests.ir.double import READING

SCHEMA = {"type": "object", "properties": {"name": {}, "tags": {}, "age": {}}}
TOOLS = {"weather": {"type": "object", "properties": {"zip": {}, "days": {}}}}


def started(snapshot: Snapshot | None = None) -> Reducer:
    reducer = Reducer(READING)
    reducer.start(snapshot or Snapshot())
    return reducer


def call(index: int | None = None, id_: str | None = None, name: str | None = None, args: str = "") -> CompletionChunk:
    return CompletionChunk(tool_calls=(ToolDelta(index, id_, name, args),))


def arguments(reducer: Reducer) -> Any:
    return reducer.message.tool_calls[0].arguments.resolved


def state(reducer: Reducer) -> str:
    return reducer.state


STOP = CompletionChunk(finish="stop", raw_finish="stop")


@pytest.mark.covers("S3-02", "S3-58", "S3-60")
@pytest.mark.covers("S3-11", "S3-13", "S3-16", "S3-19", "S3-20", "S3-21", "S3-35", "S3-40", "S3-43", "S3-46", "S3-64")
def test_content_grows_with_its_value_beside_it() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(text='{"name": "Ada", "ta'))
    assert reducer.message.content.raw == '{"name": "Ada", "ta'
    assert reducer.message.content.view == {"name": "Ada"}
    reducer.push(CompletionChunk(text='gs": ["x"]}'))
    reducer.push(STOP)
    answer = reducer.finish()
    assert answer.text == '{"name": "Ada", "tags": ["x"]}'
    assert answer.content_resolved == {"name": "Ada", "tags": ["x"]}
    assert answer.finish == "stop"


@pytest.mark.covers("S3-23", "S3-27", "S3-42")
def test_what_did_not_change_is_the_same_object() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA, tools=TOOLS))
    reducer.push(CompletionChunk(text='{"tags": ["x"], "na'))
    reducer.push(call(0, "1", "weather", '{"days": [1, 2], "z'))
    first = reducer.message
    reducer.push(CompletionChunk(text='me": "A"}'))
    reducer.push(call(0, args='ip": 1}'))
    second = reducer.message
    assert first.content.resolved["tags"] is second.content.resolved["tags"]
    days = first.tool_calls[0].arguments.resolved["days"]
    assert second.tool_calls[0].arguments.resolved["days"] is days
    assert reducer.message.content.resolved is second.content.resolved


@pytest.mark.covers("S3-24", "S3-25")
def test_a_view_falls_back_to_the_raw_text() -> None:
    reducer = started()
    reducer.push(CompletionChunk(text="hello"))
    assert reducer.message.content.resolved is UNRESOLVED
    assert reducer.message.content.view == "hello"


@pytest.mark.covers("S3-12", "S3-22", "S3-26", "S3-28", "S3-41", "S3-44", "S3-63", "S3-70", "C27")
def test_interleaved_calls_are_kept_apart_by_their_index() -> None:
    reducer = started(Snapshot(tools=TOOLS))
    for chunk in (
        call(1, "a", "weather", '{"zip"'),
        call(2, "b", "weather", '{"da'),
        call(1, args=": 10}"),
        call(2, args='ys": 3}'),
    ):
        reducer.push(chunk)
    reducer.push(CompletionChunk(finish="tool_calls", raw_finish="tool_calls"))
    answer = reducer.finish()
    assert [(each.id, each.arguments, each.arguments_resolved) for each in answer.tool_calls] == [
        ("a", '{"zip": 10}', {"zip": 10}),
        ("b", '{"days": 3}', {"days": 3}),
    ]


@pytest.mark.covers("S3-37", "S3-38", "S3-39", "S3-69", "C28")
def test_id_and_name_may_come_late_and_stay_as_they_first_came() -> None:
    reducer = started(Snapshot(tools=TOOLS))
    reducer.push(call(0, args='{"zip": '))
    assert arguments(reducer) is UNRESOLVED
    reducer.push(call(0, id_="late", args="12}"))
    reducer.push(call(0, name="weather"))
    reducer.push(call(0, id_="late", name="weather"))
    assert arguments(reducer) == {"zip": 12}
    reducer.push(STOP)
    assert reducer.finish().tool_calls == (ToolCall("late", "weather", '{"zip": 12}'),)


def test_calls_without_an_index_are_told_apart_by_id_or_name() -> None:
    reducer = started()
    for chunk in (
        call(None, "a", "f", '{"x":'),
        call(None, args="1}"),
        call(None, "b", "g", "{}"),
        call(None, "a", args=" "),
        call(None, None, "h", "{}"),
    ):
        reducer.push(chunk)
    reducer.push(STOP)
    calls = reducer.finish().tool_calls
    assert [(each.id, each.name, each.arguments) for each in calls] == [
        ("a", "f", '{"x":1} '),
        ("b", "g", "{}"),
        ("call_2", "h", "{}"),
    ]


def test_a_second_id_under_one_index_is_a_second_call() -> None:
    reducer = started()
    reducer.push(call(0, "a", "f", "{}"))
    reducer.push(call(0, "b", "g", "{}"))
    reducer.push(STOP)
    assert [each.name for each in reducer.finish().tool_calls] == ["f", "g"]


@pytest.mark.covers("S3-71")
def test_a_call_without_arguments_has_an_empty_object() -> None:
    reducer = started(Snapshot(tools=TOOLS))
    reducer.push(call(0, "a", "weather"))
    reducer.push(call(0))
    reducer.push(STOP)
    (only,) = reducer.finish().tool_calls
    assert (only.arguments, only.arguments_resolved) == ("{}", {})


def test_arguments_given_as_an_object_are_written_out() -> None:
    reducer = started()
    reducer.push(CompletionChunk(tool_calls=(ToolDelta(0, "a", "f", {"x": 1}),)))  # type: ignore[arg-type]
    reducer.push(STOP)
    assert reducer.finish().tool_calls[0].arguments == '{"x":1}'


@pytest.mark.covers("S3-14", "S3-45", "S3-65")
def test_a_deferred_tool_gets_its_value_only_when_it_is_whole() -> None:
    reducer = started(Snapshot(tools=TOOLS, deferred=frozenset({"weather"})))
    reducer.push(call(0, "a", "weather", '{"zip": "1", "days'))
    assert arguments(reducer) is UNRESOLVED
    reducer.push(call(0, args='": 2}'))
    assert arguments(reducer) == {"zip": "1", "days": 2}


@pytest.mark.covers("S3-32", "S3-33", "S3-34", "S3-64", "C20")
def test_the_reserved_tool_is_the_content_and_no_call() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA, emulated=True, tools=TOOLS))
    reducer.push(CompletionChunk(text="Let me see. "))
    assert reducer.message.content.resolved is UNRESOLVED
    reducer.push(call(0, args='{"name": '))
    assert reducer.message.tool_calls == ()
    reducer.push(call(0, "o", "output", '"Ada", "a'))
    reducer.push(call(1, "w", "weather", '{"zip": 1}'))
    message = reducer.message
    assert message.content.resolved == {"name": "Ada"}
    assert [each.name for each in message.tool_calls] == ["weather"]
    reducer.push(call(0, args='ge": 36}'))
    reducer.push(CompletionChunk(finish="tool_calls", raw_finish="tool_calls"))
    answer = reducer.finish()
    assert answer.text == '{"name": "Ada", "age": 36}'
    assert answer.content_resolved == {"name": "Ada", "age": 36}
    assert [each.name for each in answer.tool_calls] == ["weather"]
    assert answer.parts[:2] == (Text("Let me see. "), Text(answer.text))


def test_the_reserved_tool_alone_ends_with_stop() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA, emulated=True))
    reducer.push(call(0, "o", "output", '{"name": "A"}'))
    reducer.push(CompletionChunk(finish="tool_calls", raw_finish="tool_use"))
    answer = reducer.finish()
    assert (answer.finish, answer.raw_finish, answer.tool_calls) == ("stop", "tool_use", ())


def test_text_is_the_answer_when_the_reserved_tool_was_never_called() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA, emulated=True))
    reducer.push(CompletionChunk(text='{"name": "A"}', finish="stop"))
    assert reducer.finish().content_resolved == {"name": "A"}


@pytest.mark.covers("S3-15", "S3-29", "S3-36")
def test_start_forgets_what_was_and_keeps_its_own_snapshot() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(text="{", usage=Usage(input=1)))
    reducer.start(Snapshot())
    reducer.push(CompletionChunk(text="new", finish="stop"))
    answer = reducer.finish()
    assert (answer.text, answer.usage, answer.content_resolved) == ("new", Usage(), UNRESOLVED)


@pytest.mark.covers("S3-31")
def test_only_the_first_choice_is_resolved_and_the_others_are_carried() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(text="not json", choice=1, finish="length"))
    reducer.push(CompletionChunk(text='{"name": "A"}', finish="stop"))
    reducer.push(CompletionChunk(choice=2, tool_calls=(ToolDelta(0, "x", "f", "{}"),), finish="stop"))
    answer = reducer.finish()
    assert answer.text == '{"name": "A"}'
    assert [(other.text, other.finish) for other in answer.others] == [("not json", "length"), ("", "tool_calls")]


@pytest.mark.covers("S3-52", "S3-53", "S3-55", "S3-66")
def test_text_that_is_not_json_is_raised_at_the_end_and_not_before() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(text="Sorry, no."))
    assert reducer.message.content.view == "Sorry, no."
    assert reducer.error is not None
    reducer.push(STOP)
    with pytest.raises(JsonEnforcementError, match="not JSON"):
        reducer.finish()
    assert reducer.state == "idle"


@pytest.mark.covers("S3-54", "C25")
def test_a_value_that_does_not_match_is_raised_at_the_end() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(text='{"color": 1}', finish="stop"))
    with pytest.raises(SchemaViolationError, match="color"):
        reducer.finish()


def test_arguments_that_do_not_match_are_raised_at_the_end() -> None:
    reducer = started(Snapshot(tools=TOOLS))
    reducer.push(call(0, "a", "weather", '{"planet": 1}'))
    reducer.push(STOP)
    with pytest.raises(SchemaViolationError) as caught:
        reducer.finish()
    assert caught.value.where == "tool_calls[0].arguments"


PAINTED = {"type": "object", "properties": {"color": {"type": "string"}}}
TYPED = {"weather": {"type": "object", "properties": {"planet": {"type": "string"}}}}
BROKEN = [
    ('{"color": 1}', SchemaViolationError),
    ('{"color": ]', JsonEnforcementError),
    ("Sorry, no.", JsonEnforcementError),
    ('{"color": "r', TruncatedError),
]


@pytest.mark.covers("S3-53", "S3-54", "S3-55", "S3-66", "C25")
@pytest.mark.parametrize(("text", "kind"), BROKEN)
@pytest.mark.parametrize("finish", ["stop", "unknown", "error", None])
def test_however_it_ends_a_wrong_answer_is_raised_with_its_kind(
    text: str, kind: type[EnforcementError], finish: Any
) -> None:
    reducer = Reducer()
    reducer.start(Snapshot(response_schema=PAINTED))
    reducer.push(CompletionChunk(text=text, finish=finish))
    with pytest.raises(kind) as caught:
        reducer.finish()
    assert type(caught.value) is kind
    assert reducer.state == "idle"


@pytest.mark.covers("S3-53", "S3-66")
def test_broken_json_beside_a_call_is_raised_and_prose_is_not() -> None:
    reducer = Reducer()
    for text in ("Let me look.", '{"color": 1}'):
        reducer.start(Snapshot(response_schema=PAINTED, tools=TYPED))
        reducer.push(CompletionChunk(text=text))
        reducer.push(call(0, "a", "weather", '{"planet": "Mars"}'))
        reducer.push(CompletionChunk(finish="tool_calls"))
        if text[0] == "{":
            with pytest.raises(SchemaViolationError):
                reducer.finish()
        else:
            assert reducer.finish().tool_calls[0].name == "weather"


@pytest.mark.covers("S3-52", "S3-54")
@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ('{"planet": 1}', SchemaViolationError),
        ('{"planet": ]', JsonEnforcementError),
        ('{"planet": "M', TruncatedError),
    ],
)
def test_errors_of_arguments_are_stored_and_have_their_kind(arguments: str, kind: type[EnforcementError]) -> None:
    reducer = Reducer()
    reducer.start(Snapshot(tools=TYPED))
    reducer.push(call(0, "a", "weather", arguments))
    assert (reducer.error is None) == (kind is TruncatedError)
    with pytest.raises(kind) as caught:
        reducer.finish()
    assert type(caught.value) is kind
    reducer.start(Snapshot(tools=TYPED))
    reducer.push(call(0, "a", "weather", arguments))
    reducer.push(CompletionChunk(finish="length"))
    assert reducer.finish().tool_calls[0].arguments == arguments


def test_without_the_check_the_answer_is_given_as_it_is() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(text="Sorry, no.", finish="stop"))
    answer = reducer.finish(check=False)
    assert (answer.text, answer.content_resolved) == ("Sorry, no.", UNRESOLVED)


def test_nothing_at_all_is_its_own_error() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(text="  ", finish="stop"))
    with pytest.raises(EmptyAnswerError):
        reducer.finish()


@pytest.mark.parametrize("finish", ["length", "content_filter", "refusal"])
def test_an_answer_that_did_not_end_by_itself_is_no_parse_error(finish: str) -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(text='{"name": "A', finish=finish))  # type: ignore[arg-type]
    assert reducer.finish().finish == finish


@pytest.mark.covers("S3-57", "S3-75")
@pytest.mark.covers("S3-17", "S3-18", "S3-47", "S3-48", "S3-49", "S3-51", "S3-56")
def test_every_end_leads_back_to_idle() -> None:
    reducer = Reducer(READING)
    assert state(reducer) == "idle"
    reducer.start(Snapshot())
    assert state(reducer) == "streaming"
    reducer.push(CompletionChunk(text="x"))
    reducer.stop()
    assert (reducer.state, reducer.message.content.raw) == ("idle", "")
    reducer.start(Snapshot())
    error = UpstreamError("the line went dead")
    assert reducer.fail(error) is error
    assert reducer.state == "idle"
    reducer.start(Snapshot())
    reducer.push(STOP)
    reducer.finish()
    assert reducer.state == "idle"
    with pytest.raises(RuntimeError, match="idle"):
        reducer.push(STOP)
    with pytest.raises(RuntimeError, match="idle"):
        reducer.finish()


def test_usage_after_the_finish_names_warnings_and_vendor_fields_are_kept() -> None:
    reducer = started()
    reducer.push(CompletionChunk(text="a", id="i", model="m", extra={"logprobs": {"content": [1]}, "tier": "x"}))
    reducer.push(CompletionChunk(text="b", finish="stop", raw_finish="eos", extra={"logprobs": {"content": [2]}}))
    note = ModelWarning("note", "said")
    reducer.push(CompletionChunk(usage=Usage(input=1, output=2), warnings=(note,), extra={"usage": {"x": 1}}))
    answer = reducer.finish()
    assert (answer.id, answer.model, answer.raw_finish) == ("i", "m", "eos")
    assert answer.usage == Usage(input=1, output=2)
    assert answer.extra == {"logprobs": {"content": [1, 2]}, "tier": "x", "usage": {"x": 1}}
    assert answer.warnings == (note,)


def test_the_turn_keeps_its_order_and_its_opaque_parts() -> None:
    reducer = started()
    signed = Reasoning("hm", {"anthropic": {"signature": "s"}})
    hosted = Opaque("anthropic", {"type": "server_tool_use"})
    for chunk in (
        CompletionChunk(reasoning="hm"),
        CompletionChunk(parts=(signed,)),
        CompletionChunk(text="a"),
        CompletionChunk(text="b"),
        CompletionChunk(parts=(hosted,)),
        call(3, "x", "f", "{}"),
        CompletionChunk(text="c"),
        STOP,
    ):
        reducer.push(chunk)
    answer = reducer.finish()
    assert answer.parts == (signed, Text("ab"), hosted, ToolCall("x", "f", "{}"), Text("c"))
    assert (answer.text, answer.reasoning) == ("abc", "hm")
    assert answer.message.parts == answer.parts


def test_a_refusal_is_one_whatever_the_vendor_s_word() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    reducer.push(CompletionChunk(refusal="I can"))
    reducer.push(CompletionChunk(refusal="not."))
    assert reducer.message.refusal.raw == "I cannot."
    reducer.push(STOP)
    answer = reducer.finish()
    assert (answer.refusal, answer.finish) == ("I cannot.", "refusal")


def test_an_answer_in_the_vendor_s_shape_is_lifted_when_it_is_whole() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    lift = Lift({}, lambda value: value["value"])
    reducer.push(CompletionChunk(text='{"value": {"name":', lift=lift))
    assert reducer.message.content.resolved is UNRESOLVED
    reducer.push(CompletionChunk(text=' "A"}}', finish="stop"))
    answer = reducer.finish()
    assert (answer.text, answer.content_resolved, answer.lift) == ('{"name":"A"}', {"name": "A"}, None)


@pytest.mark.covers("S3-03", "S0-54")
def test_looking_at_the_value_reads_each_piece_once() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA))
    for piece in ("{", '"name"', ":", '"Ada"', "}"):
        reducer.push(CompletionChunk(text=piece))
        assert reducer.message.content.raw.endswith(piece)
    reducer.push(STOP)
    assert reducer.finish().content_resolved == {"name": "Ada"}


def test_where_the_channel_is_not_known_the_reserved_call_is_the_answer_if_it_comes() -> None:
    reducer = started(Snapshot(response_schema=SCHEMA, emulated=None))
    reducer.push(CompletionChunk(text='{"name": "text"'))
    assert reducer.message.content.resolved == {"name": "text"}
    reducer.push(call(0, "o", "output", '{"name": "call"}'))
    assert reducer.message.content.resolved == {"name": "call"}
    reducer.push(STOP)
    answer = reducer.finish()
    assert (answer.text, answer.tool_calls) == ('{"name": "call"}', ())
    reducer.start(Snapshot(response_schema=SCHEMA, emulated=None))
    reducer.push(CompletionChunk(text='{"name": "text"}', finish="stop"))
    assert reducer.finish().content_resolved == {"name": "text"}


def test_an_answer_in_the_vendor_s_shape_is_lifted_while_it_grows_where_that_can_be_done() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}, "name": {"type": "string"}}}
    lowered = lower(schema, "openai", open_objects="closed")
    reducer = Reducer()
    reducer.start(Snapshot(response_schema=schema))
    reducer.push(CompletionChunk(text='{"age": null, ', lift=Lift(lowered.schema, lowered.lift, lowered.plan)))
    assert reducer.message.content.resolved == {}
    reducer.push(CompletionChunk(text='"name": "Ada"'))
    assert reducer.message.content.view == {"name": "Ada"}
    reducer.push(CompletionChunk(text="}", finish="stop"))
    answer = reducer.finish()
    assert (answer.text, answer.content_resolved, answer.lift) == ('{"name":"Ada"}', {"name": "Ada"}, None)


@pytest.mark.covers("S3-55")
def test_arguments_that_the_token_limit_cut_are_not_resolved() -> None:
    reducer = Reducer()
    reducer.start(Snapshot(tools={"find": {"type": "object", "properties": {"name": {"type": "string"}}}}))
    reducer.push(CompletionChunk(tool_calls=(ToolDelta(0, "c1", "find", '{"name":"half a na'),)))
    reducer.push(CompletionChunk(finish="length"))
    (call,) = reducer.finish().tool_calls
    assert call.arguments == '{"name":"half a na'
    assert call.arguments_resolved is UNRESOLVED


def test_text_that_leads_up_to_a_call_is_not_an_error() -> None:
    reducer = Reducer()
    reducer.start(Snapshot({"type": "object"}, tools={"find": {"type": "object"}}))
    reducer.push(CompletionChunk("Let me look. "))
    reducer.push(CompletionChunk(tool_calls=(ToolDelta(0, "c1", "find", "{}"),), finish="tool_calls"))
    assert reducer.error is None
    assert reducer.finish().text == "Let me look. "


@pytest.mark.covers("S3-36")
def test_a_schema_that_the_caller_changes_in_mid_stream_changes_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    reducer = Reducer()
    reducer.start(Snapshot(schema))
    reducer.push(CompletionChunk('{"a": '))
    schema["properties"] = {"a": {"type": "string"}}
    reducer.push(CompletionChunk("1}", finish="stop"))
    assert reducer.finish().content_resolved == {"a": 1}
