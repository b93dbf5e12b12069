"""Answer files and datasets with a model: `run` and `batch`.

>>> from slipform.runner import batch, run
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipform.runner.datasets import Summary as Summary
    from slipform.runner.datasets import batch as batch
    from slipform.runner.files import RunReport as RunReport
    from slipform.runner.files import run as run
    from slipform.runner.files import run_report as run_report

__all__ = ["RunReport", "Summary", "batch", "run", "run_report"]

# Imported on first use, so that the command line starts fast.
_MODULES = {"Summary": "datasets", "batch": "datasets", "RunReport": "files", "run": "files", "run_report": "files"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'slipform.runner' has no attribute {name!r}")
    value: object = getattr(import_module(f"slipform.runner.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
