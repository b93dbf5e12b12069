"""Frozen records with an `__init__` of their own are the dataclasses they were."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field

import pytest

from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.ir.quick import quick


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
