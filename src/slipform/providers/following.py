"""What is done with the bytes of a streamed answer where they come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from slipform.providers.base import Made, Through
from slipform.providers.calls_types import Effect, Read, Steps


class Following(Generic[Made]):
    """Gives the steps of a call what arrives, and `through` the chunks they make of it.

    Most of what arrives is more text and nothing else. Where both sides can tell, it is handed from one to the other
    as that, and neither the steps nor chunks are needed.
    """

    __slots__ = ("_hear_texts", "_read_texts", "_steps", "_through", "effect", "made")

    def __init__(self, steps: Steps, read: Read, through: Through[Made]) -> None:
        self._steps = steps
        self._through = through
        self._hear_texts: Callable[[list[str]], Any] | None = getattr(through, "texts", None)
        self._read_texts = read.texts
        self.effect: Effect = read
        self.made: Made | None = None

    def __call__(self, data: bytes) -> bool:
        """Take this; whether more is wanted."""
        if self._hear_texts is not None and self._read_texts is not None:
            texts = self._read_texts(data)
            if texts is not None:
                self.made = self._hear_texts(texts)
                return self.made is None
        self.effect = effect = self._steps.send(data)
        if not isinstance(effect, Read):
            return False
        self._read_texts = effect.texts
        if effect.chunks:
            self.made = self._through(effect.chunks)
        return self.made is None
