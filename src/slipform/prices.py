"""What tokens cost, by the prices of the settings, and how many there may be before anyone has counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from slipform.ir import Usage

_MILLION = 1_000_000
_BYTES_PER_TOKEN = 4


class Priced(Protocol):
    """What a million tokens cost; the settings have such prices, too."""

    @property
    def input(self) -> float:
        """For what is asked."""
        ...

    @property
    def output(self) -> float:
        """For what is answered."""
        ...


P = TypeVar("P", bound=Priced)


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs for a million tokens, in the currency you think in."""

    input: float
    output: float


def price_of(prices: Mapping[str, P], model: str) -> P | None:
    """The price of a model: its own row first, then the first pattern that fits.

    >>> price_of({"openai/*": Price(input=1, output=2)}, "openai/gpt-6-luna").output
    2
    """
    if model in prices:
        return prices[model]
    return next((price for pattern, price in prices.items() if _fits(pattern, model)), None)


def _fits(pattern: str, model: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), model) is not None


def cost_of(price: Priced | None, usage: Usage) -> float | None:
    """What a call cost, None when no price or no count of tokens is known.

    >>> cost_of(Price(input=1, output=2), Usage(input=1_000_000, output=500_000))
    2.0
    """
    if price is None or (usage.input is None and usage.output is None):
        return None
    return ((usage.input or 0) * price.input + (usage.output or 0) * price.output) / _MILLION


def guess_tokens(text: str | bytes) -> int:
    """About how many tokens a text is: a token for every four bytes of UTF-8, rounded up.

    >>> guess_tokens("Who is Ada?")
    3
    """
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return -(-size // _BYTES_PER_TOKEN)
