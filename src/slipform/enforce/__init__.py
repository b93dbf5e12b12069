"""Make a model's answer fit its schema: the names of this package."""

from slipform.enforce.coercion import Switches
from slipform.enforce.early_stop import EarlyStop, GuardedAnswer
from slipform.enforce.judging import Requirement, Verdict, judge
from slipform.enforce.loading import ensure_json_only, loads, loads_report
from slipform.enforce.loop import enforce
from slipform.enforce.options import Budget
from slipform.enforce.patching import Patched, patch
from slipform.enforce.plan import Attempt, Formatter, Outcome, Plan, Report, Steps
from slipform.enforce.prompts import Wording
from slipform.enforce.release import ReleaseGate
from slipform.ir.request import Guard

__all__ = [
    "Attempt",
    "Budget",
    "EarlyStop",
    "Formatter",
    "Guard",
    "GuardedAnswer",
    "Outcome",
    "Patched",
    "Plan",
    "ReleaseGate",
    "Report",
    "Requirement",
    "Steps",
    "Switches",
    "Verdict",
    "Wording",
    "enforce",
    "ensure_json_only",
    "judge",
    "loads",
    "loads_report",
    "patch",
]
