"""Send a request, judge the answer and retry: the generator `enforce`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec

from slipform.enforce.continuation import (
    AnswerContinuation,
    complete_part,
    continuation_of,
    continuation_request,
    prefill_request,
    with_prefill,
)
from slipform.enforce.judging import Requirement, SchemaHint, Verdict, answer_text, judge, judge_value
from slipform.enforce.kept_calls import with_kept_calls
from slipform.enforce.options import Budget
from slipform.enforce.plan import CONTINUED, Attempt, CallVerdict, Formatter, Outcome, Plan, Report, Steps
from slipform.enforce.prompt_cut import prompt_cut, prompt_cut_error
from slipform.enforce.prompts import (
    SMALL,
    Parts,
    ask_plainly,
    call_again_request,
    ending_request,
    first_request,
    formatter_request,
    misnamed_keys,
    parts_of,
    parts_request,
    reask_request,
    repeats_prompt,
    shorter_request,
)
from slipform.enforce.stop_point import at_stop
from slipform.errors import (
    EnforcementError,
    InvalidResponseFormat,
    RateLimitError,
    RefusalError,
    RunawayError,
    SlipformError,
    TruncatedError,
    UpstreamError,
    UpstreamRequestError,
    UpstreamTimeout,
)
from slipform.ir import (
    DowngradeWarning,
    Message,
    ModelRequest,
    ModelResponse,
    ModelWarning,
    ToolCall,
    ToolResult,
)
from slipform.ir.logprobs import LOGPROBS, cut_logprobs, fit_logprobs
from slipform.ir.parts import with_content
from slipform.ir.request import CallCount, Guard
from slipform.ir.response import guess_tokens
from slipform.prices import AnyPrice, find_price
from slipform.schema import OutputStrategy, Schema
from slipform.text.lifted import LiftedText
from slipform.text.loads import load

__all__ = ["LOGPROBS_LEFT_OUT", "Budget", "Formatter", "Outcome", "Plan", "Steps", "enforce", "unjudged"]


class _Turn(msgspec.Struct, frozen=True):
    """The next request, and how its answer is to be read."""

    request: ModelRequest
    strategy: OutputStrategy
    parts: Parts | AnswerContinuation | None = None
    before: ModelResponse | None = None
    """The earlier answer, if only its calls with the ids in `wrong` are retried."""
    wrong: Collection[str] = ()
    prefill: AnswerContinuation | None = None
    """The beginning that the request sends along, for the answer to continue."""


def enforce(request: ModelRequest, plan: Plan, answered: ModelResponse | None = None) -> Steps:
    """Yield each request to send, receive its response, and return the outcome or raise.

    `answered` is the answer to the first request, if one exists already.

    >>> steps = enforce(ModelRequest("m", ()), Plan(Schema.of(int)))
    >>> request = next(steps)
    >>> try:
    ...     steps.send(ModelResponse(text="36"))
    ... except StopIteration as stop:
    ...     stop.value.value
    36
    """
    request = counted(request, plan)
    warnings: tuple[ModelWarning, ...] = ()
    if request.extra or plan.strategy is OutputStrategy.PROMPTED:
        request, warnings = _with_guard(request, plan)
    turn = _Turn(request, plan.strategy)
    wording = plan.wording
    if plan.strategy is OutputStrategy.PROMPTED or wording.list_keys or wording.schema_in_prompt:
        first = first_request(request, plan.strategy, wording)
        turn = _Turn(first.request, plan.strategy)
        warnings = (*warnings, *first.warnings)
    state = _Progress(request, plan, warnings)
    while True:
        sent = plan.clock()
        try:
            response = answered or (yield turn.request)
            answered = None
        except SlipformError as error:
            turn = state.interrupted(error, turn, plan.clock() - sent)
            continue
        response = _received(response, turn, plan, state.report)
        verdict = state.record_verdict(response, turn, plan.clock() - sent)
        if verdict.error is None:
            report = state.report
            if LOGPROBS in response.extra:
                response, report = _with_own_logprobs(response, verdict, turn, state.standard, report)
            return _outcome(response, verdict, report)
        rest = state.continued(verdict, response, turn)
        if rest is not None:
            turn = rest
            continue
        failure = state.failure(verdict, response)
        if failure is not None:
            failure.response = _as_the_vendor_ended_it(response, plan)
            if isinstance(failure, TruncatedError):
                failure.partial = _complete_value(failure.response.text, turn, state.standard)
            if plan.on_failure == "raw" and not isinstance(failure, RefusalError | InvalidResponseFormat):
                return _unenforced_outcome(response, failure, state.report, plan)
            raise failure
        if _needs_other_words(verdict, turn, state.report):
            turn = _next(request, response, verdict, len(state.report.attempts), plan)


def counted(request: ModelRequest, plan: Plan) -> ModelRequest:
    """Return the request with a call counter, and with the mark for the vendor's cache if the plan wants it."""
    if request.calls is None:
        request = request.replace(calls=CallCount(plan.budget.calls))
    return request.replace(cache_prefix=True) if plan.prompt_cache == "on" else request


class _Progress:
    """The attempts of one enforcement so far, and the remaining budget."""

    def __init__(self, request: ModelRequest, plan: Plan, warnings: tuple[ModelWarning, ...]) -> None:
        self.standard = _requirement(plan, request) if plan.wording.list_keys else plan.standard
        self.report = Report((), warnings) if warnings else _UNTRIED
        self._request = request
        self._plan = plan
        self._calls = request.calls or CallCount(plan.budget.calls)
        self._started = plan.clock()
        self._verdict: Verdict | None = None
        self._continues = True
        """Whether a cut-off answer is continued."""

    def record_verdict(self, response: ModelResponse, turn: _Turn, seconds: float) -> Verdict:
        """Validate the answer to this turn, add the attempt to the report, and return the verdict."""
        if turn.parts is None and response.stop is None:
            verdict = judge(response, self.standard)
        else:
            verdict = _verdict(response, turn, self.standard)
        if verdict.doubt is not None and not self._calls.is_spent:
            # A doubtful answer fails only if the budget allows another attempt after this one.
            as_failure = verdict.doubted()
            report_with_failure = _recorded(self.report, response, as_failure, turn, self._plan, seconds)
            if self._spent(report_with_failure) is None:
                verdict = as_failure
        report = _recorded(self.report, response, verdict, turn, self._plan, seconds)
        continues = response.continues
        if continues is not None and verdict.ok and not continues(_outcome(response, verdict, report)):
            # The value is valid, but it contradicts the part already sent to the caller.
            verdict = verdict.changed()
            report = _recorded(self.report, response, verdict, turn, self._plan, seconds)
        if verdict.error is not None:
            verdict.error.__traceback__ = None  # the error's frames hold the answer in a reference cycle
        self.report = report
        self._verdict = verdict
        return verdict

    def continued(self, verdict: Verdict, response: ModelResponse, turn: _Turn) -> _Turn | None:
        """Return the request for the rest of an answer cut off by its token limit; None if it cannot be continued."""
        plan = self._plan
        if plan.schema is None or response.finish != "length" or not isinstance(verdict.error, TruncatedError):
            return None
        is_spent = self.report.continuations >= plan.budget.continuations or self._calls.is_spent
        if is_spent or not self._continues:
            return None
        if _without_answer_call(response, plan).tool_calls:  # a truncated call must not run
            return None
        tokens_left = self._output_tokens_left(response)
        if tokens_left is not None and tokens_left <= 0:
            return None
        text = _as_the_vendor_ended_it(response, plan).text
        before = turn.parts if isinstance(turn.parts, AnswerContinuation) else None
        rest = continuation_of(text, plan.schema.document, before, turn.prefill)
        prefills = rest is not None
        rest = rest or turn.prefill  # where the beginning gained nothing, an instruction may help
        if rest is None:
            self._continues = before is None  # an instruction that gained nothing will not gain more
            return None
        *earlier, last = self.report.attempts
        self.report = self.report.replace(attempts=(*earlier, msgspec.structs.replace(last, outcome=CONTINUED)))
        if self._spent(self.report) is not None:
            return None
        return _rest_turn(self._request.replace(max_tokens=tokens_left), rest, turn.strategy, plan, prefills=prefills)

    def _output_tokens_left(self, response: ModelResponse) -> int | None:
        """Return the tokens that remain of the caller's own limit; None without a limit."""
        limit = self._request.max_tokens
        if limit is None:
            return None
        tokens = self.report.tokens.output
        return limit - (guess_tokens(response.text) if tokens is None else tokens)

    def failure(self, verdict: Verdict, response: ModelResponse) -> EnforcementError | None:
        """Return the error of a call that ends with this verdict; None if the request is retried."""
        ended = self._spent(self.report)
        at_limit = self._plan.on_incomplete == "respond" and response.finish == "length"
        is_final = at_limit and isinstance(verdict.error, TruncatedError)
        if not (verdict.hopeless or is_final or ended or self._calls.is_spent or _is_cut_again(self.report)):
            return None
        failure = _failure(verdict, self.report, ended, self._plan, self._request)
        if self._calls.is_spent and not verdict.hopeless and ended is None:
            self._calls.explain_limit(failure)
        return failure

    def interrupted(self, error: SlipformError, turn: _Turn, seconds: float) -> _Turn:
        """Record an answer that broke off, and return the next request; raises if there is none."""
        if turn.prefill is not None and isinstance(error, UpstreamRequestError):
            request = self._request.replace(max_tokens=turn.request.max_tokens)
            return _rest_turn(request, turn.prefill, turn.strategy, self._plan, prefills=False)
        if broke_off(error) and not _is_out_of_time(error, self._plan, self._started):
            part = error.response or ModelResponse()
            broken = Verdict(candidate=answer_text(part, self._plan.answer_tool), error=EnforcementError(error.message))
            report = _recorded(self.report, part, broken, turn, self._plan, seconds)
            attempt = msgspec.structs.replace(report.attempts[-1], outcome=error.code, error=error.message)
            self.report = report.replace(attempts=(*self.report.attempts, attempt))
            if self._spent(self.report) is None and not self._calls.is_spent:
                return turn
        error.report = self.report
        if _is_out_of_time(error, self._plan, self._started):
            raise _out_of_time(error, self._verdict, self.report, self._plan, self._request) from error
        raise error

    def _spent(self, report: Report) -> str | None:
        return self._plan.budget.spent_by(report, self._plan.clock() - self._started)


def broke_off(error: SlipformError) -> bool:
    """Return whether an answer had begun when its vendor failed in a way that may not recur.

    >>> broke_off(UpstreamError("The connection broke", details={"phase": "body"}))
    True
    """
    if not isinstance(error, UpstreamError) or isinstance(error, RateLimitError | UpstreamRequestError):
        return False
    details = error.details
    is_final = details.get("retryable") is False or details.get("reason") == "too_large"
    return details.get("phase") == "body" and details.get("limit") != "total" and not is_final


def _outcome(response: ModelResponse, verdict: Verdict, report: Report) -> Outcome:
    if response.tool_calls or verdict.tool_calls:
        response = _with_calls(response, verdict)
    return Outcome(verdict.value, verdict.candidate, response, report, verdict.typed)


def _needs_other_words(verdict: Verdict, turn: _Turn, report: Report) -> bool:
    """Return whether the next request must differ from the last one.

    A further answer that is valid and only differs from the text already sent is not at fault: the same request is
    retried.
    """
    if verdict.is_changed and len(report.attempts) > 1:
        return False
    return turn.before is None or bool(verdict.wrong_calls)


def _received(response: ModelResponse, turn: _Turn, plan: Plan, report: Report) -> ModelResponse:
    """Return the answer with the calls that were not retried; raises if the vendor cut a prompt with its source."""
    cut = prompt_cut(turn.request, response.usage)
    if cut is not None:
        if plan.evidence is not None:
            error = prompt_cut_error(cut)
            error.report = report
            raise error
        response = response.replace(warnings=(*response.warnings, cut))
    if turn.prefill is not None:
        response = response.replace(text=with_prefill(response.text, turn.prefill), parts=())
    if turn.before is None:
        return response
    return with_kept_calls(_without_answer_call(turn.before, plan), turn.wrong, _without_answer_call(response, plan))


def _without_answer_call(response: ModelResponse, plan: Plan) -> ModelResponse:
    """Return the response with the caller's calls alone."""
    calls = tuple([call for call in response.tool_calls if call.name != plan.answer_tool])
    if len(calls) == len(response.tool_calls):
        return response
    return response.replace(tool_calls=calls)


def _with_calls(response: ModelResponse, verdict: Verdict) -> ModelResponse:
    """Return the answer with its calls as judged; a call of a tool that was not offered became the answer itself."""
    if not response.tool_calls and not verdict.tool_calls:
        return response
    calls = verdict.tool_calls
    parts = with_content(response.parts, response.text, calls) if response.parts else ()
    # The vendor's finish reason describes a text, in which the model wrote the call.
    raw_finish = response.raw_finish if response.tool_calls else None
    return response.replace(tool_calls=calls, parts=parts, raw_finish=raw_finish)


def _with_own_logprobs(
    response: ModelResponse, verdict: Verdict, turn: _Turn, standard: Requirement, report: Report
) -> tuple[ModelResponse, Report]:
    """Return the answer with the probabilities of its JSON's own tokens; without any if the JSON was changed."""
    text = answer_text(response, standard.answer_tool)
    own_logprobs = None
    if verdict.candidate == text:
        return response, report
    is_own = turn.parts is None and response.lift is None and not verdict.repairs and verdict.patched is None
    if is_own and standard.schema is not None:
        loaded = load(text, SchemaHint(standard.schema, switches=standard.switches))
        own_logprobs = cut_logprobs(response.extra[LOGPROBS], text, loaded.start, loaded.end)
    extra = {name: value for name, value in response.extra.items() if name not in (LOGPROBS, "avgLogprobs")}
    if own_logprobs is not None and fit_logprobs(own_logprobs, verdict.candidate) is not None:
        return response.replace(extra={**extra, LOGPROBS: own_logprobs}), report
    return response.replace(extra=extra), report.replace(warnings=(*report.warnings, LOGPROBS_LEFT_OUT))


LOGPROBS_LEFT_OUT = ModelWarning(
    "logprobs_left_out",
    "The model's text was changed, so the probabilities of its tokens are not those of the answer: they are left out.",
    "logprobs",
)


def unjudged(request: ModelRequest, plan: Plan) -> Steps:
    """Return the steps of a call whose answer is not validated."""
    began = plan.clock()
    response = yield request
    attempt = Attempt(
        "ok",
        plan.strategy,
        request.model,
        usage=response.usage,
        seconds=plan.clock() - began,
        price=_price(request.calls, plan),
    )
    cut = prompt_cut(request, response.usage)
    warnings = response.warnings if cut is None else (*response.warnings, cut)
    return Outcome(response.text, response.text, response, Report((attempt,), warnings))


def _with_guard(request: ModelRequest, plan: Plan) -> tuple[ModelRequest, tuple[ModelWarning, ...]]:
    """Return the request with the guard's options if the provider supports them, else without them."""
    extra = Guard.without(request.extra) if request.extra else {}
    guard_fields = plan.guard.to_extra() if plan.strategy is OutputStrategy.PROMPTED else {}
    warnings = () if plan.guarded_decoding or "force_json_start" not in guard_fields else (_NOT_FORCED,)
    if plan.guarded_decoding:
        extra = {**extra, **guard_fields}
    return (request if extra == request.extra else request.replace(extra=extra)), warnings


_UNTRIED = Report()
_NOT_FORCED = ModelWarning(
    "force_json_start_ignored",
    "This provider's decoding cannot be held to start with JSON; the prompt and the validator do what they can.",
    "force_json_start",
)


def _is_cut_again(report: Report) -> bool:
    """Return whether two answers in a row exceeded the token limit: then a third will, too."""
    outcomes = [attempt.outcome for attempt in report.attempts if attempt.outcome != CONTINUED]
    return outcomes[-2:] == [TruncatedError.code] * 2


def _requirement(plan: Plan, request: ModelRequest) -> Requirement:
    """Return what answers are validated against, including a check for copies of the worked examples, if shown."""
    standard = plan.standard
    if plan.strategy is not OutputStrategy.PROMPTED:
        return standard
    return dataclasses.replace(standard, checks=(*standard.checks, partial(repeats_prompt, messages=request.messages)))


def _verdict(response: ModelResponse, turn: _Turn, standard: Requirement) -> Verdict:
    if turn.parts is None:
        verdict = judge(response, standard)
        return verdict if response.stop is None else at_stop(verdict, response.stop)
    answered = judge(response, Requirement(Schema("parts", turn.parts.schema), switches=standard.switches))
    if answered.error is not None and answered.value is None:
        return answered
    merged = judge_value(turn.parts.merged(answered.value), standard)
    return msgspec.structs.replace(merged, repairs=answered.repairs)


def _rest_turn(
    request: ModelRequest, rest: AnswerContinuation, strategy: OutputStrategy, plan: Plan, *, prefills: bool = True
) -> _Turn:
    """Return the turn that asks for the rest of an answer; without a schema in its channel, it sends the beginning."""
    wording = plan.wording
    is_free = strategy is OutputStrategy.PROMPTED and not wording.wraps_root and not request.tools
    if is_free and prefills and wording.prefills:
        base = first_request(request, strategy, wording).request
        return _Turn(prefill_request(base, rest), strategy, prefill=rest)
    if request.response_format is not None:
        request = request.replace(response_format=rest.format(request.response_format))
    base = first_request(request, strategy, wording).request
    return _Turn(continuation_request(base, rest), strategy, rest)


def _complete_value(text: str, turn: _Turn, standard: Requirement) -> Any:
    """Return the complete part of an answer that was cut off, as the caller's type if it is valid."""
    complete = complete_part(text)
    value = None if complete is None else complete[0]
    if isinstance(turn.parts, AnswerContinuation):
        value = turn.parts.value if value is None else turn.parts.merged(value)
    if value is None:
        return None
    verdict = judge_value(value, standard)
    if not verdict.ok or standard.schema is None:
        return value
    return standard.schema.to_python(verdict.value)


def _next(request: ModelRequest, response: ModelResponse, verdict: Verdict, attempts: int, plan: Plan) -> _Turn:
    """Return the turn after a bad answer: the same strategy again, then a stronger one, at the last a formatter."""
    is_last = attempts == plan.budget.attempts - 1
    if plan.formatter and is_last and verdict.candidate.strip() and not verdict.wrong_calls:
        formatter = plan.formatter
        reshaping = formatter_request(request, formatter.model, verdict.candidate)
        return _Turn(first_request(reshaping, formatter.strategy, formatter.wording).request, formatter.strategy)
    endless = isinstance(verdict.error, RunawayError)
    strategy = _next_strategy(plan, attempts, endless=endless)
    if strategy is not plan.strategy and request.response_format is not None:
        request = request.replace(response_format=request.response_format.with_strategy(strategy))
    base = first_request(request, strategy, plan.wording).request
    if verdict.wrong_calls:
        judged = _with_calls(response, verdict)
        again = call_again_request(base, response, verdict.wrong_calls)
        return _Turn(again, strategy, before=judged, wrong=verdict.wrong_calls.keys())
    if plan.wording.list_keys and strategy is OutputStrategy.PROMPTED:
        return _next_for_a_small_model(request, verdict, plan)
    if endless:
        return _Turn(ending_request(base), strategy)
    if isinstance(verdict.error, TruncatedError):
        return _Turn(shorter_request(base), strategy)
    if parts := _parts(verdict, plan):
        return _Turn(parts_request(base, verdict.candidate, parts, verdict.violations), strategy, parts)
    # A server may have ignored the schema of its native mode: the prompt describes it instead.
    unseen = None
    if strategy is OutputStrategy.NATIVE and request.response_format is not None:
        unseen = plan.schema
    return _Turn(reask_request(base, verdict.candidate, verdict.violations, unseen, plan.wording), strategy)


def _next_strategy(plan: Plan, attempts: int, *, endless: bool) -> OutputStrategy:
    """Return the strategy of the next attempt; after an endless answer, another one."""
    if endless and not plan.wording.list_keys:
        return _another_strategy(plan)
    if attempts > 1 and plan.stronger:
        return plan.stronger[min(attempts - 2, len(plan.stronger) - 1)]
    return plan.strategy


def _another_strategy(plan: Plan) -> OutputStrategy:
    """Return the strategy after an endless answer: a prompt, because constrained decoding often is the cause."""
    if plan.strategy is OutputStrategy.PROMPTED or plan.schema is None:
        if plan.stronger:
            return plan.stronger[0]
        return plan.strategy
    return OutputStrategy.PROMPTED


def _next_for_a_small_model(request: ModelRequest, verdict: Verdict, plan: Plan) -> _Turn:
    """Return the next request for a small model: only the question, or a part of it.

    Shown a bad answer, such a model repeats it.
    """
    parts = None
    if plan.schema is not None and plan.reask_scope != "full" and verdict.violations and not verdict.is_cut:
        parts = misnamed_keys(verdict.value, verdict.violations, plan.schema.document)
    if parts is not None and request.response_format is not None:
        request = request.replace(response_format=parts.format(request.response_format))
    return _Turn(ask_plainly(request, plan.wording), OutputStrategy.PROMPTED, parts)


def _parts(verdict: Verdict, plan: Plan) -> Parts | None:
    """Return the invalid parts of an answer, to be requested alone; None if the whole answer is requested again."""
    small = len(verdict.candidate) <= SMALL
    if plan.schema is None or plan.reask_scope == "full" or (small and plan.reask_scope == "auto") or verdict.is_cut:
        return None
    if verdict.violations:
        return parts_of(verdict.value, verdict.violations, plan.schema.document)
    return None


def _price(calls: CallCount | None, plan: Plan) -> AnyPrice | None:
    """Return the price of the model that received the last request."""
    if calls is None:
        return None
    return find_price(plan.prices, calls.model, calls.price_list)


def _call_verdicts(response: ModelResponse, verdict: Verdict, plan: Plan) -> tuple[CallVerdict, ...]:
    if not response.tool_calls:
        return ()
    calls = _without_answer_call(response, plan).tool_calls
    return tuple([CallVerdict(call, verdict.wrong_calls.get(call.id, ())) for call in calls])


def _text_of(message: Message) -> str:
    """Return the text of a message, or of its tool results."""
    return message.text or "\n".join([part.text for part in message.parts if isinstance(part, ToolResult)])


def _recorded(
    report: Report, response: ModelResponse, verdict: Verdict, turn: _Turn, plan: Plan, seconds: float
) -> Report:
    """Return the report with one more attempt, and each warning once."""
    attempt = _attempt_of(response, verdict, turn, plan, seconds)
    if (report.attempts or plan.keep_text) and turn.request.messages:
        attempt = msgspec.structs.replace(attempt, asked=_text_of(turn.request.messages[-1]))
    attempts = (*report.attempts, attempt)
    messages = (*report.warnings, *response.warnings, *verdict.warnings)
    if not messages and not report.notes:
        return Report(attempts)
    distinct = dict.fromkeys(messages)
    warnings = tuple(each for each in distinct if not each.informs)
    return Report(attempts, warnings, 0, (*report.notes, *(each for each in distinct if each.informs)))


def _attempt_of(response: ModelResponse, verdict: Verdict, turn: _Turn, plan: Plan, seconds: float) -> Attempt:
    """Return the record of one attempt."""
    strategy = None
    if response.warnings:
        strategy = next((each.strategy for each in response.warnings if isinstance(each, DowngradeWarning)), None)
    attempt = Attempt(
        "ok" if verdict.error is None else verdict.error.code,
        strategy or turn.strategy,
        turn.request.model,
        verdict.candidate,
        response.text if plan.keep_text else None,
        verdict.repairs,
        verdict.patched,
        verdict.violations,
        response.usage,
        seconds,
        _price(turn.request.calls, plan),
        stream=response.stream,
        calls=_call_verdicts(response, verdict, plan),
    )
    if plan.evidence is not None:
        parts = turn.parts if isinstance(turn.parts, Parts) else None
        attempt = msgspec.structs.replace(attempt, response=response, parts=parts)
    return attempt


def _unenforced_outcome(response: ModelResponse, error: EnforcementError, report: Report, plan: Plan) -> Outcome:
    """Return the outcome where failures do not raise: the model's unchanged text, with the error as a warning."""
    warning = ModelWarning(error.code, str(error))
    text = answer_text(response, plan.answer_tool)
    response = _without_answer_call(response, plan)
    return Outcome(text, text, response, report.replace(warnings=(*report.warnings, warning)))


def _as_the_vendor_ended_it(response: ModelResponse, plan: Plan) -> ModelResponse:
    """Return an invalid answer with its text, as far as it goes, in the caller's shape."""
    text = answer_text(response, plan.answer_tool)
    if response.lift is not None and response.lift.plan is not None and text.lstrip()[:1] == "{":
        text = LiftedText(response.lift.plan).feed(text.lstrip())
    calls = tuple([call for call in _without_answer_call(response, plan).tool_calls if _is_offered(call, plan)])
    parts = with_content(response.parts, text, calls) if response.parts else ()
    return response.replace(text=text, tool_calls=calls, parts=parts, lift=None)


def _is_offered(call: ToolCall, plan: Plan) -> bool:
    return plan.calls and (not plan.tools or call.name in plan.tools)


def _failure(
    verdict: Verdict, report: Report, ended: str | None, plan: Plan, request: ModelRequest
) -> EnforcementError:
    """Return the error of a call that has no attempts or budget left, with its report."""
    error = verdict.error or EnforcementError("The answer could not be validated")
    if plan.guard.response_format_fail_hard and not isinstance(error, RefusalError):
        error = as_invalid_format(error)
    error.report = report
    count = len(report.attempts)
    if not isinstance(error, RefusalError):
        tried = "1 attempt" if count == 1 else f"{count} attempts"
        expected = "schema-valid JSON"
        if request.response_format is None and request.json_mode:
            expected = "JSON"
            error.hint = (error.hint or "").replace(" relax the schema,", "")
        error.message = f"Failed to produce {expected} after {tried}: {error.message}"
    if ended is not None and ended != "attempts":
        error.hint = f"The budget of {ended} is spent; allow more of it. {error.hint or ''}".strip()
    error.details.setdefault("attempts", count)
    # Callers that read the list of errors find the last failure there, whatever it was.
    error.details.setdefault("validation_errors", error.to_dict()["details"]["validation_errors"])
    return error


def _is_out_of_time(error: SlipformError, plan: Plan, started: float) -> bool:
    """Return whether the call's time budget is spent; timers of event loops may fire a millisecond early."""
    seconds = plan.budget.seconds
    if seconds is None or not isinstance(error, UpstreamTimeout):
        return False
    return plan.clock() - started >= seconds - 0.01


def _out_of_time(
    error: SlipformError, verdict: Verdict | None, report: Report, plan: Plan, request: ModelRequest
) -> SlipformError:
    """Return the error of a call whose time budget ran out, with the fault of its last answer, if it had one."""
    if verdict is not None:
        return _failure(verdict, report, "seconds", plan, request)
    error.message = f"No complete answer within {plan.budget.seconds:g} s"
    error.hint = "Raise `enforcement.max_seconds`, or the call's `timeout`."
    return error


def as_invalid_format(error: EnforcementError) -> InvalidResponseFormat:
    """Return the same failure as an `InvalidResponseFormat`, for callers that asked to fail hard."""
    hard = InvalidResponseFormat(
        error.message, where=error.where, hint=error.hint, details={**error.details, "cause": error.code}
    )
    hard.__cause__ = error
    return hard
