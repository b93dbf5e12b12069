"""The HTTP/1.1 server, as its clients see it: over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from tests.proxy.talking import LOOPS, QUICK, body_of, echo, talking, whole
from tests.waiting import for_ever, steady, turns

POST = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
GET = b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n"


@LOOPS
def test_a_connection_is_used_again_and_pipelined_requests_are_answered_in_order(loop: Any) -> None:
    async def slow_first(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/a":
            await turns()
        await echo(scope, receive, send)

    with talking(slow_first, loop=loop) as connect:
        wire = connect()
        for _ in range(3):
            wire.say(POST + GET + POST)
            assert [wire.answer()[2] for _ in range(3)] == [b"/a hi", b"/b ", b"/a hi"]


@LOOPS
def test_head_and_body_leave_in_one_piece(loop: Any) -> None:
    with talking(echo, loop=loop) as connect:
        wire = connect()
        wire.say(POST)
        first = wire.socket.recv(65536)
        assert first.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
        assert first.endswith(b"\r\n\r\n/a hi")


def test_a_head_alone_leaves_without_waiting_for_the_body() -> None:
    go = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.to_thread(go.wait)
        await send({"type": "http.response.body", "body": b"x"})

    with talking(app) as connect:
        wire = connect()
        wire.say(GET)
        wire.hear(b"transfer-encoding: chunked\r\n\r\n")
        go.set()
        assert wire.hear(b"0\r\n\r\n") == b"1\r\nx\r\n0\r\n\r\n"


@LOOPS
def test_a_request_may_come_byte_by_byte(loop: Any) -> None:
    with talking(echo, loop=loop) as connect:
        wire = connect()
        for at in range(len(POST)):
            wire.say(POST[at : at + 1])
            time.sleep(0.0005)  # so that the bytes arrive one by one
        assert wire.answer()[2] == b"/a hi"


@LOOPS
def test_chunked_bodies_are_put_together_and_their_trailers_are_not_headers(loop: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = await body_of(receive)
        await whole(send, body + b" " + b",".join(name for name, _ in scope["headers"]))

    with talking(app, loop=loop) as connect:
        wire = connect()
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        wire.say(head + b"2\r\nhe\r\n", b"3;note=1\r\nllo\r\n", b"0\r\nauthorization: Bearer x\r\n\r\n" + GET)
        assert wire.answer()[2] == b"hello host,transfer-encoding"
        assert wire.answer()[2] == b" host"


def test_a_stream_is_chunked_for_those_who_know_chunks() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        for piece in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    with talking(app) as connect:
        wire = connect()
        wire.say(GET)
        head = wire.hear(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        assert wire.hear(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        old = connect()
        old.say(b"GET / HTTP/1.0\r\n\r\n")
        said = old.hear_all()
        assert b"transfer-encoding" not in said
        assert b"connection: close" in said
        assert said.endswith(b"\r\n\r\nonetwo")


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"]
)
def test_the_last_request_closes_the_connection_and_nothing_after_it_is_answered(request_: bytes) -> None:
    with talking(echo) as connect:
        wire = connect()
        wire.say(request_ + GET)
        said = wire.hear_all()
        assert said.count(b"HTTP/1.1") == 1
        assert b"connection: close" in said
        assert said.endswith(b"/ ")


def test_an_application_may_close_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, b"bye", (b"connection", b"close"))

    with talking(app) as connect:
        wire = connect()
        wire.say(GET)
        assert wire.hear_all().endswith(b"connection: close\r\n\r\nbye")


def test_head_requests_get_the_head_only() -> None:
    with talking(echo) as connect:
        wire = connect()
        wire.say(b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        assert b"content-length: 3\r\n" in wire.hear(b"\r\n\r\n")
        assert wire.answer()[2] == b"/b "


def test_a_client_that_asks_first_is_told_to_send_its_body() -> None:
    asking = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    with talking(echo) as connect:
        wire = connect()
        wire.say(asking)
        assert wire.hear(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.say(b"hi")
        assert wire.answer()[2] == b"/a hi"
        wire.say(asking + b"yo")  # it did not wait
        assert wire.answer()[2] == b"/a yo"


def test_a_client_that_is_refused_before_it_sent_its_body_is_not_heard_again() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, b"no", status=401)

    with talking(app) as connect:
        wire = connect()
        wire.say(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\nexpect: 100-continue\r\n\r\n")
        said = wire.hear_all()
        assert said.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in said


def test_the_rest_of_a_body_that_nobody_wanted_is_not_taken_for_a_request() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, scope["path"].encode())

    with talking(app) as connect:
        wire = connect()
        inner = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
        wire.say(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(inner))
        assert wire.answer()[2] == b"/a"
        wire.say(inner + GET)
        assert wire.answer()[2] == b"/b"


@LOOPS
def test_requests_for_another_protocol_are_answered_in_this_one_bodies_included(loop: Any) -> None:
    upgrade = b"host: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
    with talking(echo, loop=loop) as connect:
        wire = connect()
        wire.say(b"GET /a HTTP/1.1\r\n" + upgrade + b"\r\n" + GET)
        assert [wire.answer()[2] for _ in range(2)] == [b"/a ", b"/b "]
        wire.say(b"POST /a HTTP/1.1\r\n" + upgrade + b"content-length: 5\r\n\r\nhe")
        time.sleep(0.05)  # so that the body arrives in two parts
        wire.say(b"llo" + GET)
        assert [wire.answer()[2] for _ in range(2)] == [b"/a hello", b"/b "]
        wire.say(b"POST /a HTTP/1.1\r\n" + upgrade + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + GET)
        assert [wire.answer()[2] for _ in range(2)] == [b"/a hi", b"/b "]


def test_targets_of_every_form_are_understood() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, repr((scope["path"], scope["raw_path"], scope["query_string"])).encode())

    with talking(app) as connect:
        wire = connect()
        for target, path, raw, query in (
            (b"/a%20b?c=%20#d", "/a b", b"/a%20b", b"c=%20"),
            (b"http://other/a?b", "/a", b"/a", b"b"),
            (b"//a//b", "//a//b", b"//a//b", b""),
            (b"*", "*", b"*", b""),
        ):
            wire.say(b"OPTIONS %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
            assert wire.answer()[2] == repr((path, raw, query)).encode()


@LOOPS
def test_who_does_not_read_stops_who_writes(loop: Any) -> None:
    written = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal written
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2000):
            await send({"type": "http.response.body", "body": b"x" * 32768, "more_body": True})
            written += 32768

    with talking(app, loop=loop) as connect:
        wire = connect()
        wire.say(GET)
        wire.socket.recv(10)
        assert 0 < steady(lambda: written) < 32_000_000


@LOOPS
def test_who_does_not_take_a_body_stops_who_sends_it(loop: Any) -> None:
    go = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(go.wait)
        await whole(send, b"%d" % len(await body_of(receive)))

    size = 40_000_000
    with talking(app, loop=loop) as connect:
        wire = connect()
        wire.say(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
        sent = wire.say_until_stopped(b"x" * 65536, size)
        assert sent < 32_000_000
        go.set()
        while sent < size:
            sent += wire.socket.send(b"x" * min(65536, size - sent))
        assert wire.answer()[2] == b"%d" % size


@LOOPS
def test_a_client_that_goes_is_told_to_the_application_in_both_ways(loop: Any) -> None:
    told: list[str] = []
    asked, done = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await body_of(receive)
        exchange = scope["extensions"]["slipform"]
        exchange.ends_with_client(True)
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await for_ever()
        told.append("cancelled")
        exchange.ends_with_client(False)
        told.append((await receive())["type"])
        exchange.ends_with_client(True)
        with contextlib.suppress(asyncio.CancelledError):
            await for_ever()
        told.append("cancelled at once")
        assert not exchange.push(b"nothing")
        await whole(send, b"nobody hears it")
        done.set()

    with talking(app, loop=loop) as connect:
        wire = connect()
        wire.say(POST)
        assert asked.wait(20)
        wire.close()
        assert done.wait(20)
        assert told == ["cancelled", "http.disconnect", "cancelled at once"]


@LOOPS
def test_pieces_are_pushed_while_the_client_keeps_up_and_refused_when_it_does_not(loop: Any) -> None:
    pushed, done = [0], threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        exchange = scope["extensions"]["slipform"]
        assert not exchange.push(b"too early")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        piece = b"x" * 65536
        while exchange.push(piece):
            pushed[0] += 1
            await asyncio.sleep(0)
        assert not exchange.answer(200, [], b"too late")
        await send({"type": "http.response.body", "body": b"end"})
        done.set()

    with talking(app, loop=loop) as connect:
        wire = connect()
        wire.say(GET)
        steady(lambda: pushed[0])  # nothing is read until the writer has stopped
        said = wire.hear(b"3\r\nend\r\n0\r\n\r\n")
        assert done.wait(20)
        assert said.count(b"x" * 65536) == pushed[0]


def test_a_whole_answer_is_written_at_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        exchange = scope["extensions"]["slipform"]
        assert exchange.answer(201, [(b"content-length", b"2"), (b"x-a", b"b")], b"ok")
        assert not exchange.answer(201, [], b"again")

    with talking(app) as connect:
        wire = connect()
        wire.say(GET + GET)
        for _ in range(2):
            line, headers, body = wire.answer()
            assert (line, headers[b"x-a"], body) == (b"HTTP/1.1 201 Created", b"b", b"ok")


def test_clients_that_are_silent_between_requests_are_let_go_later_than_those_in_the_middle_of_one() -> None:
    with talking(echo, limits=QUICK) as connect:
        wire, slow = connect(), connect()
        wire.say(POST)
        wire.answer()
        began = time.monotonic()
        slow.say(b"GET / HTTP/1.1\r\nhost")
        slow.hear_all()
        cut = time.monotonic() - began
        wire.hear_all()
        assert cut < time.monotonic() - began
