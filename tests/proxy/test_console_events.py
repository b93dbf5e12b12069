"""The console's event stream: what is told when, and how a page that was away comes back."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slipform.addons.server.console.events import Subscriber, positions_of
from slipform.addons.server.console.history import CallHistory
from slipform.addons.server.console.rows import FIELDS
from slipform.addons.server.observability.call_record import CallRecord
from slipform.testing import FakeModel
from tests.conftest import serving
from tests.proxy.console_server import Beside, app_of
from tests.proxy.proxying import ADA, FORMAT, call, chat, proxied
from tests.proxy.test_console import API, cookie


def events_of(text: bytes) -> list[tuple[str, str]]:
    """The events of a piece of a stream: kind and request id, or just the kind."""
    found = []
    for block in text.decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "event" in lines:
            data = json.loads(lines["data"])
            found.append((lines["event"], data[FIELDS.index("request_id")] if isinstance(data, list) else ""))
    return found


def last_id(text: bytes) -> str:
    return [line for line in text.decode().split("\n") if line.startswith("id: ")][-1].removeprefix("id: ")


def over(history: CallHistory, name: str) -> None:
    record = CallRecord(name, api="openai-chat", model="m")
    entry = history.begin(record)
    history.announce(entry, record, b"")
    history.end(entry, record)


def away(history: CallHistory, calls: int) -> tuple[str, list[tuple[str, str]]]:
    """The id that a page saw last before so many calls ended, and what it is told when it names it."""
    before = history.subscribe()
    over(history, "seen")
    seen = last_id(history.take(before))
    history.unsubscribe(before)
    for number in range(calls):
        over(history, f"r{number}")
    return seen, events_of(history.take(history.subscribe(after=seen)))


def test_a_page_that_was_away_is_told_what_ended_and_what_began_meanwhile() -> None:
    history = CallHistory(1_000_000, 1_000_000)
    under_way = CallRecord("now", api="openai-chat", model="m")
    history.begin(under_way)
    _, told = away(history, 2)
    assert told == [("end", "r0"), ("end", "r1"), ("begin", "now")]


def test_a_page_that_missed_nothing_is_told_nothing() -> None:
    assert away(CallHistory(1_000_000, 1_000_000), 0)[1] == []


@pytest.mark.parametrize(
    ("max_bytes", "calls"), [(2_000, 30), (10_000_000, 600)], ids=["rows made way", "too many to tell"]
)
def test_what_cannot_be_told_one_by_one_is_a_gap(max_bytes: int, calls: int) -> None:
    assert away(CallHistory(max_bytes, 1_000_000), calls)[1] == [("gap", "")]


@pytest.mark.parametrize("after", ["0123456789ab.5", "unknown", "a.-1,b.x", "," * 300])
def test_an_id_of_another_run_or_none_at_all_is_a_gap(after: str) -> None:
    history = CallHistory(1_000_000, 1_000_000)
    over(history, "r")
    assert events_of(history.take(history.subscribe(after=after))) == [("gap", "")]


def test_a_call_that_is_over_before_the_next_batch_is_told_once() -> None:
    history = CallHistory(1_000_000, 1_000_000)
    subscriber = history.subscribe()
    over(history, "quick")
    slow = CallRecord("slow", api="openai-chat", model="m")
    entry = history.begin(slow)
    history.announce(entry, slow, b"")
    assert events_of(history.take(subscriber)) == [("end", "quick"), ("begin", "slow")]
    history.end(entry, slow)
    assert events_of(history.take(subscriber)) == [("end", "slow")]


def test_a_client_that_is_too_slow_gets_a_gap_and_then_what_comes_after_it() -> None:
    history = CallHistory(10_000_000, 1_000_000)
    subscriber = history.subscribe()
    for number in range(3000):
        over(history, f"r{number}")
    told = events_of(history.take(subscriber))
    assert told[-1] == ("gap", "")
    assert 1000 < len(told) < 3000
    over(history, "after")
    assert events_of(history.take(subscriber)) == [("end", "after")]


def test_the_id_counts_every_worker_whose_events_are_relayed() -> None:
    history = CallHistory(1_000_000, 1_000_000)
    subscriber = history.subscribe()
    over(history, "own")
    own = positions_of(last_id(history.take(subscriber)))
    subscriber.relay(b"id: ffff.7\nevent: hello\ndata: {}\n\n")
    subscriber.relay(b": alive\n\n")
    subscriber.relay(b"id: ffff.9\nevent: tracing\ndata: {}\n\n")
    text = history.take(subscriber)
    assert events_of(text) == [("tracing", "")]
    assert positions_of(last_id(text)) == {**own, "ffff": 9}


def test_nothing_is_kept_for_a_client_that_is_gone() -> None:
    history = CallHistory(1_000_000, 1_000_000)
    subscriber = history.subscribe()
    history.unsubscribe(subscriber)
    over(history, "r")
    assert subscriber.take() == b""
    assert isinstance(subscriber, Subscriber)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with proxied({"fake": FakeModel([ADA], models=["m"])}, {"default_model": "fake/m"}) as address:
        yield address


def stream(address: str, session: str, after: str = "", header: str = "") -> bytes:
    """The first of a stream: the greeting, and what came before it was opened."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    headers = {"cookie": session, **({"last-event-id": header} if header else {})}
    connection.request("GET", f"{API}events?after={after}", headers=headers)
    read = connection.getresponse().read1(65536)
    connection.close()
    return read


def test_the_last_events_id_is_taken_as_a_header_and_in_the_address(served: str) -> None:
    session = cookie(served)
    seen = last_id(stream(served, session))
    assert chat(served, response_format=FORMAT).status == 200
    for text in (stream(served, session, after=seen), stream(served, session, header=seen)):
        assert [kind for kind, _ in events_of(text)] == ["hello", "end"]
    hostile = stream(served, session, after="x%0d%0ax-slipform-worker:%20y")
    assert [kind for kind, _ in events_of(hostile)] == ["hello", "gap"]


def test_pages_that_do_not_read_cost_a_bounded_amount_and_are_forgotten_when_they_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    models = {"good": FakeModel([ADA])}
    app = app_of(models)
    history = app.console.history
    with serving(Beside(app, models)) as address:
        session = cookie(address)
        tabs = [http.client.HTTPConnection(urlsplit(address).netloc, timeout=20) for _ in range(10)]
        for tab in tabs:
            tab.request("GET", f"{API}events", headers={"cookie": session})
            assert tab.getresponse().status == 200
        assert len(history.subscribers) == 10
        assert call(address, "/test/arrive?n=5000").status == 200
        assert all(each._size <= 512 * 1024 for each in history.subscribers)
        assert chat(address, model="fake/good", response_format=FORMAT).status == 200
        for tab in tabs:
            tab.close()
        until = time.monotonic() + 20
        while history.subscribers:
            assert chat(address, model="fake/good", response_format=FORMAT).status == 200
            assert time.monotonic() < until
