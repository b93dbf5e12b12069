"""Take the pictures of the console for the docs: `python -m tests.proxy.console_screenshots [FOLDER] [all]`.

The server is real, its models are scripted; `make screenshots` runs it, so that the pictures do not grow old.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from slipform.addons.server.admission.budgets import KeyBudget
from slipform.addons.server.admission.keys import add_key, disable_key
from slipform.addons.server.console.access import console_secret, link_token
from slipform.addons.server.console.history import CallHistory
from slipform.errors import UpstreamError
from slipform.ir import ModelResponse, ToolCall
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import FakeModel, FakeVendor, rate_limited
from tests.conftest import node_folder, serving
from tests.proxy.console_server import Beside, PacedModel, app_of
from tests.proxy.proxying import call

DRIVER = Path(__file__).with_name("console_screenshots.mjs")
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "img"
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
        "price": {"type": "number", "minimum": 0},
    },
    "required": ["name", "quantity", "price"],
    "additionalProperties": False,
}
ORDER = {
    "title": "order",
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "email": {"type": "string", "format": "email"},
        "items": {"type": "array", "items": ITEM, "minItems": 1},
        "shipping": {"enum": ["standard", "express"]},
    },
    "required": ["customer", "email", "items", "shipping"],
    "additionalProperties": False,
}
TICKET = {
    "title": "ticket",
    "type": "object",
    "properties": {"subject": {"type": "string", "maxLength": 60}, "urgency": {"enum": ["low", "high"]}},
    "required": ["subject", "urgency"],
}
TICKET_ANSWER = '{"subject": "Printer on fire", "urgency": "high"}'
PROMPT = "Ada Lovelace (ada@example.com) ordered 2 notebooks at 4.50 and 1 fountain pen at 29.00, sent by express."
GOOD = json.dumps(
    {
        "customer": "Ada Lovelace",
        "email": "ada@example.com",
        "items": [
            {"name": "notebook", "quantity": 2, "price": 4.5},
            {"name": "fountain pen", "quantity": 1, "price": 29.0},
        ],
        "shipping": "express",
    }
)
SAMPLE = json.dumps(
    {
        "customer": "Ada Lovelace",
        "email": "ada@example.com",
        "address": {"street": "12 St James's Square", "city": "London"},
        "items": 3,
        "total": 33.5,
        "shipping": "express",
    }
)
"""The answer to the console's own sample."""
FAULTY = f"Sure, here is the order:\n```json\n{GOOD[:-1]}".replace('"quantity": 2,', '"quantity": 200,')
MESSY = GOOD.replace('"', "'").replace("2,", "'2',").replace("'express'", "'Express',") + " Let me know!"


TOOL = {
    "type": "function",
    "function": {
        "name": "ship_order",
        "description": "Hand an order to the carrier.",
        "parameters": {
            "type": "object",
            "properties": {"order": {"type": "integer"}, "express": {"type": "boolean"}},
            "required": ["order", "express"],
            "additionalProperties": False,
        },
    },
}
QUESTION = {"role": "user", "content": "Ship order 4711 by express, then tell me when it arrives."}


def _calling(arguments: str) -> ModelResponse:
    return ModelResponse(tool_calls=(ToolCall("call_1", "ship_order", arguments),), finish="tool_calls")


def models() -> dict[str, FakeModel]:
    """The scripted models behind the names that the pictures show."""
    return {
        "openai": PacedModel(lambda request: SAMPLE if "Street:" in request.messages[-1].text else GOOD),
        "anthropic": PacedModel([FAULTY, GOOD] * 50, first=0.2),
        "mistral": PacedModel([MESSY]),
        "groq": PacedModel(
            ['{"subject": "Printer on fire", "urgency": "high"}'] * 3 + ['{"subject": "?", "urgency": "soon"}', "no"]
        ),
        "cohere": FakeModel([UpstreamError("The engine is overloaded, try again later", status=503)]),
        "gemini": FakeModel([ModelResponse(refusal="I cannot help with orders of this kind.", finish="refusal")]),
        "xai": FakeModel(
            [
                _calling('{"order": "4711", "express": "soon"}'),
                _calling('{"order": 4711, "express": true}'),
                "It arrives tomorrow.",
                "By the morning van.",
            ]
        ),
    }


def ask(
    address: str, model: str, schema: dict[str, Any], headers: Mapping[str, str] | None = None, **more: Any
) -> None:
    """One call, as a client of the proxy makes it."""
    wanted = {"type": "json_schema", "json_schema": {"name": schema["title"], "schema": schema}}
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "response_format": wanted, **more}
    call(address, "/v1/chat/completions", body, headers)


def fill(address: str) -> None:
    """Traffic to look at."""
    live: dict[str, Any] = {"stream": True, "slipform": {"stream_mode": "live"}}
    for number in range(14):
        ask(address, "openai/gpt-5-mini", ORDER, **(live if number % 3 else {}))
        ask(address, "groq/llama-70b", TICKET)
        if number % 2:
            ask(address, "mistral/medium", ORDER)
        if number % 4 == 3:
            ask(address, "anthropic/claude-sonnet", ORDER, **live)
    ask(address, "openai/gpt-5-mini", ORDER, slipform={"evidence": {"samples": 2}})
    call(
        address, "/v1/chat/completions", {"model": "openai/gpt-5-mini", "messages": [{"role": "user", "content": "Hi"}]}
    )
    for model in ("cohere/command", "gemini/gemini-3", "best", "together/llama", "busy/llama"):
        ask(address, model, ORDER)
    converse(address)


def converse(address: str) -> None:
    """The calls of an agent: one that calls a tool, one with its result, one that goes on."""
    messages: list[Any] = [QUESTION]
    for said in (
        {"role": "tool", "tool_call_id": "call_1", "content": "tomorrow, 9:00"},
        {"role": "user", "content": "How?"},
    ):
        answer = call(
            address, "/v1/chat/completions", {"model": "xai/grok", "messages": messages, "tools": [TOOL]}
        ).json
        messages += [answer["choices"][0]["message"], said]
    call(address, "/v1/chat/completions", {"model": "xai/grok", "messages": messages, "tools": [TOOL]})


def busy_vendor(name: str, answers: list[Any], stack: ExitStack) -> HttpProvider:
    """A vendor that refuses calls for a moment."""
    vendor = stack.enter_context(FakeVendor(answers))
    policy = RetryPolicy(attempts=1)
    provider = HttpProvider("openai-compatible", name=name, base_url=vendor.base_url, api_key="k", retries=policy)
    stack.callback(provider.close)
    return provider


def spread(history: CallHistory, seconds: float) -> None:
    """Let the calls have come over so many seconds, instead of as quickly as they were made."""
    rows = [list(row.values()) for row in history.rows(newest_first=False)]
    older = [[f"x{copy}{row[0][2:]}", *row[1:]] for copy in "0123456789" for row in rows]
    began = min(row[2] for row in rows)
    for number, row in enumerate(older):
        row[2] = began - 1 - seconds * (1 - number / len(older)) ** 1.3
    history._rows.clear()
    history._rows.extend(orjson.dumps(row) for row in [*older, *rows])


def keyed_server(folder: Path, stack: ExitStack) -> dict[str, str]:
    """Where a server with keys is, some of them used, and an operator's key of it."""
    path = folder / "keys.json"
    add_key(path, "newsletter", models=["openai/*"], requests_per_minute=60)
    reports = add_key(path, "reports", budget=KeyBudget(max_tokens=2_000_000, period="month"))[1]
    add_key(path, "trial")
    disable_key(path, "trial")
    operator = add_key(path, "ops", operator=True)[1]
    used = models()
    server = {"keys_file": str(path), "console": "on"}
    address = stack.enter_context(serving(Beside(app_of(used, server, default="openai/gpt-5-mini"), used)))
    for _ in range(3):
        ask(address, "openai/gpt-5-mini", ORDER, {"authorization": f"Bearer {reports}"})
    return {"KEYED": address, "OPERATOR": operator}


def main(folder: Path, *more: str) -> None:
    """Serve, fill, and take the pictures."""
    node, modules = node_folder("puppeteer-core")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state, ExitStack() as stack:
        os.environ["XDG_STATE_HOME"] = state
        used = models()
        limited = rate_limited(retry_after_ms=300)
        vendors = {
            "together": busy_vendor("together", [limited, GOOD], stack),
            "busy": busy_vendor("busy", [limited], stack),
        }
        lists = {"best": ("cohere/command", "openai/gpt-5-mini")}
        app = app_of(used, default="openai/gpt-5-mini", vendors=vendors, lists=lists)
        with serving(Beside(app, used)) as address:
            fill(address)
            spread(app.console.history, 840)
            link = f"{address}/console/#t={link_token(console_secret())}"
            environment = {**os.environ, "SLIPFORM_NODE": str(modules), **keyed_server(Path(state), stack)}
            if folder == DOCS:
                environment["CARD"] = f"{ROOT / 'website' / 'card.svg'}:{ROOT / 'docs' / 'assets' / 'card.png'}"
            subprocess.run([node, str(DRIVER), link, str(folder), *more], env=environment, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS, *sys.argv[2:])
