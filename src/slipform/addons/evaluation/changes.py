"""Compare evaluations row by row: which rows and fields got better or worse, and where runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from slipform.addons.evaluation.scoring import RowScore, RunScore, wilson
from slipform.errors import ConfigError

LAST: Final = "last"
REPORT: Final = "report.json"
MOST_ROWS: Final = 200
"""The most rows that a report lists."""


class Shift(NamedTuple):
    """The number of rows that got better and worse, among those in both runs."""

    better: int
    worse: int
    rows: int

    @property
    def share(self) -> float:
        """The rows that got better minus those that got worse, as a share of all rows."""
        return (self.better - self.worse) / self.rows if self.rows else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share: Wilson's, over the rows that changed.

        >>> [round(each, 2) for each in Shift(9, 1, 100).interval]
        [0.02, 0.1]
        """
        changed = self.better + self.worse
        if not changed:
            return 0.0, 0.0
        low, high = wilson(self.better / changed, changed)
        return (2 * low - 1) * changed / self.rows, (2 * high - 1) * changed / self.rows

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the interval excludes the opposite, else `unclear`; `same` without a change."""
        if not self.better and not self.worse:
            return "same"
        low, high = self.interval
        if low > 0:
            return "better"
        return "worse" if high < 0 else "unclear"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        counts = {"better": self.better, "worse": self.worse, "rows": self.rows, "share": self.share}
        return {**counts, "interval": list(self.interval), "verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class RunChange:
    """One run compared with an earlier one, over the same labels."""

    before: RunScore
    after: RunScore
    values: Shift
    """Rows with more, or fewer, right values."""
    fields: Mapping[str, Shift]
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The rows that changed, the worse ones first."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "before": _identity(self.before),
            "after": _identity(self.after),
            "accuracy": [self.before.accuracy, self.after.accuracy],
            "values": self.values.to_dict(),
            "fields": {name: shift.to_dict() for name, shift in self.fields.items()},
            "changed": len(self.rows),
            "rows": list(self.rows[:MOST_ROWS]),
        }


def _identity(run: RunScore) -> dict[str, Any]:
    return {"model": run.model, "strategy": run.strategy, **({"variant": run.variant} if run.variant else {})}


class EarlierReport(NamedTuple):
    """The place of an earlier evaluation, and the runs in its report."""

    folder: Path
    runs: Sequence[Mapping[str, Any]]


def earlier_report(against: str, folder: Path, data: Path) -> EarlierReport:
    """Return an earlier evaluation of the same data; `last` is the newest beside `folder`.

    Raises `ConfigError` where there is none.
    """
    if against == LAST:
        reports = [path for path in folder.parent.glob(f"*/{REPORT}") if path.parent.resolve() != folder.resolve()]
        reports = [path for path in reports if _read(path).get("data") == data.name]
        if not reports:
            raise ConfigError(
                f"No other evaluation of {data.name} was found", where=str(folder.parent), hint="Name its folder."
            )
        path = max(reports, key=lambda each: each.stat().st_mtime)
    else:
        path = Path(against) / REPORT if Path(against).is_dir() else Path(against)
    report = _read(path)
    runs = report.get("runs")
    if not isinstance(runs, list):
        hint = "Name the folder that an earlier `slipform eval` wrote, or `last`."
        raise ConfigError("There is no evaluation", where=str(path), hint=hint)
    if path.parent.resolve() == folder.resolve():
        raise ConfigError("An evaluation cannot be compared with itself", where=str(path), hint="Give --out a folder.")
    if report.get("data") != data.name:
        raise ConfigError(f"That evaluation is of {report.get('data')!r}, not of {data.name!r}", where=str(path))
    return EarlierReport(path.parent, [run for run in runs if "error" not in run])


def _read(path: Path) -> Mapping[str, Any]:
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def changes_between(earlier: Sequence[RunScore], later: Sequence[RunScore]) -> list[RunChange]:
    """Pair each run with the earlier one of its model, strategy and variant, or with the only one."""
    changes = []
    for run in later:
        same = [each for each in earlier if _identity(each) == _identity(run)]
        before = next(iter(same or (earlier if len(earlier) == 1 else ())), None)
        if before is not None and not run.error:
            changes.append(change_between(before, run))
    return changes


def change_between(before: RunScore, after: RunScore) -> RunChange:
    """Compare two runs over the rows in both."""
    pairs = [(old, new) for number, new in after.by_row.items() if (old := before.by_row.get(number)) is not None]
    names = dict.fromkeys(name for pair in pairs for row in pair for name in row.right)
    fields = {name: _shift((_right(old, name), _right(new, name)) for old, new in pairs) for name in names}
    values = _shift((sum(old.right.values()), sum(new.right.values())) for old, new in pairs)
    rows = [row for old, new in pairs if (row := _changed_row(old, new)) is not None]
    return RunChange(before, after, values, fields, sorted(rows, key=lambda each: each["gain"]))


def _right(row: RowScore, name: str) -> int:
    return row.right.get(name, 0)


def _shift(counts: Iterator[tuple[int, int]]) -> Shift:
    better = 0
    worse = 0
    rows = 0
    for old, new in counts:
        rows += 1
        better += int(new > old)
        worse += int(new < old)
    return Shift(better, worse, rows)


def _changed_row(old: RowScore, new: RowScore) -> dict[str, Any] | None:
    gains = {name: _right(new, name) - _right(old, name) for name in sorted({*old.right, *new.right})}
    changed = {name: gain for name, gain in gains.items() if gain}
    if not changed:
        return None
    fields = {
        name: {"gain": gain, "before": old.wrong.get(name), "after": new.wrong.get(name)}
        for name, gain in changed.items()
    }
    return {"row": new.number, "key": new.key, "gain": sum(changed.values()), "fields": fields}


def side_by_side(runs: Sequence[RunScore]) -> list[dict[str, Any]]:
    """Return the rows that the runs answer differently: the wrong fields of each run, None without an answer."""
    done = [run for run in runs if run.rows]
    if len(done) < 2:
        return []
    differing = []
    for number, first in done[0].by_row.items():
        rows = [run.by_row.get(number) for run in done]
        wrong = [None if row is None or not row.is_valid else dict(row.wrong) for row in rows]
        if any(each != wrong[0] for each in wrong):
            differing.append({"row": number, "key": first.key, "wrong": wrong})
    return differing
