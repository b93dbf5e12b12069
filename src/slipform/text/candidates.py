"""Find the parts of a text that may be its JSON.

Reasoning blocks are skipped, fenced and tagged blocks rank before JSON in running text, and `[1]`, `[note]` or `{name}`
in a sentence is not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from slipform.text.fence import FOLD, STRUCK_BEFORE, is_folded
from slipform.text.reasoning import QUOTE_PAIRS, Block, block_at, closing_at
from slipform.text.repair import NanPolicy, Repaired, RepairSource, repair_at
from slipform.text.repair.machine import CannotRepair
from slipform.text.repair.tokens import (
    BLOCK_COMMENT,
    LAX_STRING,
    LINE_COMMENT,
    NUMBER,
    QUOTED_KEY,
    QUOTED_KEY_AHEAD,
    SPACE,
    outside_strings,
)
from slipform.text.work import bounded_work, spend


class Candidate(NamedTuple):
    """A part of a text that may be its JSON, unrepaired.

    `kind` is `whole`, `fenced`, `lines` (fenced as JSON Lines), `tagged`, `bare`, `sequence` (several values in a
    row), `weak` (it may be prose), `struck` (struck out, quoted or folded away: not the answer while there is another)
    or `thought` (found only in a reasoning block that never closed).
    """

    start: int
    end: int
    text: str
    kind: str


class RepairedCandidate(NamedTuple):
    """A candidate and its repair."""

    kind: str
    repaired: Repaired


class GivenUp(NamedTuple):
    """A part of a text that begins like JSON and cannot be repaired: nothing inside it is a candidate."""

    start: int
    error: CannotRepair


class Candidates(NamedTuple):
    """All candidates of a text, the best first, and the parts that could not be read."""

    found: list[RepairedCandidate]
    given_up: list[GivenUp]
    source: RepairSource
    skipped: int = -1
    """The start of the first list of numbers, or empty container, that begins a line; it ranks after all other JSON."""


_MARKER: Final = re.compile(
    r"(?P<data><!\[CDATA\[)|(?P<bracket>[{\[｛［])|(?P<fence>```+|~~~+)|◁"
    r"|<(?P<tag>[A-Za-z][\w:.-]{0,40})(?:\s[^<>\n]{0,200})?>|<(?=[/|])",
    re.IGNORECASE,
)
_FENCE_LINE: Final = re.compile(r"[ \t]*+([\w+.#-]*+)[^\n{\[\"]*+\n?")
_JSON_LABELS: Final = frozenset(
    {"", "json", "jsonc", "json5", "jsonl", "ndjson", "javascript", "js", "python", "py", "ts"}
)
_GAP: Final = r"(?:[\s\u200b-\u200f\u2060\ufeff]|\\[nrt])*+"
_ESCAPED_QUOTE: Final = r"\\\"|\\u(?:0022|201[cCdD])|&quot;|&apos;|&#34;|&#39;|&#[xX]2[27];"
_OBJECT: Final = re.compile(
    r"[{｛]" + _GAP + rf"(?:[bur]?[\"'“”„‘’`«＂}}｝]|,\s*+[\"}}]|<!--|{_ESCAPED_QUOTE}|//|/\*|#|\Z|\.\.\.|…"
    r"|\{\s*+[\"'“\w]|[\w$][^{}\[\]\"'\n,:]{0,60}+[\"'”]?\s*+[:：]|[^\W\d_]{1,30}+\s++\"[^\"\n]{0,60}+\"\s*+:|-?\d++\s*+:)"
)
_ARRAY: Final = re.compile(
    r"[\[［]" + _GAP + rf"(?:[\"'“‘`＂\]］]|,|<!--|{_ESCAPED_QUOTE}|-?\.?\d|[+.]\d|//|/\*|\Z|\(\s*[\d\"']"
    r"|(?:true|false|null|True|False|None|NaN|undefined)\b|[-tfnTFN][a-z]{0,4}+\s*+\Z)"
)
_CITATION: Final = re.compile(r"\[\s*+(?:\d+(?:\s*[-–,;]\s*\d+)*)?\s*+\]|\{\s*+\}")
_STATEMENT: Final = re.compile(r"(?:[:=(]|\bis|\bare|\breturns?|\A|\n)[ \t]*\Z")
_WORD: Final = re.compile(r"[^\W\d_]")
_PLACEHOLDER: Final = re.compile(r"['`]\s*+[{\[]|\[\s*+[^\W\d][^\[\]{}\",:]*+\]|\((?!\s*+[\"'\d\[{-])")
_NOTHING: Final = re.compile(r"\s*+\Z")
_FIRST_ITEM: Final = rf"(?<=[\[\s])(?:{LAX_STRING}|{NUMBER}|true|false|null|-?Infinity|NaN){SPACE}"
_BEGUN: Final = re.compile(
    rf"[\[\s]*+(?:\{{{SPACE}(?:[\"“](?![^\"”\n]{{0,60}}+[\"”]\s++\w)|\\|{QUOTED_KEY}{SPACE}[:：]"
    rf"|[A-Za-z_$][\w$]{{0,40}}+(?:[\"'“”]|{SPACE}:(?!:|//)))|{_FIRST_ITEM},)"
    rf"|\[\s*+\[[\[\s]*+{_FIRST_ITEM}\]",
    re.DOTALL,
)
"""A bracket with a key (not `{"name" is one}`), or a first item and its comma: JSON, however it continues."""
_MEMBERS_LISTED: Final = re.compile(
    rf"\[{SPACE}(?:[A-Za-z_$][\w$-]{{0,40}}+|{QUOTED_KEY}){SPACE}[:：](?=[^\]\n]{{0,400}}[{{\"\[])"
)
"""A bracket with keys and, further on, JSON: an object that was opened with the wrong bracket."""
_CLOSED_SOON: Final = re.compile(r"\[[^\[\]{}\"]*+\]")
_LINES_LABELS: Final = frozenset({"jsonl", "ndjson", "jsonlines"})
_OPENING: Final = re.compile(r"[{}\[\]]")
_LEAD: Final = re.compile(r"[\[\s｛［]*+")
_MARKER_WORK: Final = 50
_RANKS: Final = {
    "whole": 0,
    "fenced": 1,
    "lines": 1,
    "tagged": 1,
    "bare": 2,
    "sequence": 2,
    "weak": 3,
    "struck": 4,
    "cited": 5,
}
"""The rank of candidates by kind."""
MIN_FAILURES: Final = 4
MAX_FAILURES: Final = 100
"""Failed repairs after which the search ends, fewer in a long text: each may cost a pass over it."""


def candidates(text: str) -> Iterator[Candidate]:
    """Yield the parts of `text` that may be its JSON, best ones first, otherwise in the order of the text.

    >>> [c.text for c in candidates('Sure [1]: {"a": 1}. Or {"b": 2}?')]
    ['{"a": 1}', '{"b": 2}']
    """
    with bounded_work(len(text)):
        matches = find_candidates(text, nan="null").found
    for kind, repaired in matches:
        yield Candidate(repaired.start, repaired.end, text[repaired.start : repaired.end], kind)


def find_candidates(text: str, *, nan: NanPolicy, include_cited: bool = False) -> Candidates:
    """Return every candidate with its repair: fenced and tagged first, then bare, then weak, then open reasoning.

    `include_cited` adds lists of numbers that are most likely citations, for callers with a schema to decide.
    """
    search = _Search(text, nan)
    search.run()
    matches = [each for each in search.matches if include_cited or each.kind != "cited"]
    ranked = sorted(matches, key=lambda each: _RANKS[each.kind]) if len(matches) > 1 else matches
    if not ranked:
        ranked = [RepairedCandidate("thought", each.repaired) for each in reversed(search.reasoning_matches)]
    return Candidates(ranked, search.given_up, search.source, search.skipped)


class _Search:
    """One pass over a text that may contain JSON among other things."""

    def __init__(self, text: str, nan: NanPolicy) -> None:
        self.text = text
        self.source = RepairSource(text)
        self.nan = nan
        self.matches: list[RepairedCandidate] = []
        self.reasoning_matches: list[RepairedCandidate] = []
        self.given_up: list[GivenUp] = []
        self.failures = 0
        self.skipped = -1
        self.has_folds = FOLD.search(text) is not None
        self.wordless = _WORD.search(text) is None
        self.first = len(text) - len(text.lstrip())
        self.is_final = False
        self.in_open_reasoning = False
        self.run_end = 0
        self.run_opens_json = False
        """The end of the last run of brackets, and whether it can open JSON."""

    def run(self) -> None:
        """Search the whole text."""
        text = self.text
        if self._match_whole_text():
            return
        position = 0
        kind = "bare"
        while marker := _MARKER.search(text, position):
            position = marker.end()
            what = marker.lastgroup
            if (block := block_at(text, marker.start())) is not None:
                position = self._skip_reasoning(block)
            elif (end := closing_at(text, marker.start())) >= 0:
                # Everything before an unpaired end of reasoning was reasoning.
                self.matches.clear()
                self.given_up.clear()
                position = end
            elif what == "bracket":
                position = self._match_bracket(marker.start(), kind)
            elif what == "fence":
                position = self._match_fence(marker.group(), marker.end())
            elif what in ("tag", "data"):
                kind = "tagged" if self._bracket_follows(marker.end()) else kind
                continue
            else:
                continue
            kind = "bare"
            spend(_MARKER_WORK)
            if self.is_final or self.failures > max(MIN_FAILURES, min(MAX_FAILURES, 1_000_000 // len(text))):
                break

    def _skip_reasoning(self, block: Block) -> int:
        """Skip a reasoning block; candidates of an unclosed one are kept apart, in case there is nothing else."""
        end = -1 if self.in_open_reasoning else block.end(self.text, block.start)
        if end >= 0:
            return end
        self.in_open_reasoning = True
        return block.start

    def _add(self, kind: str, repaired: Repaired) -> None:
        (self.reasoning_matches if self.in_open_reasoning else self.matches).append(RepairedCandidate(kind, repaired))

    def _bracket_follows(self, at: int) -> bool:
        return self.text[at : at + 40].lstrip()[:1] in ("{", "[")

    def _match_whole_text(self) -> bool:
        """Match a text that is one document, even one without brackets; return whether it is."""
        text = self.text.strip("\ufeff\u200b \t\r\n")
        if text[:1] in ("{", "[", "｛", "［") and not (text[-1:] == "]" and text[:1] == "["):
            return False
        if "```" in text or (len(text) > 200 and text[:1] not in ('"', "[", "'", "\\", "&", "“")):
            return False
        start = self.text.find(text[:1]) if text else 0
        if _PLACEHOLDER.match(text):
            return False
        repaired = self._repair(start, len(self.text), many=False)
        if isinstance(repaired, CannotRepair):
            return False
        if not only_comments(self.text, repaired.end) and not QUOTED_KEY_AHEAD.match(self.text, start):
            return False
        self._add("whole", repaired)
        return True

    def _skip_listed_members(self, at: int) -> int:
        """Return where to continue after a bracket that does not open JSON.

        Keys in a list are recorded as an unreadable part.
        """
        if _MEMBERS_LISTED.match(self.text, at) and not _CLOSED_SOON.match(self.text, at):
            return self._skip_unreadable(at, CannotRepair(at, "a list has keys instead of items"))
        return at + 1

    def _skip_bare(self, at: int, repaired: Repaired, *, is_weak: bool) -> int:
        """Return where to continue after brackets among words that are not an answer; -1 where they may be one."""
        if _is_sentence(self.text, at, repaired):
            return at + 1
        if is_weak:
            if isinstance(repaired.value, list) and _is_bare_words(repaired):
                return self._give_up(at, CannotRepair(at, "a list goes on in words that are not JSON"))
            return -1
        restart = _restart(self.text, at, repaired)
        if restart >= 0:
            self.given_up.append(GivenUp(at, CannotRepair(at, "it breaks off and begins again")))
        return restart

    def _match_bracket(self, at: int, kind: str) -> int:
        """Read the JSON or prose that begins at a bracket; return where the search continues."""
        text = self.text
        if not self._can_open_json(at) or self._is_lone(at):
            if kind == "thought":
                return at + 1
            return self._skip_listed_members(at)
        if (after := _quoted_alone(text, at)) >= 0:
            return after
        if kind == "bare" and (citation := _CITATION.match(text, at)):
            kind = self._citation_kind(citation)
            if kind == "cited" and "," not in citation.group():
                return citation.end()
        return self._add_bracket(at, kind)

    def _add_bracket(self, at: int, kind: str) -> int:
        """Repair the JSON that begins at a bracket, and record it as a candidate of its kind."""
        text = self.text
        repaired = self._repair(at, len(text), many=kind == "bare")
        if isinstance(repaired, CannotRepair):
            return self._give_up(at, repaired)
        if kind == "bare":
            is_weak = _is_bare_words(repaired) or _is_placeholder(repaired)
            after = self._skip_bare(at, repaired, is_weak=is_weak)
            if after >= 0:
                return after
            if is_weak:
                kind = "weak"
        in_fold = self.has_folds and is_folded(text, at)
        if kind in ("bare", "tagged") and (in_fold or _is_struck(text, at, repaired.end)):
            return self._add_struck(at, repaired)
        self._add("sequence" if repaired.parts and kind == "bare" else kind, repaired)
        return max(repaired.end, at + 1)

    def _add_struck(self, at: int, repaired: Repaired) -> int:
        """Add one document that is struck out, without those after it; return its end."""
        first_document = self._repair(at, len(self.text), many=False)
        repaired = repaired if isinstance(first_document, CannotRepair) else first_document
        self._add("struck", repaired)
        return max(repaired.end, at + 1)

    def _citation_kind(self, citation: re.Match[str]) -> str:
        """Return the kind of a list of numbers, or an empty container, at this place."""
        at, end = citation.span()
        if self.wordless or (at <= self.first and only_comments(self.text, end)):
            return "bare"
        if "," in citation.group() or not citation.group()[1:-1].strip():
            self._skip_citation(at)
        if _is_stated(self.text, at, end):
            return "weak"
        return "cited"

    def _skip_citation(self, at: int) -> None:
        """Record a list of numbers, or an empty container, if it begins a line."""
        line = self.text[max(0, at - 40) : at].rpartition("\n")[2]
        if not line.strip() and (self.skipped < 0 or at < self.skipped):
            self.skipped = at

    def _can_open_json(self, at: int) -> bool:
        """Whether the bracket can open JSON; the answer is the same for all square brackets in a run."""
        if self.text[at] not in "[［":
            return can_open_json(self.text, at)
        if at >= self.run_end:
            self.run_end = _LEAD.match(self.text, at).end()  # type: ignore[union-attr]
            self.run_opens_json = can_open_json(self.text, at)
        return self.run_opens_json

    def _is_lone(self, at: int) -> bool:
        """Return whether a bracket at the end of the text belongs to a sentence: `Use {`."""
        text = self.text
        if not _NOTHING.match(text, at + 1):
            return False
        return _OPENING.search(text, 0, at) is not None or _STATEMENT.search(text[max(0, at - 40) : at]) is None

    def _repair(self, at: int, end: int, *, many: bool) -> Repaired | CannotRepair:
        try:
            return repair_at(self.source, at, end, nan=self.nan, many=many)
        except CannotRepair as error:
            self.failures += 1
            self.is_final = self.is_final or error.final
            return error.with_traceback(None)  # its frames would keep the text alive in a cycle with the error

    def _give_up(self, at: int, error: CannotRepair) -> int:
        """Return where the search continues: after the content of a bracket that begins like JSON, else inside it."""
        if _BEGUN.match(self.text, at):
            return self._skip_unreadable(at, error)
        return at + 1

    def _skip_unreadable(self, at: int, error: CannotRepair) -> int:
        self.given_up.append(GivenUp(at, error))
        if error.final:  # the search ends here
            return len(self.text)
        depth = 0
        for token in outside_strings(self.text, at, len(self.text)):
            what = token.group()
            if what in "{[":
                depth += 1
            elif what in "}]":
                depth -= 1
                if depth == 0:
                    return token.end()
            else:
                return token.start()
        return len(self.text)

    def _repair_beyond_fence(self, marker: str, start: int, first: int) -> Repaired | None:
        """Return the JSON of a block whose first closing fence is inside a string.

        It ends with the text, or a later fence.
        """
        last_fence = self.text.rfind(marker[:3], first + 1)
        for end in (len(self.text), last_fence):
            if end <= first:
                continue
            repaired = self._repair(start, end, many=True)
            if isinstance(repaired, Repaired) and not repaired.in_string:
                return repaired
        return None

    def _match_fence(self, marker: str, at: int) -> int:
        """Match a fenced block; its end is the next fence that is not inside a string."""
        text = self.text
        line = _FENCE_LINE.match(text, at)
        label = line.group(1).lower() if line else ""
        opened = line.end() if line else at
        start = _LEAD_BLANK.match(text, opened).end()  # type: ignore[union-attr]
        if label not in _JSON_LABELS or not self._fenced_json(start):
            return opened
        first = text.find(marker[:3], start)
        end = first if first >= 0 else len(text)
        while end > start and text[end - 1].isspace():
            end -= 1
        repaired = self._repair(start, end, many=True)
        if first >= 0 and (isinstance(repaired, CannotRepair) or repaired.in_string):
            repaired = self._repair_beyond_fence(marker, start, first) or repaired
        if isinstance(repaired, CannotRepair):
            return self._give_up(start, repaired)
        kind = "lines" if label in _LINES_LABELS else "fenced"
        self._add("struck" if self.has_folds and is_folded(text, start) else kind, repaired)
        closing = text.find(marker[:3], repaired.end)
        if closing < 0 or text[repaired.end : closing].strip():
            return repaired.end
        return closing + 3

    def _fenced_json(self, start: int) -> bool:
        char = self.text[start : start + 1]
        if char in ("{", "[", "｛", "［"):
            return can_open_json(self.text, start)
        return char != "" and (QUOTED_KEY_AHEAD.match(self.text, start) is not None or char in "&\\")


_LEAD_BLANK: Final = re.compile(r"\s*+")
_FIRST_KEY: Final = re.compile(r"[\[\s]*+\{\s*+(\"[^\"\\\n]{1,60}+\")\s*+:")
_BEGINS_LINE: Final = re.compile(r"\n\s*+(?:```\w*+\s*+)?+(\[?+\s*+\{\s*+(\"[^\"\\\n]{1,60}+\")\s*+:)")
_STRUCK_AFTER: Final = re.compile(r"\s*+(?:~~|</(?:del|s|strike)>)")


def _is_struck(text: str, at: int, end: int) -> bool:
    """Whether JSON is struck out, quoted from elsewhere, or removed in a diff."""
    if STRUCK_BEFORE.search(text[max(0, at - 20) : at]):
        return _STRUCK_AFTER.match(text, end) is not None
    line = text[max(0, at - 20) : at].rpartition("\n")[2].strip()
    is_quoted = line != "" and line.strip("> ") == ""
    return is_quoted or (line == "-" and text.find("\n+", end) >= 0)


def _restart(text: str, at: int, repaired: Repaired) -> int:
    """Return where a document that broke off begins again on a separate line; -1 where it does not.

    The text up to the end was read as one long string, which contains the quotes of the second beginning.
    """
    if not _has_edit(repaired, "unescaped_quote"):
        return -1
    first = _FIRST_KEY.match(text, at)
    if first is None:
        return -1
    for match in _BEGINS_LINE.finditer(text, first.end(), repaired.end):
        if match.group(2) == first.group(1):
            return match.start(1)
    return -1


def _quoted_alone(text: str, at: int) -> int:
    """Return where a quotation of a bracket ends, as in `"{"` or in a code span that does not close it; else -1."""
    closing = QUOTE_PAIRS.get(text[at - 1 : at])
    if closing is None:
        return -1
    if text.startswith(closing, at + 1) and not QUOTED_KEY_AHEAD.match(text, at + 1):
        return at + 2
    if closing != "`":
        return -1
    end = text.find("`", at)
    inside = ""
    if end >= 0 and "\n" not in text[at:end]:
        inside = text[at:end]
    is_open = sum(map(inside.count, "{[")) > sum(map(inside.count, "}]"))
    return end + 1 if is_open else -1


def only_comments(text: str, at: int) -> bool:
    """Return whether only comments follow."""
    while True:
        at = _LEAD_BLANK.match(text, at).end()  # type: ignore[union-attr]
        comment = LINE_COMMENT.match(text, at) or BLOCK_COMMENT.match(text, at)
        if comment is None:
            return at == len(text)
        at = comment.end()


def can_open_json(text: str, at: int) -> bool:
    """Return whether the bracket at `at` can open JSON, judging by the next characters.

    >>> can_open_json("{name}", 0), can_open_json('{"name": 1}', 0)
    (False, True)
    """
    last = at
    if text[at] in "[［" and (inner := _LEAD.match(text, at)) is not None:
        last = inner.end()
        while last > at + 1 and text[last - 1].isspace():
            last -= 1
        last -= 1
        if text[inner.end() : inner.end() + 1] == "{":
            return _OBJECT.match(text, inner.end()) is not None
    return (_OBJECT if text[last] in "{｛" else _ARRAY).match(text, last) is not None


def _has_edit(repaired: Repaired, kind: str) -> bool:
    """Whether a repair has an edit of this kind."""
    # A loop takes half the time of `any`, and unpacking half that of reading the field by name.
    for edit_kind, _, _, _ in repaired.edits:  # noqa: SIM110
        if edit_kind == kind:
            return True
    return False


def _is_bare_words(repaired: Repaired) -> bool:
    """Whether a candidate has words but no quotes: more likely prose, a log's time stamp or code."""
    if not _has_edit(repaired, "unquoted_value"):
        return False
    quoted = [edit for edit in repaired.edits if edit.before[:1] in ('"', "'", "“")]
    return not quoted and repaired.text.count('"') == 2 * sum(edit.after.count('"') // 2 for edit in repaired.edits)


def _is_sentence(text: str, at: int, repaired: Repaired) -> bool:
    """Whether a bracket that nothing closes only precedes JSON: `Use { for blocks. The answer: {"a": 1}`."""
    value = repaired.value
    edits = repaired.edits
    if not isinstance(value, dict) or len(value) != 1 or len(edits) < 2 or edits[-1].kind != "missing_bracket":
        return False
    if edits[0].kind != "unquoted_key" or len(edits[0].before.split()) < 3:
        return False
    is_json_inside = isinstance(next(iter(value.values())), dict | list)
    return is_json_inside and _STATEMENT.search(text[max(0, at - 40) : at]) is None


def _is_placeholder(repaired: Repaired) -> bool:
    """Return whether a candidate is a template without values: `{"name", "age"}`, `{"name": ..., "age": ...}`."""
    if isinstance(repaired.value, list):
        if any(isinstance(each, dict) for each in repaired.value):
            return False
        return any(edit.kind == "wrong_bracket" and edit.before == "{" for edit in repaired.edits[:1])
    if not isinstance(repaired.value, dict) or any(repaired.value.values()):
        return False
    return _has_edit(repaired, "ellipsis") and _has_edit(repaired, "missing_value")


def _is_stated(text: str, at: int, end: int) -> bool:
    """Return whether a short list of numbers is placed like an answer: after a colon or `is`, at the end of a line."""
    rest = text[end : end + 40].lstrip(" \t.);")
    return (not rest or rest[0] == "\n") and _STATEMENT.search(text[max(0, at - 40) : at]) is not None
