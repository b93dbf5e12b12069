"""Prompts and answers are recorded by default only where nobody but the user of this machine can call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipform import AsyncClient
from slipform.addons.server import App
from slipform.config import Settings
from slipform.engine.setup import options_of
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import serving
from tests.proxy.proxying import FORMAT, call, chat
from tests.proxy.test_console import API, cookie, own, read

SECRET = "eleven-blue-canaries"
QUESTION = [{"role": "user", "content": SECRET}]


def server(bound: str | None, **options: Any) -> serving:
    settings = Settings.model_validate({"default_model": "fake/m", "server": options})
    router = Router({"fake": FakeModel([f'{{"name": "{SECRET}", "age": 36}}'] * 4, models=["m"])})
    return serving(App(AsyncClient(router=router, options=options_of(settings)), settings, bound=bound))


def recorded(address: str, session: str, headers: dict[str, str] | None = None) -> bool:
    """Make a call, and return whether the console shows its words."""
    assert chat(address, headers, messages=QUESTION, response_format=FORMAT).status == 200
    newest = read(address, "requests", session)["rows"][0]
    detail = read(address, f"requests/{newest['id']}", session)
    assert (SECRET in json.dumps(detail)) == (detail["trace"] is not None)
    return detail["trace"] is not None


@pytest.mark.parametrize(
    ("bound", "options", "headers", "is_recorded"),
    [
        ("127.0.0.1", {}, {}, True),
        ("::1", {}, {}, True),
        ("localhost", {}, {}, True),
        ("127.0.0.1", {"traces": "off"}, {}, False),
        ("127.0.0.1", {}, {"x-slipform-trace": "off"}, False),
        ("127.0.0.1", {}, {"x-forwarded-for": "203.0.113.7"}, False),
        ("127.0.0.1", {}, {"forwarded": "for=203.0.113.7"}, False),
        ("127.0.0.1", {"allowed_hosts": ["llm.example"]}, {}, False),
        (None, {}, {}, False),
        ("0.0.0.0", {"console": "on", "allow_anonymous": True}, {}, False),
    ],
)
def test_own_calls_are_recorded_only_on_loopback_without_keys(
    bound: str | None, options: dict[str, Any], headers: dict[str, str], is_recorded: bool
) -> None:
    with server(bound, **options) as address:
        assert recorded(address, cookie(address), headers) is is_recorded


def test_one_switch_stops_and_resumes_the_recording() -> None:
    with server("127.0.0.1") as address:
        session = cookie(address)
        assert read(address, "me", session)["traces"]["switch"] is True
        call(address, f"{API}tracing", {}, own(address, cookie=session), method="DELETE")
        assert recorded(address, session) is False
        assert read(address, "me", session)["traces"]["mode"] == "off"
        call(address, f"{API}tracing", {"recording": True}, own(address, cookie=session))
        assert recorded(address, session) is True


def test_what_is_recorded_by_default_is_never_written_to_disk(tmp_path: Path) -> None:
    with server("127.0.0.1", history=str(tmp_path / "calls.sqlite")) as address:
        assert recorded(address, cookie(address)) is True
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"fake/m" in stored
    assert SECRET.encode() not in stored


def test_a_history_on_disk_has_the_words_when_the_settings_say_so(tmp_path: Path) -> None:
    with server("127.0.0.1", history=str(tmp_path / "calls.sqlite"), traces="on", history_days=1) as address:
        session = cookie(address)
        assert recorded(address, session) is True
    with server("127.0.0.1", history=str(tmp_path / "calls.sqlite"), traces="on") as address:
        session = cookie(address)
        (row,) = read(address, "requests", session)["rows"]
        assert SECRET in json.dumps(read(address, f"requests/{row['id']}", session))
