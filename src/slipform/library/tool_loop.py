"""Run a conversation with tools: ask the model, run its calls, return their results, until it answers.

`conversation` is a generator that does no I/O, like `enforce`: it yields the next action. So the blocking and the async
client, whole and streamed, share one loop; a call without tools is a conversation of one step.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from slipform.enforce import Outcome, Report
from slipform.engine.fallback import respond, respond_async
from slipform.engine.setup import Options
from slipform.errors import ConfigError, SlipformError, ToolLoopError
from slipform.ir import Media, Message, ModelRequest, ModelWarning, Text, Tool, ToolCall, ToolResult
from slipform.ir.request import CallCount
from slipform.providers.router import Router
from slipform.schema import Schema

T = TypeVar("T")
Approval: TypeAlias = Callable[[ToolCall], bool | str | Awaitable[bool | str]]
"""Decides whether a call is run: True runs it; False, or a text with the reason, becomes its result for the model."""
ToolLike: TypeAlias = Tool | Callable[..., Any]
MAX_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One tool call and its result: the returned value, its error, or why it was not run."""

    call: ToolCall
    step: int
    """The model's answer that made the call, counted from 1."""
    value: Any = None
    error: Exception | None = None
    declined: str | None = None

    @property
    def result(self) -> ToolResult:
        """The result for the model."""
        failed = self.error is not None or self.declined is not None
        return ToolResult(self.call.id, _parts(self), is_error=failed, name=self.call.name)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a conversation, by name, and how their calls are run."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    approve: Approval | None = None
    max_steps: int = MAX_STEPS

    @classmethod
    def of(cls, tools: Sequence[ToolLike], approve: Approval | None, max_steps: int | None) -> Toolbox:
        """Check the tools of a call; raises `ConfigError` and `SchemaError`, which name the tool."""
        if not isinstance(tools, list | tuple):
            raise ConfigError("`tools` is a list of functions or `Tool`s", hint="Write `tools=[function]`.")
        steps = MAX_STEPS if max_steps is None else max_steps
        if not isinstance(steps, int) or steps < 1:
            raise ConfigError(f"`max_steps` must be a number from 1 on, not {steps!r:.50}")
        if approve is not None and not callable(approve):
            raise ConfigError(
                f"`approve` must be a function, not {approve!r:.50}",
                hint="It receives each `ToolCall` and returns True, False, or the reason why not.",
            )
        by_name: dict[str, Tool] = {}
        for each in tools:
            tool = each if isinstance(each, Tool) else Tool.of(each)
            if tool.name in by_name:
                raise ConfigError(f"Two tools are called {tool.name!r}", hint="Name one: `Tool.of(function, name=…)`.")
            if tool.function is None and tool.vendor is None:
                raise ConfigError(
                    f"The tool {tool.name!r} has no function to run",
                    hint="Make it with `Tool.of(function)`, or answer its calls yourself with `Client.respond`.",
                )
            by_name[tool.name] = tool
        return cls(by_name, approve, steps)

    async def run(self, calls: Sequence[ToolCall], step: int) -> tuple[ToolRun, ...]:
        """Run the calls of one step concurrently; approvals are requested first, one after the other."""
        declined = {call.id: reason for call in calls if (reason := await self._decline(call)) is not None}
        pool = ThreadPoolExecutor(max_workers=max(1, len(calls)), thread_name_prefix="slipform-tool")
        try:
            running = [self._run_one(call, step, declined.get(call.id), pool) for call in calls]
            return tuple(await asyncio.gather(*running))
        finally:
            pool.shutdown(wait=False)

    async def _decline(self, call: ToolCall) -> str | None:
        if self.approve is None:
            return None
        decision = self.approve(call)
        verdict = await decision if inspect.isawaitable(decision) else decision
        if not isinstance(verdict, bool | str):
            raise TypeError(f"`approve` returned {verdict!r:.50}; return True, False, or a text that says why not")
        if verdict is True:
            return None
        return verdict if isinstance(verdict, str) else ""

    async def _run_one(self, call: ToolCall, step: int, declined: str | None, pool: ThreadPoolExecutor) -> ToolRun:
        tool = self.tools[call.name]
        if declined is not None:
            return ToolRun(call, step, declined=f"Not run: {declined or 'the user did not approve this call'}.")
        try:
            if inspect.iscoroutinefunction(tool.function):
                return ToolRun(call, step, await tool.call(call.arguments_resolved))
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            value = await loop.run_in_executor(pool, context.run, tool.call, call.arguments_resolved)
            return ToolRun(call, step, await value if inspect.isawaitable(value) else value)
        except Exception as error:  # noqa: BLE001 — the model gets it as a result, and so does the caller
            return ToolRun(call, step, error=error)


@dataclass(frozen=True, slots=True)
class AskEffect:
    """Ask the model; the reply is an `Outcome`."""

    request: ModelRequest
    models: str | Sequence[str]
    options: Options


@dataclass(frozen=True, slots=True)
class RunEffect:
    """Run these calls; the reply is a tuple of `ToolRun`s."""

    calls: tuple[ToolCall, ...]
    step: int
    seconds: float | None = None
    """The remaining seconds."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that ended in an answer."""

    outcome: Outcome
    """The last step's outcome, with the report of all steps."""
    messages: tuple[Message, ...]
    runs: tuple[ToolRun, ...] = ()


@dataclass(frozen=True, slots=True)
class ConversationSpec:
    """The settings of a conversation."""

    request: ModelRequest
    models: str | Sequence[str]
    options: Options
    toolbox: Toolbox = field(default_factory=Toolbox)


ConversationSteps: TypeAlias = Generator[AskEffect | RunEffect, Any, Conversation]


def conversation(
    router: Router, spec: ConversationSpec, clock: Callable[[], float] = time.monotonic
) -> ConversationSteps:
    """Yield the next action, receive its result, and return the conversation or raise."""
    options = spec.options
    toolbox = spec.toolbox
    count = CallCount(options.budget.calls)
    started = clock()
    request = spec.request.replace(calls=count)
    if toolbox.tools:
        request = request.replace(tools=tuple(toolbox.tools.values()))
        options = dataclasses.replace(options, tools="enforce")  # the calls have been validated
    models = spec.models
    report = Report()
    runs: tuple[ToolRun, ...] = ()
    for step in range(1, toolbox.max_steps + 1):
        try:
            outcome = yield AskEffect(request, models, _remaining_options(options, report, clock() - started))
        except SlipformError as error:
            error.report = _merge_reports(report, error.report) if isinstance(error.report, Report) else report
            raise
        report = _merge_reports(report, outcome.report)
        messages = (*request.messages, reply_message(outcome))
        calls = outcome.answer.tool_calls
        if not calls:
            return Conversation(_with_report(outcome, report), messages, runs)
        if outcome.report.fallbacks:  # models that could not answer are skipped in the next step
            attempted = [attempt.model for attempt in outcome.report.attempts]
            models = [attempted[-1], *(name for name in router.candidates(models) if name not in attempted)]
        if spent := _exhausted_limit(options, report, clock() - started):
            raise _loop_error(f"The budget of {spent} is spent", step, calls, report, "Allow more of it.")
        seconds = None
        if options.budget.seconds is not None:
            seconds = options.budget.seconds - (clock() - started)
        done: tuple[ToolRun, ...] = yield RunEffect(calls, step, seconds)
        runs = (*runs, *done)
        report = report.replace(warnings=(*report.warnings, *_warnings(done)))
        results = Message("tool", tuple(run.result for run in done))
        request = request.replace(messages=(*messages, results))
    hint = "Raise `max_steps`, or tell the model in the prompt when to stop."
    raise _loop_error(f"The limit of {toolbox.max_steps} steps is reached", toolbox.max_steps, calls, report, hint)


def converse(router: Router, spec: ConversationSpec, schema: Schema[Any] | None) -> Conversation:
    """Hold a conversation, blocking."""
    steps = conversation(router, spec)
    tools = BlockingTools(spec.toolbox)
    reply: Outcome | tuple[ToolRun, ...]
    try:
        effect = next(steps)
        while True:
            try:
                if isinstance(effect, AskEffect):
                    reply = respond(router, effect.models, effect.request, effect.options, schema)
                else:
                    reply = tools.run(effect)
            except SlipformError as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(reply)
    except StopIteration as done:
        ended: Conversation = done.value
        return ended
    finally:
        tools.close()


async def converse_async(router: Router, spec: ConversationSpec, schema: Schema[Any] | None) -> Conversation:
    """`converse`, for event loops."""
    steps = conversation(router, spec)
    reply: Outcome | tuple[ToolRun, ...]
    try:
        effect = next(steps)
        while True:
            try:
                if isinstance(effect, AskEffect):
                    reply = await respond_async(router, effect.models, effect.request, effect.options, schema)
                else:
                    reply = await run_calls(spec.toolbox, effect)
            except SlipformError as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(reply)
    except StopIteration as done:
        ended: Conversation = done.value
        return ended


async def run_calls(toolbox: Toolbox, effect: RunEffect) -> tuple[ToolRun, ...]:
    """Run the calls of a step within the remaining time; raises `ToolLoopError` when it is over."""
    try:
        async with asyncio.timeout(effect.seconds) as limit:
            return await toolbox.run(effect.calls, effect.step)
    except TimeoutError as error:
        if not limit.expired():
            raise
        hint = "Raise `timeout`, or let the tools give up sooner."
        raise _loop_error("The budget of seconds is spent", effect.step, effect.calls, Report(), hint) from error


class BlockingTools:
    """Runs tools for a blocking caller, on one event loop for the whole conversation."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._runner: asyncio.Runner | None = None

    def run(self, effect: RunEffect) -> tuple[ToolRun, ...]:
        """Run the calls of a step."""
        runner = self._runner = self._runner or asyncio.Runner()
        return _outside_loops(lambda: runner.run(run_calls(self._toolbox, effect)))

    def close(self) -> None:
        """Close the event loop."""
        if self._runner is not None:
            _outside_loops(self._runner.close)


def _outside_loops(work: Callable[[], T]) -> T:
    """Run `work`, which starts an event loop; in another thread if this one already runs a loop, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, work).result()


def reply_message(outcome: Outcome) -> Message:
    """Return the model's answer as the next request repeats it: in its own parts, with enforced calls and JSON."""
    answer = outcome.answer
    calls = {call.id: call for call in answer.tool_calls}
    parts = outcome.response.parts
    if calls:
        own = {part.id for part in parts if isinstance(part, ToolCall)}
        if own < set(calls):
            return answer.message
        own_parts = [calls.get(part.id) if isinstance(part, ToolCall) else part for part in parts]
        return Message("assistant", tuple(part for part in own_parts if part is not None))
    before = tuple(part for part in parts if not isinstance(part, Text | ToolCall))
    return Message("assistant", (*before, Text(answer.text)), content_resolved=answer.content_resolved)


def _parts(run: ToolRun) -> tuple[Text | Media, ...]:
    """Return the result of a run for the model: text and media unchanged, any other value as JSON."""
    if run.declined is not None:
        return (Text(run.declined),)
    if run.error is not None:
        return (Text(f"{type(run.error).__name__}: {run.error}"),)
    values = run.value if isinstance(run.value, list | tuple) else (run.value,)
    if any(isinstance(each, Media) for each in values):
        return tuple(each if isinstance(each, Media) else Text(_text(each, run.call.name)) for each in values)
    return (Text(_text(run.value, run.call.name)),)


def _text(value: Any, tool: str) -> str:
    if isinstance(value, str):
        return value
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(value, fallback=msgspec.to_builtins).decode()
    except (PydanticSerializationError, TypeError) as error:
        raise TypeError(
            f"The tool {tool!r} returned a {type(value).__name__}, which cannot be written as JSON: {error}. "
            "Return text, JSON values, a pydantic model, a dataclass, or an image."
        ) from error


def _merge_reports(before: Report, later: Report) -> Report:
    """Return the report of a conversation after another step."""
    return Report(
        (*before.attempts, *later.attempts),
        tuple(dict.fromkeys((*before.warnings, *later.warnings))),
        before.fallbacks + later.fallbacks,
        tuple(dict.fromkeys((*before.notes, *later.notes))),
        (*before.fallback_errors, *later.fallback_errors),
        later.evidence,
        (*before.samples, *later.samples),
    )


def _with_report(outcome: Outcome, report: Report) -> Outcome:
    return msgspec.structs.replace(outcome, report=report)


def _warnings(runs: Sequence[ToolRun]) -> list[ModelWarning]:
    """Return the tools' errors as warnings for the report, so that callers see them without asking the model."""
    return [
        ModelWarning("tool_failed", f"The tool {run.call.name!r} raised {type(run.error).__name__}: {run.error}")
        for run in runs
        if run.error is not None
    ]


def _remaining_options(options: Options, report: Report, seconds: float) -> Options:
    """Return the options of the next step: those of the conversation minus what earlier steps have spent."""
    if not report.attempts:
        return options
    budget = options.budget
    usage = report.usage
    used = usage.total if usage.total is not None else usage.output or 0
    left = dataclasses.replace(
        budget,
        seconds=None if budget.seconds is None else max(budget.seconds - seconds, 0.001),
        tokens=None if budget.tokens is None else budget.tokens - used,
        money=None if budget.money is None else budget.money - (report.cost or 0),
    )
    if left == budget:
        return options
    return dataclasses.replace(options, budget=left)


def _exhausted_limit(options: Options, report: Report, seconds: float) -> str | None:
    """Return the limit of the whole conversation that is reached, if any; attempts are counted in each step."""
    budget = dataclasses.replace(options.budget, attempts=len(report.attempts) + 1)
    spent = budget.spent_by(report, seconds)
    return None if spent == "attempts" else spent


def _loop_error(what: str, step: int, calls: Sequence[ToolCall], report: Report, hint: str) -> ToolLoopError:
    names = ", ".join(dict.fromkeys(call.name for call in calls))
    return ToolLoopError(
        f"{what} and the model has not answered: in step {step} it called {names}",
        hint=hint,
        details={"steps": step, "calls": [{"name": call.name, "arguments": call.arguments} for call in calls]},
        report=report,
    )
