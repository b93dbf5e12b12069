"""A new configuration takes effect as a whole, or not at all; it drops nobody, and weakens nothing by what it lost."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipform import AsyncClient
from slipform.addons.server import App
from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.deployment import Deployment, Deployments, check_not_weaker, client_of, deploy, load
from slipform.config import ConfigReading, Settings, load_config, read_settings
from slipform.errors import ConfigError
from slipform.ir import ModelRequest, ModelResponse
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor
from tests.proxy.asgi import get, post
from tests.proxy.served import ASK, Served

needs_signals = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals and fork")


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
    return deploy(AsyncClient(router=Router({"fake": model})), ConfigReading(Settings()), generation)


def app_of(file: Path, bound: str | None = None) -> App:
    """An application that reads this file again, as `slipform serve` makes it."""

    def reread(current: Deployment) -> Deployment:
        return load(file, bound, replacing=current.reading, generation=current.generation + 1)

    settings = load_config(file).settings
    return App(client_of(settings), settings, load=reread, bound=bound)


async def test_requests_under_way_finish_on_the_old_one_which_is_closed_after_the_last() -> None:
    old, new = Held("old"), FakeModel(["new"], models=("m",))
    first = made(old)
    app = App(first.client, first.settings, load=lambda _: made(new, 2))
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
    app = app_of(file)
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


async def test_what_needs_a_restart_is_said(caplog: pytest.LogCaptureFixture) -> None:
    first = made(FakeModel(["hi"], models=("m",)))

    def other(current: Deployment) -> Deployment:
        reading = ConfigReading(read_settings("server: {port: 9999}"))
        return deploy(first.client, reading, current.generation + 1)

    app = App(first.client, first.settings, load=other)
    with caplog.at_level(logging.WARNING):
        assert await app.reload() is True
    assert "restart" in caplog.text
    assert await App(first.client, first.settings).reload() is False


async def test_deployments_count_who_uses_them() -> None:
    models = [FakeModel(["hi"], models=("m",)) for _ in range(3)]
    held = Deployments(made(models[0], 1))
    first = held.current
    first.users += 1
    await held.replace(made(models[1], 2))
    await held.replace(made(models[2], 3))
    assert [model.closed for model in models] == [False, True, False]
    assert [each.generation for each in held.retired] == [1]
    first.users -= 1
    await held.close_unused()
    assert [model.closed for model in models] == [True, True, False]
    await held.close()
    assert models[2].closed


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")


async def test_an_unexpected_fault_while_reading_leaves_the_old_one_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = made(FakeModel(["hi"], models=("m",)))

    def broken(_: Deployment) -> Deployment:
        raise RecursionError("too deep")

    app = App(first.client, first.settings, load=broken)
    assert await app.reload() is False
    assert "too deep" in caplog.text
    assert (await post(app, "/v1/chat/completions", ASK)).status == 200
    page = (await get(app, "/metrics")).body
    assert b"slipform_config_refused_total 1.0" in page
    assert b"slipform_config_last_reload_refused 1.0" in page
    assert "refused" in (await get(app, "/readyz")).json()["last_reload"]


KEYS = "server: {keys_file: keys.json, host: 0.0.0.0}\n"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (KEYS, None, "is gone"),
        (KEYS, "", "says nothing"),
        (KEYS, "# nothing yet\n", "says nothing"),
        (KEYS, "server:\n  keys_file: keys.json\n  max_conc", "not YAML"),
        (KEYS, "server:\n  keys_file: keys.json\n  requests_per_minute: 6", "no end"),
        (KEYS, "server:\n", "server"),
        (KEYS, "default_model: local\n", "`server` was set and is gone"),
        ("server: {max_concurrent: 5}\n", "default_model: local\n", "`server` was set and is gone"),
        ("redis: {url: 'redis://x'}\n", "default_model: local\n", "`redis` was set and is gone"),
        ("output: {require_json: true}\n", "default_model: local\n", "`output` was set and is gone"),
        ("enforcement: {max_tokens: 9}\n", "default_model: local\n", "`enforcement` was set and is gone"),
        (KEYS, "server: {host: 0.0.0.0}\n", "keys_file"),
        (KEYS, "server: {host: 127.0.0.1}\n", "keys_file"),
        (KEYS, "server: {keys_file: null}\n", "keys_file"),
        (KEYS, "server: {allow_anonymous: false}\n", "keys_file"),
        ("server: {keysFile: keys.json, allowAnonymous: true}\n", "server: {allow_anonymous: true}\n", "keys_file"),
    ],
)
def test_a_file_that_lost_what_protects_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str | None, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "slipform.yaml"
    file.write_text(old)
    before = load_config()
    if new is None:
        file.unlink()
    else:
        file.write_text(new)
    with pytest.raises(ConfigError, match=reason):
        check_not_weaker(before, load_config())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, "default_model: local"),
        ("", ""),
        (KEYS, KEYS),
        (KEYS, "server: {keysFile: others.json, requestsPerMinute: 100000, maxBodyBytes: 99999999}\n"),
        (KEYS, "server: {allow_anonymous: true}\n"),
        ("server: {max_concurrent: 5}\noutput: {require_json: true}\n", "server: {}\noutput: {}\n"),
        ("redis: {url: 'redis://x'}\n", "redis: null\n"),
        ("model_aliases: {a: local}\ncache: {enabled: true}\n", "default_model: local\n"),
        ("default_model: local", "default_model: x/m"),
    ],
)
def test_what_the_operator_says_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str | None, new: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "slipform.yaml"
    if old is not None:
        file.write_text(old)
    before = load_config()
    file.write_text(new)
    check_not_weaker(before, load_config())


def test_the_environment_does_not_speak_for_the_file(tmp_path: Path) -> None:
    """`--insecure` is a variable of the environment: it lets anybody in where there are no keys, and drops none."""
    file = tmp_path / "slipform.yaml"
    insecure = {"SLIPFORM_SERVER__ALLOW_ANONYMOUS": "true"}
    file.write_text(KEYS)
    before = load_config(file, insecure)
    file.write_text("server: {host: 0.0.0.0}\n")
    with pytest.raises(ConfigError, match="keys_file"):
        check_not_weaker(before, load_config(file, insecure))


async def test_the_socket_that_is_bound_counts_and_not_the_hosts_name_in_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "slipform.yaml"
    provider = "default_model: x/m\nproviders: {x: {kind: openai, base_url: 'http://127.0.0.1:9/v1'}}\n"
    file.write_text(f"{provider}server: {{host: 0.0.0.0, allow_anonymous: true}}\n")
    app = app_of(file, bound="0.0.0.0")
    file.write_text(f"{provider}server: {{host: 127.0.0.1}}\n")
    assert await app.reload() is False
    assert "Other machines can reach 0.0.0.0" in caplog.text
    file.write_text(f"{provider}server: {{host: 0.0.0.0}}\n")
    assert await app_of(file, bound="127.0.0.1").reload() is True


class Slips:
    """What can happen to the files of a server with keys, each to be undone."""

    def __init__(self, served: Served, keys: Path) -> None:
        self._whole = {file: file.read_bytes() for file in (served.file, keys)}
        text = served.file.read_text()
        lines = text.splitlines(keepends=True)
        self.all: dict[str, Callable[[], object]] = {
            "the file is gone": served.file.unlink,
            "it is empty": lambda: served.file.write_text(""),
            "it is torn": lambda: served.file.write_text(text[: text.index("keys_file") + 4]),
            "it lost its server": lambda: served.file.write_text("".join(lines[:-1])),
            "it lost its keys": lambda: served.file.write_text(text.replace(f', "keys_file": "{keys}"', "")),
            "the keys are gone": keys.unlink,
            "the keys are damaged": lambda: keys.write_text('{"keys": ['),
        }

    def undo(self) -> None:
        for file, content in self._whole.items():
            file.write_bytes(content)


@needs_signals
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("way", ["flag", "here", "variable"])
def test_a_reload_never_opens_a_server_that_asks_for_keys(
    started: Callable[..., Served], tmp_path: Path, way: str, workers: int
) -> None:
    keys = tmp_path / "keys.json"
    _, key = add_key(keys, "ada", operator=True)
    ways: dict[str, dict[str, Any]] = {
        "flag": {},
        "here": {"flags": ["--host", "0.0.0.0"]},
        "variable": {"flags": [], "environment": {"SLIPFORM_CONFIG": "slipform.yaml"}},
    }
    with FakeVendor(["hi"] * 40) as vendor:
        host = "127.0.0.1" if way == "here" else "0.0.0.0"
        served = started(vendor, workers, host=host, keys_file=str(keys), key=key, **ways[way])
        slips = Slips(served, keys)
        for number, (name, slip) in enumerate(slips.all.items(), start=1):
            slip()
            served.reload()
            served.wait_for_samples("slipform_config_refused_total", number)
            assert served.samples("slipform_config_last_reload_refused") == [1.0] * workers, name
            assert {served.ask("") for _ in range(4 * workers)} == {401}, name
            slips.undo()
        status, said = served.get("/readyz")
        assert (status, json.loads(said)["config"]) == (200, 1)
        assert "refused" in json.loads(said)["last_reload"]
        assert served.ask() == 200
        served.reload()
        served.wait_for_samples("slipform_config_generation", 2)
        assert served.samples("slipform_config_last_reload_refused") == [0.0] * workers
        assert "last_reload" not in json.loads(served.get("/readyz")[1])
        assert (served.ask(), served.ask("")) == (200, 401)


@needs_signals
def test_a_worker_that_is_replaced_begins_with_what_is_in_force_and_not_with_the_file(
    started: Callable[..., Served], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    _, key = add_key(keys, "ada", operator=True)
    with FakeVendor(["hi"]) as vendor:
        served = started(vendor, 2, keys_file=str(keys), key=key)
        served.configure("model_aliases: {quick: fake/m}\n")
        served.reload()
        served.wait_for_samples("slipform_config_generation", 2)
        served.file.write_text("default_model: fake/m\n")
        served.reload()
        served.wait_for_samples("slipform_config_refused_total", 1)
        children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children")
        if not children.exists():
            pytest.skip("this system does not say which processes are the workers")
        before = set(children.read_text().split())
        for child in before:
            os.kill(int(child), signal.SIGKILL)
        served.wait_for(lambda: len(set(children.read_text().split()) - before) == 2)
        served.wait_for_samples("slipform_config_generation", 2)
        assert served.samples("slipform_config_refused_total") == [1.0, 1.0]
        assert served.samples("slipform_config_last_reload_refused") == [1.0, 1.0]
        assert {served.ask("") for _ in range(8)} == {401}
        assert served.ask() == 200


@needs_signals
def test_keys_are_dropped_by_a_file_that_says_so_itself(started: Callable[..., Served], tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    _, key = add_key(keys, "ada", operator=True)
    with FakeVendor(["hi"]) as vendor:
        served = started(vendor, host="0.0.0.0", keys_file=str(keys), key=key)
        assert served.ask("") == 401
        served.server = {"host": "0.0.0.0", "allow_anonymous": True}
        served.configure()
        served.reload()
        served.wait_for(lambda: served.ask("") == 200)
