"""Run an extraction as a generator without I/O: it yields rounds of questions, takes their answers, and places records.

It is deterministic: everything is derived between rounds, from answers in the order of their questions, never in the
order of their arrival. So the answers alone, by question, are enough to resume an extraction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec

from slipform.addons.records.coverage import FormCounter, ShownLines, Suspect, between, find_suspects, least_likeness
from slipform.addons.records.learning import RecordCandidate, RecordModel, derive_model
from slipform.addons.records.lines import LineTable
from slipform.addons.records.numbered import (
    RELIABLE_SHARE,
    UNKNOWN_LINES,
    locate_by_lines,
    placed_by_lines,
    placement_by_lines,
)
from slipform.addons.records.placing import (
    Claim,
    Locator,
    Placement,
    Placer,
    RecordBlock,
    bootstrap,
    build_blocks,
    first_place,
    is_independent,
    missing_leaves,
    next_page_part,
    places_in,
    tight_span,
    tightest_place,
)
from slipform.addons.records.segments import (
    Context,
    LineRange,
    Question,
    Stretch,
    build_text,
    cut_lines,
    group_ranges,
)

PIECE = 12_000
"""Characters of a piece before anything is measured."""
_LEAST_PIECE = 3_000
_LEAST_TRUNCATED = 800
_SMALL_SHARE = 0.2
_LEAST_HALF = 400
"""Characters below which a piece that fails is not halved again."""
_MOST_SHOWN = 4
"""How often a stretch is shown that only may hold a record."""
_MOST_UNPLACED = 200
"""Places of a value that are looked at to find a record between blocks."""
_ENOUGH_VOTES = 2
"""Equal answers after which a record that does not fit is not asked about again."""
_NO_LIMIT = 1_000_000
_PATIENT_ROUNDS = 2
"""Rounds after which the few stretches that are left are asked about twice in a round."""
_MOST_UNCHANGED = 3
"""Rounds without a change after which no more are asked."""
_TRUNCATED_SHARE = 0.3
_FEW_RECORDS = 20
_GROWTH = 1.2
"""Growth of the records from which what they look like is derived again: another layout may be among them."""


class PieceAnswer(msgspec.Struct, frozen=True):
    """The answer to a question: whole records only, each valid against the item schema."""

    values: tuple[Any, ...] = ()
    truncated: bool = False
    failure: str | None = None
    """Why the question has no answer, or why its answer must not be used."""
    splits: int = 0
    """How often the piece may be halved to get answers: the server cut the prompt, or refused something in the text."""
    retryable: bool = False
    """Whether the same question may be answered later."""
    invalid: tuple[Any, ...] = ()
    """Records that break the item schema."""
    rest: Any = None
    """The answer without its records: the scalar fields of an object."""
    is_refused: bool = False
    """Whether the vendor refused the request, perhaps because it is too long."""


class Unanswered(msgspec.Struct, frozen=True):
    """Lines of a question that was not answered, and the reason."""

    lines: LineRange
    reason: str
    retryable: bool = False


class _Group(NamedTuple):
    """Lines that one question is about, and how often their piece was halved."""

    ranges: tuple[LineRange, ...]
    depth: int = 0
    is_limited: bool = False
    """Whether the piece was halved because its question was too long, as others of its size would be."""


Rounds: TypeAlias = Generator[tuple[Question, ...], Sequence[PieceAnswer], None]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What an extraction may do."""

    rounds: int = 6
    piece: int = PIECE
    listed: frozenset[str] = frozenset()
    """Fields whose values the schema lists."""
    numbered: bool = False
    """Whether records are placed by the lines that the model names, and not by their values."""
    ends_unplaced: bool = False
    """Whether the session ends where the first records have too few literal values to be placed."""


class ExtractionSession:
    """The state of an extraction: which records were placed where, and which lines are to be shown again."""

    def __init__(self, text: str, options: SessionOptions | None = None) -> None:
        self.options = options or SessionOptions()
        self.table = LineTable(text)
        self.model = RecordModel()
        self.context = Context(self.table, self.model)
        self.candidates: list[RecordCandidate] = []
        self.placement = Placement([])
        self.suspects: list[Suspect] = []
        self.unanswered: list[Unanswered] = []
        self.times_shown: Counter[int] = Counter()
        """How often each line was shown."""
        self.final: dict[int, Claim] = {}
        """Claims that were given to the caller, by the first line of their block; they do not change any more."""
        self.rests: list[tuple[Question, Any]] = []
        self.pieces = 0
        self.is_unplaced = False
        """Whether too few values are literal for records to have a place."""
        self.rejected: list[tuple[RecordCandidate, str]] = []
        self._locator = Locator(self.options.listed)
        self._placer = Placer(self.table)
        self._forms = self._form_counter()
        self._forced: set[int] = set()
        self._crossing: set[int] = set()
        self._piece = self.options.piece
        self._questions = 0
        self._derived_from = 0
        """How many distinct records there were when the model was derived."""
        self._repeats: Counter[str] = Counter()
        self._truncated = 0
        self._answered = 0
        self._cut_off: list[Question] = []
        self._invalid: list[RecordCandidate] = []
        self.questions: list[Question] = []
        """All questions, without their texts."""

    def run(self) -> Rounds:
        """Yield the questions of each round; the answers are to be sent in the same order."""
        count = len(self.table)
        scout = next(self._cut((0, count)), None)
        if scout is None:
            return
        yield from self._ask([_Group((scout,))])
        self._derive(self.candidates)
        if self.is_unplaced and self.options.ends_unplaced:
            return
        stop = scout[1]
        following = next(self._cut((stop, count)), None)
        if following is not None and self._covered_little(scout) is not None:
            yield from self._ask([_Group((following,))])
            self._derive(self.candidates)
            stop = following[1]
            self._piece = self._covered_little(following) or self._piece
        rest = [_Group((lines,)) for lines in self._cut((stop, count))]
        self.pieces = self._questions + len(rest)
        if rest:
            yield from self._ask(rest)
            self._derive(self.candidates)
        if self.is_unplaced:
            yield from self._ask_truncated()
        else:
            yield from self._ask_suspects()
        self._finish()

    def _ask_truncated(self) -> Rounds:
        """Ask about pieces with truncated answers again, in halves: without places, nothing shows what is missing."""
        while self._cut_off:
            cut_off = self._cut_off
            self._cut_off = []
            numbers = {question.number for question in cut_off}
            self.candidates = [each for each in self.candidates if each.question not in numbers]
            groups: list[_Group] = []
            for question in cut_off:
                halves = self._halves(question)
                groups += halves
                if not halves:
                    self._take(question, PieceAnswer(failure="the answer was truncated"))
            yield from self._ask(groups)

    def _ask_suspects(self) -> Rounds:
        unchanged = 0
        before: list[Suspect] = []
        for number in range(self.options.rounds + 1):
            self._place()
            self.suspects = self._find_suspects()
            self._finalize_prefix(self._find_suspects(most_shown=_NO_LIMIT))
            unchanged = unchanged + 1 if self.suspects == before else 0
            retries = [_Group((each.lines,)) for each in self.unanswered if each.retryable]
            is_done = not retries and (not self.suspects or unchanged == _MOST_UNCHANGED)
            if is_done or number == self.options.rounds:
                return
            before = self.suspects
            self.unanswered = [each for each in self.unanswered if not each.retryable]
            yield from self._ask([*self._suspect_groups(number), *retries])
            if self._truncated > _TRUNCATED_SHARE * self._answered:
                self._piece = max(_LEAST_TRUNCATED, self._piece // 2)
            if retries or not self.placement.claims:
                self._derive(self.candidates)
            elif len(distinct := self._distinct()) > max(_FEW_RECORDS, _GROWTH * self._derived_from):
                self._derive(distinct)

    def _suspect_groups(self, number: int) -> list[_Group]:
        """Return what is asked in a round: pieces of the whole size at first, then smaller ones."""
        size = self._piece
        if number > 0:
            size = min(size, max(_LEAST_PIECE, size // 2))
        stretches = list(self._stretches(size))
        groups = [_Group(ranges) for ranges in group_ranges(stretches, size)]
        if number >= _PATIENT_ROUNDS and sum(each.size for each in stretches) < size // 4:
            groups += [_Group(ranges) for ranges in group_ranges(self._widened(stretches), size)]
        return groups

    def _stretches(self, size: int) -> Iterator[Stretch]:
        """Yield the lines of the suspects, joined where they touch, in parts of at most `size` characters."""
        joined: list[list[int]] = []
        for suspect in self.suspects:
            claim = self.placement.claims.get(suspect.line)
            if suspect.reason == "misfit" and claim is not None and claim.votes > _ENOUGH_VOTES:
                continue
            first, end = self._across_pages(suspect)
            stop = self.table.line_at(end - 1) + 1
            while stop - 1 > first and self.table.lines[stop - 1].is_blank:
                stop -= 1
            if joined and joined[-1][1] >= first:
                joined[-1][1] = max(stop, joined[-1][1])
            else:
                joined.append([first, stop])
        for first, stop in joined:
            for part in self._cut((first, stop), size):
                yield self._stretch(part)

    def _widened(self, stretches: Sequence[Stretch]) -> Iterator[Stretch]:
        """Yield stretches with their neighbours: the same question is seldom answered better the next time.

        After the last block of the source the first ones follow: some models leave out what comes last.
        """
        lines = [block.line for block in self.placement.blocks]
        stop = 0
        for (first, own_stop), _ in stretches:
            before = bisect_left(lines, first) - 1
            after = bisect_left(lines, own_stop) + 2
            start = max(stop, lines[before]) if before >= 0 else first
            stop = lines[after] if after < len(lines) else len(self.table)
            yield self._stretch((max(0, min(start, first)), max(stop, own_stop)))
        if stop == len(self.table) and len(lines) > 3:
            yield self._stretch((lines[0], lines[2]))

    def _stretch(self, lines: LineRange) -> Stretch:
        return Stretch(lines, self._length(lines))

    def _across_pages(self, suspect: Suspect) -> tuple[int, int]:
        """Return the first line and the end of what is shown for a suspect: both pages, where one cuts a record."""
        blocks = self.placement.blocks
        index = bisect_right(blocks, suspect.start, key=lambda block: block.start)
        following = blocks[index].start if index < len(blocks) else len(self.table.text)
        first = suspect.line
        end = suspect.end
        if part := next_page_part(self.table, end, following, self.model.height):
            end = part[1]
        if suspect.reason == "outside" and index > 0:
            claim = self.placement.claims.get(blocks[index - 1].line)
            if claim is None or claim.missing:
                first = blocks[index - 1].line
        return first, end

    def _length(self, lines: LineRange) -> int:
        return self.table.lines[lines[1] - 1].end - self.table.lines[lines[0]].start

    def _cut(self, lines: LineRange, size: int | None = None) -> Iterator[LineRange]:
        anchors = [block.line for block in self.placement.blocks]
        parts = cut_lines(self.table, lines, size or self._piece, anchors)
        return (part for part in parts if not all(line.is_blank for line in self.table.lines[slice(*part)]))

    # Questions and answers

    def _ask(self, groups: Sequence[_Group]) -> Rounds:
        """Ask about groups of lines; the halves of a piece that could not be answered as a whole are asked next."""
        self._truncated = 0
        self._answered = 0
        while groups:
            questions = tuple([self._question(group) for group in groups])
            answers = yield questions
            halves: list[_Group] = []
            for question, answer in zip(questions, answers, strict=True):
                parts = self._halves(question) if question.depth < answer.splits else []
                if parts:
                    is_limited = answer.splits > 1 and not answer.truncated
                    halves += [part._replace(is_limited=is_limited) for part in parts]
                else:
                    self._take(question, answer)
            groups = halves

    def _question(self, group: _Group) -> Question:
        builder = build_text(self.table, self.context, self.model, group.ranges, numbered=self.options.numbered)
        text = builder.text
        repeat = self._repeats[text]
        self._repeats[text] += 1
        self._questions += 1
        question = Question(
            self._questions, text, group.ranges, tuple(builder.offsets), repeat, group.depth, group.is_limited
        )
        self.questions.append(msgspec.structs.replace(question, text="", offsets=()))
        return question

    def _halves(self, question: Question) -> list[_Group]:
        """Return the question's lines in two groups; nothing for one that cannot be halved."""
        ranges = question.ranges
        depth = question.depth + 1
        if len(ranges) > 1:
            middle = len(ranges) // 2
            return [_Group(ranges[:middle], depth), _Group(ranges[middle:], depth)]
        size = self._length(ranges[0])
        if size < 2 * _LEAST_HALF:
            return []
        parts = list(self._cut(ranges[0], size // 2 + 1))
        return [_Group((part,), depth) for part in parts] if len(parts) > 1 else []

    def _take(self, question: Question, answer: PieceAnswer) -> None:
        """Add the records of an answer."""
        if question.is_limited:
            self._piece = max(_LEAST_HALF, min(self._piece, self._length(question.ranges[-1])))
        if answer.failure is not None:
            for lines in question.ranges:
                self.unanswered.append(Unanswered(lines, answer.failure, answer.retryable))
            return
        self._answered += 1
        self._truncated += answer.truncated
        if answer.truncated:
            self._cut_off.append(question)
        for first, stop in question.ranges:
            self.times_shown.update(range(first, stop))
        if answer.rest is not None:
            self.rests.append((question, answer.rest))
        self.candidates += self._located(question, answer.values)
        if answer.invalid:
            self._invalid += self._located(question, answer.invalid)

    def _located(self, question: Question, values: Sequence[Any]) -> list[RecordCandidate]:
        """Return the records of an answer with their places; those whose lines were not shown are rejected."""
        if not self.options.numbered:
            return self._locator.locate(question, values)
        candidates, unknown = locate_by_lines(self._locator, question, values)
        self.rejected += [(candidate, UNKNOWN_LINES) for candidate in unknown]
        return candidates

    def _covered_little(self, lines: LineRange) -> int | None:
        """Return a better size for pieces where a token limit lets only a small part of an answer through.

        One such answer may be an accident, two are a limit. A piece that is cut later costs no more than its uncovered
        part, which is requested again.
        """
        if not self._truncated:
            return None
        start = self.table.lines[lines[0]].start
        end = self.table.lines[lines[1] - 1].end
        claims = self.placement.claims
        ends = [block.end for block in self.placement.blocks if block.line in claims and start <= block.start < end]
        covered = max(ends, default=start) - start
        if covered >= _SMALL_SHARE * self._piece:
            return None
        return max(_LEAST_TRUNCATED, 2 * covered)

    # Placing

    def _distinct(self) -> list[RecordCandidate]:
        """Return the records so far, those that came again left out."""
        return list({repr(candidate.value): candidate for candidate in reversed(self.candidates)}.values())[::-1]

    def _derive(self, candidates: Sequence[RecordCandidate]) -> None:
        """Derive from records what a record looks like, and place all that there are."""
        locate = placed_by_lines if self.options.numbered else bootstrap
        placed = list(locate(self.table, candidates))
        self._derived_from = len(self._distinct())
        self.model = derive_model(self.table, placed, self.times_shown)
        self.context = Context(self.table, self.model)
        self._forms = self._form_counter()
        self._forced = {each.line for each in placed} if len(placed) < 3 else set()
        literal = sum(_is_literal(candidate) for candidate in self.candidates)
        self.is_unplaced = not self.options.numbered and 2 * literal < len(self.candidates)
        self._assign()

    def _form_counter(self) -> FormCounter:
        if self.options.numbered:
            return FormCounter(self.table, self.model, RELIABLE_SHARE)
        return FormCounter(self.table, self.model)

    def _assign(self) -> None:
        if self.options.numbered:
            self.placement = placement_by_lines(self.table, self.candidates, self.model)
            return
        blocks = build_blocks(self.table, self.model, self._forced, self._crossing)
        self.placement = self._placer.place(self.candidates, self.model, self.context, blocks)

    def _place(self) -> None:
        """Place all records; where two fit one block wholly, or one fits a stretch outside, begin another block."""
        self._assign()
        least_likeness(self.placement, self._forms)
        if self.options.numbered:
            return
        before = (len(self._forced), len(self._crossing))
        self._split_contested()
        self._split_shared()
        self._split_twins()
        self._cross_pages()
        self._place_outside()
        if (len(self._forced), len(self._crossing)) != before:
            self._assign()

    def _split_contested(self) -> None:
        lines = self.table.lines
        for number, index in self.placement.contested:
            block = self.placement.blocks[index]
            if not self._forms.is_crowded(block.start, block.end):
                continue
            offset = first_place(
                self.candidates[number], block.start, block.end, lambda leaf: self.model.is_literal(leaf.field)
            )
            line = self.table.line_at(offset)
            while line > block.line and self.model.score(line, lines[line].features) <= 0:
                line -= 1
            if line > block.line:
                self._forced.add(line)

    def _split_shared(self) -> None:
        """Begin a block where a block's further record begins on a line of its own."""
        for block in self.placement.blocks:
            claim = self.placement.claims.get(block.line)
            if claim is None or not claim.others:
                continue
            residents = [self.candidates[each.candidate] for each in (claim, *claim.others)]
            spans = sorted(tight_span(candidate, block, self.model) for candidate in residents)
            for (_, end), (start, _) in pairwise(spans):
                line = self.table.line_at(start)
                if line > self.table.line_at(end - 1):
                    self._forced.add(line)

    def _split_twins(self) -> None:
        """Begin a block where all values of a block's record come a second time on later lines."""
        for block in self.placement.blocks:
            claim = self.placement.claims.get(block.line)
            if claim is None or claim.others or not self._forms.is_crowded(block.start, block.end):
                continue
            places = [places_in(leaf, block) for leaf in self.candidates[claim.candidate].leaves]
            second = min((each[1][0] for each in places if len(each) > 1), default=block.start)
            line = self.table.line_at(second)
            if line > block.line and self._fits_wholly(
                self.candidates[claim.candidate], self.table.lines[line].start, block.end
            ):
                self._forced.add(line)

    def _cross_pages(self) -> None:
        """Let a block cross the end of its page where the values that its record lacks are on the next one."""
        blocks = self.placement.blocks
        starts = [block.start for block in blocks]
        for number in self._unplaced():
            candidate = self.candidates[number]
            places = [place for leaf in candidate.leaves for place in leaf.places[:_MOST_UNPLACED]]
            for index in sorted({bisect_right(starts, start) - 1 for start, _ in places} - {-1}):
                stop = starts[index + 1] if index + 1 < len(starts) else len(self.table.text)
                block = blocks[index]
                is_cut = self.table.text[block.end : stop].lstrip("\n").startswith("\f")
                if is_cut and self._fits_wholly(candidate, block.start, stop):
                    self._crossing.add(block.line)

    def _unplaced(self) -> list[int]:
        """Return the candidates that fit no block wholly."""
        placement = self.placement
        misfits = (claim.candidate for claim in placement.claims.values() if claim.missing)
        return sorted({*placement.homeless, *placement.displaced, *misfits})

    def _place_outside(self) -> None:
        """Begin a block where a record that fits none wholly has all its values between blocks."""
        stretches = list(between(self.table.text, self.placement.blocks))
        for number in self._unplaced() if stretches else ():
            start = self._start_outside(self.candidates[number], stretches)
            if start is not None:
                self._forced.add(self.table.line_at(start))

    def _start_outside(self, candidate: RecordCandidate, stretches: Sequence[tuple[int, int]]) -> int | None:
        """Return the first value of a record in the stretch that has them all."""
        places = [start for leaf in candidate.leaves for start, _ in leaf.places[:_MOST_UNPLACED]]
        numbers = {bisect_right(stretches, place, key=lambda stretch: stretch[0]) - 1 for place in places}
        for number in sorted(numbers - {-1}):
            start, end = stretches[number]
            inside = [place for place in places if start <= place < end]
            if inside and self._fits_wholly(candidate, start, end):
                return min(inside)
        return None

    def _fits_wholly(self, candidate: RecordCandidate, start: int, end: int) -> bool:
        """Whether a stretch has all values of a record that should be in its text."""
        missing = missing_leaves(self.table, candidate, self.model, start, end)
        return not any(self.model.is_literal(leaf.field) for leaf in missing)

    def _find_suspects(self, most_shown: int = _MOST_SHOWN) -> list[Suspect]:
        suspects = find_suspects(
            self.table,
            self.candidates,
            self.placement,
            self._forms,
            ShownLines(self.times_shown, most_shown),
            self.model.height,
        )
        suspects = [suspect for suspect in suspects if suspect.line not in self.final]
        return sorted({*suspects, *self._invalid_places(suspects)})

    def _invalid_places(self, suspects: Sequence[Suspect]) -> Iterator[Suspect]:
        """Yield the places of records that were only answered in an invalid form."""
        starts = [block.start for block in self.placement.blocks]
        for candidate in self._invalid:
            placed = tightest_place(self.table, candidate)
            if candidate.lines is not None:
                placed = next(placed_by_lines(self.table, [candidate]))
            if placed is None:
                continue
            line = self.table.lines[placed.line]
            end = max(line.end, *(end for _, end in placed.near.values()))
            index = bisect_right(starts, line.start) - 1
            block = RecordBlock(placed.line, line.start, end)
            if index >= 0 and self.placement.blocks[index].end > line.start:
                block = self.placement.blocks[index]
            is_suspect = any(suspect.start < end and line.start < suspect.end for suspect in suspects)
            if not is_suspect and not self._has_reading(candidate, block):
                yield Suspect(placed.line, line.start, end, "invalid")

    def _has_reading(self, candidate: RecordCandidate, block: RecordBlock) -> bool:
        """Whether a block has a valid record for the values of an invalid one."""
        claim = self.placement.claims.get(block.line)
        if claim is None:
            return False
        return not all(
            is_independent(candidate, self.candidates[each.candidate], block) for each in (claim, *claim.others)
        )

    # Results

    def _finalize_prefix(self, suspects: Sequence[Suspect]) -> None:
        """Fix the claims of all blocks before the first suspect."""
        stop = min((suspect.start for suspect in suspects), default=len(self.table.text))
        for block in self.placement.blocks:
            claim = self.placement.claims.get(block.line)
            if claim is not None and block.end <= stop:
                self.final.setdefault(block.line, claim)

    def _finish(self) -> None:
        """Place everything for the last time, and reject what is not in the source."""
        if self.is_unplaced:
            return
        self._place()
        least = least_likeness(self.placement, self._forms)
        for block in self.placement.blocks:
            claim = self.placement.claims.get(block.line)
            is_fixed = claim is None or not claim.missing or block.line in self.final
            if not is_fixed and least is not None and self._forms.likeness((block.start, block.end)) < least:
                rejected = self.candidates[self.placement.claims.pop(block.line).candidate]
                self.rejected.append((rejected, "its values are not together in the source"))
        for number in self.placement.homeless:
            self.rejected.append((self.candidates[number], "its values are not in the source"))
        self._restore_final()
        self.suspects = self._find_suspects(most_shown=_NO_LIMIT)
        self.final = dict(self.placement.claims)

    def _restore_final(self) -> None:
        """Put the fixed claims back; records that were placed beside them since are added."""
        blocks = self.blocks_by_line()
        for line, fixed in self.final.items():
            claim = self.placement.claims.get(line)
            residents = [] if claim is None else [claim, *claim.others]
            self.placement.claims[line] = fixed
            for each in residents:
                candidate = self.candidates[each.candidate]
                present = [self.candidates[other.candidate] for other in (fixed, *fixed.others)]
                if line in blocks and all(is_independent(candidate, other, blocks[line]) for other in present):
                    fixed.others.append(Claim(each.candidate, each.fit, each.missing, each.votes))

    def blocks_by_line(self) -> dict[int, RecordBlock]:
        """Return the blocks by their first line."""
        return {block.line: block for block in self.placement.blocks}


def _is_literal(candidate: RecordCandidate) -> bool:
    """Whether half of a record's values or more are in the text of its question."""
    placed = sum(bool(leaf.places) for leaf in candidate.leaves)
    return placed > 0 and 2 * placed >= len(candidate.leaves)
