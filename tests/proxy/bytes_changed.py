"""Change a few bytes of a request, as a broken network or an attacker would."""

from __future__ import annotations

import random

PARTS = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"%", b"\xff", b"0", b"ffffffffffffffff", b"-1", b"HTTP/1.1",
    b"transfer-encoding: chunked\r\n", b"content-length: 3\r\n", b"host: y\r\n", b"connection: close\r\n",
    b"upgrade: websocket\r\n", b"expect: 100-continue\r\n", b"CONNECT ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"http://",
    b"//", b"[::1", b"x" * 70_000,
]  # fmt: skip


def changed(data: bytes, chance: random.Random) -> bytes:
    """The bytes, changed in a few places."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        end = min(len(made), at + chance.randint(1, 8))
        how = chance.randrange(5)
        if how == 0:
            made[at:end] = b""
        elif how == 1:
            made[at:at] = chance.choice(PARTS)
        elif how == 2:
            made[at:end] = chance.randbytes(end - at)
        elif how == 3:
            made[at:at] = made[at:end]
        else:
            made[at:end] = chance.choice(PARTS)
    return bytes(made)
