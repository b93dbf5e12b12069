"""The command line as tests run it: in this process mostly, as a program of its own where that matters."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

import slipform
from slipform.cli import main
from slipform.providers.catalog import load_catalog
from slipform.testing import FakeVendor, Received, Step
from tests.conftest import PERSON

SOURCE = Path(slipform.__file__).parent.parent
PROGRAM = [sys.executable, "-c", "from slipform.cli import main; main()"]


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, which must be JSON."""
        return json.loads(self.out)


class Cli(Protocol):
    """Runs `slipform` with these words."""

    def __call__(self, *words: str, stdin: bytes | str = b"") -> Done: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run: a folder with a schema and a class, and an environment without keys."""
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    (tmp_path / "shapes.py").write_text(
        "from pydantic import BaseModel\nclass Person(BaseModel):\n    name: str\n    age: int\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for vendor in load_catalog().vendors.values():
        for name in (*vendor.api_key_env, *vendor.base_url_env):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLIPFORM_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """The command line in this process."""

    def run(*words: str, stdin: bytes | str = b"") -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["slipform", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        capsys.readouterr()
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    yield run
    sys.modules.pop("shapes", None)


@pytest.fixture
def fake(folder: Path) -> Iterator[Callable[..., FakeVendor]]:
    """A scripted vendor that the folder's `slipform.yaml` names as the default model."""
    started: list[FakeVendor] = []

    def start(script: list[Step] | Callable[[Received], Step], settings: str = "") -> FakeVendor:
        vendor = FakeVendor(script).__enter__()
        started.append(vendor)
        (folder / "slipform.yaml").write_text(
            f"default_model: fake/model\nproviders:\n  fake: {{base_url: '{vendor.base_url}'}}\n{settings}"
        )
        return vendor

    yield start
    for vendor in started:
        vendor.__exit__()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a subprocess needs to find the sources under test."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), **(extra or {})}


def run_program(*words: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command line as a program of its own."""
    return subprocess.run(
        [*PROGRAM, *words],
        cwd=cwd,
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
