"""A valid answer told as the SDK's own stream, for calls with `stream=True`: it is judged before it is told."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Self, get_args

import orjson

from slipform.codecs.serving import ServedRequest, Serving
from slipform.ir import ModelResponse
from slipform.providers.chunking import as_chunks


def events(api: str, serving: Serving, served: ServedRequest, answer: ModelResponse) -> Iterator[Any]:
    """The events that the SDK would have read from the vendor."""
    encoder = serving.encode_stream(served)
    told = b"".join((*map(encoder.feed, as_chunks(answer)), encoder.finish()))
    make = _MAKERS[api]
    for line in told.split(b"\n"):
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield make(orjson.loads(data))


def _chat_chunk(data: Mapping[str, Any]) -> Any:
    return import_module("openai.types.chat").ChatCompletionChunk.construct(**data)


def _response_event(data: Mapping[str, Any]) -> Any:
    return _members("openai.types.responses", "ResponseStreamEvent")[data["type"]].construct(**data)


def _message_event(data: Mapping[str, Any]) -> Any:
    return _members("anthropic.types", "RawMessageStreamEvent")[data["type"]].construct(**data)


@functools.cache
def _members(module: str, union: str) -> Mapping[str, Any]:
    """The kinds of an SDK's event, by their `type`. Built as the SDK builds them, which is not strict about fields."""
    kinds = get_args(getattr(import_module(module), union))
    kinds = get_args(kinds[0]) or kinds  # a union with a remark on it
    return {name: kind for kind in kinds for name in get_args(kind.model_fields["type"].annotation)}


_MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "chat.completions.create": _chat_chunk,
    "responses.create": _response_event,
    "messages.create": _message_event,
}


class Replay:
    """Stands for the SDKs' `Stream`: iterate over it, or open it with `with`."""

    def __init__(self, told: Iterator[Any]) -> None:
        self._told = told

    def __iter__(self) -> Iterator[Any]:
        return self._told

    def __next__(self) -> Any:
        return next(self._told)

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncReplay:
    """Stands for the SDKs' `AsyncStream`."""

    def __init__(self, told: Iterator[Any]) -> None:
        self._told = told

    async def __aiter__(self) -> AsyncIterator[Any]:
        for event in self._told:
            yield event

    async def close(self) -> None:
        """Nothing is held open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
