"""What was done to make an answer fit, for a person to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipform.enforce import Report
    from slipform.enforce.fixes import Edit as PatchEdit
    from slipform.enforce.report import Attempt


def told(report: Report) -> Iterator[str]:
    """The report's lines: each attempt with its faults and edits, then warnings, then what it cost."""
    for number, attempt in enumerate(report.attempts, 1):
        yield _heading(number, attempt)
        yield from (f"   {line}" for line in _details(attempt))
    for warning in report.warnings:
        yield f"Warning: {warning.message}"
    yield _spent(report)


def _heading(number: int, attempt: Attempt) -> str:
    took = "" if attempt.seconds is None else f" in {attempt.seconds:.2f} s"
    became = "valid" if attempt.outcome == "ok" else attempt.outcome.replace("_", " ")
    return f"{number}. {attempt.model} ({attempt.strategy.value}){took}: {became}"


def _details(attempt: Attempt) -> Iterator[str]:
    if attempt.repairs:
        yield f"repaired: {counted(edit.kind.replace('_', ' ') for edit in attempt.repairs)}"
    for edit in attempt.patches:
        yield f"patched: {patch_line(edit)}"
    for violation in attempt.violations:
        yield f"not valid: {violation.json_path}: {violation.message}"


def counted(words: Iterable[str]) -> str:
    """Words in a row, those that come again counted.

    >>> counted(["quote", "comma", "quote"])
    'quote ×2, comma'
    """
    return ", ".join(word if count == 1 else f"{word} ×{count}" for word, count in Counter(words).items())


def patch_line(edit: PatchEdit) -> str:
    """One patch in words.

    >>> from slipform.enforce.fixes import Edit
    >>> patch_line(Edit("replace", ("age",), "a number in a string", value=36))
    '$.age → 36 (a number in a string)'
    """
    from slipform.schema.violations import json_path, shown

    where = json_path(edit.steps)
    doing: dict[str, Any] = {
        "remove": lambda: f"{where} dropped",
        "move": lambda: f"{json_path(edit.source)} renamed to {where}",
        "add": lambda: f"{where} ← {shown(edit.value)}",
        "replace": lambda: f"{where} → {shown(edit.value)}",
    }
    return f"{doing[edit.op]()} ({edit.reason})"


def _spent(report: Report) -> str:
    usage = report.usage
    calls = f"{len(report.attempts)} call{'' if len(report.attempts) == 1 else 's'}"
    tokens = [f"{count:,} tokens {what}" for count, what in ((usage.input, "in"), (usage.output, "out")) if count]
    cost = [] if report.cost is None else [f"cost {report.cost:.4g}"]
    return ", ".join([calls, *tokens, *cost])
