"""The machine that reads broken JSON: one pass, an explicit stack, every change kept as an edit.

It never builds a value. It walks the text in long strides where the text is right and notes an edit where it is not;
the text with its edits is then parsed by a strict parser, which has the last word.
"""

from __future__ import annotations

from slipform.text.repair_brackets import after_root
from slipform.text.repair_keys import read_key
from slipform.text.repair_state import AT_KEY, AT_VALUE, DONE, Reading
from slipform.text.repair_values import read_after, read_value


def read(
    text: str,
    start: int,
    end: int,
    *,
    many: bool = True,
    nan: str = "refuse",
    taken: dict[int, int] | None = None,
    braceless: bool = False,
) -> Reading:
    """Read the document that begins at `start`; raises `Refusal` when none can be read there.

    `many` lets several objects in a row make one list; `braceless` supplies the opening brace that is missing.

    >>> [edit[0] for edit in read("[1,2,", 0, 5).edits]
    ['trailing_comma', 'missing_bracket']
    """
    m = Reading(text, start, end, many=many, nan=nan, taken=taken or {})
    if braceless:
        m.begin_root(start)
        m.edit("missing_bracket", start, "", "{")
        m.push("{")
    while m.state != DONE:
        if m.state == AT_KEY:
            read_key(m)
        elif m.state == AT_VALUE:
            read_value(m)
        elif m.stack:
            read_after(m)
        else:
            after_root(m)
    if len(m.roots) > 1:
        first = m.roots[0][0]
        index = next((i for i, edit in enumerate(m.edits) if edit[1] >= first), len(m.edits))
        m.edits.insert(index, ("missing_bracket", first, "", "["))
        last = m.roots[-1][1]
        m.edit_before("missing_bracket", last, "", "]")
    return m
