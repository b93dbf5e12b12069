"""Health, readiness, version and the lists of models, as operators and the official SDKs ask for them."""

from __future__ import annotations

import contextlib
import http.client
import threading
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from slipform import AsyncClient, __version__
from slipform.addons.local import LocalProvider
from slipform.addons.server import App
from slipform.build_info import build_in_use
from slipform.config import Settings
from slipform.errors import LocalModelError
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import router_for, serving
from tests.proxy.asgi import call, get, post

ROUTER = Router({"fake": FakeModel(["hi"], models=("m", "n"))}, aliases={"quick": "fake/m"}, default="quick")


@pytest.fixture
def app() -> App:
    return App(AsyncClient(router=ROUTER), Settings())


class Slow(LocalProvider):
    """An embedded model that is loaded when the test says so, or never."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.loaded = threading.Event()
        self._broken = broken

    def warm(self, model: str = "") -> None:
        self.loaded.wait(10)
        if self._broken:
            raise LocalModelError("The weights are missing")


@pytest.mark.covers("S2-19")
@pytest.mark.parametrize("path", ["/healthz", "/health/liveliness", "/health/liveness"])
async def test_a_process_that_lives_says_so(app: App, path: str) -> None:
    reply = await get(app, path)
    assert (reply.status, reply.json()) == (200, {"status": "ok"})


async def test_the_version_is_told_with_what_was_built(app: App) -> None:
    said = (await get(app, "/version")).json()
    assert (said["version"], said["build"]) == (__version__, str(build_in_use()))


@pytest.mark.parametrize("broken", [False, True])
def test_requests_are_wanted_only_once_the_embedded_model_is_loaded(broken: bool) -> None:
    model = Slow(broken=broken)
    app = App(AsyncClient(router=router_for(model)), Settings())
    with serving(app) as address:

        def ready(path: str = "/readyz") -> tuple[int, bytes]:
            connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
            with contextlib.closing(connection):
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read()

        assert ready()[0] == 503
        assert b"loading" in ready("/health/readiness")[1]
        model.loaded.set()
        if broken:
            assert ready()[0] == 503
        else:
            for _ in range(200):
                status, _said = ready()
                if status == 200:
                    break
                threading.Event().wait(0.01)
            assert ready() == (200, b'{"status":"ready","config":1}')
            app.drain()
            assert ready() == (503, b'{"status":"draining","config":1}')


@pytest.mark.covers("S2-18")
async def test_models_are_listed_in_the_shape_the_client_expects(app: App) -> None:
    names = ["quick", "fake/m", "fake/n"]
    assert [entry["id"] for entry in (await get(app, "/v1/models")).json()["data"]] == names
    theirs = (await get(app, "/v1/models", {"anthropic-version": "2026-10-21"})).json()
    assert [entry["id"] for entry in theirs["data"]] == names
    assert (theirs["first_id"], theirs["last_id"], theirs["has_more"]) == ("quick", "fake/n", False)
    assert [entry["name"] for entry in (await get(app, "/v1beta/models")).json()["models"]] == [
        f"models/{name}" for name in names
    ]


@pytest.mark.covers("S2-18", "S2-20", "S2-27")
def test_the_official_sdks_list_and_find_the_models(app: App) -> None:
    with serving(app) as address:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="-") as client:
            assert [model.id for model in client.models.list()] == ["quick", "fake/m", "fake/n"]
            assert client.models.retrieve("fake/n").id == "fake/n"
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("nobody")
        with anthropic.Anthropic(base_url=address, api_key="-") as other:
            assert [model.id for model in other.models.list()] == ["quick", "fake/m", "fake/n"]
            assert other.models.retrieve("quick").display_name == "quick"
            with pytest.raises(anthropic.NotFoundError):
                other.models.retrieve("nobody")
        for version in ("v1", "v1beta"):
            options = types.HttpOptions(base_url=address, api_version=version)
            third = genai.Client(api_key="-", http_options=options)
            assert [model.name for model in third.models.list()] == ["models/quick", "models/fake/m", "models/fake/n"]
            assert third.models.get(model="quick").name == "models/quick"
            third.close()


@pytest.mark.covers("S2-11")
async def test_a_sane_request_id_is_kept_and_another_is_replaced(app: App) -> None:
    body = {"model": "quick", "messages": [{"role": "user", "content": "hi"}]}
    kept = await post(app, "/v1/chat/completions", body, {"x-request-id": "trace-7"})
    assert kept.headers["x-request-id"] == kept.headers["x-slipform-request-id"] == "trace-7"
    for bad in ("two words", "", "x" * 200, "é"):
        made = await post(app, "/v1/chat/completions", body, {"x-request-id": bad})
        assert made.headers["x-request-id"] not in ("", bad)
        assert len(made.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "shape"),
    [
        ("GET", "/nowhere", {}, 404, "openai"),
        ("GET", "/v1/nowhere", {"anthropic-version": "1"}, 404, "anthropic"),
        ("GET", "/v1beta/nowhere", {}, 404, "gemini"),
        ("GET", "/v1/models/nobody", {}, 404, "openai"),
        ("GET", "/v1beta/models/nobody", {}, 404, "gemini"),
        ("DELETE", "/v1/models", {}, 405, "openai"),
        ("GET", "/v1/chat/completions", {}, 405, "openai"),
        ("GET", "/v1beta/models/quick:generateContent", {}, 405, "gemini"),
        ("POST", "/healthz", {}, 405, "openai"),
    ],
)
@pytest.mark.covers("C31")
async def test_what_is_not_there_is_said_in_the_callers_shape(
    app: App, method: str, path: str, headers: dict[str, str], status: int, shape: str
) -> None:
    reply = await call(app, method, path, headers=headers)
    assert reply.status == status
    error = reply.json()["error"]
    assert error["message"]
    if shape == "openai":
        assert {"type", "param", "code"} <= set(error)
    elif shape == "anthropic":
        assert reply.json()["type"] == "error"
    else:
        assert error["code"] == status
    assert ("allow" in reply.headers) == (status == 405)
