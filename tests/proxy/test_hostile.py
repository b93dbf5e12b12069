"""Clients and applications that mean harm, over real sockets: smuggled requests, endless ones, injected headers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from slipform.addons.server.http_server.state import ServerLimits
from slipform.testing import FakeModel
from tests.proxy.proxying import ADA, proxied
from tests.proxy.talking import LOOPS, QUICK, Wire, echo, talking, whole
from tests.waiting import steady, turns, until

HEAD = b"POST /a HTTP/1.1\r\nhost: x\r\n"
GET = b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLING = {
    "a length and chunks": HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 0\r\ncontent-length: 5\r\n\r\n",
    "a list of lengths": HEAD + b"content-length: 5, 5\r\n\r\nhello",
    "a signed length": HEAD + b"content-length: +5\r\n\r\nhello",
    "a negative length": HEAD + b"content-length: -5\r\n\r\nhello",
    "an endless length": HEAD + b"content-length: 99999999999999999999999\r\n\r\nhello",
    "chunks that are not last": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "nearly chunked": HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks twice": HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "an encoding nobody undoes": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk size in C": CHUNKED + b"0x2\r\nhi\r\n0\r\n\r\n",
    "a chunk size with a blank": CHUNKED + b"2 \r\nhi\r\n0\r\n\r\n",
    "a chunk size with a sign": CHUNKED + b"+2\r\nhi\r\n0\r\n\r\n",
    "an endless chunk size": CHUNKED + b"fffffffffffffffff\r\nhi\r\n0\r\n\r\n",
    "a chunk that is longer": CHUNKED + b"2\r\nhi there\r\n0\r\n\r\n",
    "a chunk's line that ends early": CHUNKED + b"2\nhi\r\n0\r\n\r\n",
    "an extension's line that ends early": CHUNKED + b"2;a=b\nxx\r\nhi\r\n0\r\n\r\n",
    "a chunk that ends early": CHUNKED + b"2\r\nhi\n0\r\n\r\n",
    "a blank before the colon": HEAD + b"content-length : 5\r\n\r\nhello",
    "a blank in a name": HEAD + b"content length: 5\r\n\r\nhello",
    "a blank before a name": HEAD + b" content-length: 5\r\n\r\nhello",
    "a folded line": HEAD + b"x-a: b\r\n c\r\n\r\n",
    "no name": HEAD + b": b\r\n\r\n",
    "bare line feeds": b"GET /a HTTP/1.1\nhost: x\n\n",
    "a bare line feed in a value": HEAD + b"x-a: b\ncontent-length: 5\r\n\r\nhello",
    "a bare carriage return": HEAD + b"x-a: b\rcontent-length: 5\r\n\r\nhello",
    "a zero byte": HEAD + b"x-a: b\0c\r\n\r\n",
    "no host": b"GET /a HTTP/1.1\r\n\r\n",
    "two hosts": HEAD + b"host: y\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a tunnel": b"CONNECT other:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "letters beyond ASCII": "GET /ä HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
}


@pytest.fixture(scope="module")
def connect() -> Any:
    with talking(echo) as connecting:
        yield connecting


@pytest.mark.parametrize("said", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_what_two_servers_could_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    said: bytes, connect: Any
) -> None:
    for piece in (said + GET, said):
        wire = connect()
        wire.say(piece)
        answer = wire.hear_all()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"connection: close" in answer
        assert answer.count(b"HTTP/1.1") == 1


UPGRADE = b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
AFTER_AN_UPGRADE = {
    "no HTTP": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a frame": b"\x00\x00\x0c\x04\x00\x00\x00\x00\x00",
    "no host": b"GET /c HTTP/1.1\r\n\r\n",
    "two lengths": HEAD + b"content-length: 0\r\ncontent-length: 5\r\n\r\n",
    "another upgrade before it": UPGRADE + b"nonsense\r\n\r\n",
}


@LOOPS
@pytest.mark.parametrize("said", AFTER_AN_UPGRADE.values(), ids=AFTER_AN_UPGRADE.keys())
def test_bytes_after_a_request_for_another_protocol_are_a_request_or_refused_as_one(
    loop: Any, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with talking(echo, loop=loop) as connect:
        wire = connect()
        wire.say(UPGRADE + said)
        assert wire.answer()[2] == b"/a "
        if said.startswith(UPGRADE):
            assert wire.answer()[2] == b"/a "
        assert wire.hear_all().startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 "))
    assert not caplog.records


def test_a_client_of_the_old_version_needs_no_host_and_is_told_nothing_before_its_answer() -> None:
    asked = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await echo(scope, receive, send)

    with talking(app) as connect:
        wire = connect()
        wire.say(b"POST /a HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert asked.wait(20)
        wire.say(b"hi")
        said = wire.hear_all()
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.endswith(b"/a hi")


@pytest.mark.parametrize("blank", [b"", b" ", b"   "])
def test_blanks_after_a_value_are_no_part_of_it(blank: bytes, connect: Any) -> None:
    wire = connect()
    wire.say(HEAD + b"transfer-encoding: chunked" + blank + b"\r\nexpect: 100-continue" + blank + b"\r\n\r\n")
    assert wire.hear(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.say(b"2\r\nhi\r\n0\r\n\r\n" + GET)
    assert [wire.answer()[2] for _ in range(2)] == [b"/a hi", b"/b "]


def test_a_body_that_is_said_to_be_too_large_is_refused_before_it_is_sent() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"
    with proxied({"fake": FakeModel([ADA])}, {"server": {"max_body_bytes": 2000}}) as address:
        asking = Wire(address)
        asking.say(head % 100_000_000 + b"expect: 100-continue\r\n\r\n")
        said = asking.hear_all()
        assert said.startswith(b"HTTP/1.1 413 ")  # and no 100 before it
        assert b"connection: close" in said
        sending = Wire(address)
        sending.say(head % 2001 + b"\r\n")
        assert sending.answer()[0].startswith(b"HTTP/1.1 413 ")
        sending.say(b"x" * 2001 + head % 2000 + b"expect: 100-continue\r\n\r\n")
        assert sending.hear(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        asking.close()
        sending.close()


def test_a_request_has_only_so_many_headers() -> None:
    with talking(echo, limits=ServerLimits(headers=10)) as connect:
        for count, status in ((9, b"200"), (10, b"431")):  # and the host
            wire = connect()
            wire.say(b"GET /a HTTP/1.1\r\nhost: x\r\n" + b"x-a: b\r\n" * count + b"\r\n")
            assert wire.hear(b"\r\n\r\n").startswith(b"HTTP/1.1 " + status), count


@pytest.mark.parametrize("version", [b"2.0", b"0.9"])
def test_other_versions_are_not_spoken(version: bytes, connect: Any) -> None:
    wire = connect()
    wire.say(b"GET / HTTP/" + version + b"\r\nhost: x\r\n\r\n")
    assert wire.hear_all().startswith(b"HTTP/1.1 505 ")


@LOOPS
def test_a_bad_request_behind_good_ones_is_refused_after_their_answers(loop: Any) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await turns()
        await echo(scope, receive, send)

    with talking(slow, loop=loop) as connect:
        wire = connect()
        wire.say(GET + GET + b"nonsense\r\n\r\n")
        assert [wire.answer()[2] for _ in range(2)] == [b"/b ", b"/b "]
        assert wire.hear_all().startswith(b"HTTP/1.1 400 ")
        last = connect()
        last.say(GET + b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        assert last.answer()[2] == b"/b "
        assert last.hear_all().startswith(b"HTTP/1.1 400 ")


def test_a_body_that_goes_bad_in_the_middle_of_its_answer_ends_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    with talking(app) as connect:
        wire = connect()
        wire.say(CHUNKED)
        wire.hear(b"begun\r\n")
        wire.say(b"not a chunk\r\n")
        assert wire.hear_all() == b""


@LOOPS
@pytest.mark.covers("S2-70")
def test_heads_past_the_limit_are_refused_however_they_come(loop: Any) -> None:
    limits = ServerLimits(head_bytes=4096)
    with talking(echo, loop=loop, limits=limits) as connect:
        ways = {
            "at once": [HEAD + b"x-filler: " + b"a" * 5000 + b"\r\n\r\n"],
            "in pieces": [HEAD + b"x-filler: ", *[b"a" * 500] * 10],
            "in many lines": [HEAD, *[b"x-filler: aaaaaaaa\r\n" * 20] * 20],
            "in the target": [b"GET /", *[b"a" * 500] * 10],
            "of blank lines": [b"\r\n" * 250] * 10,
            "after the body": [CHUNKED + b"0\r\nx-filler: ", *[b"a" * 500] * 10],
        }
        for way, pieces in ways.items():
            wire = connect()
            try:
                for piece in pieces:
                    wire.say(piece)
                    time.sleep(0.01)  # so that the pieces arrive one by one
            except OSError:
                continue  # it has hung up
            assert wire.hear_all().startswith(b"HTTP/1.1 431 "), way
        wire = connect()
        body = b"x" * 50_000
        for _ in range(2):
            wire.say(HEAD + b"content-length: %d\r\n\r\n" % len(body), body)
            assert wire.answer()[2] == b"/a " + body


@LOOPS
@pytest.mark.parametrize("first", [b"", b"\r\n", HEAD + b"x-filler: ", GET + HEAD + b"x-filler: "])
def test_those_who_send_their_head_drop_by_drop_are_cut_off(loop: Any, first: bytes) -> None:
    with talking(echo, loop=loop, limits=QUICK) as connect:
        wire = connect()
        wire.say(first)
        if first.startswith(b"GET"):
            assert wire.answer()[2] == b"/b "
        wire.drip(b"\r\n" if first == b"\r\n" else b"a" if first else b"")
        assert wire.hear_all() == b""


def test_the_rest_of_a_body_may_not_drip_for_ever_after_the_answer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, b"no", status=413)

    with talking(app, limits=QUICK) as connect:
        wire = connect()
        wire.say(HEAD + b"content-length: 100000\r\n\r\n")
        assert wire.answer()[0].startswith(b"HTTP/1.1 413 ")
        began = time.monotonic()
        wire.drip(b"x", times=1000)
        assert time.monotonic() - began < 15  # 20 s of drops


@LOOPS
def test_requests_are_not_queued_without_end(loop: Any) -> None:
    go, started = threading.Event(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.append(scope["path"])
        await asyncio.to_thread(go.wait)
        await whole(send, scope["path"].encode())

    with talking(app, loop=loop, limits=ServerLimits(queued=8)) as connect:
        wire = connect()
        wire.say(b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(100)))
        assert until(lambda: started)
        assert steady(lambda: len(started)) == 1
        go.set()
        said = wire.hear_all()
        assert said.count(b"HTTP/1.1 200") == 9
        assert said.count(b"connection: close") == 1
        assert said.endswith(b"/8")


@LOOPS
def test_who_sends_ahead_is_not_read_from_until_the_answers_have_caught_up(loop: Any) -> None:
    go = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(go.wait)
        await whole(send, b"ok")

    with talking(app, loop=loop) as connect:
        wire = connect()
        wire.say(GET + GET)
        filler = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n\r\n" + b"x" * 65536
        assert wire.say_until_stopped(filler, 64_000_000) < 32_000_000
        go.set()


@pytest.mark.parametrize(
    "header",
    [
        (b"x-a", b"b\r\nset-cookie: c"),
        (b"x-a", b"b\nset-cookie: c"),
        (b"x-a", b"b\rset-cookie: c"),
        (b"x-a", b"b\0"),
        (b"x-a\r\nx-b", b"c"),
        (b"x a", b"c"),
        (b"", b"c"),
        (b"transfer-encoding", b"gzip"),
        (b"content-length", b"3"),
        (b"content-length", b"2\r\n"),
        (b"transfer-encoding", b"chunked"),
    ],
    ids=repr,
)
def test_headers_that_would_say_more_than_one_thing_never_leave(header: tuple[bytes, bytes]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, b"ok", header)

    with talking(app) as connect:
        wire = connect()
        wire.say(GET)
        said = wire.hear_all()
        assert said.startswith(b"HTTP/1.1 500 ")
        assert b"set-cookie" not in said
        assert said.endswith(b"\r\n\r\nInternal Server Error")


@pytest.mark.parametrize("pieces", [[b"four"], [b"1", b"23"], [b"1"]], ids=["longer", "longer in two", "shorter"])
def test_an_answer_of_another_length_than_it_says_is_visibly_broken(pieces: list[bytes]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": pieces[-1]})

    with talking(app) as connect:
        wire = connect()
        wire.say(GET + GET)
        said = wire.hear_all()
        assert len(said.partition(b"\r\n\r\n")[2]) < 2
        assert said.count(b"HTTP/1.1") == 1


async def _silent(scope: Any, receive: Any, send: Any) -> None: ...


async def _broken(scope: Any, receive: Any, send: Any) -> None:
    raise LookupError("a secret")


async def _body_first(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("app", [_silent, _broken, _body_first])
def test_an_application_that_does_not_answer_is_answered_for(app: Any) -> None:
    with talking(app) as connect:
        wire = connect()
        wire.say(GET)
        said = wire.hear_all()
        assert said.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"secret" not in said


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_an_answer_that_breaks_off_is_visibly_unfinished(how: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        if how == "raises":
            raise LookupError

    with talking(app) as connect:
        wire = connect()
        wire.say(GET)
        assert wire.hear_all().endswith(b"5\r\nbegun\r\n")


def test_a_client_that_sends_all_of_a_body_that_is_too_large_still_reads_the_error() -> None:
    with proxied({"fake": FakeModel([ADA])}, {"server": {"max_body_bytes": 2000}}) as address:
        request = urllib.request.Request(f"{address}/v1/chat/completions", b"x" * 30_000_000, method="POST")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=30)
    assert caught.value.code == 413
    assert json.load(caught.value)["error"]["code"] == "too_large"
