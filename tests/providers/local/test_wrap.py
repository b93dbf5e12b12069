"""Roots that are no object or array."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.providers.local.wrap import Unwrap, needs_wrapping, wrap
from slipform.schema import Schema

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON, indent=st.sampled_from([None, 2]), size=st.integers(1, 5))
def test_unwrapping_any_chunking_gives_the_value(value: object, indent: int | None, size: int) -> None:
    text = json.dumps({"answer": value}, indent=indent)
    unwrap = Unwrap()
    pieces = [unwrap.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert json.loads("".join(pieces)) == value


@pytest.mark.covers("C21")
def test_references_still_lead_somewhere_under_the_wrapper() -> None:
    schema = {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": "integer"}}}
    assert needs_wrapping(schema)
    assert Schema[object]("w", wrap(schema)).validate({"answer": 1}) == []
    assert Schema[object]("w", wrap(schema)).validate({"answer": "x"}) != []
