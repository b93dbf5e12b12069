"""`slipform check`: whether documents are valid, and each place where they are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipform.cli.exits import Exit
from slipform.cli.inputs import decoded, name_of, read_lines, read_text
from slipform.cli.output import json_text, say, write
from slipform.named_schemas import HELP, schema_named

if TYPE_CHECKING:
    from slipform.schema import Schema


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
