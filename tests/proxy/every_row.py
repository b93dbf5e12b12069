"""A request for every row of the endpoint table, and an application with keys in front of a vendor of every kind."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipform.addons.server import App
from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.admission.ledger import open_ledger
from slipform.addons.server.calls.endpoints import ROWS, EndpointRow
from slipform.config import Settings
from slipform.engine.setup import alias_targets, options_of
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import FakeVendor, Raw, Received
from tests.proxy.asgi import Reply
from tests.proxy.asgi import call as call_app

KEY = "sk-upstream-secret"
KINDS = {
    "gpt": "openai", "keeps": "openai-responses", "claude": "anthropic", "gem": "gemini", "oll": "ollama",
    "co": "cohere",
}  # fmt: skip
"""The provider of each kind of vendor."""
_ENFORCED = {
    "openai-chat": "gpt", "openai-completions": "gpt", "openai-responses": "keeps", "anthropic": "claude",
    "gemini": "gem", "ollama": "oll", "ollama-generate": "oll",
}  # fmt: skip
_CODECS = {"openai-chat": "gpt", "openai-responses": "keeps", **{kind: name for name, kind in KINDS.items()}}
_HEADERS = {"anthropic": {"anthropic-version": "2023-06-01"}, "gemini": {"x-goog-api-client": "test"}}
TALK: Any = [{"role": "user", "content": "Ada is 36"}]
TURN: Any = {"contents": [{"role": "user", "parts": [{"text": "Ada is 36"}]}]}
_BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": TALK},
    "/v1/responses": {"input": TALK},
    "/v1/messages": {"messages": TALK, "max_tokens": 9},
    "/v1/completions": {"prompt": "Ada is"},
    "/v1beta/models/{model}:generateContent": TURN,
    "/v1beta/models/{model}:streamGenerateContent": TURN,
    "/v1beta/models/{model}:countTokens": TURN,
    "/v1beta/models/{model}:batchEmbedContents": {"requests": [{"content": TURN["contents"][0]}]},
    "/v1/messages/count_tokens": {"messages": TALK},
    "/v1/messages/batches": {"requests": [{"custom_id": "1", "params": {"messages": TALK, "max_tokens": 9}}]},
    "/api/chat": {"messages": TALK, "stream": False},
    "/api/generate": {"prompt": "Ada is", "stream": False},
}
"""What a request says beside its model; a row that is not here gets `_OTHER`."""
_OTHER: Any = {"input": "x"}
BOUNDARY = "boundary-of-the-test"


@dataclass
class Request:
    """A request, as it goes over the wire."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


def provider_of(row: EndpointRow) -> str:
    """The provider that answers a row."""
    if row.kind == "enforced":
        return _ENFORCED[row.api]
    return next((_CODECS[codec] for codec in row.upstream or () if codec in _CODECS), "gpt")


def rows(*kinds: str) -> list[EndpointRow]:
    """The rows of these kinds."""
    return [row for row in ROWS if row.kind in (kinds or ("enforced", "forwarded", "counted", "served"))]


def rows_with_body() -> list[EndpointRow]:
    """The rows that take a body and ask a vendor."""
    return [row for row in rows("enforced", "forwarded", "counted") if row.sent]


def path_of(row: EndpointRow, ids: Mapping[str, str], provider: str | None = None) -> str:
    """The path of a row, with a model of its provider and these ids by kind."""
    model = f"{provider or provider_of(row)}/m"
    return re.sub(r"{(\w+)}", lambda match: model if match[1] == "model" else ids.get(match[1], "none-1"), row.path)


def fields_of(row: EndpointRow, model: str) -> dict[str, Any]:
    """The fields of a request in JSON, which names this model where the row has a place for it."""
    fields = json.loads(json.dumps(_BODIES.get(row.path, _OTHER)))
    if row.model == "body":
        fields["model"] = model
    elif row.model == "requests":
        fields["requests"][0]["params"]["model"] = model
    elif row.creates == "batch":
        fields = {"input_file_id": "file-of-caller", "endpoint": "/v1/embeddings", "completion_window": "24h"}
    assert isinstance(fields, dict)
    return fields


def form(parts: Sequence[tuple[str, bytes]], boundary: str = BOUNDARY) -> bytes:
    """A form of parts, each of them what follows `form-data` in its `content-disposition`, and its content."""
    head = "--%s\r\ncontent-disposition: form-data%s\r\n\r\n"
    written = [(head % (boundary, name)).encode() + content + b"\r\n" for name, content in parts]
    return b"".join([*written, f"--{boundary}--\r\n".encode()])


def text(name: str, value: str) -> tuple[str, bytes]:
    """A text field of a form."""
    return f'; name="{name}"', value.encode()


def file(name: str = "file", content: bytes = b"content") -> tuple[str, bytes]:
    """A file of a form."""
    return f'; name="{name}"; filename="f"', content


def line(model: str, **fields: Any) -> bytes:
    """A line of a batch's file."""
    body = {"model": model, "messages": TALK, **fields}
    return json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}).encode()


def headers_of(row: EndpointRow, provider: str | None = None) -> dict[str, str]:
    """The headers that a client of the row's API sends."""
    kind = "application/json" if row.sent in ("", "json") else f"multipart/form-data; boundary={BOUNDARY}"
    named = {} if row.model in ("body", "part", "path", "requests") else {"x-slipform-provider": provider_of(row)}
    if provider is not None:
        named = {"x-slipform-provider": provider}
    return {"content-type": kind, **_HEADERS.get(row.family, {}), **named}


def request_of(row: EndpointRow, ids: Mapping[str, str] | None = None, **more: Any) -> Request:
    """A request for a row that is served, `more` being further fields of its body."""
    model = f"{provider_of(row)}/m"
    body = b""
    if row.sent == "json":
        body = json.dumps({**fields_of(row, model), **more}).encode()
    elif row.sent == "form":
        body = form([text("model", model), file("image"), *[text(name, str(value)) for name, value in more.items()]])
    elif row.sent == "file":
        body = form([text("purpose", "assistants"), file(), *[text(name, str(value)) for name, value in more.items()]])
    return Request(row.method, path_of(row, ids or {}), headers_of(row), body)


def answer(received: Received) -> Raw:
    """What every vendor answers to everything: an object with an id, of no use but as an answer."""
    kind = "response" if "/responses" in received.path else "object"
    content = {"id": f"made-{kind}", "object": kind, "data": [], "output": []}
    return Raw((json.dumps(content).encode(),), 200, {"content-type": "application/json"})


@dataclass
class World:
    """An application before six vendors, with some keys."""

    app: App
    vendors: dict[str, FakeVendor]
    keys: dict[str, tuple[str, str]]
    """Id and secret of each key."""
    ledger: Path

    async def send(self, request: Request, who: str | None = None) -> Reply:
        """One request with a key; afterwards `reached` has what it caused."""
        for vendor in self.vendors.values():
            vendor.requests.clear()
        headers = {"content-length": str(len(request.body)), **request.headers}
        if who is not None:
            headers["authorization"] = f"Bearer {self.keys[who][1]}"
        path, _, query = request.path.partition("?")
        return await call_app(self.app, request.method, path, request.body, headers, query.encode())

    @property
    def reached(self) -> list[Received]:
        """What the last request made the vendors receive."""
        return [each for vendor in self.vendors.values() for each in vendor.requests]

    def give(self, who: str, ids: Mapping[str, str], providers: Sequence[str] = tuple(KINDS)) -> None:
        """Make a key the owner of these resources, by kind, at providers."""
        with contextlib.closing(open_ledger(self.ledger)) as ledger:
            entries = [
                (provider, each, kind, self.keys[who][0], 4e9) for kind, each in ids.items() for provider in providers
            ]
            ledger.executemany("INSERT OR IGNORE INTO resources VALUES (?, ?, ?, ?, ?)", entries)

    def resources(self) -> set[tuple[str, str, str, str]]:
        """The provider, id, kind and key of all that somebody owns."""
        with contextlib.closing(sqlite3.connect(self.ledger)) as ledger:
            return set(ledger.execute("SELECT provider, id, kind, key FROM resources"))


@contextlib.contextmanager
def running_vendors(script: Any = answer) -> Iterator[dict[str, FakeVendor]]:
    """A vendor for each provider, all with one script."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(FakeVendor(script)) for name in KINDS}


def providers_of(vendors: Mapping[str, FakeVendor]) -> dict[str, HttpProvider]:
    """The providers that ask these vendors."""
    bases = {name: vendor.base_url.removesuffix("/v1") for name, vendor in vendors.items()}
    bases |= {name: vendors[name].base_url for name in ("gpt", "keeps")}
    return {
        name: HttpProvider(kind, base_url=bases[name], api_key=KEY, retries=RetryPolicy(attempts=0))
        for name, kind in KINDS.items()
    }


def settings_of(keys: Path | None) -> Settings:
    """Settings with aliases and, with a path, with keys."""
    server = (
        {} if keys is None else {"keys_file": str(keys), "max_file_bytes": 1 << 20, "wrong_keys_per_minute": 10_000}
    )
    aliases = {"cheap": "gpt/cheap", "small": "gpt/cheap"}
    return Settings.model_validate({"default_model": "gpt/m", "model_aliases": aliases, "server": server})


def application(
    folder: Path, vendors: Mapping[str, FakeVendor], keys: Mapping[str, Sequence[str] | None] | None
) -> World:
    """An application with these keys, each with its model patterns; without keys for None."""
    path = folder / "keys.json"
    made = {name: add_key(path, name, models=models) for name, models in (keys or {}).items()}
    settings = settings_of(path if keys else None)
    router = Router(providers_of(vendors), aliases=alias_targets(settings))
    app = App(AsyncClient(router=router, options=options_of(settings)), settings)
    secrets = {name: (key.id, secret) for name, (key, secret) in made.items()}
    return World(app, dict(vendors), secrets, folder / "keys.json.ledger.db")


@contextlib.asynccontextmanager
async def world(
    folder: Path, keys: Mapping[str, Sequence[str] | None] | None = None, script: Any = answer
) -> AsyncIterator[World]:
    """An application that is called without a socket, before vendors that do what a script says."""
    with running_vendors(script) as vendors:
        there = application(folder, vendors, keys)
        yield there
        await there.app.deployments.close()
