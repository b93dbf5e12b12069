"""Where requests go: origins, proxies of the environment, the order of addresses, idle connections."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import pytest

from slipform.providers.network.connections import IdleConnections, Origin, addresses, origin_of, tune
from slipform.providers.network.transport import ProtocolError

pytestmark = pytest.mark.usefixtures("no_proxies")


def test_an_origin_knows_its_authority_and_hides_its_proxys_password() -> None:
    assert origin_of("https://h/x")[0].authority == "h"
    assert origin_of("http://[::1]:81/x")[0].authority == "[::1]:81"
    assert origin_of("https://h", "proxy:3128")[0].address == ("proxy", 3128)
    assert "pw" not in repr(origin_of("https://h", "http://me:pw@proxy:3128")[0])


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, "http://model.test/", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://model.test/", "p"),
        ({"http_proxy": "p:1"}, "http://model.test/", "p"),
        ({"HTTP_PROXY": "http://p:1"}, "https://model.test/", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://model.test/", "p"),
        ({"https_proxy": "https://p:1"}, "https://model.test/", "p"),
        ({"ALL_PROXY": "http://p:1"}, "http://model.test/", "p"),
        ({"all_proxy": "http://p:1"}, "https://model.test/", "p"),
        ({"ALL_PROXY": "http://all:1", "HTTPS_PROXY": "http://p:1"}, "https://model.test/", "p"),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "model.test"}, "https://model.test/", None),
        ({"ALL_PROXY": "http://p:1", "no_proxy": ".test"}, "https://a.model.test/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "*"}, "https://model.test/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "other.test, 10.0.0.0/8"}, "http://10.1.2.3:8000/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://11.1.2.3/", "p"),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "fd00::/8"}, "http://[fd00::1]/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "not/a/network"}, "http://11.1.2.3/", "p"),
    ],
)
def test_the_environment_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, expected: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = origin_of(url)[0].proxy
    assert (None if found is None else found.host) == expected


def test_a_setting_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://environment:1")
    monkeypatch.setenv("NO_PROXY", "*")
    assert origin_of("http://model.test/", "none")[0].proxy is None
    found = origin_of("http://model.test/", "https://setting")[0].proxy
    assert found is not None
    assert (found.host, found.port, found.secure) == ("setting", 443, True)


def test_socks_in_the_environment_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5h://127.0.0.1:1080")
    with pytest.raises(ProtocolError, match="socks5h:// proxies are not supported") as caught:
        origin_of("https://model.test/")
    assert caught.value.reason == "setup"


def test_the_families_of_addresses_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def info(family: int, address: str) -> tuple[Any, ...]:
        return (family, socket.SOCK_STREAM, 6, "", (address, 80))

    six = [info(socket.AF_INET6, f"::{n}") for n in (1, 2, 3)]
    four = [info(socket.AF_INET, "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*six, *four])
    assert [each[4][0] for each in addresses("h", 80)] == ["::1", "127.0.0.1", "::2", "::3"]


class Resting:
    def __init__(self) -> None:
        self.is_open = True
        self.is_good = True

    def is_usable(self) -> bool:
        return self.is_good

    def close(self) -> None:
        self.is_open = False


HERE, THERE = Origin(False, "here", 80), Origin(False, "there", 80)


def test_the_connection_used_last_is_used_next_and_old_or_bad_ones_are_closed() -> None:
    now = [0.0]
    idle: IdleConnections[Resting] = IdleConnections(per_origin=10, clock=lambda: now[0])
    old, short, bad, good = (Resting() for _ in range(4))
    for connection, seconds in ((old, 4), (good, 20), (short, 2), (bad, 20)):
        idle.release(HERE, connection, seconds)
    bad.is_good = False
    now[0] = 3
    assert idle.take(THERE) is None
    assert idle.take(HERE) is good
    assert not bad.is_open
    assert not short.is_open
    now[0] = 5
    assert idle.take(HERE) is None
    assert not old.is_open


def test_sweeping_closes_what_has_rested_too_long_and_says_whether_any_are_left() -> None:
    now = [0.0]
    idle: IdleConnections[Resting] = IdleConnections(clock=lambda: now[0])
    first, second = Resting(), Resting()
    idle.release(HERE, first, 4)
    idle.release(THERE, second, 8)
    now[0] = 5
    assert idle.sweep()
    assert (first.is_open, second.is_open, len(idle)) == (False, True, 1)
    now[0] = 9
    assert not idle.sweep()
    assert not second.is_open


def test_what_is_given_back_after_the_end_is_closed() -> None:
    idle: IdleConnections[Resting] = IdleConnections()
    before, after = Resting(), Resting()
    idle.release(HERE, before, 4)
    idle.close()
    idle.release(HERE, after, 4)
    assert (before.is_open, after.is_open, idle.take(HERE)) == (False, False, None)


def test_the_system_buffers_little_of_an_answer_that_nobody_takes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        vendor, _ = server.accept()
        with vendor:
            vendor.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            vendor.setblocking(False)
            tune(ours)
            sent = 0
            with suppress(BlockingIOError):
                while sent < 32_000_000:
                    sent += vendor.send(b"x" * 65_536)
            assert sent < 2_000_000
