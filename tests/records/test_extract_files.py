"""Records of a file have their page, and of a PDF their boxes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas

import slipform
from slipform.ir import Media, ModelRequest, ModelResponse
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Api, FakeModel, FakeVendor, Received, Step, rejected
from tests.files.make_files import grey_image, scan, statement, workbook

PAYMENT = {
    "type": "object",
    "properties": {"date": {"type": "string"}, "payee": {"type": "string"}, "amount": {"type": "string"}},
    "required": ["date", "payee", "amount"],
}
ROW = re.compile(r"(2026-01-\d\d) +(Müller & Co\. no\. \d+) +(-[\d,.]+)")


def read_payments(request: ModelRequest) -> str:
    rows = ROW.findall(request.messages[-1].text)
    return json.dumps({"records": [dict(zip(("date", "payee", "amount"), row, strict=True)) for row in rows]})


def client() -> slipform.Client:
    return slipform.Client("fake/m", router=Router({"fake": FakeModel(read_payments)}))


def test_every_row_of_a_pdf_has_its_page_and_its_box(tmp_path: Path) -> None:
    data, drawn = statement(pages=4, rows=25)
    path = tmp_path / "statement.pdf"
    path.write_bytes(data)
    result = slipform.extract_full({"type": "array", "items": PAYMENT}, path, client=client())
    assert result.complete
    payees = [each for each in drawn if each.text.startswith("Müller")]
    assert [record.value["payee"] for record in result.records] == [each.text for each in payees]
    wrong = []
    for record, payee in zip(result.records, payees, strict=True):
        (box,) = record.boxes
        is_right = box.page == record.page == payee.page and box.y0 <= payee.baseline + 3 <= box.y1
        if not is_right or not box.x0 < payee.x0 < payee.x1 < box.x1:
            wrong.append((record, payee))
    assert wrong == []


def test_every_row_of_a_spreadsheet_is_a_record(tmp_path: Path) -> None:
    rows = [[f"2026-01-{day:02d}", f"Müller & Co. no. {day}", f"-{day}.50"] for day in range(1, 29)]
    workbook(tmp_path / "payments.xlsx", [["date", "payee", "amount"], *rows])

    def read_cells(request: ModelRequest) -> str:
        cells = re.findall(r"(2026-01-\d\d)\t([^\t\n]+)\t([^\t\n]+)", request.messages[-1].text)
        return json.dumps({"records": [dict(zip(("date", "payee", "amount"), row, strict=True)) for row in cells]})

    reader = slipform.Client("fake/m", router=Router({"fake": FakeModel(read_cells)}))
    result = slipform.extract_full({"type": "array", "items": PAYMENT}, tmp_path / "payments.xlsx", client=reader)
    assert [[*record.value.values()] for record in result.records] == rows
    assert result.complete


def partly_scanned(pages: int = 4) -> bytes:
    """Return a PDF of which every second page is an image."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=A4, invariant=True)
    for page in range(1, pages + 1):
        if page % 2:
            canvas.drawString(50, 800, f"2026-01-{page:02d}   Müller & Co. no. {page}   -{page}.50")
        else:
            canvas.drawInlineImage(grey_image(page * 40), 50, 50, 400, 600)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def payment(number: int) -> dict[str, str]:
    return {"date": f"2026-01-{number:02d}", "payee": f"Müller & Co. no. {number}", "amount": f"-{number}.50"}


def images_in(received: Received) -> int:
    """Return how many images a request to one of the vendors has."""
    return received.body.count(b"iVBORw0KGgo")


@pytest.mark.parametrize("api", ["openai", "openai-responses", "anthropic", "gemini", "bedrock", "ollama"])
def test_scanned_pages_are_read_as_images_by_vendors_that_take_them(api: Api) -> None:
    def step(received: Received) -> str:
        numbers = [2] if images_in(received) else [1, 3]
        return json.dumps({"records": [payment(number) for number in numbers]})

    with (
        FakeVendor(step, api=api) as vendor,
        HttpProvider(api, name="v", base_url=vendor.base_url, api_key="k") as provider,
    ):
        client = slipform.Client(router=Router({"v": provider}, default="v/m"))
        result = slipform.extract_full({"type": "array", "items": PAYMENT}, partly_scanned(3), client=client)
    assert result.value == [payment(1), payment(2), payment(3)]
    assert [record.page for record in result.records] == [1, 2, 3]
    assert [record.grounded for record in result.records] == [True, False, True]
    assert result.failures == ()
    assert sorted(map(images_in, vendor.requests)) == [0, 1]


def test_a_page_that_no_model_can_read_is_a_failure_with_its_number() -> None:
    def step(received: Received) -> Step:
        if images_in(received):
            return rejected("This model does not take images")
        return json.dumps({"records": [payment(1), payment(3)]})

    with (
        FakeVendor(step) as vendor,
        HttpProvider("openai", name="v", base_url=vendor.base_url, api_key="k") as provider,
    ):
        client = slipform.Client(router=Router({"v": provider}, default="v/m"))
        result = slipform.extract_full({"type": "array", "items": PAYMENT}, partly_scanned(), client=client)
    assert result.value == [payment(1), payment(3)]
    assert [failure.page for failure in result.failures] == [2, 4]
    assert "does not take images" in result.failures[0].reason
    assert not result.complete


def test_records_of_a_page_that_do_not_fit_are_named() -> None:
    def read(request: ModelRequest) -> str:
        return json.dumps({"records": [payment(1), {"date": 3}]})

    client = slipform.Client("fake/m", router=Router({"fake": FakeModel(read)}))
    result = slipform.extract_full({"type": "array", "items": PAYMENT}, scan(), client=client)
    assert result.value == [payment(1)]
    assert "1 of its records do not fit the schema" in result.failures[0].reason


def test_an_image_is_a_source_and_its_long_answer_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "receipt.png"
    grey_image(3).save(path)
    seen: list[Any] = []

    def read(request: ModelRequest) -> ModelResponse | str:
        seen.append([part for message in request.messages for part in message.parts if isinstance(part, Media)])
        if len(seen) % 2:
            text = json.dumps({"records": [payment(number) for number in range(1, 9)]})
            return ModelResponse(text=text[:-40], finish="length")
        return json.dumps({"records": [payment(8)]})

    client = slipform.Client("fake/m", router=Router({"fake": FakeModel(read)}))
    for source in (path, path.read_bytes(), slipform.image(path), [path]):
        result = slipform.extract_full({"type": "array", "items": PAYMENT}, source, client=client)
        assert result.value == [payment(number) for number in range(1, 9)]
        assert {record.page for record in result.records} == {1}
    assert [each[0].data for each in seen] == [path.read_bytes()] * len(seen)


def test_a_field_of_a_scanned_letter_is_taken_from_its_pages() -> None:
    shape = {"type": "object", "properties": {"sender": {"type": "string"}, "total": {"type": "number"}}}
    model = FakeModel([json.dumps({"sender": "Ada", "total": 3.5})])
    client = slipform.Client("fake/m", router=Router({"fake": model}))
    assert slipform.extract(shape, scan(), client=client) == {"sender": "Ada", "total": 3.5}


def test_an_extraction_of_images_resumes_from_its_journal(tmp_path: Path) -> None:
    model = FakeModel([json.dumps({"records": [payment(1)]})] * 3)
    client = slipform.Client("fake/m", router=Router({"fake": model}))
    options: Any = {"client": client, "journal": tmp_path / "journal"}
    first = slipform.extract_full({"type": "array", "items": PAYMENT}, scan(), **options)
    again = slipform.extract_full({"type": "array", "items": PAYMENT}, scan(), **options)
    assert again.value == first.value == [payment(1)]
    assert len(model.requests) == 1
