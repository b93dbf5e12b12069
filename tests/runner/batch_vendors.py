"""Scripted vendors with batch APIs: what OpenAI, Anthropic and Google do with batches, and everything that goes wrong.

Written from the vendors' pages and SDKs, and not with `slipform.codecs.batches`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slipform.ir import ModelResponse, Usage
from slipform.providers.network.transport import HttpRequest, TransportFault
from slipform.testing import Raw, Received
from slipform.testing.wire_formats import SHAPES

TOKENS = Usage(input=100, output=20, total=120)
BASES = {
    "openai": "http://127.0.0.1:9/v1",
    "azure": "http://127.0.0.1:9/openai/v1",
    "anthropic": "http://127.0.0.1:9",
    "gemini": "http://127.0.0.1:9/v1",
}


@dataclass
class Batch:
    """A batch that the vendor has accepted."""

    id: str
    tag: str
    requests: list[tuple[str, dict[str, Any]]]
    created: float
    looks: int = 0
    searches: int = 0
    state: str = "running"
    results: list[dict[str, Any]] = field(default_factory=list)
    gone: bool = False


@dataclass
class Faults:
    """How often something goes wrong, and what a test wants to happen."""

    shuffled: bool = True
    missing: float = 0.0
    duplicated: float = 0.0
    foreign: int = 0
    errored: float = 0.0
    expired: float = 0.0
    cut: float = 0.0
    """How often the file of results is cut off within its last line."""
    lost_answers: float = 0.0
    """How often the connection breaks after a call was done."""
    lost_creates: int = 0
    """For how many batches the connection breaks after they were accepted."""
    unlisted: int = 0
    """How many searches a new batch is missing from."""
    refused: float = 0.0
    """How often a call is answered 503, without doing anything."""
    end: str = "completed"
    gone: bool = False
    never_ends: bool = False
    looks: int = 2
    refuse_larger_than: int | None = None
    wrong_line: str = ""
    """A refusal of every request in a batch, by its words."""


class BatchVendor:
    """One vendor: `answer` says what the model answers to a prompt, given how often that row was asked before."""

    def __init__(
        self,
        api: str,
        answer: Callable[[str, int], str],
        faults: Faults | None = None,
        draw: random.Random | None = None,
        clock: Callable[[], float] = lambda: 1_800_000_000.0,
        tokens: Callable[[dict[str, Any], str], Usage] = lambda _body, _text: TOKENS,
    ) -> None:
        self.api = api
        self.faults = faults or Faults()
        self.batches: dict[str, Batch] = {}
        self.files: dict[str, bytes] = {}
        self.live: list[str] = []
        """The prompts of live calls."""
        self.billed: list[str] = []
        """The prompts of all requests of batches that were answered."""
        self.calls: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self._answer = answer
        self._sent: Counter[str] = Counter()
        self._draw = draw or random.Random(1)
        self._seed = self._draw.random()
        self._clock = clock
        self._tokens = tokens
        self._shape = SHAPES["openai" if api == "azure" else api]  # type: ignore[index]

    # HTTP

    def __call__(self, received: Received) -> Raw:
        status, headers, body = self.handle(received.method, received.path, received.headers, received.body)
        return Raw((body,), status, {"content-type": "application/json", **headers})

    def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(path)
        place = parts.path.removeprefix("/openai") if self.api == "azure" else parts.path
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self._draw.random() < self.faults.refused:
            return 503, {"retry-after": "0"}, _error("overloaded")
        result = {"openai": self._openai, "azure": self._openai, "anthropic": self._anthropic, "gemini": self._gemini}[
            self.api
        ](method, place, query, headers, body)
        if isinstance(result, bytes):
            return 200, {}, result
        if isinstance(result, int):
            return result, {}, _error(f"status {result}")
        return 200, {}, json.dumps(result).encode()

    def _openai(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Any:
        prefix = "" if self.api == "azure" else "/v1"
        match [method, *path.removeprefix("/v1/").split("/")]:
            case ["POST", "chat", "completions"]:
                return self._live(json.loads(body))
            case ["POST", "files"]:
                assert headers["content-type"].startswith("multipart/form-data; boundary=")
                boundary = headers["content-type"].partition("boundary=")[2].encode()
                purpose, file = body.split(b"--" + boundary)[1:3]
                assert b'name="purpose"' in purpose
                assert purpose.endswith(b"\r\n\r\nbatch\r\n")
                name = f"file-in{len(self.files)}"
                self.files[name] = file.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
                self.calls["files"] += 1
                return {"id": name, "object": "file", "status": "processed"}
            case ["POST", "batches"]:
                fields = json.loads(body)
                assert fields["endpoint"] == f"{prefix}/chat/completions"
                assert fields["completion_window"] == "24h"
                lines = [json.loads(line) for line in self.files[fields["input_file_id"]].splitlines()]
                assert {line["url"] for line in lines} == {f"{prefix}/chat/completions"}
                assert {line["method"] for line in lines} == {"POST"}
                requests = [(line["custom_id"], line["body"]) for line in lines]
                return self._openai_batch(self._accept("batch_", fields["metadata"]["slipform"], requests))
            case ["GET", "batches"]:
                page, more = self._page(query.get("after", ""), int(query["limit"]))
                return {
                    "data": [self._openai_batch(each) for each in page],
                    "has_more": more,
                    "last_id": page[-1].id if page else None,
                }
            case ["GET", "batches", name]:
                return 404 if self._look(name).gone else self._openai_batch(self.batches[name])
            case ["POST", "batches", name, "cancel"]:
                return self._openai_batch(self._cancel(name))
            case ["GET", "files", name, "content"]:
                batch = self.batches[name.removeprefix("out-").removeprefix("err-")]
                failed = name.startswith("err-")
                lines = [line for line in batch.results if bool(line["response"] is None or _failed(line)) == failed]
                return 404 if batch.gone else self._file(lines)
        raise AssertionError((method, path))

    def _openai_batch(self, batch: Batch) -> dict[str, Any]:
        ended = batch.state in ("completed", "expired", "cancelled")
        problem = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached"}
        return {
            "id": batch.id,
            "object": "batch",
            "status": {"running": "in_progress"}.get(batch.state, batch.state),
            "created_at": int(batch.created),
            "metadata": {"slipform": batch.tag},
            "output_file_id": f"out-{batch.id}" if ended else None,
            "error_file_id": f"err-{batch.id}" if ended and any(map(_failed, batch.results)) else None,
            "errors": {"object": "list", "data": [problem]} if batch.state == "failed" else None,
            "request_counts": {"total": len(batch.requests), "completed": len(batch.results), "failed": 0},
        }

    def _anthropic(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Any:
        assert headers["anthropic-version"]
        match [method, *path.removeprefix("/v1/messages").strip("/").split("/")]:
            case ["POST", ""]:
                return self._live(json.loads(body))
            case ["POST", "batches"]:
                requests = [(each["custom_id"], each["params"]) for each in json.loads(body)["requests"]]
                assert all(len(name) <= 64 for name, _ in requests)
                return self._anthropic_batch(self._accept("msgbatch_", "", requests))
            case ["GET", "batches"]:
                page, more = self._page(query.get("after_id", ""), int(query["limit"]))
                return {
                    "data": [self._anthropic_batch(each) for each in page],
                    "has_more": more,
                    "first_id": None,
                    "last_id": page[-1].id if page else None,
                }
            case ["GET", "batches", name]:
                return self._anthropic_batch(self._look(name))
            case ["POST", "batches", name, "cancel"]:
                return self._anthropic_batch(self._cancel(name))
            case ["GET", "batches", name, "results"]:
                return 404 if self.batches[name].gone else self._file(self.batches[name].results)
        raise AssertionError((method, path))

    def _anthropic_batch(self, batch: Batch) -> dict[str, Any]:
        ended = batch.state != "running"
        count = len(batch.requests)
        rest = ("errored", "canceled", "expired")
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": {
                "processing": 0 if ended else count,
                "succeeded": count if ended else 0,
                **dict.fromkeys(rest, 0),
            },
            "created_at": _moment(batch.created),
            "archived_at": _moment(batch.created) if batch.gone else None,
            "results_url": f"https://elsewhere.invalid/{batch.id}" if ended else None,
        }

    def _gemini(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Any:
        _, _, verb = path.removeprefix("/v1/models/").partition(":")
        if verb == "generateContent":
            return self._live(json.loads(body))
        if verb == "batchGenerateContent":
            fields = json.loads(body)["batch"]
            inner = fields["inputConfig"]["requests"]["requests"]
            requests = [(each["metadata"]["key"], each["request"]) for each in inner]
            return self._operation(self._accept("batches/", fields["displayName"], requests))
        if path == "/v1/batches":
            page, more = self._page(query.get("pageToken", ""), int(query["pageSize"]))
            operations = [self._operation(each) for each in page]
            return {"operations": operations} | ({"nextPageToken": page[-1].id} if more else {})
        if verb == "cancel":
            self._cancel(path.removeprefix("/v1/").partition(":")[0])
            return {}
        if path.startswith("/v1/files/"):
            assert query == {"alt": "media"}
            batch = self.batches[f"batches/{path.removeprefix('/v1/files/').partition(':')[0]}"]
            return 404 if batch.gone else self._file(batch.results)
        batch = self._look(path.removeprefix("/v1/"))
        return 404 if batch.gone and len(batch.requests) % 2 else self._operation(batch)

    def _operation(self, batch: Batch) -> dict[str, Any]:
        state = {"completed": "SUCCEEDED", "running": "RUNNING"}.get(batch.state, batch.state.upper())
        metadata: dict[str, Any] = {
            "displayName": batch.tag,
            "state": f"BATCH_STATE_{state}",
            "createTime": _moment(batch.created),
            "batchStats": {"requestCount": str(len(batch.requests))},
        }
        data: dict[str, Any] = {"name": batch.id, "metadata": metadata, "done": batch.state != "running"}
        if batch.state in ("completed", "cancelled", "expired"):
            if len(batch.requests) % 2:  # both ways occur
                data["response"] = {"inlinedResponses": {"inlinedResponses": batch.results}}
            else:
                metadata["output"] = {"responsesFile": f"files/{batch.id.removeprefix('batches/')}"}
        return data

    # Batches

    def _accept(self, prefix: str, tag: str, requests: list[tuple[str, dict[str, Any]]]) -> Batch:
        names = [name for name, _ in requests]
        assert len(set(names)) == len(names)
        batch = Batch(f"{prefix}{len(self.batches)}", tag, requests, self._clock())
        self.batches[batch.id] = batch
        self.calls["batches"] += 1
        largest = self.faults.refuse_larger_than
        if largest is not None and len(requests) > largest:
            batch.state = "failed"
        return batch

    def _page(self, after: str, size: int) -> tuple[list[Batch], bool]:
        for batch in self.batches.values():
            batch.searches += 1
        newest = [each for each in self.batches.values() if each.searches > self.faults.unlisted][::-1]
        start = next((at + 1 for at, each in enumerate(newest) if each.id == after), 0)
        return newest[start : start + size], len(newest) > start + size

    def _look(self, name: str) -> Batch:
        batch = self.batches[name]
        batch.looks += 1
        if batch.state == "running" and batch.looks >= self.faults.looks and not self.faults.never_ends:
            self._end(batch, self.faults.end)
        return batch

    def _cancel(self, name: str) -> Batch:
        batch = self.batches[name]
        if batch.state == "running":
            self._end(batch, "cancelled")
        return batch

    def _end(self, batch: Batch, state: str) -> None:
        faults = self.faults
        batch.state = state
        batch.gone = faults.gone
        not_run = 0.5 if state == "cancelled" else faults.expired
        for name, body in batch.requests:
            prompt = _prompt(body)
            self._sent[prompt] += 1
            # What goes wrong depends on the row and on how often it came, not on the order in which rows come.
            draw = random.Random(f"{self._seed}-{prompt}-{self._sent[prompt]}")
            if draw.random() < not_run:
                batch.results += [self._not_run(name, "canceled" if state == "cancelled" else "expired")]
            elif faults.wrong_line and faults.wrong_line in json.dumps(body):
                batch.results += [self._errored(name, 400, f"{faults.wrong_line} is not supported with this model")]
            elif draw.random() < faults.errored:
                batch.results += [self._errored(name, 500, "The server had an error")]
            else:
                self.billed.append(f"{prompt} #{_turns(body) // 2}")
                line = self._succeeded(name, self._ask(body))
                copies = 2 if draw.random() < faults.duplicated else 1
                batch.results += [line] * (0 if draw.random() < faults.missing else copies)
        batch.results += [self._succeeded(f"foreign-{at}", {}) for at in range(faults.foreign)]
        if faults.shuffled:
            self._draw.shuffle(batch.results)

    def _file(self, lines: list[dict[str, Any]]) -> bytes:
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        if lines and self._draw.random() < self.faults.cut:
            return data[:-20]
        return data

    def _succeeded(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.api == "anthropic":
            return {"custom_id": name, "result": {"type": "succeeded", "message": body}}
        if self.api == "gemini":
            return {"metadata": {"key": name}, "response": body} if len(name) % 2 else {"key": name, "response": body}
        response = {"status_code": 200, "request_id": "req", "body": body}
        return {"id": f"r-{name}", "custom_id": name, "response": response, "error": None}

    def _errored(self, name: str, status: int, message: str) -> dict[str, Any]:
        if self.api == "anthropic":
            kind = "invalid_request_error" if status == 400 else "api_error"
            error = {"type": "error", "error": {"type": kind, "message": message}}
            return {"custom_id": name, "result": {"type": "errored", "error": error}}
        if self.api == "gemini":
            return {"metadata": {"key": name}, "error": {"code": 3 if status == 400 else 13, "message": message}}
        error = {"message": message, "type": "invalid_request_error" if status == 400 else "server_error"}
        response = {"status_code": status, "request_id": "req", "body": {"error": error}}
        return {"id": f"r-{name}", "custom_id": name, "response": response, "error": None}

    def _not_run(self, name: str, reason: str) -> dict[str, Any]:
        if self.api == "anthropic":
            return {"custom_id": name, "result": {"type": reason}}
        if self.api == "gemini":
            return {"metadata": {"key": name}, "error": {"code": 1 if reason == "canceled" else 4, "message": reason}}
        code = "batch_cancelled" if reason == "canceled" else "batch_expired"
        return {"id": f"r-{name}", "custom_id": name, "response": None, "error": {"code": code, "message": reason}}

    # The model

    def _live(self, body: dict[str, Any]) -> dict[str, Any]:
        self.live.append(_prompt(body))
        return self._ask(body)

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        prompt = _prompt(body)
        text = self._answer(prompt, _turns(body) // 2)
        return self._shape.whole(ModelResponse(text=text, usage=self._tokens(body, text), model="any"))


def _moment(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "error"}}).encode()


def _failed(line: dict[str, Any]) -> bool:
    return line["response"] is None or line["response"]["status_code"] != 200


def _messages(body: dict[str, Any]) -> list[Any]:
    listed: list[Any] = body.get("messages") or body["contents"]
    return [each for each in listed if each["role"] != "system"]


def _turns(body: dict[str, Any]) -> int:
    return len(_messages(body))


def _prompt(body: dict[str, Any]) -> str:
    """The first question of a conversation."""
    first = _messages(body)[0]
    content = first.get("content", first.get("parts"))
    return content if isinstance(content, str) else str(content[0]["text"])


class _Reply:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    async def read(self) -> bytes:
        body = self._body
        self._body = b""
        return body

    async def on_body(self, push: Callable[[bytes], bool]) -> None:
        if push(await self.read()):
            push(b"")

    async def close(self) -> None: ...


class DirectTransport:
    """Takes requests to a scripted vendor without a socket; `before` and `after` a call, a test may do anything."""

    def __init__(self, vendor: BatchVendor, around: Callable[[], None] = lambda: None) -> None:
        self._vendor = vendor
        self._around = around
        self._draw = random.Random(3)

    async def open_async(self, request: HttpRequest) -> _Reply:
        parts = urlsplit(request.url)
        self._around()
        path = f"{parts.path}?{parts.query}"
        pieces = [] if request.upload is None else [piece async for piece in request.upload.pieces]
        body = request.body or b"".join(pieces)
        status, headers, body = self._vendor.handle(request.method, path, request.headers, body)
        self._around()
        is_live = path.startswith(("/v1/chat", "/openai/v1/chat", "/v1/messages?")) or ":generateContent" in path
        is_create = request.method == "POST" and parts.path.endswith(("/batches", ":batchGenerateContent"))
        if is_create and self._vendor.faults.lost_creates > 0:
            self._vendor.faults.lost_creates -= 1
            raise TransportFault("the connection was reset", phase="head")
        if not is_live and self._draw.random() < self._vendor.faults.lost_answers:
            raise TransportFault("the connection was reset", phase="head")
        return _Reply(status, headers, body)

    def open(self, request: HttpRequest) -> Any:
        raise AssertionError("batches are asked on an event loop")

    def close(self) -> None: ...


async def no_sleep(_: float) -> None:
    """Wait for nothing."""
