"""Sockets that close in silence."""

from __future__ import annotations

import socket


class QuietSocket(socket.socket):
    """A socket that nobody closed is closed without a warning: a transport that is dropped is no leak.

    Python's own warns, even where whoever would close it is collected in the same moment, only later.
    """

    __slots__ = ()

    def __del__(self) -> None:
        self.close()
