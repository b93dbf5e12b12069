"""Where the values of an answer stand in their source: the labelled set, and what must hold for any text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slipform
from slipform.addons.evidence.resemblance import best_matches
from slipform.evidence import Span, ground
from tests.evidence.labelled import cases, leaves, score


@pytest.mark.parametrize(("kind", "precision", "recall"), [("simple", 0.99, 0.99), ("hard", 0.95, 0.9)])
def test_the_labelled_set_is_grounded(kind: str, precision: float, recall: float) -> None:
    result = score(kind, ground)
    assert result.precision >= precision, result.failed
    assert result.recall >= recall, result.failed
    assert result.false_spans <= 0.02 * result.absent, result.failed


def test_the_set_of_another_hand_is_grounded() -> None:
    """Written by another hand, which had read the code; first run: precision 0.977, recall 0.963, 2 of 17 false.

    Faults that it showed were then mended, so it is no longer unseen.
    """
    result = score("other_hand", ground)
    assert result.precision >= 0.95, result.failed
    assert result.recall >= 0.95, result.failed
    assert result.false_spans <= 1, result.failed


def test_the_set_of_many_scripts_is_grounded() -> None:
    """Labelled before it was run; the first run had precision 0.975, recall 0.922 and 1 false span of 20."""
    result = score("second", ground)
    assert result.precision >= 0.95, result.failed
    assert result.recall >= 0.95, result.failed
    assert result.false_spans == 0, result.failed


def test_the_third_set_is_grounded() -> None:
    """Labelled before the code was read or run; the first run had precision 0.981, recall 0.914, 2 of 37 false.

    What it showed was then mended, in general, so it is no longer unseen.
    """
    result = score("third", ground)
    assert result.precision >= 0.98, result.failed
    assert result.recall >= 0.98, result.failed
    assert result.false_spans == 0, result.failed


def test_the_fourth_set_is_grounded() -> None:
    """Labelled after the third was mended; the first run had precision 0.993, recall 0.961, 0 of 8 false."""
    result = score("fourth", ground)
    assert result.precision >= 0.98, result.failed
    assert result.recall >= 0.98, result.failed
    assert result.false_spans == 0, result.failed


def test_the_fifth_set_is_grounded() -> None:
    """Labelled before the rules about negations, identifiers and legal forms; then 53.7 %, 70.6 %, 29 of 35 false."""
    result = score("fifth", ground)
    assert result.precision >= 0.98, result.failed
    assert result.recall >= 0.95, result.failed
    assert result.false_spans == 0, result.failed


def test_the_labelled_set_is_large_and_every_mark_is_of_a_leaf() -> None:
    every = cases("simple") + cases("hard")
    assert len(every) >= 200
    for case in (*every, *cases("other_hand"), *cases("second"), *cases("third"), *cases("fourth"), *cases("fifth")):
        assert set(case.spans) <= set(leaves(case.value)), case.name


def test_it_is_a_public_name() -> None:
    assert slipform.ground is ground


def test_every_leaf_has_an_entry_and_absent_ones_are_empty() -> None:
    assert ground({"a": [1, None], "b": {"c": "x"}}, "") == {"/a/0": (), "/a/1": (), "/b/c": ()}


@pytest.mark.parametrize(
    ("value", "text", "how"),
    [
        ("Ada", "Ada", "exact"),
        (36, "36", "exact"),
        (12.5, "12.50", "normalised"),
        ("ada", "ADA", "normalised"),
        ("2024-03-05", "5 March 2024", "normalised"),
        ("Microsoft Corporation", "Microsfot Corporation", "fuzzy"),
        ("Dr. Anna Kowalska", "Anna Kowalska", "partial"),
        ("2024-03-05", "on March 5 we met", "partial"),
    ],
)
def test_a_span_says_how_the_value_stands_there(value: Any, text: str, how: str) -> None:
    (span,) = ground(value, text)[""]
    assert span.how == how


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        (1.234, "EUR 1.234,50", None),
        (100.5, "x,2,100.50", "100.50"),
        (0.003, "p = .003", ".003"),
        (2, "A-2, 2 pieces", "2 p"),
        ("2024-03-17", "Nr. 2024-0317 vom 17.03.2024", "17.03.2024"),
        ("2024-02-11", "vom 11.02. bis 15.02.2024", "11.02."),
        ("IŞIK", "Işık", "Işık"),
        ("Müller", "Herr Mueller", "Mueller"),
        ("Aarhus", "i Århus", "Århus"),
        ("Priya Raman", "priya.raman@example.org PRIYA RAMAN", "PRIYA RAMAN"),
        ("Brightwell Ltd", "info@brightwell.co.uk", None),
    ],
)
def test_what_the_set_of_another_hand_showed(value: Any, text: str, found: str | None) -> None:
    spans = ground(value, text)[""]
    assert [span.start for span in spans] == ([] if found is None else [text.index(found)])


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        (77, "soixante-dix-sept ans", "soixante-dix-sept"),
        (81, "quatre-vingt-un points", "quatre-vingt-un"),
        (21, "ventuno e ventotto", "ventuno"),
        (28, "ventuno e ventotto", "ventotto"),
        (42, "сорок две страницы", "сорок две"),
        (10, "iki on sekiz", None),  # Turkish eighteen; "on" is also English
        (18, "iki on sekiz", "on sekiz"),
        (14, "within fourteen (14) days", "fourteen (14)"),
        (35000, "三万五千元", "三万五千"),
        (1.5e-7, "1.5 × 10⁻⁷ m", "1.5 × 10⁻⁷"),
        (7, "seat A-7", None),
        (7, "at -7 degrees", None),
        ("Karl Marx Straße 4", "Karl-Marx-Str. 4", "Karl-Marx-Str. 4"),
        ("Smith and Sons", "SMITH & SONS Ltd", "SMITH & SONS"),
        ("Smith and Sons", "Smith Sons", "Smith Sons"),
        ("http://acme.org/", "see acme.org.", "acme.org"),
        ("http://acme.org/", "see acme.org/jobs", None),
        ("Commercial Bank", "Cornmercial Bank", "Cornmercial Bank"),
        ("Commercial Bank", "Commerce Bank", None),
        ("ガイド", "ｶﾞｲﾄﾞを見る", "ｶﾞｲﾄﾞ"),
        ("Ivan Petrov", "Петров Иван Сергеевич", "Петров Иван"),
        ("Tchaikovsky", "написал Чайковский", "Чайковский"),
        ("Сергей Шевченко", "by Sergey Shevchenko", "Sergey Shevchenko"),
        ("Giorgos Papadopoulos", "ο Γιώργος Παπαδόπουλος", "Γιώργος Παπαδόπουλος"),
        ("Moscow", "в Москве", None),
        ("Jane Smith", "J. Smith wrote", "J. Smith"),
        ("Jane Smith", "K. Smith wrote", None),
        ("version 2", "version 2.1", None),
        (100, "ten per cent", None),
        ("محمد", "مُحَمَّد هنا", "مُحَمَّد"),
    ],
)
def test_what_the_third_set_showed(value: Any, text: str, found: str | None) -> None:
    spans = ground(value, text)[""]
    assert [text[span.start : span.end] for span in spans] == ([] if found is None else [found])


def test_a_negative_number_is_a_positive_one_only_beside_its_key() -> None:
    assert ground({"discount": 5}, "Discount: -5.00")["/discount"] == (Span(11, 15, "normalised"),)
    assert ground({"total": 5}, "Discount: -5.00")["/total"] == ()
    assert ground({"balance": -5}, "Balance: 5.00-")["/balance"] == (Span(9, 14, "normalised"),)


def test_places_that_are_equally_likely_are_all_given_and_ambiguous() -> None:
    text = "Kim met Kim."
    assert ground({"who": "Kim"}, text)["/who"] == (Span(0, 3, "exact", True), Span(8, 11, "exact", True))


def test_references_and_alternatives_of_the_schema_give_labels_and_listed_values() -> None:
    schema = {
        "$defs": {"Ref": {"anyOf": [{"type": "string", "description": "Order number"}, {"type": "null"}]}},
        "properties": {"ref": {"$ref": "#/$defs/Ref"}, "kind": {"enum": ["international agreement"]}},
    }
    text = "Offer A17. Order number A17. An international agreemant."
    found = ground({"ref": "A17", "kind": "international agreement"}, text, schema)
    assert found["/ref"] == (Span(24, 27, "exact"),)
    assert found["/kind"] == ()  # a listed value is not found by resemblance


def test_hostile_sources_and_values_take_bounded_work() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    assert list(ground(deep, "x").values()) == [(Span(0, 1, "exact"),)]
    text = "1 234 " * 3000 + "a" * 20000 + "\ud800" + "& " * 5000 + "5 May " * 3000
    assert ground("a" * 40, "a." * 50_000)[""]  # a text without blanks is no e-mail address to be tried from everywhere
    values = ["a" * 300, "1" * 300, "ab " * 200, "\ud800", "&amp;", "5 May 1999", 1e300, -0.0, 10**400]
    assert set(ground(values, text)) == {f"/{number}" for number in range(len(values))}


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)


@settings(deadline=None)
@given(_TEXTS, _TEXTS, st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=20))
def test_a_value_between_blanks_is_found_to_the_letter(before: str, after: str, value: str) -> None:
    text = f"{before} {value} {after}"
    found = ground(value, text)[""]
    assert any(text[span.start : span.end] == value for span in found if span.how == "exact")


@settings(deadline=None)
@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), _TEXTS, st.booleans()), _TEXTS)
def test_spans_lie_in_the_source_and_exact_ones_are_exact(value: Any, text: str) -> None:
    for span in ground(value, text)[""]:
        assert 0 <= span.start < span.end <= len(text)
        if span.how == "exact" and isinstance(value, str):
            assert text[span.start : span.end] == value.strip()


@given(st.text("ab", min_size=1, max_size=8), st.text("ab", max_size=16))
def test_the_nearest_part_is_the_one_of_fewest_edits(needle: str, haystack: str) -> None:
    expected = min(_edits(needle, haystack[i:j]) for i in range(len(haystack) + 1) for j in range(i, len(haystack) + 1))
    found = list(best_matches(needle, haystack, len(needle) - 1))
    assert all(edits == expected == _edits(needle, haystack[start:end]) for edits, start, end in found)
    assert bool(found) == (expected < len(needle) and bool(haystack))


def _edits(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        previous, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]
