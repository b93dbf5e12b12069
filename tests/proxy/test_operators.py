"""What only operators see, wrong keys and their brake, keys that end, strangers' host names, and the audit log."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from typer.testing import CliRunner

from slipform.addons.server import App
from slipform.addons.server.admission.admission import AdmissionControl
from slipform.addons.server.admission.key_file import read_keys
from slipform.addons.server.admission.keys import add_key, expiry, remove_key
from slipform.addons.server.admission.refusals import TooManyWrongKeys, WrongKey
from slipform.addons.server.commands.serve import app as keys_command
from slipform.addons.server.http_server.state import Trusted
from slipform.addons.server.observability.logs import set_up
from slipform.config import Settings, read_settings
from slipform.errors import ConfigError
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import serving
from tests.proxy.asgi import get
from tests.proxy.proxying import ADA, ASK, Reply, call, chat, keys_path, proxied

PAGES = ["/metrics", "/docs", "/openapi.json"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keys_path(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def ada(path: Path) -> str:
    return add_key(path, "ada")[1]


@pytest.fixture(scope="module")
def narrow(path: Path) -> str:
    return add_key(path, "narrow", models=["fake/m*", "quick", "lost"])[1]


@pytest.fixture(scope="module")
def operator(path: Path) -> str:
    return add_key(path, "ops", operator=True, models=["nothing"])[1]


@pytest.fixture(scope="module")
def locked(path: Path, ada: str, narrow: str, operator: str) -> Iterator[str]:
    del ada, narrow, operator
    models = {"fake": FakeModel([ADA], models=["m", "m2", "x"]), "secret": FakeModel([ADA], models=["gpt-4o"])}
    aliases = {"quick": "fake/m", "hidden": "secret/gpt-4o"}
    with proxied(models, {"server": {"keys_file": str(path)}, "model_aliases": aliases}) as address:
        yield address


def with_key(address: str, page: str, key: str | None) -> Reply:
    return call(address, page, headers={"authorization": f"Bearer {key}"} if key else None)


@pytest.mark.parametrize("page", PAGES)
def test_operators_pages_need_an_operators_key(locked: str, page: str, ada: str, operator: str) -> None:
    assert with_key(locked, page, None).status == 401
    assert with_key(locked, page, "sf-000000000000-wrong").status == 401
    refused = with_key(locked, page, ada)
    assert (refused.status, refused.json["error"]["code"]) == (403, "not_allowed")
    assert "--operator" in refused.json["error"]["message"]
    assert with_key(locked, page, operator).status == 200
    assert call(locked, f"{page}?key={operator}").status == 200


def test_others_see_that_it_lives_and_which_version_it_is_and_no_more(locked: str, ada: str, operator: str) -> None:
    assert with_key(locked, "/healthz", None).json == {"status": "ok"}
    for key in (None, ada):
        assert with_key(locked, "/readyz", key).json in ({"status": "ready"}, {"status": "not ready"})
        assert set(with_key(locked, "/version", key).json) == {"name", "version"}
    assert with_key(locked, "/version", "sf-000000000000-wrong").status == 401
    assert "python" in with_key(locked, "/version", operator).json
    assert "config" in with_key(locked, "/readyz", operator).json
    assert "config" not in with_key(locked, "/readyz", None).json


def test_pages_can_be_opened_one_by_one(path: Path, ada: str) -> None:
    del ada
    server = {"keys_file": str(path), "open_pages": ["metrics", "version"]}
    with proxied({"fake": FakeModel([ADA])}, {"server": server}) as address:
        assert [call(address, page).status for page in PAGES] == [200, 401, 401]
        assert "python" in call(address, "/version").json
    with pytest.raises(ConfigError, match=r"server.open_pages.0"):
        read_settings("server: {open_pages: [everything]}")


async def test_others_are_not_told_why_a_server_is_not_ready(path: Path, ada: str, operator: str) -> None:
    settings = Settings.model_validate({"default_model": "fake", "server": {"keys_file": str(path)}})
    app = App(AsyncClient(router=Router({"fake": FakeModel(["hi"])})), settings)
    for key in (None, ada):
        reply = await get(app, "/readyz", {"x-api-key": key} if key else None)
        assert (reply.status, reply.json()) == (503, {"status": "not ready"})
    assert (await get(app, "/readyz", {"x-api-key": operator})).json()["status"] == "starting"


async def test_without_keys_operators_pages_are_as_open_as_the_rest() -> None:
    app = App(AsyncClient(router=Router({"fake": FakeModel(["hi"])})), Settings())
    assert [(await get(app, page)).status for page in [*PAGES, "/version"]] == [200] * 4


def test_an_operators_key_is_held_to_its_models(locked: str, operator: str) -> None:
    assert chat(locked, {"x-api-key": operator}).status == 403


HOSTS = [
    ("127.0.0.1:8080", 200),
    ("localhost", 200),
    ("[::1]:80", 200),
    ("proxy.example", 200),
    ("page.example:8080", 200),
    ("evil.example", 403),
    ("127.0.0.1.evil.example", 403),
    ("localhost.evil.example:80", 403),
]


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_on_loopback_without_keys_a_page_is_not_shown_under_a_strangers_name(host: str, status: int) -> None:
    server = {"allowed_hosts": ["proxy.example"], "cors_origins": ["https://page.example"]}
    with proxied({"fake": FakeModel([ADA], models=["m"])}, {"server": server}) as address:
        for page in [*PAGES, "/v1/models", "/v1beta/models/fake/m"]:
            assert call(address, page, headers={"host": host}).status == status
        assert call(address, "/healthz", headers={"host": host}).status == 200
        version = call(address, "/version", headers={"host": host}).json
        assert ("python" in version) == (status == 200)


def test_with_keys_the_name_does_not_matter(locked: str, operator: str) -> None:
    for page in (*PAGES, "/v1/models"):
        said = {"host": "proxy.example", "x-api-key": operator}
        assert call(locked, page, headers=said).status == 200


def test_a_model_nobody_knows_shows_a_key_only_what_it_may_use(locked: str, narrow: str, ada: str) -> None:
    with openai.OpenAI(base_url=f"{locked}/v1", api_key=narrow, max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="fake/m9", messages=ASK)
        for model in ("secret/gpt-4", "hiden", "secrt/gpt-4o", "fake/y", "secret/gpt-4o"):
            with pytest.raises(openai.PermissionDeniedError) as refused:
                client.chat.completions.create(model=model, messages=ASK)
            assert "hidden" not in str(refused.value).replace(model, "")
            assert "secret" not in str(refused.value).replace(model, "")
        with pytest.raises(openai.NotFoundError) as looked_up:
            client.models.retrieve("secret/gpt-4")
    for error in (unknown, looked_up):
        body = json.dumps(error.value.body).replace("secret/gpt-4'", "")
        assert "hidden" not in body
        assert "secret/" not in body
    assert "fake/m" in str(unknown.value)
    with (
        anthropic.Anthropic(base_url=locked, api_key=narrow, max_retries=0) as claude,
        pytest.raises(anthropic.NotFoundError) as lost,
    ):
        claude.messages.create(model="lost", max_tokens=9, messages=ASK)
    assert "quick" in str(lost.value)
    assert "hidden" not in str(lost.value)
    assert "hidden" in chat(locked, {"x-api-key": ada}, model="hiden").json["error"]["message"]


def test_a_forbidden_model_and_one_that_is_not_there_are_refused_in_the_same_words(locked: str, narrow: str) -> None:
    there, not_there = (
        chat(locked, {"x-api-key": narrow}, model=model, response_format=shape)
        for model, shape in (("secret/gpt-4o", None), ("secret/gpt-4x", None))
    )
    assert there.status == not_there.status == 403
    assert there.body.replace(b"gpt-4o", b"") == not_there.body.replace(b"gpt-4x", b"")


def test_too_many_wrong_keys_from_an_address_are_told_to_wait_and_a_right_one_gets_in(path: Path, ada: str) -> None:
    server = {"keys_file": str(path), "wrong_keys_per_minute": 3}
    with proxied({"fake": FakeModel([ADA])}, {"server": server}) as address:
        replies = [chat(address, {"x-api-key": f"guess-{number}"}) for number in range(5)]
        assert [each.status for each in replies] == [401, 401, 401, 429, 429]
        assert 1 <= int(replies[-1].headers["retry-after"]) <= 20
        assert replies[-1].json["error"]["code"] == "too_many_wrong_keys"
        assert call(address, "/v1/models", headers={"x-api-key": "guess"}).status == 429
        assert call(address, "/version", headers={"x-api-key": "guess"}).status == 429
        assert chat(address, {"x-api-key": ada}).status == 200
        assert chat(address).status == 401  # no key is no guess
        with openai.OpenAI(base_url=f"{address}/v1", api_key="guess", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError):
                client.chat.completions.create(model="fake/m", messages=ASK)
            assert client.with_options(api_key=ada).chat.completions.create(model="fake/m", messages=ASK).choices


def test_the_brake_counts_the_client_a_trusted_balancer_speaks_for(path: Path, ada: str) -> None:
    del ada
    settings = Settings.model_validate(
        {"default_model": "fake", "server": {"keys_file": str(path), "wrong_keys_per_minute": 1}}
    )
    app = App(AsyncClient(router=Router({"fake": FakeModel([ADA])})), settings)

    def statuses(address: str, clients: list[str]) -> list[int]:
        return [chat(address, {"x-api-key": "guess", "x-forwarded-for": each}).status for each in clients]

    with serving(app, trusted=Trusted("127.0.0.1")) as address:
        assert statuses(address, ["203.0.113.1", "203.0.113.2", "203.0.113.1"]) == [401, 401, 429]
        # One customer of IPv6 has as many addresses as they like.
        assert statuses(address, ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]) == [401, 429, 401]


async def test_the_brake_forgets_rather_than_grow_and_can_be_released(path: Path, ada: str) -> None:
    del ada
    guard = AdmissionControl(Settings.model_validate({"server": {"keys_file": str(path), "wrong_keys_per_minute": 1}}))
    wrong = {b"x-api-key": b"guess"}
    for number in range(20_100):
        with pytest.raises(WrongKey):
            await guard.authenticate(wrong, b"", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    with pytest.raises(TooManyWrongKeys):
        await guard.authenticate(wrong, b"", f"10.0.{20_099 >> 8}.{20_099 & 255}")
    assert len(guard._wrong_keys._full_at) <= 20_000  # type: ignore[attr-defined]
    released = AdmissionControl(
        Settings.model_validate({"server": {"keys_file": str(path), "wrong_keys_per_minute": None}})
    )
    for _ in range(50):
        with pytest.raises(WrongKey):
            await released.authenticate(wrong, b"", "10.0.0.1")


def test_an_expired_key_is_refused_in_its_own_words(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    past, future = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    _, old = add_key(path, "old", expires=past.isoformat(timespec="seconds"))
    _, good = add_key(path, "good", expires=future.isoformat(timespec="seconds"))
    with proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(path)}}) as address:
        assert chat(address, {"x-api-key": good}).status == 200
        with (
            openai.OpenAI(base_url=f"{address}/v1", api_key=old, max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="has expired: it was good until"),
        ):
            client.chat.completions.create(model="fake/m", messages=ASK)


def test_the_command_makes_keys_that_end_and_operators_keys_and_lists_both(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    run = CliRunner().invoke
    file = ["--file", str(path)]
    assert run(keys_command, ["add", "ada", "--expires", "30d", *file]).exit_code == 0
    assert run(keys_command, ["add", "ops", "--operator", "--expires", "2999-01-31", *file]).exit_code == 0
    listed = run(keys_command, ["list", *file]).stdout.splitlines()
    assert "\texpires 20" in listed[0]
    assert listed[1].endswith("\toperator\texpires 2999-01-31T00:00:00+00:00")
    add_key(path, "old", expires="2020-01-01T00:00:00+00:00")
    assert "\texpired 2020" in run(keys_command, ["list", *file]).stdout
    for wrong in ("yesterday", "30", "2020-01-01", "0d", "30 d", "-1d"):
        refused = run(keys_command, ["add", "eve", f"--expires={wrong}", *file])
        assert isinstance(refused.exception, ConfigError)
        assert "--expires" in str(refused.exception)
    assert "eve" not in [key.name for key in read_keys(path).values()]


def test_a_time_with_a_zone_is_kept_as_utc() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert expiry("2027-01-31T12:00:00+02:00", now) == "2027-01-31T10:00:00+00:00"
    assert expiry("2027-01-31T12:00Z", now) == "2027-01-31T12:00:00+00:00"
    assert expiry("12h", now) == "2026-01-01T12:00:00+00:00"


def test_every_change_is_written_down_with_who_made_it_and_without_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "grace")
    path = keys_path(tmp_path)
    run = CliRunner().invoke
    secret = run(keys_command, ["add", "ada", "--model", "fake/*", "--file", str(path)]).stdout.strip()
    for command in ("disable", "enable", "remove"):
        run(keys_command, [command, "ada", "--file", str(path)])
    log = path.with_name("keys.json.audit")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["action"] for each in lines] == ["added", "disabled", "enabled", "removed"]
    assert {each["name"] for each in lines} == {"ada"}
    assert {each["key"] for each in lines} == {secret.split("-")[1]}
    assert all("grace" in each["actor"] and each["time"] for each in lines)
    assert lines[0]["models"] == ["fake/*"]
    assert secret.split("-", 2)[2] not in log.read_text()
    if hasattr(os, "geteuid"):
        assert log.stat().st_mode & 0o077 == 0


def test_a_change_that_cannot_be_written_down_is_not_made(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    add_key(path, "ada")
    log = path.with_name("keys.json.audit")
    log.unlink()
    log.mkdir()
    with pytest.raises(OSError, match="directory"):
        remove_key(path, "ada")
    assert [key.name for key in read_keys(path).values()] == ["ada"]


def test_every_refusal_is_logged_with_its_reason_and_without_the_secret(
    locked: str, narrow: str, ada: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slipform.audit")

    def refusals() -> list[dict[str, Any]]:
        found = [vars(each)["slipform"] for each in caplog.records if each.name == "slipform.audit"]
        caplog.clear()
        return [each for each in found if each["action"] == "refused"]

    identity = narrow.split("-")[1]
    chat(locked, {"x-api-key": narrow[:-3] + "abc"})
    (wrong,) = refusals()
    assert wrong["address"] == "127.0.0.1"
    assert (wrong["key"], wrong["code"]) == (identity, "invalid_api_key")
    assert narrow.split("-", 2)[2][:-3] not in str(wrong)
    chat(locked, {"x-api-key": "sk-proj-somebodys-vendor-key"})
    assert "vendor-key" not in str(refusals())
    chat(locked, {"x-api-key": narrow}, model="secret/gpt-4o")
    (forbidden,) = refusals()
    assert (forbidden["key"], forbidden["name"], forbidden["code"]) == (identity, "narrow", "not_allowed")
    call(locked, "/metrics", headers={"x-api-key": ada})
    (page,) = refusals()
    assert (page["key"], page["path"]) == (ada.split("-")[1], "/metrics")
    chat(locked, {"x-api-key": ada})
    assert refusals() == []


def test_audit_lines_are_written_even_where_no_other_lines_are_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    before = logging.root.handlers[:], logging.root.level
    handler = set_up("off")
    try:
        logging.getLogger("slipform.audit").info("audit", extra={"slipform": {"action": "refused"}})
        logging.getLogger("slipform.requests").info("request")
        assert capfd.readouterr().err.split(" ", 1)[1] == "info audit action=refused\n"
    finally:
        logging.root.removeHandler(handler)
        logging.root.handlers[:], logging.root.level = before
        for name in ("slipform", "slipform.calls", "slipform.requests", "slipform.audit"):
            logging.getLogger(name).setLevel(logging.NOTSET)


def test_a_request_without_a_host_is_no_browsers(locked: str) -> None:
    """HTTP/1.0 needs none; whoever sends it is not a web page."""
    parts = urlsplit(locked)
    with socket.create_connection((parts.hostname or "", parts.port or 0), 10) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert connection.recv(100).split(b" ")[1] == b"401"
