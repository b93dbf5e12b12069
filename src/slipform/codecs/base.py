"""What every codec does: spell the IR in one vendor's wire format and read it back, with no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, ModelWarning
from slipform.ir.quick import quick
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


@quick
@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request ready for the wire, relative to the provider's base URL."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
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
