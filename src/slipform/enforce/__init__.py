"""Make the answer fit."""

from slipform.enforce.fixes import Switches
from slipform.enforce.judge import Standard, Verdict, judge
from slipform.enforce.live import Live
from slipform.enforce.loads import loads, loads_report
from slipform.enforce.loop import Budget, Formatter, Outcome, Plan, Steps, enforce
from slipform.enforce.patch import Patched, patch
from slipform.enforce.prompts import Wording
from slipform.enforce.report import Attempt, Report
from slipform.enforce.watch import Watch, WatchedAnswer
from slipform.ir.guard import Guard

__all__ = [
    "Attempt",
    "Budget",
    "Formatter",
    "Guard",
    "Live",
    "Outcome",
    "Patched",
    "Plan",
    "Report",
    "Standard",
    "Steps",
    "Switches",
    "Verdict",
    "Watch",
    "WatchedAnswer",
    "Wording",
    "enforce",
    "judge",
    "loads",
    "loads_report",
    "patch",
]
