"""A Markdown extension that puts every table into a box of its own that scrolls, and gives rows of settings an anchor.

A page must never be wider than its window. The box is reachable by keyboard (`tabindex`), and named for screen readers
by the heading above it. A row whose first cell begins with a piece of code, such as `server.port`, can be linked to as
`#server.port`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}


class _TableBoxes(Treeprocessor):
    def run(self, root: ET.Element) -> None:
        self._taken: set[str] = set()
        self._heading = "Table"
        self._walk(root)

    def _walk(self, parent: ET.Element) -> None:
        for index, child in enumerate(list(parent)):
            if child.tag in _HEADINGS:
                self._heading = "".join(child.itertext()).strip() or self._heading
            elif child.tag == "table":
                parent[index] = self._boxed(child)
            else:
                self._walk(child)

    def _boxed(self, table: ET.Element) -> ET.Element:
        box = ET.Element(
            "div", {"class": "table-box", "tabindex": "0", "role": "region", "aria-label": f"Table: {self._heading}"}
        )
        box.tail, table.tail = table.tail, None
        box.append(table)
        for row in table.iter("tr"):
            name = _only_code(row[0]) if len(row) and row[0].tag == "td" else ""
            if name and name not in self._taken:
                self._taken.add(name)
                row.set("id", name)
        return box


def _only_code(cell: ET.Element) -> str:
    """Return the text of a cell that begins with a piece of code usable as an anchor, or nothing."""
    if (cell.text or "").strip() or not len(cell) or cell[0].tag != "code":
        return ""
    name = "".join(cell[0].itertext()).strip()
    return name if name and not any(mark.isspace() or mark in "<>\"'#" for mark in name) else ""


class TableBoxes(Extension):
    """Registers the boxes after inline code was read, so that cells have their final elements."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 — the name is Python-Markdown's
        """Add the tree processor."""
        md.treeprocessors.register(_TableBoxes(md), "table-boxes", 5)


def makeExtension(**settings: Any) -> TableBoxes:  # noqa: N802 — the name is Python-Markdown's
    """Return the extension, as Python-Markdown asks for it by module name."""
    return TableBoxes(**settings)
