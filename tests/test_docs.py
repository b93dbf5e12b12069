"""Every snippet in the README and the docs is run as it stands."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    pytest.param(kind, code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, (kind, code) in enumerate(FENCE.findall(page.read_text()))
    if kind in ("python", "sh")
]

pytestmark = [pytest.mark.local, pytest.mark.xdist_group("local")]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """What `make run` starts, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "slipform"), "serve", "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz"):
                    break
            except OSError:
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.parametrize(("kind", "code"), SNIPPETS)
def test_the_snippet_works(kind: str, code: str, served: str, tmp_path: Path) -> None:
    if code.strip() == "make run":
        recipe = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "slipform serve" in recipe.stdout
        return
    shell = ["bash", "-euo", "pipefail", "-c"] if kind == "sh" else [sys.executable, "-c"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*shell, code.replace("127.0.0.1:8080", served)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"# → (.*)$", code, re.MULTILINE)
    if kind == "python" or expected:
        assert expected, "a snippet shows what it prints"
        assert done.stdout.splitlines() == expected
    elif "curl" in code:
        content = json.loads(done.stdout)["choices"][0]["message"]["content"]
        assert json.loads(content) == {"name": "Ada", "age": 36}
    else:
        assert json.loads(done.stdout) == {"name": "Ada", "age": 36}
