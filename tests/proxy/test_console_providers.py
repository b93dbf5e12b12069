"""The console's pages of providers and schemas: how busy, a check by hand, what was learnt forgotten, one schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.local import LocalProvider
from slipform.providers.concurrency import throttled
from slipform.providers.downgrade_file import read_downgrades, remembered_downgrades
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.retry import model_key
from slipform.testing import FakeModel, FakeVendor
from tests.conftest import PERSON
from tests.proxy.proxying import ADA, FORMAT, Reply, call, chat, proxied
from tests.proxy.test_console import API, cookie, own, read


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def vendor_at(base_url: str, **more: Any) -> HttpProvider:
    return HttpProvider("openai-compatible", name="fake", base_url=base_url, **more)


def change(address: str, path: str, session: str, body: Any, method: str = "POST") -> Reply:
    return call(address, API + path, body, own(address, cookie=session), method)


def listed(address: str, session: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in read(address, "providers", session)["providers"] if each["name"] == name
    )
    return found


def test_a_provider_is_checked_by_hand_without_a_key_and_without_a_call() -> None:
    with FakeVendor([ADA]) as vendor:
        providers = {"fake": vendor_at(vendor.base_url), "gone": vendor_at("http://127.0.0.1:9/v1")}
        with proxied(providers) as address:
            session = cookie(address)
            found = change(address, "providers/fake/check", session, {}).json
            assert (found["ok"], found["text"]) == (True, "answers")
            assert found["ms"] > 0
            gone = change(address, "providers/gone/check", session, {}).json
            assert gone["ok"] is False
            assert "cannot be reached" in gone["text"]
            assert change(address, "providers/nobody/check", session, {}).status == 404
            assert read(address, "requests", session)["rows"] == []
        assert [("authorization" in each.headers, each.body) for each in vendor.requests] == [(False, b"")]


def test_a_downgrade_that_is_forgotten_stays_forgotten_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "downgrades.jsonl"
    with FakeVendor([ADA]) as vendor:
        provider = vendor_at(vendor.base_url, downgrades=remembered_downgrades(file))
        key = model_key(provider.base_url, "m")
        for lesson in ("no_native", "no_json_mode"):
            provider.downgrades.add(key, lesson)
        with proxied({"fake": provider}) as address:
            session = cookie(address)
            downgrades = listed(address, session, "fake")["downgrades"]
            assert [(each["model"], each["lesson"]) for each in downgrades] == [
                ("m", "no_json_mode"),
                ("m", "no_native"),
            ]
            assert "native" in downgrades[1]["text"]
            wanted = {"key": key, "lesson": "no_native"}
            assert change(address, "lessons", session, wanted, "DELETE").status == 200
            assert [each["lesson"] for each in listed(address, session, "fake")["downgrades"]] == ["no_json_mode"]
            assert change(address, "lessons", session, wanted, "DELETE").status == 404
    assert [each.name for each in read_downgrades(file)] == ["no_json_mode"]
    remembered_downgrades(file).add(key, "no_native")
    assert {each.name for each in read_downgrades(file)} == {"no_json_mode", "no_native"}


def test_neither_is_done_for_another_page(tmp_path: Path) -> None:
    with FakeVendor([ADA]) as vendor:
        provider = vendor_at(vendor.base_url)
        provider.downgrades.add(model_key(provider.base_url, "m"), "no_native")
        with proxied({"fake": provider}) as address:
            session = cookie(address)
            headers = own(address, cookie=session) | {"origin": "http://evil.example"}
            body = {"key": model_key(provider.base_url, "m"), "lesson": "no_native"}
            assert call(address, f"{API}lessons", body, headers, "DELETE").status == 403
            assert call(address, f"{API}providers/fake/check", {}, headers).status == 403
            assert call(address, f"{API}providers/fake/check", headers={"cookie": session}).status == 404
            assert listed(address, session, "fake")["downgrades"]


def test_slots_keys_and_addresses_are_shown_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FakeVendor([ADA]) as vendor:
        transport = throttled(HttpTransport(), 3)
        secret = vendor.base_url.replace("http://", "http://me:hunter22@")
        providers = {"fake": vendor_at(secret, transport=transport), "openai": HttpProvider("openai")}
        with proxied(providers, {"default_model": "fake/m"}) as address:
            session = cookie(address)
            assert chat(address, response_format=FORMAT).status == 200
            found = listed(address, session, "fake")
            assert found["slots"] == {"limit": 3, "used": 0, "waiting": 0}
            assert (found["state"], found["key"]) == ("ok", None)
            assert "hunter22" not in found["address"]
            assert (listed(address, session, "openai")["state"], listed(address, session, "openai")["key"]) == (
                "no key",
                False,
            )


def test_of_the_embedded_model_it_shows_what_is_loaded_and_how_quickly_it_writes(local: LocalProvider) -> None:
    with proxied({"local": local}, {"default_model": "local"}) as address:
        session = cookie(address)
        assert change(address, "providers/local/check", session, {}).json["text"] == "is loaded"
        assert chat(address, model="local", response_format=FORMAT).status == 200
        found = listed(address, session, "local")
        assert all(memory > 1_000_000 for memory in found["loaded"].values())
        assert found["loaded"]
        assert found["slots"]["limit"] > 0
        assert found["tokens_per_second"] > 0


def test_a_schemas_own_page_has_its_fields_and_the_document_of_a_named_one(tmp_path: Path) -> None:
    (tmp_path / "person.json").write_text(json.dumps(PERSON), "utf-8")
    schemas = str(tmp_path)
    answers = ['{"name": "Ada", "age": "old"}', ADA]
    with proxied({"fake": FakeModel(answers)}, {"default_model": "fake/m", "schemas": schemas}) as address:
        session = cookie(address)
        assert chat(address, response_format=FORMAT).status == 200
        found = read(address, "schemas/person", session)
        assert found["document"] == PERSON
        (health,) = found["schemas"]
        assert health["fields"][0]["schema_path"] == "/properties/age/type"
        unknown = read(address, "schemas/nosuch", session)
        assert (unknown["schemas"], unknown["document"], "person" in unknown["named"]) == ([], None, True)


def test_a_field_is_counted_once_for_each_call_that_violated_it() -> None:
    answers = ['{"x": 1}', ADA]
    with proxied({"fake": FakeModel(answers)}, {"default_model": "fake/m"}) as address:
        session = cookie(address)
        assert chat(address, response_format=FORMAT).status == 200
        (health,) = read(address, "schemas", session)["schemas"]
    counts = {each["schema_path"]: each["count"] for each in health["fields"]}
    assert counts["/required"] == health["calls"] == 1


def test_a_schema_that_only_a_call_brought_leads_to_that_call() -> None:
    settings = {"default_model": "fake/m", "server": {"traces": "on"}}
    with proxied({"fake": FakeModel([ADA])}, settings) as address:
        session = cookie(address)
        assert chat(address, response_format=FORMAT).status == 200
        (health,) = read(address, "schemas/person", session)["schemas"]
        assert read(address, f"requests/{health['call']}", session)["trace"]["request"]["text"]
