"""Agents run tool loops of three steps, streamed, on vendors of every API."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.peers.test_peers import HERE, node_modules, peers_python, seen
from tests.proxy.proxying import proxied
from tests.proxy.test_responses_on_any_vendor import STEPS, VENDORS, Forecaster

ALL_VENDORS: Any = {
    **VENDORS,
    "bedrock": ("bedrock", "bedrock"),
    "cohere": ("cohere", "cohere"),
    "responses": ("openai-responses", "openai-responses"),
}
MODELS = [f"{name}/m" for name in ALL_VENDORS if name != "responses"]
"""Models of vendors that store nothing: a provider of Responses would be asked to store conversations."""
ALL_MODELS = [*MODELS, "responses/m"]
DONE = [STEPS + 1, "3 results"]


@contextmanager
def served(names: Iterable[str]) -> Iterator[str]:
    """The proxy in front of a vendor of each of these APIs."""
    forecasters = {name: Forecaster(name, ALL_VENDORS) for name in names}
    with ExitStack() as stack:
        for each in forecasters.values():
            stack.enter_context(each.vendor)
        providers = {name: each.provider() for name, each in forecasters.items()}
        yield stack.enter_context(proxied(providers, {"default_model": MODELS[0]}))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served([name for name in ALL_VENDORS if name != "responses"]) as address:
        yield address


@pytest.fixture(scope="module")
def address_of_all() -> Iterator[str]:
    with served(ALL_VENDORS) as address:
        yield address


def test_the_vercel_ai_sdk_runs_a_tool_loop(address_of_all: str, tmp_path: Path) -> None:
    program = tmp_path / "loop.mjs"
    program.write_text((HERE / "vercel_loop_client.mjs").read_text())
    (tmp_path / "node_modules").symlink_to(node_modules() / "node_modules")
    results = seen("node", str(program), address_of_all, *ALL_MODELS, folder=tmp_path)
    assert len(results) == 4 * len(ALL_MODELS)
    assert {name: result for name, result in results.items() if result != DONE} == {}


def test_a_loop_as_codex_runs_it(address_of_all: str) -> None:
    results = seen(sys.executable, str(HERE / "codex_loop_client.py"), address_of_all, *ALL_MODELS)
    assert results == dict.fromkeys(ALL_MODELS, DONE)


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
