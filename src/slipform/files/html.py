"""Read the text of an HTML page: headings, paragraphs, lists and tables, without scripts and navigation."""

from __future__ import annotations

import re
from typing import Any, Final

from slipform.files.document import Document

_DROPPED: Final = ["script", "style", "noscript", "template", "nav", "svg", "iframe", "head"]
_HEADINGS: Final = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "h5": "##### ", "h6": "###### "}
_BLOCKS: Final = frozenset(
    {
        "address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt", "fieldset",
        "figcaption", "figure", "footer", "form", "header", "hr", "li", "main", "ol", "p", "pre", "section", "summary",
        "table", "tbody", "tfoot", "thead", "tr", "ul", *_HEADINGS,
    }
)  # fmt: skip
_BLANKS: Final = re.compile(r"[ \t\r\n\f\v]+")
_MANY_LINES: Final = re.compile(r"\n{3,}")


def read_html(data: bytes) -> Document:
    """Return the text of a page: headings as `#` lines, tables as lines with tabs between the cells."""
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(data)
    for node in page.css(", ".join(_DROPPED)):
        node.decompose()
    writer = _TextWriter()
    if page.body is not None:
        writer.walk(page.body)
    return Document(_MANY_LINES.sub("\n\n", "".join(writer.parts)).strip("\n"))


class _TextWriter:
    """Writes the text of a page: blocks begin a line, blanks are joined."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def walk(self, root: Any) -> None:
        """Write everything below a node, without recursion, because pages may be nested deeply."""
        stack: list[tuple[Any, bool]] = [(root, True)]
        while stack:
            node, opens = stack.pop()
            if not opens:
                self._close(node.tag)
                continue
            if node.tag == "-text":
                self._write_text(node)
                continue
            self._open(node)
            stack.append((node, False))
            stack.extend((child, True) for child in reversed(list(node.iter(include_text=True))))

    def _open(self, node: Any) -> None:
        tag = node.tag
        if tag == "br":
            self._end_line()
        elif tag in ("td", "th"):
            if node.prev is not None and self.parts and not self.parts[-1].endswith("\n"):
                self.parts.append("\t")
        elif tag in _BLOCKS:
            self._end_line()
            self.parts.append(_HEADINGS.get(tag, "- " if tag == "li" else ""))

    def _close(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_line()
        if tag in ("p", "table") or tag in _HEADINGS:
            self.parts.append("\n")

    def _write_text(self, node: Any) -> None:
        text = _BLANKS.sub(" ", node.text_content or "")
        last = next((part for part in reversed(self.parts) if part), "\n")
        if last[-1] in " \n\t":
            text = text.lstrip(" ")
        self.parts.append(text)

    def _end_line(self) -> None:
        while self.parts and not self.parts[-1].rstrip(" "):
            self.parts.pop()
        if self.parts:
            self.parts[-1] = self.parts[-1].rstrip(" ")
            if not self.parts[-1].endswith("\n"):
                self.parts.append("\n")
