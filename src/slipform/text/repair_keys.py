"""Reading an object's keys: quoted wrongly, not quoted, cut off, or not there."""

from __future__ import annotations

import re
from typing import Final

from slipform.text.repair_brackets import close, drop_key, finish
from slipform.text.repair_runs import run
from slipform.text.repair_state import AT_KEY, AT_VALUE, Reading, Refusal
from slipform.text.repair_values import grouped_number
from slipform.text.scan import ITEM, KEY, KEY_AHEAD, MEMBER, STRICT_KEY
from slipform.text.scan_quoting import quoted, requote
from slipform.text.scan_scalars import read_scalar
from slipform.text.scan_strings import delimiter_at, read_string

MAX_VALUELESS: Final = 8
_SET: Final = re.compile(r"\{\s*+(?:(?:\"[^\"\\\n]*+\"|'[^'\\\n]*+'|-?\d++(?:\.\d++)?+)\s*+(?:,\s*+|(?=\})))++\}")
_COLON_OR_END: Final = re.compile(r"\s*+(?:[:：]|\Z)")
_COLON_AHEAD: Final = re.compile(r"\s*+[:：]")


def read_key(m: Reading) -> None:
    """Read on from where a key is expected."""
    run(m)
    if m.state != AT_KEY:
        return
    char = m.peek()
    at = m.position
    if char == '"' and (found := STRICT_KEY.match(m.text, at, m.end)):
        m.key, m.position, m.colon, m.state = at, found.end(), True, AT_VALUE
    else:
        _odd_key(m, char, at)


def _odd_key(m: Reading, char: str, at: int) -> None:
    if char == "":
        finish(m)
    elif char in "}])":
        close(m, char)
    elif char == ",":
        m.drop_commas()
    elif char == ":":
        m.stray(at)
    elif char in "{[(":
        _opened_where_key(m, char, at)
    elif delimiter_at(m.text, at, m.end):
        _quoted_key(m, at)
    else:
        _bare_key(m, at)


def _quoted_key(m: Reading, at: int) -> None:
    if m.comma < 0 and _is_set(m, at):
        return
    span = read_string(m.text, at, m.end, KEY, "")
    if span is None:
        if not _extend_string(m):
            raise Refusal(at, "a key has no end that can be told from its content")
    elif not span.closed:
        drop_key(m, at)
    elif _COLON_OR_END.match(m.text, span.end, m.end) or not _extend_string(m):
        m.edits.extend(requote(m.text, span))
        m.position = span.end
        _colon(m, at)


def _is_set(m: Reading, at: int) -> bool:
    """A Python set, `{"a", "b"}`, is read as an array."""
    opening = m.text.rfind("{", 0, at)
    if opening < 0 or m.text[opening + 1 : at].strip() or not (found := _SET.match(m.text, opening, m.end)):
        return False
    if "," not in found.group():
        return False
    m.edit_before("wrong_bracket", opening, "{", "[")
    m.stack[-1] = "["
    closing = found.end() - 1
    m.taken = {**m.taken, closing: 0}
    m.state = AT_VALUE
    return True


def _string_before(text: str, comma: int) -> int:
    """Where the value before `comma` began, if it was a plain string; else -1."""
    at = comma - 1
    while at > 0 and text[at] in " \t\r\n":
        at -= 1
    if comma < 0 or text[at] != '"':
        return -1
    at = text.rfind('"', 0, at)
    while at > 0 and text[at - 1] == "\\":
        at = text.rfind('"', 0, at)
    before = at - 1
    while before > 0 and text[before] in " \t\r\n":
        before -= 1
    return at if before > 0 and text[before] == ":" else -1


def _extend_string(m: Reading) -> bool:
    """Read the last string on past the comma that followed it: its quote was not its end."""
    at = m.last_string if m.last_string >= 0 else _string_before(m.text, m.comma)
    if at < 0:
        return False
    span = read_string(m.text, at, m.end, MEMBER, m.closers(), beyond=m.comma)
    if span is None or span.end <= m.comma or not span.closed:
        return False
    if m.text[span.stop : span.stop + 1] not in ('"', "'", "”"):
        return False
    m.undo_from(at)
    m.choices.append(at)
    m.comma = -1
    m.edits.extend(requote(m.text, span))
    m.valued(span.end)
    return True


def _bare_key(m: Reading, at: int) -> None:
    found = KEY_AHEAD.match(m.text, at, m.end)
    if found is None:
        _no_key(m, at)
        return
    name = m.text[at : found.end() - 1].rstrip()
    if name.endswith(('"', "'", "”")):
        m.edit("missing_quote", at, name, quoted(name[:-1]))
    else:
        m.edit("unquoted_key", at, name, quoted(name))
    m.position = at + len(name)
    _colon(m, at)


def _no_key(m: Reading, at: int) -> None:
    if grouped_number(m, at):
        return
    scalar = read_scalar(m.text, at, m.end, ITEM)
    if scalar is None:
        m.stray(at)
        return
    word = scalar.before.partition(":")[0].rstrip() if ":" in scalar.before else scalar.before
    if word and _COLON_AHEAD.match(m.text, at + len(word), m.end):
        broken = word.endswith(('"', "'"))
        m.edit("missing_quote" if broken else "unquoted_key", at, word, quoted(word[:-1] if broken else word))
        m.position = at + len(word)
        _colon(m, at)
    elif not _extend_string(m):
        if scalar.end < m.end:
            raise Refusal(at, "there is a word where a key and its value should be")
        drop_key(m, at)


def _opened_where_key(m: Reading, char: str, at: int) -> None:
    if char == "{" and m.comma >= 0 and len(m.stack) > 1 and m.stack[-2] in "[t":
        m.edit_before("missing_bracket", m.comma, "", "}")
        m.stack.pop()
        m.state = AT_VALUE
    elif char == "{" and m.comma < 0 and m.doubled == 0:
        m.doubled += 1
        m.drop("extra_bracket")
    elif not _extend_string(m):
        raise Refusal(at, "there is a bracket where a key should be")


def _colon(m: Reading, at: int) -> None:
    """Step over the colon after a key that was not plain, or put one in."""
    m.key = at
    char = m.peek()
    if char == ":":
        m.take(":")
    elif char == "=":
        arrow = "=>" if m.text.startswith("=>", m.position) else "="
        m.edit("punctuation", m.position, arrow, ":")
        m.position += len(arrow)
    elif char == "":
        drop_key(m, at)
        return
    elif char in ",}])":
        m.valueless += 1
        if m.valueless > MAX_VALUELESS:
            raise Refusal(at, "too many keys have no value")
        m.edit("missing_value", m.position, "", ":null")
        m.valued(m.position)
        return
    else:
        m.edit("missing_colon", m.position, "", ":")
    m.colon = True
    m.state = AT_VALUE
