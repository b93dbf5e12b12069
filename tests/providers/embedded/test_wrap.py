"""Roots that are no object or array."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.addons.local.decoding.constrain import Unwrap, needs_wrapping

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(value=JSON, indent=st.sampled_from([None, 2]), size=st.integers(1, 5))
def test_unwrapping_any_chunking_gives_the_value(value: object, indent: int | None, size: int) -> None:
    text = json.dumps({"answer": value}, indent=indent)
    unwrap = Unwrap()
    pieces = [unwrap.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert json.loads("".join(pieces)) == value


@pytest.mark.parametrize(
    ("schema", "bare"),
    [
        ({"type": "string"}, True),
        ({}, True),
        ({"type": ["object", "null"]}, True),
        ({"type": ["object", "array"]}, False),
        ({"anyOf": [{"type": "object"}, {"type": "array"}]}, False),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, True),
        ({"allOf": [{"title": "any"}, {"properties": {}}]}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "integer"}}}, True),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, False),
        ({"$ref": "#"}, True),
    ],
)
@pytest.mark.covers("C21")
def test_roots_that_may_be_bare_values_are_wrapped(schema: dict[str, object], bare: bool) -> None:
    assert needs_wrapping(schema) is bare
