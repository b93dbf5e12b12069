"""Make documents with known places: PDF, DOCX and spreadsheets."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docx
import xlsxwriter
from reportlab.lib.pagesizes import A4
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas

FONT = "Helvetica"
SIZE = 10


@dataclass(frozen=True)
class Drawn:
    """A text that was drawn on a page, counted from 1, with its baseline and horizontal extent in points."""

    text: str
    page: int
    x0: float
    x1: float
    baseline: float


def statement(pages: int, rows: int) -> tuple[bytes, list[Drawn]]:
    """Return a bank statement as a PDF, and every amount and name that it shows."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=A4, invariant=True)
    drawn: list[Drawn] = []
    for page in range(1, pages + 1):
        canvas.setFont(FONT, SIZE)
        canvas.drawString(50, 800, f"Statement of account, page {page} of {pages}")
        for row in range(rows):
            number = (page - 1) * rows + row
            baseline = 770.0 - 16 * row
            canvas.drawString(50, baseline, f"2026-01-{number % 28 + 1:02d}")
            drawn.append(_draw(canvas, page, 130, baseline, f"Müller & Co. no. {number:05d}"))
            drawn.append(_draw(canvas, page, 420, baseline, f"-{number * 37 + 1:,}.{number % 100:02d}"))
        canvas.showPage()
    canvas.save()
    return buffer.getvalue(), drawn


def _draw(canvas: Canvas, page: int, x: float, baseline: float, text: str) -> Drawn:
    canvas.drawString(x, baseline, text)
    return Drawn(text, page, x, x + stringWidth(text, FONT, SIZE), baseline)


def scan() -> bytes:
    """Return a PDF whose only page is an image."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=A4, invariant=True)
    canvas.drawInlineImage(grey_image(), 50, 50, 400, 600)
    canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def grey_image(grey: int = 128) -> Any:
    """Return an image without anything on it."""
    from PIL import Image

    return Image.new("L", (40, 60), grey)


def encrypted() -> bytes:
    """Return a PDF that cannot be opened without its password."""
    from reportlab.lib.pdfencrypt import StandardEncryption

    buffer = io.BytesIO()
    canvas = Canvas(buffer, encrypt=StandardEncryption("secret", canPrint=0))
    canvas.drawString(50, 800, "hidden")
    canvas.save()
    return buffer.getvalue()


def letter(path: Path) -> None:
    """Write a Word document with a heading, a paragraph and a table."""
    document = docx.Document()
    document.add_heading("Order 17", level=1)
    document.add_paragraph("From Ada Lovelace, 36.")
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip((*table.rows[0].cells, *table.rows[1].cells), ("item", "price", "tea", "4.50"), strict=True):
        cell.text = text
    document.add_paragraph("Thank you.")
    document.save(str(path))


def workbook(path: Path, rows: list[list[Any]], sheet: str = "People") -> None:
    """Write a spreadsheet with one sheet."""
    with xlsxwriter.Workbook(path) as book:
        for number, row in enumerate(rows):
            book.get_worksheet_by_name(sheet) or book.add_worksheet(sheet)
            book.get_worksheet_by_name(sheet).write_row(number, 0, row)
