"""Find doubts about loaded JSON: marks of omission in it, and the text around it.

A separate module because its regular expressions are needed for broken texts only.
"""

from __future__ import annotations

import re
from typing import Final

from slipform.text.loads import OPENING_BRACKET, Loaded, LoadWarning
from slipform.text.loads_search import REJECTED
from slipform.text.reasoning import answer_span
from slipform.text.repair.tokens import GOES_ON, RepairEdit

_SAYS_MORE: Final = re.compile(
    r"\.{3}|…|\A\W*more\b|\b\d+ (?:more|others?)\b|\b(?:more|other|remaining|further) (?:\w+ )?"
    r"(?:items?|entries|rows?|records?|elements?|results?|objects?|values?|fields?|lines?)\b"
    r"|\bsame (?:for|as|with|pattern|structure)\b"
    r"|\band so (?:on|forth)\b|\betc\b|\bomitted\b|\babbreviated\b|\btruncated\b|\bcontinue[sd]?\b"
    r"|\b(?:the )?rest (?:of|is|are|omitted|follows?)\b"
    r"|\b(?:items?|entries|rows?|records?|elements?) \d+ ?(?:to|through|[-–]) ?\d+\b",
    re.IGNORECASE,
)
"""In a comment: the data is incomplete."""
_MORE_SIGNS: Final = (
    "...", "…", "more", "other", "remain", "further", "same", " so ", "etc", "omit", "abbrev", "trunc", "contin",
    "rest", "item", "entr", "row", "record", "element",
)  # fmt: skip
"""One of these is in every comment that `_SAYS_MORE` matches."""
_REMARKS: Final = frozenset({"comment", "ellipsis"})
_LABELLED: Final = re.compile(
    r"\s*+(,?)\s*+([A-Za-z_][\w-]{0,40})\s*+:\s*+(?:[-+]?\d[\d.]*+|true|false|null|\"[^\"\n]*+\")\s*?(?:[,\n]|\Z)"
)
"""After the JSON: an unquoted name and a value, which may be a member or a line of text."""
_COMMA_AND_QUOTE: Final = re.compile(r"\s*+,\s*+([\"'“][^\n]{0,40})")
"""After the JSON: text that begins like another member, but cannot be parsed as one."""
_CORRECTED: Final = re.compile(
    r"\b(\w[\w-]{0,40}+)[\"'`*]{0,3} (?:(?:should|must) (?:actually |really |rather )?be|(is)(?: actually| really)?) "
    r"[\"'“`]?(?P<value>[-+]?\d[\d.]*+|(?<=[\"'“`])[^\"'”`\n]{1,60}|true\b|false\b|null\b)"
)
"""After the JSON: a name which should have, or has, another value."""
_SCALAR_MEMBER: Final = re.compile(r"\"([^\"\\\n]{1,42})\"\s*:\s*(\"[^\"]*\"|[\w.+-]+)")
_DENIED: Final = re.compile(
    r"\b(?:(?:is|was)(?: not|n['’]t)|never|instead of|rather than)[ \t:*_\"'`(]{0,8}(?:\n+```\w*\n)?\Z", re.IGNORECASE
)
"""Right before the JSON: it is not the answer."""
_TAKEN_BACK: Final = re.compile(
    r"[\s`*~.,;)]{0,8}(?:(?:oh|ah|hm+|um|wait|oops|sorry|no|actually)\b[\s,.!…–—-]*){1,3}"
    r"(?:no\b|(?:(?:that|this|it)(?: is|['’]s)|it['’]s) (?:not|wrong|incorrect|a mistake)\b|\Z)"
    r"|[\s`*~.,;)]{0,8}(?:never ?mind|(?:scratch|strike|ignore|disregard|forget) (?:that|this|it|the above))\b",
    re.IGNORECASE,
)
"""Right after the JSON: its writer takes it back."""
_MAX_SENTENCE: Final = 400
"""Characters around the JSON that are searched for a statement that the answer is missing."""
_IN_SENTENCE: Final = re.compile(
    r"(?<!\bis)(?<!\bare)(?<!\bbe)(?<!\banswer)(?<!\bjson)(?<=[a-z])[ \t]+`?\Z", re.IGNORECASE
)
"""The blanks between the last word before the JSON and the JSON."""
_SENTENCE_GOES_ON: Final = re.compile(r"`?[ \t]+[a-z]")
_SAYS_NOTHING: Final = re.compile(
    r"\b(?:could(?: not|n['’]t)|can(?:not|['’]t| not)|(?:un|not )able to|do(?:es)?(?: not|n['’]t) have"
    r"|no (?:information|data)|not (?:found|available|provided|mentioned|given))\b",
    re.IGNORECASE,
)
_BRACKET_OR_FACE: Final = re.compile(r"[:;=8][-'^]?[)\]}]|```[^`\n]*|(?P<bracket>[{}\[\]])")
_KEY_OUTSIDE: Final = re.compile(r"(\"(?:[^\"\\\n]|\\.){1,60}\")\s*(?::|=>)\s*(?:[\"{\[\d-]|true|false|null)")


def doubts_around(text: str, loaded: Loaded) -> tuple[LoadWarning, ...]:
    """Return the warnings because of marks in the JSON, and of the text around it.

    >>> from slipform.text.loads import load
    >>> [each.kind for each in doubts_around('[1, ...]', load('[1, ...]')._replace(notes=()))]
    ['ellipsis']
    """
    left_out_data = _left_out_data(loaded) if loaded.edits else None
    warnings = (left_out_data, _key_outside(text, loaded), _no_answer(text, loaded), _rejected(text, loaded))
    return tuple([warning for warning in warnings if warning is not None])


def _left_out_data(loaded: Loaded) -> LoadWarning | None:
    """Warn of marks and comments in the JSON that data was left out."""
    remarks: dict[str, RepairEdit] = {}
    for edit in loaded.edits:
        # Unpacked, which costs half of reading the fields by name: an answer may have thousands of edits.
        kind, _, removed_text, _ = edit
        if kind in _REMARKS:
            remarks.setdefault(removed_text, edit)
    if not remarks:
        return None
    words = "\n".join(remarks).lower()
    may_say_more = any(sign in words for sign in _MORE_SIGNS)
    for remark, edit in remarks.items():
        if edit.kind == "ellipsis" or (may_say_more and _SAYS_MORE.search(remark)):
            message = f"{remark.strip()} in the JSON says that data was left out."
            return LoadWarning("ellipsis", edit.position, message, is_doubt=True)
    return None


def _no_answer(text: str, loaded: Loaded) -> LoadWarning | None:
    """Warn of JSON inside a sentence that says that the answer is missing."""
    if not _SENTENCE_GOES_ON.match(text, loaded.end):
        return None
    before = text[max(0, loaded.start - _MAX_SENTENCE) : loaded.start]
    if not _IN_SENTENCE.match(before, len(before.rstrip(" \t`"))):
        return None
    after = text[loaded.end : loaded.end + _MAX_SENTENCE]
    if not _SAYS_NOTHING.search(before) and not _SAYS_NOTHING.search(after):
        return None
    message = "The JSON is inside a sentence, and the text says that it has no answer."
    return LoadWarning("no_answer", loaded.start, message, is_doubt=True)


def _rejected(text: str, loaded: Loaded) -> LoadWarning | None:
    """Warn of JSON that the text calls wrong or takes back; where other JSON replaces it, that one was loaded."""
    if loaded.notes and any(note.kind == "several_candidates" for note in loaded.notes):
        return None
    before = text[max(0, loaded.start - _MAX_SENTENCE) : loaded.start]
    is_denied = _DENIED.search(before) is not None
    if not is_denied and not REJECTED.match(text, loaded.end) and not _TAKEN_BACK.match(text, loaded.end):
        return None
    message = "The text says that this JSON is not the answer."
    return LoadWarning("rejected", loaded.start, message, is_doubt=True)


def _key_before(text: str, start: int) -> re.Match[str] | None:
    """Return the key before the JSON whose value it is; keys inside reasoning do not count."""
    if text.find('"', 0, start) < 0:
        return None
    key = _KEY_OUTSIDE.search(text, max(0, text.rfind("</", 0, start)), start + 1)
    if key is None or key.start() < answer_span(text[:start])[0]:
        return None
    return key


def _key_outside(text: str, loaded: Loaded) -> LoadWarning | None:
    """Warn of apparent members outside the chosen JSON, and of unmatched closing brackets."""
    if loaded.notes and any(note.kind == "several_candidates" for note in loaded.notes):
        # The other pieces have separate keys; a key may still belong to one of them.
        opening = OPENING_BRACKET.search(text, loaded.end)
        if opening is None:
            return None
        return _key_warning(_KEY_OUTSIDE.search(text, loaded.end, opening.end()))
    stray = _stray_bracket(text, loaded.end)
    key = (GOES_ON.match(text, loaded.end) if stray >= 0 else None) or _KEY_OUTSIDE.search(text, loaded.end)
    key = key or _key_before(text, loaded.start)
    if key is not None:
        return _key_warning(key)
    if stray >= 0:
        message = f"{text[stray]} after the JSON that was taken closes nothing: there may be more of it."
        return LoadWarning("key_outside", stray, message, is_doubt=True)
    member = _COMMA_AND_QUOTE.match(text, loaded.end)
    if member is not None:
        message = f"{member.group(1)} after the JSON that was taken begins like a key: there may be more of it."
        return LoadWarning("key_outside", member.start(1), message, is_doubt=True)
    correction = _correction(text, loaded)
    if correction is not None:
        message = f"The text after the JSON gives {correction.group(1)} another value."
        return LoadWarning("key_outside", correction.start(), message, is_doubt=True)
    line = _LABELLED.match(text, loaded.end)
    if line is None:
        return None
    message = f"{line.group(2)} after the JSON that was taken may be a key: there may be more of it."
    return LoadWarning("key_outside", line.start(2), message, is_doubt=bool(line.group(1)))


def _correction(text: str, loaded: Loaded) -> re.Match[str] | None:
    """Return where the text after the JSON gives a key of it another value."""
    if text.find(" be ", loaded.end) < 0 and text.find(" is ", loaded.end) < 0:
        return None
    source = text[loaded.start : loaded.end]
    for match in _CORRECTED.finditer(text, loaded.end):
        values = [value for key, value in _SCALAR_MEMBER.findall(source) if key == match.group(1)]
        if values and (match.group(2) is None or not any(_is_same(value, match["value"]) for value in values)):
            return match
    return None


def _is_same(source: str, words: str) -> bool:
    """Return whether JSON's spelling of a scalar and a spelling in words mean the same."""
    value = source.strip('"')
    stated = words.rstrip(".")
    try:
        return float(value) == float(stated)
    except ValueError:
        return value.casefold() == stated.casefold()


def _key_warning(key: re.Match[str] | None) -> LoadWarning | None:
    if key is None:
        return None
    message = f"{key[key.lastindex or 0]} outside the JSON that was taken looks like a key: there may be more of it."
    return LoadWarning("key_outside", key.start(), message, is_doubt=True)


def _stray_bracket(text: str, start: int) -> int:
    """Return the position of an unmatched closing bracket after the JSON; -1 without one, or for a face like `:)`."""
    if text.find("}", start) < 0 and text.find("]", start) < 0:
        return -1
    depth = 0
    for match in _BRACKET_OR_FACE.finditer(text, start):
        if match.lastgroup is None:
            continue
        depth += 1 if match.group() in "{[" else -1
        if depth < 0:
            return match.start()
    return -1
