"""Show, lower and check schemas (`slipform schema`), and validate documents (`slipform check`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from slipform.cli.models import dialects
from slipform.cli.terminal import (
    Exit,
    IndentOption,
    RegistryOption,
    decode_input,
    json_text,
    print_data,
    print_message,
    read_lines,
    read_text,
    source_name,
)
from slipform.named_schemas import HELP, schema_for_command

if TYPE_CHECKING:
    from slipform.schema import Schema
    from slipform.schema.lowering.emit import LoweringLoss
    from slipform.schema.lowering.lowered import Lowered


def check(
    files: Annotated[list[str], typer.Argument(help="JSON files; - is standard input.")],
    schema: Annotated[str, typer.Option("--schema", "-s", help=HELP)],
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Each line is a document.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each violation as a line of JSON.")] = False,
    config: RegistryOption = None,
) -> None:
    """Validate JSON documents against a schema. Nothing is repaired; every violation is a line."""
    shape = schema_for_command(schema, config)
    count = invalid = 0
    for where, text in _documents(files, jsonl):
        count += 1
        violations = list(_violations(where, text, shape))
        invalid += bool(violations)
        for fields in violations:
            place = f"{where}: " if fields["path"] is None else f"{where}: {fields['path']}: "
            print_data(json_text({"document": where, **fields}, 0) if as_json else f"{place}{fields['message']}")
    plural = "" if count == 1 else "s"
    print_message(f"{count - invalid} of {count} document{plural} valid", fg="red" if invalid else "green")
    if invalid:
        raise typer.Exit(Exit.INVALID)


def _documents(files: list[str], jsonl: bool) -> Iterator[tuple[str, str | Exception]]:
    """Yield each document's name and text, or the error of its bytes."""
    from slipform.errors import SlipformError

    for source in files:
        if not jsonl:
            yield source_name(source), read_text(source)
            continue
        for number, line in read_lines(source):
            where = f"{source_name(source)}:{number}"
            try:
                text: str | Exception = decode_input(line, where).strip()
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
        place = ""
        if "line" in error.details:
            place = f"line {error.details['line']}, column {error.details['column']}: "
        yield {"path": None, "keyword": None, "message": f"not JSON: {place}{reason}"}
        return
    for warning in loaded.warnings:
        print_message(f"{where}: {warning.message}")
    for violation in schema.check(loaded.value):
        yield violation.to_dict()


schema = typer.Typer(help="Inspect schemas, as slipform and as the vendors see them.", no_args_is_help=True)
SchemaArgument: TypeAlias = Annotated[str, typer.Argument(metavar="SCHEMA", help=HELP)]
_ACTIONS = {
    "kept": "sent as it is",
    "encoded": "sent in another form, and brought back",
    "approximated": "sent as nearly as the dialect can say it",
    "dropped": "not sent",
    "closed": "not sent, so that the model cannot say other keys",
}
_DIALECT = "Whose rules: openai, anthropic, gemini, mistral, …"


@schema.command("list")
def list_schemas(config: RegistryOption = None) -> None:
    """List the registered names: those built in, and those of the config's `schemas` folder."""
    from slipform.config import load_settings
    from slipform.schema import Registry

    for name in sorted(Registry.load(load_settings(config).schemas).names):
        print_data(name)


@schema.command()
def show(
    schema_name: SchemaArgument,
    summary: Annotated[bool, typer.Option("--summary", help="The short form used in prompts.")] = False,
    indent: IndentOption = None,
    config: RegistryOption = None,
) -> None:
    """Print a schema as slipform reads it: what a Python type or a YAML file becomes."""
    from slipform.schema import strict_findings, summarize

    shape = schema_for_command(schema_name, config)
    short = summarize(shape.document)
    print_data(short.text if summary else json_text(shape.document, indent))
    size = len(json_text(shape.document, 0))
    breaches = len(strict_findings(shape.document))
    plural = "breach" if breaches == 1 else "breaches"
    strict = "meets the strict rules"
    if breaches:
        strict = f"{breaches} {plural} of the strict rules"
    print_message(f"{shape.name}: {size:,} characters, {len(short.text):,} in prompts; {strict}", dim=True)
    if short.note:
        print_message(short.note)


@schema.command("lower")
def lower_schema(
    schema_name: SchemaArgument,
    dialect: Annotated[str, typer.Option("--dialect", "-d", help=_DIALECT, autocompletion=dialects)],
    losses: Annotated[bool, typer.Option("--losses", help="List what the vendor does not enforce itself.")] = False,
    indent: IndentOption = None,
    config: RegistryOption = None,
) -> None:
    """Print a schema in a vendor's dialect, as it is sent. Answers are validated against the full schema."""
    from slipform.schema.lowering.lowered import lower

    lowered = lower(schema_for_command(schema_name, config).document, dialect, open_objects="auto")
    print_data(json_text(lowered.schema, indent))
    _print_losses(lowered, dialect, listed=losses)


@schema.command()
def preflight(
    schema_name: SchemaArgument,
    dialect: Annotated[
        str | None, typer.Option("--dialect", "-d", help=_DIALECT, autocompletion=dialects, show_default=False)
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Check the rules of the vendors' strict modes.")] = False,
    config: RegistryOption = None,
) -> None:
    """Check before any call whether a vendor takes a schema, or (by default) whether it meets the strict rules."""
    from slipform.schema import strict_findings
    from slipform.schema.lowering.lowered import lower

    shape = schema_for_command(schema_name, config)
    if dialect is not None:
        _print_losses(lower(shape.document, dialect, open_objects="auto"), dialect, listed=True)
    if dialect is not None and not strict:
        return
    breaches = strict_findings(shape.document)
    for breach in breaches:
        print_data(str(breach))
    if breaches:
        raise typer.Exit(Exit.MISTAKE)
    print_message(f"{shape.name} meets the strict rules.", fg="green")


def _print_losses(lowered: Lowered, dialect: str, *, listed: bool) -> None:
    """Print what the vendor does not enforce itself; slipform does, after the answer."""
    count = len(lowered.report)
    if not count:
        print_message(f"{dialect} takes all of it.", fg="green")
        return
    changed = f"{count} keyword{'' if count == 1 else 's'} of it changed"
    print_message(f"{dialect} takes it with {changed}{':' if listed else '; --losses lists them.'}")
    for loss in lowered.report if listed else ():
        print_message(f"  {_loss(loss)}")


def _loss(loss: LoweringLoss) -> str:
    from slipform.schema.violations import excerpt_of

    value = "" if loss.value is None else f" ({excerpt_of(loss.value)})"
    by = {"vendor": "the vendor", "engine": "the engine", "local": "slipform, after the answer"}[loss.enforced_by]
    return f"{loss.pointer or '/'}{value}: {_ACTIONS[loss.action]}; enforced by {by}"
