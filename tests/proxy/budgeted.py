"""What the tests of budgets share: the served APIs with a vendor of each, and a vendor that reads limits generously."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipform.ir import ModelResponse, Usage
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import Api, FakeVendor, Received, Step
from tests.conftest import PERSON, serving
from tests.proxy.proxying import ADA, keys_path, proxied

UNLIMITED = 100_000
"""What the vendor writes for a request without a limit."""
READ = 10
MESSAGES = [{"role": "user", "content": "hi"}]
SHAPE = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


@dataclass(frozen=True)
class ServedApi:
    """An API that slipform serves: a request of it, where its limit is, and a vendor that speaks it."""

    vendor: Api
    path: str
    body: Mapping[str, Any]
    shape: Mapping[str, Any]
    field: str
    inside: str = ""
    count: str = ""

    def request(self, **sizes: Any) -> dict[str, Any]:
        """A request with these fields where the API has its limit."""
        return {**self.body, self.inside: sizes} if self.inside else {**self.body, **sizes}

    def enforced(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The same request for an answer with a schema."""
        made = {**request, **self.shape}
        if self.inside in self.shape:
            made[self.inside] = {**request.get(self.inside, {}), **self.shape[self.inside]}
        return made

    @property
    def stream_path(self) -> str:
        """Where a stream is asked for."""
        return self.path.replace(":generateContent", ":streamGenerateContent?alt=sse")


OLLAMA_SHAPE = {"format": PERSON}
APIS: Mapping[str, ServedApi] = {
    "chat": ServedApi(
        "openai", "/v1/chat/completions", {"model": "up/m", "messages": MESSAGES}, {"response_format": SHAPE},
        "max_tokens", count="n",
    ),
    "completions": ServedApi(
        "openai", "/v1/completions", {"model": "up/m", "prompt": "hi"}, {"response_format": SHAPE}, "max_tokens",
        count="best_of",
    ),
    "responses": ServedApi(
        "openai-responses", "/v1/responses", {"model": "up/m", "input": "hi", "store": False},
        {"text": {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}},
        "max_output_tokens",
    ),
    "messages": ServedApi(
        "anthropic", "/v1/messages", {"model": "up/m", "messages": MESSAGES},
        {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}}, "max_tokens",
    ),
    "gemini": ServedApi(
        "gemini", "/v1beta/models/up/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": PERSON}},
        "maxOutputTokens", "generationConfig", "candidateCount",
    ),
    "ollama": ServedApi(
        "ollama", "/api/chat", {"model": "up/m", "messages": MESSAGES, "stream": False}, OLLAMA_SHAPE, "num_predict",
        "options",
    ),
    "generate": ServedApi(
        "ollama", "/api/generate", {"model": "up/m", "prompt": "hi", "stream": False}, OLLAMA_SHAPE, "num_predict",
        "options",
    ),
}  # fmt: skip


def proxy(vendor: FakeVendor, kind: str, folder: Path, **settings: Any) -> serving:
    """A proxy whose provider `up` is this vendor; a token costs a millionth."""
    provider = HttpProvider(
        kind, name="up", base_url=vendor.base_url, api_key="sk-upstream-secret", retries=RetryPolicy(attempts=0)
    )
    prices = {"up/*": {"input": 1.0, "output": 1.0}}
    server = {"keys_file": str(keys_path(folder))}
    return proxied({"up": provider}, {"server": server, "prices": prices, **settings}, attempts=1)


_LIMITS = frozenset({"maxtokens", "maxcompletiontokens", "maxoutputtokens", "numpredict", "npredict", "maxnewtokens"})
_COUNTS = frozenset({"n", "bestof", "candidatecount"})


def sizes_in(body: bytes) -> tuple[int, int]:
    """The largest limit and number of answers that any server could read in a request."""
    limits: list[float] = []
    counts: list[float] = [1]
    for name, value in _fields(json.loads(body, object_pairs_hook=_Pairs)):
        folded = name.casefold().replace("_", "")
        if value is not None and not isinstance(value, _Pairs):
            limits += [float(value)] if folded in _LIMITS else []
            counts += [float(value)] if folded in _COUNTS else []
    return int(max(limits, default=UNLIMITED)), int(max(counts))


class _Pairs(list[tuple[str, Any]]):
    """The fields of an object, each as often as it stands there."""


def _fields(pairs: _Pairs) -> Iterator[tuple[str, Any]]:
    for name, value in pairs:
        yield name, value
        if isinstance(value, _Pairs):
            yield from value


def generous(text: str = ADA) -> Callable[[Received], Step]:
    """A vendor that writes as much as any field of a request allows it, and counts that."""

    def answer(received: Received) -> Step:
        limit, count = sizes_in(received.body)
        return ModelResponse(text=text, usage=Usage(READ, limit * count, total=READ + limit * count))

    return answer
