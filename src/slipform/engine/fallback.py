"""Try the models of a fallback list in order until one can answer."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar, cast

from slipform.codecs.request_fields import UNDELIVERABLE
from slipform.codecs.vendor_errors import error_fields
from slipform.enforce.plan import Outcome, Report
from slipform.enforce.stream import OpenStream
from slipform.engine.drive import Mode, answers, answers_async, run, run_async, run_stream, run_stream_blocking, start
from slipform.engine.planning import ModelRoute, find_route
from slipform.engine.setup import Options
from slipform.errors import (
    EnforcementError,
    RefusalError,
    RequestError,
    SlipformError,
    UpstreamError,
    UpstreamRequestError,
)
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.request import CallCount, RequestFrame
from slipform.ir.response import ChunkSink
from slipform.providers.router import Router
from slipform.schema import Schema

T = TypeVar("T")
_log = logging.getLogger("slipform.calls")


def should_try_next(error: SlipformError) -> bool:
    """Return whether another model may succeed: not if the request itself is invalid, and not after a model's refusal.

    Models differ in their context sizes, and vendors in their content filters.

    >>> should_try_next(UpstreamError("The server is down")), should_try_next(UpstreamRequestError("No such field"))
    (True, False)
    """
    if isinstance(error, UpstreamRequestError):
        return error.details.get("category") in _OF_THIS_MODEL or error.status == _TOO_LARGE
    if isinstance(error, RequestError):
        return error.details.get("category") == UNDELIVERABLE
    if isinstance(error, RefusalError):
        return bool(error.details.get("filtered"))
    return isinstance(error, UpstreamError | EnforcementError)


_OF_THIS_MODEL: Final = frozenset({"not_found", "context_length", "content_filter"})
_TOO_LARGE: Final = 413


def call_count(request: ModelRequest, options: Options) -> CallCount:
    """Return the call counter of a request: its conversation's if it belongs to one, else a new one."""
    if request.calls is not None:
        return request.calls
    return CallCount(options.budget.calls)


class FallbackList:
    """The models of one request: the current one, and the attempts of those that failed."""

    def __init__(
        self, router: Router, models: str | Sequence[str], calls: CallCount, frame: RequestFrame | None = None
    ) -> None:
        """Raise `UnknownModelError` if one of several names is unknown."""
        self._frame: Final = frame
        self._router: Final = router
        self._models: Final = router.targets(models)
        self.calls: Final = calls
        self.before = Report()
        """The attempts of the models that failed."""
        self._failed: list[dict[str, Any]] = []

    def route(self) -> ModelRoute:
        """Return the route of the current model; raises `UnknownModelError`."""
        return find_route(self._router, self._models[len(self._failed)].model, self._frame)

    def for_model(self, request: ModelRequest, route: ModelRoute) -> ModelRequest:
        """Return the request for this model, with the call counter and the defaults of the model's alias."""
        request = request.replace(model=route.name, calls=self.calls)
        for defaults in self._models[len(self._failed)].defaults:
            request = defaults.apply(request)
        return request

    def failed(self, error: SlipformError, *, may_move: bool = True) -> None:
        """Move to the next model after a failure; raises the error if there is none, or `may_move` forbids it."""
        name = self._models[len(self._failed)].model
        more = len(self._failed) + 1 < len(self._models)
        self._failed.append({"model": name, "code": error.code, "message": error_fields(error)["message"]})
        self.before = joined(self.before, error.report)
        can_help = more and may_move and should_try_next(error)
        if can_help and self.calls.is_spent:
            self.calls.explain_limit(error)
        if not can_help or self.calls.is_spent:
            if len(self._failed) > 1:
                error.details["models"] = self._failed
                error.report = self.before
            raise error
        self.before = self.before.replace(fallbacks=len(self._failed), fallback_errors=tuple(self._failed))
        _log.warning("fallback: model cannot answer, trying the next, model=%r, error=%s", name, error.code)


def joined(before: Report, report: object) -> Report:
    """Return a report with the attempts of both, and the warnings of the later one, which has the answer."""
    if not isinstance(report, Report):
        return before
    return report.replace(
        attempts=(*before.attempts, *report.attempts),
        fallbacks=before.fallbacks,
        fallback_errors=before.fallback_errors,
    )


def with_report_of(before: Report, outcome: Outcome) -> Outcome:
    """Return the outcome with the attempts of earlier models in its report."""
    if not before.fallbacks:
        return outcome
    return Outcome(outcome.value, outcome.text, outcome.response, joined(before, outcome.report), outcome.typed)


def _is_always_allowed() -> bool:
    return True


def run_first(
    models: FallbackList, ask: Callable[[ModelRoute], T], may_move: Callable[[], bool] = _is_always_allowed
) -> T:
    """Return the result of `ask` for the first model that can answer, moving on only while `may_move` allows it."""
    while True:
        try:
            return ask(models.route())
        except SlipformError as error:
            models.failed(error, may_move=may_move())


async def run_first_async(
    models: FallbackList, ask: Callable[[ModelRoute], Awaitable[T]], may_move: Callable[[], bool] = _is_always_allowed
) -> T:
    """Do the same as `run_first` on an event loop."""
    while True:
        try:
            return await ask(models.route())
        except SlipformError as error:
            models.failed(error, may_move=may_move())


async def stream_first(
    models: FallbackList, ask: Callable[[ModelRoute], AsyncGenerator[T, None]], *, may_continue: bool = False
) -> AsyncGenerator[T, None]:
    """Yield the pieces of the first model that can answer.

    It moves on only before the first piece; with `may_continue`, also after it. An outcome among the pieces has the
    attempts of all models in its report.
    """
    while True:
        left = False
        try:
            async with aclosing(ask(models.route())) as pieces:
                async for piece in pieces:
                    left = True
                    yield cast("T", with_report_of(models.before, piece)) if isinstance(piece, Outcome) else piece
        except SlipformError as error:
            models.failed(error, may_move=may_continue or not left)
        else:
            return


class FallbackCall:
    """An `EnforcedCall` over a list of models, for callers that show an answer while it grows.

    It moves on even after text was shown, because these streams restart with every attempt and notify their reader.
    """

    def __init__(
        self,
        router: Router,
        models: str | Sequence[str],
        request: ModelRequest,
        options: Options,
        schema: Schema[Any] | None = None,
    ) -> None:
        self._request = request
        self._options = options
        self._schema = schema
        self._listed = FallbackList(router, models, call_count(request, options), request.frame)
        self._earlier = 0
        self._start()

    @property
    def request(self) -> ModelRequest:
        """The request to send next, until the call has an outcome."""
        return self._call.request

    @property
    def attempt(self) -> int:
        """The number of the current attempt, counted from 1 over all models."""
        return self._earlier + self._call.attempt

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, with the attempts of all models."""
        outcome = self._call.outcome
        if outcome is None:
            return None
        return with_report_of(self._listed.before, outcome)

    def stream(self) -> Iterator[CompletionChunk]:
        """Send the request, blocking; return the pieces of the answer."""
        return self._route.stream(self.request)

    def stream_async(self) -> AsyncIterator[CompletionChunk]:
        """Send the request; return the pieces of the answer."""
        return self._route.stream_async(self.request)

    def answers(self) -> ModelResponse:
        """Send the requests of the parts concurrently, blocking; return their answers as one response."""
        return answers(self._route.complete, self.request)

    def answers_async(self) -> Coroutine[Any, Any, ModelResponse]:
        """Send the requests of the parts concurrently; return their answers as one response."""
        return answers_async(self._route.complete_async, self.request)

    def answer(self, response: ModelResponse) -> None:
        """Judge this answer; see `EnforcedCall.answer`."""
        try:
            self._call.answer(response)
        except SlipformError as error:
            self._move_on(error)

    def fail(self, error: BaseException) -> None:
        """End the call without an answer; see `EnforcedCall.fail`."""
        try:
            self._call.fail(error)
        except SlipformError as failed:
            self._move_on(failed)

    def _move_on(self, error: SlipformError) -> None:
        self._listed.failed(error)
        self._earlier += self._call.attempt
        self._start()

    def _start(self) -> None:
        self._route = self._listed.route()
        request = self._listed.for_model(self._request, self._route)
        self.plan = self._route.plan(request, self._options, self._schema)
        self._call = start(request, self.plan, streaming=True)


def respond(
    router: Router,
    models: str | Sequence[str],
    request: ModelRequest,
    options: Options,
    schema: Schema[Any] | None = None,
) -> Outcome:
    """Return the outcome of this request from the first of these models that can answer."""
    fallback = FallbackList(router, models, call_count(request, options), request.frame)

    def ask(route: ModelRoute) -> Outcome:
        model_request = fallback.for_model(request, route)
        return with_report_of(
            fallback.before, run(model_request, route.plan(model_request, options, schema), route.blocking)
        )

    return run_first(fallback, ask)


async def respond_async(
    router: Router,
    models: str | Sequence[str],
    request: ModelRequest,
    options: Options,
    schema: Schema[Any] | None = None,
) -> Outcome:
    """Do the same as `respond` on an event loop."""
    fallback = FallbackList(router, models, call_count(request, options), request.frame)

    async def ask(route: ModelRoute) -> Outcome:
        model_request = fallback.for_model(request, route)
        plan = await route.plan_async(model_request, options, schema)
        return with_report_of(fallback.before, await run_async(model_request, plan, route.awaited))

    return await run_first_async(fallback, ask)


def respond_batches(
    router: Router,
    models: str | Sequence[str],
    request: ModelRequest,
    options: Options,
    mode: Mode = "auto",
    sink: ChunkSink | None = None,
    schema: Schema[Any] | None = None,
) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
    """Yield the pieces of `run_stream` from the first of these models that can answer."""
    fallback = FallbackList(router, models, call_count(request, options), request.frame)
    opened = OpenStream(sink)

    def ask(route: ModelRoute) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
        model_request = fallback.for_model(request, route)
        return run_stream(
            model_request, partial(route.plan_async, model_request, options, schema), route.batches_async, mode, opened
        )

    return stream_first(fallback, ask, may_continue=True)


def respond_chunks(
    router: Router,
    models: str | Sequence[str],
    request: ModelRequest,
    options: Options,
    mode: Mode = "auto",
    schema: Schema[Any] | None = None,
) -> Generator[CompletionChunk | Outcome, None, None]:
    """Do the same as `respond_batches`, blocking and chunk by chunk."""
    fallback = FallbackList(router, models, CallCount(options.budget.calls))
    opened = OpenStream()
    while True:
        route = fallback.route()
        model_request = fallback.for_model(request, route)
        try:
            for piece in run_stream_blocking(
                model_request, route.plan(model_request, options, schema), route.stream, mode, opened
            ):
                yield with_report_of(fallback.before, piece) if isinstance(piece, Outcome) else piece
        except SlipformError as error:
            fallback.failed(error)
        else:
            return
