"""The proxy as an ASGI application: the same answers under uvicorn, hypercorn and granian as under its own server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypercorn.asyncio
import hypercorn.config
import pytest
import uvicorn
from granian.constants import Interfaces
from granian.server.embed import Server as Granian

from slipform.addons.server import App
from slipform.addons.server.admission.keys import add_key
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.testing import Answer, FakeVendor
from tests.conftest import serving
from tests.proxy.proxying import ADA, ASK, FORMAT, keys_path
from tests.proxy.wire import Reply, post, provider_of
from tests.waiting import until

CHAT = "/v1/chat/completions"
LONG = json.dumps({"name": "Ada" * 1600, "age": 36})


@contextlib.contextmanager
def in_thread(serve: Callable[[asyncio.Event], Any], port: int) -> Iterator[str]:
    """Run a server in an event loop of its own until the block ends."""
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        await serve(stop)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()

    def is_ready() -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200

    assert until(is_ready, ignoring=(OSError, http.client.HTTPException)), "the server did not start"
    yield f"http://127.0.0.1:{port}"
    loop, stop = loops[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    assert not thread.is_alive(), "the server did not stop"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def under_uvicorn(app: App) -> AbstractContextManager[str]:
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=2)
    )

    async def serve(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server._serve())
            await stop.wait()
            server.should_exit = True

    return in_thread(serve, port)


def under_hypercorn(app: App) -> AbstractContextManager[str]:
    port = free_port()
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.graceful_timeout = 2
    config.errorlog = None
    framework: Any = app
    return in_thread(lambda stop: hypercorn.asyncio.serve(framework, config, shutdown_trigger=stop.wait), port)


def under_granian(app: App) -> AbstractContextManager[str]:
    port = free_port()

    async def serve(stop: asyncio.Event) -> None:
        server = Granian(app, "127.0.0.1", port, interface=Interfaces.ASGI, log_enabled=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            await stop.wait()
            server.stop()  # type: ignore[no-untyped-call]

    return in_thread(serve, port)


Under = Callable[[App], AbstractContextManager[str]]


@pytest.fixture(
    params=[under_uvicorn, under_hypercorn, under_granian, serving], ids=["uvicorn", "hypercorn", "granian", "ours"]
)
def under(request: pytest.FixtureRequest) -> Under:
    made: Under = request.param
    return made


@pytest.fixture
def vendor() -> Iterator[FakeVendor]:
    with FakeVendor([ADA]) as running:
        yield running


def app_over(vendor: FakeVendor, **settings: Any) -> App:
    router = Router({"fake": provider_of(vendor)}, default="fake/m")
    return App(AsyncClient(router=router), Settings.model_validate({"default_model": "fake/m", **settings}))


def ask(address: str, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    body = {"model": "fake/m", "messages": ASK, "response_format": FORMAT, **fields}
    return post(address, CHAT, {name: value for name, value in body.items() if value is not None}, headers)


def said(reply: Reply) -> str:
    events = [event for event in reply.events() if event != "[DONE]" and event["choices"]]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


@pytest.mark.parametrize("shape", [FORMAT, None], ids=["with a schema", "as it is"])
def test_answers_are_the_same_whole_and_streamed(under: Under, vendor: FakeVendor, shape: Any) -> None:
    with under(app_over(vendor)) as address:
        whole = ask(address, response_format=shape)
        assert (whole.status, whole.json()["choices"][0]["message"]["content"]) == (200, ADA)
        streamed = ask(address, response_format=shape, stream=True)
        assert (streamed.status, said(streamed)) == (200, ADA)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.events()[-1] == "[DONE]"
        assert ask(address).status == 200, "and the connection's worker goes on"


@pytest.mark.parametrize("shape", [FORMAT, None], ids=["with a schema", "as it is"])
def test_a_stream_is_live_and_a_client_that_leaves_it_ends_the_call_upstream(under: Under, shape: Any) -> None:
    with (
        FakeVendor([Answer(LONG, pace=0.05)]) as vendor,
        under(app_over(vendor, enforcement={"stream_mode": "live"})) as address,
    ):
        body = {"model": "fake/m", "messages": ASK, "response_format": shape, "stream": True}
        with contextlib.closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)) as client:
            client.request("POST", CHAT, json.dumps({name: value for name, value in body.items() if value}))
            response = client.getresponse()
            line = b""
            while b"Ada" not in line:  # of an answer that takes the vendor a minute
                line = response.readline()
            assert not vendor.requests[0].aborted
            response.close()
        assert vendor.wait_until(lambda each: each.requests[0].aborted, timeout=20)


def test_a_client_that_leaves_before_the_answer_ends_the_call_upstream(under: Under) -> None:
    with FakeVendor([Answer(ADA, latency=60)]) as vendor, under(app_over(vendor)) as address:
        with contextlib.closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)) as client:
            client.request("POST", CHAT, json.dumps({"model": "fake/m", "messages": ASK, "response_format": FORMAT}))
            assert vendor.wait_until(lambda each: len(each.requests) == 1, timeout=20)
        assert vendor.wait_until(lambda each: each.requests[0].aborted, timeout=20)


def test_requests_that_are_too_large_or_too_slow_are_refused(under: Under, vendor: FakeVendor) -> None:
    limits = {"server": {"max_body_bytes": 2000, "body_seconds": 0.3}}
    with under(app_over(vendor, **limits)) as address:
        assert ask(address, user="x" * 3000).status == 413
        with contextlib.closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)) as client:
            client.putrequest("POST", CHAT)
            client.putheader("content-length", "100")
            client.endheaders()
            client.send(b"{")
            response = client.getresponse()
            assert (response.status, json.loads(response.read())["error"]["code"]) == (408, "request_timeout")
    assert vendor.requests == []


def test_errors_have_the_shape_of_the_api(under: Under, vendor: FakeVendor) -> None:
    with under(app_over(vendor)) as address:
        for body, status in ((b"{", 400), ({"model": "nobody/m", "messages": ASK}, 404)):
            reply = post(address, CHAT, body)
            assert reply.status == status
            assert reply.json()["error"]["message"]
        assert post(address, "/v1/nothing", {}).status == 404
    with FakeVendor(["not JSON at all"]) as wrong, under(app_over(wrong)) as address:
        assert ask(address).status == 422


def test_keys_are_asked_for(under: Under, vendor: FakeVendor, tmp_path: Path) -> None:
    keys = keys_path(tmp_path)
    _, secret = add_key(keys, "ada")
    with under(app_over(vendor, server={"keys_file": str(keys)})) as address:
        assert ask(address).status == 401
        assert ask(address, {"authorization": "Bearer sf-wrong"}).status == 401
        assert ask(address, {"authorization": f"Bearer {secret}"}).status == 200
