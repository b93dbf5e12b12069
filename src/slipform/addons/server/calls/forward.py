"""Forward calls and answers as bytes, without decoding them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import orjson

from slipform.addons.server.calls.parsed_body import write_body
from slipform.addons.server.http_server.asgi import RecordingSend, Send, send_whole
from slipform.addons.server.observability.call_record import CallRecord, Header, cost_text
from slipform.codecs import SPOKEN_BY, ServedRequest
from slipform.codecs.gemini.serve_decode import named_in_path
from slipform.codecs.usage import UsageTail, usage_in, usage_offset
from slipform.engine.planning import model_price
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import ModelRequest, Usage
from slipform.ir.request import CallCount
from slipform.prices import AnyPrice, Price
from slipform.providers.forward import Forwarded, Route
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Upload
from slipform.providers.retry import requested_wait
from slipform.providers.router import Router

_MAX_RETAINED = 64 * 1024


def find_usage(look: Callable[[], Usage | None], size: int) -> Usage | Callable[[], Usage | None] | None:
    """Return `look` itself, or its result where it would retain too many bytes until it is called."""
    return look if size <= _MAX_RETAINED else look()


def _with_cost(api: str, cost: Callable[[Usage], float | None], piece: bytes, tail: UsageTail) -> bytes:
    """Return a piece of a stream with the cost beside its final usage; unchanged if that is split or missing."""
    at = usage_offset(api, piece)
    if at < 0 or _LAST_USAGE.get(api, b"") not in piece:
        return piece
    usage = tail.usage(api)
    if usage is None or usage.input is None or usage.output is None or (price := cost(usage)) is None:
        return piece
    opening = piece.index(b"{", at) + 1
    return b'%b"cost":%b,%b' % (piece[:opening], cost_text(price), piece[opening:])


_LAST_USAGE = {"anthropic": b'"message_delta"'}
"""Text of the event with the final usage, for APIs where earlier events have usage too."""


Annotate: TypeAlias = Callable[[bytes, UsageTail], bytes]
"""Adds something to a piece of a stream, given the pieces so far."""


class ByteRelay:
    """Writes pieces at once as they arrive; wakes its task only where writing has to be awaited."""

    __slots__ = (
        "_annotate",
        "_between_events",
        "_is_finished",
        "_length",
        "_push",
        "_rewrite",
        "_send",
        "_sent",
        "_waiting",
        "tail",
    )

    def __init__(
        self,
        send: Send,
        length: int | None,
        annotate: Annotate | None = None,
        rewrite: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._send = send
        self._annotate = annotate if length is None else None
        self._push = send.push if isinstance(send, RecordingSend) else None
        self._length = length
        """The length of the answer, where it is known."""
        self._rewrite = rewrite
        self._sent = 0
        self._between_events = True
        self._waiting = b""
        """A piece that could not be written at once."""
        self._is_finished = False
        self.tail = UsageTail()
        """The last pieces."""

    def __call__(self, data: bytes) -> bool:
        """Take the next piece, empty at the end; return whether more can be taken now."""
        if not data:
            self._is_finished = True
            if self._rewrite is not None:
                self._waiting = self._rewrite(b"")
            return False
        if self._rewrite is not None and not (data := self._rewrite(data)):
            return True
        self._sent += len(data)
        self.tail.add(data)
        if self._annotate is not None:
            data = self._annotate(data, self.tail)
        self._between_events = data.endswith((b"\n\n", b"\r\n\r\n"))
        if self._sent != self._length and self._push is not None and self._push(data):
            return True
        self._waiting = data
        return False

    async def run(self, answer: Forwarded, first: bytes, fail: Callable[[SlipformError], bytes] | None) -> str:
        """Forward `first` and all later pieces; return "ok" or an error's code. `fail` encodes an error as an event."""
        self(first)
        try:
            while True:
                if self._waiting:
                    data = self._waiting
                    self._waiting = b""
                    await self._body(data, more=self._sent != self._length)
                if self._is_finished and not self._waiting:
                    break
                if not self._is_finished:
                    await answer.on_body(self)
        except UpstreamError as error:
            if fail is not None and self._between_events:
                await self._body(fail(error), more=False)
            # Otherwise the answer stays incomplete for the caller too: the server closes the connection.
            return error.code
        if self._sent != self._length:
            await self._body(b"", more=False)
        return "ok"

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


_NAME = b'"model"'
_MODEL = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
_REQUEST_HEADERS = frozenset({b"anthropic-beta", b"anthropic-version", b"openai-beta"})
"""Headers that are forwarded to the vendor. The caller's credentials are for slipform, not for the vendor."""
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_RESPONSE_HEADERS = frozenset(
    {
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        "request-id",
        "openai-version",
        "openai-processing-ms",
        "content-disposition",
    }
)
_RESPONSE_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")
_NO_BUFFERING = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Headers of streams: no proxy between may buffer them."""
_ERROR_BODY = 1 << 20
_MAX_ROUTES = 256


_PATHS = {"openai-completions": "/completions", "ollama-generate": "/api/generate"}
"""The paths of these APIs at the vendors of `SPOKEN_BY`."""


class ForwardedCall(msgspec.Struct, frozen=True):
    """A forwarded call: its provider, route, body and headers."""

    api: str
    """The API whose format the answer's usage has; empty where it has none."""
    provider: HttpProvider
    route: Route
    body: bytes | Upload
    headers: Mapping[str, str]
    price: AnyPrice | None = None
    """The price of its tokens, where it is known."""


class ForwardTarget(NamedTuple):
    """The provider, route and price of one model's forwarded calls."""

    provider: HttpProvider
    route: Route
    price: AnyPrice | None


class ForwardResult(msgspec.Struct, frozen=True):
    """The result of a forwarded call: the status, "ok" or the code of an error, and the usage.

    The usage is searched on demand: that is faster in batches, and no caller waits for it.
    """

    status: int
    outcome: str
    usage: Usage | Callable[[], Usage | None] | None = None


class ForwardRoutes:
    """Decides which calls are forwarded, and where to; computed once per model.

    >>> ForwardRoutes(Router({}), {}).find("openai-chat", {"model": 1}, b"", path="", headers={}) is None
    True
    """

    def __init__(self, router: Router, prices: Mapping[str, Price]) -> None:
        self._router = router
        self._prices = prices
        self._targets: dict[tuple[str, str, bool], ForwardTarget | None] = {}

    def find(
        self,
        api: str,
        data: Mapping[str, Any],
        body: bytes,
        *,
        path: str,
        headers: Mapping[bytes, bytes],
        is_named_plainly: bool = False,
    ) -> tuple[ServedRequest, ForwardedCall] | None:
        """Return a call without a shape as a forwarded call; None for several models, or a provider of another API.

        `data` was parsed from `body`, and takes precedence where they differ. `is_named_plainly`: see inbound.py.
        """
        if api == "gemini":
            model: Any = named_in_path(path)
            streamed = path.endswith(":streamGenerateContent")
        else:
            model = data.get("model")
            streamed = data.get("stream") is not False if api.startswith("ollama") else data.get("stream") is True
        if not isinstance(model, str) or not model:
            return None
        target = self.resolve(api, model, streamed=streamed)
        if target is None:
            return None
        provider, route, price = target
        sent = renamed(body, data, route.model, plainly=is_named_plainly) if route.in_body else body
        forwarded = ForwardedCall(api, provider, route, sent, vendor_headers(headers), price)
        return _model_and_stream(model, streamed), forwarded

    def resolve(self, api: str, model: str, *, streamed: bool) -> ForwardTarget | None:
        """Return the target of a model's calls; None unless one provider that speaks this API answers."""
        key = (api, model, streamed)
        if key in self._targets:
            return self._targets[key]
        target = None
        if len(self._router.candidates(model)) == 1 and not self._router.has_defaults(model):
            provider, upstream = self._router.resolve(model)
            path = _PATHS.get(api)
            if isinstance(provider, HttpProvider) and provider.api == SPOKEN_BY.get(api, api):
                route = provider.route(upstream, streamed=streamed)
                if route is not None and path is not None:
                    route = replace(route, path=path)
                if route is not None:
                    target = ForwardTarget(provider, route, model_price(self._prices, provider, upstream))
        if len(self._targets) >= _MAX_ROUTES:
            self._targets.clear()
        self._targets[key] = target
        return target


@lru_cache(maxsize=256)
def _model_and_stream(model: str, streamed: bool) -> ServedRequest:
    """Return a request that has only the model and whether it is streamed."""
    return ServedRequest(ModelRequest(model, ()), stream=streamed)


def vendor_headers(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    """Return the caller's headers that are forwarded to the vendor."""
    if _REQUEST_HEADERS.isdisjoint(headers):
        return _NO_HEADERS
    names = sorted(_REQUEST_HEADERS.intersection(headers))
    return {name.decode(): headers[name].decode("latin-1") for name in names}


def renamed(body: bytes, data: Mapping[str, Any], upstream: str, *, plainly: bool) -> bytes:
    """Return the body with the vendor's name of the model, which is added where `data` has none.

    The other bytes stay unchanged where possible. `data` was parsed from `body`, which names the model at most once;
    `plainly`: without escapes, see `is_named_plainly`.

    >>> renamed(b'{"model": "fast"}', {"model": "fast"}, "m", plainly=True), renamed(b"{}", {}, "m", plainly=False)
    (b'{"model": "m"}', b'{"model":"m"}')
    """
    model = data.get("model")
    if model == upstream:
        return body
    if plainly and isinstance(model, str):
        for current, sent in _spellings(model, upstream):
            if current in body:
                return body.replace(current, sent, 1)
        if (match := _MODEL.search(body)) is not None:
            return b'%b"model":%b%b' % (body[: match.start()], _quoted(upstream), body[match.end() :])
    return write_body({**data, "model": upstream})


@lru_cache(maxsize=512)
def _spellings(model: str, upstream: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the field `model` as most clients write it, and the same with the vendor's name."""
    current = _quoted(model)
    renamed_to = _quoted(upstream)
    return tuple([(_NAME + colon + current, _NAME + colon + renamed_to) for colon in (b":", b": ")])


@lru_cache(maxsize=512)
def _quoted(name: str) -> bytes:
    return orjson.dumps(name)


Change: TypeAlias = Callable[[int, bytes], Awaitable[bytes]]
"""Changes the body of a whole answer, given its status."""


class AnswerChanges(msgspec.Struct, frozen=True):
    """The changes to a forwarded answer."""

    fail: Callable[[SlipformError], bytes] | None = None
    """Encodes an error in the middle of a stream; None where the answer is not a stream of events."""
    change: Change | None = None
    """Changes a whole answer."""
    rewrite: Callable[[bytes], bytes] | None = None
    """Changes the pieces of a stream; called with an empty piece at the end."""


UNCHANGED = AnswerChanges()


async def pass_through(
    call: ForwardedCall, calls: CallCount, send: Send, record: CallRecord, changes: AnswerChanges = UNCHANGED
) -> ForwardResult:
    """Forward the call and its answer, counting calls in `calls`.

    An error before the answer's first byte is raised.
    """
    rewrite = changes.rewrite
    answer = await call.provider.forward_async(call.route, call.body, call.headers, calls)
    try:
        status = answer.status
        response_headers = answer.headers
        if status < 400 and not call.route.streamed:
            return await _pass_whole(call, answer, send, record, changes)
        head = [*_forwarded_headers(response_headers), *record.headers()]
        if status >= 400:
            record.upstream_status = status
            record.retry_after = requested_wait(response_headers)
            await _send_error_response(answer, status, send, head)
            return ForwardResult(status, "upstream_error")
        length = response_headers.get("content-length", "")
        is_unchanged = "content-encoding" not in response_headers and rewrite is None
        known_length = None
        if length.isdigit() and is_unchanged:
            known_length = int(length)
        head += _NO_BUFFERING if known_length is None else ((b"content-length", length.encode()),)
        data = await answer.read()
        await send({"type": "http.response.start", "status": status, "headers": head})
        events = "text/event-stream" in response_headers.get("content-type", "")
        annotate = None
        if call.price is not None and events and call.api:
            annotate = partial(_with_cost, call.api, partial(record.add_cost, call.price))
        relay = ByteRelay(send, known_length, annotate, rewrite)
        outcome = await relay.run(answer, data, changes.fail if events else None)
        usage = None
        if call.api:
            usage = find_usage(partial(relay.tail.usage, call.api), relay.tail.size)
        return ForwardResult(status, outcome, usage)
    finally:
        if not answer.is_closed:
            await answer.close()


async def _pass_whole(
    call: ForwardedCall, answer: Forwarded, send: Send, record: CallRecord, changes: AnswerChanges
) -> ForwardResult:
    """Forward a whole answer; it is read completely before its status is sent, so that no incomplete one is sent."""
    status = answer.status
    data = answer.take_whole() or await answer.read_whole()
    if changes.change is not None:
        data = await changes.change(status, data)
    head = _forwarded_headers(answer.headers)
    usage: Usage | Callable[[], Usage | None] | None = None
    if call.price is not None and call.api:
        usage = spent = usage_in(call.api, data)
        if spent is not None:
            record.add_cost(call.price, spent)
    elif call.api:
        usage = find_usage(partial(usage_in, call.api, data), len(data))
    if not (isinstance(send, RecordingSend) and _answer_at_once(send, status, head, data)):
        length = (b"content-length", b"%d" % len(data))
        await send_whole(send, status, [*head, length, *record.headers()], data)
    return ForwardResult(status, "ok", usage)


def _answer_at_once(send: RecordingSend, status: int, head: list[Header], data: bytes) -> bool:
    lines = send.record.lines()
    if head == _PLAIN_HEAD:
        return send.answer(status, (), data, _PLAIN_LINES + lines)
    return send.answer(status, head, data, lines)


_PLAIN_HEAD = [(b"content-type", b"application/json")]
"""The only header of most answers that is passed on."""
_PLAIN_LINES = b"\r\ncontent-type: application/json"


def _forwarded_headers(response_headers: Mapping[str, str]) -> list[Header]:
    headers = [(b"content-type", response_headers.get("content-type", "application/json").encode("latin-1"))]
    names = _forwarded_names(tuple(response_headers))
    if names:
        headers += [(name.encode("latin-1"), response_headers[name].encode("latin-1")) for name in names]
    return headers


@lru_cache(maxsize=64)
def _forwarded_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of a vendor's headers the caller gets to see, beside the type."""
    return tuple([name for name in names if name in _RESPONSE_HEADERS or name.startswith(_RESPONSE_PREFIXES)])


async def _send_error_response(answer: Forwarded, status: int, send: Send, head: list[Header]) -> None:
    body = bytearray()
    try:
        while len(body) < _ERROR_BODY and (data := await answer.read()):
            body += data
    except UpstreamError:
        pass  # the status says enough
    head.append((b"content-length", str(len(body)).encode()))
    await send_whole(send, status, head, bytes(body))
