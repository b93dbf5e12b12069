"""What type checkers infer of the Python face, and what they say to every snippet of the docs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import node_folder
from tests.test_docs import FENCE, PAGES, ROOT

FILES = ("tests/typing/inferred.py", "tests/schema/typing_schema.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every Python snippet of the docs, named after its page and place, and the ten programs."""
    folder = tmp_path_factory.mktemp("snippets")
    for page in PAGES:
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        for number, (_, kind, code) in enumerate(FENCE.findall(page.read_text(encoding="utf-8"))):
            if kind == "python":
                (folder / f"{name}_{number}.py").write_text(textwrap.dedent(code), encoding="utf-8")
    for program in (ROOT / "bench" / "programs" / "slipform").glob("*.py"):
        shutil.copy(program, folder / f"program_{program.name}")
    return folder


def pyright(*paths: str) -> list[tuple[str, int, str]]:
    """What pyright complains of: file, line, message."""
    node, folder = node_folder("pyright")
    checker = folder / "node_modules" / "pyright" / "index.js"
    command = [node, str(checker), "--outputjson", "--pythonpath", sys.executable, *paths]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT, check=False)
    found = json.loads(ran.stdout)
    assert found["summary"]["filesAnalyzed"] >= len(paths)
    return [
        (Path(row["file"]).name, row["range"]["start"]["line"] + 1, row["message"])
        for row in found["generalDiagnostics"]
        if row["severity"] == "error"
    ]


def test_pyright_infers_what_mypy_does() -> None:
    """Issue 6: exactly the type that was asked for, also for unions, literals, TypedDicts and raw schemas."""
    assert pyright(*FILES) == []


def test_pyright_accepts_every_snippet_of_the_docs(snippets: Path) -> None:
    assert pyright(str(snippets)) == []


def test_mypy_accepts_every_snippet_of_the_docs(snippets: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), "."]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=snippets, check=False, env=environment
    )
    assert [line for line in ran.stdout.splitlines() if ": error:" in line] == []
