"""Read the table of `slipform extract` as rows to review, each with its source, its pages and its boxes."""

from __future__ import annotations

import base64
import mimetypes
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slipform.addons.batch.rows import Row
from slipform.addons.evidence.grounding import ground_in
from slipform.addons.evidence.source_index import SourceIndex
from slipform.enforce.loading import loads
from slipform.errors import ConfigError, SlipformError
from slipform.files.document import Document
from slipform.files.reading import read_file, render_pages
from slipform.files.tables import as_json, unflatten
from slipform.text.strict import parse

_AROUND: Final = 600
"""Characters around a record that are shown for a file without pages."""
_DOTS_PER_INCH: Final = 100
_POINTS_PER_INCH: Final = 72


def is_extracted(cells: Row) -> bool:
    """Return whether a row of a table is a record, or a file, of an extraction."""
    return "file" in cells and "value" not in cells


@dataclass
class ExtractedTable:
    """The rows of one table, and their pages."""

    path: Path
    schema: Mapping[str, Any] | None
    """The schema of a record, or of a list of them; without it, cells of CSV files stay text."""
    has_images: bool = True
    _documents: dict[str, Document] = field(default_factory=dict)
    _pages: dict[tuple[str, int], int] = field(default_factory=dict)
    """The index of each page with rows, in the order of the review page's lines."""

    def row(self, number: int, cells: Row) -> Row:
        """Return a row in the format of the review page."""
        name = str(cells["file"])
        document = self._document(name, number)
        value = self._value(cells)
        start = _offset(cells.get("_start"), 0)
        end = _offset(cells.get("_end"), len(document.text))
        first, last = _excerpt(document, start, end)
        fields = ground_in(SourceIndex(document.text[start:end]), value, self._item()).fields()
        evidence = {pointer: each.to_dict() for pointer, each in fields.items()}
        boxes: dict[str, list[list[float]]] = {}
        for pointer, each in evidence.items():
            boxes[pointer] = [
                [self._page(name, box.page), box.x0, box.y0, box.x1, box.y1]
                for span in each["spans"]
                for box in document.boxes(start + span["start"], start + span["end"])
            ]
            for span in each["spans"]:
                span["start"] += start - first
                span["end"] += start - first
        row = {"row": number, "key": _key(cells), "source": document.text[first:last], "value": value}
        row["evidence"] = evidence
        if self.has_images and (document.words or document.scanned_pages):
            row["boxes"] = boxes
            row["pages"] = self._pages_between(name, document, start, end)
        return row

    def page_lines(self) -> Iterator[bytes]:
        """Yield the image of each page with rows, and its size in points."""
        by_file: dict[str, list[int]] = {}
        for name, page in self._pages if self.has_images else ():
            by_file.setdefault(name, []).append(page)
        images = {
            name: render_pages(self._path(name).read_bytes(), pages, _DOTS_PER_INCH) for name, pages in by_file.items()
        }
        for name, page in self._pages if self.has_images else ():
            image = images[name][page]
            width, height = struct.unpack(">II", image[16:24])  # the header of a PNG file begins with its size
            points = _POINTS_PER_INCH / _DOTS_PER_INCH
            data = base64.b64encode(image).decode()
            size = {"width": width * points, "height": height * points}
            yield as_json({"name": f"{name}, page {page}", **size, "png": data})

    def _document(self, name: str, number: int) -> Document:
        if name not in self._documents:
            if not self._path(name).is_file():
                raise ConfigError(
                    f"The file {name} of row {number} is not here",
                    where=str(self.path),
                    hint="Run the command in the folder in which the extraction ran.",
                )
            is_image = (mimetypes.guess_type(name)[0] or "").startswith("image/")
            self._documents[name] = Document("", name) if is_image else read_file(self._path(name))
        return self._documents[name]

    def _path(self, name: str) -> Path:
        path = Path(name)
        return path if path.is_file() else self.path.parent / name

    def _item(self) -> Mapping[str, Any] | None:
        items = None if self.schema is None else self.schema.get("items")
        return items if isinstance(items, Mapping) else self.schema

    def _value(self, cells: Row) -> Any:
        """Return the record of a row: columns such as `buyer.name` as nested objects, typed by the schema."""
        names = [name for name in cells if name not in ("file", "page") and not name.startswith("_")]
        value: Any = unflatten({name: _parsed(cells[name]) for name in names if cells[name] not in (None, "")})
        if set(value) == {"value"}:
            value = value["value"]
        item = self._item()
        if item is None:
            return value
        try:
            return loads(as_json(value).decode(), dict(item))
        except SlipformError:
            return value

    def _page(self, name: str, page: int) -> int:
        return self._pages.setdefault((name, page), len(self._pages))

    def _pages_between(self, name: str, document: Document, start: int, end: int) -> list[int]:
        first = document.page_at(start) or 1
        last = document.page_at(max(start, end - 1)) or first
        return [self._page(name, page) for page in range(first, last + 1)]


def _key(cells: Row) -> str:
    place = cells.get("page")
    return f"{cells['file']}, page {place}" if place not in (None, "") else str(cells["file"])


def _offset(cell: Any, otherwise: int) -> int:
    return otherwise if cell in (None, "") else int(cell)


def _parsed(cell: Any) -> Any:
    """Return the value of a cell that contains JSON."""
    if isinstance(cell, str) and cell.startswith(("{", "[")):
        try:
            return parse(cell)
        except ValueError:
            return cell
    return cell


def _excerpt(document: Document, start: int, end: int) -> tuple[int, int]:
    """Return the context of a record: its pages, or some lines before and after it."""
    if document.page_starts:
        first = document.page_at(start) or 1
        last = document.page_at(max(start, end - 1)) or first
        starts = document.page_starts
        return starts[first - 1], starts[last] if last < len(starts) else len(document.text)
    before = document.text.rfind("\n", 0, max(0, start - _AROUND)) + 1
    after = document.text.find("\n", end + _AROUND)
    return before, after if after >= 0 else len(document.text)
