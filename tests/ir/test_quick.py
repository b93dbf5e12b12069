"""Frozen records with an `__init__` of their own are the dataclasses they were."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field

import pytest

from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.ir.quick import copier, quick


@quick
@dataclass(frozen=True, slots=True)
class _Quick:
    name: str
    tags: dict[str, int] = field(default_factory=dict)
    size: int = 3
    double: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", self.size * 2)


def test_defaults_factories_and_post_init_are_kept() -> None:
    made = _Quick("a")
    assert (made.name, made.tags, made.size, made.double) == ("a", {}, 3, 6)
    assert _Quick("a").tags is not made.tags
    assert _Quick("a", {"x": 1}, size=4) == _Quick(name="a", tags={"x": 1}, size=4)


def test_a_missing_or_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="name"):
        _Quick()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        _Quick("a", colour="red")  # type: ignore[call-arg]


def test_it_stays_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        _Quick("a").name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    "record",
    [
        ModelRequest("m", (Message.user("hi"),), max_tokens=3),
        ModelResponse("hi", usage=Usage(1, 2)),
        Message.system("be brief"),
    ],
)
def test_records_of_the_ir_copy_pickle_and_compare_as_before(record: object) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.deepcopy(record) == record
    assert dataclasses.replace(record) == record  # type: ignore[type-var]
    names = [each.name for each in dataclasses.fields(record) if each.init]  # type: ignore[arg-type]
    assert list(inspect.signature(type(record)).parameters) == names


@quick
@dataclass(frozen=True, slots=True)
class _Large:
    a: int
    b: int = 2
    c: list[int] = field(default_factory=list)
    d: int = 4


class _Larger(_Large):
    """Laid out in another way than its base."""


def test_a_larger_record_is_of_its_own_class_and_frozen() -> None:
    made = _Large(1, d=5)
    assert (made.a, made.b, made.c, made.d) == (1, 2, [], 5)
    assert type(made) is _Large
    assert made == _Large(1, 2, [], 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.a = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.a
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_class_can_be_derived_from_a_quick_one() -> None:
    made = _Larger(1, c=[3])
    assert type(made) is _Larger
    assert (made.a, made.b, made.c, made.d) == (1, 2, [3], 4)


def test_a_copy_shares_what_is_not_changed_and_is_frozen_too() -> None:
    old = _Large(1, c=[1])
    new = copier(_Large)(old, {"a": 9})
    assert (new.a, new.b, old.a) == (9, 2, 1)
    assert new.c is old.c
    assert type(new) is _Large
    with pytest.raises(dataclasses.FrozenInstanceError):
        new.a = 2  # type: ignore[misc]


def test_a_copy_settles_what_hangs_on_the_changes() -> None:
    assert copier(_Quick)(_Quick("a"), {"size": 5}).double == 10
    assert ModelRequest("m", ()).replace(messages=[Message.user("hi")]).messages == (Message.user("hi"),)


def test_a_copy_with_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="A ModelRequest has no colour"):
        ModelRequest("m", ()).replace(colour="red")
