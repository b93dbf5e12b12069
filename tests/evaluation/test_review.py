"""`slipform review`: one page with every row beside its source."""

from __future__ import annotations

import base64
import html
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import slipform
from slipform import Evidence
from slipform.addons.records.tables import record_rows
from slipform.config import read_settings
from slipform.files.tables import write_table
from slipform.runner import batch
from slipform.testing import FakeModel
from tests.cli.conftest import Cli, cli, folder
from tests.conftest import PERSON
from tests.files.make_files import grey_image, scan, statement
from tests.records.test_extract_files import PAYMENT
from tests.records.test_extract_files import client as payment_reader
from tests.runner.conftest import fake_router

__all__ = ["cli", "folder"]


def held(page: Path, name: str) -> str:
    """The data inside an element of a page."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def rows_in(page: Path, name: str = "rows") -> list[dict[str, Any]]:
    return [json.loads(line) for line in held(page, name).splitlines()]


def test_the_input_of_a_batch_is_found_by_its_journal(cli: Cli, folder: Path) -> None:
    (folder / "in.jsonl").write_text('{"text": "Ada is 36."}\n{"text": "Nobody."}\n{"text": "Bob is 41."}\n')
    answers = FakeModel(['{"name": "Ada", "age": 36}', "no", '{"name": "Bob", "age": 4}'])
    batch(
        "in.jsonl", out="out.jsonl", schema=PERSON, prompt="Who? {text}", concurrency=1,
        router=fake_router(answers), settings=read_settings("retries: {attempts: 0}"),
    )  # fmt: skip
    done = cli("review", "out.jsonl")
    assert (done.code, done.out) == (0, "out.html\n")
    first, last = rows_in(folder / "out.html")
    assert first["source"] == "Who? Ada is 36."
    assert first["evidence"]["/age"]["spans"][0]["start"] == 12
    assert (last["value"]["name"], last["evidence"]["/age"]["spans"]) == ("Bob", [])
    index = json.loads(held(folder / "out.html", "index"))
    assert [(row, title, lowest, absent, values) for row, _key, title, lowest, absent, values in index] == [
        (1, "Ada · 36", None, 0, 2),
        (3, "Bob · 4", None, 1, 2),
    ]
    assert cli("review", "out.jsonl", "-o", "only.html", "--source", "text", "--limit", "1").code == 0
    [row] = rows_in(folder / "only.html")
    assert (row["source"], row["input"]) == ("Ada is 36.", "Who? Ada is 36.")


def test_rows_with_a_source_need_nothing_else_and_keep_their_evidence(cli: Cli, folder: Path) -> None:
    evidence = {"/n": {"spans": [{"start": 0, "end": 1, "how": "fuzzy"}], "confidence": 0.25}}
    row = {"source": "1", "value": {"n": 12345678901234567890123}, "evidence": evidence}
    (folder / "own.jsonl").write_text(json.dumps(row) + "\n")
    assert cli("review", "own.jsonl").code == 0
    assert "12345678901234567890123" in held(folder / "own.html", "rows")
    assert rows_in(folder / "own.html")[0]["evidence"] == evidence
    assert json.loads(held(folder / "own.html", "index"))[0][3] == 0.25


def test_parquet_is_read_like_jsonl(cli: Cli, folder: Path) -> None:
    (folder / "in.jsonl").write_text('{"text": "Ada is 36."}\n')
    open_shape = {"type": "object", "properties": {"age": {"type": "integer"}}}
    for name, shape in (("closed", PERSON), ("open", open_shape)):
        model = FakeModel(['{"name": "Ada", "age": 36}'])
        batch("in.jsonl", out=f"{name}.parquet", schema=shape, evidence=Evidence(), router=fake_router(model))
        assert cli("review", f"{name}.parquet").code == 0
        [row] = rows_in(folder / f"{name}.html")
        assert row["value"]["age"] == 36
        assert row["evidence"]["/age"]["spans"]


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([{"row": 1, "value": 1}], (), "No journal"),
        ([{"row": 1}], (), "Row 1 has no `value`"),
        ([{"row": 2, "value": 1}], ("--data", "in.jsonl"), "Row 2 of the results is not in the input"),
        ([{"row": 1, "value": 1}], ("--data", "in.jsonl"), "No column of the input is known to be the source"),
        ([{"row": 1, "value": 1}], ("--data", "in.jsonl", "--source", "x"), "has no column 'x'"),
    ],
)
def test_what_cannot_be_reviewed_is_told_and_no_page_is_left(
    cli: Cli, folder: Path, rows: list[dict[str, Any]], words: tuple[str, ...], said: str
) -> None:
    (folder / "in.jsonl").write_text('{"letter": "a"}\n')
    (folder / "out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = cli("review", "out.jsonl", *words)
    assert done.code == 3
    assert said in done.err
    assert not (folder / "out.html").exists()


def test_the_policy_of_the_page_lets_its_own_script_and_style_in_and_nothing_else(cli: Cli, folder: Path) -> None:
    hostile = "</script><script>alert(1)</script><!--"
    (folder / "bad.jsonl").write_text(json.dumps({"key": hostile, "source": hostile, "value": {hostile: hostile}}))
    assert cli("review", "bad.jsonl").code == 0
    page = (folder / "bad.html").read_text()
    assert page.count("alert(1)") > 0
    assert "<script>alert" not in page
    assert "<!--" not in page
    assert rows_in(folder / "bad.html")[0]["value"] == {hostile: hostile}
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])  # type: ignore[index]
    script = re.search(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    for name, found in (("script-src", script), ("style-src", style)):
        assert found is not None
        digest = base64.b64encode(sha256(found[1].encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert script is not None
    assert "innerHTML" not in script[1]


def test_the_table_of_an_extraction_is_reviewed_with_pages_and_boxes(cli: Cli, folder: Path) -> None:
    file = folder / "statement.pdf"
    file.write_bytes(statement(pages=2, rows=3)[0])
    extraction = slipform.extract_full({"type": "array", "items": PAYMENT}, file, client=payment_reader())
    write_table(folder / "rows.csv", list(record_rows("statement.pdf", extraction, evidence=True)))
    (folder / "payment.json").write_text(json.dumps(PAYMENT))
    cli("review", "rows.csv", "--schema", "payment.json")
    page = folder / "rows.html"
    rows = rows_in(page)
    pages = rows_in(page, "pages")
    assert [row["value"] for row in rows] == [record.value for record in extraction.records]
    assert [row["pages"] for row in rows] == [[0], [0], [0], [1], [1], [1]]
    assert [each["name"] for each in pages] == ["statement.pdf, page 1", "statement.pdf, page 2"]
    assert all(base64.b64decode(each["png"]).startswith(b"\x89PNG") for each in pages)
    wrong = []
    for row, record in zip(rows, extraction.records, strict=True):
        for pointer, field in row["evidence"].items():
            (span,) = field["spans"]
            (box,) = row["boxes"][pointer]
            (around,) = record.boxes
            is_inside = around.x0 <= box[1] < box[3] <= around.x1 and around.y0 <= box[2] < box[4] <= around.y1
            if row["source"][span["start"] : span["end"]] != row["value"][pointer[1:]] or not is_inside:
                wrong.append((row["row"], pointer))
    assert wrong == []
    cli("review", "rows.csv", "--no-images", "-o", "plain.html")
    assert rows_in(folder / "plain.html", "pages") == []
    assert page.stat().st_size > 1.5 * (folder / "plain.html").stat().st_size


def test_a_record_of_a_scanned_page_is_shown_beside_the_page(cli: Cli, folder: Path) -> None:
    (folder / "scan.pdf").write_bytes(scan())
    grey_image().save(folder / "receipt.png")
    place = {"page": 1, "_start": 0, "_end": 0, "payee": "Ada"}
    write_table(folder / "rows.csv", [{"file": "scan.pdf", **place}, {"file": "receipt.png", **place}])
    assert cli("review", "rows.csv").code == 0
    rows = rows_in(folder / "rows.html")
    assert [row["value"] for row in rows] == [{"payee": "Ada"}] * 2
    assert [row.get("pages") for row in rows] == [[0], None]
    assert [each["name"] for each in rows_in(folder / "rows.html", "pages")] == ["scan.pdf, page 1"]


def test_a_file_that_is_gone_is_named(cli: Cli, folder: Path) -> None:
    write_table(folder / "rows.csv", [{"file": "gone.pdf", "page": 1, "name": "Ada", "_start": 0, "_end": 3}])
    done = cli("review", "rows.csv")
    assert done.code == 3
    assert "gone.pdf of row 1 is not here" in done.err
