"""Answer calls through the engine, whole or streamed, with the first of the requested models that succeeds."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

import msgspec

from slipform.addons.server.admission.spending import CallSpending, Rewrite, metered
from slipform.addons.server.calls.choices import (
    check_count,
    choice_chunks,
    gathered,
    gives_several,
    merged,
    requested_answers,
)
from slipform.addons.server.calls.forward import AnswerChanges, ForwardedCall, ForwardResult, pass_through
from slipform.addons.server.calls.frames import BoundCall
from slipform.addons.server.calls.inbound import Inbound
from slipform.addons.server.calls.incomplete import closing_chunk, incomplete_answer
from slipform.addons.server.calls.replaced_ids import replaced_in
from slipform.addons.server.calls.request_switches import FIELD
from slipform.addons.server.calls.resources import AnswerMarks, ResponseMarks
from slipform.addons.server.calls.stream_writer import StreamWriter, TurnFolder, log_warnings
from slipform.addons.server.http_server.asgi import JSON_LINES, RecordingSend, send_bytes
from slipform.addons.server.observability.call_record import CallRecord
from slipform.enforce import Outcome, Report
from slipform.enforce.options import Options, override
from slipform.enforce.stream import OpenStream, StreamWatch
from slipform.engine import tracing
from slipform.engine.drive import AsyncModel, run_async, run_stream
from slipform.engine.fallback import FallbackList, joined, run_first_async
from slipform.engine.planning import ModelRoute
from slipform.errors import RefusalError, RequestError, SlipformError, UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.messages import PlainTurns
from slipform.ir.request import CallCount
from slipform.ir.response import ChunkSink
from slipform.providers.base import as_chunks
from slipform.providers.router import Router
from slipform.schema import OutputStrategy

_log = logging.getLogger("slipform.server")


async def answer(
    call: Inbound,
    models: str | Sequence[str],
    router: Router,
    options: Options,
    send: RecordingSend,
    spending: CallSpending | None = None,
) -> None:
    """Write the answer of the first of these models that succeeds.

    An error before the first byte is raised; a later one is written into the stream.
    """
    record = call.record
    record.report_asked = call.switches.report
    record.calls = CallCount(options.budget.calls)
    options = _options(call, options)
    model_request = call.served.request
    fallback = FallbackList(router, models, record.calls, model_request.frame)
    if call.turns is not None and _may_have_calls(model_request):
        model_request = await call.turns.restored(model_request)
    answers = requested_answers(model_request)
    stream = _stream_of(call, send)

    async def ask(route: ModelRoute) -> None:
        _record_route(record, route, fallback.before.fallbacks)
        request = fallback.for_model(model_request, route)
        if call.adopted is not None:
            request = _with_adopted_strategy(request, route)
        model = route.awaited if spending is None else metered(route, spending)
        if answers.number > 1 and (record.enforced or not gives_several(route.provider, request)):
            check_count(answers, options.budget.calls)
            single = requested_answers(request).single
            ask_once = partial(_choice, call, single, route, model, options)
            choices = await gathered(ask_once, answers.number, together=spending is None)
            await _write_choices(call, choices, send, stream)
            return
        if stream is not None:
            work = stream.write(request, route, model, options)
        else:
            work = _whole(call, request, route, model, options, send)
        if not record.enforced:
            work = _trace_unenforced(call, work)
        await work

    def may_ask_next() -> bool:
        """Return whether the model may change: after the first byte, only enforced streams can be continued."""
        is_enforced_stream = stream is not None and record.enforced
        return not record.status or is_enforced_stream

    try:
        await run_first_async(fallback, ask, may_ask_next)
    except Exception as error:
        incomplete = _incomplete_answer(call, error, options)
        if stream is not None and stream.has_begun and isinstance(error, RefusalError):
            incomplete = None  # a refusal cannot complete the part of an answer that has been released
        if incomplete is not None:
            await _write_incomplete(call, incomplete, send, stream)
        elif stream is not None and stream.writer.started:
            await stream.fail(error)
        else:
            raise
    else:
        _add_attempts(record, fallback.before)
    finally:
        if stream is not None:
            stream.writer.close()


def _add_attempts(record: CallRecord, before: Report) -> None:
    """Add the attempts of failed models to the record; the caller's report has only those of the answering model."""
    if before.attempts or before.fallback_errors:
        record.set_report(joined(before, record.report))


async def answer_bound(call: Inbound, bound: BoundCall, options: Options, send: RecordingSend) -> None:
    """Write the validated answer of the model that a frame is bound to: `answer` for calls with nothing to decide."""
    request = call.served.request
    call.record.calls = request.calls
    _record_route(call.record, bound.route, 0)
    try:
        plan = bound.route.find_plan(request, options) or await bound.route.plan_async(request, options)
        await _write_outcome(call, await run_async(request, plan, bound.model), send)
    except Exception as error:
        incomplete = _incomplete_answer(call, error, options)
        if incomplete is None:
            raise
        await _write_incomplete(call, incomplete, send, None)


def _stream_of(call: Inbound, send: RecordingSend) -> _Stream | None:
    """Return the stream to write, if the caller requests one; raises where the mode is `reject`."""
    if not call.served.stream:
        return None
    if call.record.enforced and call.stream_mode == "reject":
        raise RequestError("Streaming with a schema is switched off here", hint="Send the request without `stream`.")
    return _Stream(call, send)


def _record_route(record: CallRecord, route: ModelRoute, fallbacks: int) -> None:
    """Record the model that is called next, in place of one that failed."""
    if fallbacks:
        record.fallbacks = fallbacks
        record.report = None
        record.strategy = ""
    record.provider = route.provider.name
    record.upstream_model = route.model


def _may_have_calls(request: ModelRequest) -> bool:
    """Return whether an earlier answer of the conversation may contain tool calls, which vendors sign."""
    messages = request.messages
    return not isinstance(messages, PlainTurns) and "assistant" in [message.role for message in messages]


def _options(call: Inbound, options: Options) -> Options:
    """Return the server's options, overridden by those of the request."""
    options = override(options, {"budget.attempts": call.switches.max_attempts, "evidence": call.switches.evidence})
    if call.adopted is not None:
        return override(options, {"on_failure": "raw", "schema_shown": True})
    return options


async def forward(
    call: Inbound,
    forwarded: ForwardedCall,
    options: Options,
    send: RecordingSend,
    spending: CallSpending | None = None,
) -> None:
    """Write the vendor's answer to a forwarded call; for a key with a budget, the body gets an output limit."""
    if spending is not None and isinstance(forwarded.body, bytes):
        provider = forwarded.provider
        model = forwarded.route.model
        field = provider.capabilities(model).max_tokens_field
        body = await spending.begin_forwarded(
            f"{provider.name}/{model}", call.api.name, forwarded.body, codec=provider.api, vendor_field=field
        )
        forwarded = msgspec.structs.replace(forwarded, body=body)
    record = call.record
    span = None
    if tracing.is_tracing():
        span = tracing.start_call(call.served.request, record.provider, record.upstream_model)
    try:
        result = await _forward_response(call, forwarded, options, send, spending)
        record.status = result.status
        record.outcome = result.outcome
        record.usage = result.usage
    except UpstreamError as error:
        if spending is not None:
            spending.failed(error)
        raise
    finally:
        if span is not None:
            tracing.end_call(span, usage=record.tokens)
    if spending is not None:
        spending.forwarded()


def _forward_response(
    call: Inbound, forwarded: ForwardedCall, options: Options, send: RecordingSend, spending: CallSpending | None
) -> Coroutine[Any, Any, ForwardResult]:
    """Return the coroutine that forwards a call and its answer, with the ids rewritten and the stream metered."""
    calls = CallCount(options.budget.calls)
    if spending is None and call.id_markers is None and not call.served.stream:
        return pass_through(forwarded, calls, send, call.record)
    fail = call.api.encode_stream(call.served).fail if call.served.stream else None
    change = None
    if call.id_markers is not None:
        change = partial(_rewrite_ids, call.id_markers)
    rewrite: Rewrite | None = None if call.id_markers is None else call.id_markers.feed
    if spending is not None:
        rewrite = spending.meter_stream(forwarded.api, rewrite)
    return pass_through(forwarded, calls, send, call.record, AnswerChanges(fail, change, rewrite))


async def _rewrite_ids(id_markers: AnswerMarks, _status: int, data: bytes) -> bytes:
    return id_markers.whole(data)


async def _trace_unenforced(call: Inbound, work: Awaitable[None]) -> None:
    """Await a call whose answer is not validated, in a separate span."""
    record = call.record
    span = tracing.start_call(call.served.request, record.provider, record.upstream_model)
    try:
        await work
    finally:
        if span is not None:
            tracing.end_call(span, usage=record.tokens)


async def _whole(
    call: Inbound, request: ModelRequest, route: ModelRoute, model: AsyncModel, options: Options, send: RecordingSend
) -> None:
    record = call.record
    if record.enforced:
        plan = route.find_plan(request, options) or await route.plan_async(request, options)
        await _write_outcome(call, await run_async(request, plan, model), send)
        return
    response = await _complete(request, model)
    record.usage = response.usage
    record.add_waits(response.warnings)
    left_out = call.api.unrepresented(response)
    record.warnings += len(response.warnings) + len(left_out)
    log_warnings(left_out)
    if (price := route.price(options.prices)) is not None:
        cost = record.add_cost(price, response.usage)
        response = response.replace(usage=response.usage.replace(cost=cost))
    await _store_and_write(call, response, send)


def _write_outcome(call: Inbound, outcome: Outcome, send: RecordingSend) -> Coroutine[Any, Any, None]:
    """Record the outcome of an enforced call, and write its answer."""
    response, extra = _record_outcome(call, outcome)
    if response.tool_calls:
        return _store_and_write(call, response, send, extra)
    return _write_whole(call, response, send, extra)


async def _store_and_write(
    call: Inbound, response: ModelResponse, send: RecordingSend, extra: Mapping[str, Any] | None = None
) -> None:
    """Write a whole answer, and store the parts that the vendor signed for the next turn."""
    if call.turns is not None and response.tool_calls:
        await call.turns.keep(response)
    await _write_whole(call, response, send, extra)


class _Choice(NamedTuple):
    """One of several answers to a request."""

    response: ModelResponse
    report: Report | None = None


async def _choice(
    call: Inbound, request: ModelRequest, route: ModelRoute, model: AsyncModel, options: Options
) -> _Choice:
    """Await one of several answers; a refused or truncated one counts where callers receive such answers."""
    if not call.record.enforced:
        return _Choice(await _complete(request, model))
    try:
        outcome = await run_async(request, await route.plan_async(request, options), model)
    except SlipformError as error:
        response = None
        if options.on_incomplete == "respond":
            response = incomplete_answer(error, call.api.name)
        if response is None:
            raise
        return _Choice(response, error.report if isinstance(error.report, Report) else None)
    return _Choice(_answer_of(call, outcome), outcome.report)


async def _write_choices(
    call: Inbound, choices: Sequence[_Choice], send: RecordingSend, stream: _Stream | None
) -> None:
    """Write several answers as the choices of one response."""
    record = call.record
    response = merged([choice.response for choice in choices])
    reports = [choice.report for choice in choices if choice.report is not None]
    if reports:
        attempts = tuple([attempt for report in reports for attempt in report.attempts])
        warnings = dict.fromkeys([*call.warnings, *[warning for report in reports for warning in report.warnings]])
        report = reports[0].replace(attempts=attempts, warnings=tuple(warnings))
        record.set_report(report)
        record.cost = report.cost
        record.strategy = attempts[-1].strategy.value if attempts else ""
    else:
        record.usage = response.usage
    if call.turns is not None:
        for each in (response, *response.others):
            await call.turns.keep(each)
    if stream is None:
        await _write_whole(call, response, send)
    else:
        await stream.writer.write(list(choice_chunks(response)))
        await stream.writer.finish()


def _incomplete_answer(call: Inbound, error: Exception, options: Options) -> ModelResponse | None:
    """Record and return a refused or truncated answer, where callers receive such answers; None for other errors."""
    if options.on_incomplete != "respond" or not isinstance(error, SlipformError):
        return None
    response = incomplete_answer(error, call.api.name)
    if response is not None:
        call.record.fail(error)
    return response


async def _write_incomplete(
    call: Inbound, response: ModelResponse, send: RecordingSend, stream: _Stream | None
) -> None:
    """Write a refused or truncated answer, in a stream after the part that was already sent."""
    if stream is None:
        await _write_whole(call, response, send)
    else:
        await stream.end(response)


async def _write_whole(
    call: Inbound, response: ModelResponse, send: RecordingSend, extra: Mapping[str, Any] | None = None
) -> None:
    record = call.record
    record.status = 200
    if extra is None and record.report_asked and record.report is not None:
        extra = {FIELD: record.report.to_dict()}
    body = call.api.encode_response(response, call.served, extra=extra)
    if call.id_markers is not None:
        body = call.id_markers.whole(body)
    if call.stored is not None:
        await call.stored.keep(body)
    if not send.answer(200, (), body, JSON_LINES + record.lines()):
        await send_bytes(send, 200, body, record.headers())


async def _complete(request: ModelRequest, model: AsyncModel) -> ModelResponse:
    """Await an answer without validation; the wait counts as the vendor's time."""
    began = time.monotonic()
    try:
        return await model.complete(request)
    finally:
        if request.calls is not None:
            request.calls.waited_seconds += time.monotonic() - began


class _Stream:
    """The stream of one call, over all its models."""

    def __init__(self, call: Inbound, send: RecordingSend) -> None:
        self._call = call
        self.writer = StreamWriter(
            call.api, call.served, call.record, send, id_markers=call.id_markers, stored=call.stored
        )
        self._opened = OpenStream(self.writer)
        self._answer: ModelResponse | None = None
        """The answer that the vendor stores; None until it is complete."""

    async def write(self, request: ModelRequest, route: ModelRoute, model: AsyncModel, options: Options) -> None:
        """Write the answer of this model, after anything that failed models have already written."""
        call = self._call
        writer = self.writer
        writer.price = route.price(options.prices)
        if _needs_whole(call):
            outcome = await run_async(request, await route.plan_async(request, options), model)
            await writer.write(list(as_chunks(await self._record_outcome(outcome))))
            await writer.finish()
            return
        sink = TurnFolder(writer) if request.tools and not call.record.enforced else writer
        async with aclosing(self._pieces(request, route, model, options, sink)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Outcome):
                    await self._record_outcome(piece)
                else:
                    await writer.write(piece)
        if call.turns is not None and isinstance(sink, TurnFolder):
            await call.turns.keep(sink.answer())
        if self._answer is not None:
            await self._store_ids(self._answer)
        await writer.finish()

    @property
    def has_begun(self) -> bool:
        """Whether part of the answer has been released."""
        reader = self._opened.reader
        return self.writer.started or (reader is not None and reader.has_shown)

    async def end(self, response: ModelResponse) -> None:
        """Write a refused or truncated answer, or only its end where the stream has begun."""
        record = self._call.record
        if record.report_asked and record.report is not None:
            self.writer.add({FIELD: record.report.to_dict()})
        await self.writer.write([closing_chunk(response)] if self.has_begun else list(as_chunks(response)))
        await self.writer.finish()

    async def fail(self, error: Exception) -> None:
        """End a stream that has begun with this error."""
        if not isinstance(error, SlipformError):
            _log.error("unexpected error in a stream", exc_info=error)
            error = SlipformError("An unexpected error inside slipform")
        record = self._call.record
        record.fail(error)
        if record.report_asked and record.report is not None:
            error.details["report"] = record.report.to_dict()
        await self.writer.fail(error)

    async def _record_outcome(self, outcome: Outcome) -> ModelResponse:
        call = self._call
        response, extra = _record_outcome(call, outcome)
        if call.turns is not None:
            await call.turns.keep(response)
            if call.stored is None and call.served.options.get("store") is True:
                self._answer = response
        if extra is not None:
            self.writer.add(extra)
        return response

    async def _store_ids(self, response: ModelResponse) -> None:
        """Store the vendor's ids of the answer where the caller saw other ids in the stream."""
        reader = self._opened.reader
        id_markers = self._call.id_markers
        turns = self._call.turns
        shown = None if reader is None else reader.shown_id or response.id
        if reader is None or turns is None or shown is None:
            return
        ids = replaced_in(shown, response, reader.replaced_ids, self.writer.message_ids)
        if isinstance(id_markers, ResponseMarks) and response.id:
            id_markers.keep(response.id, ids.values())
        await turns.replaced_ids.keep(ids)

    def _pieces(
        self, request: ModelRequest, route: ModelRoute, model: AsyncModel, options: Options, sink: ChunkSink
    ) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
        """Yield the chunks and the outcome that are not pushed to the sink directly."""
        call = self._call
        source = model.stream or route.batches_async
        if not call.record.enforced:
            return source(request, sink)
        mode = "auto" if call.stream_mode == "reject" else call.stream_mode
        if self._opened.watch is None:
            watch = StreamWatch(call.record.observe if call.record.is_observed else None)
            self._opened.watch = call.record.stream_watch = watch
        return run_stream(request, partial(route.plan_async, request, options), source, mode, self._opened)


def _needs_whole(call: Inbound) -> bool:
    """Return whether a stream can begin only when the answer is complete, because a JSON string becomes text."""
    return call.record.enforced and call.served.options.get("bare_text") is True


def _with_adopted_strategy(request: ModelRequest, route: ModelRoute) -> ModelRequest:
    """Return a request whose schema is in its prompt for the vendor's native mode, or for that prompt alone."""
    response_format = request.response_format
    if response_format is None or response_format.strategy is not OutputStrategy.AUTO:
        return request
    native = route.provider.capabilities(route.model).auto_strategy is OutputStrategy.NATIVE
    strategy = OutputStrategy.NATIVE if native else OutputStrategy.PROMPTED
    return request.replace(response_format=response_format.with_strategy(strategy))


def _answer_of(call: Inbound, outcome: Outcome) -> ModelResponse:
    """Return the answer of a call; for a list of allowed texts, the plain text and not a JSON string."""
    answer = outcome.answer
    if call.served.options.get("bare_text") and isinstance(outcome.value, str):
        return answer.replace(text=outcome.value, parts=())
    return answer


def _record_outcome(call: Inbound, outcome: Outcome) -> tuple[ModelResponse, Mapping[str, Any] | None]:
    """Record the outcome of a call; return the answer and the report fields that the caller requested."""
    record = call.record
    report = outcome.report
    answer = _answer_of(call, outcome) if "bare_text" in call.served.options else outcome.answer
    left_out = call.api.unrepresented(answer)
    if call.warnings or call.adopted is not None or left_out:
        adopted = () if call.adopted is None else (call.adopted.warning,)
        report = report.replace(warnings=(*call.warnings, *adopted, *report.warnings, *left_out))
    record.set_report(report)
    record.answer = answer
    record.cost = answer.usage.cost
    if report.attempts:
        record.strategy = report.attempts[-1].strategy._value_
    if call.switches.report:
        return record.answer, {FIELD: report.to_dict()}
    if report.evidence is not None:
        shown = report.replace(attempts=(), samples=()).to_dict()
        return record.answer, {FIELD: {"evidence": shown["evidence"], "warnings": shown["warnings"]}}
    return record.answer, None
