"""`slipform batch` and `slipform run`, as a person runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from slipform.addons.batch.command import batch
from slipform.errors import SlipformError
from slipform.testing import FakeVendor
from tests.conftest import PERSON
from tests.runner.conftest import answer_http, command, read_rows, settings_for, write_rows


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with FakeVendor(answer_http) as vendor:
        more = "prices: {'fake/*': {input: 3, output: 15}}\n"
        (tmp_path / "slipform.yaml").write_text(settings_for(vendor, more))
        (tmp_path / "person.json").write_text(json.dumps(PERSON))
        (tmp_path / "shapes.py").write_text(
            "from pydantic import BaseModel\nclass Person(BaseModel):\n    name: str\n    age: int\n"
        )
        (tmp_path / "P1.txt").write_text("About P1")
        (tmp_path / "P2.txt").write_text("About P2")
        write_rows(tmp_path / "in.jsonl", 20)
        yield tmp_path


def test_batch_writes_results_and_says_how_it_went(folder: Path) -> None:
    (folder / "prompt.txt").write_text("Who is {name}")
    words = ("batch", "in.jsonl", "--schema", "shapes:Person", "--out", "out.jsonl", "--prompt-file", "prompt.txt")
    done = command(*words, "--key", "id", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert "20 of 20 rows are in out.jsonl" in done.stderr
    assert "cost" in done.stderr
    assert read_rows(folder / "out.jsonl")[6] == {"row": 7, "key": "7", "value": {"name": "P7", "age": 7}}
    again = command(*words, "--key", "id", cwd=folder)
    assert "nothing was left to do" in again.stderr


def test_dry_run_guesses_and_touches_nothing(folder: Path) -> None:
    words = ("batch", "in.jsonl", "--schema", "person.json", "--out", "out.jsonl", "--prompt", "Who is {name}")
    before = sorted(path.name for path in folder.iterdir())
    done = command(*words, "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "rows: 20, of which 20 are left to do" in done.stdout
    assert "tokens, about:" in done.stdout
    assert "cost, about: 0.00" in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == before
    command(*words, "--limit", "5", cwd=folder)
    assert "of which 15 are left" in command(*words, "--dry-run", cwd=folder).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("in.jsonl", "--schema", "nope.json", "--out", "o.jsonl"), "nope.json"),
        (("nope.jsonl", "--schema", "person.json", "--out", "o.jsonl"), "nope.jsonl"),
        (("in.jsonl", "--schema", "shapes:Nobody", "--out", "o.jsonl"), "shapes:Nobody"),
        (("in.jsonl", "--schema", "person.json", "--out", "o.doc"), "--format"),
        (("in.jsonl", "--schema", "person.json", "--out", "person.json/o.jsonl"), "cannot be written"),
        (("in.jsonl", "--schema", "person.json", "--out", "o.jsonl", "--prompt", "{x}"), "columns are: id, name"),
        (("in.jsonl", "--schema", "person.json", "--out", "o.jsonl", "--prompt", "{"), "brace"),
        (("in.jsonl", "--schema", "person.json", "--out", "o.jsonl", "--model", "fakr/x"), "fake/x"),
        (("in.jsonl", "--schema", "person.json", "--out", "o.jsonl", "--prompt-file", "no.txt"), "no.txt"),
    ],
)
def test_mistakes_are_one_clear_paragraph(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(folder)
    app = typer.Typer()
    app.command()(batch)
    error = CliRunner().invoke(app, list(words)).exception
    assert isinstance(error, SlipformError)
    assert said in str(error)
    assert "\n" not in str(error)
    assert not (folder / "o.jsonl").exists()


def test_run_prints_each_output_with_the_model_that_answered(folder: Path) -> None:
    done = command(
        "run", "Say who it is.", "P1.txt", "P2.txt", "--schema", "person.json", "--out-dir", "answers", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "answers/P1.txt.out.json\tfake/gpt-6-luna",
        "answers/P2.txt.out.json\tfake/gpt-6-luna",
    ]
    assert json.loads((folder / "answers/P2.txt.out.json").read_text()) == {"name": "P2", "age": 2}


@pytest.mark.covers("S1-43", "S1-44", "S1-45", "S1-46", "S1-47", "S1-48", "S1-49", "S1-50")
def test_run_shows_a_line_for_each_call_when_asked_to(folder: Path) -> None:
    done = command("run", "Say who it is.", "P1.txt", "--schema", "person.json", "--log", cwd=folder)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "call" in line]
    for field in (
        "provider=",
        "model=",
        "require_json=",
        "streaming=",
        "timeout=",
        "latency=",
        "attempts=1",
        "outcome=ok",
    ):
        assert field in line
    assert "About P1" not in done.stderr


def test_run_reads_instructions_from_a_file_and_goes_on_past_a_bad_file(folder: Path) -> None:
    (folder / "instructions.md").write_text("Say who it is.")
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    done = command("run", "instructions.md", "image.png", "P1.txt", "--json", cwd=folder)
    assert done.returncode == 5
    assert done.stdout == "P1.txt.out.json\tfake/gpt-6-luna\n"
    assert "image.png" in done.stderr
    assert "not UTF-8 text" in done.stderr
    assert "Traceback" not in done.stderr
