"""Fallback lists: ask the models of a list one after the other, while those before cannot answer."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar, cast

from slipform.codecs.vendor_errors import error_fields
from slipform.enforce.plan import Outcome, Report
from slipform.engine.drive import AsyncModel, Model, run, run_async, start
from slipform.engine.planning import plan_async, plan_for
from slipform.engine.setup import Options
from slipform.errors import EnforcementError, RefusalError, SlipformError, UpstreamError, UpstreamRequestError
from slipform.ir import ModelRequest, ModelResponse
from slipform.ir.request import CallCount
from slipform.providers.router import Router
from slipform.schema import Schema

T = TypeVar("T")
_log = logging.getLogger("slipform.server")


def should_try_next(error: SlipformError) -> bool:
    """Whether another model may do better: not when the request itself is at fault, and not after a refusal.

    >>> should_try_next(UpstreamError("The server is down")), should_try_next(UpstreamRequestError("Too long"))
    (True, False)
    """
    if isinstance(error, UpstreamRequestError):
        return error.details.get("category") == "not_found"
    return isinstance(error, UpstreamError | EnforcementError) and not isinstance(error, RefusalError)


class FallbackList:
    """The models of one request: which is asked now, and what those before it have spent."""

    def __init__(self, models: Sequence[str], calls: CallCount) -> None:
        self._models: Final = tuple(models)
        self.calls: Final = calls
        self.before = Report()
        """The attempts of the models that could not answer."""
        self._failed: list[dict[str, Any]] = []

    @property
    def model(self) -> str:
        """The model to ask."""
        return self._models[len(self._failed)]

    def failed(self, error: SlipformError, *, may_move: bool = True) -> None:
        """The model cannot answer: afterwards `model` is the next one; raises the error where none may be asked."""
        name, more = self.model, len(self._failed) + 1 < len(self._models)
        self._failed.append({"model": name, "code": error.code, "message": error_fields(error)["message"]})
        self.before = joined(self.before, error.report)
        can_help = more and may_move and should_try_next(error)
        if can_help and self.calls.is_spent:
            self.calls.tell(error)
        if not can_help or self.calls.is_spent:
            if len(self._failed) > 1:
                error.details["models"] = self._failed
                error.report = self.before
            raise error
        self.before = Report(self.before.attempts, self.before.warnings, len(self._failed))
        _log.warning("%r cannot answer (%s); the next model is asked", name, error.code)


def joined(before: Report, report: object) -> Report:
    """The attempts of both; the warnings of the later one, which is the answer's own."""
    if not isinstance(report, Report):
        return before
    return Report((*before.attempts, *report.attempts), report.warnings, before.fallbacks)


def with_report_of(before: Report, outcome: Outcome) -> Outcome:
    """The outcome, with the attempts of the models before in its report."""
    if not before.fallbacks:
        return outcome
    return Outcome(outcome.value, outcome.text, outcome.response, joined(before, outcome.report), outcome.typed)


def _always() -> bool:
    return True


def run_first(models: FallbackList, ask: Callable[[str], T], may_move: Callable[[], bool] = _always) -> T:
    """What `ask` gives for the first model that can answer; it moves on only while `may_move` says so."""
    while True:
        try:
            return ask(models.model)
        except SlipformError as error:
            models.failed(error, may_move=may_move())


async def run_first_async(
    models: FallbackList, ask: Callable[[str], Awaitable[T]], may_move: Callable[[], bool] = _always
) -> T:
    """`run_first`, for event loops."""
    while True:
        try:
            return await ask(models.model)
        except SlipformError as error:
            models.failed(error, may_move=may_move())


async def stream_first(models: FallbackList, ask: Callable[[str], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The pieces of the first model that can answer; it moves on only while no piece has left.

    An outcome among the pieces has the attempts of all models in its report.
    """
    while True:
        left = False
        try:
            async with aclosing(ask(models.model)) as pieces:
                async for piece in pieces:
                    left = True
                    yield cast("T", with_report_of(models.before, piece)) if isinstance(piece, Outcome) else piece
        except SlipformError as error:
            models.failed(error, may_move=not left)
        else:
            return


class FallbackCall:
    """An `EnforcedCall` whose attempts go over a list of models, for who shows an answer while it grows.

    It moves on whatever has been shown, because those streams start again with every attempt, and say so.
    """

    def __init__(
        self,
        router: Router,
        models: str | Sequence[str],
        request: ModelRequest,
        options: Options,
        schema: Schema[Any] | None = None,
    ) -> None:
        self._router = router
        self._request = request
        self._options = options
        self._schema = schema
        names = router.candidates(models)
        self._listed = FallbackList(names, CallCount(options.budget.calls))
        self._earlier = 0
        self._start(request if len(names) == 1 else self._aimed())

    @property
    def asked(self) -> ModelRequest:
        """The request to be answered, as long as there is no outcome."""
        return self._call.asked

    @property
    def attempt(self) -> int:
        """Which attempt is being read, counted from 1 over all models."""
        return self._earlier + self._call.attempt

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, with the attempts of all models."""
        outcome = self._call.outcome
        return None if outcome is None else with_report_of(self._listed.before, outcome)

    def answer(self, response: ModelResponse) -> None:
        """Judge this answer; see `EnforcedCall.answer`."""
        try:
            self._call.answer(response)
        except SlipformError as error:
            self._move_on(error)

    def fail(self, error: BaseException) -> None:
        """There is no answer; see `EnforcedCall.fail`."""
        try:
            self._call.fail(error)
        except SlipformError as failed:
            self._move_on(failed)

    def _move_on(self, error: SlipformError) -> None:
        self._listed.failed(error)
        self._earlier += self._call.attempt
        self._start(self._aimed())

    def _aimed(self) -> ModelRequest:
        return self._request.replace(model=self._listed.model, calls=self._listed.calls)

    def _start(self, request: ModelRequest) -> None:
        self.plan = plan_for(self._router, request, self._options, self._schema)
        self._call = start(request, self.plan, streaming=True)


def respond(
    router: Router,
    models: str | Sequence[str],
    request: ModelRequest,
    options: Options,
    model: Model,
    schema: Schema[Any] | None = None,
) -> Outcome:
    """The outcome of this request from the first of these models that can answer."""
    names = router.candidates(models)
    if len(names) == 1:
        return run(request, plan_for(router, request, options, schema), model)
    listed = FallbackList(names, CallCount(options.budget.calls))

    def ask(name: str) -> Outcome:
        aimed = request.replace(model=name, calls=listed.calls)
        return with_report_of(listed.before, run(aimed, plan_for(router, aimed, options, schema), model))

    return run_first(listed, ask)


async def respond_async(
    router: Router,
    models: str | Sequence[str],
    request: ModelRequest,
    options: Options,
    model: AsyncModel,
    schema: Schema[Any] | None = None,
) -> Outcome:
    """`respond`, for event loops."""
    names = router.candidates(models)
    if len(names) == 1:
        return await run_async(request, await plan_async(router, request, options, schema), model)
    listed = FallbackList(names, CallCount(options.budget.calls))

    async def ask(name: str) -> Outcome:
        aimed = request.replace(model=name, calls=listed.calls)
        plan = await plan_async(router, aimed, options, schema)
        return with_report_of(listed.before, await run_async(aimed, plan, model))

    return await run_first_async(listed, ask)
