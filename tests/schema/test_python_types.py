from __future__ import annotations

import gc
import json
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar
from uuid import UUID

import orjson
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator
from typing_extensions import TypedDict

from slipform.errors import SchemaError, SchemaViolationError
from slipform.schema import JsonSchemaSpec, Schema

T = TypeVar("T")


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str


class Pair(NamedTuple):
    left: int
    right: str


class Box(BaseModel, Generic[T]):
    content: T


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    when: date
    colour: Colour
    pair: tuple[int, int]


SHAPES: list[tuple[Any, str, Any, Any]] = [
    (Person, "Person", {"name": "Ada", "age": 36}, Person(name="Ada", age=36)),
    (Node, "Node", {"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)])),
    (Box[int], "Box_int", {"content": 3}, Box[int](content=3)),
    (Point, "Point", {"x": 1}, Point(1, 0)),
    (Movie, "Movie", {"title": "Alien"}, {"title": "Alien"}),
    (Pair, "Pair", [1, "a"], Pair(1, "a")),
    (Colour, "Colour", "red", Colour.RED),
    (Level, "Level", 1, Level.LOW),
    (Literal["a", 1], "a_or_1", 1, 1),
    (int | str, "int_or_str", "x", "x"),
    (Optional[Person], "Person_or_None", None, None),  # noqa: UP045
    (list[Person], "list_of_Person", [{"name": "A", "age": 1}], [Person(name="A", age=1)]),
    (dict[str, Point], "dict_of_Point", {"a": {"x": 1}}, {"a": Point(1)}),
    (tuple[int, str], "tuple_of_int_str", [1, "a"], (1, "a")),
    (tuple[int, ...], "tuple_of_int", [1, 2], (1, 2)),
    (set[int], "set_of_int", [1, 2], {1, 2}),
    (str, "str", "x", "x"),
    (float, "float", 1.5, 1.5),
    (bool, "bool", True, True),
    (None, "None", None, None),
    (Annotated[int, Field(gt=3)], "int", 4, 4),
    (Strict, "Strict", {"when": "2020-01-02", "colour": "blue", "pair": [1, 2]},
     Strict(when=date(2020, 1, 2), colour=Colour.BLUE, pair=(1, 2))),
]  # fmt: skip


@pytest.mark.covers("S4-54")
@pytest.mark.parametrize(("shape", "name", "value", "typed"), SHAPES, ids=[name for _, name, _, _ in SHAPES])
def test_each_kind_of_type_gives_a_schema_and_its_own_objects_back(
    shape: Any, name: str, value: Any, typed: Any
) -> None:
    schema = Schema.of(shape)
    assert schema.name == name
    assert schema.validate(value) == []
    assert schema.check(value) == []
    back = schema.to_python(value)
    assert back == typed
    assert type(back) is type(typed)
    assert schema.spec == JsonSchemaSpec(name, schema.document)


def test_constraints_of_annotated_types_are_in_the_schema() -> None:
    schema = Schema.of(Annotated[int, Field(gt=3, lt=9)])
    assert schema.document == {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 9}
    assert [found.message for found in schema.validate(3)] == ["expected a number > 3, found 3"]


RAW = {"title": "A user!", "type": "object", "properties": {"z": {}, "a": {}}}


@pytest.mark.parametrize("shape", [RAW, json.dumps(RAW), Schema.of(RAW)], ids=["dict", "text", "schema"])
def test_a_json_schema_may_be_given_as_dict_text_or_schema(shape: Any) -> None:
    schema = Schema.of(shape)
    assert schema.name == "A_user"
    assert schema.document == RAW
    assert list(schema.document["properties"]) == ["z", "a"]
    value = {"a": object()}
    assert schema.to_python(value) is value


def test_a_spec_keeps_its_name() -> None:
    assert Schema.of(JsonSchemaSpec("my user", RAW)).name == "my user"


def test_a_document_cannot_be_changed_from_outside() -> None:
    given: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = Schema.of(given)
    given["properties"]["a"]["type"] = "string"
    assert schema.validate({"a": 1}) == []
    assert schema.document["properties"]["a"]["type"] == "integer"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "object at the top level"),
        ('{"maximum": NaN}', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ({"type": "strnig"}, "strnig"),
        (Callable[[int], int], "No JSON Schema can be made"),
        (list["Nowhere"], "No JSON Schema can be made"),  # type: ignore[name-defined]  # noqa: F821
        (3, "No JSON Schema can be made of 3"),
        ([1], "No JSON Schema can be made"),
        (Annotated[str, Field(pattern="(")], "regex parse error"),
        (len, "function"),
    ],
    ids=["broken", "array", "nan", "deep", "type", "callable", "forward", "value", "unhashable", "regex", "function"],
)
def test_what_is_no_schema_is_told_so(shape: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        Schema.of(shape)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (datetime, datetime(2020, 1, 1)),  # noqa: DTZ001
        (datetime, datetime(2020, 1, 1, 1, 2, 3, 4, tzinfo=UTC)),
        (time, time(1, 2, 3)),
        (timedelta, timedelta(milliseconds=1)),
        (timedelta, -timedelta(days=400, seconds=3)),
        (timedelta, timedelta(0)),
        (Decimal, Decimal("1E+5")),
        (Decimal, Decimal("-1.50")),
        (Annotated[Decimal, Field(max_digits=5, decimal_places=2)], Decimal("1.25")),
        (bytes, b"ab"),
        (UUID, UUID(int=5)),
        (Path, Path("a/b")),
        (IPv4Address, IPv4Address("1.2.3.4")),
    ],
    ids=str,
)
def test_what_a_type_writes_fits_the_schema_it_gives(shape: Any, value: Any) -> None:
    written = orjson.loads(TypeAdapter(shape).dump_json(value))
    schema = Schema.of(shape)
    assert schema.check(written) == []
    assert schema.to_python(written) == value


@pytest.mark.parametrize("text", ["soon", "2023-02-30T00:00:00", "2023-01-01", "12:00", "2023-01-01T25:00:00Z"])
def test_formats_of_types_are_still_asserted(text: str) -> None:
    assert [found.keyword for found in Schema.of(datetime).validate(text)] == ["format"]


def test_formats_of_raw_schemas_are_json_schemas_own_and_may_be_ignored() -> None:
    raw = {"type": "string", "format": "date-time"}
    assert [found.keyword for found in Schema.of(raw).validate("2020-01-01T00:00:00")] == ["format"]
    assert Schema("when", raw, formats=False).validate("soon") == []


class Checked(BaseModel):
    name: str
    low: int
    high: int
    nested: list[Person | None] = Field(default=[], validation_alias=AliasChoices("nested", "Nested"))

    @field_validator("name")
    @classmethod
    def not_root(cls, name: str) -> str:
        if name == "root":
            raise ValueError("root is taken")
        return name

    @model_validator(mode="after")
    def ordered(self) -> Checked:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


def test_a_types_own_validators_speak_as_violations_with_paths() -> None:
    schema = Schema.of(list[Checked])
    value = [{"name": "a", "low": 1, "high": 2}, {"name": "root", "low": 1, "high": 2}]
    assert schema.validate(value) == []
    (found,) = schema.check(value)
    assert (found.json_path, found.keyword, found.message) == ("$[1].name", "value_error", "root is taken")
    with pytest.raises(SchemaViolationError, match=r"\$\[1\]\.name: root is taken") as caught:
        schema.to_python(value)
    assert caught.value.details["violations"][0]["path"] == "$[1].name"
    (found,) = Schema.of(Checked).check({"name": "a", "low": 3, "high": 2})
    assert (found.json_path, found.message) == ("$", "low is above high")


def test_paths_name_no_union_members() -> None:
    with pytest.raises(SchemaViolationError) as caught:
        Schema.of(dict[str, int | list[Checked]]).to_python({"k": [{"name": "root", "low": 1, "high": 1}]})
    paths = {one["path"] for one in caught.value.details["violations"]}
    assert "$.k[0].name" in paths
    assert paths <= {"$.k[0].name", "$.k"}


@pytest.mark.parametrize("value", [{"name": {1}, "age": 1}, {"name": "\ud800", "age": 1}, {1: 2}])
def test_values_that_are_no_json_are_refused_by_check_and_to_python(value: Any) -> None:
    schema = Schema.of(Person)
    assert [found.keyword for found in schema.check(value)] == ["json"]
    with pytest.raises(SchemaViolationError):
        schema.to_python(value)


def test_check_sees_what_the_schema_does_not_speak_about() -> None:
    schema = Schema.of({"type": "object"})
    assert [found.json_path for found in schema.check({"a": [float("nan")]})] == ["$.a[0]"]


def test_integers_of_any_size_come_back() -> None:
    assert Schema.of(int).to_python(10**30) == 10**30


def test_defaults_that_json_cannot_write_do_not_spoil_a_schema() -> None:
    class Odd(BaseModel):
        limit: float = float("inf")
        anything: Any = object()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = Schema.of(Odd)
    assert "default" not in schema.document["properties"]["limit"]
    assert schema.to_python({}).limit == float("inf")


def test_the_second_time_is_the_same_object() -> None:
    assert Schema.of(Person) is Schema.of(Person)
    assert Schema.of(list[Person]) is Schema.of(list[Person])
    assert Schema.of(Literal[1]) is not Schema.of(Literal[True])
    assert [sub["type"] for sub in Schema.of(int | str).document["anyOf"]] == ["integer", "string"]
    assert [sub["type"] for sub in Schema.of(str | int).document["anyOf"]] == ["string", "integer"]


def test_types_with_unhashable_remarks_work_uncached() -> None:
    shape: Any = Annotated[int, Field(gt=1), ["not hashable"]]
    assert Schema.of(shape).validate(1) != []


def test_the_cache_of_types_is_bounded() -> None:
    def make() -> weakref.ref[Any]:
        class Local(BaseModel):
            x: int

        Schema.of(Local)
        return weakref.ref(Local)

    first = make()
    for number in range(600):
        shape: Any = Literal[f"only-{number}"]
        Schema.of(shape)
    gc.collect()
    assert first() is None


@pytest.mark.covers("S4-08")
@pytest.mark.parametrize(
    "shape",
    [
        list[dict[str, tuple[Person, Point, Movie]] | Pair | Colour],
        Literal["ä"],
        {"title": "日本"},
        {"title": "x" * 99},
    ],
    ids=["long", "odd", "foreign", "over"],
)
def test_names_fit_what_vendors_accept(shape: Any) -> None:
    name = Schema.of(shape).name
    assert 1 <= len(name) <= 64
    assert name.isascii()
    assert name.replace("_", "").replace("-", "").isalnum()


def test_a_value_fits_exactly_when_nothing_is_wrong_with_it() -> None:
    schema = Schema.of({"type": "object", "properties": {"n": {"type": "integer"}}})
    for value in ({"n": 1}, {"n": "1"}, 3, {"n": float("nan")}, {1: 2}, object()):
        assert schema.fits(value) is not bool(schema.validate(value))


def test_a_schema_shows_its_name_and_the_beginning_of_its_document() -> None:
    assert repr(Schema.of(Pair)).startswith("Schema('Pair', {")
    assert len(repr(Schema.of({"enum": [f"word {number}" for number in range(999)]}))) < 300
