"""Brackets that are missing, wrong or too many, and what happens where the text ends."""

from __future__ import annotations

import re
from typing import Final

from slipform.text.repair_state import AT_END, AT_KEY, AT_VALUE, CLOSER, DONE, Reading, Refusal
from slipform.text.scan import KEY_AHEAD, QUOTED_KEY_AHEAD, SPACE

_NEXT: Final = re.compile(rf"{SPACE}([,}}\])])?+")
_MORE_AHEAD: Final = re.compile(
    rf"{SPACE}(?:(\{{){SPACE}(?:[\"'“}}‘`]|[A-Za-z_$][\w$]*+\s*+:|\\\")"
    rf"|(\[){SPACE}(?:[\"'“{{\[\d\-]|\]|(?:true|false|null)\b))"
)


def close(m: Reading, char: str) -> None:
    """Step over a closing bracket, putting right whatever is wrong about it."""
    frame = m.stack[-1]
    if CLOSER[frame] != char:
        _mismatch(m, char)
        return
    _drop_comma(m)
    at = m.position
    if frame == "t":
        m.edit("wrong_bracket", at, m.text[at], "]")
        m.position += 1
    elif frame == "f":
        m.drop("call")
    else:
        m.take(char)
    _closed(m, at)


def _drop_comma(m: Reading) -> None:
    if m.state != AT_END:
        m.drop_comma()


def _closed(m: Reading, at: int) -> None:
    frame = m.stack.pop()
    m.comma = -1
    m.valued(m.position)
    m.last_close = at
    if frame == "{" and m.doubled and m.text.startswith("}", m.position):
        m.doubled -= 1
        m.drop("extra_bracket")


def _mismatch(m: Reading, char: str) -> None:
    """Either brackets are missing before this one, or it is the wrong one, or one too many."""
    at = m.position
    below = next((i for i in range(len(m.stack) - 1, -1, -1) if CLOSER[m.stack[i]] == char), -1)
    if below < 0:
        _unopened(m, at)
        return
    _drop_comma(m)
    m.state = AT_END
    missing = m.stack[below + 1 :]
    fits_missing = _fits(m, m.stack[:below][-1:], at + 1)
    fits_wrong = _fits(m, m.stack[-2:-1], at + 1)
    wrong = fits_wrong and not fits_missing
    if m.choose(at):
        wrong = not wrong
    if wrong and m.stack[-1] in "{[":
        m.edit("wrong_bracket", at, m.text[at], CLOSER[m.stack[-1]])
        m.position = at + 1
        _closed(m, at)
        return
    closing = "".join("]" if frame == "t" else CLOSER[frame] for frame in reversed(missing) if frame != "f")
    m.edit("missing_bracket", at, "", closing)
    del m.stack[below + 1 :]
    close(m, char)


def _unopened(m: Reading, at: int) -> None:
    """A closing bracket that nothing opened: it stands for the one that is open, or for nothing."""
    following = _NEXT.match(m.text, at + 1, m.end)
    char = following.group(1) if following else None
    expected = CLOSER[m.stack[-1]]
    extra = char == expected or (char == "," and len(m.stack) == 1)
    if m.choose(at):
        extra = not extra
    if extra or m.stack[-1] not in "{[":
        state = m.state
        m.drop("extra_bracket")
        m.state = state
        return
    _drop_comma(m)
    m.edit("wrong_bracket", at, m.text[at], expected)
    m.position = at + 1
    _closed(m, at)


def _fits(m: Reading, outer: list[str], after: int) -> bool:
    """Whether what follows a closing bracket suits the frame that would then be open."""
    following = _NEXT.match(m.text, after, m.end)
    char = following.group(1) if following else None
    if following is None or (following.end() >= m.end and char is None):
        return True
    if not outer:
        return char is None
    if char == ",":
        return (KEY_AHEAD.match(m.text, following.end(), m.end) is not None) == (outer[0] == "{")
    return char is None or CLOSER[outer[0]] == char


def reopen(m: Reading, comma: int) -> None:
    """The object that was just closed goes on after `comma`: its closing brace was one too many."""
    at = m.last_close
    m.undo_change(at)
    m.edit("extra_bracket", at, m.text[at], "")
    m.stack.append("{")
    m.last_close = -1
    m.comma = comma
    if m.last_before(at, "{") >= 0:
        m.edit("extra_comma", comma, m.text[comma], "")
        m.comma = -1


def after_root(m: Reading) -> None:
    """A whole document was read: go on if there is more of it, or another one."""
    mark, changes = m.position, len(m.edits)
    char = m.peek()
    if char != "" and char in "}]":
        m.drop("extra_bracket")
        return
    if char == ",":
        after = m.position + 1
        if m.last_close >= 0 and m.text[m.last_close] == "}" and QUOTED_KEY_AHEAD.match(m.text, after, m.end):
            comma = m.position
            reopen(m, comma)
            m.position, m.state = comma + 1, AT_KEY
            return
        if _another_ahead(m, after):
            m.take(",")
            m.state = AT_VALUE
            return
        if _NEXT.match(m.text, after, m.end).end() >= m.end:  # type: ignore[union-attr]
            m.drop("trailing_comma")
            m.state = DONE
            return
    elif _another_ahead(m, m.position):
        m.edit("missing_comma", m.position, "", ",")
        m.state = AT_VALUE
        return
    del m.edits[changes:]
    m.position = mark
    m.state = DONE


def _another_ahead(m: Reading, at: int) -> bool:
    """Whether another document of the same kind follows, as in NDJSON."""
    if not m.many or m.last_close < 0:
        return False
    found = _MORE_AHEAD.match(m.text, at, m.end)
    return found is not None and (found.group(1) == "{") == (m.text[m.last_close] == "}")


def finish(m: Reading) -> None:
    """The text ended: close what is open."""
    if not m.stack and m.state == AT_VALUE and not m.roots:
        raise Refusal(m.position, "it ends before any value begins")
    _drop_comma(m)
    closing = "".join("]" if frame == "t" else CLOSER[frame] for frame in reversed(m.stack) if frame != "f")
    if closing:
        m.edit("missing_bracket", m.position, "", closing)
    m.stack.clear()
    if m.roots:
        m.roots[-1] = (m.roots[-1][0], m.position)
    m.state = DONE


def drop_key(m: Reading, at: int) -> None:
    """The text ended before the key's value: leave the key out."""
    cut = m.comma if m.comma >= 0 else at
    if m.comma >= 0:
        m.undo_change(cut)
    else:
        m.undo_from(cut)
    m.edit("truncated", cut, m.text[cut : m.end], "")
    m.position = m.end
    m.comma = -1
    m.colon = False
    m.state = AT_END
