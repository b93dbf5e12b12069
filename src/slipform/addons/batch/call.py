"""Make the enforced calls of `batch` and `run`: one per row, one per file."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import orjson

from slipform.addons.batch.file_rows import read_row
from slipform.addons.batch.jobs import KEEP_ALL, BatchJob, Task
from slipform.addons.batch.journal import JournalEntry
from slipform.addons.batch.rows import Row, as_text
from slipform.call_options import CallOptions
from slipform.config import Settings
from slipform.enforce import Outcome, Plan, Report
from slipform.enforce.doubts import DOUBTS
from slipform.enforce.options import for_many
from slipform.engine.drive import run_async
from slipform.engine.fallback import FallbackList, respond_async, run_first_async, with_report_of
from slipform.engine.planning import ModelRoute
from slipform.engine.setup import Options, router_of
from slipform.errors import (
    ConfigError,
    EnforcementError,
    JsonEnforcementError,
    RunawayError,
    SchemaViolationError,
    SlipformError,
    TruncatedError,
)
from slipform.files.tables import as_json
from slipform.ir import Message, ModelRequest, Usage
from slipform.ir.request import CallCount
from slipform.named_schemas import schema_named
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, ResponseFormat, Schema
from slipform.schema.python_types import cached_format, cached_schema
from slipform.text.strict import parse

_NO_USAGE = Usage()


class FinishedRow(msgspec.Struct, frozen=True):
    """A finished row, valid or failed, with its tokens and cost."""

    entry: JournalEntry
    usage: Usage = _NO_USAGE
    cost: float | None = None


class RowFunction(Protocol):
    """Answers rows; `RowCaller`, and fakes for benchmarks."""

    async def ask(self, task: Task) -> FinishedRow:
        """Return the finished row; raises `UpstreamError` when the vendor fails."""
        ...

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:
        """Return the row as failed, with the reason."""
        ...


@dataclass(frozen=True, slots=True)
class RowCaller:
    """Answers the rows of one job; what rows share (request, plan) is made once."""

    job: BatchJob
    route: ModelRoute
    request: ModelRequest
    plan: Plan

    async def ask(self, task: Task) -> FinishedRow:
        """Return the finished row; raises `UpstreamError` when the vendor fails."""
        started = time.perf_counter()
        try:
            outcome = await self._outcome(task)
        except EnforcementError as error:
            return self.failed(task, error, time.perf_counter() - started)
        return self.finished_row(task, outcome, time.perf_counter() - started)

    def finished_row(self, task: Task, outcome: Outcome, seconds: float | None = None) -> FinishedRow:
        """Return the row with its result."""
        report = outcome.report
        # A lone surrogate has no UTF-8, but a JSON escape; an invalid answer that was let pass need not be JSON.
        text = outcome.text.encode("utf-8", "backslashreplace") if outcome.is_valid else as_json(outcome.value)
        more: dict[str, Any] = {"model": report.attempts[-1].model} if self.job.fallbacks else {}
        if doubts := [warning.code for warning in report.warnings if warning.code in DOUBTS]:
            more["warnings"] = doubts
        if report.evidence is not None:
            from slipform.addons.evidence.collect import ungrounded

            more["evidence"] = {pointer: each.to_dict() for pointer, each in report.evidence.items()}
            scores = [each.confidence for each in report.evidence.values() if each.confidence is not None]
            more |= {"confidence": min(scores, default=None), "ungrounded": ungrounded(outcome.value, report.evidence)}
        more |= self._figures(report, seconds)
        if self.job.keep:
            more["input"] = self._kept_columns(task.row)
        rest = b"," + as_json(more)[1:] if more else b"}"
        line = b'{"row":%d,"key":%s,"value":%s%s' % (task.number, as_json(task.key), text, rest)
        entry = JournalEntry(task.number, task.key, True, line, task.content)
        return FinishedRow(entry, report.usage, report.cost)

    def plan_request(self, task: Task) -> tuple[ModelRequest, Plan]:
        """Return the request for a row, and the plan for enforcing its answer."""
        job = self.job
        prompt = job.template.fill(task.row)
        request = self.request.replace(messages=(*self.request.messages, Message.user(prompt)))
        options, schema = self._options_and_schema(task.row)
        if job.schema_column is not None:
            request = request.replace(response_format=_format_of(schema, job.strategy))
        is_shared = options.evidence is None and job.schema_column is None
        return request, self.plan if is_shared else self.route.plan(request, options, schema)

    def _options_and_schema(self, row: Row) -> tuple[Options, Schema[Any]]:
        options = self.job.options
        schema = self.job.schema
        if options.evidence is not None and self.job.source is not None:
            evidence = dataclasses.replace(options.evidence, source=as_text(row.get(self.job.source), self.job.source))
            options = dataclasses.replace(options, evidence=evidence)
        if self.job.schema_column is not None:
            schema = row_schema(row.get(self.job.schema_column), self.job.settings)
        return options, schema

    def _outcome(self, task: Task) -> Coroutine[Any, Any, Outcome]:
        job = self.job
        request, plan = self.plan_request(task)
        if job.fallbacks:
            options, schema = self._options_and_schema(task.row)
            models = (request.model, *job.fallbacks)
            return respond_async(self.route.router, models, request, options, schema)
        return run_async(request, plan, self.route.awaited)

    def failed(self, task: Task, error: SlipformError, seconds: float | None = None) -> FinishedRow:
        """Return the row as failed, with the reason."""
        report = error.report if isinstance(error.report, Report) else Report()
        entry = failure_entry(task, error, self._figures(report, seconds))
        return FinishedRow(entry, report.usage, report.cost)

    def _kept_columns(self, row: Row) -> dict[str, Any]:
        names = row if KEEP_ALL in self.job.keep else self.job.keep
        return {name: row.get(name) for name in names}

    def _figures(self, report: Report, seconds: float | None) -> dict[str, Any]:
        if not self.job.figures:
            return {}
        usage = report.usage
        calls = len(report.attempts) + len(report.samples)
        figures = {
            "calls": calls, "input": usage.input, "output": usage.output, "cost": report.cost,
            "seconds": None if seconds is None else round(seconds, 4),
        }  # fmt: skip
        return {"figures": figures}


@dataclass(frozen=True, slots=True)
class FileRowCaller:
    """Reads the file of each row, here and beside the event loop, before the row is answered."""

    caller: RowFunction

    async def ask(self, task: Task) -> FinishedRow:
        """Return the finished row; a file that cannot be read fails its own row."""
        try:
            row = await asyncio.to_thread(read_row, task.row)
        except ConfigError as error:
            return self.caller.failed(task, error)
        return await self.caller.ask(dataclasses.replace(task, row=row))

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:
        """Return the row as failed, with the reason."""
        return self.caller.failed(task, error)


def row_schema(schema: Any, settings: Settings) -> Schema[Any]:
    """Return the schema that a row names or holds; raises `ConfigError` or `SchemaError`."""
    if isinstance(schema, str) and schema.lstrip().startswith("{"):
        schema = parse(schema)
    if isinstance(schema, Mapping):
        return cached_schema(cached_format("answer", dict(schema), strict=True).json_schema)
    return schema_named(schema, settings)


def _format_of(schema: Schema[Any], strategy: OutputStrategy) -> ResponseFormat:
    response_format = cached_format(schema.name, schema.document, strict=True)
    if strategy is OutputStrategy.AUTO:
        return response_format
    return response_format.with_strategy(strategy)


def failure_entry(task: Task, error: SlipformError, more: Mapping[str, Any] | None = None) -> JournalEntry:
    """Return the journal entry of a failed row: the reason and the row itself."""
    fields = {"row": task.number, "key": task.key, "error": _json_fields(error.to_dict()), "input": task.row}
    fields |= more or {}
    return JournalEntry(task.number, task.key, False, as_json(fields), task.content)


def row_caller(job: BatchJob, router: Router | None) -> RowCaller:
    """Return the caller for the rows of a job, with one plan for all; without a router, from the job's settings."""
    router = router or runner_router(job.settings)
    response_format = _format_of(job.schema, job.strategy)
    request = ModelRequest(job.model, (), response_format=response_format, max_tokens=job.max_tokens)
    route = ModelRoute(router, job.model)
    job = dataclasses.replace(job, options=for_many(job.options))
    plan = route.plan(request, dataclasses.replace(job.options, evidence=None), job.schema)
    return RowCaller(job, route, request, plan)


def runner_router(settings: Settings) -> Router:
    """Return the providers of the settings without retries: after a rate limit all rows wait together."""
    return router_of(settings, retries=RetryPolicy(attempts=0), keyless=True)


def resolved_models(router: Router, model: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the models to try in their order, each as `provider/model`."""
    return tuple(dict.fromkeys(_resolved(router, name) for name in router.candidates(model or "")))


def _resolved(router: Router, model: str | None) -> str:
    provider, upstream = router.resolve(model)
    name = next((name for name, each in router.providers.items() if each is provider), provider.name)
    return f"{name}/{upstream}"


def _json_fields(fields: Mapping[str, Any]) -> Any:
    """Return an error's fields as plain JSON; details may hold anything."""
    return orjson.loads(as_json(fields))


def _not_json(error: EnforcementError) -> JsonEnforcementError:
    """The same failure as the design document has it: whatever is not JSON after the retries is this error."""
    details = {**error.details, "cause": error.code}
    return JsonEnforcementError(error.message, where=error.where, hint=error.hint, details=details, report=error.report)


ANY_JSON: Schema[Any] = Schema("json", {"type": ["object", "array"]})
"""The schema of JSON mode: an object or an array."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One model, called as the design document calls providers."""

    router: Router
    model: str
    """`provider/model`, aliases resolved."""
    options: Options
    fallbacks: tuple[str, ...] = ()
    """Models to try when that one cannot answer."""

    async def invoke(
        self,
        *,
        instructions: str,
        payload: str,
        streaming: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 — the name is the design document's
        response_mime_type: str = "application/json",
        schema: Schema[Any] | None = None,
        json_mode: bool = False,
    ) -> str:
        """Return the model's answer to the payload under these instructions.

        With `json_mode`, or a schema, it is compact JSON, repaired and validated, or an error is raised; without them
        it is the model's text. JSON is never streamed. `response_mime_type` is a hint for the one API that takes it
        (Gemini); others report that they have no such field.
        """
        call = CallOptions(json_mode, schema is not None, response_mime_type, streaming, timeout, schema)
        return (await self.answer(instructions, payload, call)).text

    async def answer(self, instructions: str, payload: str, call: CallOptions) -> Outcome:
        """`invoke`, with the report, whose last attempt names the model that answered."""
        models = (self.model, *self.fallbacks)
        fallback = FallbackList(self.router, models, CallCount(self.options.budget.calls))
        messages = (Message.system(instructions), Message.user(payload))
        is_json = call.require_json or call.schema is not None

        async def ask(route: ModelRoute) -> Outcome:
            request = ModelRequest(route.name, messages, calls=fallback.calls)
            if is_json:
                request, plan = self._json(route, request, call.schema, call.response_mime_type)
            else:
                plan = route.plan(request, self.options)
            streams = call.streaming and not is_json
            limit = call.timeout_seconds
            try:
                outcome = await run_async(request, plan, route.awaited, judged=is_json, streaming=streams, limit=limit)
            except (TruncatedError, RunawayError, SchemaViolationError) as error:
                if isinstance(error, SchemaViolationError) and call.schema is not None:
                    raise
                raise _not_json(error) from error
            return with_report_of(fallback.before, outcome)

        return await run_first_async(fallback, ask)

    def _json(
        self, route: ModelRoute, request: ModelRequest, schema: Schema[Any] | None, mime_type: str
    ) -> tuple[ModelRequest, Plan]:
        if mime_type != "application/json":
            hint = {"generationConfig": {"responseMimeType": mime_type}}
            request = request.replace(extra=hint, extra_for="gemini")
        if schema is not None:
            request = request.replace(response_format=ResponseFormat.strict(schema.spec))
            return request, route.plan(request, self.options, schema)
        # The vendor's JSON mode, and the prompt as well: some vendors refuse JSON mode unless the prompt says "JSON".
        request = request.replace(json_mode=True)
        plan = route.plan(request, self.options, ANY_JSON)
        return request, dataclasses.replace(plan, strategy=OutputStrategy.PROMPTED, stronger=())
