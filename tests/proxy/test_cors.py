"""Web pages that call."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipform.addons.server.admission.keys import add_key
from slipform.testing import FakeModel
from tests.proxy.proxying import ADA, Reply, call, chat, keys_path, proxied

GOOD = "https://good.test"
PATH = "/v1/chat/completions"


def preflight(address: str, origin: str) -> Reply:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return call(address, PATH, headers=asked, method="OPTIONS")


def marks(reply: Reply) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control")}


def test_it_is_off_by_default() -> None:
    with proxied({"fake": FakeModel([ADA])}) as address:
        asked = preflight(address, GOOD)
        assert asked.status in (403, 404, 405)
        assert marks(asked) == {}
        assert marks(chat(address)) == {}


@pytest.fixture
def keyed(tmp_path: Path) -> tuple[str, Path]:
    path = keys_path(tmp_path)
    return add_key(path, "ada")[1], path


def test_a_listed_page_may_ask_first_call_then_and_read_what_comes(keyed: tuple[str, Path]) -> None:
    key, path = keyed
    server = {"cors_origins": [GOOD, "https://also.test/"], "keys_file": str(path)}
    with proxied({"fake": FakeModel([ADA])}, {"server": server}) as address:
        asked = preflight(address, GOOD)  # browsers ask without the key
        assert asked.status == 204
        assert asked.headers["access-control-allow-origin"] == GOOD
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
        assert asked.headers["vary"] == "origin"
        assert preflight(address, "https://also.test").headers["access-control-allow-origin"] == "https://also.test"
        said = {"origin": GOOD, "authorization": f"Bearer {key}"}
        for reply in (chat(address, said), chat(address, said, stream=True)):
            assert reply.status == 200
            assert reply.headers["access-control-allow-origin"] == GOOD
            assert "x-slipform-request-id" in reply.headers["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in reply.headers
        refused = chat(address, {"origin": GOOD})  # an error must be readable too
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == GOOD
        assert call(address, "/v1/models", headers=said).headers["access-control-allow-origin"] == GOOD


def test_another_page_gets_no_leave(keyed: tuple[str, Path]) -> None:
    key, path = keyed
    with proxied({"fake": FakeModel([ADA])}, {"server": {"cors_origins": [GOOD], "keys_file": str(path)}}) as address:
        for origin in ("https://evil.test", "https://good.test.evil.test", "http://good.test", "null"):
            assert marks(preflight(address, origin)) == {}
            assert marks(chat(address, {"origin": origin, "x-api-key": key})) == {}
        assert marks(chat(address, {"x-api-key": key})) == {}


def test_a_star_lets_every_page_call() -> None:
    with proxied({"fake": FakeModel([ADA])}, {"server": {"cors_origins": ["*"]}}) as address:
        assert preflight(address, "https://any.test").headers["access-control-allow-origin"] == "*"
        assert chat(address, {"origin": "https://any.test"}).headers["access-control-allow-origin"] == "*"
        assert call(address, "/nowhere", method="OPTIONS").status == 404  # no question of a browser's
