"""Score models on labelled rows: `slipform eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from slipform.cli.terminal import ConfigOption, Exit, json_text, print_data, print_message
from slipform.named_schemas import HELP, schema_named
from slipform.prices import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slipform.addons.evaluation.changes import Shift
    from slipform.addons.evaluation.run import Evaluation
    from slipform.addons.evaluation.scoring import RunScore
    from slipform.schema import OutputStrategy


_MOST_ROWS: Final = 20
"""The most changed rows that are printed."""


def evaluate(
    data: Annotated[Path, typer.Argument(help="Labelled rows: .jsonl, .csv, .tsv or .parquet.")],
    models: Annotated[
        str | None, typer.Option(help="The models, with commas between them; default_model by default.")
    ] = None,
    strategies: Annotated[
        str, typer.Option(help="auto, native, tool, prompted: one or several, with commas between them.")
    ] = "auto",
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema", "-s", help=f"{HELP} Without it each row has a column `schema`. Repeat it to compare schemas."
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="The prompt for a row; {column} is its value. `input` by default. Repeat it to compare prompts."
        ),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None, typer.Option(help="A file with the prompt. Repeat it to compare prompts.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="The folder of an earlier evaluation, or `last`: list the rows and fields that changed."),
    ] = None,
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
    from slipform.addons.evaluation.cases import read_labelled
    from slipform.addons.evaluation.changes import earlier_report
    from slipform.addons.evaluation.report_page import write_report
    from slipform.addons.evaluation.run import compared
    from slipform.addons.evaluation.run import evaluate as ask_and_score
    from slipform.config import load_settings
    from slipform.files.replacing import replacing
    from slipform.ir.evidence import Evidence

    settings = load_settings(config)
    folder = out or data.with_suffix(".eval")
    variants = [
        read_labelled(
            data,
            schema=None if named is None else schema_named(named, settings),
            settings=settings,
            prompt=text,
            expected=expected,
            source=source,
            key=key,
            limit=limit,
            variant=name,
        )
        for name, text, named in _variants(prompt or (), prompt_file or (), schema or ())
    ]
    earlier = None if against is None else earlier_report(against, folder, data)
    router = runner_router(settings)
    try:
        evaluation = ask_and_score(
            variants,
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
            on_run=lambda run: print_message(f"slipform: {run.model}, {run.setup}", dim=True),
        )
    except KeyboardInterrupt:
        print_message("slipform: stopped. Run the same command to resume.")
        raise typer.Exit(Exit.STOPPED) from None
    finally:
        router.close()
    if earlier is not None:
        evaluation = compared(evaluation, earlier, variants[0])
    write_report(evaluation, folder / "report.html")
    with replacing(folder / "report.json") as file:
        file.write(json_text(evaluation.to_dict(), 2).encode() + b"\n")
    print_data(json_text(evaluation.to_dict()) if as_json else "\n".join((*_table(evaluation), *_changes(evaluation))))
    print_message(f"slipform: the report is {folder / 'report.html'}, its figures {folder / 'report.json'}")
    _exit(evaluation, fail_under)


def _exit(evaluation: Evaluation, fail_under: float | None) -> None:
    failed = [run for run in evaluation.runs if run.error]
    for run in failed:
        print_message(f"slipform: {run.model}, {run.setup}: {run.error}", fg="red")
    if fail_under is not None:
        for run in evaluation.runs:
            if not run.error and run.accuracy < fail_under:
                message = f"{run.model}, {run.setup}: {run.accuracy:.3f} of the values are right, under {fail_under:g}"
                print_message(f"slipform: {message}", fg="red")
        if evaluation.accuracy < fail_under and not failed:
            raise typer.Exit(Exit.INVALID)
    if failed:
        raise typer.Exit(Exit.UPSTREAM)


def _variants(
    prompts: Sequence[str], prompt_files: Sequence[Path], schemas: Sequence[str]
) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield every pair of a prompt and a schema, with its name; the name of a single pair is empty."""
    from itertools import product

    from slipform.addons.batch.command import prompt_text

    texts = [(f"prompt {number}", text) for number, text in enumerate(prompts, 1)]
    texts += [(path.stem, prompt_text(None, path) or "") for path in prompt_files]
    shapes = [(_short_name(each), each) for each in schemas]
    whole: list[tuple[str, str | None]] = [("", None)]
    pairs = product([*texts] or whole, [*shapes] or whole)
    for (prompt_name, text), (schema_name, schema) in pairs:
        names = (prompt_name if len(texts) > 1 else "", schema_name if len(shapes) > 1 else "")
        yield ", ".join(name for name in names if name), text, schema


def _short_name(schema: str) -> str:
    """Return a name for a schema: its file's name without the suffix, or the text of the option."""
    return Path(schema).stem if schema.endswith((".json", ".yaml", ".yml")) else schema[:40]


def _changes(evaluation: Evaluation) -> Iterator[str]:
    """Yield the changes since the earlier evaluation: fields that got better or worse, then rows, worse ones first."""
    for change in evaluation.changes:
        before = change.before.accuracy
        after = change.after.accuracy
        yield ""
        yield f"{change.after.model}, {change.after.setup}, against {evaluation.against}:"
        yield f"  all values  {100 * before:.1f} % → {100 * after:.1f} %  {_shift_text(change.values)}"
        for name, shift in change.fields.items():
            if shift.verdict != "same":
                yield f"  {name or '(the value)'}  {_shift_text(shift)}"
        for row in change.rows[:_MOST_ROWS]:
            fields = "; ".join(f"{name}: {_step_text(step)}" for name, step in row["fields"].items())
            yield f"  {_GAINS[(row['gain'] > 0) - (row['gain'] < 0)]}  {row['key']}  {fields}"
        if len(change.rows) > _MOST_ROWS:
            yield f"  … and {len(change.rows) - _MOST_ROWS:,} more rows; report.json and report.html list them"


_GAINS: Final = {-1: "worse ", 0: "both  ", 1: "better"}


def _shift_text(shift: Shift) -> str:
    if shift.verdict == "same":
        return "same in every row"
    low, high = shift.interval
    return (
        f"{shift.verdict}: {shift.better:,} rows better, {shift.worse:,} worse of {shift.rows:,} "
        f"({100 * low:+.0f} to {100 * high:+.0f} %)"
    )


def _step_text(step: Mapping[str, Any]) -> str:
    return f"{step['before'] or 'right'} → {step['after'] or 'right'}"


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
    """Yield the lines of a plain table, one run per line."""
    rows = [_HEADS, *(_cells(run) for run in evaluation.runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    for row in rows:
        yield "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()


def _cells(run: RunScore) -> tuple[str, ...]:
    if run.error or not run.rows:
        return (run.model, run.setup, *(["–"] * 8))
    figures = run.to_dict()
    score = figures["score"]
    seconds = figures["seconds"]["p50"]
    low, high = score["interval"]
    interval = "" if low is None else f" ({low:.2f}-{high:.2f})"
    return (
        run.model,
        run.setup,
        f"{100 * run.accuracy:.1f} %",
        f"{run.exact}/{run.rows}",
        f"{run.valid}/{run.rows}",
        f"{run.calls:,}",
        f"{run.input_tokens:,}/{run.output_tokens:,}",
        "–" if run.cost is None else amount_text(run.cost),
        "–" if seconds is None else f"{seconds:.2f} s",
        "–" if score["auroc"] is None else f"{score['auroc']:.2f}{interval} n={score['values']}",
    )
