"""How a stream under enforcement ends."""

from __future__ import annotations

from slipform.enforce.stream import closing_chunks
from slipform.ir import ModelResponse, ToolCall, Usage


def test_what_has_not_left_comes_before_the_calls_and_the_end() -> None:
    answer = ModelResponse(tool_calls=(ToolCall("c1", "look", '{"at":1}'),), finish="tool_calls", usage=Usage(output=3))
    rest, call, end = closing_chunks(answer, "}")
    assert rest.text == "}"
    assert (call.tool_calls[0].name, call.tool_calls[0].arguments) == ("look", '{"at":1}')
    assert (end.finish, end.usage) == ("tool_calls", Usage(output=3))


def test_nothing_is_left_to_say_but_the_end() -> None:
    (end,) = closing_chunks(ModelResponse(finish="stop"), "")
    assert end.finish == "stop"
