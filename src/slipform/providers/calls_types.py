"""What the steps of a call ask for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from slipform.ir import CompletionChunk, ModelResponse
from slipform.providers.network.transport import HttpRequest
from slipform.providers.secrets import Secret


class Open:
    """Send this, and come back with the answer's head; the secrets are masked in all of the answer."""

    __slots__ = ("request", "secrets")

    def __init__(self, request: HttpRequest, secrets: tuple[Secret, ...] = ()) -> None:
        self.request: Final = request
        self.secrets: Final = secrets


class Fetch:
    """Send this, and come back with the answer's head and, where its status is a success, with its whole body.

    The secrets are masked in all of the answer.
    """

    __slots__ = ("request", "secrets")

    def __init__(self, request: HttpRequest, secrets: tuple[Secret, ...] = ()) -> None:
        self.request: Final = request
        self.secrets: Final = secrets


class Read(NamedTuple):
    """Hand these chunks to the caller, then come back with the next bytes of the answer's body; none at its end.

    Where `texts` finds texts in the bytes, they hold a chunk of each which says nothing else that is new: the texts may
    be handed on instead, without coming back.
    """

    chunks: Sequence[CompletionChunk] = ()
    texts: Callable[[bytes], list[str] | None] | None = None


class Sleep:
    """Come back after so many seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds: Final = seconds


class Finish:
    """The call is over: hand this answer, or the last chunks of a streamed one, to the caller."""

    __slots__ = ("chunks", "response")

    def __init__(self, response: ModelResponse, chunks: Sequence[CompletionChunk] = ()) -> None:
        self.response: Final = response
        self.chunks: Final = chunks


Effect: TypeAlias = Open | Fetch | Read | Sleep | Finish
Steps: TypeAlias = Generator[Effect, Any, None]
