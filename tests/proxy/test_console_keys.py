"""Operators create, change and revoke keys in the console; nobody else does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slipform.addons.server import App
from slipform.addons.server.admission.key_file import read_keys
from slipform.addons.server.admission.keys import add_key
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.testing import FakeModel, FakeVendor
from tests.conftest import serving
from tests.proxy.proxying import ADA, ASK, FORMAT, Reply, call, chat, keys_path, proxied
from tests.proxy.test_console import API, cookie, own


class Operated(NamedTuple):
    """A server with keys, and an operator's session."""

    address: str
    session: str
    file: Path
    own_id: str

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        return call(self.address, f"{API}{path}", body, own(self.address, cookie=self.session), method)

    def listed(self) -> dict[str, Any]:
        return {key["name"]: key for key in self.ask("GET", "keys").json["keys"]}


@pytest.fixture
def operated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operated]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = keys_path(tmp_path)
    key, secret = add_key(file, "ops", operator=True)
    with proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(file)}}) as address:
        yield Operated(address, cookie(address, key=secret), file, key.id)


def test_a_new_key_works_at_once_within_its_limits(operated: Operated) -> None:
    made = operated.ask("POST", "keys", {"name": "ada", "models": ["fake/*"], "max_cost": 2.5, "period": "month"}).json
    assert chat(operated.address, headers={"authorization": f"Bearer {made['secret']}"}).status != 401
    key = operated.listed()["ada"]
    assert (key["models"], key["max_cost"], key["period"]) == (["fake/*"], 2.5, "month")
    assert made["secret"] not in operated.file.read_text()


def test_limits_change_and_go(operated: Operated) -> None:
    made = operated.ask("POST", "keys", {"name": "ada", "requests_per_minute": 5, "models": ["a/*"]}).json
    assert operated.ask("PUT", f"keys/{made['id']}", {"requests_per_minute": 9, "models": None}).status == 200
    key = read_keys(operated.file)[made["id"]]
    assert (key.requests_per_minute, key.models) == (9, None)


def test_a_disabled_or_revoked_key_is_refused_at_once(operated: Operated) -> None:
    made = operated.ask("POST", "keys", {"name": "ada"}).json
    headers = {"authorization": f"Bearer {made['secret']}"}
    statuses = []
    for method, body in (("PUT", {"disabled": True}), ("PUT", {"disabled": False}), ("DELETE", {})):
        assert operated.ask(method, f"keys/{made['id']}", body).status == 200
        statuses.append(chat(operated.address, headers=headers).status in (401, 403))
    assert statuses == [True, False, True]


def test_changes_are_in_the_audit_log_with_the_operator(operated: Operated) -> None:
    operated.ask("POST", "keys", {"name": "ada"})
    line = json.loads((operated.file.parent / f"{operated.file.name}.audit").read_text().splitlines()[-1])
    assert (line["action"], line["name"]) == ("added", "ada")
    assert line["actor"].endswith("(console, ops)")


def test_operators_cannot_lock_themselves_out(operated: Operated) -> None:
    for method, body in (("PUT", {"disabled": True}), ("DELETE", {})):
        reply = operated.ask(method, f"keys/{operated.own_id}", body)
        assert reply.status == 400
        assert "signed in with this key" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": " "},
        {"name": "ops"},
        {"name": "x" * 101},
        {"name": "a", "max_cost": -1},
        {"name": "a", "max_tokens": 1.5},
        {"name": "a", "requests_per_minute": True},
        {"name": "a", "models": "openai/*"},
        {"name": "a", "period": "year"},
        {"name": "a", "expires": "yesterday"},
        {"name": "a", "salt": "x"},
    ],
)
def test_what_cannot_be_a_key_is_refused_and_changes_nothing(operated: Operated, body: dict[str, Any]) -> None:
    before = operated.file.read_bytes()
    assert operated.ask("POST", "keys", body).status == 400
    assert operated.file.read_bytes() == before


def test_only_an_operators_session_from_the_console_itself_changes_keys(operated: Operated) -> None:
    foreign = {"cookie": operated.session, "content-type": "application/json", "origin": "http://evil.example"}
    before = operated.file.read_bytes()
    assert call(operated.address, f"{API}keys", {"name": "x"}, foreign).status == 403
    assert call(operated.address, f"{API}keys", {"name": "x"}, own(operated.address)).status == 401
    assert operated.file.read_bytes() == before


def test_without_a_key_file_there_is_nothing_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with proxied({"fake": FakeModel([ADA])}) as address:
        reply = call(address, f"{API}keys", {"name": "x"}, own(address, cookie=cookie(address)))
    assert reply.status == 400
    assert "server.keys_file" in reply.json["error"]["message"]


def test_models_have_their_prices_and_limits_and_every_call_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("UP_KEY", "any")
    with FakeVendor([ADA] * 2) as vendor:
        up = {"kind": "openai", "base_url": vendor.base_url, "api_key_env": "UP_KEY", "requests_per_minute": 600}
        settings = {
            "default_model": "up/m", "providers": {"up": up}, "model_aliases": {"fast": "up/m"},
            "prices": {"up/*": {"input": 1, "output": 2}},
        }  # fmt: skip
        chosen = Settings.model_validate(settings)
        with serving(App(AsyncClient(config=chosen), chosen)) as address:
            session = cookie(address)
            chat(address, model="up/m", response_format=FORMAT)
            call(address, "/v1/chat/completions", {"model": "up/m", "messages": ASK})
            headers = own(address, cookie=session)
            models = call(address, f"{API}prices", None, headers, "GET").json["models"]
            rows = call(address, f"{API}requests", None, headers, "GET").json["rows"]
    fast = next(each for each in models if each["name"] == "fast")
    assert (fast["model"], fast["input"], fast["output"], fast["requests_per_minute"]) == ("up/m", 1, 2, 600)
    assert [row["outcome"] for row in rows] == ["ok"] * 2, rows
    assert [row["stage"] for row in rows] == ["passed", "first"]
    assert all(row["cost"] > 0 for row in rows)
