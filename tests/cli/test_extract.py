"""`slipform extract`: long files in, one table out, and a list of what is missing."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipform.testing import FakeVendor, Received
from tests.cli.conftest import Cli
from tests.records.generate import Document, statement
from tests.runner.conftest import settings_for, vendor_key

Answer = Callable[[Received], str]
__all__ = ["vendor_key"]


def answering(document: Document, skipped: float = 0.0) -> Answer:
    """Return a vendor's answers: the records of the shown text, some left out, the same for the same text."""

    def answer(received: Received) -> str:
        text = received.json()["messages"][-1]["content"]
        chance = random.Random(text)
        return json.dumps({"records": [row for row in document.read(text) if chance.random() >= skipped]})

    return answer


@pytest.fixture
def document() -> Document:
    return statement(150, 4)


def prepare(folder: Path, vendor: FakeVendor, document: Document) -> None:
    (folder / "row.json").write_text(json.dumps(document.item))
    (folder / "statement.txt").write_text(document.text)
    (folder / "slipform.yaml").write_text(settings_for(vendor))


def rows_in(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


JOB = ("extract", "statement.txt", "--schema", "row.json", "--list", "-o", "rows.csv")


@pytest.mark.usefixtures("vendor_key")
def test_every_record_is_a_row_with_its_page_and_place(cli: Cli, folder: Path, document: Document) -> None:
    with FakeVendor(answering(document, skipped=0.1)) as vendor:
        prepare(folder, vendor, document)
        done = cli(*JOB)
    assert done.code == 0, done.err
    rows = rows_in(folder / "rows.csv")
    assert [row["description"] for row in rows] == [row["description"] for row in document.records]
    assert [int(row["_start"]) for row in rows] == [start for start, _ in document.spans]
    assert list(rows[0]) == [
        "file", "page", "date", "description", "reference", "amount", "_start", "_end", "_boxes", "_ungrounded",
        "_doubtful",
    ]  # fmt: skip
    assert (rows[0]["page"], rows[-1]["page"]) == ("1", "4")
    assert "150 records from 1 file" in done.err
    assert not (folder / "rows.csv.gaps.jsonl").exists()


@pytest.mark.usefixtures("vendor_key")
def test_what_is_missing_is_listed_and_exits_with_5(cli: Cli, folder: Path, document: Document) -> None:
    hidden = document.records[70]["description"]

    def answer(received: Received) -> str:
        rows = document.read(received.json()["messages"][-1]["content"])
        return json.dumps({"records": [row for row in rows if row["description"] != hidden]})

    with FakeVendor(answer) as vendor:
        prepare(folder, vendor, document)
        done = cli(*JOB)
    assert done.code == 5
    lines = [json.loads(line) for line in (folder / "rows.csv.gaps.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["gap"]
    assert hidden in lines[0]["text"]
    assert len(rows_in(folder / "rows.csv")) == 149


@pytest.mark.usefixtures("vendor_key")
def test_the_same_command_answers_from_its_journal(cli: Cli, folder: Path, document: Document) -> None:
    with FakeVendor(answering(document, skipped=0.1)) as vendor:
        prepare(folder, vendor, document)
        first = cli(*JOB, "--max-calls", "1")
        assert first.code == 5
        assert "max_calls=1" in first.err
        calls = len(vendor.requests)
        assert calls == 1
        assert cli(*JOB).code == 0
        calls = len(vendor.requests)
        assert cli(*JOB).code == 0
        assert len(vendor.requests) == calls
    assert len(rows_in(folder / "rows.csv")) == 150


@pytest.mark.usefixtures("vendor_key")
def test_a_folder_becomes_one_table_and_a_bad_file_is_listed(cli: Cli, folder: Path, document: Document) -> None:
    with FakeVendor(answering(document)) as vendor:
        prepare(folder, vendor, document)
        (folder / "in").mkdir()
        (folder / "in" / "a.txt").write_text(document.text[: document.spans[20][0]])
        (folder / "in" / "b.txt").write_text(document.text[document.spans[20][0] :])
        (folder / "in" / "c.bin").write_bytes(b"\xff\xfe\x00")
        done = cli("extract", "in", "--schema", "row.json", "--list", "-o", "rows.jsonl", "--no-evidence")
    assert done.code == 5
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows] == ["in/a.txt"] * 20 + ["in/b.txt"] * 130
    assert not any(name.startswith("_") for name in rows[0])
    problem = json.loads((folder / "rows.jsonl.gaps.jsonl").read_text())
    assert (problem["file"], problem["kind"]) == ("in/c.bin", "failure")


@pytest.mark.usefixtures("vendor_key")
def test_an_object_schema_makes_a_row_of_each_file(cli: Cli, folder: Path, document: Document) -> None:
    with FakeVendor(['{"name": "Ada", "age": 36}']) as vendor:
        prepare(folder, vendor, document)
        (folder / "letter.txt").write_text("Ada is 36.")
        done = cli("extract", "letter.txt", "--schema", "person.json", "-o", "people.csv")
    assert done.code == 0, done.err
    assert rows_in(folder / "people.csv") == [{"file": "letter.txt", "name": "Ada", "age": "36"}]


@pytest.mark.usefixtures("vendor_key")
def test_a_dry_run_calls_nothing(cli: Cli, folder: Path, document: Document) -> None:
    with FakeVendor(answering(document)) as vendor:
        prepare(folder, vendor, document)
        done = cli(*JOB, "--dry-run")
        assert vendor.requests == []
    assert done.code == 0
    assert "pieces: 2" in done.out
    assert not (folder / "rows.csv").exists()


@pytest.mark.usefixtures("vendor_key")
def test_a_table_of_somebody_else_is_not_replaced(cli: Cli, folder: Path, document: Document) -> None:
    with FakeVendor(answering(document)) as vendor:
        prepare(folder, vendor, document)
        (folder / "rows.csv").write_text("mine\n")
        done = cli(*JOB)
    assert done.code == 3
    assert "another --out" in done.err
