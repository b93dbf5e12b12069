"""Script models and vendors for tests.

::

    with FakeVendor([rate_limited(retry_after_ms=5), "Hello"]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="any")
"""

from slipform.testing.model import FakeModel, Interrupted, Turn, calling
from slipform.testing.unreliable import Faults, UnreliableModel
from slipform.testing.vendor import (
    Answer,
    FakeVendor,
    Raw,
    Received,
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
from slipform.testing.wire_formats import Api

__all__ = [
    "Answer",
    "Api",
    "FakeModel",
    "FakeVendor",
    "Faults",
    "Interrupted",
    "Raw",
    "Received",
    "Step",
    "Turn",
    "UnreliableModel",
    "calling",
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
