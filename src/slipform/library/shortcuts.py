"""Ask and stream without a client of your own: module-level calls that share one `Client`."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, Unpack, overload

from typing_extensions import TypeForm

from slipform.library.async_client import AsyncClient
from slipform.library.client import Client
from slipform.library.messages import Prompt
from slipform.library.request import Overrides, RawSchema, TextOverrides
from slipform.library.stream import AsyncStream, Stream

T = TypeVar("T")


@overload
def ask(shape: type[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> T: ...
@overload
def ask(shape: RawSchema, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Any: ...
@overload
def ask(shape: TypeForm[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> T: ...
def ask(shape: Any, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Any:
    """Return an answer of this shape, from the embedded model unless another is named.

    `slipform.ask(Person, "Ada is 36")` returns a `Person`; `Overrides` lists the keyword arguments.
    """
    return _client().ask(shape, prompt, **overrides)


@overload
async def ask_async(shape: type[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> T: ...
@overload
async def ask_async(shape: RawSchema, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Any: ...
@overload
async def ask_async(shape: TypeForm[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> T: ...
async def ask_async(shape: Any, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Any:
    """`ask` for event loops."""
    return await _async_client().ask(shape, prompt, **overrides)


@overload
def stream(shape: type[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> Stream[T]: ...
@overload
def stream(shape: RawSchema, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Stream[Any]: ...
@overload
def stream(shape: TypeForm[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> Stream[T]: ...
def stream(shape: Any, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Stream[Any]:
    """Stream an answer of this shape; see `Stream`."""
    return _client().stream(shape, prompt, **overrides)


@overload
def stream_async(shape: type[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> AsyncStream[T]: ...
@overload
def stream_async(shape: RawSchema, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> AsyncStream[Any]: ...
@overload
def stream_async(shape: TypeForm[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> AsyncStream[T]: ...
def stream_async(shape: Any, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> AsyncStream[Any]:
    """`stream` for event loops; see `AsyncStream`."""
    return _async_client().stream(shape, prompt, **overrides)


def ask_text(prompt: Prompt, **overrides: Unpack[TextOverrides]) -> str:
    """Return an answer as plain text (`slipform.text` is the package of text tools)."""
    return _client().text(prompt, **overrides)


async def ask_text_async(prompt: Prompt, **overrides: Unpack[TextOverrides]) -> str:
    """`ask_text` for event loops."""
    return await _async_client().text(prompt, **overrides)


@functools.cache
def _client() -> Client:
    return Client()


@functools.cache
def _async_client() -> AsyncClient:
    client = _client()
    return AsyncClient(options=client.options, router=client.router)
