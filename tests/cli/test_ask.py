"""The command line, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slipform import __version__
from tests.conftest import PERSON


def run(*words: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from slipform.cli import main; main()", *words]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    (tmp_path / "shapes.py").write_text(
        "from pydantic import BaseModel\nclass Person(BaseModel):\n    name: str\n    age: int\n"
    )
    return tmp_path


@pytest.mark.local
@pytest.mark.xdist_group("local")
def test_ask_prints_valid_json_and_nothing_else(folder: Path) -> None:
    done = run("ask", "--schema", "person.json", "Ada is 36", cwd=folder)
    assert (done.returncode, done.stdout) == (0, '{"name":"Ada","age":36}\n')


@pytest.mark.local
@pytest.mark.xdist_group("local")
def test_ask_reads_standard_input_and_takes_a_class(folder: Path) -> None:
    done = run("ask", "--schema", "shapes:Person", "-", cwd=folder, stdin="Ada is 36")
    assert (done.returncode, done.stdout) == (0, '{"name":"Ada","age":36}\n')


@pytest.mark.parametrize(
    ("schema", "content", "said"),
    [
        ("missing.json", None, "cannot be read"),
        ("bad.json", "{", "not JSON"),
        ("list.json", "[]", "not an object"),
        ("shapes:Nobody", None, "module:Class"),
    ],
)
def test_a_bad_schema_is_one_clear_paragraph(folder: Path, schema: str, content: str | None, said: str) -> None:
    if content is not None:
        (folder / schema).write_text(content)
    done = run("ask", "--schema", schema, "Ada is 36", cwd=folder)
    assert done.returncode == 1
    assert said in done.stderr
    assert schema in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_models_lists_what_is_here(folder: Path) -> None:
    done = run("models", cwd=folder)
    assert done.returncode == 0
    assert done.stdout.startswith("smollm2-135m\t")


def test_the_version_is_told(folder: Path) -> None:
    done = run("--version", cwd=folder)
    assert done.stdout.strip() == f"slipform {__version__}"
