"""An enforced answer as a stream: pieces while they are certain, silence while it is asked again."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

from slipform.enforce import Outcome, Plan, enforce
from slipform.enforce.listening import Listening, Sink
from slipform.enforce.stream import closing_chunks
from slipform.engine import advance_async, begin_async, logged
from slipform.errors import SlipformError, TruncatedError, UpstreamError
from slipform.ir import CompletionChunk, ModelRequest
from slipform.ir.request import is_heavy, schema_text
from slipform.off_loop import off_loop
from slipform.providers.base import Through
from slipform.schema import OutputStrategy

Mode: TypeAlias = Literal["auto", "live", "buffer"]
"""`live`: pieces leave as they become certain. `buffer`: all at the end. `auto`: live where the channel is held to the
schema."""
Source: TypeAlias = Callable[
    [ModelRequest, Through[list[CompletionChunk]]], AsyncGenerator[list[CompletionChunk], None]
]


async def respond_batches(
    request: ModelRequest,
    planned: Callable[[], Awaitable[Plan]],
    source: Source,
    mode: Mode = "auto",
    sink: Sink | None = None,
) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
    """Chunks of the answer as they become certain; the outcome, as soon as there is one; then the last chunks.

    What can no longer become valid ends the call to the model at once; so does a model that talks on after its JSON.
    The model is then asked again behind the open stream. What has left stays: a new answer that does not begin with it
    is an error. What the sink takes, as soon as it is certain, is not given here.
    """
    plan, heavy = await planned(), is_heavy(request)
    listen = functools.partial(Listening, plan, follows=_follows(request, plan, mode), sink=sink)
    listening = await off_loop(listen) if heavy else listen()
    steps = logged(enforce(request, plan), request, plan, streaming=True)
    asked = await begin_async(steps, request)
    while True:
        if heavy:
            await off_loop(listening.begin, asked)
        else:
            listening.begin(asked)
        heard = source(asked, listening)
        try:
            async for certain in heard:
                if certain:
                    yield certain
                if listening.stopped:
                    break
        except (TruncatedError, UpstreamError) as error:
            # What breaks off after the last bracket takes nothing away.
            if not listening.complete:
                if isinstance(error, UpstreamError):
                    steps.throw(error)
                raise
        finally:
            # An answer that was left off early ends with its connection.
            with contextlib.suppress(SlipformError):
                await heard.aclose()
        further = await advance_async(steps, listening.response(), request)
        if isinstance(further, Outcome):
            rest, outcome = listening.settled(further)
            yield outcome
            yield closing_chunks(outcome.answer, rest)
            return
        asked = further


_MOST_FOLLOWED = 1 << 16
"""Bytes of a schema that a growing answer is held to, piece by piece on the event loop."""


def _follows(request: ModelRequest, plan: Plan, mode: Mode) -> bool:
    """Whether the answer can be followed: there is one shape for it, and nothing else may come in its place."""
    if plan.schema is None or request.tools or plan.on_failure == "raw" or mode == "buffer":
        return False
    if len(schema_text(request)) > _MOST_FOLLOWED:
        return False
    return mode == "live" or plan.strategy is OutputStrategy.NATIVE
