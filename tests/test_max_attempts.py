"""Every face allows the same number of model calls for one answer, under the same settings."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from slipform import AsyncClient, Client, Options, wrap
from slipform.addons.server import App
from slipform.config import Settings, load_settings
from slipform.engine.setup import options_of, router_of
from slipform.errors import EnforcementError
from slipform.runner import batch, run
from slipform.testing import FakeVendor
from tests.cli.conftest import Cli, Done, cli, fake, folder
from tests.conftest import PERSON, serving
from tests.proxy.wire import post

__all__ = ["cli", "fake", "folder"]

PROMPT = "Ada is 36"
CHAT: Any = {"messages": [{"role": "user", "content": PROMPT}]}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
NO_PAUSE = "retries: {backoff_seconds: 0}\n"
SETTINGS = {
    "the default": ("", 3),
    "enforcement.max_attempts": ("enforcement: {max_attempts: 2}\n", 2),
    "retries.attempts": ("retries: {attempts: 1}\n", 2),
    "no retry": ("retries: {attempts: 0}\n", 1),
    "both": ("retries: {attempts: 4}\nenforcement: {max_attempts: 1}\n", 1),
}


def forecast(place: str) -> str:
    """Say what the weather will be."""
    return place


def ask(_: Cli) -> None:
    with Client() as client:
        client.ask(PERSON, PROMPT)


def ask_with_tools(_: Cli) -> None:
    with Client() as client:
        client.ask(PERSON, PROMPT, tools=[forecast])


def stream(_: Cli) -> None:
    with Client() as client, client.stream(PERSON, PROMPT) as partials:
        assert partials.result


def ask_async(_: Cli) -> None:
    async def ask_person() -> None:
        async with AsyncClient() as client:
            await client.ask(PERSON, PROMPT)

    asyncio.run(ask_person())


def wrapped(_: Cli) -> None:
    settings = load_settings()
    address = settings.providers["fake"].base_url
    client = wrap(openai.OpenAI(base_url=address, api_key="any"), options=options_of(settings))
    client.chat.completions.create(model="model", **CHAT, response_format=FORMAT)


def proxied(_: Cli) -> None:
    settings = load_settings()
    client = AsyncClient(router=router_of(settings), options=options_of(settings))
    with serving(App(client, settings)) as address:
        post(address, "/v1/chat/completions", {"model": "fake/model", **CHAT, "response_format": FORMAT})


def run_files(_: Cli) -> None:
    Path("ada.txt").write_text(PROMPT)
    run("Who is it?", ["ada.txt"], require_json=True)


def batch_rows(_: Cli) -> None:
    Path("in.jsonl").write_text(json.dumps({"text": PROMPT}))
    batch("in.jsonl", schema=PERSON, out="out.jsonl", prompt="{text}")


def fail_invalid(done: Done) -> None:
    assert done.code == 5, done.err


def ask_command(cli: Cli) -> None:
    fail_invalid(cli("ask", PROMPT, "-s", "person.json"))


def run_command(cli: Cli) -> None:
    Path("ada.txt").write_text(PROMPT)
    fail_invalid(cli("run", "Who is it?", "ada.txt", "--json"))


def batch_command(cli: Cli) -> None:
    Path("in.jsonl").write_text(json.dumps({"text": PROMPT}))
    fail_invalid(cli("batch", "in.jsonl", "-s", "person.json", "--prompt", "{text}", "-o", "rows.jsonl"))


def eval_command(cli: Cli) -> None:
    Path("in.jsonl").write_text(json.dumps({"input": PROMPT, "expected": {"name": "Ada", "age": 36}}))
    assert cli("eval", "in.jsonl", "-s", "person.json").code == 0


FACES: list[Callable[[Cli], None]] = [
    ask, ask_with_tools, stream, ask_async, wrapped, proxied, run_files, batch_rows, ask_command, run_command,
    batch_command, eval_command,
]  # fmt: skip


@pytest.mark.covers("C02")
@pytest.mark.parametrize("name", SETTINGS)
def test_every_face_has_the_same_number_of_attempts(cli: Cli, fake: Callable[..., FakeVendor], name: str) -> None:
    text, wanted = SETTINGS[name]
    text = text.replace("retries: {", "retries: {backoff_seconds: 0, ") if "retries" in text else f"{text}{NO_PAUSE}"
    calls = {}
    for face in FACES:
        vendor = fake(lambda _: "I do not know.", text)
        with contextlib.suppress(EnforcementError):
            face(cli)
        calls[face.__name__] = len(vendor.requests)
    assert calls == dict.fromkeys(calls, wanted)


def test_a_client_without_settings_has_the_default() -> None:
    assert Options().budget.attempts == Settings().max_attempts == options_of(Settings()).budget.attempts == 3


@pytest.mark.parametrize("option", ["--max-attempts", "--attempts"])
def test_the_option_has_two_names(cli: Cli, fake: Callable[..., FakeVendor], option: str) -> None:
    vendor = fake(lambda _: "I do not know.", NO_PAUSE)
    assert cli("ask", PROMPT, "-s", "person.json", option, "1").code == 5
    assert len(vendor.requests) == 1
