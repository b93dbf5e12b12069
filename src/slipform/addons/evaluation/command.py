"""Score models on labelled rows: `slipform eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipform.cli.terminal import ConfigOption, Exit, json_text, print_data, print_message
from slipform.named_schemas import HELP, schema_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slipform.addons.evaluation.run import Evaluation
    from slipform.addons.evaluation.scoring import RunScore
    from slipform.schema import OutputStrategy


def evaluate(
    data: Annotated[Path, typer.Argument(help="Labelled rows: .jsonl, .csv, .tsv or .parquet.")],
    models: Annotated[
        str | None, typer.Option(help="The models, with commas between them; default_model by default.")
    ] = None,
    strategies: Annotated[
        str, typer.Option(help="auto, native, tool, prompted: one or several, with commas between them.")
    ] = "auto",
    schema: Annotated[
        str | None, typer.Option("--schema", "-s", help=f"{HELP} Without it each row has a column `schema`.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="The prompt for a row; {column} is its value. The column `input` by default.")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with the prompt.")] = None,
    expected: Annotated[str, typer.Option(help="The column with the expected value.")] = "expected",
    source: Annotated[
        str | None, typer.Option(help="The column values are looked for in; `source`, or the prompt, by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder; DATA.eval by default.")] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=20, help="Score by the agreement of N further answers to each row, too.")
    ] = 0,
    key: Annotated[str | None, typer.Option(help="The column that identifies a row.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N rows.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent calls, at most.")] = 16,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per answer, at most.")] = None,
    retry_failures: Annotated[
        bool, typer.Option("--retry-failures", help="Ask again about rows that had no valid answer.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    fail_under: Annotated[
        float | None, typer.Option(min=0, max=1, help="Exit code 5 if a run has a lower share of right values.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Ask models about rows whose answers are known, and report what is right. The same command resumes."""
    from slipform.addons.batch.call import runner_router
    from slipform.addons.batch.command import prompt_text
    from slipform.addons.evaluation.cases import read_labelled
    from slipform.addons.evaluation.report_page import write_report
    from slipform.addons.evaluation.run import evaluate as ask_and_score
    from slipform.config import load_settings
    from slipform.files.replacing import replacing
    from slipform.ir.evidence import Evidence

    settings = load_settings(config)
    folder = out or data.with_suffix(".eval")
    cases = read_labelled(
        data,
        schema=None if schema is None else schema_named(schema, settings),
        settings=settings,
        prompt=prompt_text(prompt, prompt_file),
        expected=expected,
        source=source,
        key=key,
        limit=limit,
    )
    router = runner_router(settings)
    try:
        evaluation = ask_and_score(
            cases,
            folder,
            router=router,
            settings=settings,
            models=_names(models) or router.candidates(""),
            strategies=_strategies(strategies),
            evidence=Evidence(confidence="logprobs", samples=samples),
            concurrency=concurrency,
            max_tokens=max_tokens,
            retry_failures=retry_failures,
            quiet=False,
            on_run=lambda model, strategy: print_message(f"slipform: {model}, {strategy}", dim=True),
        )
    except KeyboardInterrupt:
        print_message("slipform: stopped. Run the same command to resume.")
        raise typer.Exit(Exit.STOPPED) from None
    finally:
        router.close()
    write_report(evaluation, folder / "report.html")
    with replacing(folder / "report.json") as file:
        file.write(json_text(evaluation.to_dict(), 2).encode() + b"\n")
    print_data(json_text(evaluation.to_dict()) if as_json else "\n".join(_table(evaluation)))
    print_message(f"slipform: the report is {folder / 'report.html'}, its figures {folder / 'report.json'}")
    _exit(evaluation, fail_under)


def _exit(evaluation: Evaluation, fail_under: float | None) -> None:
    failed = [run for run in evaluation.runs if run.error]
    for run in failed:
        print_message(f"slipform: {run.model}, {run.strategy}: {run.error}", fg="red")
    if fail_under is not None:
        for run in evaluation.runs:
            if not run.error and run.accuracy < fail_under:
                message = (
                    f"{run.model}, {run.strategy}: {run.accuracy:.3f} of the values are right, under {fail_under:g}"
                )
                print_message(f"slipform: {message}", fg="red")
        if evaluation.accuracy < fail_under and not failed:
            raise typer.Exit(Exit.INVALID)
    if failed:
        raise typer.Exit(Exit.UPSTREAM)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _strategies(text: str) -> Sequence[OutputStrategy]:
    from slipform.errors import ConfigError
    from slipform.schema import OutputStrategy

    try:
        return [OutputStrategy(name) for name in _names(text) or ["auto"]]
    except ValueError as error:
        hint = f"The strategies are: {', '.join(OutputStrategy)}."
        raise ConfigError(f"{error}", where="--strategies", hint=hint) from None


_HEADS = ("model", "strategy", "right", "rows right", "valid", "calls", "tokens in/out", "cost", "p50", "AUROC")


def _table(evaluation: Evaluation) -> Iterator[str]:
    """Yield the lines of a plain table: a run each."""
    rows = [_HEADS, *(_cells(run) for run in evaluation.runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    for row in rows:
        yield "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()


def _cells(run: RunScore) -> tuple[str, ...]:
    if run.error or not run.rows:
        return (run.model, run.strategy, *(["–"] * 8))
    figures = run.to_dict()
    score = figures["score"]
    seconds = figures["seconds"]["p50"]
    low, high = score["interval"]
    interval = "" if low is None else f" ({low:.2f}-{high:.2f})"
    return (
        run.model,
        run.strategy,
        f"{100 * run.accuracy:.1f} %",
        f"{run.exact}/{run.rows}",
        f"{run.valid}/{run.rows}",
        f"{run.calls:,}",
        f"{run.input_tokens:,}/{run.output_tokens:,}",
        "–" if run.cost is None else f"{run.cost:,.4g}",
        "–" if seconds is None else f"{seconds:.2f} s",
        "–" if score["auroc"] is None else f"{score['auroc']:.2f}{interval} n={score['values']}",
    )
