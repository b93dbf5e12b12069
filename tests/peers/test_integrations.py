"""Every snippet of the pages on integrations, and every request that was recorded of a program, gets a valid answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import urllib.request
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
from slipform.testing import FakeVendor, Received, Step, calling
from tests.conftest import serving
from tests.peers.record import FOLDER, recording
from tests.peers.test_peers import ADA, SPOILT, node_modules, peers_python, seen

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "integrations").glob("*.md"))
SECTIONS = [
    (page.stem, kind, code)
    for page in PAGES
    for kind, code in re.findall(r"^```(py|js)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
]
OURS = ("anthropic", "google-genai")
"""Whose SDKs are in our own environment."""
APART = {"llamaindex": ("SLIPFORM_LLAMA_INDEX", "llama_index"), "agents-sdk": ("SLIPFORM_AGENTS", "agents")}
"""Whose versions go with no other's: what names their environment, and the folder that it is in otherwise."""


def misbehave(received: Received) -> Step:
    """A vendor that answers in prose, and calls a tool with a number in quotes where one is offered."""
    tools = received.json().get("tools")
    return calling((tools[-1]["function"]["name"], "{name: 'Ada', age: '36'}")) if tools else SPOILT


@contextlib.contextmanager
def serving_in_front_of(fake: FakeVendor) -> Iterator[str]:
    """The address of a proxy whose only model is a vendor's."""
    with fake as vendor:
        provider = HttpProvider("openai-compatible", base_url=vendor.base_url, api_key="k")
        router = Router({"up": provider}, aliases={"m": "up/m"}, default="m")
        client = AsyncClient(router=router, options=Options(budget=Budget(attempts=2)))
        # The vendor answers from a script, of which a question for its models would take a line.
        settings = Settings.model_validate({"default_model": "m", "server": {"vendor_models": False}})
        with serving(App(client, settings)) as found:
            yield found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_in_front_of(FakeVendor(misbehave)) as found:
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


RECORDED: dict[str, Any] = {
    "claude_code": {"file_path": "/src/a.py", "old_string": "x = 1", "new_string": "x = 2", "replace_all": False},
    "codex": {"cmd": "ls", "yield_time_ms": 1000},
    "cline": {"commands": ["ls"]},
    "llama_index": ADA,
    "n8n": ADA,
    "open_webui": ADA,
}
"""The programs that were recorded, and the arguments that their tool, or the value that they, must get."""


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_program_sent_is_answered_with_a_valid_call(name: str) -> None:
    said, sent = recording(name)
    assert any(f"with {said['client']}" in page.read_text() for page in PAGES)
    first: Step = said["arguments"] if said["tool"] == "-" else calling((said["tool"], said["arguments"]))
    turns: list[Step] = [first, '"done"']
    with serving_in_front_of(FakeVendor(turns)) as address:
        bodies = []
        for each in sent:
            body = None if each["body"] is None else json.dumps(each["body"]).encode()
            request = urllib.request.Request(address + each["path"], body, each["headers"], method=each["method"])
            with urllib.request.urlopen(request) as response:
                assert response.status == each["status"]
                bodies += [response.read().decode()] if body else []
    assert answered(bodies[0]) == RECORDED[name]
    assert all(answered(later) == "done" for later in bodies[1:])


def test_every_recording_is_replayed() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == RECORDED.keys()


def interpreter(title: str) -> str:
    """The Python that has the library of a page."""
    if title in OURS:
        return sys.executable
    if title not in APART:
        return peers_python()
    variable, folder = APART[title]
    found = os.environ.get(variable) or str(Path(sys.prefix) / folder / "bin" / "python")
    if not Path(found).exists():
        pytest.skip(f"{title} is not installed here; {variable} names a Python that has it")
    return found


@pytest.mark.parametrize(("title", "kind", "code"), SECTIONS, ids=[f"{title} {kind}" for title, kind, _ in SECTIONS])
def test_the_integration_works(title: str, kind: str, code: str, address: str, tmp_path: Path) -> None:
    program = tmp_path / ("client.py" if kind == "py" else "client.mjs")
    program.write_text(code.replace("http://127.0.0.1:8080", address))
    if kind == "py":
        assert seen(interpreter(title), str(program), folder=tmp_path) == ADA
    else:
        (tmp_path / "node_modules").symlink_to(node_modules() / "node_modules")
        assert seen("node", str(program), folder=tmp_path) == ADA


def test_every_client_has_its_page_which_says_how_it_is_tested() -> None:
    assert {page.stem for page in PAGES} == {
        "openai", "anthropic", "google-genai", "vercel-ai-sdk", "langchain", "llamaindex", "pydantic-ai", "instructor",
        "agents-sdk", "claude-code", "codex", "cline", "open-webui", "n8n",
    }  # fmt: skip
    run = {title for title, _, _ in SECTIONS}
    for page in PAGES:
        assert ("*Tried*" if page.stem in run else "*Replayed*") in page.read_text(), page.stem
