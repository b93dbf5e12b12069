"""Hold the state that the calls and pages of one worker share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from slipform.addons.server.console.console import Console
from slipform.addons.server.deployment import Deployments
from slipform.addons.server.observability.metrics import Metrics, WorkerAddress


@dataclass(slots=True)
class WorkerState:
    """The state that the calls and pages of one worker share; its application changes it."""

    deployments: Deployments
    metrics: Metrics
    console: Console
    worker: WorkerAddress | None = None
    """The address of this worker among several."""
    started: int = field(default_factory=lambda: int(time.time()))
    """When the worker started, in seconds since the epoch."""
    waiting_for: str | None = "starting"
    """Why the worker is not ready; empty when it is."""
    is_draining: bool = False
    last_reload_refused: bool = False
