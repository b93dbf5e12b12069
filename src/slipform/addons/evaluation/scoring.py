"""Score the answers of one model and strategy: which values are right, and how well scores predicted it."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, NamedTuple

from slipform.addons.evidence.comparison import LeafMatch, compare

BINS = 10
"""Bars in the picture of scores: 0 to 0.1, to 0.2, …"""
_MOST_MISTAKES = 200
_LONGEST_ANSWER = 80
_Z = 1.959963984540054
"""The quantile of 95 % intervals."""


class ScoredLeaf(NamedTuple):
    """A value with a score, and whether it was right; values of one row are not independent."""

    row: int
    score: float
    is_right: bool


class Separation(NamedTuple):
    """How well scores separate right from wrong values: 1 is perfect, 0.5 is chance."""

    auroc: float | None
    low: float | None
    """The 95 % interval, with the values of a row as a cluster."""
    high: float | None
    right: int
    wrong: int
    reason: str | None = None
    """Why the figure is missing."""


def separation(leaves: Sequence[ScoredLeaf]) -> Separation:
    """Return the probability that a right value has a higher score than a wrong one, ties counted half.

    The interval is Obuchowski's for clustered data, made one of Wilson's so that it stays between 0 and 1.

    >>> leaves = [ScoredLeaf(row, row / 8, row > 3) for row in range(8)]
    >>> separation(leaves).auroc
    1.0
    """
    right = sorted(leaf.score for leaf in leaves if leaf.is_right)
    wrong = sorted(leaf.score for leaf in leaves if not leaf.is_right)
    m = len(right)
    n = len(wrong)
    if not m or not n:
        return Separation(None, None, None, m, n, _why_no_separation(m, n))
    theta = sum(_share_below(score, wrong) for score in right) / m
    clusters = _sums_by_row(leaves, right, wrong, theta)
    with_right = sum(sums[2] > 0 for sums in clusters)
    with_wrong = sum(sums[3] > 0 for sums in clusters)
    if with_right < 2 or with_wrong < 2:
        return Separation(theta, None, None, m, n, "right or wrong values are of one row only: no interval")
    k = len(clusters)
    s10 = with_right / ((with_right - 1) * m) * sum(sums[0] ** 2 for sums in clusters)
    s01 = with_wrong / ((with_wrong - 1) * n) * sum(sums[1] ** 2 for sums in clusters)
    s11 = k / (k - 1) * sum(sums[0] * sums[1] for sums in clusters)
    variance = max(0.0, s10 / m + s01 / n + 2 * s11 / (m * n))
    size = theta * (1 - theta) / variance if variance and 0 < theta < 1 else min(with_right, with_wrong)
    return Separation(theta, *wilson(theta, max(1.0, size)), m, n)


def _why_no_separation(right: int, wrong: int) -> str:
    if not right and not wrong:
        return "no value has a score"
    return f"all {right + wrong} values are {'right' if right else 'wrong'}"


def _sums_by_row(
    leaves: Sequence[ScoredLeaf], right: list[float], wrong: list[float], theta: float
) -> list[list[float]]:
    """Return for each row the deviations from `theta` of its right and wrong values, and the number of each."""
    clusters: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0, 0])
    for leaf in leaves:
        sums = clusters[leaf.row]
        at = 0 if leaf.is_right else 1
        sums[at] += (_share_below(leaf.score, wrong) if leaf.is_right else 1 - _share_below(leaf.score, right)) - theta
        sums[at + 2] += 1
    return list(clusters.values())


def _share_below(score: float, others: Sequence[float]) -> float:
    """Return the share of others that are lower, equal ones counted half."""
    return (bisect_left(others, score) + bisect_right(others, score)) / 2 / len(others)


def wilson(share: float, size: float) -> tuple[float, float]:
    """Return the 95 % interval of a share.

    >>> [round(each, 3) for each in wilson(0.9, 100)]
    [0.826, 0.945]
    """
    if not size:
        return 0.0, 1.0
    centre = (share + _Z * _Z / (2 * size)) / (1 + _Z * _Z / size)
    half = _Z / (1 + _Z * _Z / size) * math.sqrt(share * (1 - share) / size + _Z * _Z / (4 * size * size))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(slots=True)
class FieldScore:
    """The number of right values of one field."""

    right: int = 0
    total: int = 0

    @property
    def accuracy(self) -> float:
        """The share of right values."""
        return self.right / self.total if self.total else 1.0


@dataclass(frozen=True, slots=True)
class RowScore:
    """The result of one row."""

    number: int
    key: str
    is_valid: bool
    right: Mapping[str, int]
    """The number of right values by field."""
    wrong: Mapping[str, str]
    """The wrong answers by field; the first of several."""


@dataclass(slots=True)
class RunScore:
    """The result of one model with one strategy, row by row."""

    model: str
    strategy: str
    variant: str = ""
    """The name of the prompt and schema, where several are tried."""
    error: str | None = None
    """Why the run was aborted."""
    rows: int = 0
    valid: int = 0
    """Rows with a valid answer."""
    exact: int = 0
    """Rows in which every value is right."""
    fields: dict[str, FieldScore] = field(default_factory=dict)
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    seconds: list[float] = field(default_factory=list)
    leaves: list[ScoredLeaf] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    """The reasons for missing scores, and the number of values with each."""
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    mistaken: int = 0
    by_row: dict[int, RowScore] = field(default_factory=dict)

    @property
    def setup(self) -> str:
        """The strategy, and the variant where there are several."""
        return f"{self.strategy}, {self.variant}" if self.variant else self.strategy

    def add(self, number: int, key: str, expected: Any, result: Mapping[str, Any]) -> None:
        """Add one row; `result` is its line of the results or of the failures."""
        self.rows += 1
        self._add_figures(result.get("figures") or {})
        if "error" in result:
            matches = [match for match in compare(expected, None) if match.verdict == "missing"]
            self._mistake(number, key, None, {"error": result["error"].get("message")})
        else:
            self.valid += 1
            matches = compare(expected, result["value"])
        self.exact += "error" not in result and all(match.verdict == "right" for match in matches)
        self.by_row[number] = _row_score(number, key, matches, is_valid="error" not in result)
        evidence = result.get("evidence") or {}
        for match in matches:
            score = self.fields.setdefault(match.field, FieldScore())
            score.total += 1
            score.right += match.verdict == "right"
            field = evidence.get(match.answered_at) or {}
            if field.get("confidence") is not None:
                self.leaves.append(ScoredLeaf(number, field["confidence"], match.verdict == "right"))
            elif field.get("reason"):
                self.reasons[field["reason"]] = self.reasons.get(field["reason"], 0) + 1
            if match.verdict != "right" and "error" not in result:
                self._mistake(number, key, match, {"score": field.get("confidence"), "spans": field.get("spans")})

    def _add_figures(self, figures: Mapping[str, Any]) -> None:
        self.calls += figures.get("calls") or 0
        self.input_tokens += figures.get("input") or 0
        self.output_tokens += figures.get("output") or 0
        if figures.get("cost") is not None:
            self.cost = (self.cost or 0.0) + figures["cost"]
        if figures.get("seconds") is not None:
            self.seconds.append(figures["seconds"])

    def _mistake(self, number: int, key: str, match: LeafMatch | None, details: Mapping[str, Any]) -> None:
        self.mistaken += 1
        if len(self.mistakes) >= _MOST_MISTAKES:
            return
        mistake: dict[str, Any] = {"row": number, "key": key, **{k: v for k, v in details.items() if v is not None}}
        if match is not None:
            spans = mistake.pop("spans", None)
            mistake |= {"field": match.field, "verdict": match.verdict}
            mistake |= {"expected": match.expected, "answered": match.answered}
            if spans is not None and match.answered_at is not None:
                mistake["in_source"] = bool(spans)
        self.mistakes.append(mistake)

    @property
    def values(self) -> int:
        """The number of scored values."""
        return sum(score.total for score in self.fields.values())

    @property
    def accuracy(self) -> float:
        """The share of right values; values of rows without an answer count as wrong."""
        if self.values:
            return sum(score.right for score in self.fields.values()) / self.values
        return 0.0

    def latency(self, share: float) -> float | None:
        """Return the seconds within which this share of rows was answered."""
        if len(self.seconds) < 2:
            return self.seconds[0] if self.seconds else None
        return quantiles(self.seconds, n=100, method="inclusive")[round(share * 100) - 1]

    def bins(self) -> list[FieldScore]:
        """Return the values with a score in ten bins."""
        bins = [FieldScore() for _ in range(BINS)]
        for leaf in self.leaves:
            each = bins[min(BINS - 1, int(leaf.score * BINS))]
            each.total += 1
            each.right += leaf.is_right
        return bins

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        low, high = wilson(self.exact / self.rows, self.rows) if self.rows else (None, None)
        separated = separation(self.leaves)
        common_reason = (
            max(self.reasons, key=lambda each: self.reasons[each]) if self.reasons and not self.leaves else None
        )
        reason = common_reason or separated.reason
        return {
            "model": self.model,
            "strategy": self.strategy,
            **({"variant": self.variant} if self.variant else {}),
            **({"error": self.error} if self.error else {}),
            "rows": self.rows,
            "valid": self.valid,
            "validity": self.valid / self.rows if self.rows else None,
            "values": self.values,
            "accuracy": self.accuracy,
            "exact": self.exact,
            "exact_share": self.exact / self.rows if self.rows else None,
            "exact_interval": [low, high],
            "fields": {
                name: {"accuracy": score.accuracy, "right": score.right, "values": score.total}
                for name, score in self.fields.items()
            },
            "calls": self.calls,
            "tokens": {"input": self.input_tokens, "output": self.output_tokens},
            "cost": self.cost,
            "seconds": {"p50": self.latency(0.5), "p95": self.latency(0.95)},
            "score": {
                "auroc": separated.auroc,
                "interval": [separated.low, separated.high],
                "values": separated.right + separated.wrong,
                "right": separated.right,
                "wrong": separated.wrong,
                "reason": None if separated.auroc is not None and separated.low is not None else reason,
                "bins": [{"right": each.right, "values": each.total} for each in self.bins()],
            },
            "mistakes": self.mistaken,
            "examples": self.mistakes,
        }


def _row_score(number: int, key: str, matches: Sequence[LeafMatch], *, is_valid: bool) -> RowScore:
    right: dict[str, int] = {}
    wrong: dict[str, str] = {}
    for match in matches:
        right[match.field] = right.get(match.field, 0) + (match.verdict == "right")
        if match.verdict != "right":
            answer = "nothing" if match.verdict == "missing" else json.dumps(match.answered, ensure_ascii=False)
            wrong.setdefault(match.field, answer[:_LONGEST_ANSWER])
    return RowScore(number, key, is_valid, right, wrong)


def all_fields(runs: Iterable[RunScore]) -> list[str]:
    """Return the fields of all runs, in the order of their first occurrence."""
    return list(dict.fromkeys(name for run in runs for name in run.fields))
