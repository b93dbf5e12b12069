"""Hold what the calls and pages of one worker share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from slipform.addons.server.console.console import Console
from slipform.addons.server.deployment import Deployments
from slipform.addons.server.observability.metrics import Metrics, WorkerAddress


@dataclass(slots=True)
class WorkerState:
    """What the calls and pages of one worker share; its application changes it."""

    deployments: Deployments
    metrics: Metrics
    console: Console
    worker: WorkerAddress | None = None
    """Which of several workers this is."""
    started: int = field(default_factory=lambda: int(time.time()))
    """When it started, in seconds since 1970."""
    waiting_for: str | None = "starting"
    """Why no requests should come yet."""
    is_draining: bool = False
    last_reload_refused: bool = False
