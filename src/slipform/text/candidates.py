"""Where in a text the JSON may be.

Reasoning blocks are passed over, fenced and tagged blocks come before JSON in running text, and `[1]`, `[note]` or
`{name}` in a sentence is not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from slipform.text.reasoning import Block, block_at, closing_at
from slipform.text.repair import NanPolicy, Repaired, repair_at
from slipform.text.repair.machine import CannotRepair
from slipform.text.repair.tokens import QUOTED_KEY_AHEAD


class Candidate(NamedTuple):
    """A piece of text that may be the JSON, as it stands there.

    `kind` is `whole`, `fenced`, `tagged`, `bare`, `sequence` (several values in a row), `weak` (it may be prose) or
    `thought` (found only in a reasoning block that never closed).
    """

    start: int
    end: int
    text: str
    kind: str


class Found(NamedTuple):
    """A candidate and what repair made of it."""

    kind: str
    repaired: Repaired


_MARK: Final = re.compile(
    r"(?P<data><!\[CDATA\[)|(?P<bracket>[{\[｛［])|(?P<fence>```+|~~~+)|◁"
    r"|<(?P<tag>[A-Za-z][\w:.-]{0,40})(?:\s[^<>\n]{0,200})?>|<(?=[/|])",
    re.IGNORECASE,
)
_FENCE_LINE: Final = re.compile(r"[ \t]*+([\w+.#-]*+)[^\n{\[\"]*+\n?")
_JSON_LABELS: Final = frozenset(
    {"", "json", "jsonc", "json5", "jsonl", "ndjson", "javascript", "js", "python", "py", "ts"}
)
_GAP: Final = r"(?:[\s\u200b-\u200f\u2060\ufeff]|\\[nrt])*+"
_OBJECT: Final = re.compile(
    r"[{｛]" + _GAP + r"(?:[\"'“”„‘’`«＂}｝]|,\s*+[\"}]|<!--|\\\"|&quot;|&#34;|//|/\*|#|\Z|\.\.\.|…|\{\s*+[\"'“\w]"
    r"|[\w$][^{}\[\]\"'\n,:]{0,60}+[\"'”]?\s*+[:：]|-?\d++\s*+:)"
)
_ARRAY: Final = re.compile(
    r"[\[［]" + _GAP + r"(?:[\"'“‘`＂\]］]|,|<!--|\\\"|&quot;|-?\.?\d|[+.]\d|//|/\*|\Z|\(\s*[\d\"']"
    r"|(?:true|false|null|True|False|None|NaN|undefined)\b|[-tfnTFN][a-z]{0,4}+\s*+\Z)"
)
_CITATION: Final = re.compile(r"\[\s*+(?:\d+(?:\s*[-–,;]\s*\d+)*)?\s*+\]|\{\s*+\}")
_STATED: Final = re.compile(r"(?:[:=(]|\bis|\bare|\breturns?|\A|\n)[ \t]*\Z")
_WORD: Final = re.compile(r"[^\W\d_]")
_PLACEHOLDER: Final = re.compile(r"['`]\s*+[{\[]|\[\s*+[^\W\d][^\[\]{}\",:]*+\]|\((?!\s*+[\"'\d\[{-])")
_NOTHING: Final = re.compile(r"\s*+\Z")
_OPENING: Final = re.compile(r"[{}\[\]]")
_LEAD: Final = re.compile(r"[\[\s｛［]*+")
MIN_FAILURES: Final = 4
MAX_FAILURES: Final = 100
"""How many false starts are forgiven, fewer in a long text: each may cost a pass over it."""


def candidates(text: str) -> Iterator[Candidate]:
    """The pieces of `text` that may be its JSON, best guesses first, otherwise in the order of the text.

    >>> [c.text for c in candidates('Sure [1]: {"a": 1}. Or {"b": 2}?')]
    ['{"a": 1}', '{"b": 2}']
    """
    for found in find(text, nan="null"):
        repaired = found.repaired
        yield Candidate(repaired.start, repaired.end, text[repaired.start : repaired.end], found.kind)


def find(text: str, *, nan: NanPolicy, cited: bool = False) -> list[Found]:
    """Every candidate with its repair: fenced and tagged first, then bare, then weak, then unfinished thoughts.

    `cited` adds lists of numbers that are most likely citations, for those who can tell by their schema.
    """
    search = _Search(text, nan)
    search.run()
    order = {"whole": 0, "fenced": 1, "tagged": 1, "bare": 2, "sequence": 2, "weak": 3, "cited": 4}
    ranked = sorted(
        (found for found in search.found if cited or found.kind != "cited"), key=lambda found: order[found.kind]
    )
    return ranked or [Found("thought", found.repaired) for found in reversed(search.thoughts)]


class _Search:
    """One pass over a text that may hold JSON among other things."""

    def __init__(self, text: str, nan: NanPolicy) -> None:
        self.text = text
        self.nan = nan
        self.found: list[Found] = []
        self.thoughts: list[Found] = []
        self.failure: CannotRepair | None = None
        self.failures = 0
        self.wordless = _WORD.search(text) is None
        self.stopped = False
        self.aside = False

    def run(self) -> None:
        """Look through the whole text."""
        text = self.text
        if self._whole():
            return
        position, kind = 0, "bare"
        while mark := _MARK.search(text, position):
            position = mark.end()
            what = mark.lastgroup
            if (block := block_at(text, mark.start())) is not None:
                position = self._thought(block)
            elif (end := closing_at(text, mark.start())) >= 0:
                # What came before an unpaired end of reasoning was reasoning.
                self.found.clear()
                position = end
            elif what == "bracket":
                position = self._bracket(mark.start(), kind)
            elif what == "fence":
                position = self._fence(mark.group(), mark.end())
            elif what in ("tag", "data"):
                kind = "tagged" if self._starts(mark.end()) else kind
                continue
            else:
                continue
            kind = "bare"
            if self.stopped or self.failures > max(MIN_FAILURES, min(MAX_FAILURES, 1_000_000 // len(text))):
                break

    def _thought(self, block: Block) -> int:
        """Pass over a reasoning block; what an unclosed one holds is kept aside, in case there is nothing else."""
        end = -1 if self.aside else block.end(self.text, block.start)
        if end >= 0:
            return end
        self.aside = True
        return block.start

    def _add(self, kind: str, repaired: Repaired) -> None:
        (self.thoughts if self.aside else self.found).append(Found(kind, repaired))

    def _starts(self, at: int) -> bool:
        return self.text[at : at + 40].lstrip()[:1] in ("{", "[")

    def _whole(self) -> bool:
        """A text that is nothing but one document, even one without brackets; True when that settles it."""
        text = self.text.strip("\ufeff\u200b \t\r\n")
        if text[:1] in ("{", "[", "｛", "［") and not (text[-1:] == "]" and text[:1] == "["):
            return False
        if "```" in text or (len(text) > 200 and text[:1] not in ('"', "[", "'", "\\", "&", "“")):
            return False
        start = self.text.find(text[:1]) if text else 0
        if _PLACEHOLDER.match(text):
            return False
        found = self._repair(start, len(self.text), many=False)
        if found is None:
            return False
        if self.text[found.end :].strip() and not QUOTED_KEY_AHEAD.match(self.text, start):
            return False
        self._add("whole", found)
        return True

    def _bracket(self, at: int, kind: str) -> int:
        text = self.text
        if not plausible(text, at) or (_NOTHING.match(text, at + 1) and _OPENING.search(text, 0, at)):
            return at + 1
        if kind == "bare" and (weak := _CITATION.match(text, at)):
            kind = "bare" if self.wordless else "weak" if _stated(text, at, weak.end()) else "cited"
            if kind == "cited" and "," not in weak.group():
                return weak.end()
        found = self._repair(at, len(text), many=kind == "bare")
        if found is None:
            return at + 1
        if kind == "bare" and _is_bare_words(found):
            if isinstance(found.value, list):
                return at + 1
            kind = "weak"
        self._add("sequence" if found.parts and kind == "bare" else kind, found)
        return max(found.end, at + 1)

    def _repair(self, at: int, end: int, *, many: bool) -> Repaired | None:
        try:
            return repair_at(self.text, at, end, nan=self.nan, many=many)
        except CannotRepair as refusal:
            self.failures += 1
            self.stopped = self.stopped or refusal.final
            if self.failure is None or refusal.position - at > 8:
                self.failure = refusal
            return None

    def _fence(self, mark: str, at: int) -> int:
        """A fenced block; its end is the next fence that does not stand inside a string."""
        text = self.text
        line = _FENCE_LINE.match(text, at)
        label = line.group(1).lower() if line else ""
        begin = _LEAD_BLANK.match(text, line.end() if line else at).end()  # type: ignore[union-attr]
        if label not in _JSON_LABELS or not self._fenced_json(begin):
            return line.end() if line else at
        first = text.find(mark[:3], begin)
        end = first if first >= 0 else len(text)
        while end > begin and text[end - 1].isspace():
            end -= 1
        found = self._repair(begin, end, many=True)
        if first >= 0 and (found is None or found.in_string):
            last = text.rfind(mark[:3], first + 1)
            for end in (len(text), last):
                other = self._repair(begin, end, many=True) if end > first else None
                if other is not None and not other.in_string:
                    found = other
                    break
        if found is None:
            return begin
        self._add("fenced", found)
        closing = text.find(mark[:3], found.end)
        return found.end if closing < 0 or text[found.end : closing].strip() else closing + 3

    def _fenced_json(self, begin: int) -> bool:
        char = self.text[begin : begin + 1]
        if char in ("{", "[", "｛", "［"):
            return plausible(self.text, begin)
        return char != "" and (QUOTED_KEY_AHEAD.match(self.text, begin) is not None or char in "&\\")


_LEAD_BLANK: Final = re.compile(r"\s*+")


def plausible(text: str, at: int) -> bool:
    """Whether the bracket at `at` can open JSON, going by the little that follows it.

    >>> plausible("{name}", 0), plausible('{"name": 1}', 0)
    (False, True)
    """
    inner = _LEAD.match(text, at)
    last = at
    if text[at] in "[［" and inner is not None:
        last = inner.end()
        while last > at + 1 and text[last - 1].isspace():
            last -= 1
        last -= 1
        if text[inner.end() : inner.end() + 1] == "{":
            return _OBJECT.match(text, inner.end()) is not None
    return (_OBJECT if text[last] in "{｛" else _ARRAY).match(text, last) is not None


def _is_bare_words(found: Repaired) -> bool:
    """Whether a candidate holds words but not one quote: more likely prose, a log's time stamp or code."""
    if not any(edit.kind == "unquoted_value" for edit in found.edits):
        return False
    written = [edit for edit in found.edits if edit.before[:1] in ('"', "'", "“")]
    return not written and found.text.count('"') == 2 * sum(edit.after.count('"') // 2 for edit in found.edits)


def _stated(text: str, at: int, end: int) -> bool:
    """Whether a short list of numbers stands where an answer would: after a colon or `is`, and at the end of a line."""
    rest = text[end : end + 40].lstrip(" \t.);")
    return (not rest or rest[0] == "\n") and _STATED.search(text[max(0, at - 40) : at]) is not None
