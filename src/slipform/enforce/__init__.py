"""Make the answer fit."""

from slipform.enforce.judge import Verdict, judge
from slipform.enforce.loop import Outcome, Plan, Steps, enforce
from slipform.enforce.report import Attempt, Report
from slipform.enforce.stream import LiveText, fold

__all__ = ["Attempt", "LiveText", "Outcome", "Plan", "Report", "Steps", "Verdict", "enforce", "fold", "judge"]
