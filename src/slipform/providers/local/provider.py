"""The embedded model as a provider."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, TypeAlias

from slipform.codecs.base import Capabilities
from slipform.errors import RequestError
from slipform.ir import (
    CompletionChunk,
    FinishReason,
    Message,
    ModelRequest,
    ModelResponse,
    ModelWarning,
    Text,
    Usage,
)
from slipform.providers.local.constraint import Constraint, any_object, constrain
from slipform.providers.local.engine import Chunk, Engine, LlamaEngine
from slipform.providers.local.progress import pull_shown
from slipform.providers.local.weights import DEFAULT, known
from slipform.providers.local.wrap import Unwrap

MAX_TOKENS = 1024
"""How long an answer may get when the caller does not say."""

_CAPABILITIES = Capabilities(native=True, json_mode=True, dialect="identity", quirks=frozenset({"list_keys"}))
_Piece: TypeAlias = CompletionChunk | BaseException | None
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class LocalProvider:
    """Answers with a small model inside this process: no key, no network, every answer held to its schema.

    >>> LocalProvider().capabilities(DEFAULT).native
    True
    """

    name = "local"

    def __init__(self, load: Callable[[], Engine] | None = None) -> None:
        self._load = load or _load_default
        self._engine: Engine | None = None
        self._loading = threading.Lock()

    def capabilities(self, model: str) -> Capabilities:
        """Native output for every schema; the prompt should list the keys, which small models heed best."""
        del model
        return _CAPABILITIES

    def models(self) -> list[str]:
        """The one model that is always there."""
        return [DEFAULT]

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        constraint = _constraint(request)
        answer = self._ready().chat(_body(request, constraint))
        choice = answer["choices"][0]
        finish = choice["finish_reason"]
        return ModelResponse(
            text=_reader(constraint)(choice["message"].get("content") or ""),
            finish=_FINISH.get(finish, "unknown"),
            raw_finish=finish,
            usage=_usage(answer.get("usage")) or Usage(),
            model=request.model,
            id=answer.get("id"),
            warnings=_warnings(constraint),
        )

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Answer piece by piece; closing the iterator stops the engine within a token."""
        pieces: SimpleQueue[_Piece] = SimpleQueue()
        stopped = self._start(request, pieces.put)
        try:
            while (piece := pieces.get()) is not None:
                yield _or_raise(piece)
        finally:
            stopped.set()

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        """Answer, without blocking the event loop."""
        return await asyncio.to_thread(self.complete, request)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer piece by piece, without blocking the event loop; closing stops the engine within a token."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[_Piece] = asyncio.Queue()
        stopped = self._start(request, lambda piece: loop.call_soon_threadsafe(pieces.put_nowait, piece))
        try:
            while (piece := await pieces.get()) is not None:
                yield _or_raise(piece)
        finally:
            stopped.set()

    def _start(self, request: ModelRequest, put: Callable[[_Piece], object]) -> threading.Event:
        """Generate in a thread of its own, handing over pieces, then None or an error, until told to stop."""
        constraint = _constraint(request)
        body = _body(request, constraint)
        read = _reader(constraint)
        stopped = threading.Event()

        def hand_over(piece: _Piece) -> bool:
            if not stopped.is_set():
                with contextlib.suppress(RuntimeError):  # the reader's event loop is gone, and so is the reader
                    put(piece)
                    return False
            return True

        def work() -> None:
            try:
                if warnings := _warnings(constraint):
                    hand_over(CompletionChunk(warnings=warnings))
                self._ready().chat_stream(body, lambda chunk: hand_over(_chunk(chunk, request, read)))
            except BaseException as error:  # noqa: BLE001 — raised again where the pieces are read
                hand_over(error)
            else:
                hand_over(None)

        threading.Thread(target=work, name="slipform-local", daemon=True).start()
        return stopped

    def warm(self) -> None:
        """Load the engine now rather than with the first request."""
        self._ready()

    def close(self) -> None:
        """Let go of the engine and its memory."""
        with self._loading:
            self._engine = None

    def _ready(self) -> Engine:
        with self._loading:
            if self._engine is None:
                self._engine = self._load()
            return self._engine


def _load_default() -> Engine:
    return LlamaEngine(pull_shown(known(DEFAULT)))


def _or_raise(piece: CompletionChunk | BaseException) -> CompletionChunk:
    if isinstance(piece, BaseException):
        raise piece
    return piece


def _limit(request: ModelRequest) -> int:
    return request.max_tokens or MAX_TOKENS


def _constraint(request: ModelRequest) -> Constraint | None:
    if request.tools:
        raise RequestError(
            "The embedded model does not call tools yet", hint="Leave `tools` out, or name another provider's model."
        )
    if request.response_format is not None:
        return constrain(request.response_format.json_schema.schema, _limit(request))
    return any_object(_limit(request)) if request.json_mode else None


def _reader(constraint: Constraint | None) -> Callable[[str], str]:
    """What takes the answer out of the engine's text."""
    return Unwrap().feed if constraint and constraint.wrapped else str


def _warnings(constraint: Constraint | None) -> tuple[ModelWarning, ...]:
    return constraint.warnings if constraint else ()


def _body(request: ModelRequest, constraint: Constraint | None) -> dict[str, Any]:
    sampling = request.sampling
    wanted = {
        "messages": [_message(message) for message in request.messages],
        "max_tokens": _limit(request),
        "temperature": 0 if sampling.temperature is None and constraint else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "stop": list(sampling.stop) or None,
        "grammar": constraint.grammar if constraint else None,
        "stream_options": {"include_usage": True},
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _message(message: Message) -> dict[str, str]:
    for part in message.parts:
        if not isinstance(part, Text):
            raise RequestError(
                f"The embedded model reads text only, and a {message.role} message holds a {type(part).__name__}",
                hint="Send text, or name another provider's model.",
            )
    return {"role": message.role, "content": message.text}


def _chunk(chunk: Chunk, request: ModelRequest, read: Callable[[str], str]) -> CompletionChunk:
    choice: Mapping[str, Any] = next(iter(chunk["choices"]), {})
    finish = choice.get("finish_reason")
    return CompletionChunk(
        text=read(choice.get("delta", {}).get("content") or ""),
        finish=_FINISH.get(finish, "unknown") if finish else None,
        raw_finish=finish,
        usage=_usage(chunk.get("usage")),
        model=request.model,
        id=chunk.get("id"),
    )


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        input=usage.get("prompt_tokens"),
        output=usage.get("completion_tokens"),
        cached=details.get("cached_tokens"),
        total=usage.get("total_tokens"),
    )
