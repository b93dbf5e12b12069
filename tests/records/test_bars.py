"""The bars of the extraction: recall, silent gaps, tokens and CPU time on generated documents."""

from __future__ import annotations

import pytest
from bench.extract import Figures, measure

from slipform.testing import Faults
from tests.records.generate import GENRES
from tests.records.layouts import LAYOUTS


def shortfalls(figures: Figures) -> list[str]:
    """Return which bars are missed: a record missing, wrong or in two places, a silent or a false gap."""
    counts = {
        "missing": figures.missing,
        "wrong": figures.wrong,
        "silent": figures.silent,
        "false gaps": figures.false_gaps,
    }
    return [f"{figures.name}: {name} {count}" for name, count in counts.items() if count]


def test_further_layouts_give_every_record_or_report_it() -> None:
    figures = [measure(name, make(150, 6), Faults(), 6) for name, make in LAYOUTS.items()]
    assert [line for each in figures for line in shortfalls(each)] == []


def test_each_layout_of_a_document_has_its_own_beginnings() -> None:
    make = LAYOUTS["four_layouts"]
    figures = [measure(f"seed {seed}", make(500, seed), Faults(), seed) for seed in (1, 2, 3)]
    figures += [measure(f"hidden, seed {seed}", make(500, seed), Faults(hidden=0.01), seed) for seed in (1, 2)]
    assert [
        f"{each.name}: {each.wrong} wrong, {each.silent} silent" for each in figures if each.wrong + each.silent
    ] == []
    assert [each.name for each in figures if each.false_gaps] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("genre", GENRES)
def test_five_thousand_records_are_complete_at_little_more_than_one_pass(genre: str) -> None:
    figures = [measure(genre, GENRES[genre](5_000, seed), Faults(), seed) for seed in (1, 2, 3)]
    assert [line for each in figures for line in shortfalls(each)] == []
    assert sum(each.tokens for each in figures) / len(figures) <= 1.16
    assert max(each.tokens for each in figures) <= 1.20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "faults",
    [Faults(skipped=0.3, truncated=0.3), Faults(stopped=1.0), Faults(hidden=0.01)],
    ids=["loses a third", "always stops early", "never returns some"],
)
def test_worse_models_lose_nothing_silently(faults: Faults) -> None:
    figures = [measure(genre, make(1_000, 4), faults, 4, rounds=12) for genre, make in GENRES.items()]
    assert [each.name for each in figures if each.silent or each.wrong > 1] == []
    if not faults.hidden:
        assert [each.name for each in figures if each.missing > 1] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_thousand_records_of_a_further_layout_are_complete(layout: str) -> None:
    figures = [measure(layout, LAYOUTS[layout](1_000, seed), Faults(), seed) for seed in (1, 2)]
    assert [line for each in figures for line in shortfalls(each)] == []
