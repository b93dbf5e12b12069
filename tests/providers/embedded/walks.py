"""Random answers under a grammar: what a model might say that knows nothing but what it is held to."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import llguidance

from slipform.addons.local.decoding.constrain import KEY, Constraint
from slipform.addons.local.engine import Cancel, GenerationEvent

_LONGEST = 3_000


@functools.cache
def _tokenizer() -> Any:
    return llguidance.LLTokenizer("byte")


def random_text(grammar: str, seed: int) -> str:
    """One answer as it is written, drawn byte by byte."""
    chance, tokenizer = random.Random(seed), _tokenizer()
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    said = bytearray()
    while not matcher.is_stopped():
        assert len(said) < _LONGEST, said[:200]
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in range(127) if mask >> byte & 1] or [b for b in range(127, 256) if mask >> b & 1]
        if not allowed or (mask >> tokenizer.eos_token & 1 and chance.random() < 0.5):
            break
        closing = [byte for byte in allowed if byte in b'"}],']
        byte = chance.choice(closing if closing and chance.random() < 0.5 else allowed)
        matcher.consume_token(byte)
        said.append(byte)
    return said.decode()


def random_answer(constraint: Constraint, seed: int) -> Any:
    """One answer's value."""
    value = json.loads(random_text(constraint.grammar, seed))
    return value[KEY] if constraint.wrapped else value


class RandomEngine:
    """An engine that draws its answers so, each from the next seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.asked = 0

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        """Answer at once."""
        self.asked += 1
        put({"choices": [{"delta": {"content": random_text(body["grammar"], self.seed + 1000 * self.asked)}}]})
        put({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        put({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        put(None)
        return lambda: None

    def warm(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to let go of."""
