"""A griffe extension that fences the doctests of slipform's docstrings, which stand in plain text, as `pycon` code."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Rewrites each docstring once, when griffe has read it."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Fence the doctests of an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Put every run of `>>>` lines, with the output up to the next blank line, into a fence."""
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        if not inside and line.lstrip().startswith(">>> "):
            if lines and lines[-1].strip():
                lines.append("")
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
