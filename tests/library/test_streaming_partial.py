"""Partial values: finished parts are the real thing, once; what has not come is UNSET."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel

from slipform.library.partial import UNSET, Memory, Partial, kind_of, so_far, still_open
from slipform.schema import Schema
from slipform.text.parser import Parser
from slipform.text.tree import PENDING
from tests.conftest import examples


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: int
    y: int


class Address(BaseModel):
    street: str
    place: Point


class Person(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str
    born: dt.date
    colour: Colour
    address: Address
    tags: list[str]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Point


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Zoo(BaseModel):
    pets: list[Cat | Dog]
    best: Cat | None = None


ADA = (
    '{"name": "Ada", "born": "1815-12-10", "colour": "red", '
    '"address": {"street": "Mill", "place": {"x": 1, "y": 2}}, "tags": ["a", "b"]}'
)


def partials(shape: Any, text: str, size: int = 1) -> list[Any]:
    """What a stream of this text shows, in pieces of so many characters."""
    kind, memory, parser = kind_of(shape), Memory(), Parser()
    found: list[Partial[Any]] = []
    for start in range(0, len(text), size):
        parser = parser.feed(text[start : start + size])
        if parser.value is not PENDING:
            found.append(Partial(parser.value, kind, memory, parser.open_path))
    return found


def test_what_has_not_come_is_unset_and_never_none() -> None:
    first = partials(Person, ADA)[0]
    assert first.name is UNSET
    assert first.address is UNSET
    assert not UNSET
    assert repr(UNSET) == "UNSET"


@pytest.mark.covers("S3-23", "C24")
def test_finished_parts_have_their_exact_type() -> None:
    last = partials(Person, ADA)[-1]
    assert last.born == dt.date(1815, 12, 10)
    assert last.colour is Colour.RED
    assert type(last.address) is Address
    assert last.address == Address(street="Mill", place=Point(1, 2))
    assert last.tags == ["a", "b"]


def test_a_string_grows_only_where_it_stays_a_string() -> None:
    assert {partial.name for partial in partials(Person, ADA)} == {UNSET, "", "A", "Ad", "Ada"}
    assert {partial.born for partial in partials(Person, ADA)} == {UNSET, dt.date(1815, 12, 10)}
    assert {partial.colour for partial in partials(Person, ADA)} == {UNSET, Colour.RED}


@pytest.mark.covers("S3-73")
def test_a_finished_part_is_the_same_object_ever_after() -> None:
    places = [each.address.place for each in partials(Person, ADA) if each.address is not UNSET]
    finished = [place for place in places if isinstance(place, Point)]
    assert len(finished) > 10
    assert all(place is finished[0] for place in finished)
    people = partials(list[Person], f"[{ADA}, {ADA}]")
    first = [each[0] for each in people if len(each) == 2]
    assert all(person is first[0] for person in first)
    assert type(first[0]) is Person


def test_the_parts_given_out_are_in_the_whole_that_closes_later() -> None:
    looked = [each[0].address.place for each in partials(list[Person], f"[{ADA}]") if len(each) and each[0].address]
    assert type(partials(list[Person], f"[{ADA}]")[-1][0]) is Person
    finished = [place for place in looked if isinstance(place, Point)]
    assert len(finished) > 10
    assert all(place is finished[0] for place in finished)


def test_identity_holds_in_whatever_order_partials_are_looked_at() -> None:
    found = partials(dict[str, list[Point]], '{"a": [{"x": 1, "y": 2}, {"x": 3, "y": 4}], "b": []}', size=8)
    last = found[-1]["a"][0]
    earlier = [each["a"][0] for each in found if each["a"] and len(each["a"]) == 2]
    assert len(earlier) > 2
    assert all(each is earlier[0] for each in earlier)
    assert last is found[-1]["a"][0] is earlier[-1]


def test_the_members_of_a_union_are_told_apart_by_what_has_come() -> None:
    text = '{"pets": [{"kind": "dog", "tricks": ["sit", "roll"]}, {"kind": "cat", "lives": {"x": 9, "y": 0}}]}'
    grown = partials(Zoo, text)
    tricks = [each.pets[0].tricks for each in grown if each.pets and len(each.pets) == 1]
    assert tricks[0] is UNSET
    assert tricks[-1] == ["sit", "roll"]
    lives = [each.pets[1].lives for each in grown if each.pets and len(each.pets) == 2]
    assert lives[-1] == Point(9, 0)
    assert type(grown[-1].pets[1]) is Cat


class Shelter(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]


def test_discriminated_unions_make_their_schema_once() -> None:
    text = '{"pets": [{"kind": "cat", "lives": {"x": 9, "y": 0}}, {"kind": "dog", "tricks": []}]}'
    kind = kind_of(Shelter)
    assert kind.child("pets").child(0) is kind.child("pets").child(1)
    assert kind.child("pets").child(0).schema is kind.child("pets").child(1).schema
    assert [type(pet) for pet in partials(Shelter, text)[-1].pets] == [Cat, Dog]


def test_a_finished_part_that_does_not_fit_is_not_shown_as_if_it_did() -> None:
    last = partials(Person, '{"name": {}, "born": "soon", "address": {"street": "Mill", "place": "here"}}')[-1]
    assert last.name is UNSET
    assert last.born is UNSET
    assert isinstance(last.address, Partial)
    assert last.address.street == "Mill"
    assert last.address.place is UNSET


def test_what_the_whole_answer_would_be_patched_to_is_shown() -> None:
    last = partials(list[Point], '[{"x": "1", "y": 2}]')[-1]
    assert last[0] == Point(1, 2)


class Aliased(BaseModel):
    items: list[int] = Field(alias="theItems")
    class_: Annotated[str, Field(alias="class", min_length=1)]


def test_fields_are_found_under_their_attribute_and_their_key() -> None:
    last = partials(Aliased, '{"theItems": [1, 2], "class": "a"}')[-1]
    assert last.items == [1, 2] == last["theItems"]
    assert last.class_ == "a"
    assert "items" in dir(last)
    with pytest.raises(AttributeError, match="has no field 'itms'; it has items, class_"):
        _ = last.itms
    with pytest.raises(KeyError):
        last["itms"]


class Movie(TypedDict):
    title: str
    cast: list[Point]


def test_typed_dicts_root_models_and_dicts_are_typed_too() -> None:
    assert partials(Movie, '{"title": "M", "cast": [{"x": 1, "y": 2}]}')[-1]["cast"] == [Point(1, 2)]
    assert partials(dict[str, Point], '{"a": {"x": 1, "y": 2}}')[-1]["a"] == Point(1, 2)
    root = RootModel[list[Point]]
    assert partials(root, '[{"x": 1, "y": 2}]')[-1][0] == Point(1, 2)
    assert partials(tuple[int, Point], '[1, {"x": 1, "y": 2}]')[-1][1] == Point(1, 2)
    assert partials(Point | None, '{"x": 1, "y": 2}')[-1].x == 1


def test_scalars_are_partials_at_the_root() -> None:
    assert [str(each) for each in partials(str, '"ab"')] == ["", "a", "ab", "ab"]
    assert so_far(partials(Any, '{"a": [1]}')[-1]) == {"a": [1]}
    assert still_open(partials(Any, '{"a": ["x')[-1]) == ("a", 0)


def test_a_partial_answers_in_len_and_iteration_as_its_value_does() -> None:
    growing = partials(dict[str, int], '{"a": 1, "b": 2,')[-1]
    assert ("a" in growing, "c" in growing, list(growing), len(growing)) == (True, False, ["a", "b"], 2)
    items = partials(list[str], '["x", "yz')[-1]
    assert ("x" in items, "q" in items, list(items), len(items)) == (True, False, ["x", "yz"], 2)
    text = partials(str, '"hello')[-1]
    assert ("ell" in text, "x" in text, len(text)) == (True, False, 5)
    with pytest.raises(TypeError, match=r"A partial list has no \['a'\]"):
        items["a"]
    with pytest.raises(KeyError):
        partials(Point, '{"x": 1')[-1]["z"]


@pytest.mark.parametrize(
    ("shape", "grows"),
    [
        (str | None, True),
        (str | int, True),
        (str | dt.date, False),
        (Colour | str, False),
        (int | None, False),
        (Annotated[str, Field(max_length=9)] | list[int], True),
    ],
)
def test_the_string_of_a_union_grows_where_it_can_only_stay_a_string(shape: Any, grows: bool) -> None:
    class Box(BaseModel):
        it: shape

    shown = [partial.it for partial in partials(Box, '{"it": "1815')]
    assert ("18" in shown) is grows


@given(st.integers(1, 12), st.lists(st.builds(Point, st.integers(0, 99), st.integers(0, 99)), max_size=5))
@settings(max_examples=examples(100), deadline=None)
def test_the_last_partial_has_what_the_type_itself_makes(size: int, points: list[Point]) -> None:
    text = "[" + ",".join(f'{{"x": {each.x}, "y": {each.y}}}' for each in points) + "]"
    assert list(partials(list[Point], text, size)[-1]) == Schema.of(list[Point]).to_python(
        [{"x": each.x, "y": each.y} for each in points]
    )
