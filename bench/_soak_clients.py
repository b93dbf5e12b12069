"""Send the requests of the soak: four APIs over plain sockets, some of them misbehaving, each response checked."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TOO_LONG = 40.0
UNFINISHED = {
    "chat": {
        '"finish_reason":"length"': "cut off",
        '"finish_reason":"content_filter"': "refused",
        '"refusal":"': "refused",
    },
    "responses": {'"status":"incomplete"': "cut off", '"refusal":"': "refused"},
    "messages": {'"stop_reason":"max_tokens"': "cut off", '"stop_reason":"refusal"': "refused"},
    "gemini": {'"finishReason":"MAX_TOKENS"': "cut off", '"finishReason":"SAFETY"': "refused"},
}
"""How each API marks a response of status 200 that is not a whole answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Api:
    """How one API is asked, and how its answers are read."""

    ask: Callable[[str, bool, bool], tuple[str, dict[str, Any]]]
    text: Callable[[dict[str, Any]], str]
    """The text in a whole answer."""
    piece: Callable[[dict[str, Any]], str]
    """The text in one event."""
    ended: Callable[[list[str]], bool]
    """Whether the events end as they should."""
    is_error: Callable[[dict[str, Any]], bool]


def _chat(model: str, shaped: bool, stream: bool) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Ada is 36"}], "stream": stream}
    if shaped:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    return "/v1/chat/completions", body


def _responses(model: str, shaped: bool, stream: bool) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": model, "input": "Ada is 36", "stream": stream}
    if shaped:
        body["text"] = {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}
    return "/v1/responses", body


def _messages(model: str, shaped: bool, stream: bool) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": model, "max_tokens": 500, "stream": stream}
    body["messages"] = [{"role": "user", "content": "Ada is 36"}]
    if shaped:
        body["output_config"] = {"format": {"type": "json_schema", "schema": PERSON}}
    return "/v1/messages", body


def _gemini(model: str, shaped: bool, stream: bool) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "Ada is 36"}]}]}
    if shaped:
        body["generationConfig"] = {"responseMimeType": "application/json", "responseJsonSchema": PERSON}
    return f"/v1beta/models/{model}:{'streamGenerateContent' if stream else 'generateContent'}", body


def _chat_piece(event: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _gemini_text(answer: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in answer["candidates"][0]["content"]["parts"])


def _error_object(body: dict[str, Any]) -> bool:
    error = body.get("error")
    return isinstance(error, dict) and isinstance(error.get("message"), str) and "code" in error


APIS: dict[str, Api] = {
    "chat": Api(
        _chat,
        lambda answer: answer["choices"][0]["message"]["content"] or "",
        _chat_piece,
        lambda events: events[-1] == "[DONE]",
        _error_object,
    ),
    "responses": Api(
        _responses,
        lambda answer: "".join(part.get("text", "") for item in answer["output"] for part in item.get("content", ())),
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
        lambda events: json.loads(events[-1])["type"] in ("response.completed", "response.incomplete"),
        _error_object,
    ),
    "messages": Api(
        _messages,
        lambda answer: "".join(block.get("text", "") for block in answer["content"]),
        lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
        lambda events: json.loads(events[-1])["type"] == "message_stop",
        lambda body: body.get("type") == "error" and isinstance(body["error"]["message"], str),
    ),
    "gemini": Api(
        _gemini,
        _gemini_text,
        _gemini_text,
        lambda events: "finishReason" in json.loads(events[-1])["candidates"][0],
        lambda body: _error_object(body) and isinstance(body["error"]["status"], str),
    ),
}


class NoAnswerError(AssertionError):
    """The connection ended without a word."""


class Client:
    """One client: asks, in one API or another, again and again."""

    def __init__(self, address: Address, dice: random.Random) -> None:
        self._address = address
        self._dice = dice

    async def until(self, end: float, outcomes: Counter[str], wrong: list[str]) -> None:
        """Ask until it is time to stop."""
        await asyncio.sleep(self._dice.random())
        while time.monotonic() < end:
            try:
                async with asyncio.timeout(_TOO_LONG):
                    outcomes[await self._once()] += 1
            except Exception as problem:
                wrong.append(f"{type(problem).__name__}: {problem}"[:500])
                outcomes["wrong"] += 1

    async def _once(self) -> str:
        dice = self._dice
        name = dice.choice(list(APIS))
        model = dice.choice(("openai/m", "anthropic/m", "gemini/m"))
        shaped, stream = dice.random() < 0.7, dice.random() < 0.8
        path, body = APIS[name].ask(model, shaped, stream)
        manners = dice.random()
        if manners < 0.08:
            await _leave(self._address, path, body, dice.random() * 0.8)
            return "left"
        if manners < 0.10:
            await _leave(self._address, path, body, dice.random() * 0.3, half=True)
            return "left half-way through asking"
        if manners < 0.13:
            status, raw = await http(self._address, "POST", path, json.dumps(body).encode()[: dice.randint(0, 40)])
            if status != 400 or not APIS[name].is_error(json.loads(raw)):
                raise AssertionError(f"{name}: half a body gave {status} {raw[:200]!r}")
            return "a bad request, refused"
        slow = 0.05 if manners < 0.2 else 0.0
        try:
            status, raw = await http(self._address, "POST", path, json.dumps(body).encode(), pause=slow)
            return judged(name, status, raw, shaped=shaped, stream=stream)
        except (AssertionError, KeyError, ValueError) as problem:
            if shaped or isinstance(problem, NoAnswerError):
                raise
            return "passed through, broken as it came"


def judged(name: str, status: int, raw: bytes, *, shaped: bool, stream: bool) -> str:
    """Return the kind of a response; raises when it is neither an answer nor an error as its API writes them."""
    api = APIS[name]
    excerpt = f"{name} {status} {raw[-400:]!r}"
    if status != 200:
        if status in (400, 401, 404, 405, 413, 500) or not api.is_error(json.loads(raw)):
            raise AssertionError(excerpt)
        return f"error {status}"
    if not stream:
        text = api.text(json.loads(raw))
        return _kind_of(name, text, raw) if shaped else "text"
    events = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
    if not events:
        raise AssertionError(f"an empty stream: {excerpt}")
    last = json.loads(events[-1]) if events[-1] != "[DONE]" else {}
    if "error" in last or last.get("type") == "error":
        if not api.is_error(last):
            raise AssertionError(excerpt)
        return "error in the stream"
    if not api.ended(events):
        raise AssertionError(f"the last event does not end the stream: {excerpt}")
    text = "".join(api.piece(json.loads(event)) for event in events if event != "[DONE]")
    return _kind_of(name, text, raw) if shaped else "streamed text"


def _kind_of(name: str, text: str, raw: bytes) -> str:
    """Return "valid" for a valid answer, else how its API marks it as unfinished."""
    try:
        value = json.loads(text)
    except ValueError:
        written = raw.decode()
        for mark, kind in UNFINISHED[name].items():
            if mark in written:
                return kind
        raise AssertionError(f"not JSON: {text[:80]!r} in {name} {written[-400:]!r}") from None
    right = isinstance(value, dict) and set(value) == {"name", "age"}
    if not right or not isinstance(value["name"], str) or type(value["age"]) is not int:
        raise AssertionError(f"not valid: {text[:80]!r} in {name}")
    return "valid"


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _leave(address: Address, path: str, body: dict[str, Any], after: float, *, half: bool = False) -> None:
    raw = _request(path, json.dumps(body).encode())
    _, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(raw[: len(raw) - 20] if half else raw)
    await asyncio.sleep(after)
    writer.transport.abort()


async def http(address: Address, method: str, path: str, body: bytes = b"", *, pause: float = 0.0) -> tuple[int, bytes]:
    """One call: the status and the body. With `pause`, the answer is read slowly, in small bites."""
    limit = 512 if pause else 65536
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=limit)
    try:
        raw = _request(path, body) if method == "POST" else _request(path, b"").replace(b"POST", method.encode(), 1)
        writer.write(raw)
        bites = bytearray()
        while bite := await reader.read(256 if pause else 65536):
            bites += bite
            if pause:
                await asyncio.sleep(pause)
    finally:
        writer.transport.abort()
    head, _, rest = bytes(bites).partition(b"\r\n\r\n")
    if not head:
        raise NoAnswerError(f"no answer at all to {method} {path}")
    status = int(head.split(b" ", 2)[1])
    chunked = b"transfer-encoding: chunked" in head.lower()
    return status, _dechunked(rest) if chunked else rest


def _dechunked(raw: bytes) -> bytes:
    body = bytearray()
    while True:
        size, found, raw = raw.partition(b"\r\n")
        if not found:
            raise AssertionError(f"the body was cut off: {bytes(body[-300:])!r}")
        length = int(size, 16)
        if length == 0:
            return bytes(body)
        body += raw[:length]
        raw = raw[length + 2 :]
