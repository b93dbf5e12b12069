"""What the steps of a call ask for: plain classes, because `calls` is compiled."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipform.ir import CompletionChunk, ModelResponse
from slipform.ir.quick import quick
from slipform.providers.transport import HttpRequest


@dataclass(frozen=True, slots=True)
class Open:
    """Send this, and come back with the answer's head."""

    request: HttpRequest


@quick
@dataclass(frozen=True, slots=True)
class Fetch:
    """Send this, and come back with the answer's head and, where its status is a success, with its whole body."""

    request: HttpRequest


@dataclass(frozen=True, slots=True)
class Read:
    """Come back with the next bytes of the answer's body; none at its end."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Come back after so many seconds."""

    seconds: float


@quick
@dataclass(frozen=True, slots=True)
class Emit:
    """Hand these chunks to the caller."""

    chunks: Sequence[CompletionChunk]


@quick
@dataclass(frozen=True, slots=True)
class Finish:
    """The call is over: hand this answer to the caller. A stream's is empty, all of it having been handed out."""

    response: ModelResponse


Effect: TypeAlias = Open | Fetch | Read | Sleep | Emit | Finish
Steps: TypeAlias = Generator[Effect, Any, None]
