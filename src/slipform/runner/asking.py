"""One enforced call on the event loop, and one row of a dataset made into a finished line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from slipform.client_async import AsyncClient
from slipform.config import Price, Settings
from slipform.enforce import Outcome, Plan, Report, Steps, enforce
from slipform.enforce.loop import advance
from slipform.engine import advance_async, logged, plan_for, router_of
from slipform.errors import EnforcementError, SlipformError, UpstreamError, UpstreamTimeout
from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.ir.quick import quick
from slipform.prices import cost_of
from slipform.providers.retry import Retries
from slipform.providers.router import Router
from slipform.runner.jobs import Job, Task
from slipform.runner.journal import Entry
from slipform.runner.template import Template, as_json
from slipform.schema.kept import format_of

_NOTHING = Usage()
_GRACE = 0.5


@quick
@dataclass(frozen=True, slots=True)
class Answered:
    """A row that is finished, well or not, and what it took."""

    entry: Entry
    usage: Usage = _NOTHING
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks for the rows of one job; everything but the prompt is the same for all of them."""

    client: AsyncClient
    request: ModelRequest
    plan: Plan
    template: Template
    price: Price | None = None

    async def ask(self, task: Task) -> Answered:
        """The finished row; what the vendor's side fails with is raised."""
        prompt = self.template.fill(task.row)
        request = self.request.replace(messages=(*self.request.messages, Message.user(prompt)))
        steps = logged(enforce(request, self.plan), request, self.plan)
        try:
            outcome = await drive(steps, self.client, self.plan.backoff_seconds)
        except EnforcementError as error:
            return self.failed(task, error)
        usage = outcome.report.usage
        text = outcome.text.encode("utf-8", "backslashreplace")  # half a character has no UTF-8, but a JSON escape
        line = b'{"row":%d,"key":%s,"value":%s}' % (task.number, as_json(task.key), text)
        return Answered(Entry(task.number, task.key, True, line, task.content), usage, cost_of(self.price, usage))

    def failed(self, task: Task, error: SlipformError) -> Answered:
        """A row that could not be done, with the reason."""
        usage = error.report.usage if isinstance(error.report, Report) else _NOTHING
        return Answered(failure_entry(task, error), usage, cost_of(self.price, usage))


def failure_entry(task: Task, error: SlipformError) -> Entry:
    """The line of a row that could not be done: the reason, and the row as it was."""
    fields = {"row": task.number, "key": task.key, "error": _plain(error.to_dict()), "input": task.row}
    return Entry(task.number, task.key, False, as_json(fields), task.content)


def asker_of(job: Job, router: Router | None) -> Asker:
    """What asks for the rows of a job: the plan is made once. Without a router, one is made of the job's settings."""
    routes = router or runner_router(job.settings)
    wanted = format_of(job.schema.name, job.schema.document, strict=True)
    request = ModelRequest(job.model, (), response_format=wanted, max_tokens=job.max_tokens)
    plan = plan_for(routes, request, job.options, job.schema)
    return Asker(AsyncClient(job.model, router=routes, options=job.options), request, plan, job.template, job.price)


def runner_router(settings: Settings) -> Router:
    """The providers of the settings, for batches.

    When a vendor asks to slow down, all rows wait together; so no call may wait alone and hide it.
    """
    return router_of(settings, retries=Retries(attempts=0))


async def drive(steps: Steps, client: AsyncClient, backoff: float = 0, seconds: float | None = None) -> Outcome:
    """Send what the steps ask for until they come to an outcome; each call may take so many seconds."""
    asked = next(steps)
    while True:
        try:
            response = await (client.complete(asked) if seconds is None else _limited(client, asked, seconds))
        except UpstreamError as error:
            asked = steps.throw(error)
            continue
        except BaseException as error:  # cancelled: the log line and the span are written all the same
            steps.throw(error)
            raise
        further = await advance_async(steps, response, asked)
        if isinstance(further, Outcome):
            return further
        if backoff:
            await asyncio.sleep(backoff)
        asked = further


async def _limited(client: AsyncClient, asked: ModelRequest, seconds: float) -> ModelResponse:
    async with time_limit(seconds):
        return await client.complete(asked)


@contextlib.asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Raises `UpstreamTimeout` when what is inside takes longer; a transport's own limit speaks first."""
    try:
        async with asyncio.timeout(None if seconds is None else seconds + _GRACE):
            yield
    except TimeoutError as error:
        raise UpstreamTimeout(
            f"No complete answer within {seconds or 0:g} s",
            hint="Raise `runtime.timeout_seconds` if the model needs longer.",
        ) from error


def send(steps: Steps, response: ModelResponse) -> Outcome:
    """Send the response that ends the steps."""
    ended = advance(steps, response)
    if not isinstance(ended, Outcome):
        raise TypeError("There are more steps")
    return ended


def resolved(router: Router, model: str | None) -> str:
    """`provider/model` as it will really be called."""
    provider, upstream = router.resolve(model)
    name = next((name for name, each in router.providers.items() if each is provider), provider.name)
    return f"{name}/{upstream}"


def _plain(fields: Mapping[str, Any]) -> Any:
    """An error's fields as JSON can hold them; details may be anything."""
    return orjson.loads(as_json(fields))
