"""Detect where the JSON in a streamed text begins and ends: `JsonFenceDetector`.

Streaming can only take the first thing that looks like JSON; with the whole text, `candidates` does better.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slipform.text.reasoning import QUOTE_PAIRS, Block, block_at, may_open_at

DEFAULT_MAX_PREFIX_CHARS: Final = 500

_NOTABLE: Final = re.compile(r"[<◁{\[]")
_LOOKAHEAD: Final = 64
"""Characters after a bracket that must fit JSON before it is accepted."""

# Text that may follow an opening bracket in JSON: enough to distinguish `[1, 2]` from `[12:30]`.
_OBJECT: Final = r'\{\s*(?:"|\})'
# Escaped JSON also begins here, but the scanner stops at it: the answer is not inside it.
_ESCAPED: Final = r"""\\+["'nrtu]|&(?:quot|apos|\#[xX]?\d)"""
_LOOSE_OBJECT: Final = rf"""\{{\s*(?:["'}}“‘`]|/[/*]|\#|[\w$-]+\s*:|{_ESCAPED})"""
_ITEM: Final = r'(?:"|\]|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\s*[,\]]|(?:true|false|null)\s*[,\]])'
_LOOSE_ITEM: Final = (
    r"""(?:["'\]“‘`]|(?:[-+]?(?:\d[\d_.]*|\.\d+)(?:[eE][+-]?\d+)?|true|false|null|True|False|None|NaN)"""
    rf"""(?:\s*[,\]]|\s+["'{{\[\d-])|/[/*]|{_ESCAPED})"""
)
_ESCAPED_START: Final = re.compile(rf"(?:\[\s*)*\{{?\s*(?:{_ESCAPED})")
_STRICT_START: Final = re.compile(rf"(?:\[\s*)*(?:{_OBJECT}|(?<=[\[\s]){_ITEM})")
_LOOSE_START: Final = re.compile(rf"(?:\[\s*)*(?:{_LOOSE_OBJECT}|(?<=[\[\s]){_LOOSE_ITEM})")
# The same, cut off anywhere: as long as this matches to the end of the text, more text is needed.
_PARTIAL: Final = re.compile(
    r"(?:\[\s*)*(?:\{\s*(?:[\w$-]*\s*|/|\\+|&\#?\w{0,4})?|[-+]?[\d._]*(?:[eE][+-]?\d*)?\s*|[A-Za-z]{1,5}\s*|/|\\+|&\#?\w{0,4})?\Z"
)
_CDATA: Final = "<![CDATA"
_QUOTED_KEY: Final = re.compile(r'"[^"\n]*"\s*:')
_QUOTED_KEY_SO_FAR: Final = re.compile(r'"[^"\n]*(?:"\s*)?\Z')
_BODY: Final = re.compile(r'[^"\\{}\[\]]*')
STRUCK_BEFORE: Final = re.compile(r"(?:~~|<(?:del|s|strike)>)\s*+\Z")
_CALL_BEFORE: Final = re.compile(r"<\|?(?:tool_?calls?|function_?calls?|python_tag)\|?>\s*+\Z", re.IGNORECASE)
FOLD: Final = re.compile(r"<(/?)details\b", re.IGNORECASE)
_MAX_FOLD: Final = 4_000
"""Characters before a candidate that are searched for the beginning of a folded block."""


def is_set_aside(before: str) -> bool:
    r"""Return whether JSON after this text may be struck out, quoted, removed in a diff, folded away or a tool call.

    >>> is_set_aside("> "), is_set_aside("<details>\n"), is_set_aside("Sure:\n")
    (True, True, False)
    """
    end = before[-20:]
    line = end.rpartition("\n")[2].strip()
    is_marked = line != "" and line.strip("> -") == ""
    return (
        is_marked
        or STRUCK_BEFORE.search(end) is not None
        or _CALL_BEFORE.search(end) is not None
        or is_folded(before, len(before))
    )


def is_folded(text: str, at: int) -> bool:
    """Return whether a position is in a collapsed block (`<details>`)."""
    folds = [match.group(1) for match in FOLD.finditer(text, max(0, at - _MAX_FOLD), at)]
    return bool(folds) and not folds[-1]


class FencePhase(StrEnum):
    """The state of the detector."""

    FINDING_START = "finding_start"
    TRACKING_DEPTH = "tracking_depth"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class FenceResult:
    """The result of `JsonFenceDetector.process`.

    `delta` is new text to pass on at once. `failed` says that no JSON began within the limit: with `fail_hard`, no more
    text is passed on; without it, the text is passed on raw from its very start, and `raw` is true.
    """

    delta: str
    complete: bool
    waiting_for_start: bool
    failed: bool = False
    raw: bool = False


class StartFinder:
    """Finds the bracket that opens the JSON, in prose that may contain other brackets.

    A bracket is pending until the text after it could be JSON, so that `[note]`, `{name}`, `[[link]]` and `[12:30]` are
    prose. Reasoning blocks such as `<think>…</think>` are skipped with everything in them, and do not
    count towards the limit. With `loose`, single quotes, bare keys and Python's literals may follow the bracket too.
    """

    def __init__(self, *, loose: bool = False) -> None:
        self.prefix_chars = 0
        """The number of characters of prose so far, without reasoning."""
        self._start = _LOOSE_START if loose else _STRICT_START
        self._passed: list[str] = []
        self._first = ""
        """The index of the first character that is not blank."""
        self._pending = ""
        self._block: Block | None = None

    @property
    def text(self) -> str:
        """All text before the start."""
        return "".join(self._passed) + self._pending

    def feed(self, chunk: str, *, last: bool = False) -> str | None:
        """Return the beginning of the JSON; None while it is not certain.

        With `last`, the decision is final.
        """
        text = self._pending + chunk
        i = 0
        while True:
            if self._block is not None:
                i = self._skip_reasoning(text, i, self._block, last=last)
                if self._block is not None:
                    return None
            notable = _NOTABLE.search(text, i)
            if notable is None:
                self._pass(text, i, len(text))
                return None
            self._pass(text, i, notable.start())
            i = notable.start()
            verdict = self._reasoning(text, i)
            if verdict is False and text[i] in "{[":
                verdict = self._bracket(text, i)
            if verdict is None and not last:
                self._pending = text[i:]
                return None
            if verdict and self._block is None:
                self._pending = ""
                return text[i:]
            if not verdict:
                self._pass(text, i, i + 1)
                i += 1

    def _pass(self, text: str, start: int, stop: int) -> None:
        if stop > start:
            self._passed.append(text[start:stop])
            self._first = self._first or text[start:stop].lstrip()[:1]
            if self._block is None:
                self.prefix_chars += stop - start
        self._pending = ""

    def _reasoning(self, text: str, i: int) -> bool | None:
        """Return whether a reasoning block opens at `i`, and enter it."""
        self._block = block_at(text, i)
        if self._block is not None:
            return True
        # A square bracket needs more text to be certain.
        if text[i] != "[" and may_open_at(text, i):
            return None
        return False

    def _skip_reasoning(self, text: str, i: int, block: Block, *, last: bool) -> int:
        """Return the index after the reasoning block, or the end of the text, without a partial closing marker."""
        end = block.end(text, i)
        if end >= 0:
            self._pass(text, i, end)
            self._block = None
            return end
        keep = len(text) if last else max(i, len(text) - block.longest_closing + 1)
        self._pass(text, i, keep)
        self._pending = text[keep:]
        return keep

    def _bracket(self, text: str, i: int) -> bool | None:
        """Return whether the bracket at `i` opens JSON; None while more text is needed."""
        window = i + _LOOKAHEAD
        if text[i] == "[" and "".join(self._passed[-len(_CDATA) :]).endswith(_CDATA):
            return False
        if (quoted := self._is_quoted(text, i, window)) is not False:
            return False if quoted else None
        if self._start.match(text, i, window):
            # Escaped JSON in a text that began with a quote is the content of a JSON string.
            return not (self._first == '"' and _ESCAPED_START.match(text, i, window))
        if not _PARTIAL.match(text, i, window):
            return False
        return True if len(text) >= window else None

    def _char_before(self, text: str, i: int) -> str:
        if i:
            return text[i - 1]
        return self._passed[-1][-1:] if self._passed else ""

    def _is_quoted(self, text: str, i: int, window: int) -> bool | None:
        """Return whether the bracket at `i` is alone between quotes, as in `"{"`; None while more text is needed."""
        closing = QUOTE_PAIRS.get(self._char_before(text, i))
        if closing is None or not text.startswith(closing, i + 1):
            if closing is not None and i + 1 >= len(text):
                return None
            return False
        if closing != '"':
            return True
        if _QUOTED_KEY.match(text, i + 1, window):
            return False
        if len(text) < window and _QUOTED_KEY_SO_FAR.match(text, i + 1):
            return None
        return True


class JsonFenceDetector:
    """Passes on only the JSON of a chatty stream, as it arrives.

    Feed it with `add_chunk`, call `process` for the result, and `finish` when the stream has ended.

    >>> detector = JsonFenceDetector()
    >>> detector.add_chunk('Sure! Here is [the JSON]: {"a": "}')
    >>> detector.process()
    FenceResult(delta='{"a": "}', complete=False, waiting_for_start=False, failed=False, raw=False)
    >>> detector.add_chunk('"} Hope this helps {:')
    >>> detector.process().delta
    '"}'
    >>> detector.prefix
    'Sure! Here is [the JSON]: '

    `max_prefix_chars` bounds the prose before the JSON, over the whole stream; reasoning blocks do not count. Use 50
    with `fail_hard` where the first token is forced. `stop_after_json` drops what follows the JSON (`complete` is the
    sign to stop the model); without it that text is passed on too. With `loose`, JSON may begin with single quotes,
    bare keys and Python's literals.
    """

    def __init__(
        self,
        max_prefix_chars: int = DEFAULT_MAX_PREFIX_CHARS,
        *,
        stop_after_json: bool = True,
        fail_hard: bool = False,
        loose: bool = False,
    ) -> None:
        self.phase = FencePhase.FINDING_START
        self.failed = False
        self.prefix = ""
        """The prose before the JSON, for debugging; only passed on if there is no JSON and not `fail_hard`."""
        self._max_prefix_chars = max_prefix_chars
        self._stop_after_json = stop_after_json
        self._fail_hard = fail_hard
        self._finder = StartFinder(loose=loose)
        self._chunks: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._root = ""

    @property
    def in_string(self) -> bool:
        """Whether the text ends inside a string of the JSON."""
        return self.phase is FencePhase.TRACKING_DEPTH and self._in_string

    def add_chunk(self, chunk: str) -> None:
        """Add the next piece of the stream."""
        self._chunks.append(chunk)

    def process(self) -> FenceResult:
        """Return the new part of the JSON since the last call."""
        return self._process(last=False)

    def finish(self) -> FenceResult:
        """End the stream: a pending bracket is prose, and a missing JSON is a failure."""
        return self._process(last=True)

    def _process(self, *, last: bool) -> FenceResult:
        """Find the start of the JSON, then its end; return the part that can be passed on."""
        text = "".join(self._chunks)
        self._chunks.clear()
        if self.failed:
            return self._failure(text)
        if self.phase is FencePhase.FINDING_START:
            start = self._finder.feed(text, last=last)
            if self._finder.prefix_chars > self._max_prefix_chars or (start is None and last):
                self.failed = True
                return self._failure(self._finder.text + (start or ""))
            if start is None:
                return FenceResult("", complete=False, waiting_for_start=True)
            self.prefix = self._finder.text
            self.phase = FencePhase.TRACKING_DEPTH
            self._root = start[0]
            text = start
        delta = text
        if self.phase is FencePhase.TRACKING_DEPTH:
            end = self._track(text)
            if self._stop_after_json:
                delta = text[:end]
        elif self._stop_after_json:
            delta = ""
        return FenceResult(delta, complete=self.phase is FencePhase.COMPLETED, waiting_for_start=False)

    def _failure(self, text: str) -> FenceResult:
        if self._fail_hard:
            self.prefix += text
            return FenceResult("", complete=False, waiting_for_start=False, failed=True)
        return FenceResult(text, complete=False, waiting_for_start=False, failed=True, raw=True)

    def _track(self, text: str) -> int:
        """Scan brackets and strings; return the index after the JSON, or the end of the text."""
        i = 0
        while i < len(text):
            if self._escaped:
                self._escaped = False
                i += 1
                continue
            body = _BODY.match(text, i)
            i = body.end() if body else i
            if i == len(text):
                break
            c = text[i]
            i += 1
            if c == "\\":
                self._escaped = True
            elif c == '"':
                self._in_string = not self._in_string
            elif not self._in_string and self._bracket_closes_root(c):
                self.phase = FencePhase.COMPLETED
                break
        return i

    def _bracket_closes_root(self, c: str) -> bool:
        if c in "{[":
            self._depth += 1
            return False
        if self._depth == 1 and c != ("}" if self._root == "{" else "]"):
            return False  # only the bracket that matches the first one ends the JSON
        self._depth -= 1
        return self._depth == 0
