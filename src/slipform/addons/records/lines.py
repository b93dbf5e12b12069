"""Split a source into lines with exact offsets, and describe lines and values by their outward form."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

Features: TypeAlias = tuple[str, ...]
LineSignature: TypeAlias = tuple[str, ...]

COLUMN_END = " \x00 "
HEADING = re.compile(r"#{1,6} \S")
_LONGEST_LINE = 400
"""Longer lines are split into sentences: such a text is not made of lines."""
_LONG_LINE = 150
"""Longer lines are split as well where they have no cells."""
_LONGEST_SENTENCE = 2_000
_SENTENCE = re.compile(r"[.!?。]['\")\]]*\s+(?=[^\W_a-z])|(?<=。)")
_BLANKS = re.compile(r"\s+")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}$")
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d,.' \u00a0\u2009\u2019\u202f]*\d%?$|[-+]?\d%?$")
_ENUMERATOR = re.compile(r"\(?\d+[.)]$")
_INNER_SENTENCE = re.compile(r"\w[.!?] +[^\W_a-z]")
_PARAGRAPH_NUMBER = re.compile(r"\s*\(?\w{1,5}[.)]\s*")
_WRAP = re.compile(r"\n[ \t]*")
_LEAST_PARAGRAPHS = 3
_LEAST_WIDTH = 40
_LOWER_SHARE = 0.25
_INNER_SHARE = 0.1
_HEAD_SHARE = 0.8
_CELL_GAP = re.compile(r" {2,}|\t|\|")
_CELL = re.compile(r"\S+(?: \S+)*")
_GROUPED_NUMBER = re.compile(
    r"\d{1,3}(?:[,.' \u00a0\u2009\u2019\u202f]\d{3})+(?=\D|$)|\d{1,2}(?:,\d{2})+,\d{3}(?=\D|$)|\d+"
)
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_NOT_DIGITS = re.compile(r"\D+")
_LEAST_RESEMBLING = 6
_ALIKE = 0.8
_LEAST_LABELS = 5
_LABEL_SHARE = 0.02
_MOST_CELLS = 6
_CELL_EDGES = "\t\r\n\f|,;"
_CELL_BLANKS = " \t\r\n\f|"
_INDENT_STEP = 4
_LENGTH_STEP = 20


class Line(NamedTuple):
    """A line of the source, or a sentence of a long one; `source[start:end]` with its line break."""

    start: int
    end: int
    text: str
    features: Features
    """Ten properties of its outward form; empty for a blank line."""

    @property
    def is_blank(self) -> bool:
        """Whether nothing is on it."""
        return not self.features

    @property
    def signature(self) -> LineSignature:
        """Indent, kind of the first word and number of cells: what lines with the same role share."""
        return (self.features[0], self.features[1], self.features[3]) if self.features else ()


class LineTable:
    """The lines of a source, found by number or by offset."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = _split(text)
        self.starts = [line.start for line in self.lines]

    def __len__(self) -> int:
        return len(self.lines)

    def line_at(self, offset: int) -> int:
        """The number of the line that has this offset."""
        return max(0, bisect_right(self.starts, offset) - 1)

    def page_body(self, page_break: int) -> int:
        """Return where the text of a page begins that does not begin all pages; `page_break` is before its head."""
        first = self.line_at(page_break)
        return self.lines[min(first + len(self._page_head), len(self.lines) - 1)].start

    @cached_property
    def _page_head(self) -> list[str]:
        """The lines that nearly all pages begin with, numbers left out."""
        breaks = [number for number, line in enumerate(self.lines) if self.text[line.start] == "\f"]
        head: list[str] = []
        while breaks:
            numbers = [number + len(head) for number in breaks if number + len(head) < len(self.lines)]
            texts = Counter(_without_numbers(self.text[slice(*self.lines[number][:2])]) for number in numbers)
            text, times = texts.most_common(1)[0] if texts else ("", 0)
            if times < max(2, _HEAD_SHARE * len(breaks)):
                break
            head.append(text)
        return head

    def text_of(self, first: int, stop: int) -> str:
        """The source from one line up to another."""
        return self.text[self.lines[first].start : self.lines[stop - 1].end]


def _without_numbers(text: str) -> str:
    return "".join(sign for sign in text if not sign.isdigit() and sign not in " .,'-")


def _split(text: str) -> list[Line]:
    spans = list(_spans(text))
    texts = [text[start:end].rstrip("\r\n\f") for start, end in spans]
    indents = [_indent(each) for each in texts]
    labels = _labels(texts)
    lines: list[Line] = []
    for number, (start, end) in enumerate(spans):
        before = indents[number - 1] if number else -1
        after = indents[number + 1] if number + 1 < len(indents) else -1
        features = _features(texts[number], indents[number], before, after, labels)
        lines.append(Line(start, end, texts[number], features))
    return lines


def _labels(texts: Sequence[str]) -> frozenset[str]:
    """Return the words that many lines begin with: field names, keywords, marks."""
    firsts = Counter(words[0] for text in texts if (words := text.split(None, 1)))
    least = max(_LEAST_LABELS, _LABEL_SHARE * firsts.total())
    return frozenset(word for word, count in firsts.items() if count >= least and not any(map(str.isdigit, word)))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    raws = text.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, raws))]
    paragraphs = dict(_wrapped_paragraphs(raws))
    number = 0
    while number < len(raws):
        stop = paragraphs.get(number, number + 1)
        raw = raws[number]
        is_long = len(raw) > _LONGEST_LINE or (len(raw) > _LONG_LINE and len(cells_of(raw)) == 1)
        if is_long or number in paragraphs:
            yield from _sentences(text, starts[number], starts[stop])
        else:
            yield starts[number], starts[stop]
        number = stop


def _wrapped_paragraphs(raws: Sequence[str]) -> list[tuple[int, int]]:
    """Return the paragraphs of prose with line breaks at a width, where sentences begin within lines.

    Records of such a text are sentences, and begin anywhere in a line.
    """
    runs = list(_runs_of_single_cells(raws))
    lengths = sorted(len(raws[number].rstrip()) for first, stop in runs for number in range(first, stop - 1))
    if len(runs) < _LEAST_PARAGRAPHS:
        return []
    width = lengths[int(len(lengths) * 0.95)]
    wrapped = [run for run in runs if width >= _LEAST_WIDTH and _is_wrapped(raws[slice(*run)], width)]
    continuing = [raws[number].lstrip() for first, stop in wrapped for number in range(first + 1, stop)]
    lower = sum(line[0].islower() for line in continuing)
    inner = sum(any(_INNER_SENTENCE.search(raw) for raw in raws[slice(*run)]) for run in wrapped)
    is_prose = lower >= _LOWER_SHARE * len(continuing) and inner >= max(_LEAST_PARAGRAPHS, _INNER_SHARE * len(wrapped))
    return wrapped if is_prose else []


def _runs_of_single_cells(raws: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of two or more lines with one cell each, between blank lines."""
    first = 0
    for number, raw in enumerate([*raws, ""]):
        if not raw.strip() or len(raw) > _LONG_LINE or _CELL_GAP.search(raw.strip()):
            if number - first > 1:
                yield first, number
            first = number + 1


def _is_wrapped(raws: Sequence[str], width: int) -> bool:
    """Whether the first word of each line but the first had no room on the line before."""
    return all(len(before.rstrip()) + 1 + len(after.split(None, 1)[0]) >= width - 1 for before, after in pairwise(raws))


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    for match in _SENTENCE.finditer(text, start, end):
        if match.end() > at and not _PARAGRAPH_NUMBER.fullmatch(text, at, match.end()):
            yield from _bounded(text, at, match.end())
            at = match.end()
    if at < end:
        yield from _bounded(text, at, end)


def _bounded(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield a span in parts that are not too long for a question, cut at blanks where there are any."""
    while end - start > _LONGEST_SENTENCE:
        blank = text.rfind(" ", start + _LONGEST_SENTENCE // 2, start + _LONGEST_SENTENCE)
        cut = blank + 1 if blank > 0 else start + _LONGEST_SENTENCE
        yield start, cut
        start = cut
    yield start, end


def _indent(text: str) -> int:
    """The number of leading blanks; -1 for a blank line."""
    stripped = text.lstrip()
    return len(text) - len(stripped) if stripped else -1


def cells_of(text: str) -> list[str]:
    """The cells of a line: parts between tabs, bars or several blanks, else between semicolons or commas.

    >>> cells_of("2024-03-05  Coffee, black   3.20")
    ['2024-03-05', 'Coffee, black', '3.20']
    >>> cells_of("17,Ada,36")
    ['17', 'Ada', '36']
    """
    text = _WRAP.sub(" ", text)
    cells = [cell.strip() for cell in _CELL_GAP.split(text.strip()) if cell.strip()]
    if len(cells) == 1:
        for separator in ",;":
            if text.count(separator) >= 2 and f"{separator} " not in text:
                return text.strip().split(separator)
    return cells


def fills_cell(text: str, start: int, end: int) -> bool:
    r"""Whether a place in a text is a whole cell of its line.

    >>> fills_cell("17\tMisc accrual\t3.20", 3, 15), fills_cell("17\tMisc accrual\t3.20", 3, 7)
    (True, False)
    """
    before = text[max(0, start - 2) : start].rjust(2, "\n")
    after = text[end : end + 2].ljust(2, "\n")
    is_first = before[1] in _CELL_EDGES or (before[1] == " " and before[0] in _CELL_BLANKS)
    is_last = after[0] in _CELL_EDGES or (after[0] == " " and after[1] in _CELL_BLANKS)
    return is_first and is_last


def _features(text: str, indent: int, before: int, after: int, labels: frozenset[str]) -> Features:
    words = text.split()
    if not words:
        return ()
    cells = cells_of(text)
    kinds = [_kind(cell.split()[0]) if cell.split() else "" for cell in cells[:_MOST_CELLS]]
    first = _kind(words[0])
    second = _kind(words[1]) if len(words) > 1 else ""
    return (
        f"indent {min(indent // _INDENT_STEP, 5)}",
        f"first {first}",
        f"two {first} {second}",
        f"cells {min(len(cells), _MOST_CELLS)}",
        f"kinds {' '.join(kinds)}",
        f"last {_kind(words[-1])}",
        f"next {_relation(after, indent)}",
        f"previous {_relation(before, indent)}",
        f"length {min(len(text) // _LENGTH_STEP, 5)}",
        f"label {words[0]}" if words[0] in labels else "label",
    )


def _relation(other: int, indent: int) -> str:
    if other < 0:
        return "none"
    if other == indent:
        return "same"
    return "deeper" if other > indent else "shallower"


@lru_cache(maxsize=65_536)
def _kind(word: str) -> str:
    """What a word looks like: a date, an enumerator, a number, a code, a punctuation mark, or its case."""
    if _DATE.match(word):
        return "date"
    if _ENUMERATOR.match(word):
        return "enumerator"
    if _NUMBER.match(word):
        return "number"
    if any(map(str.isdigit, word)):
        return "code"
    if not any(map(str.isalnum, word)):
        return word[:2]
    if word.isupper() and len(word) > 1:
        return "upper"
    return "capital" if word[0].isupper() else "lower"


def form_of(text: str) -> str:
    """Reduce a text to its form: digits to 9, words to A (upper case) or a, thousands groups joined.

    Runs of letters of scripts without blanks between words become one sign.

    >>> form_of("-2,442.58"), form_of("March 5, 2024"), form_of("RF00291837")
    ('-9.9', 'a 9, 9', 'A9')
    >>> form_of("1\u202f234,56"), form_of("12,34,567.00")
    ('9,9', '9.9')
    """
    text = _GROUPED_NUMBER.sub("9", _UNSPACED.sub(" 字 ", text))
    text = _LETTERS.sub(_letter_form, text)
    return _BLANKS.sub(" ", text).strip()


def _letter_form(word: re.Match[str]) -> str:
    if word[0] == "字":
        return "字"
    return "A" if word[0].isupper() else "a"


def column_text(text: str) -> str:
    r"""Read a stretch of lines by columns: cells that continue on the next line are joined.

    >>> column_text("UPPER RESPIRATORY   MILD\nINFECTION")
    'upper respiratory infection \x00 mild'
    """
    columns: list[tuple[int, list[str]]] = []
    for raw in text.replace("|", " ").splitlines():
        for match in _CELL.finditer(raw):
            parts = next((parts for start, parts in columns if abs(start - match.start()) <= 1), None)
            if parts is None:
                columns.append((match.start(), [match[0]]))
            else:
                parts.append(match[0])
    return COLUMN_END.join(" ".join(parts) for _, parts in columns).casefold()


def has_phrase(text: str, phrase: str) -> bool:
    """Whether a text has a phrase that is not a part of longer words."""
    at = text.find(phrase) if phrase else -1
    while at >= 0:
        end = at + len(phrase)
        is_whole = not (text[max(0, at - 1) : at].isalnum() and phrase[0].isalnum())
        if is_whole and not (text[end : end + 1].isalnum() and phrase[-1].isalnum()):
            return True
        at = text.find(phrase, at + 1)
    return False


def resembles(value: str, text: str) -> bool:
    """Whether a text has a value with some letters misread, as scanners do; digits have to be the same.

    >>> resembles("Harbour Books 367", "Paid to Hlrbour Boolks 367"), resembles("M9 x 16", "bolt M6 x 16")
    (True, False)
    """
    words = value.casefold().split()
    if len(value) < _LEAST_RESEMBLING:
        return False
    digits = _NOT_DIGITS.sub("", value)
    plain = " ".join(words)
    in_text = text.casefold().split()
    for start in range(len(in_text) - len(words) + 1):
        window = " ".join(in_text[start : start + len(words)])
        is_comparable = _NOT_DIGITS.sub("", window) == digits and abs(len(window) - len(plain)) <= 2
        if is_comparable and SequenceMatcher(None, plain, window, autojunk=False).ratio() >= _ALIKE:
            return True
    return False


def cell_spans(line: Line) -> Iterator[tuple[int, int]]:
    """Yield where the cells of a line are in the source."""
    for match in _CELL.finditer(line.text):
        yield line.start + match.start(), line.start + match.end()
