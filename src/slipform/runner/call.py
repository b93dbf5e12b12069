"""One enforced call of the runner; what its settings require."""

from __future__ import annotations

import dataclasses
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from slipform.config import PriceSettings, Settings
from slipform.enforce import Outcome, Plan, Report
from slipform.engine.drive import run_async
from slipform.engine.fallback import FallbackList, respond_async, run_first_async, with_report_of
from slipform.engine.planning import ModelRoute
from slipform.engine.setup import Options, cost_of, price_of, router_of
from slipform.errors import EnforcementError, SlipformError
from slipform.ir import Message, ModelRequest, Usage
from slipform.ir.request import CallCount
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.runner.jobs import BatchJob, Task
from slipform.runner.journal import JournalEntry
from slipform.runner.rows import Template, as_json
from slipform.schema import OutputStrategy, ResponseFormat, Schema
from slipform.schema.python_types import cached_format

_NOTHING = Usage()


class FinishedRow(msgspec.Struct, frozen=True):
    """A row that is finished, well or not, and what it took."""

    entry: JournalEntry
    usage: Usage = _NOTHING
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class RowCaller:
    """Asks for the rows of one job; everything but the prompt is the same for all of them."""

    route: ModelRoute
    request: ModelRequest
    plan: Plan
    options: Options
    template: Template
    prices: Mapping[str, PriceSettings]
    fallbacks: tuple[str, ...] = ()
    """Who is asked for a row when the request's model cannot answer."""

    async def ask(self, task: Task) -> FinishedRow:
        """The finished row; what the vendor's side fails with is raised."""
        prompt = self.template.fill(task.row)
        request = self.request.replace(messages=(*self.request.messages, Message.user(prompt)))
        try:
            outcome = await self._outcome(request)
        except EnforcementError as error:
            return self.failed(task, error)
        # Half a character has no UTF-8, but a JSON escape; an answer that was given back as it is need not be JSON.
        text = outcome.text.encode("utf-8", "backslashreplace") if outcome.is_valid else as_json(outcome.value)
        answered = b',"model":%s' % as_json(outcome.report.attempts[-1].model) if self.fallbacks else b""
        line = b'{"row":%d,"key":%s,"value":%s%s}' % (task.number, as_json(task.key), text, answered)
        entry = JournalEntry(task.number, task.key, True, line, task.content)
        return FinishedRow(entry, outcome.report.usage, self._cost(outcome.report))

    def _outcome(self, request: ModelRequest) -> Coroutine[Any, Any, Outcome]:
        if not self.fallbacks:
            return run_async(request, self.plan, self.route.awaited)
        models = (request.model, *self.fallbacks)
        return respond_async(self.route.router, models, request, self.options, self.plan.schema)

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:
        """A row that could not be done, with the reason."""
        report = error.report if isinstance(error.report, Report) else Report()
        return FinishedRow(failure_entry(task, error), report.usage, self._cost(report))

    def _cost(self, report: Report) -> float | None:
        """What the attempts cost, each by the price of its own model; None where no price is known."""
        if not self.prices:
            return None
        name = self.route.router.full_name
        costs = [cost_of(price_of(self.prices, name(each.model)), each.usage) for each in report.attempts]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known else None


def failure_entry(task: Task, error: SlipformError) -> JournalEntry:
    """The line of a row that could not be done: the reason, and the row as it was."""
    fields = {"row": task.number, "key": task.key, "error": _plain(error.to_dict()), "input": task.row}
    return JournalEntry(task.number, task.key, False, as_json(fields), task.content)


def asker_of(job: BatchJob, router: Router | None) -> RowCaller:
    """What asks for the rows of a job: the plan is made once. Without a router, one is made of the job's settings."""
    routes = router or runner_router(job.settings)
    wanted = cached_format(job.schema.name, job.schema.document, strict=True)
    request = ModelRequest(job.model, (), response_format=wanted, max_tokens=job.max_tokens)
    route = ModelRoute(routes, job.model)
    plan = route.plan(request, job.options, job.schema)
    return RowCaller(route, request, plan, job.options, job.template, job.settings.prices, job.fallbacks)


def runner_router(settings: Settings) -> Router:
    """The providers of the settings, for batches.

    When a vendor asks to slow down, all rows wait together; so no call may wait alone and hide it.
    """
    return router_of(settings, retries=RetryPolicy(attempts=0))


def resolved_models(router: Router, model: str | Sequence[str] | None) -> tuple[str, ...]:
    """The models to ask, one after the other, each as `provider/model`."""
    return tuple(dict.fromkeys(resolved(router, name) for name in router.candidates(model or "")))


def resolved(router: Router, model: str | None) -> str:
    """`provider/model` as it will really be called."""
    provider, upstream = router.resolve(model)
    name = next((name for name, each in router.providers.items() if each is provider), provider.name)
    return f"{name}/{upstream}"


def _plain(fields: Mapping[str, Any]) -> Any:
    """An error's fields as JSON can hold them; details may be anything."""
    return orjson.loads(as_json(fields))


ANY_JSON: Schema[Any] = Schema("json", {"type": ["object", "array"]})
"""What JSON is required to be when no schema says more: an object or an array."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One model, called the way document 001 calls providers; what each vendor needs for it is the codecs' business."""

    router: Router
    model: str
    """`provider/model`, as it is really called."""
    options: Options
    fallbacks: tuple[str, ...] = ()
    """Who is asked when that model cannot answer."""

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
        """What the model says to the payload under these instructions.

        With `json_mode`, or a schema, it is compact JSON that was repaired and validated, or an error; without them
        it is the text as the model gave it. JSON is never streamed. `response_mime_type` is a hint for the one API
        that takes it (Gemini); others report that they have no such field.
        """
        outcome = await self.answer(
            instructions=instructions,
            payload=payload,
            streaming=streaming,
            timeout=timeout,
            response_mime_type=response_mime_type,
            schema=schema,
            json_mode=json_mode,
        )
        return outcome.text

    async def answer(
        self,
        *,
        instructions: str,
        payload: str,
        streaming: bool,
        timeout: float | None,  # noqa: ASYNC109 — as in `invoke`
        response_mime_type: str,
        schema: Schema[Any] | None,
        json_mode: bool,
    ) -> Outcome:
        """`invoke`, with the report, whose last attempt names the model that answered."""
        models = (self.model, *self.fallbacks)
        listed = FallbackList(self.router, models, CallCount(self.options.budget.calls))
        messages = (Message.system(instructions), Message.user(payload))
        judged = json_mode or schema is not None

        async def ask(route: ModelRoute) -> Outcome:
            request = ModelRequest(route.name, messages, calls=listed.calls)
            if judged:
                request, plan = self._json(route, request, schema, response_mime_type)
            else:
                plan = route.plan(request, self.options)
            streams = streaming and not judged
            outcome = await run_async(request, plan, route.awaited, judged=judged, streaming=streams, limit=timeout)
            return with_report_of(listed.before, outcome)

        return await run_first_async(listed, ask)

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
