"""A valid answer told as the SDK's own stream: it is judged before it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self

import orjson

from slipform.codecs.serving import ServedRequest
from slipform.ir import ModelResponse
from slipform.providers.chunking import as_chunks
from slipform.wrappers_apis import Api


def events(api: Api, served: ServedRequest, answer: ModelResponse) -> Iterator[Any]:
    """The events that the SDK would have read from the vendor."""
    encoder = api.serving.encode_stream(served)
    told = b"".join((*map(encoder.feed, as_chunks(answer)), encoder.finish()))
    for line in told.split(b"\n"):
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield api.event(orjson.loads(data))


class _Response:
    """Stands for the HTTP response of a stream, which is over and may have been several."""

    status_code = 200
    headers: Mapping[str, str] = MappingProxyType({})

    def close(self) -> None:
        """Nothing is held open."""

    async def aclose(self) -> None:
        """Nothing is held open."""


class Replay:
    """Stands for the SDKs' `Stream`: iterate over it, or open it with `with`."""

    def __init__(self, told: Iterator[Any]) -> None:
        self._told = told
        self.response = _Response()

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
        self.response = _Response()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        for event in self._told:
            return event
        raise StopAsyncIteration

    async def close(self) -> None:
        """Nothing is held open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
