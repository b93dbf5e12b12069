r"""The prompt-only path: what holds a model to JSON when its schema is told to it in words alone.

What a `Guard` switches on is spelled as a grammar, which the engine applies to its logits before each token is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from slipform.ir.guard import Guard

StopHook: TypeAlias = Callable[[str], bool]
"""Given each piece of text as it comes; True stops generation there. May raise, which stops it with that error."""


@dataclass(frozen=True, slots=True)
class ForceJsonStartLogitsProcessor:
    r"""Rules out every first token but blanks and an opening bracket.

    This engine takes a grammar where others take a function over logits: the same rule, ready to cross to a worker.

    >>> print(ForceJsonStartLogitsProcessor().grammar)
    %llguidance {}
    start: /[ \n]*[{\[](.|\n)*/
    """

    stop_after_json: bool = False

    @property
    def grammar(self) -> str:
        """The rule as the engine reads it; with `stop_after_json`, what has closed cannot go on."""
        return _JSON_ONLY if self.stop_after_json else _JSON_START


_ANY_JSON = '%json {"anyOf": [{"type": "object"}, {"type": "array"}]}'
_JSON_START = "%llguidance {}\nstart: /[ \\n]*[{\\[](.|\\n)*/"
_JSON_ONLY = f"%llguidance {{}}\nstart: /[ \\n]*/ json\njson: {_ANY_JSON}"
_JSON_LAST = f"%llguidance {{}}\nstart: /[^{{\\[]*/ json\njson: {_ANY_JSON}"


def prompt_grammar(options: Guard, *, hooked: bool) -> str | None:
    """The grammar of a prompt-only answer, if any; where a hook watches for the end, the grammar need not."""
    stop = options.stop_after_json and not hooked
    if options.force_json_start:
        return ForceJsonStartLogitsProcessor(stop).grammar
    return _JSON_LAST if stop else None
