from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.codecs.framing import Framing, JsonArrayDecoder, NdjsonDecoder
from slipform.errors import UpstreamError
from tests.conftest import examples

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), max_size=4)


def decode(framing: Framing, body: bytes, size: int) -> list[object]:
    events = [event for at in range(0, len(body), size) for event in framing.feed(body[at : at + size])]
    return [json.loads(event.data) for event in [*events, *framing.finish()]]


@settings(max_examples=examples(120), deadline=None)
@given(OBJECTS, st.integers(1, 40), st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans())
def test_lines_are_read_however_they_are_split(
    values: list[dict[str, object]], size: int, newline: str, closed: bool
) -> None:
    body = newline.join(json.dumps(value) for value in values) + (newline if closed else "")
    assert decode(NdjsonDecoder(), body.encode(), size) == values


@settings(max_examples=examples(120), deadline=None)
@given(OBJECTS, st.integers(1, 40), st.integers(0, 2))
def test_the_elements_of_an_array_are_read_as_they_complete(
    values: list[dict[str, object]], size: int, indent: int
) -> None:
    body = json.dumps(values, ensure_ascii=False, indent=indent or None).encode()
    assert decode(JsonArrayDecoder(), body, size) == values


def test_a_lone_object_counts_as_an_array_of_one() -> None:
    assert decode(JsonArrayDecoder(), b'{"error": {"code": [1]}}', 3) == [{"error": {"code": [1]}}]


def test_an_element_that_never_closes_is_given_out_as_it_is() -> None:
    decoder = JsonArrayDecoder()
    assert decoder.feed(b'[{"a": "]}') == []
    assert [event.data for event in decoder.finish()] == [b'{"a": "]}']


@pytest.mark.parametrize("framing", [NdjsonDecoder(8), JsonArrayDecoder(8)])
def test_a_value_over_the_limit_is_refused(framing: Framing) -> None:
    with pytest.raises(UpstreamError, match="over 8 bytes"):
        framing.feed(b'{"aaaaaaaaaaaaaaaa": 1')
