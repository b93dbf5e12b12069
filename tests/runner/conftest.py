"""What the runner's tests share: rows, a vendor that knows the people in them, and the commands as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slipform.config import Settings, read_settings
from slipform.ir import ModelRequest
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor, Received

ROOT = Path(__file__).resolve().parents[2]

# What `slipform.cli` does with the two commands.
_COMMANDS = """
import sys, typer
from slipform.errors import SlipformError
from slipform.addons.batch.command import batch, run
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(run)
app.command()(batch)
try:
    app()
except SlipformError as error:
    print(f"slipform: {error}", file=sys.stderr)
    raise SystemExit(1)
"""


def write_rows(path: Path, count: int) -> Path:
    """Rows with an id and a name each: P1, P2…"""
    path.write_text("".join(json.dumps({"id": number, "name": f"P{number}"}) + "\n" for number in range(1, count + 1)))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def asked_for(text: str) -> int:
    """Which of the people the prompt is about."""
    return int(text.rpartition("P")[2].split()[0])


def person(number: int) -> str:
    """What a good model says of them."""
    return json.dumps({"name": f"P{number}", "age": number % 100})


def answer(request: ModelRequest) -> str:
    """What a good model says to a request."""
    return person(asked_for(request.messages[-1].text))


def answer_http(received: Received) -> str:
    """The same over the OpenAI API."""
    return person(asked_for(received.json()["messages"][-1]["content"]))


def fake_router(model: FakeModel) -> Router:
    """A router that knows one model, `fake/any`."""
    return Router({"fake": model}, default="fake/any")


def settings_for(vendor: FakeVendor, more: str = "", kind: str = "openai") -> str:
    """The configuration for a vendor on loopback, which does not check keys."""
    provider = f"providers: {{fake: {{kind: {kind}, base_url: '{vendor.base_url}', api_key_env: FAKE_KEY}}}}"
    return f"{provider}\ndefault_model: fake/gpt-6-luna\nretries: {{attempts: 0}}\n{more}"


@pytest.fixture
def vendor_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key for the vendor on loopback."""
    monkeypatch.setenv("FAKE_KEY", "any")


def settings_of(vendor: FakeVendor, more: str = "", kind: str = "openai") -> Settings:
    """The same, read."""
    return read_settings(settings_for(vendor, more, kind))


def command_line(words: Sequence[str]) -> list[str]:
    """How a command is started."""
    return [sys.executable, "-c", _COMMANDS, *words]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command finds around it."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "FAKE_KEY": "any", "NO_COLOR": "1", **(more or {})}


def command(*words: str, cwd: Path, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `slipform run …` or `slipform batch …` as a process."""
    return subprocess.run(
        command_line(words), cwd=cwd, env=environment(more), capture_output=True, text=True, check=False, timeout=100
    )
