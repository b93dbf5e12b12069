"""Read forms (`multipart/form-data`) piece by piece, and write them again from what was read.

A form that goes on to a vendor is written anew from its parts, so that the vendor cannot read it otherwise than it was
checked here; only files that are passed on while they arrive go as they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from slipform.errors import RequestError

_MAX_HEADERS: Final = 8 * 1024
_MAX_PARTS: Final = 256
_BOUNDARY: Final = re.compile(rb'multipart/form-data\s*;.*?boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"content-disposition\s*:\s*form-data\s*((?:;[^\r\n]*)?)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb';\s*([\w*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))\s*')


class PartHead(NamedTuple):
    """The beginning of a part: the field's name, whether it is a file, and its header lines as they came."""

    name: str
    is_file: bool
    lines: bytes


class PartEnd(NamedTuple):
    """The end of a part."""


class FormError(RequestError):
    """A form that cannot be read in one way only."""

    code = "invalid_form"


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary that a `content-type` names; raises `FormError` without one.

    >>> boundary_of(b"multipart/form-data; boundary=abc")
    b'abc'
    """
    found = _BOUNDARY.match(content_type)
    if found is None:
        raise FormError("Expected a form", where="content-type", hint="Send multipart/form-data with its boundary.")
    return found[1] or found[2]


class FormReader:
    r"""Reads one form: `feed` returns the parts that began, their bytes and their ends, in order.

    >>> reader = FormReader(b"b")
    >>> reader.feed(b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n')[0].name
    'model'
    >>> reader.done
    True
    """

    __slots__ = ("_buffer", "_delimiter", "_in_part", "_parts", "_state", "done")

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # so that the first delimiter is like the others
        self._state = "preamble"
        self._parts = 0
        self._in_part = False
        self.done = False
        """Whether the last delimiter has been read."""

    def feed(self, data: bytes) -> list[PartHead | bytes | PartEnd]:
        """Read the next bytes; raises `FormError` for what is no form."""
        events: list[PartHead | bytes | PartEnd] = []
        self._buffer += data
        while not self.done and self._step(events):
            pass
        return events

    def _step(self, events: list[PartHead | bytes | PartEnd]) -> bool:
        """Read up to the next thing that is whole; return False when more bytes are needed."""
        if self._state == "headers":
            return self._read_head(events)
        if self._state == "delimiter":
            return self._after_delimiter()
        buffer, delimiter = self._buffer, self._delimiter
        at = buffer.find(delimiter)
        keep = len(delimiter) - 1
        content = buffer[:at] if at >= 0 else buffer[: max(0, len(buffer) - keep)]
        if content and self._in_part:
            events.append(content)
        if at < 0:
            self._buffer = buffer[len(content) :]
            return False
        if self._in_part:
            events.append(PartEnd())
            self._in_part = False
        self._buffer, self._state = buffer[at + len(delimiter) :], "delimiter"
        return True

    def _after_delimiter(self) -> bool:
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        if buffer.startswith(b"--"):
            self.done = True
            self._buffer = b""
            return True
        if not buffer.startswith(b"\r\n"):
            raise FormError("A delimiter of the form is followed by something else")
        self._buffer, self._state = buffer[2:], "headers"
        return True

    def _read_head(self, events: list[PartHead | bytes | PartEnd]) -> bool:
        at = self._buffer.find(b"\r\n\r\n")
        if at > _MAX_HEADERS or (at < 0 and len(self._buffer) > _MAX_HEADERS):
            raise FormError("The headers of a part are too long")
        if at < 0:
            return False
        rest = self._buffer[at + 4 :]
        if len(rest) < len(self._delimiter):
            return False
        if rest.startswith(self._delimiter[2:]):  # readers do not agree on whose line end the one before it is
            raise FormError("A part of the form has no content, not even an empty one")
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise FormError(f"The form has more than {_MAX_PARTS} parts")
        events.append(_head(self._buffer[:at]))
        self._buffer, self._state, self._in_part = rest, "part", True
        return True


def _head(lines: bytes) -> PartHead:
    found = [match for line in lines.split(b"\r\n") if (match := _DISPOSITION.fullmatch(line)) is not None]
    if len(found) != 1:
        raise FormError("A part of the form has no `content-disposition`, or several")
    parameters: dict[bytes, bytes] = {}
    at, text = 0, found[0][1]
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None or match[1].lower() in parameters:
            raise FormError("The `content-disposition` of a part cannot be read")
        parameters[match[1].lower()] = match[2] if match[2] is not None else match[3]
        at = match.end()
    name = parameters.get(b"name")
    if name is None or b"\\" in name:
        raise FormError("A part of the form has no plain name")
    is_file = b"filename" in parameters or b"filename*" in parameters
    return PartHead(name.decode("utf-8", "replace"), is_file, lines)


class FormPart(NamedTuple):
    """A whole part."""

    head: PartHead
    content: bytes


def read_form(body: bytes, boundary: bytes) -> list[FormPart]:
    """Return the parts of a whole form; raises `FormError` when it is cut short.

    >>> [part.content for part in read_form(write_form([], b"b"), b"b")]
    []
    """
    reader = FormReader(boundary)
    parts: list[FormPart] = []
    head: PartHead | None = None
    pieces: list[bytes] = []
    for event in reader.feed(body):
        if isinstance(event, PartHead):
            head, pieces = event, []
        elif isinstance(event, bytes):
            pieces.append(event)
        elif head is not None:
            parts.append(FormPart(head, pieces[0] if len(pieces) == 1 else b"".join(pieces)))
    if not reader.done:
        raise FormError("The form is cut short")
    return parts


def form_pieces(parts: Iterable[FormPart], boundary: bytes) -> Iterator[bytes]:
    """Yield the bytes of a form."""
    for part in parts:
        yield b"--%b\r\n%b\r\n\r\n" % (boundary, part.head.lines)
        yield part.content
        yield b"\r\n"
    yield b"--%b--\r\n" % boundary


def write_form(parts: Iterable[FormPart], boundary: bytes) -> bytes:
    """Return the bytes of a form."""
    return b"".join(form_pieces(parts, boundary))


def field_text(parts: Iterable[FormPart], name: str) -> str | None:
    """Return the text of a field; None without it. Raises `FormError` when it is there twice, or is a file."""
    found = [part for part in parts if part.head.name == name]
    if not found:
        return None
    if len(found) > 1 or found[0].head.is_file:
        raise FormError(f"The field {name!r} must be there once, as text", where=name)
    try:
        return found[0].content.decode()
    except UnicodeDecodeError:
        raise FormError(f"The field {name!r} is not UTF-8", where=name) from None
