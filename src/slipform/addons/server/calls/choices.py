"""Request several answers (`n`, `candidateCount`) where each is enforced, or the vendor returns one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from slipform.errors import RequestError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, Usage
from slipform.providers import Provider
from slipform.providers.base import as_chunks
from slipform.providers.http import HttpProvider

T = TypeVar("T")

_CHAT = "openai-chat"
_GEMINI = "gemini"
_CONFIG = "generationConfig"
_COUNTS = ("candidateCount", "candidate_count")


class RequestedAnswers(NamedTuple):
    """The number of answers that a request asks for, the request for one of them, and the field with the number."""

    number: int
    single: ModelRequest
    field: str = "n"


def requested_answers(request: ModelRequest) -> RequestedAnswers:
    """Return how many answers a request asks for; raises `RequestError` for an invalid number.

    >>> requested_answers(ModelRequest("m", (), extra={"n": 3}, extra_for="openai-chat")).number
    3
    """
    extra = request.extra
    if not extra:
        return RequestedAnswers(1, request)
    if request.extra_for == _GEMINI:
        config = extra.get(_CONFIG)
        name = next((each for each in _COUNTS if isinstance(config, Mapping) and each in config), None)
        if name is None or not isinstance(config, Mapping):
            return RequestedAnswers(1, request)
        rest = {key: value for key, value in config.items() if key != name}
        single = request.replace(extra={**extra, _CONFIG: rest})
        field = f"{_CONFIG}.{name}"
        return RequestedAnswers(_count(config[name], field), single, field)
    if "n" not in extra or request.extra_for != _CHAT:
        return RequestedAnswers(1, request)
    single = request.replace(extra={key: value for key, value in extra.items() if key != "n"})
    return RequestedAnswers(_count(extra["n"], "n"), single)


def _count(value: Any, field: str) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RequestError(f"{value!r} is not a number of answers", where=field, hint="Send a whole number from 1 on.")
    return value


def check_count(answers: RequestedAnswers, most_calls: int) -> None:
    """Raise `RequestError` for more answers than there may be upstream calls for one request."""
    if answers.number > most_calls:
        raise RequestError(
            f"{answers.number} answers are asked for, and a request may make {most_calls} upstream calls",
            where=answers.field,
            hint="Ask for fewer, or raise `enforcement.max_calls`.",
        )


def gives_several(provider: Provider, request: ModelRequest) -> bool:
    """Return whether the vendor itself returns as many answers as a request without validation asks for."""
    return isinstance(provider, HttpProvider) and provider.api == request.extra_for


async def gathered(ask: Callable[[], Awaitable[T]], count: int, *, together: bool) -> list[T]:
    """Await a number of answers, concurrently or in sequence; the first error cancels the others."""
    if not together:
        return [await ask() for _ in range(count)]
    tasks = [asyncio.ensure_future(ask()) for _ in range(count)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def merged(responses: Sequence[ModelResponse]) -> ModelResponse:
    """Return the answers as the choices of one response, with the usage of all of them."""
    first, *others = responses
    usage = sum([response.usage for response in others], first.usage)
    return first.replace(others=tuple(others), usage=usage)


def choice_chunks(response: ModelResponse) -> Iterator[CompletionChunk]:
    """Yield the chunks of an answer with several choices, one choice after the other; the last one has the usage."""
    choices = (response.replace(others=()), *response.others)
    for index, choice in enumerate(choices):
        usage: Usage | None = response.usage if index == len(choices) - 1 else None
        for chunk in as_chunks(choice):
            shown = chunk if chunk.usage is None else chunk._replace(usage=usage)
            yield shown if index == 0 else shown._replace(choice=index, id=None, model=None)
