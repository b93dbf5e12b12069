"""`Live`: what may leave of an answer while it still grows, and when to stop listening."""

from __future__ import annotations

import json
import re
from typing import Any

from slipform.enforce.fixes import Switches
from slipform.enforce.judge import Standard, dumps, judge
from slipform.enforce.live_scan import Scanner
from slipform.enforce.live_shape import shape_of
from slipform.enforce.live_walk import Fault, Walk
from slipform.enforce.resume import resumed
from slipform.ir import ModelResponse
from slipform.schema import Schema
from slipform.text.fence import StartFinder

_PROSE = re.compile(r"[^\s`]")
_OPENING = re.compile(r"```[A-Za-z]*\s*\Z")
_REASONING = re.compile(r"<(\w+)[^>]*>.*?</\1>", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|-?[0-9][-+.0-9eE]*')
_PATIENCE = 64
"""How many characters after the JSON are waited through for the vendor's last word, which has the usage in it."""


class Live:
    r"""Follows one answer. What it lets through is without blanks, and is never taken back.

    A scalar leaves when it has closed and is valid, a string that may be anything as it grows, a key when it is allowed
    and its value leaves, a container when it is certain which alternative of the schema it follows and something in it
    leaves. The end leaves only when the whole has been judged, so that nobody can take an invalid answer for a finished
    one.

    >>> live = Live(Schema.of({"type": "object", "properties": {"a": {"type": "integer"}}}), Switches())
    >>> live.feed('Sure: { "a": 1'), live.feed('2, "b": "wo'), live.feed('rd" }')
    ('', '{"a":12,"b":"wo', '')
    >>> live.complete, live.rest('{"a":12,"b":"word"}')
    (True, ('rd"}', '{"a":12,"b":"word"}'))
    """

    def __init__(self, schema: Schema[Any], switches: Switches) -> None:
        self.fault: Fault | None = None
        """Why the answer cannot become valid any more, once that is known."""
        self._walk = Walk(shape_of(schema), switches)
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

    def confirmed(self, standard: Standard) -> bool:
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
        again = resumed(sent, json.loads(final))
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
    return _TOKEN.sub(lambda found: _spelled(found[0]), sent)


def _spelled(token: str) -> str:
    if token[0] != '"' or (len(token) > 1 and token[-1] == '"'):
        return dumps(json.loads(token))
    return dumps(json.loads(token + '"'))[:-1]
