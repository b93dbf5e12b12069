"""Well-formed → valid, by recorded edits that lose nothing."""

from __future__ import annotations

import copy
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from slipform.enforce import loads
from slipform.enforce.coercion import Switches
from slipform.enforce.judging import Requirement, judge
from slipform.enforce.patching import patch
from slipform.errors import SchemaViolationError
from slipform.ir import ModelResponse
from slipform.schema import Schema

A = {
    "type": "object",
    "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}},
    "required": ["kind", "n"],
    "additionalProperties": False,
}
TWIN = {
    "type": "object",
    "properties": {"kind": {"const": "z"}, "n": {"type": "integer"}},
    "required": ["kind", "n"],
    "additionalProperties": False,
}
B = {
    "type": "object",
    "properties": {"kind": {"const": "b"}, "s": {"type": "string"}},
    "required": ["kind", "s"],
    "additionalProperties": False,
}


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def schema(document: dict[str, Any]) -> Schema[Any]:
    return Schema("test", document)


MENDED: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("text as integer", obj(n={"type": "integer"}), {"n": "42"}, {"n": 42}),
    ("blanks around", obj(n={"type": "integer"}), {"n": " 42 "}, {"n": 42}),
    ("text as number", obj(n={"type": "number"}), {"n": "-1.5e2"}, {"n": -150.0}),
    ("text as boolean", obj(n={"type": "boolean"}), {"n": "True"}, {"n": True}),
    ("grouped digits", obj(n={"type": "number"}), {"n": "1,234.50"}, {"n": 1234.5}),
    ("repeated groups", obj(n={"type": "integer"}), {"n": "1,234,567"}, {"n": 1234567}),
    ("number as text", obj(zip={"type": "string"}), {"zip": 12345}, {"zip": "12345"}),
    ("nullable integer", obj(n={"anyOf": [{"type": "integer"}, {"type": "null"}]}), {"n": "7"}, {"n": 7}),
    ("type list", obj(n={"type": ["integer", "null"]}), {"n": "7"}, {"n": 7}),
    ("extra key", obj(n={"type": "integer"}), {"n": 1, "x": 2}, {"n": 1}),
    ("enum in another case", obj(c={"enum": ["Red", "Blue"]}), {"c": " RED"}, {"c": "Red"}),
    ("const in another case", obj(c={"const": "Yes"}), {"c": "yes"}, {"c": "Yes"}),
    ("number in an enum", obj(c={"enum": [1, 2]}), {"c": "2"}, {"c": 2}),
    ("wrapped answer", obj(n={"type": "integer"}), {"invoice": {"n": 1}}, {"n": 1}),
    ("wrapped and wrong inside", obj(n={"type": "integer"}), {"invoice": {"n": "1", "x": 0}}, {"n": 1}),
    ("wrapped list", {"type": "array", "items": {"type": "integer"}}, {"items": [1, 2]}, [1, 2]),
    ("null for an optional key", obj([], n={"type": "integer"}), {"n": None}, {}),
    ("key in another case", obj(firstName={"type": "string"}), {"first_name": "Ada"}, {"firstName": "Ada"}),
    ("JSON inside text", obj(o=A), {"o": '{"kind": "a", "n": 1}'}, {"o": {"kind": "a", "n": 1}}),
    (
        "nested deep",
        obj(l={"type": "array", "items": A}),
        {"l": [{"kind": "a", "n": "3"}]},
        {"l": [{"kind": "a", "n": 3}]},
    ),
    (
        "the branch of a union",
        obj(u={"anyOf": [A, B]}),
        {"u": {"kind": "a", "n": "3", "z": 1}},
        {"u": {"kind": "a", "n": 3}},
    ),
    (
        "the branch that the discriminator names, although another is nearer",
        obj(u={"anyOf": [A, B], "discriminator": {"propertyName": "kind"}}),
        {"u": {"kind": "B", "s": 1, "n": 3, "x": 0}},
        {"u": {"kind": "b", "s": "1"}},
    ),
    (
        "a union in a list, each item by its own branch",
        {"type": "array", "items": {"oneOf": [A, B]}},
        [{"kind": "a", "n": "1"}, {"kind": "b", "s": 2}, {"kind": "a", "n": 3}],
        [{"kind": "a", "n": 1}, {"kind": "b", "s": "2"}, {"kind": "a", "n": 3}],
    ),
    (
        "a union in a union",
        obj(u={"anyOf": [{"type": "null"}, {"anyOf": [A, B]}]}),
        {"u": {"kind": "b", "s": "x", "z": 0}},
        {"u": {"kind": "b", "s": "x"}},
    ),
    (
        "branches behind references",
        {**obj(u={"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}), "$defs": {"A": A, "B": B}},
        {"u": {"kind": "a", "n": "3"}},
        {"u": {"kind": "a", "n": 3}},
    ),
    ("the tag of the one branch that fits", obj(u={"anyOf": [A, B]}), {"u": {"n": 1}}, {"u": {"kind": "a", "n": 1}}),
    ("a constant that is missing", obj(kind={"const": "x"}, n={"type": "integer"}), {"n": 1}, {"kind": "x", "n": 1}),
    (
        "an enum with marks around",
        obj(c={"enum": ["in_progress", "done"]}),
        {"c": "**In progress.**"},
        {"c": "in_progress"},
    ),
    ("one value in a list", obj(n={"type": "integer"}), {"n": [7]}, {"n": 7}),
    ("N/A where null is allowed", obj(n={"type": ["integer", "null"]}), {"n": "N/A"}, {"n": None}),
    (
        "behind a reference",
        {**obj(u={"$ref": "#/$defs/A"}), "$defs": {"A": A}},
        {"u": {"kind": "A", "n": 3}},
        {"u": {"kind": "a", "n": 3}},
    ),
    (
        "unevaluated keys",
        {"allOf": [{"properties": {"n": {"type": "integer"}}}], "unevaluatedProperties": False},
        {"n": 1, "x": 2},
        {"n": 1},
    ),
]


@pytest.mark.covers("S2-44", "S2-45", "S2-47", "S2-58", "S2-59", "C26")
@pytest.mark.parametrize(("document", "given", "wanted"), [row[1:] for row in MENDED], ids=[row[0] for row in MENDED])
def test_mechanical_slips_are_mended_and_recorded(document: dict[str, Any], given: Any, wanted: Any) -> None:
    before = copy.deepcopy(given)
    patched = patch(given, schema(document))
    assert patched.value == wanted
    assert patched.violations == ()
    assert patched.edits
    assert given == before, "the value that was given is not changed"
    assert replay(given, patched.operations) == wanted


LEFT: list[tuple[str, dict[str, Any], Any]] = [
    ("a missing value is not invented", obj(n={"type": "integer"}), {}),
    ("words are no numbers", obj(n={"type": "integer"}), {"n": "forty-two"}),
    ("an ambiguous comma", obj(n={"type": "number"}), {"n": "1,234"}),
    ("units without the switch", obj(n={"type": "number"}), {"n": "12 kg"}),
    ("digits that a double cannot hold", obj(n={"type": "number"}), {"n": "0.12345678901234567890"}),
    ("a fraction is no integer", obj(n={"type": "integer"}), {"n": "1.5"}),
    ("two members fit", obj(c={"enum": ["a", "A"]}), {"c": " a "}),
    ("a scalar without the switch", obj(l={"type": "array"}), {"l": 1}),
    ("a default without the switch", obj(n={"type": "integer", "default": 1}), {}),
    ("null for a required key", obj(n={"type": "integer"}), {"n": None}),
    (
        "a tag that two branches could have",
        obj(u={"anyOf": [A, TWIN]}),
        {"u": {"n": 1}},
    ),
    (
        "two branches that lose as much",
        obj(u={"anyOf": [obj(n={"type": "integer"}), obj(s={"type": "string"})]}),
        {"u": {"n": 1, "s": "x"}},
    ),
    ("a value that only resembles a listed one", obj(c={"enum": ["paid", "sent"]}), {"c": "settled"}),
    ("two values in a list", obj(n={"type": "integer"}), {"n": [7, 8]}),
    ("yes is no boolean", obj(n={"type": "boolean"}), {"n": "yes"}),
]


@pytest.mark.covers("S2-61", "C26")
@pytest.mark.parametrize(("document", "given"), [row[1:] for row in LEFT], ids=[row[0] for row in LEFT])
def test_what_would_be_a_guess_is_left_for_the_model(document: dict[str, Any], given: Any) -> None:
    patched = patch(given, schema(document))
    assert patched.value == given
    assert patched.edits == ()
    assert patched.violations


@pytest.mark.covers("S2-46", "S2-60")
@pytest.mark.parametrize(
    ("switches", "document", "given", "wanted"),
    [
        (Switches(units=True), obj(n={"type": "number"}), {"n": "12.5 kg"}, {"n": 12.5}),
        (Switches(units=True), obj(n={"type": "number"}), {"n": "$1,234.50"}, {"n": 1234.5}),
        (Switches(wrap_scalars=True), obj(l={"type": "array", "items": {"type": "integer"}}), {"l": 1}, {"l": [1]}),
        (Switches(fill_defaults=True), obj(n={"type": "integer", "default": 1}), {}, {"n": 1}),
    ],
)
def test_a_switch_allows_more(switches: Switches, document: dict[str, Any], given: Any, wanted: Any) -> None:
    assert patch(given, schema(document), switches).value == wanted


@pytest.mark.parametrize(
    ("switches", "given"),
    [(Switches(coerce=False), {"n": "1"}), (Switches(drop_extra=False), {"n": 1, "x": 1})],
)
def test_a_switch_forbids(switches: Switches, given: Any) -> None:
    assert patch(given, schema(obj(n={"type": "integer"})), switches).edits == ()


def test_a_renamed_key_is_not_dropped_first() -> None:
    patched = patch({"Name": "Ada", "Extra": 1}, schema(obj(name={"type": "string"})))
    assert patched.value == {"name": "Ada"}
    assert [edit.op for edit in patched.edits] == ["move", "remove"]


def test_part_of_the_faults_is_mended_when_not_all_can_be() -> None:
    patched = patch({"a": "1", "x": 1}, schema(obj(a={"type": "integer"}, b={"type": "integer"})))
    assert patched.value == {"a": 1}
    assert [violation.keyword for violation in patched.violations] == ["required"]


AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
STATE = {"type": "object", "properties": {"state": {"enum": ["open", "paid"]}}, "required": ["state"]}


@pytest.mark.parametrize(
    ("document", "given", "wanted"),
    [
        (AGE, {"Age": "36"}, {"age": 36}),
        (
            obj(["first_name", "age"], first_name={"type": "string"}, age={"type": "integer"}),
            {"firstName": "Ada", "Age": "36"},
            {"first_name": "Ada", "age": 36},
        ),
        (obj(["person"], person=AGE), {"Person": '{"Age": "36"}'}, {"person": {"age": 36}}),
        (STATE, {"STATE": ["Open"]}, {"state": "open"}),
        ({"type": "array", "items": AGE}, [{"Age": "36"} for _ in range(300)], [{"age": 36}] * 300),
    ],
)
def test_slips_that_meet_on_one_path_are_mended_like_one(document: dict[str, Any], given: Any, wanted: Any) -> None:
    patched = patch(given, schema(document))
    assert patched.value == wanted
    assert replay(given, patched.operations) == wanted


def test_an_edit_that_only_moves_the_fault_is_not_kept_when_the_value_stays_invalid() -> None:
    patched = patch({"Age": "old"}, schema(AGE))
    assert patched.value == {"Age": "old"}
    assert patched.edits == ()


def tagged(tag: str, inner: dict[str, Any]) -> dict[str, Any]:
    """An alternative with a discriminator, `a`, and something in `b`."""
    return obj(["a"], a={"const": tag}, b=inner)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.recursive(
    st.sampled_from(
        [
            {"type": "integer"},
            {"type": ["number", "null"]},
            {"type": "boolean"},
            {"enum": ["A", "b", 3]},
            {"type": "string"},
        ]
    ),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
        | st.builds(lambda a, b: {"oneOf": [tagged("a", a), tagged("b", b)]}, inner, inner)
        | st.builds(
            lambda properties, required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & set(properties)),
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.sets(st.sampled_from("abc")),
        )
    ),
    max_leaves=6,
)


@given(document=DOCUMENTS, value=VALUES)
def test_a_patch_never_harms(document: dict[str, Any], value: Any) -> None:
    wanted = schema(document)
    before = wanted.validate(value)
    patched = patch(value, wanted)
    assert list(patched.violations) == wanted.validate(patched.value)
    if not before:
        assert patched.value is value
        assert patched.edits == ()
    elif patched.edits:
        assert len(patched.violations) < len(before)
    else:
        assert patched.value == value
    assert replay(value, patched.operations) == patched.value
    again = patch(patched.value, wanted)
    assert again.value == patched.value
    assert all(edit.reason and edit.risk in ("low", "medium", "high") for edit in patched.edits)


@given(tag=st.sampled_from(["a", "b", "A", " b "]), inside=SCALARS, extra=st.booleans())
def test_a_tag_decides_the_branch(tag: str, inside: Any, extra: bool) -> None:
    wanted = schema({"anyOf": [tagged("a", {"type": "integer"}), tagged("b", {"type": "string"})]})
    patched = patch({"a": tag, "b": inside, **({"x": 1} if extra else {})}, wanted)
    if not patched.violations:
        assert patched.value["a"] == tag.strip().lower()


def replay(value: Any, operations: list[dict[str, Any]]) -> Any:
    """A JSON Patch, applied by the book."""
    for operation in operations:
        value = copy.deepcopy(value)
        path = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        if operation["op"] == "move":
            source = [part.replace("~1", "/").replace("~0", "~") for part in operation["from"].split("/")[1:]]
            _step(value, source)[path[-1]] = _step(value, source).pop(source[-1])
        elif not path:
            value = operation["value"]
        elif operation["op"] == "remove":
            del _step(value, path)[path[-1]]
        else:
            holder = _step(value, path)
            holder[int(path[-1]) if isinstance(holder, list) else path[-1]] = operation["value"]
    return value


def _step(value: Any, path: list[str]) -> Any:
    for part in path[:-1]:
        value = value[int(part) if isinstance(value, list) else part]
    return value


@pytest.mark.parametrize("text", ["1,234.50", "1 234.50", "1'234.50"])
def test_grouped_digits_are_read_for_a_decimal_as_for_a_number(text: str) -> None:
    class Invoice(BaseModel):
        totals: list[Decimal]

    written = json.dumps({"totals": [text, 2]})
    assert loads(written, Invoice).totals == [Decimal("1234.50"), Decimal(2)]
    verdict = judge(ModelResponse(text=written), Requirement(Schema.of(Invoice)))
    assert verdict.typed.totals[0] == Decimal("1234.50")
    assert verdict.patched is not None
    assert [edit.reason for edit in verdict.patched.edits] == ["grouped digits as number"]
    with pytest.raises(SchemaViolationError):
        loads('{"totals": ["a lot"]}', Invoice)
