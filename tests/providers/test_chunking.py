from __future__ import annotations

from slipform.ir import ModelResponse, ModelWarning, ToolCall, Usage
from slipform.providers.base import as_chunks


def test_a_whole_answer_told_as_a_stream_loses_nothing() -> None:
    response = ModelResponse(
        text="hello",
        reasoning="hm",
        tool_calls=(ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "g", "{}")),
        finish="tool_calls",
        raw_finish="tool_use",
        usage=Usage(input=1),
        model="m",
        id="i",
        warnings=(ModelWarning("a", "b"),),
        extra={"x": 1},
    )
    chunks = list(as_chunks(response, size=3))
    assert "".join(chunk.text for chunk in chunks) == "hello"
    assert "".join(chunk.reasoning for chunk in chunks) == "hm"
    deltas = [delta for chunk in chunks for delta in chunk.tool_calls]
    assert [delta.id for delta in deltas if delta.id] == ["c1", "c2"]
    assert "".join(delta.arguments for delta in deltas if delta.index == 0) == '{"a": 1}'
    assert (chunks[0].model, chunks[0].id, chunks[0].warnings) == ("m", "i", response.warnings)
    assert (chunks[-1].finish, chunks[-1].raw_finish, chunks[-1].usage) == ("tool_calls", "tool_use", Usage(input=1))
    assert chunks[-1].extra == {"x": 1}
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_an_empty_answer_is_one_chunk() -> None:
    (chunk,) = as_chunks(ModelResponse(id="i", refusal=None))
    assert (chunk.text, chunk.finish, chunk.id) == ("", "stop", "i")


def test_a_refusal() -> None:
    assert "".join(chunk.refusal for chunk in as_chunks(ModelResponse(refusal="No."), 2)) == "No."
