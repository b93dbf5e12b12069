"""The console in a real browser: what a person would see and do."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slipform.config import Settings
from slipform.engine.setup import options_of
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.proxy import App
from slipform.proxy.console.access import console_secret, link_token
from slipform.proxy.observability.call_record import CallRecord
from slipform.schema.lowering.lowered import lower
from slipform.testing import FakeModel
from tests.conftest import node_folder, serving

DRIVER = Path(__file__).with_name("console_browser.mjs")
NAMES = re.findall(r"^  async '([^']+)'\(\)", DRIVER.read_text("utf-8"), re.MULTILINE)
HOSTILE = [
    "<script>window.xss=1</script>",
    "<img src=x onerror=window.xss=1>",
    "javascript:window.xss=1",
    "<svg onload=window.xss=1>",
    "'\"><iframe srcdoc='<script>parent.xss=1</script>'>",
    "\u202egnp.exe\u0000\u001b[31m",
    "__proto__",
    "{{constructor.constructor('window.xss=1')()}}",
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Beside:
    """The application, and beside it two addresses for the driver: how often models were asked, and old calls."""

    def __init__(self, app: App, models: dict[str, FakeModel]) -> None:
        self._app = app
        self._models = models

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/test/count":
            body = str(sum(len(model.requests) for model in self._models.values()))
        elif scope.get("path") == "/test/fill":
            body = self._fill()
        else:
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})

    def _fill(self) -> str:
        """Ten thousand calls, older than all others; gives the oldest's id."""
        history, oldest = self._app.console.history, ""
        newer = list(history.rows(newest_first=False))
        history.clear()
        for number in range(10_000 - len(newer)):
            record = CallRecord(f"old-{number}", api="openai-chat", model="old")
            record.started -= 20_000 - number
            record.ended = record.started + 0.1
            entry = history.begin(record)
            history.end(entry, record)
            oldest = oldest or entry
        return oldest


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the driver found, by the name of the check."""
    node, modules = node_folder("puppeteer-core")
    folder = tmp_path_factory.mktemp("console")
    models = {
        "good": FakeModel(['{"name": "Ada", "age": 36}']),
        "messy": FakeModel(["Sure: {'name': 'Ada', 'age': '36', \"extra\": 1,}"]),
        "poured": FakeModel(['Sure: {"name": "Ada", "age": 3600, "more": 1}', "{'name': 'Ada', 'age': '36'}"]),
        "bad": FakeModel(["no"]),
        "hostile": FakeModel(lambda request: json.dumps({"name": request.messages[-1].text, "age": 1})),
    }
    aliases = {f"fake/{name}": f"{name}/m" for name in models}
    settings = Settings.model_validate(
        {
            "default_model": "fake/good",
            "model_aliases": aliases,
            "server": {"traces": "on", "console_bytes": 32 * 1024 * 1024},
        }
    )
    router = Router(models, aliases=aliases, default="good/m")
    app = App(AsyncClient(router=router, options=options_of(settings)), settings)
    losses = {name: lower(SCHEMA, name, open_objects="closed").report for name in ("openai", "anthropic", "gemini")}
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "SLIPFORM_NODE": str(modules)}
    environment["HOSTILE"] = json.dumps(HOSTILE)
    environment["LEDGER"] = json.dumps(
        {name: [(each.pointer, each.action) for each in report] for name, report in losses.items()}
    )
    patched = pytest.MonkeyPatch()
    patched.setenv("XDG_STATE_HOME", str(folder))
    with serving(Beside(app, models)) as address:
        environment |= {"COUNT": f"{address}/test/count", "FILL": f"{address}/test/fill"}
        link = f"{address}/console/#t={link_token(console_secret())}"
        command = [node, str(DRIVER), link, str(folder)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    patched.undo()
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [file.name for file in folder.iterdir() if file.name.startswith("owned")] == []
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(500)
@pytest.mark.xdist_group("console")
@pytest.mark.parametrize("name", NAMES)
def test_in_a_browser(name: str, results: dict[str, str]) -> None:
    assert results[name] == ""
