"""Documents are read as text with places, within limits, or refused with the reason."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipform.errors import ConfigError
from slipform.files import read_file
from slipform.files.pdf import read_pdf, render_pages
from tests.files.make_files import (
    CORPUS,
    DEJAVU,
    Drawn,
    encrypted,
    letter,
    prose_columns,
    right_to_left,
    scan,
    statement,
    with_sideways_text,
    workbook,
)


def test_the_words_of_a_pdf_are_on_their_page_and_in_their_box() -> None:
    data, drawn = statement(pages=6, rows=40)
    assert misplaced(data, drawn) == []


def misplaced(data: bytes, drawn: Sequence[Drawn]) -> list[Drawn]:
    """Return the texts that are not on their page and in their box."""
    document = read_pdf(data)
    wrong: list[Drawn] = []
    for each in drawn:
        start = document.text.index(each.text)
        boxes = document.boxes(start, start + len(each.text))
        is_right = (
            len(boxes) == 1
            and document.page_at(start) == boxes[0].page == each.page
            and abs(boxes[0].x0 - each.x0) < 2
            and abs(boxes[0].x1 - each.x1) < 2
            and boxes[0].y0 <= each.baseline + 3 <= boxes[0].y1
        )
        if not is_right:
            wrong.append(each)
    return wrong


@pytest.mark.parametrize("name", CORPUS)
def test_texts_of_other_layouts_are_in_their_boxes(name: str) -> None:
    data, drawn = CORPUS[name]()
    assert len(set(drawn)) == len(drawn) > 100
    assert misplaced(data, drawn) == []


def test_prose_in_two_columns_is_read_column_by_column() -> None:
    data, drawn = prose_columns(pages=1)
    lines = [line.strip() for line in read_pdf(data).text.splitlines() if line.strip()]
    assert lines == [each.text for each in drawn]


def test_text_at_the_side_of_a_page_does_not_interrupt_its_lines() -> None:
    data = with_sideways_text()
    assert read_pdf(data).text.splitlines() == ["First line", "Second line", "", "Printed at the side"]


@pytest.mark.skipif(not DEJAVU.exists(), reason="needs a font with Arabic letters")
def test_words_from_right_to_left_are_in_the_order_of_reading() -> None:
    assert read_pdf(right_to_left()).text == "محمد كريم"


def test_columns_of_a_pdf_are_kept_apart_by_blanks() -> None:
    data, _ = statement(pages=1, rows=3)
    lines = read_pdf(data).text.splitlines()
    assert [line.split("  ", 1)[0] for line in lines if line.startswith("2026")] == [
        "2026-01-01",
        "2026-01-02",
        "2026-01-03",
    ]
    assert "Müller & Co. no. 00002  " in lines[-1]


def test_a_stretch_over_two_lines_has_a_box_for_each() -> None:
    data, _ = statement(pages=1, rows=2)
    document = read_pdf(data)
    first, second = document.boxes(document.text.index("2026-01-01"), len(document.text))
    assert first.y0 > second.y1


def test_a_page_without_text_and_with_an_image_is_a_scan() -> None:
    document = read_pdf(scan())
    assert document.scanned_pages == (1,)
    assert document.text == ""


def test_a_page_is_rendered_as_a_png_image() -> None:
    image = render_pages(statement(pages=1, rows=1)[0], [1])[1]
    assert image.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(image[16:20]) == round(595.28 * 100 / 72 + 0.5)


def test_a_word_document_has_its_headings_and_tables(tmp_path: Path) -> None:
    letter(tmp_path / "order.docx")
    text = read_file(tmp_path / "order.docx").text
    assert text.split("\n") == [
        "# Order 17",
        "From Ada Lovelace, 36.",
        "",
        "item\tprice",
        "tea\t4.50",
        "",
        "Thank you.",
    ]


def test_a_spreadsheet_has_the_names_of_its_cells(tmp_path: Path) -> None:
    workbook(tmp_path / "people.xlsx", [["name", "age"], ["Ada", 36], ["Bob", 41.5]])
    document = read_file(tmp_path / "people.xlsx")
    assert document.text == "# People\nname\tage\nAda\t36\nBob\t41.5\n\n"
    assert document.cell_at(document.text.index("41.5")) == "People!B3"


def test_a_web_page_is_read_without_scripts_and_navigation(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<html><head><title>T</title></head><body><nav>Home</nav><script>x()</script><h2>Prices</h2>"
        "<p>Tea &amp; <b>milk</b>\n today</p><ul><li>one<li>two</ul>"
        "<table><tr><th>item</th><th>price</th></tr><tr><td>tea</td><td>4.50</td></tr></table></body></html>"
    )
    text = read_file(tmp_path / "page.html").text
    assert text.split("\n") == ["## Prices", "", "Tea & milk today", "", "- one", "- two", "item\tprice", "tea\t4.50"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pdf", encrypted(), r"encrypted.*a\.pdf"),
        ("a.pdf", b"%PDF-1.7 and nothing", r"damaged.*a\.pdf"),
        ("a.pdf", b"", r"damaged"),
        ("a.docx", b"PK\x03\x04 and nothing", "damaged"),
        ("a.xlsx", b"words", "not a spreadsheet"),
        ("a.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("a.bin", b"a\0b", "not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        read_file(tmp_path / name)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"0" * 60_000_000)
    with pytest.raises(ConfigError, match="60,000,000 bytes"):
        read_file(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*none\.pdf"):
        read_file(tmp_path / "none.pdf")
