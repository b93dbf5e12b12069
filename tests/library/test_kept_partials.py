"""What a finished stream leaves behind: its partials have the parts of its result, messages have their values."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from slipform import Client
from slipform.ir import UNRESOLVED, Message, ModelResponse, ToolCall
from slipform.library.partial import so_far
from slipform.providers.router import Router
from slipform.testing import FakeModel


class Tag(BaseModel):
    number: int


class Note(BaseModel):
    tags: list[Tag]
    last: Tag


TEXT = '{"tags": [{"number": 1}, {"number": 2}], "last": {"number": 3}}'


def _client() -> Client:
    return Client("fake/m", router=Router({"fake": FakeModel([TEXT])}))


@pytest.mark.covers("S3-23", "S3-73")
def test_partials_that_are_first_read_after_the_result_have_its_parts() -> None:
    stream = _client().stream(Note, "x")
    partials = [each for each in stream if len(so_far(each).get("tags", ())) > 1]
    note = stream.result.value
    assert partials
    assert all(partial.tags[0] is note.tags[0] for partial in partials)
    assert partials[-1].last is note.last


@pytest.mark.covers("S3-21", "S3-24")
def test_the_assistants_message_has_the_value_of_its_text() -> None:
    result = _client().ask_full(Note, "x")
    asked, answered = result.messages
    assert answered.content_resolved == answered.view == result.value.model_dump()
    assert asked.content_resolved is UNRESOLVED
    assert asked.view == "x"


@pytest.mark.covers("S3-22", "S3-24")
def test_a_view_is_the_value_where_it_is_known_and_the_text_elsewhere() -> None:
    assert ModelResponse(text="[1]").view == "[1]"
    assert ModelResponse(text="[1]", content_resolved=[1]).view == [1]
    assert ModelResponse(text="[1]", content_resolved=[1]).message.view == [1]
    assert ToolCall("c", "look", "{}").view == "{}"
    assert ToolCall("c", "look", "{}", arguments_resolved={}).view == {}


def test_the_value_of_a_message_is_not_compared() -> None:
    assert Message.assistant("[1]") == Message.assistant("[1]").replace(content_resolved=[1])
