"""Run one call from its request to its outcome: the names of this package."""

from __future__ import annotations

from slipform.engine.planning import ModelRoute, enforced_tools, plan_for, requires_call, wanted_schema
from slipform.engine.setup import LOCAL, Options, default_router, options_of, router_of

__all__ = [
    "LOCAL",
    "ModelRoute",
    "Options",
    "default_router",
    "enforced_tools",
    "options_of",
    "plan_for",
    "requires_call",
    "router_of",
    "wanted_schema",
]
