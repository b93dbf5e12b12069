"""Mistakes of a newcomer with `batch` and `run`: each is told with its place, and the corrected command just works."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slipform.addons.batch.journal import Journal
from slipform.errors import AuthenticationError, ConfigError
from slipform.runner import batch
from slipform.testing import FakeModel, FakeVendor
from tests.conftest import PERSON
from tests.runner.conftest import answer, answer_http, command, fake_router, read_rows, settings_for, write_rows

JOB = {"version": 1, "prompt": "p"}


def ask_all(folder: Path, model: FakeModel, prompt: str = "Who is {name}", *, key: str | None = None) -> int:
    source = next(path for path in folder.iterdir() if path.name.startswith("in."))
    done = batch(
        source, schema=PERSON, out=folder / "out.jsonl", prompt=prompt, key=key, router=fake_router(model), model=None
    )
    return done.done


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_mistake_that_is_found_before_the_first_call_leaves_no_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 3)
    with pytest.raises(ConfigError, match="'nam'"):
        ask_all(tmp_path, FakeModel(answer), "Who is {nam}")
    assert names(tmp_path) == ["in.jsonl"]
    assert ask_all(tmp_path, FakeModel(answer)) == 3


def test_a_job_that_never_finished_a_row_can_become_another(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 3)
    with pytest.raises(AuthenticationError):
        ask_all(tmp_path, FakeModel([AuthenticationError("no key")]), "Who was {name}")
    assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]
    assert ask_all(tmp_path, FakeModel(answer)) == 3
    with pytest.raises(ConfigError, match="its prompt differed"):
        ask_all(tmp_path, FakeModel(answer), "Who was {name}")
    assert len(read_rows(tmp_path / "out.jsonl")) == 3


def test_a_damaged_journal_of_another_job_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal.open(path, JOB).close()
    with path.open("ab") as file:
        file.write(b'{"crc":"00000000","done":{"row":1,"key":"x","value":1}}\n')
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="its prompt differed"):
        Journal.open(path, {**JOB, "prompt": "q"})
    assert path.read_bytes() == before


def test_a_broken_line_is_told_with_its_line_and_character(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"name": "P1"}\n{"name": "P2"\n')
    with pytest.raises(ConfigError, match=r"not JSON: .* at character 14, at .*in\.jsonl:2$"):
        ask_all(tmp_path, FakeModel(answer))


def test_semicolons_between_cells_are_told(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id;name\n1;P1\n")
    with pytest.raises(ConfigError, match=r"semicolons, at .*in\.csv:1"):
        ask_all(tmp_path, FakeModel(answer))


def test_a_key_column_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 1)
    with pytest.raises(ConfigError, match="Its columns are: id, name"):
        ask_all(tmp_path, FakeModel(answer), key="nope")


def test_bytes_that_are_no_text_are_told_before_the_first_call(tmp_path: Path) -> None:
    rows = [{"name": "P1", "raw": b"text"}, {"name": None, "raw": None}, {"name": "P3", "raw": b"\xff"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    model = FakeModel(answer)
    with pytest.raises(ConfigError, match="Row 3 has bytes that are not text in the column 'raw'"):
        ask_all(tmp_path, model, "{raw} {name}")
    assert model.requests == []


def test_commands_tell_of_an_empty_input_and_of_instructions_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("")
    (tmp_path / "a.txt").write_text("P1")
    with FakeVendor(answer_http) as vendor:
        (tmp_path / "slipform.yaml").write_text(settings_for(vendor))
        done = command("batch", "in.jsonl", "--schema", "minimal_object", "--out", "out.jsonl", cwd=tmp_path)
        assert (done.returncode, "the input has no rows" in done.stderr) == (0, True)
        done = command("run", "instructons.md", "a.txt", cwd=tmp_path)
        assert (done.returncode, "The file with instructions does not exist" in done.stderr) == (1, True)
        assert vendor.requests == []
