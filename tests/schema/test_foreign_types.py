"""Types that pydantic refuses work all the same: attrs, msgspec, and the standard library's TypedDict on 3.11."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NotRequired, TypedDict

import attrs
import msgspec
import pytest
from pydantic import BaseModel, Field

from slipform import UNSET, Client, SchemaError
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.testing import FakeModel


class Size(msgspec.Struct, rename="camel"):
    in_cm: Annotated[int, msgspec.Meta(ge=0)]
    note: str | None = None


@attrs.define
class Box:
    name: str
    size: Size
    weight: int = attrs.field(default=1, validator=attrs.validators.gt(0))


class Movie(TypedDict):
    title: str
    stars: Annotated[int, Field(le=5)]
    note: NotRequired[str]


class Shelf(TypedDict, total=False):
    movies: list[Movie]


@dataclasses.dataclass
class Store:
    boxes: list[Box]


@dataclasses.dataclass
class Mixed:
    movie: Movie
    box: Box


BOX = {"name": "a", "size": {"inCm": 3}}


@pytest.mark.parametrize(
    ("shape", "value", "typed"),
    [
        (Size, {"inCm": 3}, Size(3)),
        (Box, BOX, Box("a", Size(3))),
        (list[Box], [BOX], [Box("a", Size(3))]),
        (Box | None, None, None),
        (Store, {"boxes": [BOX]}, Store([Box("a", Size(3))])),
        (Movie, {"title": "M", "stars": 5}, {"title": "M", "stars": 5}),
        (Shelf, {"movies": [{"title": "M", "stars": 5}]}, {"movies": [{"title": "M", "stars": 5}]}),
        (dict[str, Movie], {"a": {"title": "M", "stars": 1}}, {"a": {"title": "M", "stars": 1}}),
    ],
)
def test_a_value_is_read_as_the_type(shape: Any, value: Any, typed: Any) -> None:
    schema: Schema[Any] = Schema.of(shape)
    assert schema.check(value) == []
    assert schema.to_python(value) == typed


@pytest.mark.parametrize(
    ("shape", "value", "path"),
    [
        (Size, {"inCm": -1}, "$.inCm"),
        (Box, {**BOX, "weight": 0}, "$"),
        (list[Box], [{**BOX, "weight": 0}], "$[0]"),
        (dict[str, Box], {"a": {**BOX, "weight": 0}}, "$"),  # msgspec does not name the key
        (list[Box], [{"name": "a", "size": {}}], "$[0].size"),
        (Movie, {"title": "M", "stars": 6}, "$.stars"),
        (Shelf, {"movies": [{"title": "M"}]}, "$.movies[0]"),
    ],
)
def test_what_the_type_forbids_is_found(shape: Any, value: Any, path: str) -> None:
    assert [each.json_path for each in Schema.of(shape).check(value)] == [path]


def test_rules_that_would_be_lost_are_refused() -> None:
    with pytest.raises(SchemaError, match="No JSON Schema can be made"):
        Schema.of(Mixed)


def test_partial_values_of_such_types_have_their_fields() -> None:
    model = FakeModel(['{"name": "a", "size": {"inCm": 3}, "weight": 2}'], chunk_size=12)
    with Client("fake/m", router=Router({"fake": model})).stream(Box, "A box.") as stream:
        partials = list(stream)
        assert stream.result.value == Box("a", Size(3), 2)
    assert partials[0].weight is UNSET
    assert partials[-1].size == Size(3)


class Tree(msgspec.Struct):
    children: list[Tree] = []


def test_a_type_that_holds_itself_keeps_its_definition_and_no_other_is_written_twice() -> None:
    assert list(Schema.of(Tree).document["$defs"]) == ["Tree"]
    assert list(Schema.of(Box).document["$defs"]) == ["Size"]
    assert "$defs" not in Schema.of(Size).document


@dataclasses.dataclass
class Part:
    count: Annotated[int, msgspec.Meta(ge=1)]


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (Part, {"count": 1}, {"count": 0}),
        (list[Annotated[str, msgspec.Meta(min_length=2)]], ["ab"], ["a"]),
        (dict[str, Part], {"a": {"count": 1}}, {"a": {"count": 0}}),
    ],
)
def test_rules_for_msgspec_count_in_types_that_pydantic_knows_too(shape: Any, good: Any, bad: Any) -> None:
    schema = Schema.of(shape)
    assert (schema.validate(good), len(schema.validate(bad))) == ([], 1)
    assert schema.to_python(good)


def test_names_that_only_pydantic_finds_are_left_to_it() -> None:
    class Leaf(BaseModel):
        n: int

    class Branch(BaseModel):
        leaf: Leaf
        again: Branch | None = None

    assert Schema.of(Branch).to_python({"leaf": {"n": 1}}) == Branch(leaf=Leaf(n=1))
