"""The shortest way in: `ask` and `stream` without a client of one's own."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, overload

from typing_extensions import TypeForm

from slipform.client import Client
from slipform.client_async import AsyncClient
from slipform.client_request import Prompt, RawSchema
from slipform.engine import Options
from slipform.streaming import AsyncStream, Stream

T = TypeVar("T")


@overload
def ask(
    shape: type[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> T: ...
@overload
def ask(
    shape: RawSchema,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Any: ...
@overload
def ask(
    shape: TypeForm[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> T: ...
def ask(
    shape: Any,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Any:
    """Ask for an answer of this shape, with the embedded model unless another is named.

    `slipform.ask(Person, "Ada is 36")` gives a `Person`.
    """
    return _client().ask(shape, prompt, model=model, max_tokens=max_tokens, options=options)


@overload
async def ask_async(
    shape: type[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> T: ...
@overload
async def ask_async(
    shape: RawSchema,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Any: ...
@overload
async def ask_async(
    shape: TypeForm[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> T: ...
async def ask_async(
    shape: Any,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Any:
    """`ask` for event loops."""
    return await _async_client().ask(shape, prompt, model=model, max_tokens=max_tokens, options=options)


@overload
def stream(
    shape: type[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Stream[T]: ...
@overload
def stream(
    shape: RawSchema,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Stream[Any]: ...
@overload
def stream(
    shape: TypeForm[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Stream[T]: ...
def stream(
    shape: Any,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Stream[Any]:
    """The answer while it is written; see `Stream`."""
    return _client().stream(shape, prompt, model=model, max_tokens=max_tokens, options=options)


@overload
def stream_async(
    shape: type[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> AsyncStream[T]: ...
@overload
def stream_async(
    shape: RawSchema,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> AsyncStream[Any]: ...
@overload
def stream_async(
    shape: TypeForm[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> AsyncStream[T]: ...
def stream_async(
    shape: Any,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> AsyncStream[Any]:
    """The answer while it is written, for event loops; see `AsyncStream`."""
    return _async_client().stream(shape, prompt, model=model, max_tokens=max_tokens, options=options)


@functools.cache
def _client() -> Client:
    return Client()


@functools.cache
def _async_client() -> AsyncClient:
    return AsyncClient(router=_client().router)
