"""What may leave of a growing answer, and how a new one goes on from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.enforce.coercion import Switches
from slipform.enforce.judging import Requirement, dumps, judge
from slipform.enforce.live_scan import Scanner
from slipform.enforce.live_shape import shape_of
from slipform.enforce.live_walk import LiveTracker, Mismatch
from slipform.ir import ModelResponse
from slipform.schema import Schema
from slipform.text.fence import StartFinder

_DECODER = json.JSONDecoder()


class _DiffersError(Exception):
    """The value does not begin like this in any order of its keys."""


def continue_from(sent: str, value: Any) -> str | None:
    """The value's compact JSON, beginning with `sent`; None when no order of its keys gives that.

    >>> continue_from('{"age":36,', {"name": "Ada", "age": 36})
    '{"age":36,"name":"Ada"}'
    >>> continue_from('{"age":3', {"name": "Ada", "age": 40})
    """
    try:
        return sent + _tail(sent, 0, value)
    except (_DiffersError, RecursionError):
        return None


def _tail(sent: str, at: int, value: Any) -> str:
    """What is missing of the value that begins at `at`, and ends after `sent` or with it."""
    rest = sent[at:]
    if rest.startswith("{") and isinstance(value, Mapping):
        return _object_tail(sent, at + 1, dict(value))
    if rest.startswith("[") and isinstance(value, list):
        return _array_tail(sent, at + 1, value)
    text = dumps(value)
    if not text.startswith(rest):
        raise _DiffersError
    return text[len(rest) :]


def _object_tail(sent: str, at: int, left: dict[str, Any]) -> str:
    between = ""
    while at < len(sent):
        if sent[at] == "}":
            _must(not left and at + 1 == len(sent))
            return ""
        if sent[at] == ",":
            at, between = at + 1, ""
            continue
        key, end = _whole(sent, at)
        if end is None:
            key = next((name for name in left if dumps(name).startswith(sent[at:])), None)
        _must(isinstance(key, str) and key in left)
        value = left.pop(key)
        if end is None or end == len(sent):
            return dumps(key)[len(sent) - at :] + ":" + dumps(value) + _closed(",", left)
        at = end + 1
        found, end = _whole(sent, at)
        if end is None or end == len(sent):
            return _tail(sent, at, value) + _closed(",", left)
        _must(_same(found, value))
        at, between = end, ","
    if sent.endswith(","):
        _must(bool(left))
    return _closed(between, left)


def _array_tail(sent: str, at: int, items: Sequence[Any]) -> str:
    between, index = "", 0
    while at < len(sent):
        if sent[at] == "]":
            _must(index == len(items) and at + 1 == len(sent))
            return ""
        if sent[at] == ",":
            at, between = at + 1, ""
            continue
        _must(index < len(items))
        found, end = _whole(sent, at)
        if end is None or end == len(sent):
            return _tail(sent, at, items[index]) + _listed(",", items[index + 1 :])
        _must(_same(found, items[index]))
        at, between, index = end, ",", index + 1
    if sent.endswith(","):
        _must(index < len(items))
    return _listed(between, items[index:])


def _whole(sent: str, at: int) -> tuple[Any, int | None]:
    """The value that is whole in `sent`, and where it ends; no end when it is not whole."""
    try:
        return _DECODER.raw_decode(sent, at)
    except ValueError:
        return None, None


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; unlike `==`, 1 is neither true nor 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _closed(between: str, left: Mapping[str, Any]) -> str:
    members = ",".join(f"{dumps(key)}:{dumps(value)}" for key, value in left.items())
    return (between + members if members else "") + "}"


def _listed(between: str, items: Sequence[Any]) -> str:
    members = ",".join(map(dumps, items))
    return (between + members if members else "") + "]"


def _must(fact: bool) -> None:
    if not fact:
        raise _DiffersError


_PROSE = re.compile(r"[^\s`]")
_OPENING = re.compile(r"```[A-Za-z]*\s*\Z")
_REASONING = re.compile(r"<(\w+)[^>]*>.*?</\1>", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*("?)|-?[0-9][-+.0-9eE]*')
_PATIENCE = 64
"""How many characters after the JSON are waited through for the vendor's last word, which has the usage in it."""


class ReleaseGate:
    r"""Follows one answer. What it lets through is without blanks, and is never taken back.

    A scalar leaves when it has closed and is valid, a string that may be anything as it grows, a key when it is allowed
    and its value leaves, a container when it is certain which alternative of the schema it follows and something in it
    leaves. The end leaves only when the whole has been judged, so that nobody can take an invalid answer for a finished
    one.

    >>> live = ReleaseGate(Schema.of({"type": "object", "properties": {"a": {"type": "integer"}}}), Switches())
    >>> live.feed('Sure: { "a": 1'), live.feed('2, "b": "wo'), live.feed('rd" }')
    ('', '{"a":12,"b":"wo', '')
    >>> live.complete, live.rest('{"a":12,"b":"word"}')
    (True, ('rd"}', '{"a":12,"b":"word"}'))
    """

    def __init__(self, schema: Schema[Any], switches: Switches) -> None:
        self.fault: Mismatch | None = None
        """Why the answer cannot become valid any more, once that is known."""
        self._walk = LiveTracker(shape_of(schema), switches)
        self._scanner = Scanner(self._walk)
        self._finder: StartFinder | None = StartFinder()
        self._began = False
        self._direct = True
        self._blind = False
        self._pieces: list[str] = []
        self._held: list[str] = []
        self._left = 0
        self._after = 0

    @property
    def sent(self) -> bool:
        """Whether something has left."""
        return self._left > 0

    @property
    def complete(self) -> bool:
        """Whether the JSON has closed."""
        return self._scanner.complete and not self._blind

    @property
    def over(self) -> bool:
        """Whether nothing of use can follow: the JSON has closed, and the model talks on."""
        return self.complete and self._after > _PATIENCE

    def give_up(self) -> None:
        """Let nothing more through: only the whole answer can tell what becomes of it."""
        self._blind = True
        self.fault = None

    def feed(self, text: str) -> str:
        """What may leave now."""
        if self._blind or not text:
            return ""
        if self._scanner.complete:
            self._after += len(text.strip())
            return ""
        if self._finder is not None:
            found = self._start(text)
            if found is None:
                return ""
            text = found
        scanner = self._scanner
        added = scanner.feed(text)
        self._pieces.append(added)
        if scanner.stopped:
            self._stopped()
            return ""
        if scanner.complete:
            self._after = len(scanner.rest.strip())
            return ""  # the rest leaves when the whole has been judged
        return self._leave(added)

    def confirmed(self, standard: Requirement) -> bool:
        """Whether the judge, too, finds what is wrong at the fault's place; if not, the text is no longer followed."""
        if self.fault is None:
            return False
        verdict = judge(ModelResponse(text=self.closed_text()), standard)
        path = self.fault.path
        for violation in verdict.violations:
            steps = violation.steps or ()
            inside, around = steps[: len(path)] == path, violation.closest and path[: len(steps)] == steps
            if inside or around:
                return True
        self.give_up()
        return False

    def closed_text(self) -> str:
        """What has been written, closed where it is open, so that it can be judged."""
        text = "".join(self._pieces)
        half = self._scanner.half_escape
        return (text[:-half] if half else text) + self._scanner.closers

    def rest(self, final: str) -> tuple[str, str] | None:
        """What is to leave last, and all that has left then, when `final` is the answer; None when that cannot be.

        All that has left is `final` itself, or the same value in the model's own spelling or order of keys.
        """
        if not self.sent:
            return final, final
        written = "".join(self._pieces)
        sent = written[: self._left]
        if final.startswith(sent):
            return final[len(sent) :], final
        if self.complete and dumps(json.loads(written)) == final:
            return written[len(sent) :], written
        spelled = _canonical(sent)
        if final.startswith(spelled):
            rest = final[len(spelled) :]
            return rest, sent + rest
        again = continue_from(sent, json.loads(final))
        return None if again is None else (again[len(sent) :], again)

    def _start(self, text: str) -> str | None:
        """Where the JSON begins; prose, fences and reasoning before it are held back for good."""
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
        found = self._finder.feed(text)
        if found is None:
            return None
        before = _REASONING.sub("", _OPENING.sub("", self._finder.text))
        self._direct = _PROSE.search(before) is None
        self._finder = None
        return found

    def _stopped(self) -> None:
        fault = self._walk.fault
        # After prose another JSON may follow, and the judge looks at all of them.
        if fault is None or fault.patchable or not (self._direct or self.sent):
            self._blind = True
        else:
            self.fault = fault

    def _leave(self, added: str) -> str:
        """What may leave of this and of what is held back."""
        certain = self._certain()
        cut = certain - self._left
        if cut <= 0:
            self._held.append(added)
            return ""
        self._left = certain
        if self._held:
            self._held.append(added)
            added = "".join(self._held)
            self._held.clear()
        if cut == len(added):
            return added
        self._held.append(added[cut:])
        return added[:cut]

    def _certain(self) -> int:
        scanner = self._scanner
        undecided = self._walk.undecided
        if undecided is not None:
            return undecided
        if scanner.in_text and self._walk.shows_text:
            return scanner.length - scanner.half_escape
        return scanner.member if scanner.in_member else scanner.length


def _canonical(sent: str) -> str:
    """The beginning of a JSON text as `dumps` would spell it."""
    return _TOKEN.sub(_respell, sent)


def _respell(token: re.Match[str]) -> str:
    if token[1] == "":  # a string that is open, even where it ends in an escaped quote
        return dumps(json.loads(token[0] + '"'))[:-1]
    return dumps(json.loads(token[0]))
