"""What is documented here: `slipform schema`, `slipform check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from slipform.cli.models import dialects
from slipform.cli.terminal import Exit, decoded, json_text, name_of, read_lines, read_text, say, write
from slipform.named_schemas import HELP, schema_named

if TYPE_CHECKING:
    from slipform.schema import Schema
    from slipform.schema.lowering.emit import LoweringLoss
    from slipform.schema.lowering.lowered import Lowered


def check(
    files: Annotated[list[str], typer.Argument(help="JSON files; - is standard input.")],
    schema: Annotated[str, typer.Option("--schema", "-s", help=HELP)],
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Each line is a document.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each violation as a line of JSON.")] = False,
    config: Annotated[Path | None, typer.Option(help="The settings, for registered schemas.")] = None,
) -> None:
    """Check JSON documents against a schema, as they stand: nothing is repaired. Every violation is a line."""
    from slipform.config import load_settings

    shape = schema_named(schema, load_settings(config))
    count = bad = 0
    for where, text in _documents(files, jsonl):
        count += 1
        found = list(_violations(where, text, shape))
        bad += bool(found)
        for fields in found:
            place = f"{where}: " if fields["path"] is None else f"{where}: {fields['path']}: "
            write(json_text({"document": where, **fields}, 0) if as_json else f"{place}{fields['message']}")
    say(f"{count - bad} of {count} document{'' if count == 1 else 's'} valid", fg="red" if bad else "green")
    if bad:
        raise typer.Exit(Exit.INVALID)


def _documents(files: list[str], jsonl: bool) -> Iterator[tuple[str, str | Exception]]:
    """Each document's name and text, or what is wrong with its bytes."""
    from slipform.errors import SlipformError

    for source in files:
        if not jsonl:
            yield name_of(source), read_text(source)
            continue
        for number, line in read_lines(source):
            where = f"{name_of(source)}:{number}"
            try:
                text: str | Exception = decoded(line, where).strip()
            except SlipformError as error:
                text = error
            yield where, text


def _violations(where: str, text: str | Exception, schema: Schema[Any]) -> Iterator[dict[str, Any]]:
    from slipform.errors import SlipformError
    from slipform.text.loads import load

    try:
        if isinstance(text, Exception):
            raise text
        loaded = load(text, strict=True)
    except SlipformError as error:
        reason = str(error.details.get("reason", error.message)).removesuffix(" (strict mode repairs nothing)")
        place = f"line {error.details['line']}, column {error.details['column']}: " if "line" in error.details else ""
        yield {"path": None, "keyword": None, "message": f"not JSON: {place}{reason}"}
        return
    for warning in loaded.warnings:
        say(f"{where}: {warning.message}")
    for violation in schema.check(loaded.value):
        yield violation.to_dict()


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
    from slipform.schema.lowering.lowered import lower

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
    from slipform.schema.lowering.lowered import lower

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


def _loss(loss: LoweringLoss) -> str:
    from slipform.schema.violations import shown

    value = "" if loss.value is None else f" ({shown(loss.value)})"
    by = {"vendor": "the vendor", "engine": "the engine", "local": "slipform, after the answer"}[loss.enforced_by]
    return f"{loss.pointer or '/'}{value}: {_ACTIONS[loss.action]}; enforced by {by}"
