"""`slipform schema`: look at schemas, as slipform and as the vendors see them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from slipform.cli.completions import dialects
from slipform.cli.exits import Exit
from slipform.cli.output import json_text, say, write
from slipform.named_schemas import HELP, schema_named

if TYPE_CHECKING:
    from slipform.schema import Schema
    from slipform.schema.lowering import Loss, Lowered

schema = typer.Typer(help="Look at schemas, as slipform and as the vendors see them.", no_args_is_help=True)

Given: TypeAlias = Annotated[str, typer.Argument(metavar="SCHEMA", help=HELP)]
Config: TypeAlias = Annotated[Path | None, typer.Option(help="The settings, for registered schemas.")]
Indent: TypeAlias = Annotated[int | None, typer.Option(min=0, max=16, help="Spaces; 0 is compact.")]
_ACTIONS = {
    "kept": "sent as it is",
    "encoded": "sent in another form, and brought back",
    "approximated": "sent as nearly as the dialect can say it",
    "dropped": "not sent",
    "closed": "not sent, so that the model cannot say other keys",
}
_DIALECT = "Whose rules: openai, anthropic, gemini, mistral, …"


@schema.command("list")
def list_schemas(config: Config = None) -> None:
    """List the registered names: those built in, and those of the config's `schemas` folder."""
    from slipform.config import load_settings
    from slipform.schema import Registry

    for name in sorted(Registry.load(load_settings(config).schemas).names):
        write(name)


@schema.command()
def show(
    given: Given,
    summary: Annotated[bool, typer.Option("--summary", help="The short form that prompts show.")] = False,
    indent: Indent = None,
    config: Config = None,
) -> None:
    """Print a schema as slipform reads it: what a Python type or a YAML file becomes."""
    from slipform.schema import strict_findings, summarize

    shape = _read(given, config)
    short = summarize(shape.document)
    write(short.text if summary else json_text(shape.document, indent))
    size = len(json_text(shape.document, 0))
    breaches = len(strict_findings(shape.document))
    plural = "breach" if breaches == 1 else "breaches"
    strict = f"{breaches} {plural} of the strict rules" if breaches else "meets the strict rules"
    say(f"{shape.name}: {size:,} characters, {len(short.text):,} in prompts; {strict}", dim=True)
    if short.note:
        say(short.note)


@schema.command("lower")
def lower_schema(
    given: Given,
    dialect: Annotated[str, typer.Option("--dialect", "-d", help=_DIALECT, autocompletion=dialects)],
    losses: Annotated[bool, typer.Option("--losses", help="List what the vendor does not enforce itself.")] = False,
    indent: Indent = None,
    config: Config = None,
) -> None:
    """Print a schema in a vendor's dialect: what is really sent. Answers are checked against the full schema."""
    from slipform.schema.lowering import lower

    lowered = lower(_read(given, config).document, dialect, open_objects="closed")
    write(json_text(lowered.schema, indent))
    _tell_losses(lowered, dialect, listed=losses)


@schema.command()
def preflight(
    given: Given,
    dialect: Annotated[
        str | None, typer.Option("--dialect", "-d", help=_DIALECT, autocompletion=dialects, show_default=False)
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Check the rules of the vendors' strict modes.")] = False,
    config: Config = None,
) -> None:
    """Tell before any call whether a vendor can take a schema, or whether it meets the strict rules (by default)."""
    from slipform.schema import strict_findings
    from slipform.schema.lowering import lower

    shape = _read(given, config)
    if dialect is not None:
        _tell_losses(lower(shape.document, dialect, open_objects="closed"), dialect, listed=True)
    if dialect is not None and not strict:
        return
    found = strict_findings(shape.document)
    for breach in found:
        write(str(breach))
    if found:
        raise typer.Exit(Exit.MISTAKE)
    say(f"{shape.name} meets the strict rules.", fg="green")


def _read(given: str, config: Path | None) -> Schema[Any]:
    from slipform.config import load_settings

    return schema_named(given, load_settings(config))


def _tell_losses(lowered: Lowered, dialect: str, *, listed: bool) -> None:
    """Say what the vendor does not enforce itself; slipform does, after the answer."""
    count = len(lowered.report)
    if not count:
        say(f"{dialect} takes all of it.", fg="green")
        return
    changed = f"{count} keyword{'' if count == 1 else 's'} of it changed"
    say(f"{dialect} takes it with {changed}{':' if listed else '; --losses lists them.'}")
    for loss in lowered.report if listed else ():
        say(f"  {_loss(loss)}")


def _loss(loss: Loss) -> str:
    from slipform.schema.violations import shown

    value = "" if loss.value is None else f" ({shown(loss.value)})"
    by = {"vendor": "the vendor", "engine": "the engine", "local": "slipform, after the answer"}[loss.enforced_by]
    return f"{loss.pointer or '/'}{value}: {_ACTIONS[loss.action]}; enforced by {by}"
