"""The console over HTTP: who gets in, from where, what it tells, and what it never keeps."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from slipform.addons.server.admission.keys import add_key, disable_key
from slipform.addons.server.console.access import console_secret, link_token
from slipform.addons.server.console.history import CallHistory
from slipform.addons.server.console.rows import matches, parse_query
from slipform.addons.server.observability.call_record import CallRecord, CallTrace
from slipform.testing import FakeModel, FakeVendor
from tests.proxy.proxying import ADA, ASK, FORMAT, Reply, call, chat, keys_path, proxied
from tests.proxy.served import Served
from tests.waiting import until

API = "/console/api/v1/"
CANARY = "xyzzy-canary"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def served() -> Iterator[str]:
    answers = ["{'name': '" + CANARY + "', 'age': '36'}"]
    with proxied({"fake": FakeModel(answers, models=["m"])}, {"default_model": "fake/m"}) as address:
        yield address


def own(address: str, **more: str) -> dict[str, str]:
    """The headers of a request that the console's own page sends."""
    origin = f"http://{urlsplit(address).netloc}"
    return {"origin": origin, "content-type": "application/json", "x-slipform-console": "1", **more}


def sign_in(address: str, **given: str) -> Reply:
    given = given or {"token": link_token(console_secret())}
    return call(address, f"{API}session", given, own(address))


def cookie(address: str, **given: str) -> str:
    reply = sign_in(address, **given)
    assert reply.status == 200, reply.body
    return reply.headers["set-cookie"].partition(";")[0]


def read(address: str, path: str, session: str) -> Any:
    reply = call(address, API + path, headers={"cookie": session})
    assert reply.status == 200, reply.body
    return reply.json


def test_a_browser_is_led_to_the_console_and_others_get_links(served: str) -> None:
    led = call(served, "/", headers={"accept": "text/html,*/*"})
    assert (led.status, led.headers["location"]) == (303, "/console/")
    told = call(served, "/", headers={"accept": "*/*"})
    assert told.status == 200
    assert told.json["links"]["console"] == "/console/"


def test_the_page_is_open_and_strict_and_its_data_needs_a_session(served: str) -> None:
    page = call(served, "/console/")
    assert page.status == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    for path in ("me", "requests", "stats", "events", "keys"):
        refused = call(served, API + path)
        assert (refused.status, refused.json["error"]["code"]) == (401, "no_session")
    assert sign_in(served, token="wrong").status == 401
    session = cookie(served)
    assert read(served, "me", session)["version"]
    name, until, *rest = re.split(r"[=.]", session)
    digit = "0" if session[-1] != "0" else "1"
    for forged in (
        session[:-1] + digit,
        f"{name}=²..{rest[-1]}",
        f"{name}={'9' * 5_000}..{rest[-1]}",
        f"{name}={until}",
    ):
        assert call(served, f"{API}me", headers={"cookie": forged}).status == 401


@pytest.mark.parametrize("path", ["/console/", "/console/static/app.js", f"{API}me", f"{API}events"])
def test_a_foreign_host_name_is_refused_everywhere(served: str, path: str) -> None:
    session = cookie(served)
    refused = call(served, path, headers={"host": "evil.example", "cookie": session})
    assert (refused.status, refused.json["error"]["code"]) == (403, "not_allowed")


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": "http://evil.example"},
        {"content-type": "text/plain"},
        {"x-slipform-console": "0"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_a_change_from_another_page_is_refused_and_changes_nothing(served: str, changed: dict[str, str]) -> None:
    session = cookie(served)
    refused = call(served, f"{API}tracing", {"minutes": 5}, own(served, cookie=session) | changed)
    assert refused.status == 403
    assert read(served, "me", session)["traces"] == {"mode": "off", "switch": False, "tracing": None}


@pytest.mark.parametrize("path", ["/console/", f"{API}me", f"{API}events", "/console/static/app.js"])
def test_no_other_page_may_read_the_console_whatever_origins_may_call(path: str) -> None:
    with proxied({"fake": FakeModel([ADA])}, {"server": {"cors_origins": ["*"]}}) as address:
        asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        for reply in (call(address, path, headers=asked), call(address, path, headers=asked, method="OPTIONS")):
            assert not [name for name in reply.headers if name.startswith("access-control-")]
        assert "access-control-allow-origin" in call(address, "/v1/models", headers=asked).headers


def test_with_keys_only_an_operators_key_opens_it_and_a_disabled_one_no_longer(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    caller, operator = add_key(path, "ada")[1], add_key(path, "ops", operator=True)[1]
    add_key(path, "other", operator=True)
    with proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(path)}}) as address:
        assert sign_in(address, token=link_token(console_secret())).status == 401
        assert sign_in(address, key=caller).status == 403
        session = cookie(address, key=operator)
        listed = read(address, "keys", session)["keys"]
        assert {key["name"] for key in listed} == {"ada", "ops", "other"}
        assert "hash" not in json.dumps(listed)
        disable_key(path, "ops")
        assert until(lambda: call(address, f"{API}me", headers={"cookie": session}).status == 401)


def test_wrong_keys_at_the_consoles_door_count_as_those_of_calls_do(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    operator = add_key(path, "ops", operator=True)[1]
    server = {"keys_file": str(path), "wrong_keys_per_minute": 10}
    with proxied({"fake": FakeModel([ADA])}, {"server": server}) as address:
        replies = [sign_in(address, key=f"sf-{number:012x}-guess") for number in range(25)]
        refused = replies[-1]
        by_call = chat(address, {"x-api-key": "sf-000000000000-guess"})
        assert cookie(address, key=operator)
    assert [reply.status for reply in replies] == [401] * 10 + [429] * 15
    assert (refused.json["error"]["code"], by_call.status) == ("too_many_wrong_keys", 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_without_an_operator_there_is_no_console_where_keys_are_needed(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    add_key(path, "ada")
    with proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(path)}}) as address:
        assert call(address, "/console/").status == 404
    with proxied({"fake": FakeModel([ADA])}, {"server": {"console": "off"}}) as address:
        assert call(address, "/console/").status == 404


def test_a_call_is_in_the_list_with_its_figures_and_without_its_words(served: str) -> None:
    session = cookie(served)
    assert chat(served, response_format=FORMAT, messages=[{"role": "user", "content": CANARY}]).status == 200
    found = read(served, "requests", session)
    (row,) = found["rows"]
    assert (row["stage"], row["model"], row["schema"], row["attempts"]) == ("repaired", "fake/m", "person", 1)
    detail = read(served, f"requests/{row['id']}", session)
    assert detail["trace"] is None
    assert "server.traces" in detail["absent"]
    assert detail["detail"]["attempts"][0]["repairs"]
    for path in ("requests", f"requests/{row['id']}", "stats", "schemas", "providers", "me"):
        assert CANARY not in json.dumps(read(served, path, session))


def test_words_are_kept_for_a_while_and_not_of_callers_who_opt_out(served: str) -> None:
    session = cookie(served)
    started = call(served, f"{API}tracing", {"minutes": 1}, own(served, cookie=session))
    assert started.json["tracing"]["until"] > time.time()
    assert chat(served, response_format=FORMAT).status == 200
    assert chat(served, headers={"x-slipform-trace": "off"}, response_format=FORMAT).status == 200
    quiet, traced = read(served, "requests", session)["rows"]
    kept = read(served, f"requests/{traced['id']}", session)["trace"]
    assert CANARY in kept["texts"][0]
    assert json.loads(kept["request"]["text"])["response_format"] == FORMAT
    assert read(served, f"requests/{quiet['id']}", session)["trace"] is None
    ended = call(served, f"{API}tracing", {}, own(served, cookie=session), method="DELETE")
    assert ended.json["tracing"] is None


def test_the_playground_streams_through_the_same_engine_and_links_to_its_call(served: str) -> None:
    session = cookie(served)
    body = {"model": "fake/m", "messages": ASK, "response_format": FORMAT, "stream": True}
    played = call(served, f"{API}play", body, own(served, cookie=session))
    assert played.status == 200
    assert CANARY in played.body.decode()
    row = read(served, f"requests/{played.headers['x-slipform-call']}", session)
    assert row["trace"]["texts"]  # one's own calls are kept
    assert call(served, f"{API}play", body, own(served)).status == 401


def test_a_schema_is_checked_for_every_dialect_and_a_text_judged_again_without_a_call(served: str) -> None:
    session = cookie(served)
    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}
    checked = call(served, f"{API}schemas/check", {"schema": schema}, own(served, cookie=session)).json
    assert checked["problems"] == []
    assert set(checked["losses"]) == {"openai", "anthropic", "gemini", "mistral"}
    wrong = {"schema": {"type": "objekt"}}
    bad = call(served, f"{API}schemas/check", wrong, own(served, cookie=session)).json
    assert bad["problems"]
    for text, ok in (("{'age': '36'}", True), ('{"age": -1}', False)):
        again = call(served, f"{API}rejudge", {"text": text, "schema": schema}, own(served, cookie=session)).json
        assert again["ok"] is ok
    assert read(served, "requests", session)["rows"] == []


def test_the_history_is_bounded_in_bytes() -> None:
    history = CallHistory(20_000, 50_000)
    for number in range(500):
        record = CallRecord(f"r{number}", api="openai-chat", model="m" * 100)
        trace = CallTrace()
        trace.request = b"x" * 5000
        history.end(history.begin(record), record, trace)
    sizes = history.sizes()
    assert sizes["bytes"] <= 20_000
    assert sizes["trace_bytes"] <= 50_000
    assert sizes["dropped"] > 0
    assert next(history.rows())["request_id"] == "r499"
    assert history.under_way() == []


def test_a_row_takes_no_more_memory_than_its_bytes() -> None:
    history = CallHistory(10_000_000, 50_000)
    records = [CallRecord(f"r{number}", api="openai-chat", model="m") for number in range(300)]
    tracemalloc.start()
    try:
        for record in records:
            history.end(history.begin(record), record)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * history.sizes()["bytes"] + 20_000


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("", True),
        ("model:fake/*", True),
        ("model:other", False),
        ("ms:>100", True),
        ("ms:<100", False),
        ("ada", True),
        ("stage:failed", False),
        ("ms:>x", False),
        ("nosuch:1", False),
    ],
)
def test_a_query_filters_rows(query: str, fits: bool) -> None:
    row = {"id": "1", "request_id": "r", "model": "fake/m", "upstream_model": "m", "schema": "", "caller": "Ada"}
    assert matches({**row, "ms": 200.0, "stage": "first"}, parse_query(query)) is fits


def test_the_pages_files_are_small_and_ask_nobody_else() -> None:
    folder = Path(str(resources.files("slipform.addons.server.console"))) / "static"
    files = list(folder.iterdir())
    assert sum(file.stat().st_size for file in files) <= 190_000
    for file in files:
        text = file.read_text("utf-8")
        assert "innerHTML" not in text
        assert "https://" not in text


def test_a_session_that_is_ended_takes_its_cookie_away(served: str) -> None:
    ended = call(served, f"{API}session", {}, own(served, cookie=cookie(served)), method="DELETE")
    assert ended.status == 200
    name = cookie(served).partition("=")[0]
    assert ended.headers["set-cookie"].startswith(f"{name}=; ")
    assert ended.headers["set-cookie"].endswith("Max-Age=0")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("PUT", "session", {}, 405, "opened with POST and ended with DELETE"),
        ("POST", "session", "{", 400, "The body is not JSON"),
        ("POST", "session", "[]", 400, "not a JSON object"),
        ("POST", "rejudge", {"text": 3}, 400, "`text` and `schema` are needed"),
        ("GET", "me/more", None, 404, "Unknown path: GET /console/api/v1/me/more"),
        ("GET", "nothing", None, 404, "Unknown path: /console/api/v1/nothing"),
        ("PUT", "stats", {}, 404, "Unknown path: PUT /console/api/v1/stats"),
        ("GET", "requests/none", None, 404, "Unknown call 'none'"),
        ("PUT", "requests/none/pin", {}, 404, "Unknown call 'none'"),
        ("POST", "providers/none/check", {}, 404, "Unknown provider 'none'"),
        ("DELETE", "lessons", {"key": "a", "lesson": "b"}, 404, "This downgrade does not exist"),
    ],
)
def test_what_the_console_does_not_have_is_told(
    served: str, method: str, path: str, body: Any, status: int, said: str
) -> None:
    connection = http.client.HTTPConnection(urlsplit(served).netloc, timeout=30)
    raw = body if isinstance(body, str) or body is None else json.dumps(body)
    with closing(connection):
        connection.request(method, API + path, raw, own(served, cookie=cookie(served)))
        response = connection.getresponse()
        told = json.loads(response.read())
    assert response.status == status
    assert said in told["error"]["message"]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "x", "", "-1", "1e999"])
@pytest.mark.parametrize("field", ["requests?limit", "requests?before", "stats?window"])
def test_a_figure_that_is_none_is_read_as_the_usual_one(served: str, field: str, value: str) -> None:
    assert isinstance(read(served, f"{field}={value}", cookie(served)), dict)


@pytest.mark.parametrize("minutes", ["nan", "inf", None, [], 1e999, -3])
def test_words_are_never_kept_for_longer_than_that_may_last(served: str, minutes: Any) -> None:
    reply = call(served, f"{API}tracing", {"minutes": str(minutes)}, own(served, cookie=cookie(served)))
    assert reply.status == 200
    until = (reply.json["tracing"] or {}).get("until", 0.0)
    assert until < time.time() + 25 * 3600


def test_the_list_is_emptied_but_for_what_is_pinned_also_on_disk(tmp_path: Path) -> None:
    settings = {"server": {"history": str(tmp_path / "calls.sqlite")}}
    with proxied({"fake": FakeModel([ADA])}, settings) as address:
        session = cookie(address)
        for _ in range(3):
            assert chat(address).status == 200
        pinned = read(address, "requests", session)["rows"][1]["id"]
        assert (
            call(address, f"{API}requests/{pinned}/pin", {}, own(address, cookie=session), method="PUT").status == 200
        )
        assert call(address, f"{API}requests", {}, own(address, cookie=session), method="DELETE").json == {"ok": True}
        left = read(address, "requests", session)
    assert [row["id"] for row in left["pinned"]] == [pinned]
    assert {row["id"] for row in left["rows"]} <= {pinned}


def test_with_traces_of_failures_only_the_words_of_calls_that_fail_are_kept() -> None:
    settings = {"server": {"traces": "failures"}}
    with proxied({"fake": FakeModel([CANARY, ADA])}, settings, attempts=1) as address:
        session = cookie(address)
        assert [chat(address).status, chat(address).status] == [422, 200]
        fine, failed = (
            read(address, f"requests/{row['id']}", session) for row in read(address, "requests", session)["rows"]
        )
    assert CANARY in failed["trace"]["texts"][0]
    assert fine["trace"] is None
    assert fine["absent"] == "Prompts and answers are recorded only of calls that fail (`server.traces: failures`)."


@pytest.mark.skipif(not hasattr(os, "fork"), reason="several workers need fork")
def test_workers_share_sessions_where_nothing_can_be_written(started: Callable[..., Served], tmp_path: Path) -> None:
    unwritable = tmp_path / "a file, not a folder"
    unwritable.touch()
    with FakeVendor([ADA]) as vendor:
        served = started(vendor, workers=3, environment={"XDG_STATE_HOME": str(unwritable)})
        served.wait_for(lambda: any("#t=" in line for line in served.lines))
        token = next(line.partition("#t=")[2].strip() for line in served.lines if "#t=" in line)
        address = f"http://{served.host}:{served.port}"
        session = cookie(address, token=token)
        statuses = [call(address, f"{API}me", headers={"cookie": session}).status for _ in range(30)]
    assert statuses == [200] * 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="several workers need fork")
def test_the_console_of_one_worker_shows_and_changes_what_all_of_them_have(
    started: Callable[..., Served], tmp_path: Path
) -> None:
    with FakeVendor([ADA]) as vendor:
        served = started(vendor, workers=2, environment={"XDG_STATE_HOME": str(tmp_path)})
        address = f"http://{served.host}:{served.port}"
        session = cookie(address)
        served.wait_for(lambda: read(address, "me", session)["workers"] == {"count": 2, "reached": 2})
        forged = call(address, f"{API}me", headers={"x-slipform-worker": "0" * 64})
        assert forged.status == 401, "only another worker knows the word"
        events = http.client.HTTPConnection(served.host, served.port, timeout=30)
        with closing(events):
            events.request("GET", f"{API}events", headers={"cookie": session})
            stream = events.getresponse()
            assert stream.status == 200
            for _ in range(12):  # the system deals connections out: all twelve to one worker is a chance of 1 in 2,048
                assert served.ask() == 200
            rows = {row["id"] for row in read(address, "requests", session)["rows"]}
            assert len(rows) == 12
            told: set[str] = set()
            while told < rows:
                line = stream.readline()
                assert line, "the events ended"
                told |= {identity for identity in rows if identity.encode() in line}
        assert read(address, "me", session)["kept"]["rows"] == 12
        assert read(address, "stats", session)["calls"] == 12
        assert call(address, f"{API}tracing", {"minutes": 1}, own(address, cookie=session)).status == 200
        assert all(read(address, "me", session)["traces"]["tracing"] for _ in range(8))
        assert call(address, f"{API}requests", {}, own(address, cookie=session), method="DELETE").status == 200
        assert read(address, "requests", session)["rows"] == []
