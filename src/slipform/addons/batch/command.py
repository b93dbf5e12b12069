"""Answer files and datasets from the command line: `slipform run`, `slipform batch`."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from slipform.cli.terminal import ConfigOption, Exit
from slipform.named_schemas import HELP
from slipform.prices import amount_text

if TYPE_CHECKING:  # a command imports what it needs when it runs: help and completion answer at once
    from slipform.addons.batch.datasets import Summary
    from slipform.addons.batch.jobs import BatchEstimate, BatchJob
    from slipform.config import Settings
    from slipform.providers.router import Router

_FILE_NAME = re.compile(r"\S+\.(md|txt|prompt|json|ya?ml)")
_Models: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="provider/model; default_model by default. Repeat it for fallback models."),
]
_Concurrency: TypeAlias = Annotated[int, typer.Option(min=1, help="Concurrent calls, at most.")]


class Format(StrEnum):
    """The format of the results."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    XLSX = "xlsx"
    PARQUET = "parquet"


class BatchVia(StrEnum):
    """How rows are asked."""

    LIVE = "live"
    BATCH = "batch"


ViaOption: TypeAlias = Annotated[
    BatchVia, typer.Option(help="Live calls, or the vendor's batch API at half the price.")
]
DeadlineOption: TypeAlias = Annotated[
    str, typer.Option(help="With --via batch: when all is done; in time, the rest is asked live.")
]


class BatchEngine(StrEnum):
    """Where the calls run."""

    LOCAL = "local"
    RAY = "ray"


def run(
    instructions: Annotated[str, typer.Argument(help="What to do with each file: text, or a file that holds it.")],
    files: Annotated[list[Path], typer.Argument(help="Files and folders: text, PDF, DOCX, HTML, spreadsheets.")],
    schema: Annotated[
        str | None, typer.Option("--schema", "-s", help=f"{HELP} It is enforced on every answer.")
    ] = None,
    json: Annotated[
        bool | None,
        typer.Option("--json/--no-json", help="Whether answers must be JSON; output.require_json by default."),
    ] = None,
    out_dir: Annotated[Path | None, typer.Option(help="Where answers go; beside each file by default.")] = None,
    model: _Models = None,
    concurrency: _Concurrency = 4,
    again: Annotated[bool, typer.Option("--again", help="Ask about files whose answer is up to date, too.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Write a line per call to standard error.")] = False,
    config: ConfigOption = None,
) -> None:
    """Ask about each file with the same instructions; write one answer file each, and print its path and model."""
    from slipform.addons.batch.files import run_report
    from slipform.config import load_settings

    if log:
        _log_calls()
    settings = load_settings(config)
    instructions_or_path = _instructions(instructions)
    if schema is not None and json is not False:  # a schema on the command line is used whatever the config says
        settings = settings.model_copy(
            update={"output": settings.output.model_copy(update={"use_response_schema": True})}
        )
        json = True
    try:
        report = run_report(
            instructions_or_path,
            files,
            out_dir=out_dir,
            require_json=json,
            response_schema_id=schema,
            model=model,
            concurrency=concurrency,
            skip_up_to_date=not again,
            settings=settings,
        )
    except KeyboardInterrupt:
        typer.secho("slipform: stopped; the answers that were whole are written.", err=True)
        raise typer.Exit(Exit.STOPPED) from None
    for path, answered_by in report.written:
        typer.echo(f"{path}\t{answered_by}")
    if report.skipped:
        count = len(report.skipped)
        typer.secho(f"slipform: {count:,} up to date; --again asks about them too.", err=True)
    for source, warnings in report.warnings.items():
        for warning in warnings:
            typer.secho(f"slipform: {source}: {warning.message}", err=True, fg="yellow")
    sources_by_error: dict[str, list[Path]] = {}
    for source, error in report.failures.items():
        sources_by_error.setdefault(str(error), []).append(source)
    for text, (source, *others) in sources_by_error.items():
        more = f" and {len(others):,} more" if others else ""
        typer.secho(f"slipform: {source}{more}: {text}", err=True, fg="red")
    if report.failures:
        raise typer.Exit(Exit.INVALID)


def batch(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...", help="One file of rows (.jsonl, .csv, .tsv, .xlsx, .parquet), or files and folders."
        ),
    ],
    schema: Annotated[str, typer.Option("--schema", "-s", help=HELP)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where results go: .jsonl, .csv, .xlsx or .parquet.")],
    prompt: Annotated[
        str | None,
        typer.Option(help="The prompt for a row; {column} is its value. The row as JSON, or the file, by default."),
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with the prompt.")] = None,
    model: _Models = None,
    key: Annotated[
        str | None, typer.Option(help="The column that identifies a row; number and content by default.")
    ] = None,
    concurrency: _Concurrency = 16,
    output_format: Annotated[
        Format | None, typer.Option("--format", help="Format of the results; by the file's extension by default.")
    ] = None,
    failures: Annotated[
        Path | None, typer.Option(help="Where failed rows go, with the reason; OUT.failures.jsonl by default.")
    ] = None,
    retry_failures: Annotated[bool, typer.Option("--retry-failures", help="Retry only the rows that failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate tokens and cost; call nothing.")] = False,
    engine: Annotated[BatchEngine, typer.Option(help="This machine, or a Ray cluster.")] = BatchEngine.LOCAL,
    limit: Annotated[int | None, typer.Option(min=1, help="Process only the first N rows.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per answer, at most.")] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Add where each value appears in the prompt, and how sure the model was.")
    ] = False,
    source_column: Annotated[
        str | None, typer.Option("--source", help="With --evidence: the column that values are taken from.")
    ] = None,
    samples: Annotated[int, typer.Option(min=0, max=20, help="With --evidence: extra samples to compare with.")] = 0,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A column of the input that results repeat; all in .csv and .xlsx by default. Repeatable."),
    ] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Repeat all columns of the input.")] = False,
    via: ViaOption = BatchVia.LIVE,
    deadline: DeadlineOption = "24h",
    status: Annotated[bool, typer.Option("--status", help="With --via batch: show the batches only.")] = False,
    config: ConfigOption = None,
) -> None:
    """Ask about every row of a dataset, or every file of a folder. After a stop, the same command resumes."""
    from slipform.addons.batch.datasets import make_job, plan, start
    from slipform.config import load_settings
    from slipform.ir.evidence import Evidence

    if status and via is not BatchVia.BATCH:
        raise typer.BadParameter("--status is for --via batch.")
    if not evidence and (source_column is not None or samples):
        raise typer.BadParameter("--source and --samples are for --evidence.")
    settings = load_settings(config)
    job, router = make_job(
        sources,
        schema=schema,
        out=out,
        prompt=prompt_text(prompt, prompt_file),
        model=model,
        key=key,
        concurrency=concurrency,
        output_format=None if output_format is None else output_format.value,
        failures=failures,
        limit=limit,
        max_tokens=max_tokens,
        evidence=Evidence(confidence="logprobs", samples=samples) if evidence else None,
        source_column=source_column,
        keep="all" if keep_all else keep,
        via=via.value,
        deadline=deadline_seconds(deadline),
        settings=settings,
    )
    try:
        if status:
            typer.echo(_status_text(job, router))
            return
        if dry_run:
            typer.echo(_estimate_text(job, plan(job), settings))
            return
        summary = start(job, router, retry_failures=retry_failures, engine=engine.value, quiet=False)
    except KeyboardInterrupt:
        typer.secho("slipform: stopped. Run the same command to resume.", err=True)
        raise typer.Exit(Exit.STOPPED) from None
    finally:
        router.close()
    typer.secho(f"slipform: {_summary_text(summary)}", err=True)
    if summary.failed:
        raise typer.Exit(Exit.INVALID)


def _log_calls() -> None:
    """Log every call on standard error: model, strategy, latency, tokens, outcome; no prompt and no answer."""
    import logging

    from slipform import seams

    seams.load(seams.LOGS)("text")
    logging.getLogger("slipform.calls").setLevel(logging.INFO)


def _instructions(text: str) -> str | Path:
    from slipform.errors import ConfigError

    if _is_file(text):
        return Path(text)
    if _FILE_NAME.fullmatch(text):
        raise ConfigError(
            "The file with instructions does not exist",
            where=text,
            hint="To give instructions as text, write more than one word.",
        )
    return text


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or a NUL in it
        return False


def prompt_text(text: str | None, file: Path | None) -> str | None:
    """Return the prompt that was given as text or as a file."""
    from slipform.errors import ConfigError

    if file is None:
        return text
    if text is not None:
        raise ConfigError("Both --prompt and --prompt-file are given", hint="Give one of them.")
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The prompt cannot be read: {reason}", where=str(file)) from error


def deadline_seconds(text: str) -> float:
    """Return the seconds of a deadline such as `8h`."""
    from slipform.providers.retry import read_duration

    seconds = read_duration(text)
    if seconds is None:
        raise typer.BadParameter(f"{text!r} is not a time such as 8h or 90m.", param_hint="--deadline")
    return seconds


def _status_text(job: BatchJob, router: Router) -> str:
    """Return where a job's batches are, as its journal and the vendor have them."""
    import asyncio

    from slipform.addons.batch.batched_rows import job_status
    from slipform.addons.batch.vendor_batches import batches_of

    status = asyncio.run(job_status(job, batches_of(router, job.models)))
    lines = [f"rows: {status.rows_done:,} done, {status.rows_failed:,} failed"]
    for batch, current in status.batches:
        line = f"batch {batch.id or batch.batch}: {batch.state}, {len(batch.ids):,} requests"
        if current is not None:
            line += f"; {current.word} at the vendor, {current.finished or 0:,} done"
        if batch.counts is not None:
            line += f", {batch.counts.answers:,} answers, {batch.counts.errors:,} errors"
        if batch.problem:
            line += f": {batch.problem}"
        lines.append(line)
    return "\n".join(lines)


def _estimate_text(job: BatchJob, estimate: BatchEstimate, settings: Settings) -> str:
    lines = [
        f"rows: {estimate.rows:,}, of which {estimate.pending:,} are left to do",
        f"model: {', then '.join(job.models)}",
        f"tokens, about: {estimate.input_tokens:,} in, {estimate.output_tokens:,} out",
    ]
    if estimate.cost is not None:
        live = ""
        if estimate.live_cost is not None:
            live = f", without retries; {amount_text(estimate.live_cost)} in live calls"
        lines.append(f"cost, about: {amount_text(estimate.cost)}{live}")
    else:
        priced = f" ({', '.join(settings.prices)} have one)" if settings.prices else ""
        lines.append(f"cost: no price is known for {job.model}{priced}; add it to `prices` in slipform.yaml")
    return "\n".join(lines)


def _summary_text(summary: Summary) -> str:
    if not summary.rows:
        return f"the input has no rows, and {summary.out} has none"
    usage = summary.usage
    parts = [f"{summary.rows - summary.failed:,} of {summary.rows:,} rows are in {summary.out}"]
    if summary.done:
        parts.append(f"{summary.done:,} done now in {summary.seconds:,.1f} s")
        parts.append(f"{usage.input or 0:,} tokens in and {usage.output or 0:,} out")
    else:
        parts.append("nothing was left to do")
    if summary.cost is not None:
        of_live = summary.batches.live_cost if summary.batches is not None else None
        parts.append(f"cost {amount_text(summary.cost)}")
        if of_live is not None:
            parts[-1] += f", {amount_text(of_live)} of it live"
    if (batches := summary.batches) is not None:
        parts.append(
            f"batches: {batches.batches:,} with {batches.requests:,} requests ({batches.retries:,} retries), "
            f"live calls: {batches.live_calls:,}"
        )
    if summary.changed:
        parts.append(f"{summary.changed:,} had changed in the input since they were done")
    if summary.failed:
        parts.append(f"{summary.failed:,} failed: see {summary.failures}, and --retry-failures")
    return "; ".join(parts)
