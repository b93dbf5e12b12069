"""One answer → a verdict."""

from __future__ import annotations

import pytest

from slipform.enforce import Requirement, judge
from slipform.errors import (
    EmptyAnswerError,
    JsonEnforcementError,
    RefusalError,
    SchemaViolationError,
    TruncatedError,
)
from slipform.ir import ModelResponse, ToolCall
from slipform.schema import Schema
from tests.conftest import PERSON

SCHEMA = Requirement(Schema[object]("person", PERSON))


@pytest.mark.covers("S0-82", "S2-41", "S2-43", "S2-63")
def test_valid_json_is_taken_and_made_compact() -> None:
    verdict = judge(ModelResponse(text='{\n  "name": "Ada", "age": 36\n}'), SCHEMA)
    assert verdict.ok
    assert verdict.value == {"name": "Ada", "age": 36}
    assert verdict.candidate == '{"name":"Ada","age":36}'


@pytest.mark.covers("S0-14", "S0-67", "S1-39")
def test_json_is_found_in_prose() -> None:
    verdict = judge(ModelResponse(text='Sure {here}: {"name": "A}da", "age": 36}. Bye!'), SCHEMA)
    assert verdict.value == {"name": "A}da", "age": 36}


@pytest.mark.covers("S2-36")
def test_the_reserved_tools_arguments_are_the_answer() -> None:
    call = ToolCall("c1", "output", '{"name": "Ada", "age": 36}')
    assert judge(ModelResponse(text="I will call it.", tool_calls=(call,)), SCHEMA).ok


@pytest.mark.covers("S2-49", "S2-68")
def test_violations_are_all_listed_with_their_paths() -> None:
    verdict = judge(ModelResponse(text='{"age": "x"}'), SCHEMA)
    assert isinstance(verdict.error, SchemaViolationError)
    assert not verdict.hopeless
    paths = {entry["path"] for entry in verdict.error.details["validation_errors"]}
    assert paths == {"$", "$.age"}
    assert len(verdict.violations) == 2


@pytest.mark.covers("S2-54")
@pytest.mark.parametrize(
    ("response", "kind", "final"),
    [
        (ModelResponse(refusal="I cannot."), RefusalError, True),
        (ModelResponse(text="{", finish="content_filter"), RefusalError, True),
        (ModelResponse(text='{"name": "A', finish="length"), TruncatedError, False),
        (ModelResponse(text=" \n"), EmptyAnswerError, False),
        (ModelResponse(text="I do not know."), JsonEnforcementError, False),
    ],
)
def test_what_is_no_answer_has_an_error_of_its_own(response: ModelResponse, kind: type, final: bool) -> None:
    verdict = judge(response, SCHEMA)
    assert type(verdict.error) is kind
    assert verdict.hopeless is final


SAVE = Schema[object]("save", PERSON)
FIND = Schema[object]("find", {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})


@pytest.mark.parametrize(
    ("text", "must_call", "called"),
    [
        ('Sure: {"name": "Ada", "age": "36"}', ("save",), "save"),
        ('{"name": "Ada", "age": 36}', ("save", "find"), "save"),
        ('{"name": "find", "arguments": {"id": 7}}', ("save", "find"), "find"),
    ],
)
@pytest.mark.covers("C29", "C30")
def test_text_that_is_a_forced_tools_arguments_becomes_the_call(
    text: str, must_call: tuple[str, ...], called: str
) -> None:
    verdict = judge(ModelResponse(text=text), Requirement(None, {"save": SAVE, "find": FIND}, must_call=must_call))
    assert verdict.ok
    assert verdict.candidate == ""
    assert [call.name for call in verdict.tool_calls] == [called]
    assert [warning.code for warning in verdict.warnings if not warning.informs] == ["tool_call_from_text"]


@pytest.mark.parametrize("text", ["I would rather talk.", '{"name": "Ada", "age": 36, "id": 1}', '{"name": "other"}'])
def test_a_forced_tool_that_is_not_called_is_an_error_that_can_be_asked_about(text: str) -> None:
    """Also where the text could be the arguments of either tool: which one was meant cannot be known."""
    either = Schema[object]("save", {"type": "object", "required": ["name", "age"]})
    verdict = judge(
        ModelResponse(text=text), Requirement(None, {"save": either, "find": FIND}, must_call=("save", "find"))
    )
    assert isinstance(verdict.error, SchemaViolationError)
    assert not verdict.hopeless
    assert "save or find" in verdict.error.message


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('{"name": "Ada", "age": 36, "city": "Bath"', True),
        ('{"city": "Bath", "name": "Ada", "age": 36', False),  # the number may have had more digits
        ('{"name": "Ada", "city": "Bath"', False),  # a key is missing that was to come
        ('{"name": "Ada", "age": 36, "city": "Ba', False),
    ],
)
def test_an_answer_cut_off_in_its_last_brackets_is_whole_only_if_nothing_could_follow(text: str, whole: bool) -> None:
    shape = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
        "required": ["name"],
    }
    verdict = judge(ModelResponse(text=text, finish="length"), Requirement(Schema[object]("person", shape)))
    assert verdict.ok is whole
    if whole:
        assert [edit.kind for edit in verdict.repairs] == ["missing_bracket"]
    else:
        assert isinstance(verdict.error, TruncatedError)


@pytest.mark.parametrize(
    ("text", "whole"), [('{"l": [1, 2', False), ('{"l": [[1, "a"', False), ('{"l": ["a", "b"]', True)]
)
def test_an_array_that_was_cut_off_may_have_had_more_items(text: str, whole: bool) -> None:
    shape = {"type": "object", "properties": {"l": {"type": "array", "maxItems": 2}}}
    verdict = judge(ModelResponse(text=text, finish="length"), Requirement(Schema[object]("l", shape)))
    assert verdict.ok is whole
