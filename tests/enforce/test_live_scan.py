"""The growing text, read strictly: what is left without blanks, where it closes, where it is no JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.enforce.release import MAX_DEPTH, closers, compacted, half_escape
from slipform.schema import Schema
from slipform.text.resolve_plan import form_of
from slipform.text.scanner import NUMBER, JsonScanner, ScanListener, plain_run_end
from slipform.text.strict import LAST_INTEGER, NUMBER_ENDS
from slipform.text.tracker import Tracker
from tests.conftest import examples

A_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def scanner() -> JsonScanner:
    return JsonScanner(MAX_DEPTH, Tracker(form_of(Schema.of({}))))


def has_stopped(one: JsonScanner) -> bool:
    """Whether the gate follows it no further."""
    return one.stopped or one.error is not None or bool(one.notes)


def fed(text: str, sizes: list[int]) -> tuple[JsonScanner, str]:
    """The text in pieces of these sizes, over and over."""
    one, out, at, turn = scanner(), [], 0, 0
    while at < len(text) and not has_stopped(one) and not one.complete:
        size = sizes[turn % len(sizes)]
        piece = text[at : at + size]
        taken = one.feed(piece)
        out.append(compacted(piece[:taken], one.blanks))
        one.blanks.clear()
        at, turn = at + size, turn + 1
    return one, "".join(out)


@settings(max_examples=examples(200), deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_blanks_are_left_out_wherever_the_text_is_cut(
    value: Any, ascii_only: bool, indent: int | None, sizes: list[int]
) -> None:
    text = json.dumps([value], ensure_ascii=ascii_only, indent=indent)
    one, out = fed(text, sizes)
    assert (has_stopped(one), one.complete, closers(one)) == (False, True, "")
    assert out == json.dumps([value], ensure_ascii=ascii_only, separators=(",", ":"))
    assert one.offset - one.blank_count == len(out)


@settings(max_examples=examples(200), deadline=None)
@given(VALUES, st.integers(0, 200), st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_a_text_that_was_cut_is_json_with_its_closers(value: Any, cut: int, sizes: list[int]) -> None:
    whole = json.dumps({"k": [value]}, separators=(",", ":"))
    text = whole[: cut + 1]
    one, out = fed(text, sizes)
    assert (has_stopped(one), out, one.complete) == (False, text, text == whole)
    closed = out[: len(out) - half_escape(one)] + closers(one)
    if re.search(r'["}\]]$', closed[: -len(closers(one)) or None]) or one.in_text():
        assert json.loads(closed).keys() <= {"", "k"}


@pytest.mark.parametrize(
    "text",
    [
        "[1,]", "[,1]", "{,}", '{"a"}', '{"a":}', '{"a":1,}', "{1:2}", "[1 2]", "[01]", "[1.]", "[-]", "[+1]",
        "[.5]", "[1e]", "[tru]", "[nulll]", "[NaN]", '["\\x"]', '["\\u12g4"]', '["a\nb"]', '["\\ud800"]', "[}", "{]",
        "]", "[²]", "['a']", "[" + "1" * 4301 + "]", "[" * 257,
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_is_no_json_stops_it(text: str, size: int) -> None:
    one, _ = fed(text, [size])
    assert has_stopped(one)


def test_what_follows_the_value_is_left() -> None:
    one = scanner()
    assert one.feed(' {"a": 1} and') == len(' {"a": 1}')
    assert one.complete


def test_a_number_at_the_root_ends_with_the_text() -> None:
    one = scanner()
    assert one.feed("12") == 2
    assert not one.complete
    one.finish()
    assert one.complete


@settings(max_examples=examples(400), deadline=None)
@given(st.text("-+.eE0123", max_size=7))
def test_a_number_is_known_as_far_as_it_is_written(word: str) -> None:
    found = A_NUMBER.fullmatch(word)
    one = scanner()
    one.feed(word)
    assert (one.state == NUMBER and one.number in NUMBER_ENDS) is bool(found)
    if found:
        assert (one.number <= LAST_INTEGER) is not bool(found[1] or found[2])
    elif word:
        begins = any(A_NUMBER.fullmatch(word + rest) for rest in ("0", "1", "+1"))
        assert has_stopped(one) is not begins


@settings(max_examples=examples(400), deadline=None)
@given(VALUES, st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_listener_that_takes_no_notice_lets_everything_be_read(value: Any, sizes: list[int]) -> None:
    one, text, at, turn = JsonScanner(MAX_DEPTH, ScanListener()), json.dumps([value]), 0, 0
    while at < len(text):
        assert one.feed(text[at : at + sizes[turn % len(sizes)]])
        at, turn = at + sizes[turn % len(sizes)], turn + 1
    assert one.complete
    assert not has_stopped(one)


@given(st.text(st.sampled_from('ab\u00e9\U0001f600"\\\n\x1f\ud800'), max_size=40), st.integers(0, 3))
def test_the_plain_characters_of_a_string_end_at_a_quote_an_escape_a_control_or_a_surrogate(text: str, at: int) -> None:
    """The compiled scanner looks at short runs itself; plain Python has a regular expression for them."""
    ends = [i for i in range(at, len(text)) if text[i] in '"\\\n\x1f\ud800']
    assert plain_run_end(text, at) == (ends[0] if ends else max(at, len(text)))
