"""Run work on large schemas in threads of its own, so that an event loop goes on meanwhile.

Most of that work is Python and hands the interpreter over every few milliseconds. What does not is the compiling of
validators, which holds it throughout: about 3 µs for each value of a schema and 60 µs for each pattern, so the limits
on a request's schemas (`server.max_schema_nodes`) bound it. Two threads, because each that is busy makes every turn of
the event loop wait for its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 2


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="slipform-schemas")


async def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns, once one of the threads has done it. It must not raise `StopIteration`."""
    context = contextvars.copy_context()
    task = functools.partial(context.run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads(), task)
