"""Run one call with its retries, as a generator of effects.

The drivers in `http.py` perform these effects, one blocking, one async; so retries, downgrades, time limits and errors
are implemented once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from slipform.codecs import StreamDecoder
from slipform.errors import SlipformError, TruncatedError, UpstreamError, UpstreamTimeout
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, ModelWarning
from slipform.ir.request import CallCount, ModelNote
from slipform.ir.response import ChunkSink
from slipform.providers import retry
from slipform.providers.base import as_chunks
from slipform.providers.endpoint import Endpoint, PreparedCall, logger
from slipform.providers.network.transport import ByteStream, HttpRequest, Limit, Reason, Timeouts, TransportFault
from slipform.schema import OutputStrategy


class OpenEffect(msgspec.Struct, frozen=True):
    """Send the request and return the response's head; these words are masked in the whole response."""

    request: HttpRequest
    masked_words: tuple[bytes, ...] = ()

    def __repr__(self) -> str:  # the words are keys
        return f"OpenEffect({self.request!r})"


class FetchEffect(msgspec.Struct, frozen=True):
    """Send the request and return the response's head and, if its status is a success, its whole body.

    Secrets are masked in the body, and in the head too unless the call succeeded.
    """

    request: HttpRequest
    masked_words: tuple[bytes, ...] = ()

    def __repr__(self) -> str:  # the words are keys
        return f"FetchEffect({self.request!r})"


class ReadEffect(NamedTuple):
    """Yield these chunks to the caller, then return the next bytes of the response's body; empty at its end.

    If `texts` finds texts in the bytes, each of them is a chunk with nothing else that is new: the driver may forward
    the texts instead, and return only with the bytes after them, if there are any.
    """

    chunks: Sequence[CompletionChunk] = ()
    texts: Callable[[bytes], tuple[list[str], int, bytes] | None] | None = None


class SleepEffect(msgspec.Struct, frozen=True):
    """Return after this many seconds."""

    seconds: float


class FinishEffect(msgspec.Struct, frozen=True):
    """End the call: give this answer, or the last chunks of a streamed one, to the caller."""

    response: ModelResponse
    chunks: Sequence[CompletionChunk] = ()


Effect: TypeAlias = OpenEffect | FetchEffect | ReadEffect | SleepEffect | FinishEffect
CallSteps: TypeAlias = Generator[Effect, Any, None]
_ERROR_BODY = 1 << 20
VENDOR_RETRIED = "vendor_retried"
"""The code of the note that a call was retried after a pause."""
_REFUSING = frozenset({400, 404, 422, 501})
"""Statuses with which vendors refuse a feature of a request; some have no endpoint for it (404)."""
_READ = ReadEffect()
_STREAMED = ModelResponse()


class FirstTry(NamedTuple):
    """A first attempt that the driver has made already, and its start time."""

    prepared: PreparedCall
    began: float


def answer(endpoint: Endpoint, request: ModelRequest, first: FirstTry | None = None) -> CallSteps:
    """Yield the steps of a whole answer; after a failed first attempt, the first effect is that attempt."""
    prepared, head, body = yield from _exchange(endpoint, request, streamed=False, first=first)
    yield FinishEffect(read_answer(endpoint, request, prepared, head.headers, body))


def read_answer(
    endpoint: Endpoint, request: ModelRequest, prepared: PreparedCall, headers: Mapping[str, str], body: bytes
) -> ModelResponse:
    """Decode a whole answer; raises its error, with the call it belongs to."""
    try:
        response = prepared.codec.decode_response(body, prepared.encoded)
    except SlipformError as error:
        prepared.annotate(error, headers)
        raise
    if _ignores_schema(prepared, response.text) and response.finish == "stop" and not response.refusal:
        endpoint.record_ignored_schema(request.replace(model=prepared.model), prepared)
    request_warnings = prepared.warnings
    if request_warnings and response.warnings[: len(request_warnings)] != request_warnings:  # codecs set these, too
        response = response.replace(warnings=_merge(request_warnings, response.warnings))
    return response


def stream(endpoint: Endpoint, request: ModelRequest) -> CallSteps:
    """Yield the steps of a streamed answer. Nothing is retried after its head has arrived."""
    prepared, head, _ = yield from _exchange(endpoint, request, streamed=True)
    try:
        if head.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
            # The server ignored `stream`, or reports an error.
            body = yield from _read_whole(prepared)
            last = _with_warnings(_decode_unstreamed(prepared, body), prepared.warnings)
        else:
            last = yield from _pieces(prepared, endpoint, request)
    except SlipformError as error:
        broken = _as_upstream_error(error)
        prepared.annotate(broken, head.headers)
        if broken is not error:
            raise broken from error
        raise
    yield FinishEffect(_STREAMED, last)


def _as_upstream_error(error: SlipformError) -> SlipformError:
    """Return the error of a stream whose head had arrived: one that ended too early is its vendor's failure."""
    if isinstance(error, TruncatedError) and error.details.get("category") == "cut":
        error = UpstreamError(error.message, where=error.where, hint=error.hint, details=error.details)
    error.details.setdefault("phase", "body")
    return error


def _decode_unstreamed(prepared: PreparedCall, body: bytes) -> Sequence[CompletionChunk]:
    if body.lstrip()[:1] in (b"{", b"["):
        return list(as_chunks(prepared.codec.decode_response(body, prepared.encoded)))
    decoder = prepared.codec.decode_stream(prepared.encoded)  # a stream with a wrong content type
    return [*decoder.feed(body), *decoder.finish()]


def _ignores_schema(prepared: PreparedCall, text: str) -> bool:
    """Whether a text on the native channel does not begin as an object or list, although the schema requires one."""
    context = prepared.encoded.context
    if context is None or context.strategy is not OutputStrategy.NATIVE:
        return False
    begin = text.lstrip()[:1]
    return bool(begin) and begin not in "{[" and context.schema.get("type") in ("object", "array")


def _pieces(
    prepared: PreparedCall, endpoint: Endpoint, request: ModelRequest
) -> Generator[Effect, Any, Sequence[CompletionChunk]]:
    """Read the stream to its end; return the last chunks."""
    decoder = prepared.codec.decode_stream(prepared.encoded)
    warnings = prepared.warnings
    has_text = False
    ignores_schema = False
    chunks: Sequence[CompletionChunk] = ()
    try:
        while True:
            try:
                data = yield ReadEffect(chunks, decoder.texts)
            except TransportFault as fault:
                if fault.limit is not None or fault.reason != "broken":
                    raise stream_error(prepared, fault) from fault
                return _with_warnings(_finish_cut(decoder, fault), warnings)
            if not data:
                return _with_warnings(decoder.finish(), warnings)
            chunks = decoder.feed(data)
            if not has_text and (first := next((chunk.text for chunk in chunks if chunk.text.strip()), "")):
                has_text = True
                ignores_schema = not request.tools and _ignores_schema(prepared, first)  # text may precede a call
            if ignores_schema and any(chunk.finish not in (None, "stop") or chunk.refusal for chunk in chunks):
                ignores_schema = False  # a refusal is prose, whatever the schema
            if warnings and chunks:
                chunks = _with_warnings(chunks, warnings)
                warnings = ()
    finally:
        if ignores_schema:
            endpoint.record_ignored_schema(request, prepared)


def _finish_cut(decoder: StreamDecoder, fault: TransportFault) -> Sequence[CompletionChunk]:
    """Ignore a cut after the stream's own terminator; before it, let the decoder report the missing part."""
    try:
        return decoder.finish()
    except SlipformError as error:
        error.details.setdefault("cause", fault.message)
        raise error from fault


def _exchange(
    endpoint: Endpoint, request: ModelRequest, *, streamed: bool, first: FirstTry | None = None
) -> Generator[Effect, Any, tuple[PreparedCall, ByteStream, bytes]]:
    """Send until the vendor answers with success; raise the last error if it does not.

    A request that the vendor refuses for an unsupported feature is resent at once without that feature; a fault or a
    busy vendor is retried after a pause. The body of a stream has not been read yet.
    """
    started = endpoint.clock() if first is None else first.began
    attempt = 0
    steps_down = 0
    waits: list[ModelWarning] = []
    waited = 0.0
    while True:
        if first is None:
            prepared = endpoint.prepare(request, streamed=streamed)
        else:
            prepared = first.prepared
            first = None
        total = prepared.timeouts.total
        retry_after = None
        deadline = None if total is None else started + total
        http_request = prepared.http(time_left(endpoint, prepared, deadline if attempt else None))
        head: ByteStream
        body = b""
        try:
            if streamed:
                head = yield OpenEffect(http_request, prepared.authorised.masked_words)
            else:
                head, body = yield FetchEffect(http_request, prepared.authorised.masked_words)
        except TransportFault as fault:
            error = stream_error(prepared, fault)
            if not retry.after_fault(fault):
                raise error from fault
        else:
            if 200 <= head.status < 300:
                return _with_notes(prepared, waits), head, body
            error = yield from _refusal(prepared, head)
            may_step_down = head.status in _REFUSING and steps_down < retry.MAX_STEPS_DOWN
            if may_step_down and endpoint.downgrade_after(error, request, prepared):
                steps_down += 1
                count_repeat(request.calls, f"{endpoint.name}/{request.model}", error)
                continue
            if not retry.after_status(head.status, head.headers, error):
                raise error
            retry_after = retry.requested_wait(head.headers, error)
        pause = endpoint.retries.pause(attempt, retry_after)
        if pause is None or (deadline is not None and endpoint.clock() + pause >= deadline):
            _describe_tries(error, attempt + 1, waited, waits)
            raise error
        count_repeat(request.calls, f"{endpoint.name}/{request.model}", error)
        attempt += 1
        waits.append(_wait_note(error, pause))
        waited += pause
        logger.info(
            "%s: request failed, error=%s, retry=%d, seconds=%.2f", error.where, type(error).__name__, attempt, pause
        )
        yield SleepEffect(pause)


def _describe_tries(error: UpstreamError, attempts: int, waited: float, waits: Sequence[ModelWarning]) -> None:
    error.details["attempts"] = attempts
    error.details["waited_seconds"] = round(waited, 2)
    if waits:
        error.details["retries"] = [note.message for note in waits]


def _wait_note(error: UpstreamError, seconds: float) -> ModelNote:
    cause = error.message.rstrip(".")
    return ModelNote(VENDOR_RETRIED, f"{cause}; slipform waited {seconds:.2f} s and tried again.")


def _with_notes(prepared: PreparedCall, notes: Sequence[ModelWarning]) -> PreparedCall:
    if notes:
        return msgspec.structs.replace(prepared, warnings=(*prepared.warnings, *notes))
    return prepared


def count_repeat(calls: CallCount | None, model: str, error: UpstreamError) -> None:
    """Count the retry of a call after this error; raises the error if that exceeds the number of calls."""
    if calls is None:
        return
    if calls.is_spent:
        calls.explain_limit(error)
        raise error
    calls.add(model)


def _refusal(prepared: PreparedCall, head: ByteStream) -> Generator[Effect, Any, UpstreamError]:
    body = bytearray()
    try:
        while len(body) < _ERROR_BODY:
            data = yield _READ
            if not data:
                break
            body += data
    except TransportFault:
        pass  # the status is enough
    if head.status < 400:
        error = UpstreamError(
            f"The address answers with status {head.status} instead of an answer",
            hint="Redirects are not followed, so that keys stay where they belong: set the final `base_url`.",
            status=head.status,
        )
    else:
        error = prepared.codec.decode_error(head.status, head.headers, bytes(body))
    if error.status is None:
        error.status = head.status
    if error.retry_after is None:
        error.retry_after = retry.requested_wait(head.headers)
    prepared.annotate(error, head.headers)
    return error


def _read_whole(prepared: PreparedCall) -> Generator[Effect, Any, bytes]:
    parts: list[bytes] = []
    try:
        while data := (yield _READ):
            parts.append(data)
    except TransportFault as fault:
        raise stream_error(prepared, fault) from fault
    return b"".join(parts)


def time_left(endpoint: Endpoint, prepared: PreparedCall, deadline: float | None) -> Timeouts:
    """Return the time limits of the first attempt, or of a retry, which has only the remaining time."""
    limits = prepared.timeouts
    if deadline is None:
        return limits
    return Timeouts(limits.connect, limits.first_byte, limits.between_chunks, max(0.001, deadline - endpoint.clock()))


_WHAT_RAN_OUT: dict[Limit, str] = {
    "connect": "No connection within {0:g} s",
    "first_byte": "No answer within {0:g} s",
    "between_chunks": "The answer stopped for {0:g} s",
    "total": "No complete answer within {0:g} s",
}
_HINTS: dict[Reason, tuple[str, str]] = {
    "setup": (
        "Cannot connect",
        "Check the provider's `base_url`, `ca_file` and `proxy`, and the proxy variables of the environment.",
    ),
    "malformed": (
        "The vendor's answer is malformed",
        "The vendor, or a proxy or load balancer before it, breaks the rules of HTTP. Its answer is not used.",
    ),
    "too_large": (
        "The answer is too large",
        "Raise `max_answer_bytes` of the provider if such answers are expected.",
    ),
}


_LIMIT_HINTS: dict[Limit, str] = {
    "connect": "Check `providers.{name}.base_url`, the proxy settings and the network.",
    "first_byte": "Ask again, stream, or ask another model; in Python `Timeouts(first_byte=…)` waits longer.",
    "between_chunks": "Retry, or use another model; in Python `Timeouts(between_chunks=…)` waits longer.",
    "total": "Raise `providers.{name}.timeout_seconds`, or `runtime.timeout_seconds` for all providers.",
}

_START_HINTS = {
    "ollama": "Is Ollama running? Start it with `ollama serve`, or check `providers.ollama.base_url`.",
}
"""The hint for a local server that cannot be reached, by provider."""


def stream_error(prepared: PreparedCall, fault: TransportFault) -> UpstreamError:
    """Return the error for the caller about a fault of the network."""
    details = {"phase": fault.phase}
    if fault.limit is not None:
        seconds = getattr(prepared.timeouts, fault.limit) or 0.0
        error: UpstreamError = UpstreamTimeout(
            _WHAT_RAN_OUT[fault.limit].format(round(seconds, 3)),
            hint=_LIMIT_HINTS[fault.limit].format(name=prepared.provider),
            details={**details, "limit": fault.limit},
        )
    elif fault.reason in _HINTS:
        what, hint = _HINTS[fault.reason]
        error = UpstreamError(f"{what}: {fault.message}", hint=hint, details={**details, "reason": fault.reason})
    elif fault.unsent:
        hint = _START_HINTS.get(prepared.provider, "Check `base_url` and the network.")
        error = UpstreamError(f"Cannot connect: {fault.message}", hint=hint, details=details)
    else:
        error = UpstreamError(
            f"The connection broke: {fault.message}",
            hint="Retry, or use another model."
            if fault.phase == "body"
            else "The vendor may have acted on the request: ask again where that does no harm, or ask another model.",
            details=details,
        )
    prepared.annotate(error)
    return error


def _merge(ours: Sequence[ModelWarning], theirs: Sequence[ModelWarning]) -> tuple[ModelWarning, ...]:
    return tuple(dict.fromkeys((*ours, *theirs)))


def _with_warnings(chunks: Sequence[CompletionChunk], warnings: Sequence[ModelWarning]) -> Sequence[CompletionChunk]:
    """Yield the chunks, with the call's warnings on the first of them."""
    if not warnings or not chunks or chunks[0].warnings[: len(warnings)] == warnings:
        return chunks
    first, *rest = chunks
    return [first._replace(warnings=_merge(warnings, first.warnings)), *rest]


class ChunkFeeder:
    """Feeds the received bytes to the steps of a call, and the resulting chunks to the sink.

    Most pieces contain only more text. If the steps say how to read it, it goes directly to the sink, and neither the
    steps nor chunks are needed.
    """

    __slots__ = ("_read_texts", "_sink", "_steps", "effect", "rest", "undelivered")

    def __init__(self, steps: CallSteps, read: ReadEffect, sink: ChunkSink) -> None:
        self._steps = steps
        self._sink = sink
        self._read_texts = read.texts
        self.effect: Effect = read
        self.undelivered: Sequence[CompletionChunk] | None = None
        """The chunks that the sink did not accept."""
        self.rest = b""
        """The bytes to be fed after those."""

    def feed(self, data: bytes) -> bool:
        """Feed these bytes; return whether more are needed."""
        if self._read_texts is not None and (plain := self._read_texts(data)) is not None:
            texts, call, data = plain
            self.undelivered = self._sink.push_texts(texts, call)
            if self.undelivered is not None:
                self.rest = data
                return False
            if not data:
                return True
        self.effect = effect = self._steps.send(data)
        if not isinstance(effect, ReadEffect):
            return False
        self._read_texts = effect.texts
        if effect.chunks:
            self.undelivered = self._sink.push(effect.chunks)
        return self.undelivered is None
