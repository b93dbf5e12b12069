"""What a codec is: the frozen records `Codec` and `Api`, Capabilities, EncodedRequest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from slipform.errors import LocalModelError, SlipformError, UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, ModelWarning
from slipform.schema import OutputStrategy


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one model at one endpoint can do; `dialect` names the schema dialect of its native channel."""

    native: bool = False
    tools: bool = False
    forced_tool: bool = False
    json_mode: bool = False
    sampling: bool = True
    reasoning: bool = False
    max_tokens_field: str | None = None
    dialect: str = "identity"
    tool_dialect: str = "identity"
    quirks: frozenset[str] = frozenset()

    @property
    def auto_strategy(self) -> OutputStrategy:
        """What `auto` means here: native, else a forced tool, else the prompt."""
        if self.native:
            return OutputStrategy.NATIVE
        return OutputStrategy.TOOL if self.forced_tool else OutputStrategy.PROMPTED


class EncodedRequest(msgspec.Struct, frozen=True):
    """A request ready for the wire, relative to the provider's base URL."""

    path: str
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    warnings: tuple[ModelWarning, ...] = ()
    context: Any = None
    """Whatever the same codec needs to read the answer (how the schema was lowered, which strategy was used)."""


class StreamDecoder(Protocol):
    """Reads one streamed answer from bytes split anywhere.

    The first chunk carries the warnings of the encoded request, and `lift` where the text is in the vendor's shape.
    """

    def feed(self, data: bytes) -> Sequence[CompletionChunk]:
        """The chunks completed by these bytes; an error inside the stream is raised as an `UpstreamError`."""
        ...

    def texts(self, data: bytes) -> list[str] | None:
        """The texts of the chunks that `feed` would give, if they are only that, by who spoke last; None: feed it."""
        ...

    def finish(self) -> Sequence[CompletionChunk]:
        """The last chunks; raises `TruncatedError` if the stream ended without its terminator."""
        ...


class Codec(Protocol):
    """One vendor's wire format, seen from the caller of that vendor."""

    name: str
    strategy: OutputStrategy
    """What `auto` was resolved to when the codec was made."""

    def encode_request(self, request: ModelRequest, *, stream: bool) -> EncodedRequest:
        """Spell the request."""
        ...

    def decode_response(self, body: bytes, encoded: EncodedRequest) -> ModelResponse:
        """Read a whole answer: in the caller's shape, with the request's warnings, the reserved call as text."""
        ...

    def decode_stream(self, encoded: EncodedRequest) -> StreamDecoder:
        """A reader for one streamed answer."""
        ...

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        """The error that a non-2xx answer stands for."""
        ...


class ServedRequest(msgspec.Struct, frozen=True):
    """A request as a client sent it: in the IR, and how the client wants the answer."""

    request: ModelRequest
    stream: bool = False
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What only this API needs to write the answer (`include_usage`, say)."""


class StreamEncoder(Protocol):
    """Writes one streamed answer."""

    extra: Mapping[str, Any]
    """Fields to add to the last event, when they are known before it is written."""

    def feed(self, chunk: CompletionChunk) -> bytes:
        """The bytes for one chunk; may be empty."""
        ...

    def feed_text(self, text: str) -> bytes:
        """The bytes for a chunk that is no more than text of the first choice."""
        ...

    def finish(self) -> bytes:
        """The bytes that end the stream, terminator and all."""
        ...

    def fail(self, error: SlipformError) -> bytes:
        """The bytes that tell the client of an error after the stream has begun; nothing may follow."""
        ...

    def keep_alive(self) -> bytes:
        """Bytes that mean nothing and keep the connection open; empty where the API's clients take none."""
        ...


class Serving(Protocol):
    """One API, seen from the server."""

    name: str
    content_type_stream: str

    def decode_request(self, body: bytes | Mapping[str, Any], *, path: str = "") -> ServedRequest:
        """Read a request; raises `RequestError` with the place of the mistake."""
        ...

    def encode_response(
        self, response: ModelResponse, served: ServedRequest, *, extra: Mapping[str, Any] | None = None
    ) -> bytes:
        """Write a whole answer; `extra` are top-level fields to add."""
        ...

    def encode_stream(self, served: ServedRequest) -> StreamEncoder:
        """A writer for one streamed answer."""
        ...

    def encode_error(self, error: SlipformError) -> tuple[int, bytes]:
        """The HTTP status and the body that make the API's own clients raise their own errors."""
        ...


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where ids and times come from; tests put their own in."""

    now: Callable[[], float] = time.time
    new_id: Callable[[], str] = field(default=lambda: os.urandom(16).hex())

    def seconds(self) -> int:
        """The time in whole seconds."""
        return int(self.now())


DECLINED = "The model declined to answer."
"""What stands for a refusal that came without words."""


def refusal_text(response: ModelResponse) -> str | None:
    """The words of a refusal, if the answer is one."""
    return response.refusal or (DECLINED if response.finish == "refusal" else None)


def error_fields(error: SlipformError) -> dict[str, Any]:
    """What a client may know of an error: its message, its code, its details without the vendor's raw body.

    Where a model's file lies, and what its engine writes to the terminal, is the operator's business.
    """
    if isinstance(error, LocalModelError):
        error = type(error)(error.message, hint=error.hint, details=error.details)
    fields = error.to_dict()
    details = {key: value for key, value in fields.get("details", {}).items() if key not in ("raw", "stderr")}
    return {**fields, "details": details} if details else {k: v for k, v in fields.items() if k != "details"}


def error_status(error: SlipformError) -> int:
    """The HTTP status for an error: the vendor's own for overload, else that of the error's class."""
    if isinstance(error, UpstreamError) and error.details.get("category") == "not_found":
        return 404
    if isinstance(error, UpstreamError) and error.details.get("category") == "overloaded":
        return 503
    return error.http_status
