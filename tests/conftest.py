"""What several test modules share."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from slipform.client import AsyncClient
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine import Options
from slipform.providers import Provider
from slipform.providers.local import LocalProvider
from slipform.providers.router import Router
from slipform.server import App

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def local() -> Iterator[LocalProvider]:
    """The embedded model, loaded once for all the tests of a worker."""
    provider = LocalProvider()
    yield provider
    provider.close()


@pytest.fixture(scope="session")
def proxy(local: LocalProvider) -> Iterator[str]:
    """A running proxy with the embedded model; gives its address."""
    client = AsyncClient(router=router_for(local), options=Options(budget=Budget(attempts=3)))
    with serving(App(client, Settings())) as address:
        yield address


def router_for(provider: Provider) -> Router:
    """A router whose default, and only, provider is this one, under the name of the embedded model."""
    return Router({"local": provider}, aliases={"local": f"local/{LocalProvider().models()[0]}"}, default="local")


class serving:  # noqa: N801 — reads as a verb
    """Serves an application on a free port of loopback, in a thread."""

    def __init__(self, app: App) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


__all__ = ["PERSON", "router_for", "serving"]
