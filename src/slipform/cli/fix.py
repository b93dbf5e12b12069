"""Find and repair the JSON of a text: `slipform fix`, with a diff of each repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from slipform.cli.terminal import (
    STDIN,
    Exit,
    IndentOption,
    RegistryOption,
    decode_input,
    has_colour,
    json_text,
    print_data,
    print_message,
    read_lines,
    read_text,
    source_name,
    style_text,
)
from slipform.named_schemas import HELP, schema_for_command

if TYPE_CHECKING:
    from slipform.enforce.loading import LoadReport
    from slipform.errors import EnforcementError
    from slipform.schema import Schema
    from slipform.text.loads import Loaded
    from slipform.text.repair.tokens import RepairEdit

_CONTEXT: Final = 24
"""Characters of the text shown on each side of an edit."""


def explain_lines(text: str, report: Loaded | LoadReport) -> Iterator[str]:
    """Yield the lines of the explanation: the place of the JSON, each edit in its context, patches, warnings."""
    from slipform.cli.terminal import counted_words, patch_line

    if text[: report.start].strip() or text[report.end :].strip():
        before = report.start
        after = len(text) - report.end
        where = _position_text(text, report.start)
        yield f"The JSON stands at {where}; {before} characters before and {after} after it are left out."
    for group in _groups(report.edits):
        yield f"{_position_text(text, group[0].position)}: {counted_words(_name(edit) for edit in group)}"
        yield from (f"    {line}" for line in _diff(text, group).split("\n"))
    patched = getattr(report, "patched", None)
    for edit in patched.edits if patched else ():
        yield f"patched: {patch_line(edit)}"
    for warning in report.warnings:
        yield f"Note, at {_position_text(text, warning.position)}: {warning.message}"
    if not (report.edits or patched or report.warnings):
        yield "Nothing had to be changed."


def _groups(edits: Sequence[RepairEdit]) -> Iterator[list[RepairEdit]]:
    """Yield groups of edits near enough to each other to be shown together."""
    group: list[RepairEdit] = []
    for edit in edits:
        if group and edit.position - (group[-1].position + len(group[-1].before)) > _CONTEXT:
            yield group
            group = []
        group.append(edit)
    if group:
        yield group


def _diff(text: str, group: Sequence[RepairEdit]) -> str:
    """Return the text around a group of edits, with removed and added text marked."""
    removed, added = _markers()
    start = group[0].position
    end = group[-1].position + len(group[-1].before)
    first = max(start - _CONTEXT, 0)
    last = min(end + _CONTEXT, len(text))
    pieces = ["…" if first else "", text[first:start]]
    end_of_last = start
    for edit in group:
        pieces += [text[end_of_last : edit.position], removed(edit.before), added(edit.after)]
        end_of_last = edit.position + len(edit.before)
    return "".join([*pieces, text[end:last], "…" if last < len(text) else ""])


def _markers() -> tuple[Callable[[str], str], Callable[[str], str]]:
    if has_colour(err=True):
        return (
            lambda text: text and style_text(text, fg="red", strike=True),
            lambda text: text and style_text(text, fg="green", bold=True),
        )
    return lambda text: text and f"[-{text}-]", lambda text: text and f"{{+{text}+}}"


def _name(edit: RepairEdit) -> str:
    name = edit.kind.replace("_", " ")
    return name if edit.certain else f"{name} (a guess)"


def _position_text(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - (text.rfind(chr(10), 0, position) + 1) + 1}"


@dataclass(frozen=True, slots=True)
class _FixOptions:
    schema: Schema[Any] | None
    explain: bool
    indent: int | None
    nan: Literal["refuse", "null"]


def fix(
    file: Annotated[str, typer.Argument(help="The text; standard input by default.")] = STDIN,
    schema: Annotated[
        str | None, typer.Option("--schema", "-s", help=f"{HELP} The JSON must validate against it.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", "-x", help="Show every edit, on standard error.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Repair each line on its own, as it arrives.")] = False,
    nan_null: Annotated[
        bool, typer.Option("--nan-null", help="Read NaN and Infinity as null instead of rejecting them.")
    ] = False,
    indent: IndentOption = None,
    config: RegistryOption = None,
) -> None:
    """Find the JSON in a text, repair it and print it; with a schema also validate and patch it, or say why not."""
    shape = None if schema is None else schema_for_command(schema, config)
    options = _FixOptions(shape, explain, 0 if jsonl else indent, "null" if nan_null else "refuse")
    if jsonl:
        _fix_lines(file, options)
    else:
        print_data(_fix_text(read_text(file), options))


def _fix_text(text: str, options: _FixOptions) -> str:
    from slipform.errors import EnforcementError

    try:
        loaded = _load(text, options)
    except EnforcementError as error:
        raise _reword(error) from None
    if options.explain:
        for line in explain_lines(text, loaded):
            print_message(line)
    return json_text(loaded.value, options.indent)


def _load(text: str, options: _FixOptions) -> Loaded | LoadReport:
    """Return the repaired JSON; the enforcement is only imported when there is a schema."""
    if options.schema is None:
        from slipform.text.loads import load

        return load(text, nan=options.nan)
    from slipform.enforce import loads_report

    return loads_report(text, options.schema, nan=options.nan)


def _reword(error: EnforcementError) -> EnforcementError:
    """Return the error without its mention of a model's answer."""
    hint = None
    if "reason" in error.details:
        message = f"There is no JSON that can be read: {error.details['reason']}"
    elif error.details:
        message = error.message.replace("The answer is JSON but not valid", "The JSON does not fit the schema")
    else:
        message = "The input has no text"
        hint = "Give a file, or text on standard input."
    return type(error)(message, where=error.where, hint=hint, details=error.details)


def _fix_lines(source: str, options: _FixOptions) -> None:
    """Fix each line; invalid ones are reported and left out."""
    from slipform.errors import SlipformError

    invalid = count = 0
    for number, line in read_lines(source):
        count += 1
        if options.explain:
            print_message(f"Line {number}:", bold=True)
        try:
            fixed = _fix_text(decode_input(line, f"{source_name(source)}:{number}").rstrip("\r\n"), options)
        except SlipformError as error:
            invalid += 1
            print_message(f"slipform: line {number}: {error}", fg="red")
            continue
        print_data(fixed)
    if invalid:
        print_message(f"slipform: {invalid} of {count} lines could not be fixed and are left out.", fg="red")
        raise typer.Exit(Exit.INVALID)
