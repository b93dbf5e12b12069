"""What is documented here: `run`, `batch`.

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

# The command line looks at `commands` for its help; the rest is imported when it is used.
_HOMES = {"Summary": "datasets", "batch": "datasets", "RunReport": "files", "run": "files", "run_report": "files"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'slipform.runner' has no attribute {name!r}")
    found: object = getattr(import_module(f"slipform.runner.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
