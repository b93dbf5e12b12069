"""The recorded vendor traffic and captured SDK requests, read from the data folder beside the repository."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipform.codecs.framing import encode_frame

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared"


@dataclass(frozen=True, slots=True)
class Recording:
    name: str
    api: str
    vendor: str
    stream: bool
    status: int
    headers: dict[str, str]
    body: bytes
    derived: dict[str, Any]


def names() -> list[str]:
    return sorted(path.stem for path in (SHARED / "recordings").glob("*.json"))


def parameters() -> list[Any]:
    """The names as test parameters, or one skipped test that says why."""
    found = names()
    if found:
        return list(found)
    return [pytest.param("", marks=pytest.mark.skip(reason="the recordings are not beside this repository"))]


def load(name: str) -> Recording:
    data = json.loads((SHARED / "recordings" / f"{name}.json").read_text())
    response = data["response"]
    return Recording(
        name=name,
        api=data["api"],
        vendor=data["vendor"],
        stream=data["stream"] or response["body_type"] in ("text", "ndjson-text"),
        status=response["status"],
        headers={key: value for key, value in (response["headers"] or {}).items() if isinstance(value, str)},
        body=_wire(data["api"], response["body_type"], response["body"]),
        derived=data["derived"],
    )


def _wire(api: str, kind: str, body: Any) -> bytes:
    """The body as the bytes that were on the wire."""
    if kind == "json":
        return json.dumps(body, ensure_ascii=False).encode()
    if kind == "aws-eventstream-base64":
        return b64decode(body)
    if kind != "sse-data-lines":
        return str(body).encode()
    lines = [line for line in str(body).splitlines() if line.strip()]
    if api == "bedrock-converse":
        return b"".join(_frame(line) for line in lines)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def _frame(line: str) -> bytes:
    ((name, payload),) = json.loads(line).items()
    return encode_frame({":event-type": name, ":message-type": "event"}, json.dumps(payload).encode())


def sample(name: str) -> dict[str, Any]:
    """One captured SDK call."""
    data: dict[str, Any] = json.loads((SHARED / "wire-samples" / f"{name}.json").read_text())
    return data
