"""What a repair did to a text, as a diff that a person can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from slipform.cli.output import coloured, paint

if TYPE_CHECKING:
    from slipform.enforce.loads import Report
    from slipform.text.loads import Loaded
    from slipform.text.repair_edits import Edit

_CONTEXT: Final = 24
"""How many characters of the text are shown on each side of an edit."""


def explained(text: str, report: Loaded | Report) -> Iterator[str]:
    """The lines of the explanation: where the JSON stood, each edit in its place, patches, warnings."""
    from slipform.cli.reports import counted, patch_line

    if text[: report.start].strip() or text[report.end :].strip():
        before, after = report.start, len(text) - report.end
        where = _place(text, report.start)
        yield f"The JSON stands at {where}; {before} characters before and {after} after it are left out."
    for group in _groups(report.edits):
        yield f"{_place(text, group[0].position)}: {counted(_name(edit) for edit in group)}"
        yield from (f"    {line}" for line in _diff(text, group).split("\n"))
    patched = getattr(report, "patched", None)
    for edit in patched.edits if patched else ():
        yield f"patched: {patch_line(edit)}"
    for warning in report.warnings:
        yield f"Note, at {_place(text, warning.position)}: {warning.message}"
    if not (report.edits or patched or report.warnings):
        yield "Nothing had to be changed."


def _groups(edits: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Edits so near to each other that they are shown together."""
    group: list[Edit] = []
    for edit in edits:
        if group and edit.position - (group[-1].position + len(group[-1].before)) > _CONTEXT:
            yield group
            group = []
        group.append(edit)
    if group:
        yield group


def _diff(text: str, group: Sequence[Edit]) -> str:
    """A stretch of the text with what was taken out and what was put in."""
    out, put = _marks()
    start, end = group[0].position, group[-1].position + len(group[-1].before)
    first, last = max(start - _CONTEXT, 0), min(end + _CONTEXT, len(text))
    pieces = ["…" if first else "", text[first:start]]
    done = start
    for edit in group:
        pieces += [text[done : edit.position], out(edit.before), put(edit.after)]
        done = edit.position + len(edit.before)
    return "".join([*pieces, text[end:last], "…" if last < len(text) else ""])


def _marks() -> tuple[Callable[[str], str], Callable[[str], str]]:
    if coloured(err=True):
        return (
            lambda gone: gone and paint(gone, fg="red", strike=True),
            lambda new: new and paint(new, fg="green", bold=True),
        )
    return lambda gone: gone and f"[-{gone}-]", lambda new: new and f"{{+{new}+}}"


def _name(edit: Edit) -> str:
    name = edit.kind.replace("_", " ")
    return name if edit.certain else f"{name} (a guess)"


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - (text.rfind(chr(10), 0, position) + 1) + 1}"
