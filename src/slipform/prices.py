"""Price the tokens of a call: by the caller's own prices, else by the list that ships with slipform."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from slipform.ir import Usage

_MILLION = 1_000_000
_REFRESH_SECONDS: Final = 900
"""Some vendors charge by the time of day, in steps of half an hour."""
BATCH_TIER: Final = "batch"
_BATCH_SHARE: Final = 0.5
"""What a batch costs of a live call, where only the price of a live call is known: all vendors charge half."""


def amount_text(amount: float) -> str:
    """Return an amount of money as people write it: four digits, never an exponent.

    >>> amount_text(0.000081), amount_text(0.5), amount_text(12345.678), amount_text(0)
    ('0.000081', '0.5', '12,345.68', '0')
    """
    if amount >= 100:
        return f"{amount:,.2f}"
    return f"{float(f'{amount:.4g}'):.12f}".rstrip("0").removesuffix(".")


@dataclass(frozen=True, slots=True)
class PriceTier:
    """Prices of a call with more than `above` input tokens."""

    above: int
    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs for a million tokens, in the currency you think in."""

    input: float
    output: float
    cached: float | None = None
    """For input tokens that the vendor read from its cache; as `input` if None."""
    cache_write: float | None = None
    """For input tokens that the vendor wrote to its cache; as `input` if None."""
    tiers: tuple[PriceTier, ...] = ()
    """Other prices for long prompts, in ascending order."""

    def rates(self, input_tokens: int) -> Price | PriceTier:
        """Return the prices of a call with so many input tokens."""
        for tier in reversed(self.tiers):
            if input_tokens > tier.above:
                return tier
        return self


@dataclass(frozen=True, slots=True)
class ListedPrice:
    """A model of the list that ships with slipform; the list takes 0.3 s to load, so it is read only when needed."""

    vendor: str
    """The vendor's id in the list."""
    model: str

    def resolve(self, service_tier: str = "") -> Price | None:
        """Return what the model costs now, in US dollars; None where the list does not have it."""
        return _listed_price(self.vendor, self.model, service_tier, int(time.time()) // _REFRESH_SECONDS)


AnyPrice: TypeAlias = Price | ListedPrice


def price_of(prices: Mapping[str, Price], model: str) -> Price | None:
    """Return the price of a model: its own row first, then the first pattern that fits.

    >>> price_of({"openai/*": Price(input=1, output=2)}, "openai/gpt-6-luna").output
    2
    """
    if model in prices:
        return prices[model]
    return next((price for pattern, price in prices.items() if _fits(pattern, model)), None)


def _fits(pattern: str, model: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), model) is not None


def find_price(prices: Mapping[str, Price], name: str, price_list: str) -> AnyPrice | None:
    """Return the price of `provider/model`: the caller's own, else that of the vendor's list, if it has one.

    >>> find_price({}, "work/gpt-6-luna", "openai")
    ListedPrice(vendor='openai', model='gpt-6-luna')
    """
    price = price_of(prices, name) if prices else None
    if price is not None:
        return price
    if not price_list:
        return None
    return _listed(price_list, name.partition("/")[2])


@lru_cache(maxsize=1024)
def _listed(vendor: str, model: str) -> ListedPrice:
    return ListedPrice(vendor, model)


def is_known(price: AnyPrice | None) -> bool:
    """Return whether calls at this price can be priced at all."""
    if isinstance(price, ListedPrice):
        return price.resolve() is not None
    return price is not None


def cost_of(price: AnyPrice | None, usage: Usage) -> float | None:
    """Return what a call cost, None when no price or no count of tokens is known.

    >>> from slipform.ir import Usage
    >>> cost_of(Price(input=1, output=2), Usage(input=1_000_000, output=500_000))
    2.0
    >>> cost_of(Price(input=1, output=2, cached=0.1), Usage(input=1_000_000, output=0, cached=1_000_000))
    0.1
    >>> cost_of(Price(input=1, output=2), Usage(input=1_000_000, output=500_000, service_tier="batch"))
    1.0
    """
    if usage.input is None and usage.output is None:
        return None
    share = 1.0
    if isinstance(price, ListedPrice):
        price = price.resolve(usage.service_tier or "")
    elif usage.service_tier == BATCH_TIER:
        share = _BATCH_SHARE
    if price is None:
        return None
    input_tokens = usage.input or 0
    rates = price.rates(input_tokens) if price.tiers else price
    amount = (usage.output or 0) * rates.output
    if not usage.cached and not usage.cache_write:
        return (input_tokens * rates.input + amount) * share / _MILLION
    cached = min(usage.cached or 0, input_tokens)
    written = min(usage.cache_write or 0, input_tokens - cached)
    amount += (input_tokens - cached - written) * rates.input
    amount += cached * (rates.input if rates.cached is None else rates.cached)
    amount += written * (rates.input if rates.cache_write is None else rates.cache_write)
    return amount * share / _MILLION


def load_price_list() -> None:
    """Read the list that ships with slipform, so that the first call does not wait for it."""
    ListedPrice("openai", "gpt-4o").resolve()


@lru_cache(maxsize=1024)
def _listed_price(vendor: str, model: str, service_tier: str, _period: int) -> Price | None:
    # https://github.com/pydantic/genai-prices names batches by `processing`, other tiers by `service_tier`.
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, listed = get_snapshot().find_provider_model(model, None, vendor, None)
    except LookupError:
        return None
    context = {"processing": "batch"} if service_tier == BATCH_TIER else {"service_tier": service_tier}
    prices = listed.get_prices(datetime.now(UTC), context)
    starts = {tier.start for name in _PRICED for tier in getattr(getattr(prices, name), "tiers", ())}
    base = _rates(prices, 0)
    if base is None:
        return None
    tiers = tuple(PriceTier(start, **rates) for start in sorted(starts) if (rates := _rates(prices, start + 1)))
    return Price(**base, tiers=tiers)


_PRICED: Final = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cached",
    "cache_write_mtok": "cache_write",
}


def _rates(prices: Any, input_tokens: int) -> dict[str, Any] | None:
    """Return the prices of a call with so many input tokens; None for a model that is not priced by tokens."""
    rates: dict[str, Any] = {name: _rate(getattr(prices, key), input_tokens) for key, name in _PRICED.items()}
    if rates["input"] is None and rates["output"] is None:
        return None
    rates["input"] = rates["input"] or 0.0
    rates["output"] = rates["output"] or 0.0
    return rates


def _rate(price: Any, input_tokens: int) -> float | None:
    if price is None:
        return None
    rate = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):
        if input_tokens > tier.start:
            rate = tier.price
    return float(rate)
