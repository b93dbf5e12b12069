"""Scripted models and vendors for tests: yours and slipform's own.

::

    with FakeVendor([rate_limited(retry_after_ms=5), "Hello"]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="any")
"""

from slipform.testing.model import FakeModel, Interrupted, Turn
from slipform.testing.shapes import Api
from slipform.testing.steps import (
    Answer,
    Raw,
    Step,
    cut_stream,
    garbage,
    garbage_body,
    hang,
    hang_up,
    rate_limited,
    refusal,
    rejected,
    reset,
    server_error,
    trickle,
    truncated,
)
from slipform.testing.vendor import FakeVendor, Received

__all__ = [
    "Answer",
    "Api",
    "FakeModel",
    "FakeVendor",
    "Interrupted",
    "Raw",
    "Received",
    "Step",
    "Turn",
    "cut_stream",
    "garbage",
    "garbage_body",
    "hang",
    "hang_up",
    "rate_limited",
    "refusal",
    "rejected",
    "reset",
    "server_error",
    "trickle",
    "truncated",
]
