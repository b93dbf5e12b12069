"""Drive enforced calls: send each request, feed back its response, until the call has an outcome.

Every interface (clients, streams, runner, `wrap`, proxy) uses this module, so that spans, the log line, time limits,
backoff and cancellation are the same for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import msgspec

from slipform import seams
from slipform.enforce.judging import SMALL_ANSWER, is_quickly_judged
from slipform.enforce.live_calls import MOST_FOLLOWED
from slipform.enforce.loop import unjudged
from slipform.enforce.plan import Collector, Outcome, Plan
from slipform.enforce.side_by_side import steps_of
from slipform.enforce.stream import NOTHING_EARLY, EnforcedCall, EnforcedStream, OpenStream, Release
from slipform.engine.tracing import is_observed, observed
from slipform.errors import SlipformError, TruncatedError, UpstreamError, UpstreamTimeout
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, Usage
from slipform.ir.reducer import fold_chunks
from slipform.ir.request import is_heavy
from slipform.ir.response import ChunkSink, PassThroughSink
from slipform.providers.concurrency import off_loop
from slipform.schema import OutputStrategy
from slipform.schema.limits import json_text

Mode: TypeAlias = Literal["auto", "live", "buffer"]
"""`live`: pieces are released as they become certain. `buffer`: everything is released at the end. `auto`: like `live`,
but JSON after more than a short lead-in is released at the end, because the model may still be thinking aloud."""

Batches: TypeAlias = Callable[[ModelRequest, ChunkSink], AsyncGenerator[Sequence[CompletionChunk], None]]
"""Sends a streamed answer to a sink."""

_GRACE = 0.5


class Model(msgspec.Struct, frozen=True):
    """Sends requests, blocking; without `stream`, answers arrive whole and guards cannot stop them early."""

    complete: Callable[[ModelRequest], ModelResponse]
    stream: Callable[[ModelRequest], Iterator[CompletionChunk]] | None = None


class AsyncModel(msgspec.Struct, frozen=True):
    """`Model`, for event loops."""

    complete: Callable[[ModelRequest], Coroutine[Any, Any, ModelResponse]]
    stream: Batches | None = None


def evidence_collector() -> Collector:
    """Return the collector of the answers' evidence."""
    collector: Collector = seams.load(seams.EVIDENCE)
    return collector


def start(
    request: ModelRequest,
    plan: Plan,
    *,
    judged: bool = True,
    streaming: bool = False,
    release: Release = NOTHING_EARLY,
    opened: OpenStream | None = None,
    limit: float | None = None,
) -> EnforcedCall:
    """Return the call, ready for its first answer; `limit` is the time limit that the driver enforces, if any."""
    if plan.evidence is not None and judged:
        steps = evidence_collector().collect(request, plan)
    else:
        steps = steps_of(request, plan) if judged else unjudged(request, plan)
    if plan.budget.seconds is not None or is_observed():
        steps = observed(steps, request, plan, streaming=streaming, limit=limit)
    return EnforcedCall(steps, plan, streaming=streaming, release=release, opened=opened)


def run(request: ModelRequest, plan: Plan, model: Model) -> Outcome:
    """Return the outcome of this request, blocking; raises a failed call's error with the report of its attempts."""
    call = start(request, plan)
    while call.outcome is None:
        if call.request.beside:
            _answer_parts(call, model.complete)
            continue
        try:
            if call.attempt > 1 and plan.backoff_seconds:
                time.sleep(plan.backoff_seconds)
            reader = None if model.stream is None else call.reader()
            if model.stream is None or reader is None:
                response = model.complete(call.request)
            else:
                response = _read(model.stream(call.request), reader)
        except BaseException as error:  # noqa: BLE001 — the steps raise it again, once the log line is written
            call.fail(error)
        else:
            call.answer(response)
    return call.outcome


def _answer_parts(call: EnforcedCall, complete: Callable[[ModelRequest], ModelResponse]) -> None:
    call.reader()
    try:
        response = answers(complete, call.request)
    except BaseException as error:  # noqa: BLE001 — as in `run`
        call.fail(error)
    else:
        call.answer(response)


async def _answer_parts_async(
    call: EnforcedCall, complete: Callable[[ModelRequest], Coroutine[Any, Any, ModelResponse]], limit: float | None
) -> None:
    call.reader()
    try:
        async with contextlib.nullcontext() if limit is None else _time_limit(limit):
            response = await answers_async(complete, call.request)
    except BaseException as error:  # noqa: BLE001 — as in `run`
        call.fail(error)
    else:
        await off_loop(call.answer, response)


def answers(complete: Callable[[ModelRequest], ModelResponse], request: ModelRequest) -> ModelResponse:
    """Send the requests `beside` a request at the same time, blocking, and return their answers and errors as one."""

    def answer(each: ModelRequest) -> ModelResponse | SlipformError:
        try:
            return answers(complete, each) if each.beside else complete(each)
        except SlipformError as error:
            return error

    with ThreadPoolExecutor(len(request.beside)) as pool:
        return _beside(tuple(pool.map(answer, request.beside)))


async def answers_async(
    complete: Callable[[ModelRequest], Coroutine[Any, Any, ModelResponse]], request: ModelRequest
) -> ModelResponse:
    """`answers`, for event loops."""

    async def answer(each: ModelRequest) -> ModelResponse | SlipformError:
        try:
            return await (answers_async(complete, each) if each.beside else complete(each))
        except SlipformError as error:
            return error

    return _beside(tuple(await asyncio.gather(*map(answer, request.beside))))


def _beside(answers: tuple[ModelResponse | SlipformError, ...]) -> ModelResponse:
    usage = sum((each.usage for each in answers if isinstance(each, ModelResponse)), Usage())
    return ModelResponse(usage=usage, beside=answers)


async def _read_whole_async(source: Batches, request: ModelRequest) -> ModelResponse:
    batches = source(request, PassThroughSink())
    try:
        return fold_chunks([chunk async for batch in batches for chunk in batch])
    finally:
        await _close(batches)


def _is_heavy(request: ModelRequest, plan: Plan) -> tuple[bool, bool]:
    """Return whether it takes long to start the call or to judge its answer; a plan that was used before is ready."""
    if plan.evidence is not None:
        return True, True
    heavy = is_heavy(request) if plan.heavy is None else plan.heavy
    return heavy, heavy and request.frame is None


def _takes_long(response: ModelResponse, request: ModelRequest, plan: Plan) -> bool:
    """Return whether an answer takes long to validate: mostly only the schemas of tools are that large."""
    if plan.evidence is not None or response.tool_calls or plan.must_call:
        return True
    return request.response_format is not None and is_heavy(ModelRequest("", (), request.response_format))


async def _judge(call: EnforcedCall, response: ModelResponse, request: ModelRequest, plan: Plan, heavy: bool) -> None:
    """Judge an answer: on the event loop only if that is quick."""
    if (heavy and _takes_long(response, request, plan)) or not is_quickly_judged(response, plan.standard):
        await off_loop(call.answer, response)
    else:
        call.answer(response)


def _count_wait(call: EnforcedCall, sent: float) -> None:
    """Add the time since the request was sent to the vendor's time."""
    calls = call.request.calls
    if calls is not None:
        calls.waited_seconds += time.monotonic() - sent


async def run_async(
    request: ModelRequest,
    plan: Plan,
    model: AsyncModel,
    *,
    judged: bool = True,
    streaming: bool = False,
    limit: float | None = None,
) -> Outcome:
    """Do the same as `run` on an event loop.

    Large answers and schemas are judged in a thread; each request may take `limit` seconds.
    """
    heavy, heavy_start = _is_heavy(request, plan)
    begin = functools.partial(start, request, plan, judged=judged, streaming=streaming, limit=limit)
    call = await off_loop(begin) if heavy_start else begin()
    while call.outcome is None:
        sent = time.monotonic()
        if call.request.beside:
            await _answer_parts_async(call, model.complete, limit)
            _count_wait(call, sent)
            continue
        try:
            if call.attempt > 1 and plan.backoff_seconds:
                await asyncio.sleep(plan.backoff_seconds)
            reader = None
            if model.stream is not None:
                reader = await off_loop(call.reader) if heavy and plan.guard.watches else call.reader()
            answer = _ask(call.request, model, reader)
            response = await (answer if limit is None else _within(limit, answer))
        except BaseException as error:  # noqa: BLE001 — as in `run`
            _count_wait(call, sent)
            call.fail(error)
            continue
        _count_wait(call, sent)
        if judged and (heavy or not _is_small(response)):
            await _judge(call, response, request, plan, heavy)
        else:
            call.answer(response)
    return call.outcome


def _ask(request: ModelRequest, model: AsyncModel, reader: EnforcedStream | None) -> Coroutine[Any, Any, ModelResponse]:
    """Send a request for a whole answer, or for the pieces of one that the reader looks at."""
    if model.stream is None or reader is None:
        return model.complete(request)
    return _read_async(model.stream(request, reader), reader)


async def _within(seconds: float, answer: Coroutine[Any, Any, ModelResponse]) -> ModelResponse:
    async with _time_limit(seconds):
        return await answer


def _is_small(response: ModelResponse) -> bool:
    """Return whether an answer is judged in no time, whatever is wrong with it."""
    return len(response.text) < SMALL_ANSWER and not response.tool_calls


async def run_stream(
    request: ModelRequest,
    build_plan: Callable[[], Awaitable[Plan]],
    source: Batches,
    mode: Mode = "auto",
    opened: OpenStream | None = None,
) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
    """Yield chunks of the answer as they become certain, then the outcome, then the last chunks.

    An answer that can no longer become valid ends the call to the model at once. Text after the JSON is read to its
    end, because it may supersede the JSON. The request is then retried behind the open stream, as it is after a stream
    that broke off. Released text is never retracted: an answer that does not begin with it is invalid.

    Chunks that the sink of `opened` accepts are not yielded. With the same `opened`, another model continues where a
    failed one stopped.
    """
    plan = await build_plan()
    heavy, heavy_start = _is_heavy(request, plan)
    release = _release(request, plan, mode)
    begin = functools.partial(start, request, plan, streaming=True, release=release, opened=opened)
    call = await off_loop(begin) if heavy_start else begin()
    while call.outcome is None:
        if call.request.beside:
            await _answer_parts_async(call, functools.partial(_read_whole_async, source), None)
            continue
        try:
            reader = await off_loop(call.read) if heavy else call.read()
            batches = source(call.request, reader)
            try:
                async for certain in batches:
                    if certain:
                        yield certain
                    if reader.stopped:
                        break
            except (TruncatedError, UpstreamError):
                # Breaking off after the last bracket loses nothing.
                if not reader.complete:
                    raise
                reader.break_off()
            finally:
                await _close(batches)
        except BaseException as error:  # noqa: BLE001 — as in `run`; also when the reader of the stream has been released
            call.fail(error)
        else:
            response = reader.response()
            if _is_small(response) and not heavy:
                call.answer(response)
            else:
                await _judge(call, response, request, plan, heavy)
    closing, outcome = call.last()
    yield outcome
    yield closing


def run_stream_blocking(
    request: ModelRequest,
    plan: Plan,
    source: Callable[[ModelRequest], Iterator[CompletionChunk]],
    mode: Mode = "auto",
    opened: OpenStream | None = None,
) -> Generator[CompletionChunk | Outcome, None, None]:
    """Do the same as `run_stream`, blocking and chunk by chunk."""
    call = start(request, plan, streaming=True, release=_release(request, plan, mode), opened=opened)
    while call.outcome is None:
        if call.request.beside:
            _answer_parts(call, lambda each: fold_chunks(source(each)))
            continue
        try:
            reader = call.read()
            chunks = source(call.request)
            try:
                for chunk in chunks:
                    yield from reader.push((chunk,)) or ()
                    if reader.stopped:
                        break
            except (TruncatedError, UpstreamError):
                if not reader.complete:
                    raise
                reader.break_off()
            finally:
                if isinstance(chunks, Generator):
                    chunks.close()
        except BaseException as error:  # noqa: BLE001 — as in `run_stream`
            call.fail(error)
        else:
            call.answer(reader.response())
    closing, outcome = call.last()
    yield outcome
    yield from closing


def _release(request: ModelRequest, plan: Plan, mode: Mode) -> Release:
    """Return which parts of a streamed answer are released before its end."""
    evidence = plan.evidence
    if mode == "buffer" or (evidence is not None and (evidence.samples or evidence.require_grounded)):
        return NOTHING_EARLY
    response_format = request.response_format
    size = 0
    if response_format is not None:
        spec = response_format.json_schema
        size = len(spec.text or json_text(spec.schema))
    answer = plan.schema is not None and plan.on_failure != "raw" and size <= MOST_FOLLOWED
    if mode == "auto" and (plan.validators or (plan.guard.watches and plan.strategy is OutputStrategy.PROMPTED)):
        answer = False  # only the caller's own check of the whole answer decides whether it is accepted
    return Release(answer or bool(request.tools), answer, after_prose=mode == "live")


def _read(chunks: Iterator[CompletionChunk], reader: EnforcedStream) -> ModelResponse:
    """Return the answer, read piece by piece and only as far as it is needed."""
    try:
        for chunk in chunks:
            reader.push((chunk,))
            if reader.stopped:
                break
    finally:
        if isinstance(chunks, Generator):
            chunks.close()
    return reader.response()


async def _read_async(
    batches: AsyncGenerator[Sequence[CompletionChunk], None], reader: EnforcedStream
) -> ModelResponse:
    try:
        async for _ in batches:
            if reader.stopped:
                break
    finally:
        await _close(batches)
    return reader.response()


async def _close(batches: AsyncGenerator[Sequence[CompletionChunk], None]) -> None:
    """Close the connection of an answer that was not read to its end."""
    with contextlib.suppress(SlipformError):
        await batches.aclose()


@contextlib.asynccontextmanager
async def _time_limit(seconds: float) -> AsyncIterator[None]:
    """Raise `UpstreamTimeout` if the block takes longer; a transport's own limit fires first."""
    try:
        async with asyncio.timeout(seconds + _GRACE):
            yield
    except TimeoutError as error:
        raise UpstreamTimeout(
            f"No complete answer within {seconds:g} s",
            hint="Raise `runtime.timeout_seconds` if the model needs longer.",
        ) from error
