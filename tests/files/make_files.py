"""Make documents with known places: PDF, DOCX and spreadsheets."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docx
import xlsxwriter
from reportlab.lib.pagesizes import A4
from reportlab.pdfbase.pdfmetrics import registerFont, stringWidth
from reportlab.pdfbase.ttfonts import TTFont
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


class _Drawing:
    """A PDF that is drawn text by text."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._canvas = Canvas(self._buffer, pagesize=A4, invariant=True)
        self.page = 1
        self.drawn: list[Drawn] = []

    def text(self, x: float, baseline: float, text: str, font: tuple[str, float], *, to_right: bool = False) -> None:
        width = stringWidth(text, *font)
        x0 = x - width if to_right else x
        self._canvas.setFont(*font)
        self._canvas.drawString(x0, baseline, text)
        self.drawn.append(Drawn(text, self.page, x0, x0 + width, baseline))

    def turn(self, angle: int, origin: tuple[float, float]) -> None:
        """Turn the page by an angle when it is shown, and what is drawn on it against that."""
        self._canvas.setPageRotation(angle)
        self._canvas.translate(*origin)
        self._canvas.rotate(angle)

    def next_page(self) -> None:
        self._canvas.showPage()
        self.page += 1

    def finish(self) -> tuple[bytes, list[Drawn]]:
        self._canvas.save()
        return self._buffer.getvalue(), self.drawn


def two_columns(pages: int = 5) -> tuple[bytes, list[Drawn]]:
    """Return pages with two columns of lines."""
    drawing = _Drawing()
    for page in range(pages):
        for column in (50, 310):
            for row in range(45):
                drawing.text(column, 790 - 16 * row, f"alpha bravo {page}-{column}-{row:02} charlie", ("Helvetica", 10))
        drawing.next_page()
    return drawing.finish()


def invoice(pages: int = 5) -> tuple[bytes, list[Drawn]]:
    """Return a heading and a table with numbers that end at the same place on each page."""
    drawing = _Drawing()
    for page in range(pages):
        drawing.text(200, 800, f"INVOICE No. {page:04}", ("Times-Bold", 18))
        for row in range(30):
            number = 30 * page + row
            baseline = 760 - 20 * row
            drawing.text(50, baseline, f"{number:05} hinges", ("Times-Roman", 9))
            drawing.text(450, baseline, f"{number * 1.37 + 1000:,.2f} EUR", ("Times-Roman", 9), to_right=True)
            drawing.text(540, baseline, f"{number * 4.11 + 10000:,.2f}", ("Times-Bold", 9), to_right=True)
        drawing.next_page()
    return drawing.finish()


def small_print(pages: int = 2) -> tuple[bytes, list[Drawn]]:
    """Return four columns of small type that nearly touch."""
    drawing = _Drawing()
    for page in range(pages):
        for row in range(110):
            for column in range(4):
                drawing.text(40 + column * 130, 810 - 7 * row, f"kilo-{page}{row:03}{column}", ("Courier", 5.5))
        drawing.next_page()
    return drawing.finish()


def titles(pages: int = 5) -> tuple[bytes, list[Drawn]]:
    """Return lines of two sizes with letters beyond ASCII."""
    drawing = _Drawing()
    for page in range(pages):
        for row in range(20):
            baseline = 780 - 36 * row
            drawing.text(50, baseline, f"Title {page}-{row:02} end", ("Helvetica-Bold", 14))
            drawing.text(70, baseline - 14, f"Zürich, Øster — {page}-{row:02}/é", ("Helvetica", 8))
        drawing.next_page()
    return drawing.finish()


def turned(pages: int = 4) -> tuple[bytes, list[Drawn]]:
    """Return pages that are stored sideways or upside down, and shown upright."""
    drawing = _Drawing()
    width, height = A4
    for page in range(pages):
        drawing.turn((90, 180, 270, 0)[page % 4], [(height, 0), A4, (0, width), (0, 0)][page % 4])
        for row in range(40):
            drawing.text(60, 800 - 18 * row, f"Turned {page}-{row:02} at {row * 7} pieces", ("Helvetica", 10))
        drawing.next_page()
    return drawing.finish()


def prose_columns(pages: int = 3) -> tuple[bytes, list[Drawn]]:
    """Return pages of prose in two columns below a title."""
    drawing = _Drawing()
    for page in range(pages):
        drawing.text(60, 815, f"A title over both columns of the text on page {page:02}", ("Times-Bold", 14))
        for column in (50, 310):
            for row in range(45):
                text = f"words of line {page}{column}{row:02} that runs on to" + (" here", " us", "")[row % 3]
                drawing.text(column, 780 - 16 * row, text, ("Helvetica", 10))
        drawing.next_page()
    return drawing.finish()


def with_sideways_text() -> bytes:
    """Return a page with two lines, and a text along its edge."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=A4, invariant=True)
    canvas.setFont(FONT, SIZE)
    canvas.drawString(50, 700, "First line")
    canvas.drawString(50, 688, "Second line")
    canvas.rotate(90)
    canvas.drawString(640, -20, "Printed at the side")
    canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def right_to_left() -> bytes:
    """Return a page with two Arabic names, drawn as they are seen."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=A4, invariant=True)
    registerFont(TTFont("DejaVu", str(DEJAVU)))
    canvas.setFont("DejaVu", 12)
    canvas.drawString(400, 700, "محمد كريم"[::-1])
    canvas.showPage()
    canvas.save()
    return buffer.getvalue()


DEJAVU = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
CORPUS = {
    "two columns": two_columns,
    "invoice": invoice,
    "small print": small_print,
    "titles": titles,
    "turned": turned,
    "prose columns": prose_columns,
}


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
