"""Every snippet and replayed request of the page on integrations gets a valid answer from a vendor that misbehaves."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.proxy import App
from slipform.testing import FakeVendor, Received, Step, calling
from tests.conftest import serving
from tests.peers.test_peers import ADA, SPOILT, node_modules, peers_python, seen

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"
SECTIONS = [
    (title, kind, code)
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for kind, code in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
OURS = ("Anthropic", "Gemini")
"""Whose SDKs are in our own environment."""


def misbehave(received: Received) -> Step:
    """A vendor that answers in prose, and calls a tool with a number in quotes where one is offered."""
    tools = received.json().get("tools")
    return calling((tools[-1]["function"]["name"], "{name: 'Ada', age: '36'}")) if tools else SPOILT


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with FakeVendor(misbehave) as vendor:
        provider = HttpProvider("openai-compatible", base_url=vendor.base_url, api_key="k")
        router = Router({"up": provider}, aliases={"m": "up/m"}, default="m")
        client = AsyncClient(router=router, options=Options(budget=Budget(attempts=2)))
        with serving(App(client, Settings(default_model="m"))) as found:
            yield found


def answered(body: str) -> Any:
    """The person in a streamed or whole response: its text, or the arguments of its call, put together."""
    pieces: list[str] = []
    for line in [line[6:] for line in body.splitlines() if line.startswith("data: {")] or [body]:
        data = json.loads(line)
        for choice in data.get("choices", ()):
            message = choice.get("delta") or choice.get("message") or {}
            calls = message.get("tool_calls") or ()
            pieces += [message.get("content") or "", *(call["function"]["arguments"] for call in calls)]
        delta = data.get("delta")
        if isinstance(delta, dict):
            pieces.append(delta.get("partial_json") or delta.get("text") or "")
        elif isinstance(delta, str):
            pieces.append(delta)
    return json.loads("".join(pieces))


@pytest.mark.parametrize(("title", "kind", "code"), SECTIONS, ids=[f"{title} {kind}" for title, kind, _ in SECTIONS])
def test_the_integration_works(title: str, kind: str, code: str, address: str, tmp_path: Path) -> None:
    if kind == "json":
        wanted = json.loads(code)
        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01", "x-api-key": "k"}
        request = urllib.request.Request(address + wanted["path"], json.dumps(wanted["body"]).encode(), headers)
        with urllib.request.urlopen(request) as response:
            assert answered(response.read().decode()) == ADA
        return
    program = tmp_path / ("client.py" if kind == "py" else "client.mjs")
    program.write_text(code.replace("http://127.0.0.1:8080", address))
    if kind == "py":
        python = sys.executable if title in OURS else peers_python()
        assert seen(python, str(program), folder=tmp_path) == ADA
    else:
        (tmp_path / "node_modules").symlink_to(node_modules() / "node_modules")
        assert seen("node", str(program), folder=tmp_path) == ADA


def test_the_page_has_a_section_for_every_client() -> None:
    assert [title for title, _, _ in SECTIONS] == [
        "OpenAI, Python", "OpenAI, Node", "Anthropic", "Gemini", "Vercel AI SDK", "LangChain", "LlamaIndex",
        "pydantic-ai", "Instructor", "OpenAI Agents SDK", "Claude Code", "Codex", "Cline, Open WebUI, n8n",
    ]  # fmt: skip
