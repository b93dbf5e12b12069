"""What commands read, write and exit with."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

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

if TYPE_CHECKING:
    from slipform.enforce import Report
    from slipform.enforce.coercion import PatchEdit
    from slipform.enforce.plan import Attempt


class Exit(IntEnum):
    """The exit codes; `docs/cli.md` has the same table.

    >>> Exit.INVALID.value
    5
    """

    OK = 0
    """All went well."""
    OTHER = 1
    """Something else went wrong; `doctor` found something to mend."""
    USAGE = 2
    """The command was not written as it wants to be."""
    MISTAKE = 3
    """What was given cannot be used: the config, a schema, a model's name, a file."""
    UPSTREAM = 4
    """The model's side failed: network, key, rate limit, time limit, embedded engine."""
    INVALID = 5
    """The answer or the document is not valid and cannot be made so."""
    DECLINED = 6
    """The model refused, or its answer was cut off by a limit."""
    STOPPED = 130
    """Ctrl-C."""
    CLOSED_PIPE = 141
    """Nobody reads the output any more, as after `| head`."""


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
    """The code that a command ends with after this error.

    >>> exit_for(ConfigError("No such setting")).name
    'MISTAKE'
    """
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.OTHER)


_MOST_LISTED: Final = 20
_DEEP: Final = 10_000
"""Enough to write whatever can be read: values are at most a thousand levels deep."""


def write(text: str, *, end: str = "\n") -> None:
    """Data for standard output, as UTF-8 whatever the locale, and at once."""
    with _reader():
        typer.echo((text + end).encode("utf-8", "replace"), nl=False)
        sys.stdout.flush()


def say(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> None:
    """Words for a person, on standard error; in colour where that is a terminal."""
    with _reader():
        typer.echo(paint(text, fg=fg, bold=bold, dim=dim), err=True, color=coloured(err=True))


def paint(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False, strike: bool = False) -> str:
    """The text with terminal codes around it; `say` takes them out again where they are not wanted."""
    if fg is None and not (bold or dim or strike):
        return text
    return typer.style(text, fg=fg, bold=bold or None, dim=dim or None, strikethrough=strike or None)


def coloured(*, err: bool = False) -> bool:
    """Whether there is a terminal that wants colours; see https://no-color.org."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON: indented for a terminal, compact for a pipe, unless `indent` says how (0 is compact).

    >>> json_text({"a": [1]}, 0)
    '{"a":[1]}'
    """
    import json

    import orjson

    wanted = (2 if sys.stdout.isatty() else 0) if indent is None else indent
    if wanted in (0, 2):
        try:
            return orjson.dumps(value, option=orjson.OPT_INDENT_2 if wanted else None).decode()
        except TypeError:  # a big integer, half a character, or great depth
            pass
    separators = None if wanted else (",", ":")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        text = json.dumps(value, ensure_ascii=False, indent=wanted or None, separators=separators)
        # Half a character cannot be written as UTF-8, only as an escape.
        return text if _is_whole(text) else json.dumps(value, indent=wanted or None, separators=separators)
    finally:
        sys.setrecursionlimit(limit)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def complain(error: SlipformError) -> None:
    """An error as one paragraph, and below it each place that is not valid when there are several."""
    say(f"slipform: {error}", fg="red")
    listed = error.details.get("validation_errors") or error.details.get("violations") or ()
    if len(listed) < 2:
        return
    for found in listed[:_MOST_LISTED]:
        say(f"  {found['path']}: {found['message']}")
    if len(listed) > _MOST_LISTED:
        say(f"  … and {len(listed) - _MOST_LISTED} more")


@contextmanager
def _reader() -> Iterator[None]:
    """Leave quietly when whoever read what we write has gone."""
    try:
        yield
    except BrokenPipeError:
        leave_quietly()
        raise typer.Exit(Exit.CLOSED_PIPE) from None


def leave_quietly() -> None:
    """Keep Python from complaining, as it ends, about what could not be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


STDIN = "-"
_WIDE = (b"\xff\xfe", b"\xfe\xff")


def read_text(source: str) -> str:
    """All the text of a file, or of standard input for `-`."""
    with opened(source) as stream:
        return decoded(stream.read(), name_of(source))


def read_lines(source: str) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number, as soon as each is there."""
    with opened(source) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, line


@contextmanager
def opened(source: str) -> Iterator[BinaryIO]:
    """A file, or standard input for `-`, ready to be read; trouble is a `RequestError` that names it."""
    try:
        if source == STDIN:
            if sys.stdin.isatty():
                say("Reading from the terminal; Ctrl-D ends the text.", dim=True)
            yield sys.stdin.buffer
        else:
            with Path(source).open("rb") as stream:
                yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RequestError(f"The file cannot be read: {error.strerror}", where=name_of(source)) from error


def decoded(data: bytes, where: str) -> str:
    r"""The text, without a byte order mark; what is not UTF-8 is a `RequestError` that says where.

    >>> decoded(b"caf\xc3\xa9", "menu.txt")
    'café'
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith(_WIDE):
            said, hint = "It is UTF-16 text, not UTF-8", "Convert it, for example with `iconv -f UTF-16 -t UTF-8`."
        elif b"\0" in data:
            said, hint = "It is a binary file, not text", "Give a file of UTF-8 text."
        else:
            line = data.count(b"\n", 0, error.start) + 1
            said = f"It is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}, on line {line}"
            hint = "Convert it to UTF-8."
        raise RequestError(said, where=where, hint=hint) from error


def name_of(source: str) -> str:
    """The source as a person calls it."""
    return "standard input" if source == STDIN else source


def report_lines(report: Report) -> Iterator[str]:
    """The report's lines: each attempt with its faults and edits, then warnings, then what it cost."""
    for number, attempt in enumerate(report.attempts, 1):
        yield _heading(number, attempt)
        yield from (f"   {line}" for line in _details(attempt))
    for warning in report.warnings:
        yield f"Warning: {warning.message}"
    yield _spent(report)


def _heading(number: int, attempt: Attempt) -> str:
    took = "" if attempt.seconds is None else f" in {attempt.seconds:.2f} s"
    became = "valid" if attempt.outcome == "ok" else attempt.outcome.replace("_", " ")
    return f"{number}. {attempt.model} ({attempt.strategy.value}){took}: {became}"


def _details(attempt: Attempt) -> Iterator[str]:
    if attempt.repairs:
        yield f"repaired: {usage_line(edit.kind.replace('_', ' ') for edit in attempt.repairs)}"
    for edit in attempt.patches:
        yield f"patched: {patch_line(edit)}"
    for violation in attempt.violations:
        yield f"not valid: {violation.json_path}: {violation.message}"


def usage_line(words: Iterable[str]) -> str:
    """Words in a row, those that come again counted.

    >>> usage_line(["quote", "comma", "quote"])
    'quote ×2, comma'
    """
    return ", ".join(word if count == 1 else f"{word} ×{count}" for word, count in Counter(words).items())


def patch_line(edit: PatchEdit) -> str:
    """One patch in words.

    >>> from slipform.enforce.coercion import PatchEdit
    >>> patch_line(PatchEdit("replace", ("age",), "a number in a string", value=36))
    '$.age → 36 (a number in a string)'
    """
    from slipform.schema.violations import json_path, shown

    where = json_path(edit.steps)
    doing: dict[str, Any] = {
        "remove": lambda: f"{where} dropped",
        "move": lambda: f"{json_path(edit.source)} renamed to {where}",
        "add": lambda: f"{where} ← {shown(edit.value)}",
        "replace": lambda: f"{where} → {shown(edit.value)}",
    }
    return f"{doing[edit.op]()} ({edit.reason})"


def _spent(report: Report) -> str:
    usage = report.usage
    calls = f"{len(report.attempts)} call{'' if len(report.attempts) == 1 else 's'}"
    tokens = [f"{count:,} tokens {what}" for count, what in ((usage.input, "in"), (usage.output, "out")) if count]
    cost = [] if report.cost is None else [f"cost {report.cost:.4g}"]
    return ", ".join([calls, *tokens, *cost])
