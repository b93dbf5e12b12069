"""What is known for plain at a glance is read the same by those who look closely."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.codecs.codec import Capabilities
from slipform.codecs.openai_chat import OpenAIChatCodec
from slipform.codecs.openai_chat.decode import decode_body
from slipform.codecs.openai_chat.serve_encode import OpenAIChatServing
from slipform.codecs.openai_chat.straight import is_plain_talk, plain_answer, with_text
from slipform.codecs.schema_channel import SchemaChannel
from slipform.ir import ModelWarning

PLAIN: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "{}", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    "system_fingerprint": "fp",
}
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(0, 2), TEXT, st.just([]), st.just({}), st.just("stop")
)
PATHS = [
    ("id",), ("object",), ("created",), ("model",), ("choices",), ("usage",), ("new",), ("error",),
    ("choices", 0), ("choices", 0, "message"), ("choices", 0, "finish_reason"), ("choices", 0, "logprobs"),
    ("choices", 0, "new"), ("choices", 0, "message", "role"), ("choices", 0, "message", "content"),
    ("choices", 0, "message", "refusal"), ("choices", 0, "message", "tool_calls"),
    ("choices", 0, "message", "reasoning_content"), ("choices", 0, "message", "annotations"),
    ("usage", "prompt_tokens"), ("usage", "total_tokens"), ("usage", "prompt_tokens_details"),
    ("usage", "completion_tokens_details"), ("usage", "cached_tokens"),
]  # fmt: skip


def with_(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    answer: Any = copy.deepcopy(PLAIN)
    place = answer
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return answer  # type: ignore[no-any-return]


@given(st.sampled_from(PATHS), ODD)
def test_an_answer_that_passes_for_plain_is_read_the_same_by_the_decoder(path: tuple[Any, ...], value: Any) -> None:
    answer = with_(path, value)
    found = plain_answer(answer)
    if found is None:
        return
    read = decode_body(answer, SchemaChannel())
    assert (found.text, found.finish, found.raw_finish, found.usage, found.model, found.id, found.warnings) == (
        read.text, read.finish, read.raw_finish, read.usage, read.model, read.id, read.warnings,
    )  # fmt: skip
    assert (read.tool_calls, read.reasoning, read.refusal, read.others) == ((), "", None, ())


def test_the_usual_answer_passes_for_plain_with_the_warnings_of_its_request() -> None:
    lost = (ModelWarning("lossy_encode", "x"),)
    found = plain_answer(PLAIN, lost)
    assert found is not None
    assert (found.text, found.usage.total, found.warnings) == ("{}", 3, lost)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("choices", 0, "finish_reason"), "length"),
        (("choices", 0, "message", "refusal"), "no"),
        (("choices", 0, "message", "tool_calls"), [{}]),
        (("choices",), []),
        (("usage",), None),
        (("usage", "prompt_tokens_details"), "x"),
        (("error",), {"message": "x"}),
    ],
)
def test_an_answer_with_anything_unusual_does_not(path: tuple[Any, ...], value: Any) -> None:
    assert plain_answer(with_(path, value)) is None


ROLE = st.sampled_from(["user", "system", "assistant", "developer", "tool", ""])
TURN = st.one_of(
    st.fixed_dictionaries({"role": ROLE, "content": TEXT}),
    st.fixed_dictionaries({"role": ROLE, "content": ODD}),
    st.fixed_dictionaries({"role": ROLE, "content": TEXT, "name": TEXT}),
)


@given(st.one_of(st.lists(TURN, max_size=4), ODD))
def test_plain_talk_leaves_as_it_came(turns: Any) -> None:
    if not is_plain_talk(turns):
        return
    request = OpenAIChatServing().decode_request({"model": "m", "messages": turns}).request
    sent = OpenAIChatCodec(Capabilities(native=True)).encode_request(request, stream=False)
    assert orjson.loads(sent.body)["messages"] == turns


@given(TEXT)
def test_a_text_is_put_in_place_of_another_and_nothing_else_is_changed(text: str) -> None:
    before = copy.deepcopy(PLAIN)
    assert orjson.loads(with_text(PLAIN, text)) == with_(("choices", 0, "message", "content"), text)
    assert before == PLAIN
