"""What commands write: data to standard output and nothing else there, words to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from slipform.cli.exits import Exit

if TYPE_CHECKING:
    from slipform.errors import SlipformError

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
