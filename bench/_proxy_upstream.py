"""A model that answers at once: `python -m bench._proxy_upstream PORT`. For `bench.proxy`.

`/paced/…` waits 5 ms between the events of a stream. A body with `response_format` gets 1 KB of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

EVENTS = 100
PACE = 0.005
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "count": {"type": "integer"},
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "price": {"type": "number"}, "sold": {"type": "boolean"}},
                "required": ["name", "price", "sold"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["title", "count", "rows"],
    "additionalProperties": False,
}
_ROWS = [{"name": f"an article of the list, number {at}", "price": at + 0.5, "sold": at % 2 == 0} for at in range(12)]
VALUE = json.dumps({"title": "stock", "count": len(_ROWS), "rows": _ROWS}, separators=(",", ":"))
WORDS = "The quick brown fox jumps over the lazy dog and goes home. " * 5


def _whole(content: str) -> bytes:
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": content, "refusal": None}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 60, "total_tokens": 160},
    }
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": [choice]}
    return _chunk(f"data: {json.dumps(event)}\n\n".encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _events(content: str) -> list[bytes]:
    """So many events in all, the end among them."""
    step = -(-len(content) // (EVENTS - 1))
    pieces = [content[at : at + step] for at in range(0, len(content), step)]
    return [*(_event({"content": piece}) for piece in pieces), _event({}, "stop")]


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_ANSWERS = {False: _whole(WORDS), True: _whole(VALUE)}
_STREAMS = {False: _events(WORDS), True: _events(VALUE)}


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        shaped = b'"response_format"' in body
        compact = body.replace(b'"stream": true', b'"stream":true')
        if b'"stream":true' not in compact:
            self._write(_ANSWERS[shaped])
        elif b"/paced/" in head.split(b"\r\n", 1)[0]:
            self._write(_HEAD)
            self._pace(_STREAMS[shaped], 0)
        else:
            self._write(_HEAD)
            for event in _STREAMS[shaped]:
                self._write(event)
            self._write(_END)

    def _pace(self, events: list[bytes], at: int) -> None:
        if at == len(events):
            self._write(_END)
            return
        self._write(events[at])
        asyncio.get_running_loop().call_later(PACE, self._pace, events, at + 1)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


async def main(port: int) -> None:
    """Serve until stopped."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1])))
