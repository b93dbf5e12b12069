"""Whom a balancer speaks for."""

from __future__ import annotations

from typing import Any

import pytest

from slipform.addons.server.http_server.state import Trusted
from tests.proxy.talking import talking, whole

PEER = ("10.0.0.5", 4000)


@pytest.mark.parametrize(
    ("listed", "said", "client"),
    [
        ("10.0.0.5", b"203.0.113.9", ("203.0.113.9", 0)),
        ("10.0.0.0/8", b"203.0.113.9:81", ("203.0.113.9", 81)),
        ("10.0.0.0/8", b"1.2.3.4, 203.0.113.9, 10.9.9.9", ("203.0.113.9", 0)),
        ("10.0.0.0/8", b"10.1.1.1, 10.9.9.9", ("10.1.1.1", 0)),
        ("10.0.0.0/8", b"[2001:db8::1]:443", ("2001:db8::1", 443)),
        ("10.0.0.0/8", b"2001:db8::1", ("2001:db8::1", 0)),
        ("10.0.0.0/8", b"10.9.9.9:evil", ("10.9.9.9:evil", 0)),
        ("10.0.0.0/8", b"[10.9.9.9", ("[10.9.9.9", 0)),
        ("10.0.0.0/8", b"[10.9.9.9]evil", ("[10.9.9.9]evil", 0)),
        ("*", b"1.2.3.4, 203.0.113.9", ("1.2.3.4", 0)),
        ("10.0.0.0/8", b"", PEER),
        ("10.0.0.0/8", b" , ", PEER),
        ("10.0.0.6, 192.168.0.0/16", b"203.0.113.9", PEER),
        ("", b"203.0.113.9", PEER),
        ("not an address", b"203.0.113.9", PEER),
    ],
)
def test_the_last_who_is_no_balancer_is_the_client(listed: str, said: bytes, client: tuple[str, int]) -> None:
    assert Trusted(listed).client(PEER, [(b"x-forwarded-for", said)]) == client


def test_headers_of_several_balancers_are_one_list() -> None:
    headers = [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-for", b"10.7.7.7")]
    assert Trusted("10.0.0.0/8").client(PEER, headers) == ("203.0.113.9", 0)
    assert Trusted("10.0.0.0/8").client(PEER, []) == PEER


def test_callers_on_a_unix_socket_are_believed_only_when_everybody_is() -> None:
    headers = [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-proto", b"https")]
    assert Trusted("127.0.0.1").client(None, headers) is None
    assert Trusted("127.0.0.1").scheme(None, headers) == "http"
    assert Trusted("*").client(None, headers) == ("203.0.113.9", 0)
    assert Trusted("*").scheme(None, headers) == "https"


def test_the_scheme_is_one_of_two() -> None:
    trusted = Trusted("10.0.0.0/8")
    assert trusted.scheme(PEER, [(b"x-forwarded-proto", b" https ")]) == "https"
    assert trusted.scheme(PEER, [(b"x-forwarded-proto", b"gopher")]) == "http"
    assert trusted.scheme(("1.2.3.4", 1), [(b"x-forwarded-proto", b"https")]) == "http"


def test_without_a_list_nobody_is_believed() -> None:
    assert Trusted.from_environment({}) is None
    named = Trusted.from_environment({"FORWARDED_ALLOW_IPS": "10.0.0.5"})
    assert named is not None
    assert named.believes("10.0.0.5")


@pytest.mark.parametrize(
    ("listed", "client"), [("127.0.0.1", "203.0.113.9"), ("10.0.0.1", "127.0.0.1"), (None, "127.0.0.1")]
)
def test_the_server_tells_the_application_who_calls(listed: str | None, client: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, f"{scope['scheme']} {scope['client'][0]}".encode())

    with talking(app, trusted=None if listed is None else Trusted(listed)) as connect:
        wire = connect()
        wire.say(b"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 203.0.113.9\r\nx-forwarded-proto: https\r\n\r\n")
        scheme = "https" if client == "203.0.113.9" else "http"
        assert wire.answer()[2] == f"{scheme} {client}".encode()
