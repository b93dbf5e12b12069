"""Build the responses of `bench.proxy`'s fake model: 300 bytes of text, or 1 KB of JSON, whole and in 100 events."""

from __future__ import annotations

import json
from pathlib import Path

EVENTS = 100
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
VALUE = json.dumps({"title": "stock ########", "count": len(_ROWS), "rows": _ROWS}, separators=(",", ":"))
WORDS = "Answer ########. " + "The quick brown fox jumps over the lazy dog and goes home. " * 5


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


def _stream(content: str) -> list[bytes]:
    first, *rest = _events(content)
    return [_HEAD + first, *rest, _END]


def events_sent(shaped: bool) -> int:
    """How many events one streamed answer has."""
    return len(_events(VALUE if shaped else WORDS))


def write(folder: Path) -> None:
    """The files that `_proxy_upstream.c` reads."""
    for name, content in (("plain", WORDS), ("shaped", VALUE)):
        for kind, pieces in (("whole", [_whole(content)]), ("stream", _stream(content))):
            told = b"".join(len(piece).to_bytes(4, "big") + piece for piece in pieces)
            (folder / f"{name}.{kind}").write_bytes(told)
