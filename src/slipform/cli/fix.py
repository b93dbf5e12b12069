"""`slipform fix`, and the diff of a repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from slipform.cli.terminal import (
    STDIN,
    Exit,
    coloured,
    decoded,
    json_text,
    name_of,
    paint,
    read_lines,
    read_text,
    say,
    write,
)
from slipform.named_schemas import HELP, schema_named

if TYPE_CHECKING:
    from slipform.enforce.loading import LoadReport
    from slipform.errors import EnforcementError
    from slipform.schema import Schema
    from slipform.text.loads import Loaded
    from slipform.text.repair.tokens import RepairEdit

_CONTEXT: Final = 24
"""How many characters of the text are shown on each side of an edit."""


def explained(text: str, report: Loaded | LoadReport) -> Iterator[str]:
    """The lines of the explanation: where the JSON stood, each edit in its place, patches, warnings."""
    from slipform.cli.terminal import patch_line, usage_line

    if text[: report.start].strip() or text[report.end :].strip():
        before, after = report.start, len(text) - report.end
        where = _place(text, report.start)
        yield f"The JSON stands at {where}; {before} characters before and {after} after it are left out."
    for group in _groups(report.edits):
        yield f"{_place(text, group[0].position)}: {usage_line(_name(edit) for edit in group)}"
        yield from (f"    {line}" for line in _diff(text, group).split("\n"))
    patched = getattr(report, "patched", None)
    for edit in patched.edits if patched else ():
        yield f"patched: {patch_line(edit)}"
    for warning in report.warnings:
        yield f"Note, at {_place(text, warning.position)}: {warning.message}"
    if not (report.edits or patched or report.warnings):
        yield "Nothing had to be changed."


def _groups(edits: Sequence[RepairEdit]) -> Iterator[list[RepairEdit]]:
    """Edits so near to each other that they are shown together."""
    group: list[RepairEdit] = []
    for edit in edits:
        if group and edit.position - (group[-1].position + len(group[-1].before)) > _CONTEXT:
            yield group
            group = []
        group.append(edit)
    if group:
        yield group


def _diff(text: str, group: Sequence[RepairEdit]) -> str:
    """A stretch of the text with what was taken out and what was put in."""
    out, put = _marks()
    start, end = group[0].position, group[-1].position + len(group[-1].before)
    first, last = max(start - _CONTEXT, 0), min(end + _CONTEXT, len(text))
    pieces = ["…" if first else "", text[first:start]]
    done = start
    for edit in group:
        pieces += [text[done : edit.position], out(edit.before), put(edit.after)]
        done = edit.position + len(edit.before)
    return "".join([*pieces, text[end:last], "…" if last < len(text) else ""])


def _marks() -> tuple[Callable[[str], str], Callable[[str], str]]:
    if coloured(err=True):
        return (
            lambda gone: gone and paint(gone, fg="red", strike=True),
            lambda new: new and paint(new, fg="green", bold=True),
        )
    return lambda gone: gone and f"[-{gone}-]", lambda new: new and f"{{+{new}+}}"


def _name(edit: RepairEdit) -> str:
    name = edit.kind.replace("_", " ")
    return name if edit.certain else f"{name} (a guess)"


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - (text.rfind(chr(10), 0, position) + 1) + 1}"


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
        for line in explained(text, found):
            say(line)
    return json_text(found.value, how.indent)


def _found(text: str, how: _How) -> Loaded | LoadReport:
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
