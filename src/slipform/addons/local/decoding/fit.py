"""Narrow a schema so that its answers close within a token budget.

The tokens are distributed from the root down: first to required parts, as few as they need, then to optional
properties in their order while they fit, then to longer texts, lists and maps. A reference is resolved with the
tokens left at its place, so that recursion ends. Every valid value of the result is valid under the given schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipform.addons.local.decoding.budget import TokenBounds, anything, limits_for, narrow, narrow_numbers
from slipform.addons.local.decoding.cost import (
    KEY_BEYOND,
    PER_CHARACTER,
    Cost,
    Costs,
    key_cost,
    keyed,
    spaced,
    types_of,
    widths,
)
from slipform.addons.local.decoding.forms import merged
from slipform.addons.local.decoding.patterns import bounded
from slipform.schema.document import (
    DEFINITIONS,
    DYNAMIC_REF,
    REF,
    Json,
    Pointer,
    lookup,
    reference_of,
    reference_to,
    subschemas,
)
from slipform.schema.keywords import ANNOTATIONS, NoNormalForm, named_types, property_schema, tuple_parts

_SHARE = 0.92
"""The share of the token limit that a full answer may use by the estimate, which is rough."""

_STUCK = 0.5
"""Additional tokens per character of a text if the model gets stuck in digits; reserved for two texts."""

_SPARE = (0.4, 0.25, 0.12)
"""The share of tokens reserved for texts that get stuck: the largest that leaves no more out than the others."""

_SHORTEST = 8
_STEP = 1.2
_LONGEST_KEY = 40
_REPEATED = 12
"""The most repetitions of a part of a key."""

_MOST_MERGES = 400
_DEEPEST_MERGE = 30
_ONLY_REQUIRE = ANNOTATIONS | {"required"}
_KEYWORDS_OF = {
    "array": ("items", "prefixItems", "additionalItems"),
    "object": ("properties", "patternProperties", "additionalProperties"),
}
_SHORT_FORMATS = frozenset({"date", "time", "date-time", "uuid", "ipv4", "ipv6", "duration"})


@dataclass(frozen=True, slots=True)
class Fitted:
    """The narrowed schema, and the optional parts that did not fit."""

    schema: dict[str, Any]
    left_out: tuple[Pointer, ...] = ()


def fit(schema: Mapping[str, Any], max_tokens: int, *, patterns: bool = True) -> Fitted:
    """Return the widest schema within this one whose answers should close within `max_tokens`.

    `patterns` says whether strings with a pattern get a length too: the two together may be too much for a compiler.

    >>> fit({"type": "array", "items": {"type": "boolean"}}, 40).schema["maxItems"]
    5
    """
    candidates = [_fit(schema, max_tokens * _SHARE, spare, patterns) for spare in _SPARE]
    return min(candidates, key=lambda fitted: len(fitted.left_out))


def _fit(schema: Mapping[str, Any], tokens: float, spare: float, patterns: bool) -> Fitted:
    """Return the schema narrowed so that answers close within the tokens, of which a share is reserved."""
    texts = sum("string" in named_types(sub) and "enum" not in sub for _, sub in subschemas(schema))
    longest = max(_SHORTEST, int(tokens * spare / (_STUCK * min(2, max(1, texts)))))
    fitter = _Fitter(schema, Costs(schema), longest, patterns, tokens)
    result = fitter.narrowed(schema, (), tokens * (1 - spare))
    if "$schema" in schema:
        result["$schema"] = schema["$schema"]
    if fitter.definitions:
        result["$defs"] = fitter.definitions
    if fitter.has_bounded_only:
        whole = narrow(schema, limits_for(schema, int(tokens)))
        result |= {key: {**whole[key], **result.get(key, {})} for key in DEFINITIONS if key in whole}
    return Fitted(result, tuple(fitter.left_out))


@dataclass(slots=True)
class _Fitter:
    root: Mapping[str, Any]
    costs: Costs
    longest: int
    """The longest text, in characters."""
    patterns: bool
    answer_tokens: float
    """The tokens of a whole answer."""
    definitions: dict[str, Any] = field(default_factory=dict)
    """The targets of references, each narrowed to a number of tokens."""
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    left_out: dict[Pointer, None] = field(default_factory=dict)
    """The optional parts that did not fit, as an ordered set."""
    has_bounded_only: bool = False
    merges: int = 0
    nested: int = 0
    """The depth of merges: a reference with sibling keywords may lead back to itself."""

    def narrowed(self, sub: Json, at: Pointer, tokens: float) -> dict[str, Any]:
        """Return the subschema, narrowed to answers of this many tokens."""
        tokens = min(tokens, self.answer_tokens)  # a recursive part has no upper limit
        if sub is False:
            return {"enum": []}
        if not isinstance(sub, Mapping) or sub.keys() <= ANNOTATIONS:
            return self._any_value(tokens)
        if "enum" in sub or "const" in sub:
            return _constraining_keywords(sub)
        if reference_of(sub) is not None:
            return self._reference(sub, at, tokens)
        if "allOf" in sub or DYNAMIC_REF in sub:
            return self._merged_schemas(sub, at, tokens)
        for key in ("anyOf", "oneOf"):
            if branches := sub.get(key):
                return self._choice(sub, key, branches, at, tokens)
        return self._by_type(sub, at, tokens)

    def _any_value(self, tokens: float) -> dict[str, Any]:
        few = TokenBounds(max(_SHORTEST, min(self.longest, int(tokens / 2))), max(1, min(6, int(tokens / 30))))
        return anything(few, 0 if tokens < 40 else 1)

    def _bounded_only(self, sub: Mapping[str, Any], tokens: float) -> dict[str, Any]:
        """Return a schema that cannot be split: texts and lists are bounded, and nothing is left out."""
        self.has_bounded_only = True
        limits = limits_for({**self._definitions(), **sub}, int(tokens))
        return dict(narrow(_constraining_keywords(sub), limits))

    def _merged_schemas(self, sub: Mapping[str, Any], at: Pointer, tokens: float) -> dict[str, Any]:
        """Merge several schemas of one value, and narrow the result."""
        self.merges += 1
        merged_schema = None
        if self.merges <= _MOST_MERGES and self.nested < _DEEPEST_MERGE:
            merged_schema = merged(sub, self.root)
        if merged_schema is None:
            return self._bounded_only(sub, tokens)
        self.nested += 1
        fitted = self.narrowed(merged_schema, at, tokens)
        self.nested -= 1
        return fitted

    def _definitions(self) -> dict[str, Any]:
        return {key: self.root[key] for key in DEFINITIONS if key in self.root}

    def _reference(self, sub: Mapping[str, Any], at: Pointer, tokens: float) -> dict[str, Any]:
        reference = sub[REF]
        if lookup(self.root, reference) is None:
            return self._bounded_only(sub, tokens)
        if not sub.keys() <= {REF, *ANNOTATIONS, *DEFINITIONS}:
            return self._merged_schemas(sub, at, tokens)
        step = max(0, int(math.log(max(tokens, 1), _STEP)))
        if (reference, step) not in self.names:
            name = self.names[reference, step] = f"fitted-{len(self.names)}"
            pointer = tuple(part for part in reference.lstrip("#").split("/") if part)
            self.definitions[name] = self.narrowed(lookup(self.root, reference), pointer, _STEP**step)
        return reference_to("$defs", self.names[reference, step])

    def _choice(
        self, sub: Mapping[str, Any], key: str, branches: list[Json], at: Pointer, tokens: float
    ) -> dict[str, Any]:
        """Narrow a choice to the branches that fit, or to the cheapest if none does."""
        rest = sub.keys() - {key, *ANNOTATIONS, *DEFINITIONS}
        if rest and all(isinstance(each, Mapping) and each.keys() <= _ONLY_REQUIRE for each in branches):
            required = frozenset(name for each in branches for name in each.get("required", ()))
            return self._by_type(sub, at, tokens, required)
        if rest - {"type"}:
            return self._merged_schemas(sub, at, tokens)
        fitting = [number for number, each in enumerate(branches) if self.costs.of(each).comfortable <= tokens]
        if not fitting:
            least = [self.costs.of(each).least for each in branches]
            fitting = [least.index(min(least))]
        changed = _constraining_keywords(sub)
        changed[key] = [self.narrowed(branches[number], (*at, key, str(number)), tokens) for number in fitting]
        for number in range(len(branches)):
            if number not in fitting:
                self.left_out[(*at, key, str(number))] = None
        return changed

    def _by_type(
        self, sub: Mapping[str, Any], at: Pointer, tokens: float, also_required: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Narrow a subschema type by type, without keywords for types that it does not have."""
        kinds = types_of(sub)
        irrelevant = {key for kind, keys in _KEYWORDS_OF.items() if kind not in kinds for key in keys}
        changed = {key: value for key, value in _constraining_keywords(sub).items() if key not in irrelevant}
        changed["type"] = next(iter(kinds)) if len(kinds) == 1 else sorted(kinds)
        if "string" in kinds:
            self._string(changed, tokens)
        narrow_numbers(changed, kinds)
        if "array" in kinds:
            self._array(changed, at, tokens)
        if "object" in kinds:
            self._object(changed, at, tokens, also_required)
        return changed

    def _string(self, changed: dict[str, Any], tokens: float) -> None:
        """Bound a string's length by its share of the tokens."""
        if changed.get("format") in _SHORT_FORMATS or ("pattern" in changed and not self.patterns):
            return
        shortest, longest = widths(changed)
        target_length = max(_SHORTEST, min(self.longest, int((tokens - 2) / PER_CHARACTER)))
        if "pattern" in changed or "format" in changed:
            target_length = max(target_length, int(shortest * 1.5), 16)
        if target_length < longest:
            changed["maxLength"] = max(target_length, changed.get("minLength", 0))

    def _array(self, changed: dict[str, Any], at: Pointer, tokens: float) -> None:
        """Bound an array's length, and each item by its share; an array of items that are too large is empty."""
        first, items = tuple_parts(changed)
        least: int = changed.get("minItems", 0)
        if first:
            self._tuple(changed, first, items, at, tokens)
            return
        item = self.costs.of(items)
        most = changed.get("maxItems", math.inf)
        if math.isinf(item.least) or (item.comfortable + 4 > tokens and not least):
            if not least:
                changed.pop("items", None)
                changed["maxItems"] = 0
                self.left_out[(*at, "items")] = None
            return
        each = max(item.comfortable + 2, 1)
        count = max(1, least, int(min(most, (tokens - 2) / each, math.sqrt(0.8 * tokens))))
        if item.ample == item.comfortable:
            count = max(count, int(min(most, (tokens - 2) / each)))
        changed["maxItems"] = int(min(count, most))
        share = max((tokens - 2) / max(count, 1) - 2, item.least)
        changed["items"] = self.narrowed(items, (*at, "items"), share)

    def _tuple(self, changed: dict[str, Any], first: list[Json], rest: Json, at: Pointer, tokens: float) -> None:
        """Narrow a tuple to as many items as fit, then to further items; required ones stay."""
        key, beyond = (
            ("items", "additionalItems") if isinstance(changed.get("items"), list) else ("prefixItems", "items")
        )
        least = changed.get("minItems", 0)
        most = changed.get("maxItems", math.inf)
        costs = [spaced(self.costs.of(each)) for each in first]
        count = int(min(max(min(len(first), least), _count_that_fit(costs, tokens - 2)), most))
        further = 0
        if count == len(first) and (other := spaced(self.costs.of(rest))).least < math.inf:
            room = tokens - 2 - sum(cost.comfortable for cost in costs)
            further = int(max(least - count, min(most - count, room / other.comfortable, math.sqrt(0.8 * tokens)), 0))
            costs += [other] * further
        shares = distribute_tokens(costs[: count + further], tokens - 2)
        changed[key] = [
            self.narrowed(each, (*at, key, str(number)), share - 2)
            for number, (each, share) in enumerate(zip(first[:count], shares, strict=False))
        ]
        changed.pop(beyond, None)
        if not count:
            del changed[key]  # an empty tuple is not a valid schema
        if further:
            changed[beyond] = self.narrowed(rest, (*at, beyond), min(shares[count:]) - 2)
        changed["maxItems"] = int(min(count + further, most))
        if count < len(first):
            self.left_out[(*at, key)] = None
        elif not further and rest is not False and most > count:
            self.left_out[(*at, beyond)] = None

    def _close_object(self, changed: dict[str, Any], at: Pointer) -> None:
        """Allow only the listed properties, and record what that leaves out."""
        patterns = changed.pop("patternProperties", None)
        if patterns or isinstance(changed.get("additionalProperties"), Mapping):
            self.left_out[(*at, "patternProperties" if patterns else "additionalProperties")] = None
        changed["additionalProperties"] = False

    def _object(self, changed: dict[str, Any], at: Pointer, tokens: float, also_required: frozenset[str]) -> None:
        """Close an object to the properties that fit, and share the tokens among them."""
        listed: dict[str, Json] = dict(changed.get("properties") or {})
        required = list(changed.get("required", ()))
        if changed.get("maxProperties", math.inf) < max(len(set(required)), changed.get("minProperties", 0)):
            changed["enum"] = []  # no value fits
            return
        if not listed and not required and not also_required:
            self._map(changed, at, tokens)
            return
        try:
            names = (*listed, *sorted({*required, *also_required} - listed.keys()))
            property_schemas = {name: property_schema(changed, name) for name in names}
        except NoNormalForm:
            changed |= self._bounded_only(changed, tokens)
            return
        listed = {name: each for name, each in property_schemas.items() if each is not False or name in listed}
        optional = [name for name, each in listed.items() if name not in required and each is not False]
        missing = changed.get("minProperties", 0) - len(required)
        if missing > len(optional):  # the object needs names that the schema does not list
            changed |= self._bounded_only(changed, tokens)
            return
        self._close_object(changed, at)
        changed.pop("minProperties", None)
        if missing > 0:
            required += optional[:missing]
            changed["required"] = required
        needed = frozenset(required) | also_required
        fitting = self._fitting_properties(listed, needed, at, tokens - 2, changed.pop("maxProperties", len(listed)))
        shares = distribute_tokens([keyed(name, cost) for name, cost in fitting.items()], tokens - 2)
        changed["properties"] = {
            name: self.narrowed(listed[name], (*at, "properties", name), share - key_cost(name))
            for name, share in zip(fitting, shares, strict=True)
        }

    def _fitting_properties(
        self, listed: Mapping[str, Json], needed: frozenset[str], at: Pointer, tokens: float, most: int
    ) -> dict[str, Cost]:
        """Return the properties that fit, in the order of the schema.

        Required properties come first, then the others.
        """
        costs = {name: self.costs.of(each) for name, each in listed.items()}
        room = tokens - sum(keyed(name, cost).comfortable for name, cost in costs.items() if name in needed)
        fitting: dict[str, Cost] = {}
        most -= len(needed)
        for name, cost in costs.items():
            if name in needed:
                fitting[name] = cost
            elif listed[name] is not False and (price := keyed(name, cost).comfortable) <= room and most > 0:
                room -= price
                most -= 1
                fitting[name] = cost
            elif listed[name] is not False:
                self.left_out[(*at, "properties", name)] = None
        return fitting

    def _map(self, changed: dict[str, Any], at: Pointer, tokens: float) -> None:
        """Bound the number of keys of a map, and each value by its share; values that are too large leave it empty."""
        other_values = changed.get("additionalProperties", True)
        by_pattern = dict(changed.get("patternProperties") or {})
        value_schemas = [each for each in (*by_pattern.values(), other_values) if each is not False]
        if not value_schemas:
            return
        min_count: int = changed.get("minProperties", 0)
        value_cost = max(self.costs.of(each).comfortable for each in value_schemas)
        if math.isinf(value_cost) or (KEY_BEYOND + value_cost + 2 > tokens and not min_count):
            if not min_count:
                self._empty_map(changed, at)
            return
        # The square root leaves some of a large share to longer values, instead of all of it to more entries.
        count = max(1, min_count, int(min((tokens - 2) / (KEY_BEYOND + value_cost), math.sqrt(0.5 * tokens))))
        changed["maxProperties"] = min(count, changed.get("maxProperties", count))
        share = (tokens - 2) / count - KEY_BEYOND
        if by_pattern:
            changed["patternProperties"] = {
                bounded(pattern, _REPEATED): self.narrowed(each, (*at, "patternProperties", pattern), share)
                for pattern, each in by_pattern.items()
            }
            changed["additionalProperties"] = False
        else:
            value = self.narrowed(other_values, (*at, "additionalProperties"), share)
            changed |= {"patternProperties": {f"^.{{1,{_LONGEST_KEY}}}$": value}, "additionalProperties": False}

    def _empty_map(self, changed: dict[str, Any], at: Pointer) -> None:
        """Allow no keys in a map, and record that its values were left out."""
        changed.pop("patternProperties", None)
        changed.pop("maxProperties", None)
        changed |= {"properties": {}, "additionalProperties": False}
        self.left_out[(*at, "additionalProperties")] = None


def _constraining_keywords(sub: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without keywords that do not constrain the value; an `$id` would change references too."""
    return {key: value for key, value in sub.items() if key not in ANNOTATIONS and key not in DEFINITIONS}


def distribute_tokens(costs: list[Cost], tokens: float) -> list[float]:
    """Distribute tokens: first the least that each cost needs, then a comfortable, then an ample amount.

    >>> distribute_tokens([Cost(2, 10, 100), Cost(2, 2, 2)], 50)
    [48.0, 2.0]
    """
    for low, high in (
        ([cost.comfortable for cost in costs], [cost.ample for cost in costs]),
        ([cost.least for cost in costs], [cost.comfortable for cost in costs]),
    ):
        slack = tokens - sum(low)
        if slack >= 0:
            gap = sum(upper - lower for lower, upper in zip(low, high, strict=True))
            part = min(1.0, slack / gap) if gap else 0.0
            return [lower + part * (upper - lower) for lower, upper in zip(low, high, strict=True)]
    return [cost.least for cost in costs]


def _count_that_fit(costs: list[Cost], tokens: float) -> int:
    for number, cost in enumerate(costs):
        tokens -= cost.comfortable
        if tokens < 0:
            return number
    return len(costs)
