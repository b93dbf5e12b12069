"""Replay recorded vendor answers to a client, and list what the client sees otherwise through the proxy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import Api, FakeVendor, Raw, Received
from tests.codecs import recorded
from tests.codecs.recorded import SHARED, Recording
from tests.proxy.proxying import proxied

VENDORS: dict[str, tuple[str, Api]] = {
    "openai-chat": ("openai-compatible", "openai"),
    "openai-responses": ("openai-responses", "openai-responses"),
    "anthropic-messages": ("anthropic", "anthropic"),
    "gemini-generate-content": ("gemini", "gemini"),
    "ollama-chat": ("ollama", "ollama"),
}
"""The provider and the API of the scripted vendor, for each API of the recordings that slipform serves."""
CONTROL = "/recording/"
"""The path under which a client in another process says what the vendor answers next."""


@dataclass(frozen=True)
class Replay:
    """A recorded answer and the request it answers."""

    recording: Recording
    body: dict[str, Any]

    @property
    def stream(self) -> bool:
        """Whether the client reads a stream."""
        return self.recording.stream and self.recording.status < 400


def replays(api: str) -> list[Replay]:
    """Return the recordings of an API; a short request where only the answer was recorded."""
    found = [recorded.load(name) for name in recorded.names()]
    return [Replay(each, _request(each)) for each in found if each.api == api]


def _request(recording: Recording) -> dict[str, Any]:
    data = json.loads((SHARED / "recordings" / f"{recording.name}.json").read_text())
    body = data["request"]["body"] or {}
    return {**body, "model": body.get("model", "m")}


def wire_step(recording: Recording) -> Raw:
    """Return the recorded answer as a step of a scripted vendor, an event at a time."""
    if not recording.stream:
        return Raw((recording.body,), recording.status, {"content-type": "application/json"})
    if recording.api == "ollama-chat":
        headers = {"content-type": "application/x-ndjson"}
        return Raw(tuple(recording.body.splitlines(keepends=True)), recording.status, headers, chunked=True)
    events = [part for part in recording.body.replace(b"\r\n", b"\n").split(b"\n\n") if part.strip()]
    headers = {"content-type": "text/event-stream"}
    return Raw(tuple(each + b"\n\n" for each in events), recording.status, headers, chunked=True)


@dataclass
class Stage:
    """A scripted vendor, the proxy in front of it, and what the vendor answers."""

    vendor: str
    proxy: str
    steps: Mapping[str, Raw]
    current: list[str] = field(default_factory=lambda: [""])

    def play(self, name: str) -> None:
        """Have the vendor answer with this recording."""
        self.current[0] = name


@contextmanager
def staged(api: str, cases: Sequence[Replay]) -> Iterator[Stage]:
    """The vendor of these recordings and the proxy, which knows their models under the same names."""
    kind, shape = VENDORS[api]
    steps = {each.recording.name: wire_step(each.recording) for each in cases}
    current = [""]

    def answer(received: Received) -> Raw:
        if received.path.startswith(CONTROL):
            current[0] = received.path.removeprefix(CONTROL)
            return Raw((b"{}",), headers={"content-type": "application/json"})
        return steps[current[0]]

    with FakeVendor(answer, api=shape) as vendor:
        provider = HttpProvider(kind, base_url=vendor.base_url, api_key="k", retries=RetryPolicy(attempts=0))
        aliases = {each.body["model"]: f"up/{each.body['model']}" for each in cases}
        address = vendor.base_url.removesuffix("/v1beta").removesuffix("/v1")
        with proxied({"up": provider}, {"model_aliases": aliases}) as proxy:
            yield Stage(address, proxy, steps, current)


def differences(direct: Any, through: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the places where a client sees something else, with both values."""
    if isinstance(direct, dict) and isinstance(through, dict) and ("raised" in direct) != ("raised" in through):
        yield f"{path}/raised", f"{json.dumps(direct)[:200]} → {json.dumps(through)[:200]}"
    elif isinstance(direct, dict) and isinstance(through, dict):
        for key in dict.fromkeys([*direct, *through]):
            yield from differences(direct.get(key), through.get(key), f"{path}/{key}")
    elif isinstance(direct, list) and isinstance(through, list) and len(direct) == len(through):
        for at, (left, right) in enumerate(zip(direct, through, strict=True)):
            yield from differences(left, right, f"{path}/{at}")
    elif not _is_same(direct, through):
        yield path, f"{json.dumps(direct)[:200]} → {json.dumps(through)[:200]}"


def _is_same(direct: Any, through: Any) -> bool:
    """Whether two values mean the same to a program: null and absent, JSON with and without spaces."""
    if direct == through or not (direct or through):
        return True
    if not isinstance(direct, str) or not isinstance(through, str):
        return False
    try:
        return bool(json.loads(direct) == json.loads(through))
    except ValueError:
        return False


@dataclass(frozen=True)
class Reason:
    """Why what a client sees differs: a pattern of recordings, one of places, and the reason in words."""

    recordings: str
    places: str
    why: str

    def explains(self, name: str, place: str) -> bool:
        """Whether this is the reason of a difference."""
        return bool(re.fullmatch(self.recordings, name) and re.fullmatch(self.places, place))


def unexplained(shown: Mapping[str, tuple[Any, Any]], reasons: Sequence[Reason], *, is_sample: bool = False) -> str:
    """List the differences without a reason and, for all recordings of an API, the reasons that nothing needs."""
    lines: list[str] = []
    unused = list(reasons)
    for name, (direct, through) in shown.items():
        for place, values in differences(direct, through):
            reason = next((each for each in reasons if each.explains(name, place)), None)
            if reason is None:
                lines.append(f"{name} {place}: {values}")
            elif reason in unused:
                unused.remove(reason)
    return "\n".join([*lines, *(f"not needed: {each.why}" for each in unused if not is_sample)])
