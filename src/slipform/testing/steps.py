"""What a fake vendor does with a request: answer, or fail in one of the ways vendors fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from slipform.ir import ModelResponse, Usage

Ending: TypeAlias = Literal["clean", "cut", "reset", "hang"]

_SPENT = Usage(input=7, output=5, total=12)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in the vendor's own shape, streamed when the request asks for it.

    `latency` is the wait before the answer's head, `pace` the wait between pieces, in seconds. After `cut_after` pieces
    the connection ends in the way `ending` says.

    >>> Answer("hello", chunk_size=2).response.text
    'hello'
    """

    content: str | ModelResponse
    chunk_size: int = 4
    latency: float = 0.0
    pace: float = 0.0
    cut_after: int | None = None
    ending: Ending = "clean"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def response(self) -> ModelResponse:
        """The content as a response."""
        if isinstance(self.content, str):
            return ModelResponse(text=self.content, usage=_SPENT)
        return self.content


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes of your own: `pieces` are the body, sent one by one; after `cut_after` of them comes the `ending`."""

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    latency: float = 0.0
    pace: float = 0.0
    cut_after: int | None = None
    ending: Ending = "clean"
    chunked: bool = False
    """Whether the body goes out with chunked framing; else its length is announced."""
    unframed: bool = False
    """Whether the pieces are sent as they are, without status and headers."""


Step: TypeAlias = str | ModelResponse | Answer | Raw


def rate_limited(*, retry_after: float | str | None = None, retry_after_ms: float | None = None) -> Raw:
    """A 429, with the wait in the header that is given."""
    headers = {"content-type": "application/json"}
    if retry_after is not None:
        headers["retry-after"] = f"{retry_after:g}" if isinstance(retry_after, float) else str(retry_after)
    if retry_after_ms is not None:
        headers["retry-after-ms"] = f"{retry_after_ms:g}"
    return Raw((_error("Rate limit reached", "rate_limit_exceeded"),), 429, headers)


def server_error(status: int = 500, message: str = "The server had an error") -> Raw:
    """A failure on the vendor's side: 500, 502, 503, 529 and the like."""
    return Raw((_error(message, "server_error"),), status, {"content-type": "application/json"})


def rejected(message: str, status: int = 400, code: str = "invalid_request_error") -> Raw:
    """A request the vendor does not take, with its own words for why."""
    return Raw((_error(message, code),), status, {"content-type": "application/json"})


def hang() -> Raw:
    """No answer, ever; the connection stays open."""
    return Raw(ending="hang", unframed=True)


def reset() -> Raw:
    """The connection is reset instead of an answer."""
    return Raw(ending="reset", unframed=True)


def hang_up() -> Raw:
    """The connection is closed in good order instead of an answer."""
    return Raw(ending="cut", unframed=True)


def garbage(data: bytes = b"\x00\xff<<not http>>\r\n\r\n") -> Raw:
    """Bytes that are no HTTP."""
    return Raw((data,), ending="cut", unframed=True)


def garbage_body(data: bytes = b"<html>Bad gateway</html>", status: int = 200) -> Raw:
    """Good HTTP around a body that is no answer."""
    return Raw((data,), status, {"content-type": "text/html"})


def refusal(text: str = "I can't help with that.") -> Answer:
    """The model declines."""
    return Answer(ModelResponse(refusal=text, usage=_SPENT))


def truncated(text: str) -> Answer:
    """The model stops at a token limit."""
    return Answer(ModelResponse(text=text, finish="length", usage=_SPENT))


def trickle(text: str, pace: float) -> Answer:
    """The answer comes a character at a time."""
    return Answer(text, chunk_size=1, pace=pace)


def cut_stream(text: str, after: int, ending: Ending = "cut") -> Answer:
    """The connection ends after so many pieces of the answer."""
    return Answer(text, cut_after=after, ending=ending)


def _error(message: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": code, "param": None, "code": code}}).encode()
