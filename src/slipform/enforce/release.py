"""Decide which part of a growing answer may be sent, and continue a retried answer from there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from slipform.enforce.coercion import PatchableFaults, Switches
from slipform.enforce.judging import TRIALS_ON_LOOP, Requirement, judge
from slipform.enforce.stop_point import caused_by_model
from slipform.ir import ModelResponse
from slipform.ir.response import StopPoint, StreamFault, StreamFigures
from slipform.schema import Schema
from slipform.schema.lowering.lift_plan import LiftPlan
from slipform.schema.violations import json_path
from slipform.text.fence import StartFinder, is_set_aside
from slipform.text.lifted import LiftedText
from slipform.text.parser import chain_of
from slipform.text.resolve_plan import form_of
from slipform.text.scanner import (
    AFTER,
    COLON,
    ESCAPE,
    FIRST_ITEM,
    FIRST_KEY,
    HEX,
    HIGH,
    HIGH_ESCAPE,
    ITEM,
    KEY,
    LITERAL,
    NUMBER,
    STRING,
    JsonScanner,
)
from slipform.text.strict import NUMBER_ENDS, compact_json
from slipform.text.tracker import Mismatch, Tracker
from slipform.text.tree import Frame
from slipform.text.work import bounded_work

MAX_DEPTH = 256


class _DiffersError(Exception):
    """The value does not begin with the text already sent, in any order of its keys."""


def continue_from(sent: str, value: Any) -> str | None:
    """Return the value's compact JSON, beginning with `sent`; None if no order of its keys gives that.

    >>> continue_from('{"age":36,', {"name": "Ada", "age": 36})
    '{"age":36,"name":"Ada"}'
    >>> continue_from('{"age":3', {"name": "Ada", "age": 40})
    """
    scanner = JsonScanner(MAX_DEPTH)
    scanner.feed(sent)
    whole = len(sent) - half_escape(scanner)
    try:
        text = sent[:whole] + _missing_text(scanner, value, sent[whole:])
    except _DiffersError:
        return None
    return text if text.startswith(sent) else None


def _missing_text(scanner: JsonScanner, value: Any, half_escape_text: str) -> str:
    """Return the JSON of the value after the part that the scanner has read; raises if that part differs.

    `half_escape_text` is the beginning of an escape at the end of that part, which the scanner has not consumed.
    """
    _require(scanner.error is None)
    open_containers = [frame for frame, _ in chain_of(scanner.top, 0)][1:]  # the first container is the root
    if not open_containers:
        if not scanner.complete:
            return _remaining_text(scanner, value)
        _require(_is_same_json(scanner.root.child(0), value))
        return ""
    # From the outermost container inwards; in the end `unwritten` belongs to the innermost, `closing` to its parents.
    unwritten = _unwritten(open_containers[0], value)
    closing = ""
    for container in open_containers[1:]:
        value = _take(unwritten, container.key)
        closing = _closing_text(",", unwritten) + closing
        unwritten = _unwritten(container, value)
    state = scanner.state
    if state == AFTER:
        return _closing_text(",", unwritten) + closing
    if state in (KEY, ITEM):  # after a comma, which requires another member or item
        _require(bool(unwritten))
    if state in (FIRST_KEY, KEY, FIRST_ITEM, ITEM):
        return _closing_text("", unwritten) + closing
    key = scanner.key
    before_value = ""
    if state == COLON:
        before_value = ":"
    elif STRING <= state <= HIGH_ESCAPE and scanner.in_key:
        key, end_of_key = _completed_key("".join(scanner.pieces), half_escape_text, unwritten)
        before_value = end_of_key + ":"
    rest_of_value = _remaining_text(scanner, _take(unwritten, key))
    return before_value + rest_of_value + _closing_text(",", unwritten) + closing


def _completed_key(prefix: str, half_escape_text: str, unwritten: Mapping[str, Any]) -> tuple[str, str]:
    """Return the first unwritten key with this prefix, and the rest of its JSON with the closing quote."""
    for key in unwritten:
        if key.startswith(prefix):
            rest = compact_json(key[len(prefix) :])[1:]
            if rest.startswith(half_escape_text):
                return key, rest
    raise _DiffersError


def _unwritten(frame: Frame, value: Any) -> Any:
    """Return the members or items of the value that are not in the frame yet."""
    _require(isinstance(value, dict if frame.is_object else list))
    if not frame.is_object:
        _require(_is_same_json(frame.items, value[: frame.count]))
        return value[frame.count :]
    left = dict(value)
    for index in range(frame.count):
        _require(_is_same_json(_take(left, frame.keys[index]), frame.child(index)))
    return left


def _take(left: Any, key: str) -> Any:
    """Remove and return the member of that key, or the first item."""
    _require(bool(left) and (isinstance(left, list) or key in left))
    if isinstance(left, list):
        return left.pop(0)
    return left.pop(key)


def _remaining_text(scanner: JsonScanner, value: Any) -> str:
    """Return the missing part of the open string, number or literal; of the whole value if none is open."""
    if scanner.in_text():
        prefix = scanner.open_text()
        _require(isinstance(value, str) and value.startswith(prefix))
        return compact_json(value[len(prefix) :])[1:]
    text = compact_json(value)
    prefix = ""
    if scanner.state == NUMBER:
        prefix = "".join(scanner.digits)
        if prefix == "-0" and text == "0":
            return ""
    elif scanner.state == LITERAL:
        prefix = scanner.word[: scanner.matched]
    _require(text.startswith(prefix))
    return text[len(prefix) :]


def _is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; unlike `==`, 1 is neither true nor 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _closing_text(between: str, left: Any) -> str:
    """Return the last members or items and the closing bracket."""
    if isinstance(left, list):
        return (between if left else "") + ",".join(map(compact_json, left)) + "]"
    pairs = [f"{compact_json(key)}:{compact_json(value)}" for key, value in left.items()]
    return (between if left else "") + ",".join(pairs) + "}"


def _require(fact: bool) -> None:
    if not fact:
        raise _DiffersError


_PROSE = re.compile(r"[^\s`]")
_FENCE_LABEL = re.compile(r"[A-Za-z]++\s*+\Z")
_OPENING_TAG = re.compile(r"<(\w++)[^>]*+>")
_NUMBER_LIST = re.compile(r"\[\s*+-?\d")
_DIGITS = tuple("0123456789")
_AROUND_TEXT = ",[]{} \t\N{RIGHT DOUBLE QUOTATION MARK}"
"""Characters that follow a string in JSON: at the end of a string whose closing quote is missing, they are not text."""
_LIKE_KEY = re.compile(r"[A-Za-z0-9_$-]{0,40}+")
_MISREAD_ESCAPE = re.compile(r"\\\\|(?P<escape>\\[bf])|[A-Za-z]:(?P<path>\\[bfnrt])")
"""An escape that is rarely intended: a control character that never occurs in text, or after a drive letter."""
_PIECES_HELD = 2
"""Pieces of a call after which its opening bracket is released, so that the client is notified of the call."""


def prose_before(before: str) -> str:
    r"""Return the beginning of the prose before JSON, without blanks, elements such as reasoning, and fences.

    >>> prose_before("<think>so</think>\n```json\n"), prose_before("<think>so</think> Sure:")
    ('', 'Sure:')
    """
    prose: list[str] = []
    length = at = 0
    while length <= _LEAD_IN and (word := _PROSE.search(before, at)) is not None:
        start = word.start()
        if before.endswith("```", 0, start) and _FENCE_LABEL.match(before, start):
            break
        tag = _OPENING_TAG.match(before, start)
        closing = "" if tag is None else f"</{tag.group(1)}>"
        end = -1 if tag is None else before.find(closing, tag.end())
        if end >= 0:
            at = end + len(closing)
            continue
        at = before.find("<", start + 1)
        at = len(before) if at < 0 else at
        prose.append(before[start:at])
        length += at - start
    return "".join(prose)


_LEAD_IN = 300
_NOT_THE_ANSWER = re.compile(
    r"\b(?:examples?|e\.g\.|for instance|such as|sample|template|draft|first|initial\w*|attempt|input|schema"
    r"|think(?:ing)?|maybe|perhaps|step|old|original|previous|before|v(?:ersion)?\W?\d+|wrong|instead|not|tool|call)\b"
    r"|\Aanalysis|\n\s*\n.*\n\s*\n",
    re.IGNORECASE | re.DOTALL,
)


def is_lead_in(prose: str) -> bool:
    """Whether a text before JSON is a short introduction that gives no reason to expect another JSON after it.

    >>> is_lead_in("Sure, here is the JSON:"), is_lead_in("A first draft:")
    (True, False)
    """
    return len(prose) <= _LEAD_IN and _NOT_THE_ANSWER.search(prose) is None


class ReleaseGate:
    r"""Follows one answer. Released text has no blanks and is never retracted.

    A scalar is released when it is closed and valid, an unconstrained string as it grows, a key when it is allowed and
    its value is released, a container when its alternative of the schema is certain and something inside it is
    released. The end is released only after the whole has been validated: an invalid answer cannot be mistaken for a
    finished one. Without `after_prose`, JSON that follows more than a short lead-in is released at the end. For the
    arguments of a `call`, the opening bracket is released early, too, and arguments that arrive whole are released
    except for their end.

    >>> live = ReleaseGate(Schema.of({"type": "object", "properties": {"a": {"type": "integer"}}}), Switches())
    >>> live.feed('Sure: { "a": 1'), live.feed('2, "b": "wo'), live.feed('rd" }')
    ('', '{"a":12,"b":"wo', '')
    >>> live.complete, live.rest('{"a":12,"b":"word"}')
    (True, ('rd"}', '{"a":12,"b":"word"}'))
    """

    def __init__(
        self, schema: Schema[Any], switches: Switches, *, call: bool = False, after_prose: bool = True
    ) -> None:
        self.fault: Mismatch | None = None
        """Why the answer can no longer become valid, once that is known."""
        self._call = call
        self._after_prose = after_prose
        self._fed = 0
        self._tracker = Tracker(form_of(schema), PatchableFaults(switches))
        self._scanner = JsonScanner(MAX_DEPTH, self._tracker)
        self._finder: StartFinder | None = StartFinder()
        self._began = False
        self._is_direct = True
        self._gave_up = False
        self._pieces: list[str] = []
        self._waiting: list[str] = []
        self._released = 0
        self._received = 0
        self._json_at = 0
        self._added = 0
        self._tail = ""
        """The last characters of the text without blanks, as many as `_certain_length` examines."""
        self._loose = 0
        """How many characters at the end of the open string may belong to the surrounding JSON, if its quote is
        missing."""
        self._doubtful_from = -1
        """Where the open string has an escape that may be a literal backslash; -1 without one."""
        self._lifted: LiftedText | None = None

    def lift_with(self, plan: LiftPlan | None) -> None:
        """Follow text in a vendor's shape, converted by this plan; without a plan only the whole can be converted."""
        if plan is None or self._received:
            self.give_up()
        else:
            self._lifted = LiftedText(plan, MAX_DEPTH)

    @property
    def sent(self) -> bool:
        """Whether something has been released."""
        return self._released > 0

    @property
    def sent_text(self) -> str:
        """The released text."""
        return "".join(self._pieces)[: self._released]

    @property
    def complete(self) -> bool:
        """Whether the JSON has closed."""
        return self._scanner.complete and not self._gave_up

    @property
    def is_open(self) -> bool:
        """Whether the text is followed and its JSON still open."""
        return not self._gave_up and not self._scanner.complete

    @property
    def pending_chars(self) -> int:
        """How many characters are held back and may still be released."""
        return 0 if self._gave_up else self._added - self._released

    def stream_figures(self, text: str) -> StreamFigures:
        """Return how much of the answer was received, released and held back; `text` is the whole answer."""
        fault = None
        if self.fault is not None:
            offset = self._scanner.offset if self._lifted is None else self._lifted.offset
            at = min(self._json_at + offset, max(len(text) - 1, 0))
            where = json_path(self.fault.path)
            fault = StreamFault(at, len(text[:at].encode("utf-8", "surrogatepass")), where, self.fault.message)
        received = max(self._received, len(text))
        return StreamFigures(
            received, self._released, self._added - self._released, max(received - self._added, 0), fault
        )

    def give_up(self) -> None:
        """Stop releasing: only the whole answer can be validated."""
        self._gave_up = True
        self.fault = None

    def feed(self, text: str) -> str:
        """Return the part of the answer that this piece allows to release."""
        self._received += len(text)
        if self._gave_up or not text:
            return ""
        if self._scanner.complete:
            return ""  # the text after it may be another answer: the judge examines all of it
        if self._finder is not None:
            start = self._start(text)
            if start is None:
                return ""
            text = start
            self._json_at = self._received - len(text)
        if self._lifted is not None:
            return self._feed_lifted(text, self._lifted)
        return self._follow(text)

    def _feed_lifted(self, text: str, lifted: LiftedText) -> str:
        """Convert a piece of the vendor's text to the caller's shape, and follow that."""
        if lifted.complete:
            return ""
        own_text = lifted.feed(text)
        if lifted.failed:
            self.give_up()
            return ""
        return self._follow(own_text) if own_text else ""

    def _follow(self, text: str) -> str:
        """Scan more of the JSON, and return the part that may be released."""
        scanner = self._scanner
        taken = scanner.feed(text)
        added = text if taken == len(text) else text[:taken]
        if scanner.blanks:
            added = compacted(added, scanner.blanks)
            scanner.blanks = []
        if added:
            self._pieces.append(added)
            self._added += len(added)
            self._look_at_end(added)
        if scanner.stopped or scanner.error is not None or scanner.notes:
            self._on_scanner_stop()
            return ""
        self._fed += 1
        if scanner.complete and not self._call:
            return ""  # the rest is released after the whole has been validated
        return self._release_certain(added)

    def confirm_fault(self, standard: Requirement) -> bool:
        """Whether the judge also finds a violation at the fault's path; if not, the gate stops following the text."""
        if self.fault is None:
            return False
        text = self.closed_text()
        with bounded_work(len(text), TRIALS_ON_LOOP) as budget:
            verdict = judge(ModelResponse(text=text), standard)
        path = self.fault.path
        stop = self.stop_point()
        for violation in caused_by_model(verdict.violations, stop) if budget.allows_trials and stop else ():
            steps = violation.steps or ()
            inside = steps[: len(path)] == path
            around = violation.closest and path[: len(steps)] == steps
            if inside or around:
                return True
        self.give_up()
        return False

    @property
    def may_be_read_whole(self) -> bool:
        """Whether the whole may be valid despite the fault: keys or another answer may follow the last bracket."""
        return self._scanner.complete

    def stop_point(self, call_id: str | None = None) -> StopPoint | None:
        """Return where the answer can no longer become valid, with the open values there; None without a fault."""
        fault = self.fault
        if fault is None:
            return None
        path = fault.path
        scanner = self._scanner
        ends_in_text = STRING <= scanner.stopped_in <= HIGH_ESCAPE
        ends_in_key = scanner.stopped_in == COLON or (ends_in_text and scanner.in_key)
        tracks = self._tracker.tracks
        containers = frozenset([path[:depth] for depth in range(len(tracks))])
        member = None
        if ends_in_key and tracks:
            member = (*path[: len(tracks) - 1], tracks[-1].key)
        text = path if ends_in_text and not ends_in_key else None
        return StopPoint(path, fault.message, containers, text, member, call_id)

    def closed_text(self) -> str:
        """Return the received JSON with its open parts closed, so that it can be validated."""
        text = "".join(self._pieces)
        half = half_escape(self._scanner)
        return (text[:-half] if half else text) + closers(self._scanner)

    def rest(self, final: str) -> tuple[str, str] | None:
        """Return the last piece to release and all released text if `final` is the answer; None if it is not.

        The released text is `final` itself, or the same value in the model's own spelling or order of keys.
        """
        if not self.sent:
            return final, final
        written = "".join(self._pieces)
        sent = written[: self._released]
        if final.startswith(sent):
            return final[len(sent) :], final
        if self.complete and compact_json(json.loads(written)) == final:
            return written[len(sent) :], written
        again = continue_from(sent, json.loads(final))
        if again is None:
            return None
        return (again[len(sent) :], again)

    def release(self, whole: str) -> None:
        """Record that the whole answer has been released."""
        self._pieces = [whole]
        self._released = len(whole)

    def _start(self, text: str) -> str | None:
        """Return the text from where the JSON begins; prose, fences and reasoning before it are never released."""
        if not self._began:
            text = text.lstrip()
            if not text:
                return None
            self._began = True
            if text[0] == "{" or text[0] in '"-0123456789':
                self._finder = None
                return text
        if self._finder is None:
            return text
        start = self._finder.feed(text)
        if start is None:
            return None
        prose = prose_before(self._finder.text)
        self._is_direct = not prose
        before = self._finder.text
        self._finder = None
        is_cited = not self._is_direct and _NUMBER_LIST.match(start) is not None
        if is_cited or is_set_aside(before) or not (self._after_prose or is_lead_in(prose)):
            self.give_up()
            return None
        return start

    def _on_scanner_stop(self) -> None:
        fault = self._tracker.mismatch
        # The judge may read duplicate keys and half surrogate pairs, which the scanner notes, differently.
        if fault is None or fault.patchable or self._scanner.notes or not (self._is_direct or self.sent):
            self._gave_up = True
        else:
            self.fault = fault

    def _release_certain(self, added: str) -> str:
        """Return the part of the pending text, with this addition, that may be released."""
        certain = self._certain_length()
        cut = certain - self._released
        if cut <= 0:
            self._waiting.append(added)
            return ""
        self._released = certain
        if self._waiting:
            self._waiting.append(added)
            added = "".join(self._waiting)
            self._waiting.clear()
        if cut == len(added):
            return added
        self._waiting.append(added[cut:])
        return added[:cut]

    def _certain_length(self) -> int:
        """Return the length of the compact text up to which everything is certain."""
        scanner = self._scanner
        undecided = self._tracker.undecided_from
        if undecided >= 0:
            return undecided or self._call_bracket()
        length = scanner.offset - scanner.blank_count
        if self._tracker.in_text and not self._tracker.follows_text:
            return self._certain_length_in_text(length)
        if scanner.complete:
            return length - 1
        member = scanner.member or self._call_bracket()
        shows_text = self._tracker.shows_text and not self._call
        if scanner.state == AFTER:
            if self._tail[-1:] in _DIGITS or self._may_be_key():
                return member
            # The quote may be an unescaped part of the text: the next character decides.
            return length - (1 + self._loose if shows_text and self._tail[-1:] == '"' else 0)
        return member

    def _look_at_end(self, added: str) -> None:
        """Remember how a piece ends that has been added to the text."""
        if self._doubtful_from >= 0 and _has_quote(added):
            self._doubtful_from = -1
        if "\\" in added:
            self._look_for_backslash(self._tail + added)
        last = added[-1]
        if last == '"' or last in _AROUND_TEXT:
            body = added[:-1] if last == '"' else added
            text = body.rstrip(_AROUND_TEXT)
            end = body[len(text) :]
            self._loose = self._loose + len(end) if self._loose and not text else len(end.lstrip())
        else:
            self._loose = 0
        self._tail = added[-3:] if len(added) > 2 else (self._tail + added)[-3:]

    def _look_for_backslash(self, text: str) -> None:
        """Remember an escape in the open string that is a literal backslash if a later escape of that string is one."""
        for escape in _MISREAD_ESCAPE.finditer(text) if self._doubtful_from < 0 else ():
            if escape.lastgroup and not _has_quote(text[escape.end() :]):
                self._doubtful_from = self._added - len(text) + escape.start(escape.lastgroup)
                return

    def _certain_length_in_text(self, length: int) -> int:
        """Return the certain length while an unconstrained string is open."""
        if self._doubtful_from >= 0:
            return self._doubtful_from
        if self._may_be_key():
            return self._scanner.member or self._call_bracket()
        return length - (min(self._loose, self._scanner.length) or half_escape(self._scanner))

    def _may_be_key(self) -> bool:
        """Whether a string after other items of a list may be a key after a missing bracket: a colon will decide."""
        scanner = self._scanner
        frame = scanner.top
        if frame.is_object or scanner.depth == 0:
            return False
        is_open = scanner.in_text()
        before = frame.count - (1 if is_open else 2)
        if before < 0 or isinstance(frame.child(before), str):
            return False
        text = scanner.open_text() if is_open else frame.child(before + 1)
        return isinstance(text, str) and _LIKE_KEY.fullmatch(text) is not None

    def _call_bracket(self) -> int:
        """Return 1 if the opening bracket of a call may be released before anything inside is certain, else 0."""
        tracks = self._tracker.tracks
        if self._call and self._fed > _PIECES_HELD and tracks and tracks[0].certain:
            return 1
        return 0


def _has_quote(text: str) -> bool:
    """Whether this text has a quote that may end a string."""
    return '"' in text and '"' in text.replace('\\"', "")


def compacted(text: str, blanks: list[int]) -> str:
    """Return the text without the characters at these positions."""
    if len(blanks) == 1:
        return text[: blanks[0]] + text[blanks[0] + 1 :]
    out: list[str] = []
    start = 0
    for blank in blanks:
        out.append(text[start:blank])
        start = blank + 1
    out.append(text[start:])
    return "".join(out)


def half_escape(scanner: JsonScanner) -> int:
    """Return how many characters at the end are an incomplete escape or surrogate pair."""
    state = scanner.stopped_in if scanner.stopped else scanner.state
    if not ESCAPE <= state <= HIGH_ESCAPE:
        return 0
    length = scanner.high_length if scanner.high else 0
    if state == HEX:
        return length + len("\\u") + len(scanner.hex)
    return length if state == HIGH else length + len("\\")


def closers(scanner: JsonScanner) -> str:
    """Return the text that closes the JSON: a quote, a digit, a null for a key without a value, the brackets."""
    state = scanner.stopped_in if scanner.stopped else scanner.state
    out = '"' if STRING <= state <= HIGH_ESCAPE else ""
    if state == COLON or (out and scanner.in_key):
        out += ":null"
    if state == NUMBER and scanner.number not in NUMBER_ENDS:
        out = "0"
    frame = scanner.top
    while frame.parent is not None:
        out += "}" if frame.is_object else "]"
        frame = frame.parent
    return out
