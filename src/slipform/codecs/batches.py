"""Encode requests for the vendors' batch APIs, and decode their batches and results: no I/O.

A batch API takes ordinary requests under ids of the caller's choice and returns the answers within a day at half the
price. A `BatchApi` record says where a vendor's differs from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec
import orjson

from slipform.codecs.model_name import url_path
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import ConfigError, UpstreamError

BatchPhase: TypeAlias = Literal["running", "ended", "failed"]
"""`ended`: some requests at least have results. `failed`: the vendor did not run the batch."""
TAG: str = "slipform"
"""The name of the tag in OpenAI's metadata."""


class BatchStatus(msgspec.Struct, frozen=True):
    """A batch as its vendor describes it."""

    id: str
    state: BatchPhase
    word: str
    """The vendor's own name of the state."""
    total: int | None = None
    finished: int | None = None
    tag: str = ""
    """The tag that the batch was submitted with; empty if the vendor keeps no tags."""
    created: float = 0.0
    """The time of creation, in seconds since 1970."""
    result_paths: tuple[str, ...] = ()
    """The paths of its results."""
    inline: tuple[bytes, ...] = ()
    """Results that were sent with the status, as lines."""
    problem: str = ""
    """Why the vendor did not run it."""


class BatchResult(msgspec.Struct, frozen=True):
    """The result of one request: an answer, an error, or neither if the vendor did not process it."""

    id: str
    answer: bytes = b""
    """The answer in the vendor's ordinary format."""
    error: UpstreamError | None = None
    reason: str = ""
    """Why there is neither: `expired`, `canceled`."""


@dataclass(frozen=True, slots=True)
class BatchCall:
    """A call to the batch API; the path is relative to the provider's base URL."""

    path: str
    body: bytes = b""
    content_type: str = "application/json"
    method: Literal["GET", "POST"] = "POST"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A batch to be submitted."""

    tag: str
    model: str
    path: str
    """The path of an ordinary request to the model."""
    lines: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class BatchApi:
    """One vendor's batch API."""

    name: str
    max_requests: int
    max_bytes: int
    line: Callable[[str, str, bytes], bytes]
    """Returns a request from its id, its path and its ordinary body."""
    create: Callable[[BatchRequest, str], BatchCall]
    """Returns the call that submits; it has the id of the uploaded file if the API takes files."""
    upload: Callable[[BatchRequest], BatchCall] | None
    """Returns the call that uploads the requests; None if they are part of `create`."""
    folder: str
    """The path of all batches; a batch is below it, by its id."""
    cancel_suffix: str
    list_query: Callable[[str], str]
    """Returns the query of a page of the list, from the previous page's cursor."""
    read_list: Callable[[Mapping[str, Any]], tuple[list[Any], str]]
    """Returns the batches of a page, newest first, and the cursor of the next; empty at the end."""
    read_status: Callable[[Mapping[str, Any]], BatchStatus]
    read_result: Callable[[bytes], BatchResult]
    """Returns the result of a line; raises one of `UNREADABLE` if it is not one."""
    has_tags: bool = True

    def status(self, batch: str) -> BatchCall:
        """Return the call that queries a batch."""
        return BatchCall(f"{self.folder}/{_bare_id(batch)}", method="GET")

    def cancel(self, batch: str) -> BatchCall:
        """Return the call that cancels a batch."""
        return BatchCall(f"{self.folder}/{_bare_id(batch)}{self.cancel_suffix}")

    def page(self, cursor: str) -> BatchCall:
        """Return the call that lists batches."""
        return BatchCall(f"{self.folder}?{self.list_query(cursor)}", method="GET")


UNREADABLE = (msgspec.MsgspecError, ValueError)
"""The exceptions raised for a line that is not a result: it is cut off, or not JSON."""


def _bare_id(batch: str) -> str:
    return url_path(batch.removeprefix("batches/"))


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        return datetime.fromisoformat(value).timestamp()
    return float(value or 0)


# OpenAI, and Azure


class _OpenAIResponse(msgspec.Struct):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"null")


class _OpenAILine(msgspec.Struct):
    custom_id: str
    response: _OpenAIResponse | None = None
    error: Any = None


_openai_line = msgspec.json.Decoder(_OpenAILine)
_OPENAI_STATES: Mapping[str, BatchPhase] = {
    "completed": "ended",
    "expired": "ended",
    "cancelled": "ended",
    "failed": "failed",
}
_NOT_RUN = {"batch_expired": "expired", "batch_cancelled": "canceled"}
_BOUNDARY = b"slipform-batch-9f27c1"


def _openai_upload(batch: BatchRequest) -> BatchCall:
    part = b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n'
    file = b'; filename="%b.jsonl"\r\nContent-Type: application/jsonl' % batch.tag.encode()
    pieces = [part % (_BOUNDARY, b"purpose", b""), b"batch\r\n", part % (_BOUNDARY, b"file", file)]
    body = b"".join([*pieces, *batch.lines, b"\r\n--%b--\r\n" % _BOUNDARY])
    return BatchCall("/files", body, f"multipart/form-data; boundary={_BOUNDARY.decode()}")


def _openai_create(prefix: str) -> Callable[[BatchRequest, str], BatchCall]:
    def create(batch: BatchRequest, file: str) -> BatchCall:
        fields = {
            "input_file_id": file,
            "endpoint": f"{prefix}{batch.path}",
            "completion_window": "24h",
            "metadata": {TAG: batch.tag},
        }
        return BatchCall("/batches", orjson.dumps(fields))

    return create


def _openai_encoder(prefix: str) -> Callable[[str, str, bytes], bytes]:
    def line(custom_id: str, path: str, body: bytes) -> bytes:
        head = orjson.dumps({"custom_id": custom_id, "method": "POST", "url": f"{prefix}{path}"})
        return b'%b,"body":%b}\n' % (head[:-1], body)

    return line


def _openai_status(data: Mapping[str, Any]) -> BatchStatus:
    counts = data.get("request_counts") or {}
    files = (data.get("output_file_id"), data.get("error_file_id"))
    problems = [each.get("message") or each.get("code") for each in (data.get("errors") or {}).get("data") or ()]
    codes = [each.get("code") for each in (data.get("errors") or {}).get("data") or ()]
    return BatchStatus(
        str(data["id"]),
        _OPENAI_STATES.get(data["status"], "running"),
        data["status"],
        counts.get("total"),
        (counts.get("completed") or 0) + (counts.get("failed") or 0),
        str((data.get("metadata") or {}).get(TAG, "")),
        _seconds(data.get("created_at")),
        tuple(f"/files/{url_path(file)}/content" for file in files if file),
        problem="; ".join(f"{problem} ({code})" for problem, code in zip(problems, codes, strict=True)),
    )


def _openai_result(line: bytes) -> BatchResult:
    read = _openai_line.decode(line)
    response = read.response
    if response is not None and 200 <= response.status_code < 300 and not read.error:
        return BatchResult(read.custom_id, bytes(response.body))
    code = read.error.get("code") if isinstance(read.error, Mapping) else None
    if code in _NOT_RUN:
        return BatchResult(read.custom_id, reason=_NOT_RUN[code])
    payload = read.error or (None if response is None else orjson.loads(bytes(response.body)))
    return BatchResult(read.custom_id, error=fault_error(payload, status=response.status_code if response else None))


def _data_page(data: Mapping[str, Any]) -> tuple[list[Any], str]:
    return data["data"], (data.get("last_id") or "") if data.get("has_more") else ""


def _openai_api(name: str, prefix: str) -> BatchApi:
    return BatchApi(
        name,
        max_requests=50_000,
        max_bytes=200_000_000,
        line=_openai_encoder(prefix),
        create=_openai_create(prefix),
        upload=_openai_upload,
        folder="/batches",
        cancel_suffix="/cancel",
        list_query=lambda cursor: f"limit=100&after={quote(cursor)}" if cursor else "limit=100",
        read_list=_data_page,
        read_status=_openai_status,
        read_result=_openai_result,
    )


# Anthropic


class _AnthropicResult(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None


class _AnthropicLine(msgspec.Struct):
    custom_id: str
    result: _AnthropicResult


_anthropic_line = msgspec.json.Decoder(_AnthropicLine)
_ANTHROPIC_STATUSES = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP statuses of an ordinary call; batch results contain only the name."""


def _anthropic_create(batch: BatchRequest, _: str) -> BatchCall:
    return BatchCall(_ANTHROPIC_FOLDER, b'{"requests":[%b]}' % b",".join(batch.lines))


def _anthropic_encode(custom_id: str, _path: str, body: bytes) -> bytes:
    return b'{"custom_id":%b,"params":%b}' % (orjson.dumps(custom_id), body)


def _anthropic_status(data: Mapping[str, Any]) -> BatchStatus:
    counts = data.get("request_counts") or {}
    has_ended = data["processing_status"] == "ended"
    is_archived = data.get("archived_at") is not None
    path = f"{_ANTHROPIC_FOLDER}/{url_path(data['id'])}/results"
    return BatchStatus(
        str(data["id"]),
        "ended" if has_ended else "running",
        data["processing_status"],
        sum(counts.values()),
        sum(count for name, count in counts.items() if name != "processing"),
        created=_seconds(data.get("created_at")),
        result_paths=(path,) if has_ended and not is_archived else (),
    )


def _anthropic_result(line: bytes) -> BatchResult:
    read = _anthropic_line.decode(line)
    result = read.result
    if result.type == "succeeded":
        return BatchResult(read.custom_id, bytes(result.message))
    if result.type != "errored":
        return BatchResult(read.custom_id, reason=result.type)
    payload = result.error or {}
    kind = (payload.get("error") or {}).get("type", "")
    return BatchResult(read.custom_id, error=fault_error(payload, status=_ANTHROPIC_STATUSES.get(kind, 400)))


_ANTHROPIC_FOLDER = "/v1/messages/batches"
_ANTHROPIC = BatchApi(
    "anthropic",
    max_requests=100_000,
    max_bytes=256_000_000,
    line=_anthropic_encode,
    create=_anthropic_create,
    upload=None,
    folder=_ANTHROPIC_FOLDER,
    cancel_suffix="/cancel",
    list_query=lambda cursor: f"limit=100&after_id={quote(cursor)}" if cursor else "limit=100",
    read_list=_data_page,
    read_status=_anthropic_status,
    read_result=_anthropic_result,
    has_tags=False,
)


# Gemini


class _GeminiLine(msgspec.Struct):
    key: str = ""
    metadata: dict[str, Any] | None = None
    response: msgspec.Raw = msgspec.Raw(b"")
    error: Any = None


_gemini_line = msgspec.json.Decoder(_GeminiLine)
_GEMINI_STATES: Mapping[str, BatchPhase] = {
    "SUCCEEDED": "ended",
    "CANCELLED": "ended",
    "EXPIRED": "ended",
    "FAILED": "failed",
}
_GEMINI_CODES = {1: 499, 3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 13: 500, 14: 503, 16: 401}
"""The HTTP statuses of Google's own codes."""


def _gemini_create(batch: BatchRequest, _: str) -> BatchCall:
    head = b'{"batch":{"displayName":%b,"inputConfig":{"requests":{"requests":[%b]}}}}'
    body = head % (orjson.dumps(batch.tag), b",".join(batch.lines))
    return BatchCall(f"/models/{url_path(batch.model)}:batchGenerateContent", body)


def _gemini_encode(custom_id: str, _path: str, body: bytes) -> bytes:
    return b'{"request":%b,"metadata":{"key":%b}}' % (body, orjson.dumps(custom_id))


def _gemini_status(data: Mapping[str, Any]) -> BatchStatus:
    metadata = data.get("metadata") or {}
    word = str(metadata.get("state", "")).removeprefix("JOB_STATE_").removeprefix("BATCH_STATE_")
    output = data.get("response") or metadata.get("output") or {}
    inline = (output.get("inlinedResponses") or {}).get("inlinedResponses") or ()
    stats = metadata.get("batchStats") or {}
    pending = int(stats.get("pendingRequestCount") or 0)
    total = int(stats["requestCount"]) if "requestCount" in stats else None
    file = str(output.get("responsesFile") or "").removeprefix("files/")
    return BatchStatus(
        str(data["name"]),
        _GEMINI_STATES.get(word, "running"),
        word.lower(),
        total,
        None if total is None else total - pending,
        str(metadata.get("displayName", "")),
        _seconds(metadata.get("createTime")),
        (f"/files/{url_path(file)}:download?alt=media",) if file else (),
        tuple(orjson.dumps(each) for each in inline),
        str((data.get("error") or {}).get("message", "")),
    )


def _gemini_result(line: bytes) -> BatchResult:
    read = _gemini_line.decode(line)
    key = read.key or str((read.metadata or {})["key"] if read.metadata and "key" in read.metadata else "")
    if bytes(read.response) not in (b"", b"null"):
        return BatchResult(key, bytes(read.response))
    if not isinstance(read.error, Mapping):
        return BatchResult(key, reason="expired")
    code = read.error.get("code")
    if code == 1:
        return BatchResult(key, reason="canceled")
    status = _GEMINI_CODES.get(code, code) if isinstance(code, int) else None
    return BatchResult(key, error=fault_error({"error": read.error}, status=status))


_GEMINI = BatchApi(
    "gemini",
    max_requests=50_000,
    max_bytes=20_000_000,
    line=_gemini_encode,
    create=_gemini_create,
    upload=None,
    folder="/batches",
    cancel_suffix=":cancel",
    list_query=lambda cursor: f"pageSize=100&pageToken={quote(cursor)}" if cursor else "pageSize=100",
    read_list=lambda data: (data.get("operations") or [], data.get("nextPageToken") or ""),
    read_status=_gemini_status,
    read_result=_gemini_result,
)


BATCH_APIS: Mapping[str, BatchApi] = MappingProxyType(
    {
        "openai": _openai_api("openai", "/v1"),
        "azure": _openai_api("azure", ""),
        "anthropic": _ANTHROPIC,
        "gemini": _GEMINI,
    }
)
"""The batch APIs, by their name in the catalogue."""


def find_batch_api(name: str, provider: str) -> BatchApi:
    """Return the batch API of that name; raises `ConfigError` for a provider without one.

    >>> find_batch_api("anthropic", "anthropic").max_requests
    100000
    """
    if name in BATCH_APIS:
        return BATCH_APIS[name]
    raise ConfigError(
        f"slipform knows no batch API of {provider!r}",
        where="via",
        hint=f"Leave `via` out, or use a model of {', '.join(sorted(BATCH_APIS))}.",
    )
