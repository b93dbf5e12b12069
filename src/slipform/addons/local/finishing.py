"""Finish answers that would not end within their tokens, or that repeat themselves endlessly.

A grammar does not bound the length of texts and lists: they share the tokens of the answer. The first run of the
model leaves enough tokens for the required rest. An answer that is cut off there continues in a second run, under a
grammar of the rest; anything still open then is closed without the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slipform.addons.local.decoding.closing import Hints, closing_text
from slipform.addons.local.decoding.constrain import KEY, Constraint, opening_of
from slipform.addons.local.decoding.continuation import Continuation, Outline, continuation
from slipform.addons.local.decoding.cost import Costs
from slipform.ir import ModelWarning
from slipform.schema.document import join_pointer

_LARGEST_RESERVE = 0.6
_SMALLEST_RESERVE = 4
_FEW_TOKENS = 16
_REPEATED_IN_STRING = 400
_REPEATED_ELSEWHERE = 2_000
"""Characters at the end of an answer that repeat one unit, of which there are at least four."""
_LONGEST_UNIT = 80
_LOOKED_AT = 64
"""New characters between two checks of the end."""


_NUMBER_CHARACTERS: Final = frozenset("0123456789.eE+-")


@dataclass(frozen=True, slots=True)
class AnswerFinisher:
    """How the answers of one call are finished; `values` has their constraints by the text before the value."""

    grammar: str
    values: Mapping[str, Constraint]
    max_tokens: int

    @classmethod
    def of(cls, constraint: Constraint, max_tokens: int) -> AnswerFinisher:
        """Return the finisher of answers that are one value."""
        opening = opening_of(KEY) if constraint.wrapped else ""
        return cls(constraint.grammar, {opening: constraint}, max_tokens)

    @property
    def first_tokens(self) -> int:
        """Return the tokens of the first run, which leaves enough for the required rest; all if nothing can be left."""
        forms = [each.bounds.narrowed for each in self.values.values() if each.bounds is not None]
        costs = [Costs(form).of(form) for form in forms]
        reserve = max((cost.comfortable for cost in costs), default=0.0)
        is_possible = self.max_tokens >= max((cost.least for cost in costs), default=_FEW_TOKENS)
        most = self.max_tokens * _LARGEST_RESERVE if is_possible and self.max_tokens >= _FEW_TOKENS else 0
        return self.max_tokens - int(min(max(reserve, _SMALLEST_RESERVE), most))

    def continue_answer(self, text: str, tokens: int, *, is_stuck: bool) -> Continuation | None:
        """Return how the model continues after a text, within the given tokens; None if that is not clear."""
        opened_value = self._value_of(text)
        if opened_value is None or opened_value[1].bounds is None:
            return None
        opening, constraint = opened_value
        form = constraint.bounds.narrowed if constraint.bounds else {}
        return continuation(self.grammar, form, text, opening=opening, tokens=tokens, is_stuck=is_stuck)

    def close_answer(self, text: str) -> str | None:
        """Return the text that ends an answer without the model, by closing what is open.

        None where that is not sufficient: a missing value is never invented, and half a number is
        another number.
        """
        opened_value = self._value_of(text)
        if opened_value is None:
            return None
        bounds = opened_value[1].bounds
        closing = closing_text(self.grammar, text, Hints() if bounds is None else Hints.of(bounds.narrowed))
        if closing is None or closing.strip('"}] '):
            return None
        is_in_number = not closing.startswith('"') and text[-1:] in _NUMBER_CHARACTERS
        return None if is_in_number else closing

    def warning(self, text: str, *, is_stuck: bool) -> ModelWarning:
        """Return the warnings about an answer that was cut off after a text."""
        opened_value = self._value_of(text)
        outline = Outline()
        outline.feed(text[len(opened_value[0]) :] if opened_value else text)
        place = join_pointer(outline.pointer) or "the root"
        if is_stuck:
            message = f"The answer repeated itself at {place}, and was ended there."
        else:
            message = (
                f"The answer would not have ended within {self.max_tokens} tokens, and was cut short at {place}. "
                "Ask with more max_tokens for more."
            )
        return ModelWarning("answer_bounded", message, None)

    def _value_of(self, text: str) -> tuple[str, Constraint] | None:
        return next(((opening, each) for opening, each in self.values.items() if text.startswith(opening)), None)


class RepetitionWatch:
    """Detects that a growing answer repeats one short unit endlessly."""

    __slots__ = ("_new", "_outline", "_pieces", "_tail")

    def __init__(self) -> None:
        self._outline = Outline()
        self._pieces: list[str] = []
        self._tail = ""
        self._new = 0

    def feed(self, piece: str) -> bool:
        """Add the next piece of the answer; return whether its end repeats itself."""
        self._pieces.append(piece)
        self._new += len(piece)
        if self._new < _LOOKED_AT:
            return False
        added = "".join(self._pieces)
        self._outline.feed(added)
        self._tail = (self._tail + added)[-_REPEATED_ELSEWHERE:]
        self._pieces.clear()
        self._new = 0
        if self._outline.string_length >= _REPEATED_IN_STRING:
            return _repeats(self._tail[-_REPEATED_IN_STRING:], _REPEATED_IN_STRING)
        return _repeats(self._tail, _REPEATED_ELSEWHERE)


def _repeats(tail: str, least: int) -> bool:
    return len(tail) >= least and any(
        tail[unit:] == tail[:-unit] for unit in range(1, _LONGEST_UNIT + 1) if tail[-1] == tail[-1 - unit]
    )


def next_body(body: Mapping[str, Any], text: str, following: Continuation, tokens: int) -> dict[str, Any] | None:
    """Return the engine's request for the rest of an answer after its text; None if it cannot be continued."""
    messages = list(body["messages"])
    if messages and messages[-1]["role"] == "assistant":
        return None
    messages.append({"role": "assistant", "content": text + following.text})
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    return {**body, **goes_on, "messages": messages, "grammar": following.grammar, "max_tokens": tokens}
