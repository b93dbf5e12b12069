"""Extract the records of long documents from the command line: `slipform extract`."""

from __future__ import annotations

import dataclasses
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipform.addons.batch.command import BatchEngine, BatchVia, DeadlineOption, ViaOption, deadline_seconds
from slipform.cli.terminal import ConfigOption, Exit
from slipform.prices import amount_text

if TYPE_CHECKING:  # a command imports what it needs when it runs: help and completion answer at once
    from slipform.addons.records.folders import FilesJob, FilesSummary
    from slipform.addons.records.remote import ExtractorSpec
    from slipform.addons.records.result import Progress

_LINE_SECONDS = 10.0


class LocateBy(StrEnum):
    """How records are placed in the text."""

    AUTO = "auto"
    VALUES = "values"
    LINES = "lines"


def extract(
    files: Annotated[list[Path], typer.Argument(help="Files and folders: text, CSV, PDF, DOCX, HTML, spreadsheets.")],
    schema: Annotated[str, typer.Option(help="A JSON Schema file, module:Class, a registered name, or fields.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the table goes: .csv, .tsv, .xlsx, .jsonl or .parquet.")
    ],
    as_list: Annotated[
        bool, typer.Option("--list", help="A row per record, of which a file may have many; the schema is a record's.")
    ] = False,
    instructions: Annotated[
        str | None, typer.Option(help="What to extract, beyond the descriptions of the schema.")
    ] = None,
    unique_by: Annotated[str | None, typer.Option(help="Fields that identify a record, separated by commas.")] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence/--no-evidence", help="Whether the table has the places of records.")
    ] = True,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="provider/model; default_model by default. Repeat it for fallback models."),
    ] = None,
    max_cost: Annotated[float | None, typer.Option(min=0, help="US dollars for all calls, at most.")] = None,
    max_calls: Annotated[int | None, typer.Option(min=1, help="Calls in all, at most.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of all calls, at most.")] = None,
    locate: Annotated[
        LocateBy,
        typer.Option(
            help="Place records by their values, by line numbers, or by lines where values do not.",
        ),
    ] = LocateBy.AUTO,
    rounds: Annotated[int, typer.Option(min=0, help="How often gaps are asked about again, at most.")] = 6,
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent calls, at most.")] = 8,
    engine: Annotated[BatchEngine, typer.Option(help="This machine, or a Ray cluster.")] = BatchEngine.LOCAL,
    via: ViaOption = BatchVia.LIVE,
    deadline: DeadlineOption = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate tokens and cost; call nothing.")] = False,
    config: ConfigOption = None,
) -> None:
    """Extract every record of long files into one table, and list what is missing in OUT.gaps.jsonl.

    After a stop at any moment, the same command resumes.
    """
    from slipform.addons.batch.batched_calls import BatchPolicy
    from slipform.addons.batch.file_rows import list_files
    from slipform.addons.records.batched import batch_api_of
    from slipform.addons.records.drive import Limits
    from slipform.addons.records.folders import FilesJob
    from slipform.addons.records.remote import ExtractorSpec
    from slipform.config import load_settings

    spec = ExtractorSpec(
        schema,
        as_list,
        load_settings(config),
        tuple(model or ()),
        instructions,
        rounds,
        tuple(unique_by.split(",")) if unique_by else (),
    )
    extractor = dataclasses.replace(spec.build(), via=via.value, locate=locate.value)
    policy = None
    if via is BatchVia.BATCH:
        if engine is BatchEngine.RAY:
            raise typer.BadParameter("--via batch needs no cluster.")
        batch_api_of(extractor)
        policy = BatchPolicy(deadline_seconds(deadline))
    sources = list_files(files, apart_from=[out])
    limits = Limits(max_cost, max_tokens, None, max_calls, concurrency)
    job = FilesJob(extractor, sources, out, limits, evidence, policy)
    try:
        if dry_run:
            typer.echo(_estimate_text(job))
            return
        summary = _run(job, spec if engine is BatchEngine.RAY else None)
    except KeyboardInterrupt:
        typer.secho("slipform: stopped. Run the same command to resume.", err=True)
        raise typer.Exit(Exit.STOPPED) from None
    finally:
        extractor.router.close()
    typer.secho(f"slipform: {_summary_text(job, summary)}", err=True)
    if not summary.is_complete:
        raise typer.Exit(Exit.INVALID)


def _run(job: FilesJob, remote: ExtractorSpec | None) -> FilesSummary:
    """Extract here, or with calls on a Ray cluster where `remote` says what its workers build."""
    from slipform.addons.batch.scheduler import run_loop
    from slipform.addons.records.folders import extract_files
    from slipform.addons.records.remote import extract_on_ray

    display = _Display()
    try:
        if remote is not None:
            return run_loop(lambda: extract_on_ray(job, remote, display.show))
        return run_loop(lambda: extract_files(job, display.show))
    finally:
        display.close()


class _Display:
    """Shows the progress: on a terminal in one line that is rewritten, elsewhere in a line every few seconds."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Show how far the extraction is."""
        now = time.monotonic()
        if not self._is_terminal and now - self._last < _LINE_SECONDS:
            return
        self._last = now
        end = "" if self._is_terminal else "\n"
        start = "\r\x1b[K" if self._is_terminal else ""
        print(f"{start}slipform: {_progress_text(progress)}", end=end, file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        """Clear the line."""
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201


def _progress_text(progress: Progress) -> str:
    parts = [f"{progress.done:,} of {progress.pieces:,} calls", f"{progress.records:,} records"]
    if progress.suspects:
        parts.append(f"{progress.suspects:,} to ask again")
    if progress.cost is not None:
        parts.append(f"cost {amount_text(progress.cost)}")
    if progress.eta is not None:
        parts.append(f"{progress.eta:,.0f} s to go")
    return ", ".join(parts)


def _summary_text(job: FilesJob, summary: FilesSummary) -> str:
    report = summary.report
    unit = "records" if job.is_list else "rows"
    files = "file" if summary.files == 1 else "files"
    parts = [f"{summary.rows:,} {unit} from {summary.files:,} {files} are in {job.out}", f"{report.calls:,} calls"]
    if report.resumed:
        parts.append(f"{report.resumed:,} of them from before")
    tokens = (report.usage.input or 0) + (report.usage.output or 0)
    if tokens:
        parts.append(f"{tokens:,} tokens")
    if report.cost is not None:
        parts.append(f"cost {amount_text(report.cost)}")
    if summary.stopped:
        parts.append(f"stopped: {summary.stopped} was reached")
    if not summary.is_complete:
        parts.append(f"something is missing: see {job.gaps_path}")
    elif summary.problems:
        parts.append(f"nothing is missing; rejected records are in {job.gaps_path}")
    return "; ".join(parts)


def _estimate_text(job: FilesJob) -> str:
    from slipform.addons.batch.call import resolved_models
    from slipform.addons.records.estimate import estimate
    from slipform.addons.records.source import document_of

    estimates = [estimate(job.extractor, document_of(path), job.limits.concurrency) for path in job.files]
    costs = [each.cost for each in estimates]
    tokens_in = sum(each.input_tokens for each in estimates)
    tokens_out = sum(each.output_tokens for each in estimates)
    lines = [
        f"files: {len(job.files):,}, pieces: {sum(each.pieces for each in estimates):,}",
        f"model: {', then '.join(resolved_models(job.extractor.router, job.extractor.models))}",
        f"records, about: {sum(each.records for each in estimates):,}",
        f"tokens, about: {tokens_in:,} in, {tokens_out:,} out",
    ]
    known_costs = [cost for cost in costs if cost is not None]
    if len(known_costs) == len(costs):
        lines.append(f"cost, about: {amount_text(sum(known_costs))}")
    else:
        lines.append("cost: no price is known for the model; add it to `prices` in slipform.yaml")
    return "\n".join(lines)
