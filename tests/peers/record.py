"""Record what a real program sends through slipform to a vendor that misbehaves: run by hand, replayed by the tests.

    python -m tests.peers.record codex "Codex 0.169.0" exec_command '{cmd: "ls", yield_time_ms: "1000"}' -- \
        codex exec -c 'model_providers.slipform={name="slipform", base_url="ADDRESS/v1", wire_api="responses"}' …

ADDRESS is the proxy's. The vendor says something, calls the tool once with these arguments, and then says that it is
done; for a tool named `-` it answers with the text. What the program sent is kept in `recorded/NAME.jsonl` with its
names, schemas and structure; its words, ids and paths are taken out.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from slipform.addons.server import App
from slipform.addons.server.http_server.asgi import Receive, Scope, Send
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.ir import ModelResponse, ToolCall
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import FakeVendor, Received, Step
from tests.conftest import serving

FOLDER = Path(__file__).parent / "recorded"
_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "content-encoding", "content-type", "openai-beta")
_LONGEST = 48
_IDENTITY = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32,}")


def recording(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the vendor said to a program, and what the program sent."""
    said, *sent = map(json.loads, (FOLDER / f"{name}.jsonl").read_text().splitlines())
    return said, sent


class Recorder:
    """An ASGI application that notes the requests of the one behind it, and their statuses."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        query = scope.get("query_string", b"").decode()
        request: dict[str, Any] = {"method": scope["method"], "path": scope["path"] + (f"?{query}" if query else "")}
        request["headers"] = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        self.requests.append(request)
        body = bytearray()

        async def heard() -> Any:
            message = await receive()
            body.extend(message.get("body", b""))
            request["body"] = bytes(body)
            return message

        async def told(message: Any) -> None:
            request.setdefault("status", message.get("status"))
            await send(message)

        plain = {name: value for name, value in scope.items() if name != "extensions"}
        await self._app(plain, heard, told)


def vendor_of(tool: str, arguments: str) -> FakeVendor:
    """A vendor that calls a tool once, if it is offered, and has then done its work."""
    numbers = itertools.count(1)

    def answer(received: Received) -> Step:
        data, number = received.json(), next(numbers)
        offered = [each["function"]["name"] for each in data.get("tools") or ()]
        if tool in offered and not any(message["role"] == "tool" for message in data["messages"]):
            call = ToolCall(f"call_{number}", tool, arguments)
            return ModelResponse("I will look.", (call,), finish="tool_calls", id=f"answer_{number}")
        return ModelResponse(arguments if tool == "-" else "It is done.", id=f"answer_{number}")

    return FakeVendor(answer)


def scrubbed(value: Any, name: str = "") -> Any:
    """A request without words, ids and paths: names, numbers, types and structure are left."""
    if isinstance(value, dict):
        return {key: scrubbed(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [scrubbed(each, name) for each in value]
    if not isinstance(value, str):
        return value
    if (name == "description" and value) or len(value) > _LONGEST or "\n" in value:
        return f"({len(value)} characters)"
    return "/src/a.py" if value.startswith("/") else _IDENTITY.sub("0", value)


def main(name: str, title: str, tool: str, arguments: str, *command: str) -> None:
    """Run the program and write what it sent."""
    with vendor_of(tool, arguments) as vendor:
        provider = HttpProvider("openai-compatible", base_url=vendor.base_url, api_key="k")
        router = Router({"up": provider}, aliases={"m": "up/m"}, default="m")
        app = App(AsyncClient(router=router, options=Options(budget=Budget(attempts=3))), Settings(default_model="m"))
        recorder = Recorder(app)
        with serving(recorder) as address:
            spelled = [each.replace("ADDRESS", address) for each in command]
            subprocess.run(spelled, check=True, timeout=300, stdin=subprocess.DEVNULL)
    kept = []
    for request in recorder.requests:
        headers = {each: request["headers"][each] for each in _HEADERS if each in request["headers"]}
        body = scrubbed(json.loads(request["body"])) if request.get("body") else None
        kept.append({**request, "headers": headers, "body": body})
    FOLDER.mkdir(exist_ok=True)
    said = {"client": title, "tool": tool, "arguments": re.sub(r"(?<=['\"])/[^'\"]*", "/src/a.py", arguments)}
    (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (said, *kept)))


if __name__ == "__main__":
    before, after = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    main(*before, *after)
