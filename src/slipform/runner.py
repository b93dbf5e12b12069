"""Answer files and datasets with a model: `run` and `batch`.

>>> from slipform.runner import batch, run
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipform.addons.batch.datasets import Summary, batch
    from slipform.addons.batch.files import RunReport, run, run_report

__all__ = ["RunReport", "Summary", "batch", "run", "run_report"]

# Imported on first use, so that the command line starts fast.
_MODULES = {"Summary": "datasets", "batch": "datasets", "RunReport": "files", "run": "files", "run_report": "files"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'slipform.runner' has no attribute {name!r}")
    value: object = getattr(import_module(f"slipform.addons.batch.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
