"""Read the input of commands, print their output and errors, and map errors to exit codes."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, TypeAlias

import typer

from slipform.errors import (
    ConfigError,
    EnforcementError,
    RefusalError,
    RequestError,
    SchemaError,
    SlipformError,
    TruncatedError,
    UpstreamError,
)
from slipform.prices import amount_text

if TYPE_CHECKING:
    from slipform.enforce import Report
    from slipform.enforce.coercion import PatchEdit
    from slipform.enforce.plan import Attempt
    from slipform.ir.evidence import FieldEvidence


class Exit(IntEnum):
    """The exit codes; `docs/cli.md` has the same table.

    >>> Exit.INVALID.value
    5
    """

    OK = 0
    """Success."""
    OTHER = 1
    """Any other error; `doctor` found a fault; `import` left something out."""
    USAGE = 2
    """Wrong options or arguments."""
    MISTAKE = 3
    """The config, a schema, a model's name or a file cannot be used."""
    UPSTREAM = 4
    """The model's side failed: network, key, rate limit, time limit, embedded engine."""
    INVALID = 5
    """The answer or the document is invalid and cannot be repaired; some rows or files have no result."""
    DECLINED = 6
    """The model refused, or its answer was cut off by a limit."""
    STOPPED = 130
    """Ctrl-C."""
    CLOSED_PIPE = 141
    """The reader of the output has gone, as after `| head`."""


_BY_ERROR: Final[tuple[tuple[type[SlipformError], Exit], ...]] = (
    (RefusalError, Exit.DECLINED),
    (TruncatedError, Exit.DECLINED),
    (EnforcementError, Exit.INVALID),
    (UpstreamError, Exit.UPSTREAM),
    (ConfigError, Exit.MISTAKE),
    (RequestError, Exit.MISTAKE),
    (SchemaError, Exit.MISTAKE),
)


def exit_for(error: SlipformError) -> Exit:
    """Return the exit code of a command that failed with this error.

    >>> exit_for(ConfigError("No such setting")).name
    'MISTAKE'
    """
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.OTHER)


_MAX_VIOLATIONS: Final = 20
_RECURSION_LIMIT: Final = 10_000
"""More levels than any value that can be parsed: those have at most a thousand."""


def print_data(text: str, *, end: str = "\n") -> None:
    """Print data on standard output, as UTF-8 whatever the locale, and flush."""
    with _until_closed_pipe():
        typer.echo((text + end).encode("utf-8", "replace"), nl=False)
        sys.stdout.flush()


def print_message(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> None:
    """Print a message on standard error; in colour where that is a terminal."""
    with _until_closed_pipe():
        typer.echo(style_text(text, fg=fg, bold=bold, dim=dim), err=True, color=has_colour(err=True))


def style_text(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False, strike: bool = False) -> str:
    """Return the text with terminal codes around it; `print_message` removes them outside a terminal."""
    if fg is None and not (bold or dim or strike):
        return text
    return typer.style(text, fg=fg, bold=bold or None, dim=dim or None, strikethrough=strike or None)


def has_colour(*, err: bool = False) -> bool:
    """Return whether the stream is a terminal with colours; see https://no-color.org."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON: indented for a terminal, compact for a pipe, unless `indent` is set (0 is compact).

    >>> json_text({"a": [1]}, 0)
    '{"a":[1]}'
    """
    import json

    import orjson

    spaces = indent
    if spaces is None:
        spaces = 2 if sys.stdout.isatty() else 0
    if spaces in (0, 2):
        try:
            return orjson.dumps(value, option=orjson.OPT_INDENT_2 if spaces else None).decode()
        except TypeError:  # a big integer, a lone surrogate, or great depth
            pass
    separators = None if spaces else (",", ":")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        text = json.dumps(value, ensure_ascii=False, indent=spaces or None, separators=separators)
        # A lone surrogate has no UTF-8 encoding and is written as an escape.
        if _is_utf8(text):
            return text
        return json.dumps(value, indent=spaces or None, separators=separators)
    finally:
        sys.setrecursionlimit(limit)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def print_failure(error: SlipformError) -> None:
    """Print an error as one paragraph, with the violations below it when there are several."""
    print_message(f"slipform: {error}", fg="red")
    violations = error.details.get("validation_errors") or error.details.get("violations") or ()
    if len(violations) < 2:
        return
    for violation in violations[:_MAX_VIOLATIONS]:
        print_message(f"  {violation['path']}: {violation['message']}")
    if len(violations) > _MAX_VIOLATIONS:
        print_message(f"  … and {len(violations) - _MAX_VIOLATIONS} more")


@contextmanager
def _until_closed_pipe() -> Iterator[None]:
    """Exit without a message when the reader of the output has closed it."""
    try:
        yield
    except BrokenPipeError:
        silence_closed_pipe()
        raise typer.Exit(Exit.CLOSED_PIPE) from None


def silence_closed_pipe() -> None:
    """Prevent Python from reporting output at exit that could not be written."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(devnull, stream.fileno())
    os.close(devnull)


STDIN = "-"
ConfigOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="The settings file; slipform.yaml in this folder by default.")
]
RegistryOption: TypeAlias = Annotated[Path | None, typer.Option(help="The settings file, for registered schemas.")]
IndentOption: TypeAlias = Annotated[
    int | None, typer.Option(min=0, max=16, help="Spaces of indentation; 0 is compact.")
]
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read_text(source: str) -> str:
    """Return the text of a file, or of standard input for `-`."""
    with open_input(source) as stream:
        return decode_input(stream.read(), source_name(source))


def read_lines(source: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers, each as soon as it arrives."""
    with open_input(source) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, line


@contextmanager
def open_input(source: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input for `-`; raises `RequestError` with its name."""
    try:
        if source == STDIN:
            if sys.stdin.isatty():
                print_message("Reading from the terminal; Ctrl-D ends the text.", dim=True)
            yield sys.stdin.buffer
        else:
            with Path(source).open("rb") as stream:
                yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RequestError(f"The file cannot be read: {error.strerror}", where=source_name(source)) from error


def decode_input(data: bytes, where: str) -> str:
    r"""Decode the text without a byte order mark; raises `RequestError` with the place for invalid UTF-8.

    >>> decode_input(b"caf\xc3\xa9", "menu.txt")
    'café'
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith(_UTF16_MARKS):
            message = "It is UTF-16 text, not UTF-8"
            hint = "Convert it, for example with `iconv -f UTF-16 -t UTF-8`."
        elif b"\0" in data:
            message = "It is a binary file, not text"
            hint = "Give a file of UTF-8 text."
        else:
            line = data.count(b"\n", 0, error.start) + 1
            message = f"It is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}, on line {line}"
            hint = "Convert it to UTF-8."
        raise RequestError(message, where=where, hint=hint) from error


def source_name(source: str) -> str:
    """Return the source for a message."""
    return "standard input" if source == STDIN else source


def report_lines(report: Report) -> Iterator[str]:
    """Yield the report's lines: each attempt with its violations and edits, then warnings, then the cost."""
    for number, attempt in enumerate(report.attempts, 1):
        yield _attempt_line(number, attempt)
        yield from (f"   {line}" for line in _edit_lines(attempt))
    for warning in report.warnings:
        yield f"Warning: {warning.message}"
    yield _cost_line(report)


def _attempt_line(number: int, attempt: Attempt) -> str:
    seconds = "" if attempt.seconds is None else f" in {attempt.seconds:.2f} s"
    verdict = "valid" if attempt.outcome == "ok" else attempt.outcome.replace("_", " ")
    return f"{number}. {attempt.model} ({attempt.strategy.value}){seconds}: {verdict}"


def _edit_lines(attempt: Attempt) -> Iterator[str]:
    if attempt.repairs:
        yield f"repaired: {counted_words(edit.kind.replace('_', ' ') for edit in attempt.repairs)}"
    for edit in attempt.patches:
        yield f"patched: {patch_line(edit)}"
    for violation in attempt.violations:
        yield f"not valid: {violation.json_path}: {violation.message}"


def counted_words(words: Iterable[str]) -> str:
    """Return a list of words in which repeated ones have a count.

    >>> counted_words(["quote", "comma", "quote"])
    'quote ×2, comma'
    """
    return ", ".join(word if count == 1 else f"{word} ×{count}" for word, count in Counter(words).items())


def patch_line(edit: PatchEdit) -> str:
    """Describe one patch.

    >>> from slipform.enforce.coercion import PatchEdit
    >>> patch_line(PatchEdit("replace", ("age",), "a number in a string", value=36))
    '$.age → 36 (a number in a string)'
    """
    from slipform.schema.violations import excerpt_of, json_path

    where = json_path(edit.steps)
    descriptions: dict[str, Any] = {
        "remove": lambda: f"{where} dropped",
        "move": lambda: f"{json_path(edit.source)} renamed to {where}",
        "add": lambda: f"{where} ← {excerpt_of(edit.value)}",
        "replace": lambda: f"{where} → {excerpt_of(edit.value)}",
    }
    return f"{descriptions[edit.op]()} ({edit.reason})"


def _cost_line(report: Report) -> str:
    usage = report.usage
    calls = f"{len(report.attempts)} call{'' if len(report.attempts) == 1 else 's'}"
    tokens = [f"{count:,} tokens {what}" for count, what in ((usage.input, "in"), (usage.output, "out")) if count]
    cost = [] if report.cost is None else [f"cost {amount_text(report.cost)}"]
    return ", ".join([calls, *tokens, *cost])


_AROUND = 24
"""Characters of the source shown on each side of a span."""


def evidence_lines(fields: Mapping[str, FieldEvidence], text: str) -> Iterator[str]:
    """Yield a line for each value: its place, the kind of match, the words around it, and the confidence."""
    for pointer, field in fields.items():
        if not field.spans:
            finding = "not found" if field.searched else "not looked up: there are too many values"
            yield f"{pointer or '/'}: {finding}"
        for span in field.spans:
            before = text[max(0, span.start - _AROUND) : span.start].replace("\n", " ")
            after = text[span.end : span.end + _AROUND].replace("\n", " ")
            shown = text[span.start : span.end].replace("\n", " ")
            shown = style_text(shown, bold=True) if has_colour() else shown
            how = f"{span.how}, ambiguous" if span.ambiguous else span.how
            yield f"{pointer or '/'}: {span.start}-{span.end} {how}: {before}[{shown}]{after}".rstrip()
        remarks = [] if field.confidence is None else [f"score {field.confidence:.2f} by {field.signal}"]
        remarks += [f"no score: {field.reason}"] if field.reason else []
        remarks += [f"{field.votes} of {field.samples} further answers agree"] if field.samples else []
        if remarks or field.touched:
            yield f"    {'; '.join([*remarks, *field.touched])}"
