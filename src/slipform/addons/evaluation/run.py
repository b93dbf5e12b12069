"""Ask models about labelled rows, each with each strategy, and score what they answer: `slipform eval`.

Every model and strategy is a separate batch job in the folder of the evaluation, with the runner's journal: after a
stop at any moment the same call resumes, and a model that is added later is the only one asked.
"""

from __future__ import annotations

import dataclasses
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
from slipform.addons.evaluation.scoring import RunScore, all_fields
from slipform.call_options import retrying
from slipform.config import Settings
from slipform.errors import ConfigError, SlipformError
from slipform.ir.evidence import Evidence
from slipform.providers.router import Router
from slipform.schema import OutputStrategy


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of all models and strategies."""

    data: Path
    rows: int
    runs: tuple[RunScore, ...]

    @property
    def accuracy(self) -> float:
        """The accuracy of the worst run: what a CI holds against a limit."""
        return min((0.0 if run.error else run.accuracy for run in self.runs), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "version": 1,
            "data": self.data.name,
            "rows": self.rows,
            "accuracy": self.accuracy,
            "fields": all_fields(self.runs),
            "runs": [run.to_dict() for run in self.runs],
        }


def evaluate(
    cases: LabelledRows,
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
    on_run: Callable[[str, str], None] | None = None,
) -> Evaluation:
    """Ask every model with every strategy, and score the answers; what is in the folder already is not repeated.

    A run that fails as a whole (a wrong key, an unknown model) has the reason; the others continue.
    """
    base = BatchJob(
        input=cases.path,
        out=folder,
        schema=cases.schema,
        template=cases.template,
        model="",
        options=dataclasses.replace(retrying(settings), evidence=evidence),
        settings=settings,
        key=cases.key,
        concurrency=concurrency,
        limit=cases.limit,
        max_tokens=max_tokens,
        source=cases.source if evidence is not None else None,
        schema_column=cases.schema_column,
        asked_only=True,
        figures=True,
    )
    runs = []
    for named in models:
        for strategy in strategies:
            if on_run is not None:
                on_run(named, strategy.value)
            try:
                model = resolved_models(router, named)[0]
                out = folder / _file_name(model, strategy)
                job = dataclasses.replace(base, out=out, model=model, strategy=strategy)
                summary = start(job, router, quiet=quiet)
                if retry_failures and summary.failed:
                    start(job, router, retry_failures=True, quiet=quiet)
                run = _scored(RunScore(model, strategy.value), cases, job)
            except ConfigError:  # the dataset has changed, the folder is another's: no run could continue
                raise
            except SlipformError as error:
                run = RunScore(named, strategy.value, error=str(error))
            runs.append(run)
    return Evaluation(cases.path, max((run.rows for run in runs), default=0), tuple(runs))


def _file_name(model: str, strategy: OutputStrategy) -> str:
    plain = re.sub(r"[^\w.@:-]+", "_", model)
    return f"{plain}.{strategy.value}.jsonl"


def _scored(run: RunScore, cases: LabelledRows, job: BatchJob) -> RunScore:
    results = _by_row(job.out)
    failures = _by_row(job.failures_path) if job.failures_path.exists() else iter(())
    waiting = [next(results, None), next(failures, None)]
    for number, key, expected in cases:
        for at, lines in enumerate((results, failures)):
            pending = waiting[at]
            if pending is not None and pending[0] == number:
                run.add(number, key, expected, pending[1])
                waiting[at] = next(lines, None)
    return run


def _by_row(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines: Iterator[Row] = rows_of(path)
    return ((line["row"], line) for line in lines)
