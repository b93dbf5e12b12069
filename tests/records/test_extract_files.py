"""Records of a file have their page, and of a PDF their boxes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import slipform
from slipform.ir import ModelRequest
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.files.make_files import statement, workbook

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
