"""Every snippet in the README and the docs is run as it stands."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slipform.testing import FakeVendor, calling
from tests.conftest import THOROUGH
from tests.waiting import until

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
"""A block of code; inside a tab it is indented."""
ANSWERS = re.compile(r"<!-- answers: (\[.*\]) -->\n+\Z")
"""What OpenAI's models answer in the next block, so that it can be run without a key: texts, and lists of calls."""


def snippets(page: Path) -> Iterator[tuple[str, str, list[Any]]]:
    """The blocks of a page: their kinds, their code, and the answers that they are run with."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        answers = ANSWERS.search(text, 0, match.start())
        yield match[2], textwrap.dedent(match[3]), json.loads(answers[1]) if answers else []


SNIPPETS = [
    pytest.param(kind, code, answers, id=f"{page.name}-{number}")
    for page in PAGES
    if page.name != "README.md"  # its blocks belong together: `test_the_readme_works_as_typed`
    for number, (kind, code, answers) in enumerate(snippets(page))
    if kind in ("python", "sh")
]

pytestmark = [pytest.mark.local, pytest.mark.xdist_group("local")]


def unactivated() -> dict[str, str]:
    """The environment of a shell in which nothing has been activated."""
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if folder != own)
    return {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")} | {
        "PATH": path
    }


def start_command() -> list[str]:
    """`make run` as the README has it, where make set this environment up; else what it runs."""
    ours = Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()
    if ours and subprocess.run(["make", "-q", ".venv/.installed-run"], cwd=ROOT, check=False).returncode == 0:
        return ["make", "run"]
    return [str(Path(sys.executable).parent / "slipform"), "serve"]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """What `make run` starts, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = unactivated() | {"SLIPFORM_SERVER__PORT": str(port)}
    server = subprocess.Popen(
        start_command(),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz").close() is None, 60, (OSError,))
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


INTERPRETER = """
import contextlib, io, json, os, sys, traceback, types

for line in sys.stdin:
    code, folder = json.loads(line)
    os.chdir(folder)
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    printed, error = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, "the snippet", "exec"), vars(main))
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), flush=True)
"""


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Callable[[str, Path], str]]:
    """Runs snippets of Python one after the other in one process, which loads the model once.

    `make test-all` gives each of them a process of its own.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", INTERPRETER],
        env=unactivated(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def printed(code: str, folder: Path) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([code, str(folder)]) + "\n")
        process.stdin.flush()
        output, error = json.loads(process.stdout.readline())
        assert not error, error
        return str(output)

    try:
        yield printed
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like a clone in which `make run` was typed: it has a `.venv`."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def expected_lines(code: str) -> list[str]:
    """What a block says it prints: `# → a line`, which goes on in lines that begin with `#   `."""
    found: list[str] = []
    for line in code.splitlines():
        first, more = re.search(r"# → (.*)$", line), re.match(r"\s*#   (\S.*)$", line)
        if first:
            found.append(first[1])
        elif more and found:
            found[-1] += f" {more[1]}"
    return found


def run(kind: str, code: str, folder: Path, served: str) -> str:
    """What a block prints, from a shell that has activated nothing if it names `.venv` itself."""
    shell = ["bash", "-euo", "pipefail", "-c"] if kind == "sh" else [sys.executable, "-c"]
    environment = unactivated()
    if ".venv/" not in code:
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [*shell, code.replace("127.0.0.1:8080", served)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def openai_vendor(folder: Path, answers: list[Any]) -> Iterator[None]:
    """OpenAI's API on this machine, set in the settings file that a snippet finds."""
    script = [each if isinstance(each, str) else calling(*map(tuple, each)) for each in answers]
    with FakeVendor(script or ["not scripted"]) as vendor:
        if answers:
            provider = f"{{base_url: '{vendor.base_url}', api_key_env: PATH}}"  # any variable that is set
            (folder / "slipform.yaml").write_text(f"providers:\n  openai: {provider}\n")
        yield


@pytest.mark.parametrize(("kind", "code", "answers"), SNIPPETS)
@pytest.mark.usefixtures("openai_vendor")
def test_the_snippet_works(
    kind: str, code: str, served: str, folder: Path, interpreter: Callable[[str, Path], str]
) -> None:
    if code.strip() == "make run":  # it runs already: `served`
        recipe = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "slipform serve" in recipe.stdout
        return
    if kind == "python" and not THOROUGH:
        printed = interpreter(code.replace("127.0.0.1:8080", served), folder)
    else:
        printed = run(kind, code, folder, served)
    expected = expected_lines(code)
    if kind == "python" or expected:
        assert expected, "a snippet shows what it prints"
        assert printed.splitlines() == expected
    elif "curl" in code:
        content = json.loads(printed)["choices"][0]["message"]["content"]
        assert json.loads(content) == {"name": "Ada", "age": 36}
    else:
        assert json.loads(printed) == {"name": "Ada", "age": 36}


def test_the_readme_works_as_typed(served: str, folder: Path) -> None:
    """Its blocks in their order: files are saved under the name in their first line, commands are run as they stand."""
    for _, kind, code in FENCE.findall((ROOT / "README.md").read_text()):
        if kind == "python":
            name = re.match(r"# (\S+\.py)\n", code)
            assert name, "a file of the README says its name in the first line"
            (folder / name[1]).write_text(code.replace("127.0.0.1:8080", served))
        elif code.strip() != "make run":
            assert run(kind, code, folder, served).splitlines() == expected_lines(code)


def test_code_fits_its_column() -> None:
    """About 80 characters stand beside the navigation at 1280 pixels; only what a program prints may scroll."""
    wide = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for indent, kind, code in FENCE.findall(page.read_text())
        for line in code.splitlines()
        if len(line) - len(indent) > 80 and (kind != "console" or line.startswith("$ "))
    ]
    assert wide == []
