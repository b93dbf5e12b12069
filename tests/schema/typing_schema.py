"""What a type checker must infer; `make lint` runs mypy over this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union, assert_type

from pydantic import BaseModel, Field

from slipform.schema import JsonSchemaSpec, Schema


class Person(BaseModel):
    name: str


@dataclass
class Point:
    x: int


class Movie(TypedDict):
    title: str


class Pair(NamedTuple):
    left: int
    right: int


def inferred(known: Schema[Person]) -> None:
    assert_type(Schema.of(Person), Schema[Person])
    assert_type(Schema.of(Point), Schema[Point])
    assert_type(Schema.of(Movie), Schema[Movie])
    assert_type(Schema.of(Pair), Schema[Pair])
    assert_type(Schema.of(int), Schema[int])
    assert_type(Schema.of(list[Person]), Schema[list[Person]])
    assert_type(Schema.of(dict[str, Point]), Schema[dict[str, Point]])
    assert_type(Schema.of(tuple[int, str]), Schema[tuple[int, str]])
    assert_type(Schema.of(Person | Point), Schema[Person | Point])
    assert_type(Schema.of(Union[int, str]), Schema[int | str])  # noqa: UP007
    assert_type(Schema.of(Optional[Person]), Schema[Person | None])  # noqa: UP045
    assert_type(Schema.of(Literal["a", "b"]), Schema[Literal["a", "b"]])
    assert_type(Schema.of(Annotated[int, Field(gt=0)]), Schema[int])
    assert_type(Schema.of({"type": "object"}), Schema[Any])
    assert_type(Schema.of('{"type": "object"}'), Schema[Any])
    assert_type(Schema.of(JsonSchemaSpec("a", {})), Schema[Any])
    assert_type(Schema.of(known), Schema[Person])
    assert_type(Schema.of(Person).to_python({}), Person)
    assert_type(Schema.of(Literal[1, 2]).to_python(1), Literal[1, 2])
