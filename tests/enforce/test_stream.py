"""How a stream under enforcement ends."""

from __future__ import annotations

from slipform.enforce import Budget, Plan, enforce
from slipform.enforce.stream import EnforcedCall, OpenStream, Release, StreamWatch
from slipform.ir import CompletionChunk, ModelRequest, Reasoning, Text, ToolCall, ToolDelta, Usage
from slipform.schema import OutputStrategy, Schema

LOOK = Schema.of({"type": "object", "properties": {"at": {"type": "integer"}}})
SIGNED = Reasoning("hm", {"anthropic": {"type": "thinking", "thinking": "hm", "signature": "c2ln"}})


def _streamed(
    plan: Plan, *answers: list[CompletionChunk], live: bool = True
) -> tuple[list[CompletionChunk], EnforcedCall]:
    """What leaves of these answers, piece by piece and at the end."""
    call = EnforcedCall(enforce(ModelRequest("m", ()), plan), plan, streaming=True, release=Release(live, live))
    left: list[CompletionChunk] = []
    for chunks in answers:
        reader = call.read()
        for chunk in chunks:
            left += reader.push((chunk,)) or ()
        call.answer(reader.response())
    left += call.last()[0]
    return left, call


def test_what_has_not_left_comes_before_the_calls_and_the_end() -> None:
    delta = ToolDelta(0, "c1", "look", '{"at":"1",}')
    chunks = [CompletionChunk("Wait"), CompletionChunk(tool_calls=(delta,), finish="stop", usage=Usage(output=3))]
    text, call, end = _streamed(Plan(None, tools={"look": LOOK}), chunks)[0]
    assert text.text == "Wait"
    assert (call.tool_calls[0].name, call.tool_calls[0].arguments) == ("look", '{"at":1}')
    assert (end.finish, end.usage) == ("tool_calls", Usage(output=3, total=3))


def test_thinking_leaves_before_the_text_and_once() -> None:
    chunks = [
        CompletionChunk(reasoning="h"),
        CompletionChunk(reasoning="m"),
        CompletionChunk(parts=(SIGNED,)),
        CompletionChunk('{"at": 1, "x'),
        CompletionChunk('": 2}', finish="stop"),
    ]
    left, call = _streamed(Plan(LOOK, OutputStrategy.NATIVE), chunks)
    assert [chunk.reasoning for chunk in left if chunk.reasoning] == ["h", "m"]
    assert [part for chunk in left for part in chunk.parts] == [SIGNED]
    assert left.index(CompletionChunk(parts=(SIGNED,))) < next(at for at, chunk in enumerate(left) if chunk.text)
    assert "".join(chunk.text for chunk in left) == '{"at":1,"x":2}'
    assert call.outcome is not None
    assert call.outcome.answer.parts == (SIGNED, Text('{"at":1,"x":2}'))


def test_the_thinking_of_a_second_answer_leaves_too() -> None:
    first = [CompletionChunk(reasoning="hm", parts=(SIGNED,)), CompletionChunk('{"at": "x"}', finish="stop")]
    again = Reasoning("oh", {"anthropic": {"type": "thinking", "thinking": "oh", "signature": "b2g="}})
    second = [CompletionChunk(reasoning="oh", parts=(again,)), CompletionChunk('{"at": 1}', finish="stop")]
    left, _ = _streamed(Plan(LOOK, OutputStrategy.NATIVE, Budget(attempts=2)), first, second)
    assert [part for chunk in left for part in chunk.parts] == [SIGNED, again]


def test_a_buffered_answer_leaves_in_its_own_order() -> None:
    call = ToolDelta(0, "c1", "look", '{"at": "1"}', {"gemini": {"thoughtSignature": "c2ln"}})
    chunks = [CompletionChunk(reasoning="hm", parts=(SIGNED,)), CompletionChunk(tool_calls=(call,), finish="stop")]
    left, ended = _streamed(Plan(None, tools={"look": LOOK}), chunks, live=False)
    assert [chunk.parts for chunk in left] == [(SIGNED,), (), ()]
    assert left[1].tool_calls[0].extra == call.extra
    assert ended.outcome is not None
    assert ended.outcome.answer.parts == (SIGNED, ToolCall("c1", "look", '{"at":1}', call.extra))


def test_the_report_says_what_became_of_every_character_and_where_the_stream_became_impossible() -> None:
    text = 'Sure, é: { "name": "Ada", "age": 3600, "more": 1}'
    age = {"type": "integer", "maximum": 150}
    schema = Schema.of(
        {"type": "object", "properties": {"name": {"type": "string"}, "age": age}, "required": ["name", "age"]}
    )
    plan = Plan(schema, OutputStrategy.NATIVE, Budget(attempts=2))
    seen: list[tuple[int, str, str, int]] = []
    steps = enforce(ModelRequest("m", ()), plan)
    watch = StreamWatch(lambda *piece: seen.append(piece))
    call = EnforcedCall(steps, plan, streaming=True, release=Release(True, True), opened=OpenStream(watch=watch))
    for answer in (text, '{"name": "Ada", "age": 36}'):
        reader = call.read()
        for at in range(0, len(answer), 3):
            reader.push((CompletionChunk(answer[at : at + 3]),))
            if reader.stopped:
                break
        call.answer(reader.response())
    outcome = call.last()[1]
    first, second = outcome.report.attempts
    figures = first.stream
    assert figures is not None
    assert figures.fault is not None
    assert text[: figures.fault.at].endswith("3600")  # which could have become 3600e-2
    assert figures.fault.byte == figures.fault.at + 1  # é takes two bytes
    assert figures.fault.path == "$.age"
    assert figures.received == figures.released + figures.held + figures.dropped
    assert second.asked is not None
    assert "$.age" in second.asked
    assert outcome.report.to_dict()["attempts"][0]["stream"]["fault"]["at"] == figures.fault.at
    assert "".join(released for _, _, released, _ in seen) == outcome.text
    assert "".join(received for attempt, received, _, _ in seen if attempt == 1) == text[: figures.received]
