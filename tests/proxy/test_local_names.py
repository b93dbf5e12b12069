"""The embedded models over HTTP: what the configuration names, or what is here; no file and no download by request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.local import LocalProvider
from slipform.addons.local import engine as models
from slipform.addons.local.engine import Cancel, GenerationEvent
from slipform.addons.local.weights import QWEN_CODER, SMOLLM2, Weights
from slipform.addons.server import App
from slipform.addons.server.serve import _fetch_named
from slipform.addons.transformers import TransformersProvider
from slipform.config import Settings
from slipform.engine.setup import router_of
from slipform.errors import LocalModelError, UnknownModelError
from slipform.ir import Message, ModelRequest
from slipform.library.async_client import AsyncClient
from slipform.providers import Provider
from slipform.providers.router import Router
from tests.proxy.asgi import Reply, get, post

CHAT = "/v1/chat/completions"
TALK: Any = [{"role": "user", "content": "hi"}]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True}}


class OneWord:
    """An engine that answers `1`."""

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        del body
        put({"choices": [{"delta": {"content": "1"}, "finish_reason": "stop"}]})
        put(None)
        return lambda: None

    def warm(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to let go of."""


class Loads:
    """Loads engines, and knows for which names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> OneWord:
        self.names.append(name)
        return OneWord()


@pytest.fixture(autouse=True)
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache of weights, and what is fetched into it."""
    fetched: list[str] = []

    def pull(weights: Weights) -> Path:
        fetched.append(weights.name)
        raise LocalModelError("There is no network")

    monkeypatch.setenv("SLIPFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "pull_with_progress", pull)
    monkeypatch.setattr("slipform.addons.local.weights.pull_with_progress", pull)
    monkeypatch.setattr("slipform.addons.local.weights.find_installed", lambda part: None)
    return fetched


def put_weights(tmp_path: Path, weights: Weights) -> None:
    """A file that passes for a model's weights, without taking any room."""
    path = tmp_path / "cache" / weights.file_name
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(weights.size)


def app_of(**settings: Any) -> App:
    """The application as `slipform serve` makes it."""
    given = Settings.model_validate(settings)
    return App(AsyncClient(router=router_of(given, {})), given)


def app_with(load: Loads, aliases: Mapping[str, str], default: str | None = None) -> App:
    """The same with engines of ours."""
    providers: dict[str, Provider] = {"local": LocalProvider(load), "transformers": TransformersProvider(load)}
    return App(AsyncClient(router=Router(providers, aliases=aliases, default=default)), Settings())


async def ask(app: App, model: str, **more: Any) -> Reply:
    return await post(app, CHAT, {"model": model, "messages": TALK, **more})


@pytest.mark.parametrize(
    "more", [{}, {"response_format": FORMAT}, {"stream": True}], ids=["plain", "shaped", "streamed"]
)
@pytest.mark.parametrize(
    "model",
    [
        "local/HERE/there.gguf",
        "local/HERE/./there.gguf",
        "local/HERE/missing.gguf",
        "local/HERE/folder.gguf",
        "local/~/there.gguf",
        "local/~root/x.gguf",
        "local/~nosuchuser/x.gguf",
        "local/../x.gguf",
        "local/x.GGUF",
        "local/" + "x" * 240 + ".gguf",
        "local/qwen2.5-coder-1.5b",
        "local/SmolLM2-135m",
        "local/HERE/cache/SmolLM2-135M-Instruct.Q4_1.gguf",
        "transformers/HERE",
        "transformers/HERE/there.gguf",
        "transformers/~/there.gguf",
        "transformers/~nosuchuser/x",
        "transformers/HuggingFaceTB/SmolLM2-135M-Instruct",
        "transformers/x",
    ],
)
async def test_a_path_or_a_download_of_the_callers_is_an_unknown_model(
    tmp_path: Path, pulled: list[str], model: str, more: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "there.gguf").write_bytes(b"GGUF")
    (tmp_path / "folder.gguf").mkdir()
    put_weights(tmp_path, SMOLLM2)
    name = model.replace("HERE", str(tmp_path))[:256]
    app = app_of()
    prefix, _, upstream = name.partition("/")
    for reply in (await ask(app, name, **more), await get(app, f"/v1/models/{name}")):
        assert reply.status == 404
        error = reply.json()["error"]
        assert error["message"].startswith(f"The provider {prefix!r} serves no model {upstream!r}")
        assert error["code"] == "model_not_found"
    assert pulled == []


async def test_a_file_that_is_there_and_one_that_is_not_are_told_in_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "aaaaaaa.gguf").write_bytes(b"GGUF")
    app = app_of()
    for path in (CHAT, "/v1/messages", "/v1/responses"):
        told = [
            (
                await post(
                    app,
                    path,
                    {"model": f"local/{tmp_path}/{name}.gguf", "messages": TALK, "input": "x", "max_tokens": 9},
                )
            )
            for name in ("aaaaaaa", "missing")
        ]
        assert told[0].status == told[1].status == 404
        assert told[0].body.replace(b"aaaaaaa", b"missing") == told[1].body


async def test_what_the_configuration_names_is_served_by_that_name_and_loaded_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF")
    (tmp_path / "link.gguf").symlink_to(file)
    load = Loads()
    aliases = {
        "mine": f"local/{file}",
        "same": f"local/{tmp_path}/./mine.gguf",
        "linked": f"local/{tmp_path}/link.gguf",
        "hub": "transformers/org/model",
    }
    app = app_with(load, aliases)
    for name in ("mine", "same", "linked", f"local/{file}", "mine", f"local/{tmp_path}/./mine.gguf"):
        assert (await ask(app, name)).status == 200
    assert load.names == [str(file)]
    for name in ("hub", "transformers/org/model"):
        assert (await ask(app, name)).status == 200
    assert load.names == [str(file), "org/model"]
    for name in (
        f"local/{tmp_path}//mine.gguf",
        f"local/{tmp_path}/../{tmp_path.name}/mine.gguf",
        "transformers/org/other",
    ):
        assert (await ask(app, name)).status == 404
    assert load.names == [str(file), "org/model"]


async def test_the_default_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF")
    load = Loads()
    app = app_with(load, {}, default=f"local/{file}")
    assert (await ask(app, "")).status == 200
    assert load.names == [str(file)]


async def test_a_known_model_is_served_once_its_weights_are_here(tmp_path: Path, pulled: list[str]) -> None:
    app = app_of(default_model="local")
    listed = {model["id"] for model in (await get(app, "/v1/models")).json()["data"]}
    assert "local/qwen2.5-coder-1.5b" not in listed
    assert (await get(app, "/v1/models/local/qwen2.5-coder-1.5b")).status == 404
    put_weights(tmp_path, QWEN_CODER)
    assert (await get(app, "/v1/models/local/qwen2.5-coder-1.5b")).status == 200
    assert pulled == []


@pytest.mark.parametrize("name", ["local", "local/smollm2-135m", "coder"])
async def test_no_request_fetches_even_what_is_configured(pulled: list[str], name: str) -> None:
    app = app_of(model_aliases={"coder": "local/qwen2.5-coder-1.5b"})
    reply = await ask(app, name)
    assert reply.status == 503
    assert "fetches nothing for a request" in reply.json()["error"]["message"]
    assert "slipform models pull" in reply.json()["error"]["message"]
    assert pulled == []


def test_what_is_configured_is_fetched_before_anything_listens(pulled: list[str]) -> None:
    aliases = {"coder": ["openai/x", "local/qwen2.5-coder-1.5b"], "file": "local/x.gguf"}
    _fetch_named(Settings.model_validate({"default_model": "openai/x", "model_aliases": aliases}))
    assert pulled == ["qwen2.5-coder-1.5b"]
    with pytest.raises(LocalModelError, match="no network"):
        _fetch_named(Settings.model_validate({"default_model": "local"}))
    assert pulled == ["qwen2.5-coder-1.5b", "smollm2-135m"]


async def test_where_a_configured_file_lies_is_not_told_to_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "broken.gguf").write_bytes(b"no weights")
    for name in ("gone", "broken"):
        reply = await ask(app_of(model_aliases={"mine": f"local/~/{name}.gguf"}), "mine")
        assert reply.status == 503
        assert str(tmp_path) not in reply.body.decode()
    assert f"{tmp_path}/broken.gguf" in caplog.text


def test_the_library_goes_on_taking_paths(tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF")
    router = router_of(Settings(), {})
    assert router.resolve(f"local/{file}")[1] == str(file)
    assert router.resolve("transformers/org/model")[1] == "org/model"
    with pytest.raises(UnknownModelError):
        router.for_callers().resolve(f"local/{file}")
    assert router.for_callers(f"local/{file}").resolve(f"local/{file}")[1] == str(file)
    assert router.resolve(f"local/{file}")[1] == str(file)


@pytest.mark.parametrize("name", ["~nosuchuser/x.gguf", "x" * 5000 + ".gguf", "a\x00b.gguf", "missing.gguf"], ids=ascii)
def test_what_no_file_can_be_called_is_a_clean_error_in_the_library(name: str) -> None:
    with pytest.raises(LocalModelError, match="model file does not exist"):
        LocalProvider().complete(ModelRequest(name, (Message.user("hi"),)))
