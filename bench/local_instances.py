"""Measure what the embedded model can write: the share of valid instances of real schemas that its grammar admits.

    python -m bench.local_instances ../shared/schemas/real_world.jsonl --tokens 512 1024 4096 16384

No model is needed: `constrain` builds the grammar for each number of tokens, and llguidance says of each instance
whether it is admitted. An instance counts where it fits in the tokens, at three bytes each. An invalid instance that is
admitted must be announced, by a warning that decoding is not held to all of the schema.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llguidance

from slipform.addons.local.decoding.constrain import KEY, Constraint, constrain
from slipform.errors import SchemaError

_BYTES_PER_TOKEN = 3
_TOKENIZER = llguidance.LLTokenizer("byte")


@dataclass
class Admitted:
    """What the grammars of some schemas admit."""

    fitting: int = 0
    """Valid instances that fit in the tokens."""
    admitted: int = 0
    closed: int = 0
    """Valid ones that are not admitted only for a key that the schema does not declare."""
    invalid: int = 0
    announced: int = 0
    unannounced: int = 0
    schemas: int = 0
    refused: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """Of the valid instances that fit, those that are admitted."""
        return self.admitted / max(1, self.fitting)


def is_admitted(constraint: Constraint, value: Any) -> bool:
    """Whether a grammar admits a value, in the order of its keys and as the grammar spaces it."""
    text = json.dumps({KEY: value} if constraint.wrapped else value, ensure_ascii=False)
    data = list(text.encode("utf-8", "replace"))
    matcher = llguidance.LLMatcher(_TOKENIZER, constraint.grammar, log_level=0)
    return matcher.validate_tokens(data) == len(data) and matcher.consume_tokens(data) and bool(matcher.is_accepting())


def in_schema_order(value: Any, sub: Any, root: Any, depth: int = 0) -> Any:
    """A value with the keys of its objects in the order that a schema declares them in, as a grammar wants them."""
    if depth > 40 or not isinstance(sub, Mapping):
        return value
    names = list(_declared(sub, root, 0))
    if isinstance(value, dict):
        first = [name for name, _ in names if name in value]
        rest = [name for name in value if name not in first]
        schemas = dict(reversed(names))
        return {
            name: in_schema_order(value[name], schemas.get(name, _other(sub, root)), root, depth + 1)
            for name in dict.fromkeys((*first, *rest))
        }
    if isinstance(value, list):
        items = next((each["items"] for each in _same(sub, root, 0) if isinstance(each.get("items"), Mapping)), None)
        return [in_schema_order(each, items, root, depth + 1) for each in value]
    return value


def _same(sub: Any, root: Any, depth: int) -> Iterable[Mapping[str, Any]]:
    """A subschema and those that speak of the same value."""
    if not isinstance(sub, Mapping) or depth > 8:
        return
    yield sub
    if isinstance(reference := sub.get("$ref"), str) and reference.startswith("#"):
        there = root
        for part in reference.lstrip("#").split("/")[1:]:
            there = there.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(there, Mapping) else {}
        yield from _same(there, root, depth + 1)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for each in sub.get(keyword) or ():
            yield from _same(each, root, depth + 1)


def _declared(sub: Any, root: Any, depth: int) -> Iterable[tuple[str, Any]]:
    for each in _same(sub, root, depth):
        if isinstance(properties := each.get("properties"), Mapping):
            yield from properties.items()


def _other(sub: Any, root: Any) -> Any:
    for each in _same(sub, root, 0):
        if isinstance(patterns := each.get("patternProperties"), Mapping) and patterns:
            return next(iter(patterns.values()))
        if isinstance(more := each.get("additionalProperties"), Mapping):
            return more
    return None


def has_undeclared(value: Any, sub: Any, root: Any, depth: int = 0) -> bool:
    """Whether a value has a key that no part of its schema declares, in an object that declares others."""
    if depth > 40:
        return False
    if isinstance(value, dict):
        declared = dict(reversed(list(_declared(sub, root, 0))))
        other = _other(sub, root)
        if declared and other is None and any(name not in declared for name in value):
            return True
        return any(has_undeclared(each, declared.get(name, other), root, depth + 1) for name, each in value.items())
    if isinstance(value, list):
        items = next((each["items"] for each in _same(sub, root, 0) if isinstance(each.get("items"), Mapping)), None)
        return any(has_undeclared(each, items, root, depth + 1) for each in value)
    return False


def tokens_of(value: Any) -> int:
    """About how many tokens a value takes, spaced as the grammar spaces it."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")) // _BYTES_PER_TOKEN + 1


def measure(rows: Iterable[Mapping[str, Any]], tokens: int, *, failures: list[str] | None = None) -> Admitted:
    """What the grammars for so many tokens admit of the instances of some schemas."""
    total = Admitted()
    for row in rows:
        schema = row["schema"]
        total.schemas += 1
        began = time.process_time()
        try:
            constraint = constrain(schema, tokens)
        except SchemaError:
            total.refused += 1
            continue
        total.seconds += time.process_time() - began
        for test in row["tests"]:
            value = in_schema_order(test["data"], schema, schema)
            if test["valid"]:
                if tokens_of(value) > tokens:
                    continue
                total.fitting += 1
                if is_admitted(constraint, value):
                    total.admitted += 1
                elif has_undeclared(value, schema, schema):
                    total.closed += 1
                elif failures is not None:
                    failures.append(f"{row['id']}: {json.dumps(value)[:200]}")
            else:
                total.invalid += 1
                if is_admitted(constraint, value):
                    total.announced += not constraint.exact
                    total.unannounced += constraint.exact
                    if constraint.exact and failures is not None:
                        failures.append(f"{row['id']}: INVALID {json.dumps(value)[:200]}")
    return total


def main() -> None:
    """Print a line for each number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 4096, 16_384])
    parser.add_argument("--failures", action="store_true", help="print what is not admitted")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.schemas.open(encoding="utf-8")]
    counts = collections.Counter(test["valid"] for row in rows for test in row["tests"])
    print(f"{len(rows)} schemas, {counts[True]} valid and {counts[False]} invalid instances\n")
    print("| tokens | fit | admitted | share | only for undeclared keys | invalid, announced | unannounced | CPU ms |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for tokens in arguments.tokens:
        failures: list[str] = []
        found = measure(rows, tokens, failures=failures)
        print(
            f"| {tokens} | {found.fitting} | {found.admitted} | {found.share:.1%} | {found.closed} | {found.announced} "
            f"| {found.unannounced} | {1000 * found.seconds / max(1, found.schemas):.0f} |",
            flush=True,
        )
        if arguments.failures:
            print("\n".join(failures))


if __name__ == "__main__":
    main()
