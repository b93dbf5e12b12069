"""Evidence costs bounded work and memory, whatever the answer and its source, and never ends in an exception."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform import Client
from slipform.addons.evidence import source_index
from slipform.addons.evidence.confidence import Confidence, patched_paths
from slipform.addons.evidence.grounding import ground_in
from slipform.addons.evidence.source_index import SourceIndex
from slipform.evidence import Evidence, Span, answer_confidence, ground
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import examples

REPORT = "\n".join(f"line item {number} {number % 7} USD FY2025" for number in range(2_000))
ROWS = [
    {"name": f"line item {number}", "value": number % 7, "unit": "USD", "period": "FY2025"} for number in range(100)
]
TOOK_LONG: dict[str, tuple[Any, str]] = {
    "repeated rows": (ROWS, REPORT),
    "repeated numbers": ([1] * 300, "1 " * 25_000),
    "numbers on one line of a table": ([{"a": 1}] * 100, "a,b,c\n" + "1," * 10_000),
    "number words": ([7] * 10, "hundred thousand " * 2_000),
    "spellings of a month": (
        "2024-09-05",
        " ".join("".join(c.upper() if n >> at & 1 else c for at, c in enumerate("september")) for n in range(512)) * 8,
    ),
    "cells that are not closed": ([1] * 50, "<td " * 20_000 + " 1 " * 50),
    "texts that are not there": (
        [f"Anna Kowalska the {n}th of them" for n in range(500)],
        "Jan Nowak met Ann. " * 3_000,
    ),
    "a long text that is not there": ("ab cd " * 3_000, "ab ce " * 3_000),
}


@pytest.mark.parametrize("name", TOOK_LONG)
def test_what_took_long_takes_a_bounded_time(name: str) -> None:
    began = time.process_time()
    ground(*TOOK_LONG[name])
    assert time.process_time() - began < 6


def test_repeated_values_share_their_places() -> None:
    tracemalloc.start()
    try:
        ground([1] * 200, "1 " * 5_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


def test_repeated_rows_stand_in_their_own_lines() -> None:
    found = ground(ROWS[:20], REPORT)
    lines = [{REPORT.count("\n", 0, found[f"/{row}/{key}"][0].start) for key in ROWS[0]} for row in range(20)]
    assert lines == [{row} for row in range(20)]


def test_no_number_is_too_large_to_be_read() -> None:
    cases: list[tuple[str, Any]] = [
        ("hundred " * 3_000, 100),
        ("two thousand million " * 500, 3),
        ("万" * 20_000, 10_000),
        ("二百" * 20_000, 200),
        ("9" * 20_000, 9),
        ("1e999 " * 2_000, 1e300),
        ("fourteen (14) " * 500, 14),
        ("x", 10**5_000),
    ]
    assert [set(ground({"a": value}, text)) for text, value in cases] == [{"/a"}] * len(cases)


PIECES = (
    "1|2.5|1,000|(3)|5%|½|3 1/2|hundred|thousand|million|and|twenty-one|(14)|三万|年|March|5 March 2024|03/04/2024|"
    "12:30|1.5 × 10⁻⁷|10^|e5|M|EUR|$|Ada|Straße|&amp;|a@b.c|www.x.org| |\n|\t|-|,|.|:|\u0301|ﬁ|İ|שָׁ|Иван|"
    "ｶﾞ|\ud800|😀|<td>|١٢|²|true|v2|C++|A-7|−"
)
TEXTS = st.lists(st.sampled_from(PIECES.split("|")), max_size=12).map("".join)
SCALARS = st.one_of(st.integers(), st.floats(), TEXTS, st.booleans(), st.none())


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(TEXTS, SCALARS | st.lists(SCALARS, max_size=4), max_size=4), TEXTS, st.integers(1, 40))
def test_no_source_and_no_value_ends_in_an_exception(value: Any, text: str, times: int) -> None:
    ground(value, text * times)


def test_values_beyond_the_budget_are_marked_as_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_index, "_MAX_WORK", 1_000)
    grounding = ground_in(SourceIndex("a b c d e f"), list("abcdef"), None)
    assert grounding.spans["/0"] == (Span(0, 1, "exact"),)
    assert grounding.unsearched == {"/4", "/5"}
    assert grounding.spans["/5"] == ()


def test_places_that_nobody_weighed_are_ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_index, "_MAX_WORK", 300)
    spans = ground({"who": "Kim"}, "Kim met Kim, who: Kim.")["/who"]
    assert [span.start for span in spans] == [0, 8, 18]
    assert all(span.ambiguous for span in spans)


def test_the_evidence_of_a_call_says_what_was_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_index, "_MAX_WORK", 500)
    client = Client(router=Router({"fake": FakeModel(['["a","b","c"]'])}))
    result = client.ask_full(list[str], "a b c", model="fake/m", evidence=Evidence())
    searched = [field.searched for field in result.evidence.values()]
    assert searched[0]
    assert not searched[-1]
    assert list(result.evidence.values())[-1].to_dict()["searched"] is False


def test_a_very_deep_answer_has_evidence() -> None:
    answer = "[" * 900 + "1,2" + "]" * 900
    client = Client(router=Router({"fake": FakeModel([answer])}))
    result = client.ask_full({"type": "array"}, "1 2", model="fake/m", evidence=Evidence())
    assert [bool(field.spans) for field in result.evidence.values()] == [True, True]


def test_many_patches_of_many_values_are_followed() -> None:
    keys = [f"k{number}" for number in range(4_000)]
    operations = [{"op": "remove", "path": f"/{key}"} for key in keys[:2_000]]
    operations += [{"op": "move", "from": f"/{key}", "path": f"/new {key}"} for key in keys[2_000:]]
    began = time.process_time()
    found = patched_paths({(key,): Confidence(0.5) for key in keys}, operations)
    assert time.process_time() - began < 2
    assert list(found) == [(f"new {key}",) for key in keys[2_000:]]
    assert {score.touched for score in found.values()} == {("patched",)}


def test_scores_of_a_text_beyond_ascii_are_found_in_bounded_time() -> None:
    value = ["é"] * 8_000
    text = json.dumps(value, ensure_ascii=False)
    logprobs = {"content": [{"token": character, "logprob": -0.1} for character in text]}
    began = time.process_time()
    found = answer_confidence(value, text, logprobs)
    assert time.process_time() - began < 4
    assert all(each.score is not None for each in found.values())
