"""A new configuration takes effect as a whole, or not at all, and drops nobody."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slipform import AsyncClient
from slipform.config import Settings, read_settings
from slipform.errors import ConfigError
from slipform.ir import ModelRequest, ModelResponse
from slipform.providers.router import Router
from slipform.server import App
from slipform.server.deployment import Deployment, Deployments, deploy, load
from slipform.testing import FakeModel
from tests.server.asgi import get, post

ASK: dict[str, Any] = {"model": "fake/m", "messages": [{"role": "user", "content": "hi"}]}


class Held(FakeModel):
    """Answers when the test lets it."""

    def __init__(self, text: str) -> None:
        super().__init__([text], models=("m",))
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        self.asked.set()
        await self.go.wait()
        return self.complete(request)


def made(model: FakeModel, generation: int = 1) -> Deployment:
    return deploy(AsyncClient(router=Router({"fake": model})), Settings(), generation)


async def test_requests_under_way_finish_on_the_old_one_which_is_closed_after_the_last() -> None:
    old, new = Held("old"), FakeModel(["new"], models=("m",))
    first = made(old)
    app = App(first.client, first.settings, load=partial(made, new))
    waiting = [asyncio.create_task(post(app, "/v1/chat/completions", ASK)) for _ in range(2)]
    await old.asked.wait()
    assert await app.reload() is True
    after = await post(app, "/v1/chat/completions", ASK)
    assert after.json()["choices"][0]["message"]["content"] == "new"
    assert old.closed is False
    old.go.set()
    for reply in await asyncio.gather(*waiting):
        assert reply.json()["choices"][0]["message"]["content"] == "old"
    assert (old.closed, new.closed) == (True, False)
    assert (await get(app, "/readyz")).json()["config"] == 2
    assert b"slipform_config_generation 2.0" in (await get(app, "/metrics")).body


async def test_a_bad_configuration_is_refused_as_a_whole_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "slipform.yaml"
    file.write_text("default_model: x/m\nproviders:\n  x: {kind: openai, base_url: 'http://127.0.0.1:9/v1'}\n")
    first = load(file)
    app = App(first.client, first.settings, load=partial(load, file))
    file.write_text("default_model: y/m\nproviders:\n  y: {kind: openai, base_uri: 'http://127.0.0.1:9/v1'}\n")
    with caplog.at_level(logging.ERROR):
        assert await app.reload() is False
    assert f"{file}:3" in caplog.text
    assert "generation 1 goes on" in caplog.text
    file.write_text("default_model: nobody/m\n")
    assert await app.reload() is False
    assert (await get(app, "/v1/models/x/m")).status == 200
    assert (await get(app, "/readyz")).json()["config"] == 1
    assert b"slipform_config_refused_total 2.0" in (await get(app, "/metrics")).body
    file.unlink()
    assert await app.reload() is False
    await first.close()


async def test_what_needs_a_restart_is_said(caplog: pytest.LogCaptureFixture) -> None:
    first = made(FakeModel(["hi"], models=("m",)))

    def other(generation: int) -> Deployment:
        return deploy(first.client, read_settings("server: {port: 9999}"), generation)

    app = App(first.client, first.settings, load=other)
    with caplog.at_level(logging.WARNING):
        assert await app.reload() is True
    assert "restart" in caplog.text
    assert await App(first.client, first.settings).reload() is False


async def test_deployments_count_who_uses_them() -> None:
    models = [FakeModel(["hi"], models=("m",)) for _ in range(3)]
    held = Deployments(made(models[0], 1))
    first = held.enter()
    await held.replace(made(models[1], 2))
    await held.replace(made(models[2], 3))
    assert [model.closed for model in models] == [False, True, False]
    assert held.in_use == {1: 1, 3: 0}
    await held.leave(first)
    assert [model.closed for model in models] == [True, True, False]
    await held.close()
    assert models[2].closed


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")
