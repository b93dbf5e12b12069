"""Batches read and write the files that people have: CSV, Excel, folders of documents."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.batch.rows import rows_of
from slipform.errors import ConfigError
from slipform.ir import ModelRequest
from slipform.runner import batch, run_report
from slipform.testing import FakeModel
from tests.conftest import PERSON
from tests.files.make_files import encrypted, letter, statement, workbook
from tests.runner.conftest import fake_router


def person_in(request: ModelRequest) -> str:
    text = request.messages[-1].text
    return json.dumps({"name": "Ada" if "Ada" in text else "nobody", "age": 36})


def ask(source: Any, out: Path, **options: Any) -> Any:
    router = fake_router(FakeModel(person_in))
    return batch(source, schema=PERSON, out=out, model="fake/any", router=router, **options)


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.xlsx"])
def test_a_table_keeps_the_columns_of_the_input_and_adds_those_of_the_answer(tmp_path: Path, name: str) -> None:
    workbook(tmp_path / "in.xlsx", [["id", "name", "text"], ["a", "first", "Ada, 36"], ["b", "second", "Bob"]])
    summary = ask(tmp_path / "in.xlsx", tmp_path / name, prompt="{text}")
    assert summary.failed == 0
    rows = list(rows_of(tmp_path / name))
    assert list(rows[0]) == ["id", "name", "text", "value.name", "age"]
    assert [(row["id"], row["name"], row["value.name"]) for row in rows] == [
        ("a", "first", "Ada"),
        ("b", "second", "nobody"),
    ]


def test_named_columns_are_kept_in_json_lines_too(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,text\na,Ada\n")
    ask(tmp_path / "in.csv", tmp_path / "out.jsonl", prompt="{text}", keep=["id"])
    (row,) = rows_of(tmp_path / "out.jsonl")
    assert row["input"] == {"id": "a"}
    with pytest.raises(ConfigError, match="no column 'nope'"):
        ask(tmp_path / "in.csv", tmp_path / "other.jsonl", prompt="{text}", keep=["nope"])


def test_kept_columns_are_json_text_in_parquet(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,text\na,Ada\n")
    ask(tmp_path / "in.csv", tmp_path / "out.parquet", prompt="{text}", keep="all")
    (row,) = rows_of(tmp_path / "out.parquet")
    assert json.loads(row["input"]) == {"id": "a", "text": "Ada"}


def documents(folder: Path) -> Path:
    folder.mkdir()
    letter(folder / "b.docx")
    (folder / "a.txt").write_text("Ada")
    (folder / "c.pdf").write_bytes(encrypted())
    (folder / "d.pdf").write_bytes(statement(pages=1, rows=2)[0])
    (folder / ".hidden").write_text("no")
    return folder


def test_a_folder_of_documents_becomes_one_table_and_a_bad_file_fails_alone(tmp_path: Path) -> None:
    folder = documents(tmp_path / "letters")
    summary = ask(folder, folder / "out.csv", prompt="Who is it? {text}")
    assert (summary.rows, summary.failed) == (4, 1)
    with (folder / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(Path(row["file"]).name, row["name"]) for row in rows] == [
        ("a.txt", "Ada"),
        ("b.docx", "Ada"),
        ("d.pdf", "nobody"),
    ]
    (failure,) = rows_of(summary.failures)
    assert "encrypted" in failure["error"]["message"]


def test_a_file_added_to_the_folder_is_the_only_one_asked_about(tmp_path: Path) -> None:
    folder = documents(tmp_path / "letters")
    ask(folder, tmp_path / "out.csv")
    (folder / "aa.txt").write_text("Ada again")
    summary = ask(folder, tmp_path / "out.csv")
    assert (summary.rows, summary.done) == (5, 1)
    assert {Path(row["file"]).name for row in rows_of(tmp_path / "out.csv")} == {"a.txt", "aa.txt", "b.docx", "d.pdf"}
    (folder / "a.txt").unlink()
    with pytest.raises(ConfigError, match=r"not in the input now.*a\.txt"):
        ask(folder, tmp_path / "out.csv")


def test_a_changed_file_is_asked_about_again(tmp_path: Path) -> None:
    folder = documents(tmp_path / "letters")
    ask(folder, tmp_path / "out.csv")
    (folder / "a.txt").write_text("Bob")
    summary = ask(folder, tmp_path / "out.csv")
    assert (summary.done, summary.changed) == (1, 1)


def test_a_prompt_for_files_must_have_a_place_for_their_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Write \{text\}"):
        ask(documents(tmp_path / "letters"), tmp_path / "out.csv", prompt="Who is it?")


def test_run_skips_what_is_up_to_date_and_never_reads_its_outputs(tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "a.txt").write_text("Ada")
    letter(folder / "b.docx")

    def files_asked(instructions: str) -> list[str]:
        model = FakeModel(lambda request: request.messages[-1].text[:9])
        report = run_report(instructions, [folder], skip_up_to_date=True, router=fake_router(model))
        assert report.failures == {}
        assert len(report.written) == 2
        return sorted(request.messages[-1].text[:3] for request in model.requests)

    assert files_asked("Who?") == ["# O", "Ada"]
    assert files_asked("Who?") == []
    assert files_asked("Whose?") == ["# O", "Ada"]
    (folder / "a.txt").write_text("Bob")
    assert files_asked("Whose?") == ["Bob"]
    (folder / "b.docx.out.txt").unlink()
    assert files_asked("Whose?") == ["# O"]


@pytest.mark.parametrize(("name", "library"), [("out.xlsx", "xlsxwriter"), ("out.parquet", "pyarrow")])
def test_a_missing_library_is_noticed_before_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "in.csv").write_text("text\nAda is 36\n")
    model = FakeModel(['{"name": "Ada", "age": 36}'])
    with pytest.raises(ConfigError, match="pip install"):
        batch(tmp_path / "in.csv", schema=PERSON, out=tmp_path / name, router=fake_router(model))
    assert model.requests == []
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
