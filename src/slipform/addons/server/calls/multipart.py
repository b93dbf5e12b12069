"""Parse forms (`multipart/form-data`) piece by piece, and encode them again from the parsed parts.

A vendor must not read a form differently from how it was checked here. So a form is refused unless every parser finds
the same parts in it: its boundary occurs only in delimiters, nothing precedes the first or follows the last, and each
header of a part has one spelling. Most forms are also rewritten from their parts; only files that are forwarded while
they arrive are not. The forwarded `content-type` is always written from the boundary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from slipform.addons.server.calls.parsed_body import checked_body, write_body
from slipform.addons.server.calls.references import find_references
from slipform.errors import RequestError
from slipform.text.strict import parse

_MAX_HEADERS: Final = 8 * 1024
_MAX_PARTS: Final = 256
_MEDIA_TYPE: Final = re.compile(rb"multipart/form-data(.*)", re.IGNORECASE | re.DOTALL)
_PARAMETER: Final = re.compile(
    rb"[ \t]*;[ \t]*([!#-'*+.0-9A-Z^-z|~-]+)=(?:\"([^\"\\\x00-\x1f\x7f]*)\"|([!#-'*+.0-9A-Z^-z|~-]+))"
)
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=?-]{1,70}")
_TOKEN: Final = re.compile(rb"[0-9A-Za-z_.-]+")
_HEADER: Final = re.compile(rb"([0-9A-Za-z-]+):[ \t]*([^\x00-\x1f\x7f]*)")
_DISPOSITION: Final = re.compile(rb"form-data(.*)", re.IGNORECASE)
_NAME: Final = re.compile(r"[0-9A-Za-z_.-]+(?:\[[0-9A-Za-z_.-]*\])*")
_TEXT_TYPE: Final = re.compile(rb"[\w.+-]+/[\w.+-]+(?:[ \t]*;[ \t]*charset=\"?(?:utf-8|us-ascii)\"?)?", re.IGNORECASE)
_ENCODINGS: Final = frozenset({b"7bit", b"8bit", b"binary"})
_DESCRIBING_HEADERS: Final = frozenset({b"content-disposition", b"content-type"})
_PART_HEADERS: Final = _DESCRIBING_HEADERS | {b"content-transfer-encoding", b"content-length"}
_NAME_STEPS: Final = re.compile(r"[0-9A-Za-z_-]+")
_PLAIN_TEXTS: Final = frozenset({"prompt"})
"""Fields whose text is for the model, even if it looks like JSON."""


class PartHead(NamedTuple):
    """The beginning of a part: the field's name, whether it is a file, and the header lines that describe it."""

    name: str
    is_file: bool
    lines: bytes
    length: int | None = None
    """The value of its `content-length`."""


class PartEnd(NamedTuple):
    """The end of a part."""


class FormError(RequestError):
    """A form that cannot be read in one way only."""

    code = "invalid_form"


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary that a `content-type` names; raises `FormError` without one, or with anything beside it.

    Spring's client sends `charset=UTF-8` there, the charset in which every text is read.

    >>> boundary_of(b'multipart/form-data; boundary="abc"')
    b'abc'
    """
    form = _MEDIA_TYPE.fullmatch(content_type.strip(b" \t"))
    if form is None:
        raise FormError("Expected a form", where="content-type", hint="Send multipart/form-data with its boundary.")
    parameters = _parameters(form[1]) or {}
    if parameters.get(b"charset", b"").lower() == b"utf-8":
        del parameters[b"charset"]
    boundary = parameters.get(b"boundary", b"")
    if set(parameters) != {b"boundary"} or _BOUNDARY.fullmatch(boundary) is None:
        raise FormError(
            "The `content-type` of the form could be read in two ways",
            where="content-type",
            hint="Send `multipart/form-data; boundary=`, then 1 to 70 letters and digits, and nothing else.",
        )
    return boundary


def form_type(boundary: bytes) -> str:
    """Return the `content-type` of a form.

    >>> form_type(b"abc"), form_type(b"a:b")
    ('multipart/form-data; boundary=abc', 'multipart/form-data; boundary="a:b"')
    """
    text = boundary.decode("ascii")
    if _TOKEN.fullmatch(boundary) is None:
        text = f'"{text}"'
    return f"multipart/form-data; boundary={text}"


def _parameters(text: bytes) -> dict[bytes, bytes] | None:
    """Return the parameters of a header's value; None where they could be read in two ways."""
    parameters: dict[bytes, bytes] = {}
    at = 0
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None or match[1] in parameters:
            return None
        parameters[match[1]] = match[2] if match[2] is not None else match[3]
        at = match.end()
    return parameters


class FormReader:
    r"""Reads one form: `feed` returns the parts that began, their bytes and their ends, in order.

    >>> reader = FormReader(b"b")
    >>> reader.feed(b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n')[0].name
    'model'
    >>> reader.done
    True
    """

    __slots__ = ("_boundary", "_buffer", "_content", "_declared", "_in_part", "_parts", "_state", "done")

    def __init__(self, boundary: bytes) -> None:
        self._boundary = b"--" + boundary
        self._buffer = b"\r\n"  # so that the first delimiter is like the others
        self._state = "preamble"
        self._parts = 0
        self._in_part = False
        self._content = 0
        """Bytes of the part so far."""
        self._declared: int | None = None
        self.done = False
        """Whether the last delimiter has been read."""

    def feed(self, data: bytes) -> list[PartHead | bytes | PartEnd]:
        """Read the next bytes; raises `FormError` for what is not a form, or could be read as another one."""
        events: list[PartHead | bytes | PartEnd] = []
        self._buffer += data
        while not self.done and self._step(events):
            pass
        if self.done:
            self._check_end()
        return events

    def _step(self, events: list[PartHead | bytes | PartEnd]) -> bool:
        """Read the next delimiter, head or content; return False when more bytes are needed."""
        if self._state == "headers":
            return self._read_head(events)
        if self._state == "delimiter":
            return self._after_delimiter()
        buffer = self._buffer
        boundary = self._boundary
        at = buffer.find(boundary)
        if at >= 0 and buffer[max(0, at - 2) : at] != b"\r\n":
            raise FormError("The boundary of the form occurs inside a part", hint="Choose a longer boundary.")
        # The line end before a boundary is part of the delimiter, so that much stays in the buffer.
        content = buffer[: at - 2] if at >= 0 else buffer[: max(0, len(buffer) - len(boundary) - 1)]
        if content:
            self._add_content(content, events)
        if at < 0:
            self._buffer = buffer[len(content) :]
            return False
        if self._in_part:
            self._end_part(events)
        self._buffer = buffer[at + len(boundary) :]
        self._state = "delimiter"
        return True

    def _add_content(self, content: bytes, events: list[PartHead | bytes | PartEnd]) -> None:
        if not self._in_part:
            raise FormError("Unexpected data before the first part of the form")
        self._content += len(content)
        events.append(content)

    def _end_part(self, events: list[PartHead | bytes | PartEnd]) -> None:
        if self._declared is not None and self._declared != self._content:
            raise FormError("A part of the form is longer or shorter than its `content-length`")
        events.append(PartEnd())
        self._in_part = False

    def _after_delimiter(self) -> bool:
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        if buffer.startswith(b"--"):
            self.done = True
            self._buffer = buffer[2:]
            return True
        if not buffer.startswith(b"\r\n"):
            raise FormError("A delimiter of the form is followed by something else")
        self._buffer = buffer[2:]
        self._state = "headers"
        return True

    def _check_end(self) -> None:
        if self._buffer not in (b"", b"\r", b"\r\n"):
            raise FormError("Unexpected data after the end of the form")

    def _read_head(self, events: list[PartHead | bytes | PartEnd]) -> bool:
        """Read the head of the next part; return False while it is not complete."""
        at = self._buffer.find(b"\r\n\r\n")
        if at > _MAX_HEADERS or (at < 0 and len(self._buffer) > _MAX_HEADERS):
            raise FormError("The headers of a part are too long")
        if at < 0:
            return False
        rest = self._buffer[at + 4 :]
        if len(rest) < len(self._boundary):
            return False
        if rest.startswith(self._boundary):  # parsers disagree on which of the two the line end belongs to
            raise FormError("A part of the form has no content, not even an empty one")
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise FormError(f"The form has more than {_MAX_PARTS} parts")
        head = _head(self._buffer[:at])
        events.append(head)
        self._content = 0
        self._declared = head.length
        self._buffer = rest
        self._state = "part"
        self._in_part = True
        return True


def _head(lines: bytes) -> PartHead:
    """Return the head of a part; raises `FormError` for one that two readers could read differently."""
    headers: dict[bytes, bytes] = {}
    described: list[bytes] = []
    for line in lines.split(b"\r\n"):
        match = _HEADER.fullmatch(line)
        name = b"" if match is None else match[1].lower()
        if match is None or name not in _PART_HEADERS or name in headers:
            raise FormError(
                "A part of the form has a header twice, or one that cannot be read",
                hint="Send `content-disposition` and `content-type` only.",
            )
        headers[name] = match[2].rstrip(b" \t")
        if name in _DESCRIBING_HEADERS:
            described.append(line)
    disposition = _DISPOSITION.fullmatch(headers.get(b"content-disposition", b""))
    if disposition is None:
        raise FormError("A part of the form has no `content-disposition`")
    parameters = _parameters(disposition[1])
    if parameters is None or not parameters.keys() <= {b"name", b"filename"}:
        raise FormError(
            "The `content-disposition` of a part cannot be read in one way only",
            hint="Send `name` and `filename` once each, in quotes, without quotes and backslashes in them.",
        )
    name_text = parameters.get(b"name", b"").decode("latin-1")
    if _NAME.fullmatch(name_text) is None or name_text == "_charset_":
        raise FormError("A part of the form has no plain name")
    is_file = b"filename" in parameters
    _check_content(headers, is_file=is_file)
    length = headers.get(b"content-length")
    return PartHead(name_text, is_file, b"\r\n".join(described), None if length is None else int(length))


def _check_content(headers: Mapping[bytes, bytes], *, is_file: bool) -> None:
    """Raise for headers that make a parser decode a part, or look for parts inside it."""
    kind = headers.get(b"content-type", b"text/plain")
    if kind.lower().startswith(b"multipart/") or (not is_file and _TEXT_TYPE.fullmatch(kind) is None):
        raise FormError("The `content-type` of a part cannot be read", hint="Send text fields as UTF-8.")
    if headers.get(b"content-transfer-encoding", b"binary").lower() not in _ENCODINGS:
        raise FormError("A part of the form is encoded", hint="Send it unencoded, without `content-transfer-encoding`.")
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18:
        raise FormError("The `content-length` of a part is not a number")


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
            head = event
            pieces = []
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
    matches = [part for part in parts if part.head.name == name]
    if not matches:
        return None
    if len(matches) > 1 or matches[0].head.is_file:
        raise FormError(f"The field {name!r} must be there once, as text", where=name)
    try:
        return matches[0].content.decode()
    except UnicodeDecodeError:
        raise FormError(f"The field {name!r} is not UTF-8", where=name) from None


def with_text(parts: Sequence[FormPart], name: str, text: str) -> list[FormPart]:
    """Return the parts with this text as a field, in the place of the one that was there.

    >>> [part.content for part in with_text([], "model", "m")]
    [b'm']
    """
    field = FormPart(PartHead(name, False, b'content-disposition: form-data; name="%b"' % name.encode()), text.encode())
    replaced = [field if part.head.name == name else part for part in parts]
    return replaced if field in replaced else [field, *replaced]


def name_steps(name: str) -> list[str]:
    """Return the names of objects in a field's name, down to its own.

    >>> name_steps("tool_resources[code_interpreter][file_ids][]")
    ['tool_resources', 'code_interpreter', 'file_ids']
    """
    return _NAME_STEPS.findall(name) or [name]


class TextField:
    """A text field, and the data that a server may parse it into.

    `a[b]` is a field of an object, and a text that is a JSON object or array is that value. Raises `FormError` for a
    field that is not UTF-8, and `RequestError` for one that is nested too deeply.

    >>> TextField("tools[code]", b'{"file_ids": ["file-1"]}').data
    {'tools': {'code': {'file_ids': ['file-1']}}}
    """

    def __init__(self, name: str, content: bytes) -> None:
        *outer, self._last = name_steps(name)
        self._innermost = {self._last: _field_value(name, content)}
        self.data: dict[str, Any] = self._innermost
        for step in reversed(outer):
            self.data = {step: self.data}
        self.references = find_references(self.data)
        self.content = self._encoded(content)
        """The field's bytes, encoded so that every parser reads the same as `data`."""

    def _encoded(self, content: bytes) -> bytes:
        value = self._innermost[self._last]
        if isinstance(value, str):
            return value.encode()
        is_changed = any(each.marked for each in self.references)
        if is_changed:
            return write_body(value)
        return checked_body(content, value)


def _field_value(name: str, content: bytes) -> Any:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise FormError(f"The field {name!r} is not UTF-8", where=name) from None
    if name not in _PLAIN_TEXTS and text.lstrip()[:1] in ("{", "["):
        try:
            return parse(text)
        except ValueError:
            return text
    return text
