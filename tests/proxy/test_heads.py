"""The heads of answers."""

from __future__ import annotations

import re

import pytest

from slipform.addons.server.http_server.request_cycle import Head, date_line, encode_head, refusal


def test_names_are_small_and_the_date_is_said_first() -> None:
    head = encode_head(200, [(b"X-Name", b"Ada Lovelace"), (b"content-length", b"3")], lines=b"\r\ndate: now")
    said = b"HTTP/1.1 200 OK\r\ndate: now\r\nx-name: Ada Lovelace\r\ncontent-length: 3\r\n\r\n"
    assert head == Head(said, 3, chunked=False, keep_alive=True)
    assert re.fullmatch(rb"\r\ndate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", date_line())


@pytest.mark.parametrize("status", [204, 304])
def test_answers_that_have_no_body_say_nothing_of_one(status: int) -> None:
    for headers in ([], [(b"content-length", b"0")]):
        head = encode_head(status, headers)
        assert (head.length, head.chunked, head.keep_alive) == (0, False, True)
        assert b"content-length" not in head.data
        assert b"chunked" not in head.data


def test_how_a_body_is_framed_is_not_for_the_application_to_spell() -> None:
    head = encode_head(200, [(b"Transfer-Encoding", b"Chunked"), (b"Connection", b"keep-alive, x-hop")])
    assert head.data == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    closing = encode_head(200, [(b"connection", b"Close"), (b"content-length", b"007")])
    assert closing.data == b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\n"
    assert not closing.keep_alive


def test_without_chunks_the_end_of_the_connection_is_the_end_of_the_body() -> None:
    head = encode_head(200, [], is_http11=False)
    assert (head.length, head.chunked, head.keep_alive) == (None, False, False)
    assert head.data.endswith(b"\r\nconnection: close\r\n\r\n")


def test_who_asks_for_the_head_gets_what_is_said_of_the_body() -> None:
    head = encode_head(200, [(b"content-length", b"300")], is_head_request=True)
    assert b"content-length: 300" in head.data
    assert (head.length, head.chunked) == (0, False)


def test_a_status_without_a_name_is_a_status() -> None:
    assert encode_head(529, []).data.startswith(b"HTTP/1.1 529 \r\n")
    for status in (0, 100, 1000):
        with pytest.raises(ValueError, match="status"):
            encode_head(status, [])


def test_a_tab_is_a_blank_and_letters_beyond_ascii_may_stand_in_a_value() -> None:
    assert b"x: a\tb\xe4\r\n" in encode_head(200, [(b"x", b"a\tb\xe4")]).data


def test_a_refusal_is_a_whole_answer() -> None:
    assert refusal(400, b"no").endswith(b"content-length: 2\r\nconnection: close\r\n\r\nno")
