"""What type checkers infer of the Python face. mypy reads the same files in `make lint`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("tests/typing/inferred.py", "tests/schema/typing_schema.py")


def test_pyright_infers_what_mypy_does() -> None:
    """Issue 6: exactly the type that was asked for, also for unions, literals, TypedDicts and raw schemas."""
    folder = Path(os.environ.get("SLIPFORM_NODE_PEERS") or Path(sys.prefix) / "node")
    checker = folder / "node_modules" / "pyright" / "index.js"
    node = shutil.which("node")
    if node is None or not checker.exists():
        pytest.skip("Node.js or pyright is not installed here: `make test` installs the latter")
    command = [node, str(checker), "--outputjson", "--pythonpath", sys.executable, *FILES]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT, check=False)
    found = json.loads(ran.stdout)
    assert found["summary"]["filesAnalyzed"] == len(FILES)
    assert [
        (Path(row["file"]).name, row["range"]["start"]["line"] + 1, row["message"])
        for row in found["generalDiagnostics"]
    ] == []
