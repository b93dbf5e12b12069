"""Files and datasets in, validated JSON out: `run` for files, `batch` for the rows of a dataset.

>>> from slipform.runner import batch, run
"""

from slipform.runner.datasets import Summary, batch
from slipform.runner.files import RunReport, run, run_report

__all__ = ["RunReport", "Summary", "batch", "run", "run_report"]
