"""Serve OpenAI's Completions: one prompt, which becomes one user turn, and a text.

The IR never calls a provider through this API; requests without a schema are forwarded to those that have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.codec import ServedApi, ServedRequest, Stamp
from slipform.codecs.openai_chat.serve_decode import read_format, read_limit
from slipform.codecs.openai_chat.serve_encode import encode_usage
from slipform.codecs.request_fields import SAMPLING, Fields, dumps, read_body
from slipform.codecs.vendor_errors import openai_error
from slipform.errors import RequestError, SlipformError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Usage

NAME = "openai-completions"
_SAMPLING = {name: name for name in SAMPLING}
_UNKNOWN = ("suffix", "echo", "logprobs")
"""Fields that only a model without turns can support."""


def _read(body: bytes | Mapping[str, Any], _path: str) -> ServedRequest:
    data = Fields(read_body(body))
    model = data.text("model")
    shape = None
    json_mode = False
    unread: dict[str, Any] = {}
    response_format = data.get("response_format")
    if response_format is not None:
        shape, json_mode, unread = read_format(Fields(response_format, "response_format"))
    for name in _UNKNOWN:
        if data.get(name) not in (None, False, 0):
            raise RequestError(
                f"`{name}` is supported only where the provider has this API and the request has no schema", where=name
            )
    for name in ("n", "best_of"):
        if data.get(name) not in (None, 1):
            raise RequestError("A request gets one answer", where=name, hint="Leave it out, or ask again.")
    options = data.optional("stream_options")
    usage = options.get("include_usage") is True
    request = ModelRequest(
        model,
        (Message.user(_prompt(data)),),
        shape,
        json_mode,
        sampling=data.sampling(_SAMPLING),
        max_tokens=read_limit(data),
        extra_for=NAME,
    )
    stream = data.flag("stream") is True
    extra = data.rest()
    if unread:
        extra["response_format"] = unread
    return ServedRequest(request.replace(extra=extra) if extra else request, stream, {"include_usage": usage})


def _prompt(data: Fields) -> str:
    prompt = data.data.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise RequestError("Expected one prompt, as text", where="prompt", hint="Send several in several requests.")
    data.get("prompt")
    return prompt


def _finish(finish: str | None) -> str:
    if finish in ("length", "content_filter"):
        return finish
    return "stop"


def _answer(response: ModelResponse, served: ServedRequest, stamp: Stamp) -> dict[str, Any]:
    text = response.text or response.refusal or ""
    answer: dict[str, Any] = {
        "id": response.id or f"cmpl-{stamp.new_id()}",
        "object": "text_completion",
        "created": stamp.seconds(),
        "model": response.model or served.request.model,
        "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": _finish(response.finish)}],
    }
    usage = encode_usage(response.usage)
    if usage is None:
        return answer
    return {**answer, "usage": usage}


class CompletionsStreamEncoder:
    """Writes the events of one streamed text."""

    def __init__(self, served: ServedRequest, stamp: Stamp) -> None:
        self.extra: Mapping[str, Any] = {}
        self._model = served.request.model
        self._usage_wanted = served.options.get("include_usage") is True
        self._created = stamp.seconds()
        self._id = f"cmpl-{stamp.new_id()}"
        self._usage: Usage | None = None
        self._ended = False

    def feed(self, chunk: CompletionChunk) -> bytes:
        """Return the bytes for one chunk."""
        if chunk.usage is not None:
            self._usage = chunk.usage
        text = chunk.text or chunk.refusal
        finish = None
        if chunk.finish is not None and not self._ended:
            self._ended = True
            finish = _finish(chunk.finish)
        if text or finish:
            return self._event(text, finish)
        return b""

    def feed_text(self, text: str, call: int = -1) -> bytes:
        """Return the bytes for one piece of text; this API has no calls."""
        if text and call < 0:
            return self._event(text)
        return b""

    def finish(self) -> bytes:
        """Return the last events and `[DONE]`."""
        out = b"" if self._ended else self._event("", "stop")
        last = dict(self.extra)
        if self._usage_wanted:
            last = {"usage": encode_usage(self._usage or Usage()), **last}
        if last:
            out += self._data({"choices": [], **last})
        return out + b"data: [DONE]\n\n"

    def fail(self, error: SlipformError) -> bytes:
        """Return an error after the stream has begun."""
        return b"data: " + dumps(openai_error(error)) + b"\n\n"

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return b": keep-alive\n\n"

    def _event(self, text: str, finish: str | None = None) -> bytes:
        return self._data({"choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}]})

    def _data(self, fields: Mapping[str, Any]) -> bytes:
        head = {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model}
        return b"data: " + dumps({**head, **fields}) + b"\n\n"


API = ServedApi(NAME, read=_read, answer=_answer, events=CompletionsStreamEncoder, error=openai_error)
