"""Clients of OpenAI's APIs run tool loops of three steps, streamed, on vendors of other APIs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.peers.test_peers import HERE, node_modules, peers_python, seen
from tests.proxy.proxying import proxied
from tests.proxy.test_responses_on_any_vendor import STEPS, VENDORS, Forecaster

MODELS = [f"{name}/m" for name in VENDORS]
DONE = [STEPS + 1, "3 results"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The proxy in front of a vendor of each API."""
    forecasters = {name: Forecaster(name) for name in VENDORS}
    with ExitStack() as stack:
        for each in forecasters.values():
            stack.enter_context(each.vendor)
        providers = {name: each.provider() for name, each in forecasters.items()}
        yield stack.enter_context(proxied(providers, {"default_model": MODELS[0]}))


def test_the_vercel_ai_sdk_runs_a_tool_loop(address: str, tmp_path: Path) -> None:
    program = tmp_path / "loop.mjs"
    program.write_text((HERE / "vercel_loop_client.mjs").read_text())
    (tmp_path / "node_modules").symlink_to(node_modules() / "node_modules")
    assert seen("node", str(program), address, *MODELS, folder=tmp_path) == dict.fromkeys(MODELS, DONE)


def test_the_agents_sdk_runs_a_tool_loop(address: str) -> None:
    python = os.environ.get("SLIPFORM_AGENTS") or str(Path(sys.prefix) / "agents" / "bin" / "python")
    if not Path(python).exists():
        pytest.skip("the Agents SDK is not installed here: `make test` installs it")
    results = seen(python, str(HERE / "agents_loop_client.py"), address, *MODELS)
    assert len(results) == 4 * len(MODELS)
    assert {name: result for name, result in results.items() if result != DONE} == {}


@pytest.mark.slow
def test_langgraph_runs_a_tool_loop(address: str) -> None:
    python = peers_python()
    if not any(Path(python).parents[1].glob("lib/python*/site-packages/langgraph")):
        pytest.skip("LangGraph is not installed here: `make test` installs it")
    results = seen(python, str(HERE / "langgraph_loop_client.py"), address, *MODELS)
    assert len(results) == 3 * len(MODELS)
    assert {name: result for name, result in results.items() if result != DONE} == {}
