"""Every kind of Python type is read from a fence, and from the bare text where it is a scalar."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from slipform import loads


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Count(enum.IntEnum):
    ONE = 1
    TWO = 2


class Letter(enum.StrEnum):
    A = "a"
    B = "b"


@dataclasses.dataclass
class Point:
    x: int
    y: str = "z"


class Row(TypedDict):
    x: int


class Pair(NamedTuple):
    x: int
    y: str


class Model(pydantic.BaseModel):
    x: int
    y: list[str] = []


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Struct(msgspec.Struct):
    x: int


NOON = dt.datetime(2024, 5, 1, 12)  # noqa: DTZ001 — naive ones are read, too
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
CASES: list[tuple[Any, str, Any]] = [
    (int, "42", 42), (float, "2.5", 2.5), (str, '"hello"', "hello"), (bool, "true", True), (bool, "True", True),
    (type(None), "null", None), (int | None, "42", 42), (int | None, "null", None), (str | None, "null", None),
    (int | None, "7", 7), (Literal["a", "b"], "a", "a"), (Literal["a", "b"], '"b"', "b"), (Literal[1, 2], "2", 2),
    (Colour, "red", Colour.RED), (Colour, '"blue"', Colour.BLUE), (Count, "2", Count.TWO), (Letter, "a", Letter.A),
    (dt.date, "2024-05-01", NOON.date()), (dt.date, '"2024-05-01"', NOON.date()),
    (dt.datetime, '"2024-05-01T12:00:00"', NOON), (dt.time, "12:00:00", NOON.time()),
    (dt.datetime, "2024-05-01T12:00:00Z", NOON.replace(tzinfo=dt.UTC)),
    (dt.timedelta, '"PT1H"', dt.timedelta(hours=1)), (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
    (decimal.Decimal, '"1.50"', decimal.Decimal("1.50")), (uuid.UUID, str(ID), ID),
    (ipaddress.IPv4Address, "10.0.0.1", ipaddress.IPv4Address("10.0.0.1")), (bytes, '"abc"', b"abc"),
    (pathlib.Path, '"/tmp/x"', pathlib.Path("/tmp/x")), (list[int], "[1, 2]", [1, 2]), (list[str], '["a"]', ["a"]),
    (tuple[int, str], '[1, "a"]', (1, "a")), (tuple[int, ...], "[1, 2]", (1, 2)), (set[int], "[1, 2]", {1, 2}),
    (frozenset[str], '["a"]', frozenset({"a"})), (dict[str, int], '{"a": 1}', {"a": 1}),
    (dict[str, list[int]], '{"a": [1]}', {"a": [1]}), (Point, '{"x": 1}', Point(1)), (Row, '{"x": 1}', {"x": 1}),
    (Pair, '[1, "a"]', Pair(1, "a")), (Model, '{"x": 1}', Model(x=1)), (Numbers, "[1, 2]", Numbers([1, 2])),
    (list[Model], '[{"x": 1}]', [Model(x=1)]), (int | str, "5", 5), (int | str, '"x"', "x"),
    (Model | None, "null", None), (Model | None, '{"x": 2}', Model(x=2)),
    (Annotated[int, pydantic.Field(gt=0)], "5", 5),
    (Annotated[str, pydantic.StringConstraints(pattern="^[A-Z]+$")], "ABC", "ABC"),
    (pydantic.AnyUrl, '"https://a.b/"', pydantic.AnyUrl("https://a.b/")), (Any, '{"a": 1}', {"a": 1}),
    (collections.OrderedDict[str, int], '{"a": 1}', collections.OrderedDict(a=1)), (Sequence[int], "[1]", [1]),
    (Mapping[str, int], '{"a": 1}', {"a": 1}),
]  # fmt: skip
FORMS = ["```json\n%s\n```", "```\n%s\n```", "Here you go:\n```json\n%s\n```\n", "%s"]


@pytest.mark.parametrize(("wanted", "body", "value"), CASES, ids=lambda each: str(each)[:30])
@pytest.mark.parametrize("form", FORMS)
def test_a_type_is_read_from_a_fence(wanted: Any, body: str, value: Any, form: str) -> None:
    read = loads(form % body, wanted)
    assert read == value
    assert type(read) is type(value)
