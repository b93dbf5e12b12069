"""Going on from a beginning that has left."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.enforce.release import continue_from
from slipform.text.strict import compact_json
from tests.conftest import examples

SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(each, order) for each in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    order.shuffle(keys)
    return {key: shuffled(value[key], order) for key in keys}


@settings(max_examples=examples(200), deadline=None)
@given(VALUES, st.randoms(use_true_random=False), st.data())
def test_any_beginning_of_the_same_value_can_be_gone_on_from(value: Any, order: random.Random, data: Any) -> None:
    """C11: what has left stays, and the whole is the new value."""
    other = compact_json(shuffled(value, order))
    sent = other[: data.draw(st.integers(0, len(other)))]
    if sent[-1:].isdigit() and sent != other:
        return  # half a number never leaves
    text = continue_from(sent, value)
    assert text is not None
    assert text.startswith(sent)
    assert json.loads(text) == value


@settings(max_examples=examples(200), deadline=None)
@given(VALUES, VALUES, st.data())
def test_what_cannot_be_gone_on_from_is_given_up_never_bent(sent_of: Any, value: Any, data: Any) -> None:
    other = compact_json(sent_of)
    sent = other[: data.draw(st.integers(0, len(other)))]
    text = continue_from(sent, value)
    if text is not None:
        assert text.startswith(sent)
        assert json.loads(text) == value


@pytest.mark.parametrize("sent", ['{"b":1', '{"a":2', '{"a":1,"b"', '{"a":1},', "[1"])
def test_another_value_is_not_gone_on_from(sent: str) -> None:
    assert continue_from(sent, {"a": 1}) is None
