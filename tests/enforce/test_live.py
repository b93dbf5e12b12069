"""What may leave while an answer still grows: nothing that has to be taken back, and nothing later than it must."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipform.codecs import Capabilities
from slipform.enforce import Budget, Outcome, ReleaseGate, Requirement, Switches
from slipform.engine.setup import Options
from slipform.errors import SlipformError
from slipform.ir import RESERVED_TOOL, CompletionChunk, Message, ModelRequest, ModelResponse, ToolCall
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, ResponseFormat, Schema
from slipform.testing import FakeModel
from tests.conftest import PERSON, examples
from tests.enforce.test_patch import MENDED

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
        "state": {"enum": ["open", "paid", "sent back"]},
        "note": {"type": "string"},
        "total": {"type": "number", "minimum": 0},
        "items": {
            "type": "array",
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"const": "book"}, "pages": {"type": "integer"}},
                        "required": ["kind", "pages"],
                        "additionalProperties": False,
                    },
                    {
                        "type": "object",
                        "properties": {"kind": {"const": "disc"}, "minutes": {"type": ["integer", "null"]}},
                        "required": ["kind", "minutes"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "uniqueItems": True},
    },
    "required": ["id", "state", "items"],
    "additionalProperties": False,
}
ORDERS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["AB-1", "ZZ-4242"]),
        "state": st.sampled_from(["open", "paid", "sent back"]),
        "items": st.lists(
            st.one_of(
                st.fixed_dictionaries({"kind": st.just("book"), "pages": st.integers(0, 9**20)}),
                st.fixed_dictionaries({"minutes": st.none() | st.integers(0, 99), "kind": st.just("disc")}),
            ),
            max_size=3,
        ),
    },
    optional={
        "note": st.text(max_size=12),
        "total": st.floats(0, 1e9, allow_nan=False),
        "tags": st.lists(st.text("ab", max_size=4), max_size=3, unique=True),
    },
)
FAULTS: list[Any] = [
    lambda text, _: text,
    lambda text, _: f"```json\n{text}\n```",
    lambda text, _: f"Sure! Here it is [1]: {text} I hope this helps.",
    lambda text, _: f"<think>maybe {{}}?</think>{text}",
    lambda text, rng: text[: rng.randrange(len(text))],
    lambda text, _: text.replace('"state"', '"State"'),
    lambda text, _: text.replace('"state"', "state"),
    lambda text, _: text.replace('"items"', '"extra": [1, {"a": 2}], "items"'),
    lambda text, _: text.replace('"pages": ', '"pages": "').replace(', "x', '", "x'),
    lambda text, _: text.replace("AB-", "Ab-"),
    lambda text, _: text.replace('"open"', '"OPEN"').replace('"paid"', '"unpaid"'),
    lambda text, _: text.replace("]", ",]"),
    lambda text, _: text.replace("a", "\\u0061"),
    lambda text, _: text.replace('"id"', '"id": "AB-7", "id"'),
    lambda text, _: text.replace("null", '"none"'),
    lambda text, rng: text.replace(rng.choice(text), rng.choice('"{}[],:x0\\'), 1),
    lambda text, _: json.dumps([json.loads(text)]),
    lambda text, _: json.dumps({"order": json.loads(text)}),
]


def asked(schema: Any) -> ModelRequest:
    return ModelRequest("fake/m", (Message.user("go"),), ResponseFormat.strict(JsonSchemaSpec("s", schema)))


async def streamed(
    schema: Any,
    *turns: Any,
    mode: Any = "live",
    size: int = 3,
    attempts: int = 2,
    can: Capabilities | None = None,
    switches: Switches | None = None,
) -> tuple[str, Outcome | SlipformError, FakeModel]:
    """What left, how it ended, and the model."""
    model = FakeModel(list(turns), chunk_size=size, capabilities=can or Capabilities(native=True), models=("m",))
    options = Options(budget=Budget(attempts=attempts), switches=switches or Switches())
    client = AsyncClient(router=Router({"fake": model}), options=options)
    left: list[str] = []
    got: Outcome | SlipformError | None = None
    try:
        async for piece in client.respond_stream(asked(schema), options, mode=mode):
            if isinstance(piece, CompletionChunk):
                left.append(piece.text)
            else:
                got = piece
    except SlipformError as error:
        got = error
    assert got is not None
    return "".join(left), got, model


@pytest.mark.covers("S2-73", "C11")
@settings(max_examples=examples(200), deadline=None)
@given(
    order=ORDERS,
    fault=st.sampled_from(FAULTS),
    seed=st.integers(0, 999),
    indent=st.sampled_from([None, 2]),
    size=st.integers(1, 9),
    channel=st.sampled_from(["native", "prompted", "tool"]),
)
async def test_what_has_left_begins_the_answer_whatever_the_model_writes_and_however_it_is_cut(
    order: Any, fault: Any, seed: int, indent: int | None, size: int, channel: str
) -> None:
    text = fault(json.dumps(order, indent=indent, ensure_ascii=bool(seed % 2)), random.Random(seed))
    said: Any = text
    can = Capabilities(native=channel == "native", forced_tool=channel == "tool", tools=channel == "tool")
    if channel == "tool":
        said = ModelResponse(tool_calls=(ToolCall("c", RESERVED_TOOL, text),), finish="tool_calls")
    left, got, _ = await streamed(
        ORDER, said, json.dumps({"id": "XX-1", "state": "open", "items": []}), size=size, can=can
    )
    if isinstance(got, Outcome):
        assert left == got.text
        assert Schema.of(ORDER).validate(json.loads(left)) == []
        assert json.loads(left) == got.value
    else:
        with pytest.raises(ValueError, match=r".+"):
            json.loads(left)


@settings(max_examples=examples(120), deadline=None)
@given(order=ORDERS, cuts=st.lists(st.integers(1, 12), min_size=1, max_size=6))
async def test_a_valid_answer_leaves_the_same_however_it_is_cut(order: Any, cuts: list[int]) -> None:
    text = json.dumps(order, indent=1)
    live = ReleaseGate(Schema.of(ORDER), Switches())
    left, at, turn = "", 0, 0
    while at < len(text):
        left += live.feed(text[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    assert live.complete
    assert live.fault is None
    compact = json.dumps(order, separators=(",", ":"))
    assert compact.startswith(left)
    found = live.rest(json.dumps(order, separators=(",", ":")))
    assert found is not None
    assert left + found[0] == found[1] == compact


@given(text=st.text(max_size=8), cut=st.integers(0, 40), other=st.text(max_size=8))
@example(text='["null"', cut=10, other="")
def test_what_has_left_is_continued_or_refused_whatever_the_final_answer_is(text: str, cut: int, other: str) -> None:
    written = json.dumps(text)[:cut]
    live = ReleaseGate(Schema.of({}), Switches())
    left = live.feed(written)
    for final in (json.dumps(text), json.dumps(other), json.dumps(text, ensure_ascii=False)):
        found = live.rest(final)
        if found is not None:
            assert left + found[0] == found[1]
            assert json.loads(found[1]) == json.loads(final)


def following(schema: Any, *pieces: str, switches: Switches | None = None) -> tuple[ReleaseGate, list[str]]:
    live = ReleaseGate(Schema.of(schema), switches or Switches())
    return live, [live.feed(piece) for piece in pieces]


def test_a_string_that_may_be_anything_leaves_as_it_grows_and_an_enum_when_it_has_closed() -> None:
    _, left = following(ORDER, '{"note": "some wo', "rds\\", 'n", "state": "op', 'en", ')
    assert left == ['{"note":"some wo', "rds", '\\n"', ',"state":"open"']


def test_a_container_leaves_when_it_is_certain_which_alternative_it_follows() -> None:
    _, left = following(ORDER, '{"items": [{"kind": "di', 'sc"', ', "minutes": 3', "}, {")
    assert left == ["", '{"items":[{"kind":"disc"', "", ',"minutes":3}']


LIST = {"type": "array", "items": {"type": "integer"}}
INNER = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "opening", "rest"),
    [
        ({**LIST, "uniqueItems": True}, "[1, 2", ", 3]"),
        ({**LIST, "contains": {"const": 3}}, "[1, 2", ", 3]"),
        ({**LIST, "contains": {"const": 3}, "minContains": 2}, "[3, 2", ", 3]"),
        ({**INNER, "dependentRequired": {"a": ["b"]}}, '{"a": 1', ', "b": 2}'),
        ({**INNER, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a": 1', ', "b": 2}'),
        ({**INNER, "not": {"required": ["c"]}}, '{"a": 1', ', "b": 2}'),
        ({**INNER, "propertyNames": {"maxLength": 1}}, '{"a": 1', ', "b": 2}'),
    ],
)
def test_what_only_a_whole_container_can_vouch_for_stays_until_it_closes_and_no_longer(
    schema: Any, opening: str, rest: str
) -> None:
    outer = {"type": "object", "properties": {"note": {"type": "string"}, "x": schema, "total": {"type": "number"}}}
    live, left = following(outer, '{"note": "n", "x": ' + opening, rest + ', "total": 3, ')
    compact = (opening + rest).replace(" ", "")
    assert live.fault is None
    assert left == ['{"note":"n"', f',"x":{compact},"total":3']


@pytest.mark.parametrize(
    ("schema", "container"),
    [
        ({**LIST, "uniqueItems": True}, "[1, 1]"),
        ({**LIST, "contains": {"const": 3}}, "[1]"),
        ({**INNER, "dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
        ({**INNER, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a": 1}'),
    ],
)
def test_a_container_that_does_not_fit_as_a_whole_is_noticed_when_it_closes(schema: Any, container: str) -> None:
    outer = {"type": "object", "properties": {"x": schema, "y": {"type": "string"}}}
    live, left = following(outer, '{"x": ' + container, ', "y": "more')
    assert "".join(left) == ""
    assert live.fault is not None or not live.is_open


def test_what_depends_on_more_than_its_container_stays_until_the_end() -> None:
    inner = {**INNER, "allOf": [{"properties": {"c": {}}}], "unevaluatedProperties": False}
    outer = {"type": "object", "properties": {"note": {"type": "string"}, "x": inner}}
    _, left = following(outer, '{"note": "n", "x": {"a": 1}, "note2": "', "more")
    assert left == ['{"note":"n"', ""]


def test_an_undeclared_first_key_of_an_open_object_does_not_hold_the_rest() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    _, left = following(schema, '{"remark": "n"', ', "name": "growing', ' on", ')
    assert left == ['{"remark":"n', '","name":"growing', ' on"']
    _, left = following(schema, '{"remarks": [{"a": 1', '}], "name": "gro', "wing")
    assert left == ["", '{"remarks":[{"a":1}],"name":"gro', "wing"]


def test_a_comma_waits_for_what_follows_it() -> None:
    _, left = following({"type": "array", "items": {"type": "integer"}}, "[1, 2, ", "3")
    assert left == ["[1,2", ""]


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ('{"name": {', ("name",)),
        ('{"name": [', ("name",)),
        ('{"name": "Ada", "age": "t', ("age",)),
        ('{"name": "Ada", "age": 3.5,', ("age",)),
        ('{"name": "Ada", "age": [', ("age",)),
        ('{"name": "Ada"}', ()),
    ],
)
@pytest.mark.covers("C11")
def test_what_can_no_longer_become_valid_is_noticed_at_that_byte(said: str, where: tuple[str, ...]) -> None:
    before, _ = following(PERSON, *said[:-1])
    assert before.fault is None
    live, _ = following(PERSON, *said)
    assert live.fault is not None
    assert live.fault.path == where
    assert live.confirm_fault(Requirement(Schema.of(PERSON)))


@pytest.mark.parametrize("schema", [{"pattern": "^[A-Z]{2}-[0-9]+$"}, {"enum": ["AB-1", "ZZ-9"]}, {"maxLength": 2}])
def test_a_string_is_known_to_be_wrong_before_it_closes(schema: Any) -> None:
    live, left = following({"type": "object", "properties": {"id": {"type": "string", **schema}}}, '{"id": "A')
    assert live.fault is None
    assert left == [""]
    live.feed("Bb")
    assert live.fault is not None


def test_without_llguidance_a_pattern_is_looked_at_when_the_string_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipform.text.tracker.matcher_for", lambda _: None)
    live, _ = following(ORDER, '{"id": "ab')
    assert live.fault is None
    live.feed('", ')
    assert live.fault is not None


@pytest.mark.parametrize("key", ['{"nickname": "A', '{"Name": "Ada", "age'])
def test_a_key_that_a_patch_may_drop_or_rename_is_held_back_with_all_after_it(key: str) -> None:
    live, left = following(PERSON, *key)
    assert "".join(left) == ""
    assert live.fault is None


def test_without_patches_a_key_that_is_not_allowed_is_the_end() -> None:
    live, _ = following(PERSON, '{"nickname"', switches=Switches(coerce=False, drop_extra=False, rename_keys=False))
    assert live.fault is not None
    assert "not allowed" in live.fault.message


async def test_an_answer_that_goes_wrong_before_anything_left_is_asked_again_behind_the_open_stream() -> None:
    pulled: list[int] = []

    class Counting(FakeModel):
        async def stream_async(self, request: ModelRequest) -> Any:
            pulled.append(0)
            for chunk in self.stream(request):
                pulled[-1] += 1
                yield chunk

    wrong = '{"name": ["' + "x" * 500 + '"], "age": 36}'
    model = Counting([wrong, '{"name": "Ada", "age": 36}'], capabilities=Capabilities(native=True), models=("m",))
    client = AsyncClient(router=Router({"fake": model}), options=Options(budget=Budget(attempts=2)))
    pieces = [piece async for piece in client.respond_stream(asked(PERSON))]
    assert "".join(piece.text for piece in pieces if isinstance(piece, CompletionChunk)) == '{"name":"Ada","age":36}'
    assert len(model.requests) == 2
    assert "name" in model.requests[1].messages[-1].text
    assert pulled[0] < 5, "the model was left off at the fault, not at its end"


async def test_what_has_left_is_never_taken_back_by_a_second_answer() -> None:
    left, got, model = await streamed(PERSON, '{"name": "Ada", "age": [36]}', '{"name": "Ada", "age": 36}')
    assert isinstance(got, Outcome)
    assert left == got.text == '{"name":"Ada","age":36}'
    assert len(model.requests) == 2
    left, got, model = await streamed(PERSON, '{"name": "Ada", "age": [36]}', '{"name": "Eve", "age": 36}')
    assert isinstance(got, SlipformError)
    assert left == '{"name":"Ada"'


async def test_what_follows_the_json_is_read_to_its_end_and_prose_changes_nothing() -> None:
    text = 'Here you are: {"name": "Ada", "age": 36}' + " I hope that this helps you and all your friends." * 9
    left, outcome, _ = await streamed(PERSON, text)
    assert isinstance(outcome, Outcome)
    assert left == '{"name":"Ada","age":36}'


@pytest.mark.parametrize(
    "between", ["", " Let me look at the source once more, because I am not at all sure of that age." * 3]
)
async def test_a_draft_that_the_answer_itself_supersedes_is_never_a_success(between: str) -> None:
    text = f'{{"name": "Bea", "age": 35}}\n{between}\nFinal answer:\n{{"name": "Ada", "age": 36}}'
    left, outcome, _ = await streamed(PERSON, text, attempts=1)
    assert isinstance(outcome, SlipformError)
    with pytest.raises(ValueError, match=r".+"):
        json.loads(left)
    left, outcome, _ = await streamed(PERSON, text.replace("Bea", "Ada"), attempts=1)
    assert isinstance(outcome, Outcome)
    assert json.loads(left) == outcome.value == {"name": "Ada", "age": 36}


@pytest.mark.parametrize(
    ("mode", "native", "pieces"),
    [("auto", True, True), ("auto", False, True), ("live", False, True), ("buffer", True, False)],
)
@pytest.mark.covers("C11")
async def test_auto_is_live_however_the_answer_is_obtained(mode: Any, native: bool, pieces: bool) -> None:
    model = FakeModel(['{"name": "Ada", "age": 36}'], capabilities=Capabilities(native=native), models=("m",))
    client = AsyncClient(router=Router({"fake": model}))
    texts = [
        piece.text
        async for piece in client.respond_stream(asked(PERSON), mode=mode)
        if isinstance(piece, CompletionChunk) and piece.text
    ]
    assert "".join(texts) == '{"name":"Ada","age":36}'
    assert (len(texts) > 1) is pieces


async def test_numbers_and_escapes_leave_as_they_were_written_and_are_the_answers_text() -> None:
    left, got, _ = await streamed(
        {"type": "object"}, '{"a": 1.50, "b": "\\u00e9", "c": 123456789012345678901234567890}'
    )
    assert isinstance(got, Outcome)
    assert left == got.text == '{"a":1.50,"b":"\\u00e9","c":123456789012345678901234567890}'
    assert got.value["c"] == 123456789012345678901234567890


@pytest.mark.parametrize(
    ("reference", "where"),
    [
        ("#code", {"$defs": {"x": {"$anchor": "code", "pattern": "^[A-Z]+$"}}}),
        ("#/$defs/Box%3Ccode%3E", {"$defs": {"Box<code>": {"pattern": "^[A-Z]+$"}}}),
        ("#/components/code", {"components": {"code": {"pattern": "^[A-Z]+$"}}}),
        ("code.json", {"$id": "http://example.test/a", "$defs": {"x": {"$id": "code.json", "pattern": "^[A-Z]+$"}}}),
    ],
)
async def test_nothing_invalid_leaves_behind_any_spelling_of_a_reference(reference: str, where: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}, "required": ["a"], **where}
    left, outcome, model = await streamed(schema, '{"a":"wrong"}', '{"a":"RIGHT"}')
    assert isinstance(outcome, Outcome)
    assert left == '{"a":"RIGHT"}'
    assert len(model.requests) == 2


UNFOLLOWED = {"the tag of the one branch that fits", "a constant that is missing"}


# A bracket where a scalar is wanted stops a stream at once: that it will hold exactly one value is a long shot.
@pytest.mark.parametrize(
    ("document", "value"),
    [pytest.param(*row[1:3], id=row[0]) for row in MENDED if row[0] not in {"one value in a list", *UNFOLLOWED}],
)
def test_what_the_judge_would_mend_is_followed_to_its_end(document: dict[str, Any], value: Any) -> None:
    live = ReleaseGate(Schema[Any]("mended", document), Switches())
    for char in json.dumps(value):
        live.feed(char)
        assert live.fault is None, live.closed_text()


@pytest.mark.parametrize(
    ("document", "value"), [pytest.param(*row[1:3], id=row[0]) for row in MENDED if row[0] in UNFOLLOWED]
)
def test_what_only_the_whole_answer_can_mend_does_not_stop_a_stream(document: dict[str, Any], value: Any) -> None:
    schema = Schema[Any]("mended", document)
    live = ReleaseGate(schema, Switches())
    for char in json.dumps(value):
        live.feed(char)
        assert live.fault is None or not live.confirm_fault(Requirement(schema)), live.closed_text()


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
async def test_what_stands_beside_a_reference_does_not_count_before_2019(draft: str) -> None:
    schema = {
        "$schema": f"http://json-schema.org/{draft}/schema#",
        "type": "object",
        "properties": {"a": {"type": "string", "$ref": "#/definitions/o"}},
        "definitions": {"o": {"type": "object", "required": ["x"]}},
    }
    left, outcome, model = await streamed(schema, '{"a": {"x": 1}}')
    assert isinstance(outcome, Outcome)
    assert (json.loads(left), outcome.value, len(model.requests)) == ({"a": {"x": 1}}, {"a": {"x": 1}}, 1)
