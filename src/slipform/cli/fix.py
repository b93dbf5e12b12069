"""`slipform fix`: the JSON out of any text, as a filter for pipes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slipform.cli.exits import Exit
from slipform.cli.inputs import STDIN, decoded, name_of, read_lines, read_text
from slipform.cli.output import json_text, say, write
from slipform.named_schemas import HELP, schema_named

if TYPE_CHECKING:
    from slipform.enforce.loads import Report
    from slipform.errors import EnforcementError
    from slipform.schema import Schema
    from slipform.text.loads import Loaded


@dataclass(frozen=True, slots=True)
class _How:
    schema: Schema[Any] | None
    explain: bool
    indent: int | None
    nan: Literal["refuse", "null"]


def fix(
    file: Annotated[str, typer.Argument(help="The text; standard input by default.")] = STDIN,
    schema: Annotated[str | None, typer.Option("--schema", "-s", help=f"{HELP} The JSON must fit it.")] = None,
    explain: Annotated[bool, typer.Option("--explain", "-x", help="Show every edit, on standard error.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Fix each line on its own, as it comes.")] = False,
    nan_null: Annotated[
        bool, typer.Option("--nan-null", help="Make NaN and Infinity null instead of refusing.")
    ] = False,
    indent: Annotated[int | None, typer.Option(min=0, max=16, help="Spaces; 0 is compact.")] = None,
    config: Annotated[Path | None, typer.Option(help="The settings, for registered schemas.")] = None,
) -> None:
    """Find the JSON in a text, repair it, and print it; with a schema also make it fit, or say why it does not."""
    shape = None if schema is None else _schema(schema, config)
    how = _How(shape, explain, 0 if jsonl else indent, "null" if nan_null else "refuse")
    if jsonl:
        _fix_lines(file, how)
    else:
        write(_fixed(read_text(file), how))


def _schema(given: str, config: Path | None) -> Schema[Any]:
    from slipform.config import load_settings

    return schema_named(given, load_settings(config))


def _fixed(text: str, how: _How) -> str:
    from slipform.errors import EnforcementError

    try:
        found = _found(text, how)
    except EnforcementError as error:
        raise _reworded(error) from None
    if how.explain:
        from slipform.cli.explain import explained

        for line in explained(text, found):
            say(line)
    return json_text(found.value, how.indent)


def _found(text: str, how: _How) -> Loaded | Report:
    """The same verdict either way; the enforcement's imports are for those who give a schema."""
    if how.schema is None:
        from slipform.text.loads import load

        return load(text, nan=how.nan)
    from slipform.enforce import loads_report

    return loads_report(text, how.schema, nan=how.nan)


def _reworded(error: EnforcementError) -> EnforcementError:
    """The same error for a text that nobody was asked for."""
    if "reason" in error.details:
        said, hint = f"There is no JSON that can be read: {error.details['reason']}", None
    elif error.details:
        said, hint = error.message.replace("The answer is JSON but not valid", "The JSON does not fit the schema"), None
    else:
        said, hint = "There is no text", "Give a file, or text on standard input."
    return type(error)(said, where=error.where, hint=hint, details=error.details)


def _fix_lines(source: str, how: _How) -> None:
    """Bad lines are told and left out, and the rest goes on."""
    from slipform.errors import SlipformError

    bad = count = 0
    for number, line in read_lines(source):
        count += 1
        if how.explain:
            say(f"Line {number}:", bold=True)
        try:
            fixed = _fixed(decoded(line, f"{name_of(source)}:{number}").rstrip("\r\n"), how)
        except SlipformError as error:
            bad += 1
            say(f"slipform: line {number}: {error}", fg="red")
            continue
        write(fixed)
    if bad:
        say(f"slipform: {bad} of {count} lines could not be fixed and are left out.", fg="red")
        raise typer.Exit(Exit.INVALID)
