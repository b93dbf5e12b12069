"""Run models on labelled rows, each with each strategy, and score their answers: `slipform eval`.

Every model and strategy is a separate batch job in the folder of the evaluation, with the runner's journal: after a
stop at any moment, the same call resumes, and only models that were added later are called.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipform.addons.batch.call import resolved_models
from slipform.addons.batch.datasets import start
from slipform.addons.batch.jobs import BatchJob
from slipform.addons.batch.rows import Row, rows_of
from slipform.addons.evaluation.cases import LabelledRows
from slipform.addons.evaluation.changes import MOST_ROWS, EarlierReport, RunChange, changes_between, side_by_side
from slipform.addons.evaluation.scoring import RunScore, all_fields
from slipform.call_options import retrying
from slipform.config import Settings
from slipform.errors import ConfigError, SlipformError
from slipform.ir.evidence import Evidence
from slipform.providers.router import Router
from slipform.schema import OutputStrategy


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of all models and strategies."""

    data: Path
    rows: int
    runs: tuple[RunScore, ...]
    against: Path | None = None
    """The folder of the evaluation with which this one is compared."""
    changes: Sequence[RunChange] = ()

    @property
    def accuracy(self) -> float:
        """The accuracy of the worst run, for a limit in CI."""
        return min((0.0 if run.error else run.accuracy for run in self.runs), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "version": 1,
            "data": self.data.name,
            "rows": self.rows,
            "accuracy": self.accuracy,
            "fields": all_fields(self.runs),
            "runs": [run.to_dict() for run in self.runs],
            **({"side_by_side": rows[:MOST_ROWS], "differing": len(rows)} if (rows := side_by_side(self.runs)) else {}),
            **self._changes_dict(),
        }

    def _changes_dict(self) -> dict[str, Any]:
        if self.against is None:
            return {}
        return {"against": {"folder": str(self.against), "runs": [change.to_dict() for change in self.changes]}}


def evaluate(
    variants: Sequence[LabelledRows],
    folder: Path,
    *,
    router: Router,
    settings: Settings,
    models: Sequence[str],
    strategies: Sequence[OutputStrategy],
    evidence: Evidence | None = None,
    concurrency: int = 16,
    max_tokens: int | None = None,
    retry_failures: bool = False,
    quiet: bool = True,
    on_run: Callable[[RunScore], None] | None = None,
) -> Evaluation:
    """Run every model with every strategy and variant, and score the answers; results in the folder are reused.

    A run that fails as a whole (a wrong key, an unknown model) records the reason; the others continue.
    """
    first = variants[0]
    base = BatchJob(
        input=first.path,
        out=folder,
        schema=first.schema,
        template=first.template,
        model="",
        options=dataclasses.replace(retrying(settings), evidence=evidence),
        settings=settings,
        key=first.key,
        concurrency=concurrency,
        limit=first.limit,
        max_tokens=max_tokens,
        source=first.source if evidence is not None else None,
        schema_column=first.schema_column,
        asked_only=True,
        figures=True,
    )
    runs = []
    for named, strategy, cases in itertools.product(models, strategies, variants):
        run = RunScore(named, strategy.value, cases.variant)
        try:
            run.model = resolved_models(router, named)[0]
            if on_run is not None:
                on_run(run)
            job = dataclasses.replace(
                base,
                out=folder / _file_name(run),
                model=run.model,
                strategy=strategy,
                schema=cases.schema,
                template=cases.template,
            )
            summary = start(job, router, quiet=quiet)
            if retry_failures and summary.failed:
                start(job, router, retry_failures=True, quiet=quiet)
            add_rows(run, cases, job.out)
        except (
            ConfigError
        ):  # the dataset has changed, or the folder belongs to another evaluation: no run could continue
            raise
        except SlipformError as error:
            run = RunScore(named, strategy.value, cases.variant, error=str(error))
        runs.append(run)
    return Evaluation(first.path, max((run.rows for run in runs), default=0), tuple(runs))


def compared(evaluation: Evaluation, earlier: EarlierReport, cases: LabelledRows) -> Evaluation:
    """Return the evaluation with the changes since an earlier one."""
    before = [_earlier_run(earlier.folder, each, cases) for each in earlier.runs]
    return dataclasses.replace(evaluation, against=earlier.folder, changes=changes_between(before, evaluation.runs))


def _earlier_run(folder: Path, listed: Mapping[str, Any], cases: LabelledRows) -> RunScore:
    """Return a run of an earlier evaluation, scored by the current labels."""
    run = RunScore(listed["model"], listed["strategy"], listed.get("variant", ""))
    out = folder / _file_name(run)
    if not out.exists():
        raise ConfigError("The results of the earlier evaluation are gone", where=str(out), hint="Run it again.")
    add_rows(run, cases, out)
    return run


def _file_name(run: RunScore) -> str:
    parts = (run.model, run.strategy, run.variant)
    return ".".join(re.sub(r"[^\w.@:-]+", "_", part) for part in parts if part) + ".jsonl"


def add_rows(run: RunScore, cases: LabelledRows, out: Path) -> None:
    """Score the results and failures of a batch job."""
    failures_path = out.with_name(f"{out.name}.failures.jsonl")
    results = _by_row(out)
    failures = _by_row(failures_path) if failures_path.exists() else iter(())
    waiting = [next(results, None), next(failures, None)]
    for number, key, expected in cases:
        for at, lines in enumerate((results, failures)):
            pending = waiting[at]
            if pending is not None and pending[0] == number:
                run.add(number, key, expected, pending[1])
                waiting[at] = next(lines, None)


def _by_row(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines: Iterator[Row] = rows_of(path)
    return ((line["row"], line) for line in lines)
