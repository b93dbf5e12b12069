"""What commands read: files and standard input, as UTF-8 text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from slipform.cli.output import say
from slipform.errors import RequestError

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
