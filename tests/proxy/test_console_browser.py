"""The console in a real browser: what a person would see and do."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.console.access import console_secret, link_token
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import ModelRequest, ModelResponse, ToolCall, ToolResult
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.schema.lowering.lowered import lower
from slipform.testing import (
    FakeModel,
    FakeVendor,
    Raw,
    Received,
    Step,
    cut_stream,
    rate_limited,
    refusal,
    rejected,
    server_error,
    truncated,
)
from slipform.text.loads import load
from tests.conftest import in_browser, serving
from tests.proxy.console_server import PERSON_SCHEMA, Beside, SteppedModel, app_of
from tests.proxy.proxying import keys_path

DRIVER = Path(__file__).with_name("console_browser.mjs")
NAMES = re.findall(r"^  async '([^']+)'\(\)", DRIVER.read_text("utf-8"), re.MULTILINE)
CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "kinds.json"
CANARY = "xyzzy-canary"
_BAD = "window.xss=1"
_SCRIPT = f"<script>{_BAD}</script>"
HOSTILE = [
    _SCRIPT,
    *(f"</{tag}>{_SCRIPT}" for tag in ("title", "textarea", "style", "script", "pre")),
    *(f"{before}{_SCRIPT}" for before in ("-->", "]]>", "<!--[if IE]>", "<math><mtext>", "<template>", "<noscript>")),
    *(f"<{tag} {event}={_BAD}>" for tag, event in [
        ("img src=x", "onerror"), ("img srcset=x", "onerror"), ("svg", "onload"), ("body", "onload"),
        ("details open", "ontoggle"), ("input autofocus", "onfocus"), ("marquee", "onstart"),
        ("video><source", "onerror"), ("svg><animate attributeName=x", "onbegin"), ("audio src=x", "onerror"),
    ]),
    *(f"<{tag}=javascript:{_BAD}>" for tag in (
        "a href", "form action", "object data", "embed src", "link rel=stylesheet href", "base href", "iframe src",
    )),
    f"javascript:{_BAD}",
    "'\"><iframe srcdoc='<script>parent.xss=1</script>'>",
    f"{{{{constructor.constructor('{_BAD}')()}}}}",
    f"<meta http-equiv=refresh content='0;url=javascript:{_BAD}'>",
    f"<svg><script href=data:,{_BAD} />",
    f"'-{_BAD}-'",
    f'";{_BAD}//',
    f"`${{{_BAD}}}`",
    f"&lt;script&gt;{_BAD}&lt;/script&gt;",
    f"<scr\u0000ipt>{_BAD}</scr\u0000ipt>",
    "<style>@import 'http://evil.example/x'</style>",
    "<img src=http://evil.example/x>",
    "\u202egnp.exe\u0000\u001b[31m\u200b\ufeff",
    "__proto__",
    "constructor",
    "toString",
]  # fmt: skip


def recorded_texts() -> list[dict[str, Any]]:
    """Texts that had to be repaired, with their edits, and what the edits make of them."""
    found = []
    for probe in json.loads(CORPUS.read_text("utf-8")):
        try:
            edits = load(probe["input"], nan="null").edits
        except SlipformError:
            continue
        if edits:
            repaired, at = "", 0
            for edit in sorted(edits, key=lambda each: each.position):
                repaired += probe["input"][at : edit.position] + edit.after
                at = edit.position + len(edit.before)
            text = probe["input"]
            listed = [{**edit._asdict(), "certain": edit.certain} for edit in edits]
            found.append({"text": text, "edits": listed, "repaired": repaired + text[at:]})
    return found


def calling(arguments: str) -> ModelResponse:
    """An answer that calls the tool `forecast`."""
    return ModelResponse(tool_calls=(ToolCall("call_1", "forecast", arguments),), finish="tool_calls")


def call_or_answer(request: ModelRequest) -> ModelResponse | str:
    """A call of the tool, or once there is its result, an answer that repeats it."""
    results = [part.text for part in request.messages[-1].parts if isinstance(part, ToolResult)]
    return f"the last turn is {results[0]}" if results else calling('{"year": 2027}')


def models() -> dict[str, FakeModel]:
    """The scripted models that the driver asks for by name."""
    address = {"street": "12 St James's Square", "city": "London"}
    order = {"customer": "Ada", "email": "ada@example.com", "address": address, "items": 3, "total": 33.5,
             "shipping": "express"}  # fmt: skip
    return {
        "order": FakeModel([json.dumps(order)]),
        "good": FakeModel(['{"name": "Ada", "age": 36}']),
        "twin": FakeModel(['{"name": "Ada", "age": 63}']),
        "caller": FakeModel(call_or_answer),
        "recaller": FakeModel([calling('{"year": "next"}'), calling('{"year": 2027}')]),
        "messy": FakeModel(["Sure: {'name': 'Ada', 'age': '36', \"extra\": 1,}"]),
        "poured": FakeModel(['Sure: {"name": "Ada", "age": 3600, "more": 1}', "{'name': 'Ada', 'age': '36'}"]),
        "bad": FakeModel(["no"]),
        "failing": FakeModel([UpstreamError("<img src=x onerror=window.xss=1>", status=500)]),
        "hostile": FakeModel(
            lambda request: json.dumps({"name": request.messages[-1].text, request.messages[-1].text: "x"})
        ),
        "echo": FakeModel(lambda request: request.messages[-1].text),
        **{name: SteppedModel(['{"name": "Ada", "age": 36}']) for name in ("slow", "slower", "slowest")},
    }


SURE = [
    ("{", 0.0),
    ('"name": ', -0.01),
    ('"', 0.0),
    ("Ada", -0.05),
    ('", ', 0.0),
    ('"age": ', -0.01),
    ("36", -0.7),
    ("}", 0.0),
]
"""The answer of a vendor that says how sure its model was of every token."""


def sure_vendor() -> FakeVendor:
    entries = [
        {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in SURE
    ]
    message = {"role": "assistant", "content": "".join(token for token, _ in SURE)}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": entries}}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return FakeVendor([Raw((json.dumps(body).encode(),), 200, {"content-type": "application/json"})])


ENDINGS: dict[str, list[Step]] = {
    "down": [server_error(503, "The engine is overloaded")],
    "limited": [rate_limited(retry_after=600)],
    "locked": [rejected("Incorrect API key provided", 401, "invalid_api_key")],
    "refusing": [refusal()],
    "short": [truncated('{"name": "A')],
    "breaking": [cut_stream('{"name": "Ada", "age": 36}', 2), '{"name": "Ada", "age": 36}'],
}
"""What vendors do that give no answer, or none at once."""


def vendor_named(name: str, stack: ExitStack) -> HttpProvider:
    steps = cycle(ENDINGS[name])

    def answer(received: Received) -> Step:
        return next(steps) if received.method == "POST" else rejected("This vendor does not list its models", 404)

    vendor = stack.enter_context(FakeVendor(answer))
    policy = RetryPolicy(attempts=1, base=0.05)
    provider = HttpProvider("openai", name=name, base_url=vendor.base_url, api_key="none", retries=policy)
    stack.callback(provider.close)
    return provider


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def two_workers(folder: Path, vendor: FakeVendor) -> str:
    """How the driver starts a server of two workers with a history on disk, and where it is then."""
    port = free_port()
    settings = {
        "default_model": "fake/m",
        "providers": {"fake": {"kind": "openai-compatible", "base_url": vendor.base_url}},
        "server": {"port": port, "workers": 2, "history": str(folder / "calls.sqlite"), "log": "off"},
    }
    config = folder / "slipform.yaml"
    config.write_text(json.dumps(settings) + "\n", "utf-8")
    command = [sys.executable, "-m", "slipform", "serve", "--config", str(config)]
    address = f"http://127.0.0.1:{port}"
    link = f"{address}/console/#t={link_token(console_secret())}"
    return json.dumps({"command": command, "env": {"PYTHONWARNINGS": "ignore"}, "link": link, "address": address})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the driver found, by the name of the check."""
    folder = tmp_path_factory.mktemp("console")
    dialects = ("openai", "anthropic", "gemini", "mistral")
    reports = {name: lower(PERSON_SCHEMA, name, open_objects="closed").report for name in dialects}
    losses = {name: [(each.pointer, each.action) for each in report] for name, report in reports.items()}
    keys = keys_path(folder)
    caller, operator = add_key(keys, "ada")[1], add_key(keys, "ops", operator=True)[1]
    with pytest.MonkeyPatch.context() as patched, ExitStack() as stack:
        patched.setenv("XDG_STATE_HOME", str(folder))

        def served(**server: Any) -> str:
            used = models()
            return stack.enter_context(serving(Beside(app_of(used, server, vendors=vendors), used)))

        sure_address = stack.enter_context(sure_vendor()).base_url
        sure = HttpProvider("openai", name="sure", base_url=sure_address, api_key="none")
        stack.callback(sure.close)
        vendors = {"sure": sure, **{f"vendor-{name}": vendor_named(name, stack) for name in ENDINGS}}

        address, quiet = served(console_bytes=32 * 1024 * 1024), served(traces="off")
        keyed = served(keys_file=str(keys))
        vendor = stack.enter_context(FakeVendor(['{"name": "Ada", "age": 36}']))
        token = link_token(console_secret())
        environment = {
            "PYTHON": sys.executable, "CANARY": CANARY, "HOSTILE": json.dumps(HOSTILE),
            "TEXTS": json.dumps(recorded_texts()), "QUIET": quiet, "QUIET_LINK": f"{quiet}/console/#t={token}",
            "KEYED": keyed, "OPERATOR": operator, "CALLER": caller, "WORKERS": two_workers(folder, vendor),
            "LEDGER": json.dumps(losses),
        }  # fmt: skip
        chosen = os.environ.get("CONSOLE_CHECKS", "").split()
        link = f"{address}/console/#t={token}"
        found = in_browser(DRIVER, link, str(folder), *chosen, timeout=450, **environment)
    assert [file.name for file in folder.iterdir() if file.name.startswith("owned")] == []
    return found


@pytest.mark.timeout(500)
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("name", NAMES)
def test_in_a_browser(name: str, results: dict[str, str]) -> None:
    if name not in results:
        pytest.skip("not among CONSOLE_CHECKS")
    assert results[name] == ""
