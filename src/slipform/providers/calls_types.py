"""What the steps of a call ask for: plain classes, because `calls` is compiled."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

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


class Read(NamedTuple):
    """Hand these chunks to the caller, then come back with the next bytes of the answer's body; none at its end.

    Where `texts` finds texts in the bytes, they hold a chunk of each which says nothing else that is new: the texts may
    be handed on instead, without coming back.
    """

    chunks: Sequence[CompletionChunk] = ()
    texts: Callable[[bytes], list[str] | None] | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Come back after so many seconds."""

    seconds: float


@quick
@dataclass(frozen=True, slots=True)
class Finish:
    """The call is over: hand this answer, or the last chunks of a streamed one, to the caller."""

    response: ModelResponse
    chunks: Sequence[CompletionChunk] = ()


Effect: TypeAlias = Open | Fetch | Read | Sleep | Finish
Steps: TypeAlias = Generator[Effect, Any, None]
