"""The libraries people already use, pointed at the proxy, get valid objects where the vendor behind it misbehaves.

They live in environments of their own (`make test` makes them), because their versions do not go with ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import FakeVendor
from tests.conftest import serving

HERE = Path(__file__).parent
ADA = {"name": "Ada", "age": 36}
SPOILT = 'Sure!\n```json\n{"name": "Ada", "age": "36", "note": "x"}\n```\nAnything else?'
"""Fenced, chatty, with a number in quotes and a key too many."""


def peers_python() -> str:
    found = os.environ.get("SLIPFORM_PEERS") or str(Path(sys.prefix) / "peers" / "bin" / "python")
    if not Path(found).exists():
        pytest.skip("the other libraries are not installed here: `make test` installs them")
    return found


def node_modules() -> Path:
    found = Path(os.environ.get("SLIPFORM_NODE_PEERS") or Path(sys.prefix) / "node")
    if shutil.which("node") is None or not (found / "node_modules" / "ai").exists():
        pytest.skip("Node.js or the Vercel AI SDK is not installed here: `make test` installs the latter")
    return found


def seen(*command: str, folder: Path = HERE) -> Any:
    """What a client program printed."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def bad() -> Iterator[str]:
    """The proxy in front of a vendor that never answers as it should."""
    with FakeVendor([SPOILT]) as vendor:
        provider = HttpProvider("openai-compatible", base_url=vendor.base_url, api_key="k")
        router = Router({"up": provider}, aliases={"m": "up/m"}, default="m")
        client = AsyncClient(router=router, options=Options(budget=Budget(attempts=2)))
        with serving(App(client, Settings(default_model="m"))) as address:
            yield address


@pytest.fixture(scope="module")
def embedded(local: Any) -> Iterator[str]:
    """The proxy with the embedded model."""
    router = Router({"local": local}, aliases={"m": f"local/{local.models()[0]}"}, default="m")
    with serving(App(AsyncClient(router=router), Settings(default_model="m"))) as address:
        yield address


pytestmark = pytest.mark.xdist_group("local")
UPSTREAMS = ["bad", pytest.param("embedded", marks=[pytest.mark.local, pytest.mark.slow])]
CLIENTS = ["langchain_client.py", "pydantic_ai_client.py", "instructor_client.py"]


@pytest.mark.covers("S2-17", "S2-20", "S2-62")
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("program", CLIENTS)
def test_a_python_library_gets_valid_objects(program: str, upstream: str, request: pytest.FixtureRequest) -> None:
    got = seen(peers_python(), str(HERE / program), request.getfixturevalue(upstream))
    assert len(got) == 3
    assert all(value == ADA for value in got.values()), got


@pytest.mark.covers("S2-17", "S2-20", "S2-62")
@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_the_vercel_ai_sdk_gets_valid_objects(upstream: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    program = tmp_path / "client.mjs"
    program.write_text((HERE / "vercel_client.mjs").read_text())
    (tmp_path / "node_modules").symlink_to(node_modules() / "node_modules")
    got = seen("node", str(program), request.getfixturevalue(upstream), folder=tmp_path)
    assert len(got) == 6
    assert all(value == ADA for value in got.values()), got
