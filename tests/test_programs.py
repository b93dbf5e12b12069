"""Ten programs of slipform's users, and their twins in other libraries: each runs, and the docs count their lines.

The programs stand in `bench/programs`, one folder per library; they are type-checked in `tests/typing`. The vendor they
call is scripted: it answers with a text, or with a call where a library asks for its answer as one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import FakeVendor, Received, Step, calling, server_error
from tests.conftest import serving

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "bench" / "programs"
PAGE = ROOT / "docs" / "programs.md"
LIBRARIES = ("slipform", "pydantic_ai", "instructor")
TASKS = [{"title": "pack", "done": True}, {"title": "drive", "done": False}]


@dataclass(frozen=True)
class Program:
    """The values that the model answers with, one after the other, and what the program prints last."""

    values: tuple[Any, ...]
    prints: str
    calls_a_tool: bool = False
    first_fails: bool = False


ADA = {"name": "Ada", "age": 36}
TEN = {
    "invoice": Program(({"number": "A-1", "total": "1,234.50"}, {"number": "A-1", "total": "1234.50"}), "1234.50"),
    "streaming": Program((TASKS,), "drive"),
    "fan_out": Program((36,), "190"),
    "web": Program((ADA,), "{'name': 'Ada', 'age': 36}"),
    "own_client": Program((ADA,), "name='Ada' age=36"),
    "agent": Program(({"city": "Rome", "sunny": True},), "city='Rome' sunny=True", calls_a_tool=True),
    "validator": Program(({"guest": "Zoe"}, {"guest": "Ada"}), "guest='Ada'"),
    "limits": Program((36,), "36", first_fails=True),
    "through_proxy": Program((ADA,), "name='Ada' age=36"),
    "text_tools": Program((), "{'mood': 'happy', 'why': 'It is sunny.'}"),
}


def vendor_of(program: Program) -> Callable[[Received], Step]:
    """A vendor that speaks as each library asks it to."""
    answers, asked = iter((*program.values, *program.values[-1:] * 500)), 0

    def answer(received: Received) -> Step:
        nonlocal asked
        asked += 1
        body = received.json()
        if program.first_fails and body["model"] == "gpt-5":
            return server_error()
        if program.calls_a_tool and asked <= 2:  # thirty days are too many
            return calling(("forecast", {"city": "Rome", "days": 30 if asked == 1 else 7}))
        return _fitted(body, next(answers))

    return answer


def _fitted(body: dict[str, Any], value: Any) -> Step:
    """The value in the channel of the request, under the key that its schema has for values that are no objects."""
    wanted = body.get("response_format")
    if wanted is not None:
        schema = wanted["json_schema"]["schema"]
    else:
        tool = body["tools"][-1]["function"]
        schema = tool["parameters"]
    text = value if isinstance(value, dict) else {next(iter(schema["properties"])): value}
    return json.dumps(text) if wanted is not None else calling((tool["name"], text))


def interpreter(library: str) -> str:
    if library == "slipform":
        return sys.executable
    found = os.environ.get("SLIPFORM_PEERS") or str(Path(sys.prefix) / "peers" / "bin" / "python")
    if not Path(found).exists():
        pytest.skip("the other libraries are not installed here: `make test` installs them")
    return found


CASES = [
    pytest.param(name, library, marks=() if library == "slipform" else pytest.mark.slow)
    for name in TEN
    for library in LIBRARIES
    if (PROGRAMS / library / f"{name}.py").exists()
]


@pytest.mark.parametrize(("name", "library"), CASES)
def test_the_program_runs(name: str, library: str, tmp_path: Path) -> None:
    program = TEN[name]
    with FakeVendor(vendor_of(program)) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k")
        client = AsyncClient(router=Router({"openai": provider}, aliases={"m": "openai/gpt-4o"}))
        with serving(App(client, Settings(default_model="m"))) as proxy:
            environment = {"OPENAI_BASE_URL": vendor.base_url, "OPENAI_API_KEY": "k", "PROXY": proxy}
            done = subprocess.run(
                [interpreter(library), str(PROGRAMS / library / f"{name}.py")],
                cwd=tmp_path,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
                timeout=100,
            )
    assert done.returncode == 0, done.stderr[-3000:]
    assert program.prints in done.stdout.splitlines()[-1]


def lines_of(name: str, library: str) -> str:
    """Lines of code, without blank ones; a dash where a library has no such program."""
    path = PROGRAMS / library / f"{name}.py"
    return str(len([line for line in path.read_text().splitlines() if line.strip()])) if path.exists() else "–"


def test_the_docs_count_the_lines_and_slipform_needs_at_most_two_more_than_the_shortest() -> None:
    rows = re.findall(
        r"^\| \[[^]]*\]\([^)]*/slipform/(\w+)\.py\)[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE
    )
    assert [row[0] for row in rows] == list(TEN)
    for name, *cells in rows:
        counts = [cell.strip() for cell in cells]
        assert counts == [lines_of(name, library) for library in LIBRARIES], name
        assert int(counts[0]) <= min(int(count) for count in counts if count != "–") + 2, name
