"""One call of the runner: instructions and a payload in, text out, JSON where that is required."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from slipform.client_async import AsyncClient
from slipform.enforce import Attempt, Outcome, Plan, Report, Steps, enforce
from slipform.engine import Options, logged, plan_for
from slipform.ir import Message, ModelRequest, ModelResponse
from slipform.ir.reducer import Reducer, Snapshot
from slipform.runner.asking import drive, send, time_limit
from slipform.schema import OutputStrategy, ResponseFormat, Schema

ANY_JSON: Schema[Any] = Schema("json", {"type": ["object", "array"]})
"""What JSON is required to be when no schema says more: an object or an array."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One model, called the way document 001 calls providers; what each vendor needs for it is the codecs' business."""

    client: AsyncClient
    model: str
    """`provider/model`, as it is really called."""
    options: Options

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
        request = ModelRequest(self.model, (Message.system(instructions), Message.user(payload)))
        if json_mode or schema is not None:
            request, plan = self._json(request, schema, response_mime_type)
            steps = logged(enforce(request, plan), request, plan, limit=timeout)
            return (await drive(steps, self.client, plan.backoff_seconds, timeout)).text
        plan = plan_for(self.client.router, request, self.options)
        steps = logged(_as_it_is(request, plan), request, plan, streaming=streaming, limit=timeout)
        work = self._streamed(steps, timeout) if streaming else drive(steps, self.client, seconds=timeout)
        return (await work).text

    def _json(self, request: ModelRequest, schema: Schema[Any] | None, mime_type: str) -> tuple[ModelRequest, Plan]:
        if mime_type != "application/json":
            hint = {"generationConfig": {"responseMimeType": mime_type}}
            request = request.replace(extra=hint, extra_for="gemini")
        if schema is not None:
            request = request.replace(response_format=ResponseFormat.strict(schema.spec))
            return request, plan_for(self.client.router, request, self.options, schema)
        # The vendor's JSON mode, and the prompt as well: some vendors refuse JSON mode unless the prompt says "JSON".
        request = request.replace(json_mode=True)
        plan = plan_for(self.client.router, request, self.options, ANY_JSON)
        return request, dataclasses.replace(plan, strategy=OutputStrategy.PROMPTED, stronger=())

    async def _streamed(self, steps: Steps, seconds: float | None) -> Outcome:
        asked = next(steps)
        reducer = Reducer()
        reducer.start(Snapshot())
        try:
            async with time_limit(seconds):
                async for chunk in self.client.complete_stream(asked):
                    reducer.push(chunk)
        except BaseException as error:  # the log line is written all the same
            steps.throw(error)
            raise
        return send(steps, reducer.finish(check=False))


def _as_it_is(request: ModelRequest, plan: Plan) -> Steps:
    """The steps of a call whose answer nobody judges."""
    began = time.monotonic()
    response: ModelResponse = yield request
    attempt = Attempt("ok", plan.strategy, request.model, usage=response.usage, seconds=time.monotonic() - began)
    return Outcome(response.text, response.text, response, Report((attempt,), response.warnings))
