"""What counts as right, and how well a score tells it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.addons.evaluation.scoring import RunScore, ScoredLeaf, separation, wilson


def leaves(*scores: tuple[float, bool], per_row: int = 1) -> list[ScoredLeaf]:
    return [ScoredLeaf(number // per_row, score, right) for number, (score, right) in enumerate(scores)]


@pytest.mark.parametrize(
    ("scores", "auroc"),
    [
        ([(0.9, True), (0.8, True), (0.2, False), (0.1, False)], 1.0),
        ([(0.1, True), (0.2, True), (0.8, False), (0.9, False)], 0.0),
        ([(0.5, True), (0.5, True), (0.5, False), (0.5, False)], 0.5),
        ([(0.9, True), (0.3, True), (0.5, False), (0.1, False)], 0.75),
    ],
)
def test_the_auroc_is_the_share_of_pairs_in_order(scores: list[tuple[float, bool]], auroc: float) -> None:
    found = separation(leaves(*scores))
    assert found.auroc == pytest.approx(auroc)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= auroc <= found.high <= 1
    assert (found.right, found.wrong) == (2, 2)


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([], "no value has a score"),
        ([(0.9, True)], "all 1 values are right"),
        ([(0.9, False)], "all 1 values are wrong"),
    ],
)
def test_without_right_and_wrong_there_is_a_reason(scores: list[tuple[float, bool]], reason: str) -> None:
    assert separation(leaves(*scores)) == (None, None, None, *separation(leaves(*scores))[3:5], reason)


def test_the_interval_holds_the_true_figure_about_as_often_as_it_says() -> None:
    chance = random.Random(5)
    held = 0
    for _ in range(200):  # scores of right values are higher by a standard deviation: the true figure is 0.7602
        drawn = [(chance.gauss(1.0, 1), True) for _ in range(40)] + [(chance.gauss(0.0, 1), False) for _ in range(40)]
        found = separation(leaves(*drawn))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.7602 <= found.high
    assert 180 <= held <= 199


def test_values_of_one_row_are_taken_together() -> None:
    chance = random.Random(7)
    one = [(chance.random() + 0.3 * right, right) for right in [True, False] * 40]
    apart = separation(leaves(*one))
    copied = separation([leaf for leaf in leaves(*one) for _ in range(10)])  # ten copies of each, in its row
    assert copied.auroc == pytest.approx(apart.auroc)
    assert copied.low == pytest.approx(apart.low, abs=0.01)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=30), st.integers(1, 5))
def test_figures_stay_between_0_and_1(scores: list[tuple[float, bool]], per_row: int) -> None:
    found = separation(leaves(*scores, per_row=per_row))
    assert all(0 <= each <= 1 for each in found[:3] if each is not None)


def test_the_interval_of_a_share() -> None:
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)


def test_a_row_is_counted_by_field_with_what_it_took() -> None:
    run = RunScore("m", "auto")
    spans = [{"start": 0, "end": 1, "how": "exact"}]
    evidence = {
        "/name": {"spans": spans, "confidence": 0.9},
        "/total": {"spans": [], "confidence": 0.2},
        "/tags/0": {"spans": spans, "confidence": None, "reason": "put in by slipform"},
    }
    answer = {"name": "ADA", "total": 7, "tags": ["b"]}
    figures = {"calls": 2, "input": 10, "output": 5, "cost": 0.5, "seconds": 1.5}
    expected = {"name": "Ada", "total": "8.00", "tags": ["b", "c"]}
    run.add(1, "one", expected, {"value": answer, "evidence": evidence, "figures": figures})
    run.add(2, "two", {"name": "Bob"}, {"error": {"message": "not valid"}, "figures": figures})
    told: Any = run.to_dict()
    assert (told["rows"], told["valid"], told["exact"], told["values"]) == (2, 1, 0, 5)
    assert {name: (each["right"], each["values"]) for name, each in told["fields"].items()} == {
        "/name": (1, 2),
        "/total": (0, 1),
        "/tags/*": (1, 2),
    }
    assert told["accuracy"] == pytest.approx(2 / 5)
    assert (told["calls"], told["tokens"], told["cost"]) == (4, {"input": 20, "output": 10}, 1.0)
    assert told["seconds"]["p50"] == 1.5
    assert (told["score"]["auroc"], told["score"]["right"], told["score"]["wrong"]) == (1.0, 1, 1)
    assert [(each.get("field"), each.get("verdict"), each.get("in_source")) for each in told["examples"]] == [
        ("/total", "wrong", False),
        ("/tags/*", "missing", None),
        (None, None, None),
    ]
    assert sum(each.total for each in run.bins()) == 2


def test_why_there_is_no_score_is_told() -> None:
    run = RunScore("m", "auto")
    silent: dict[str, Any] = {"": {"spans": [], "confidence": None, "reason": "the vendor gave none"}}
    run.add(1, "1", "x", {"value": "x", "evidence": silent})
    assert run.to_dict()["score"]["reason"] == "the vendor gave none"
