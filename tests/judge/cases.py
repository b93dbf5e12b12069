"""One case of the judge: a request of one of the four APIs and the answers it meets, drawn from a seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any

from slipform.ir import RESERVED_TOOL, ModelResponse, ToolCall, Usage
from slipform.schema import OutputStrategy
from slipform.testing import Api, Raw, Received, garbage_body
from slipform.testing.wire_formats import SHAPES
from tests.judge.answers import Reply, random_reply
from tests.judge.schemas import random_schema, random_value

VENDORS: tuple[Api, ...] = tuple(SHAPES)
"""Every provider API; each is also the name of a vendor of the catalogue that speaks it."""
CALLERS = ("chat", "responses", "messages", "gemini")
TOOL = "look"
"""The tool that some callers offer."""
MOST_ATTEMPTS = 3
"""What the proxy allows, and does when it is not told otherwise."""
_SHAPED = (
    "schema",
    "input_schema",
    "json_schema",
    "parameters",
    "responseJsonSchema",
    "responseSchema",
    "json",
    "format",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and what the models answer to it; without `replies` they are drawn from the seed when asked for."""

    seed: str
    caller: str
    vendors: tuple[Api, ...]
    """Who is asked; the second is the fallback."""
    schema: dict[str, Any]
    tool: dict[str, Any] | None = None
    """The parameters of the tool that is offered."""
    stream: bool = False
    strategy: str = "auto"
    mode: str = "auto"
    """How a stream leaves: the proxy's `stream_mode`."""
    cached: bool = False
    """Whether it is asked of a proxy that keeps answers."""
    times: int = 1
    """How often it is asked: with a cache for the same, without it each time for something else."""
    strict: bool = True
    attempts: int = MOST_ATTEMPTS
    replies: tuple[Reply, ...] | None = None

    def to_json(self) -> str:
        """The case as it can be given to `--case`."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Case:
        data = json.loads(text)
        replies = data.pop("replies")
        data["vendors"] = tuple(data["vendors"])
        known = {field.name for field in fields(cls)}
        made = None if replies is None else tuple(Reply(**reply) for reply in replies)
        return cls(**{name: value for name, value in data.items() if name in known}, replies=made)

    @property
    def model(self) -> str:
        """The name in the request: a vendor's model, or the alias of a list."""
        return "-then-".join(self.vendors) if len(self.vendors) > 1 else f"{self.vendors[0]}/m"


def random_case(seed: str, number: int) -> Case:
    """The case of that number: both APIs, stream and strategy go round, so that all of them meet; the rest is drawn."""
    name = f"{seed}-{number}"
    dice = Random(name)
    if dice.random() < 0.1:
        # The commonest call has a way of its own through the proxy, from the second time that its shape is seen.
        return Case(name, "chat", ("openai",), random_schema(dice, tidy=True), times=3)
    number, caller = divmod(number, len(CALLERS))
    number, vendor = divmod(number, len(VENDORS))
    number, stream = divmod(number, 2)
    first = VENDORS[vendor]
    second = dice.choice([each for each in VENDORS if each != first])
    cached = dice.random() < 0.25
    return Case(
        seed=name,
        caller=CALLERS[caller],
        vendors=(first, second) if dice.random() < 0.2 else (first,),
        schema=random_schema(dice),
        tool=random_schema(dice, of_tool=True) if dice.random() < 0.1 else None,
        stream=bool(stream),
        strategy=tuple(OutputStrategy)[number % len(OutputStrategy)].value,
        mode=dice.choice(("auto", "auto", "live", "live", "buffer")) if stream else "auto",
        cached=cached,
        times=2 if cached else dice.choice((1, 1, 1, 3)),
        strict=dice.random() < 0.7,
        attempts=dice.choice((1, 2, MOST_ATTEMPTS, MOST_ATTEMPTS, MOST_ATTEMPTS)),
    )


def drawn_reply(case: Case, number: int, received: Received) -> Reply:
    """The answer to a case's call of that number: what was written down, or drawn by what the vendor was asked for."""
    if case.replies is not None:
        return case.replies[min(number, len(case.replies) - 1)]
    dice = Random(f"{case.seed}/{number}")
    # A model that obeys answers in the shape that it was shown, which may be another than the caller's.
    shown = _shown_schema(json.loads(received.body)) if dice.random() < 0.6 else None
    return random_reply(random_value(case.schema if shown is None else shown, dice), dice)


def _shown_schema(body: Any) -> dict[str, Any] | None:
    if isinstance(body, list):
        return next((found for each in body if (found := _shown_schema(each)) is not None), None)
    if not isinstance(body, dict):
        return None
    for key, value in body.items():
        if key in _SHAPED and isinstance(value, dict) and _is_schema(value):
            return value
        if isinstance(value, str) and key == "schema" and value.startswith("{"):  # Bedrock has it as text
            return dict(json.loads(value))
        if (found := _shown_schema(value)) is not None:
            return found
    return None


def _is_schema(value: dict[str, Any]) -> bool:
    return not value.keys().isdisjoint({"type", "anyOf", "$ref", "properties"}) and value.get("type") != "json_schema"


def as_step(reply: Reply, received: Received, api: Api) -> Raw:
    """The answer in the vendor's spelling, with its fault."""
    shape = SHAPES[api]
    body = json.loads(received.body)
    if reply.fault == "http error":
        said = {"error": {"message": "The server had an error", "type": "server_error", "code": "x"}, "message": "no"}
        return Raw((json.dumps(said).encode(),), reply.status, {"content-type": "application/json"})
    if reply.fault == "garbage":
        return garbage_body()
    response = _response(reply, received.body)
    streamed = shape.streamed(received.path, body)
    if streamed:
        pieces = list(shape.events(response, reply.chunk_size))
    else:
        pieces = [json.dumps(shape.whole(response)).encode()]
    at = int(reply.at * len(pieces))
    if reply.fault == "error event" and streamed:
        pieces = [*pieces[:at], ERRORS.get(api, ERRORS["openai"])]
    elif reply.fault == "no end":
        pieces = pieces[:-1] if len(pieces) > 1 else [pieces[0][:-7]]
    data = b"".join(pieces)
    if reply.fault == "bad bytes":
        strike = int(reply.at * len(data))
        data = data[:strike] + b"\xff\xc0" + data[strike + 1 :]
    if reply.split or reply.fault in ("bad bytes", "cut", "reset"):
        size = reply.split or 50
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
    broken = reply.fault in ("cut", "reset")
    return Raw(
        tuple(pieces),
        headers={"content-type": shape.content_type if streamed else "application/json"},
        chunked=streamed,
        cut_after=int(reply.at * len(pieces)) if broken else None,
        ending="cut" if reply.fault == "cut" else "reset" if broken else "clean",
    )


def _response(reply: Reply, body: bytes) -> ModelResponse:
    channel = reply.channel
    if channel == "asked":
        forced = f'"name":"{RESERVED_TOOL}"'.encode() in body.replace(b'": "', b'":"')
        channel = "tool" if forced else "text"
    calls: tuple[ToolCall, ...] = ()
    if channel != "text":
        calls = (ToolCall("call_1", RESERVED_TOOL if channel == "tool" else TOOL, reply.text),)
    return ModelResponse(
        text=reply.text if channel == "text" else "",
        tool_calls=calls,
        finish="tool_calls" if calls and reply.finish == "stop" else reply.finish,  # type: ignore[arg-type]
        refusal=reply.refusal or None,
        reasoning=reply.reasoning,
        usage=Usage(input=7, output=5, total=12),
    )


def _event(data: Mapping[str, Any], name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data)}\n\n".encode()


_OVERLOADED = {"message": "Overloaded", "type": "overloaded_error", "code": "overloaded"}
ERRORS: Mapping[str, bytes] = {
    "openai": _event({"error": _OVERLOADED}),
    "openai-responses": _event({"type": "error", **_OVERLOADED, "param": None}, "error"),
    "anthropic": _event({"type": "error", "error": _OVERLOADED}, "error"),
    "gemini": _event({"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}),
    "cohere": _event({"type": "message-end", "delta": {"error": "Overloaded", "finish_reason": "ERROR"}}),
    "ollama": b'{"error": "Overloaded"}\n',
}
"""How each API tells of an error inside a stream (Bedrock's frames have a checksum: any other bytes are a fault)."""


def headers_of(case: Case) -> dict[str, str]:
    """The headers of a case's requests; defaults are left unsaid, as most callers leave them."""
    said = {"strategy": (case.strategy, "auto"), "stream-mode": (case.mode, "auto")}
    said["max-attempts"] = (str(case.attempts), str(MOST_ATTEMPTS))
    chosen = {f"x-slipform-{name}": value for name, (value, default) in said.items() if value != default}
    return {"content-type": "application/json", **chosen}


def request_of(case: Case, number: int, turn: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a case's request; its number leads the vendor back to the case."""
    said, schema = f"case {number}." + ("" if case.cached else f" Question {turn}."), case.schema
    if case.caller == "chat":
        wanted = {"name": "s", "schema": schema, "strict": case.strict}
        body: dict[str, Any] = {"model": case.model, "messages": [{"role": "user", "content": said}]}
        body |= {"response_format": {"type": "json_schema", "json_schema": wanted}, "stream": case.stream}
        if case.tool is not None:
            body["tools"] = [{"type": "function", "function": {"name": TOOL, "parameters": case.tool}}]
        return "/v1/chat/completions", body
    if case.caller == "responses":
        wanted = {"type": "json_schema", "name": "s", "schema": schema, "strict": case.strict}
        body = {"model": case.model, "input": said, "text": {"format": wanted}, "stream": case.stream}
        if case.tool is not None:
            body["tools"] = [{"type": "function", "name": TOOL, "parameters": case.tool, "strict": False}]
        return "/v1/responses", body
    if case.caller == "messages":
        body = {"model": case.model, "max_tokens": 999, "messages": [{"role": "user", "content": said}]}
        body |= {"output_config": {"format": {"type": "json_schema", "schema": schema}}, "stream": case.stream}
        if case.tool is not None:
            body["tools"] = [{"name": TOOL, "input_schema": case.tool}]
        return "/v1/messages", body
    config = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    body = {"contents": [{"role": "user", "parts": [{"text": said}]}], "generationConfig": config}
    if case.tool is not None:
        body["tools"] = [{"functionDeclarations": [{"name": TOOL, "parametersJsonSchema": case.tool}]}]
    method = "streamGenerateContent?alt=sse" if case.stream else "generateContent"
    return f"/v1beta/models/{case.model}:{method}", body
