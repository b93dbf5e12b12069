"""Measure lowering over real-world schemas, beside the SDKs' own: accepted schemas, surviving answers, cost.

Run from the root of the repository: `python -m bench.lowering`. The pydantic-ai rows need that package on the path.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema_rs
from tests.schema.lowering_encode import encode
from tests.schema.lowering_linter import lint

from bench.results import record
from slipform.errors import SchemaError
from slipform.schema.lowering import lowered as lowering
from slipform.schema.shape import to_text

DATA = Path(__file__).resolve().parents[1] / ".." / "shared" / "schemas" / "real_world.jsonl"
DIALECTS = ("openai", "anthropic", "gemini")


def main() -> None:
    """Print the tables."""
    if not DATA.exists():
        print(f"The real-world schemas are not at {DATA.name}; nothing to measure.")
        return
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    print(
        f"{len(rows)} real-world schemas. Acceptable: by a linter of the vendor's published rules. Answers kept: valid"
    )
    print("answers that come back unchanged (slipform) or that the rewritten schema still admits (the others), of all.")
    print(f"{'':44} {'raises':>7} {'refused':>8} {'acceptable':>11} {'answers kept':>16}")
    for dialect in DIALECTS:
        for mode in ("auto", "closed", "kept"):
            print_row(f"slipform → {dialect}, open objects {mode}", ours(rows, dialect, mode))
    for name, (dialect, rewrite) in rewriters().items():
        print_row(f"{name} → {dialect}", theirs(rows, dialect, rewrite))
    print()
    cost(rows)


def print_row(name: str, counts: Mapping[str, int]) -> None:
    share = 100 * counts["kept"] / max(1, counts["answers"])
    record(name.rstrip(), {"acceptable": counts["acceptable"], "kept": share})
    print(
        f"{name:44} {counts['raises']:7} {counts['refused']:8} {counts['acceptable']:11} "
        f"{counts['kept']:5}/{counts['answers']} {share:5.1f} %"
    )


def blank() -> dict[str, int]:
    return dict.fromkeys(("raises", "refused", "acceptable", "answers", "kept"), 0)


def ours(rows: list[dict[str, Any]], dialect: str, mode: Any) -> dict[str, int]:
    """Lower, lint, and send each valid answer there and back."""
    counts = blank()
    for row in rows:
        answers = [test["data"] for test in row["tests"] if test["valid"]]
        counts["answers"] += len(answers)
        try:
            lowered = lowering.lower(row["schema"], dialect, open_objects=mode)
        except SchemaError:
            counts["raises"] += 1
            continue
        counts["refused" if lint(lowered.schema, dialect) else "acceptable"] += 1
        counts["kept"] += sum(survives(lowered, answer) for answer in answers)
    return counts


def survives(lowered: lowering.Lowered, answer: Any) -> bool:
    try:
        return bool(lowered.lift(encode(lowered, answer)) == answer)
    except SchemaError:
        return False


def theirs(rows: list[dict[str, Any]], dialect: str, rewrite: Callable[[Any], Any]) -> dict[str, int]:
    """Rewrite, lint, and see which valid answers the rewritten schema still admits."""
    counts = blank()
    for row in rows:
        answers = [test["data"] for test in row["tests"] if test["valid"]]
        counts["answers"] += len(answers)
        try:
            schema = rewrite(copy.deepcopy(row["schema"]))
        except (Exception, RecursionError):
            counts["raises"] += 1
            continue
        counts["refused" if lint(schema, dialect) else "acceptable"] += 1
        try:
            validator = jsonschema_rs.validator_for(schema, offline=True)
        except ValueError:
            continue
        counts["kept"] += sum(validator.is_valid(answer) for answer in answers)
    return counts


def rewriters() -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """The rewriters at hand; a note for each that is missing."""
    found: dict[str, tuple[str, Callable[[Any], Any]]] = {}
    try:
        from openai.lib._pydantic import _ensure_strict_json_schema

        found["openai SDK"] = ("openai", lambda schema: _ensure_strict_json_schema(schema, path=(), root=schema))
    except ImportError:
        print("(the openai SDK is not installed: its row is left out)")
    try:
        from anthropic import transform_schema

        found["anthropic SDK"] = ("anthropic", transform_schema)
    except ImportError:
        print("(the anthropic SDK is not installed: its row is left out)")
    try:
        from pydantic_ai.profiles.google import GoogleJsonSchemaTransformer
        from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer

        found["pydantic-ai"] = ("openai", lambda schema: OpenAIJsonSchemaTransformer(schema, strict=True).walk())
        found["pydantic-ai "] = ("gemini", lambda schema: GoogleJsonSchemaTransformer(schema, strict=True).walk())
    except ImportError:
        print("(pydantic-ai is not installed: its rows are left out)")
    return found


def cost(rows: list[dict[str, Any]]) -> None:
    """CPU time of lowering afresh, of lowering again, and of lifting."""
    print("CPU time, best of three")
    for dialect in DIALECTS:
        spans = sorted(best(partial(lower_afresh, row["schema"], dialect)) for row in rows)
        again = best(partial(lowering.lower, rows[0]["schema"], dialect), 50)
        cuts = statistics.quantiles(spans, n=100)
        print(
            f"  lower to {dialect:10} p50 {cuts[49] * 1e3:6.2f} ms   p90 {cuts[89] * 1e3:6.2f} ms   "
            f"p99 {cuts[98] * 1e3:6.2f} ms   again, from the cache {again * 1e6:5.1f} µs"
        )
    two_kb = [row["schema"] for row in rows if 1_500 < len(json.dumps(row["schema"])) < 2_500]
    mean = statistics.fmean(best(partial(lower_afresh, schema, "openai")) for schema in two_kb)
    print(f"  lower a schema of about 2 kB to openai: {mean * 1e3:.2f} ms (mean of {len(two_kb)})")
    schema = {
        "type": "object",
        "properties": {
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {name: {"type": "string"} for name in ("sku", "note", "unit", "label")},
                    "required": ["sku"],
                },
            },
            "meta": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["lines"],
    }
    lowered = lowering.lower(schema, "openai")
    value = {
        "lines": [{"sku": f"A-{at}", "note": "as agreed", "label": "first"} for at in range(30)],
        "meta": {f"key {at}": "value" for at in range(10)},
    }
    sent = encode(lowered, value)
    print(
        f"  lift an answer of {len(json.dumps(sent))} bytes: {best(lambda: lowered.lift(sent), 50) * 1e6:.1f} µs; "
        f"of a schema left alone: {best(lambda: lowering.lower(schema, 'gemini').lift(value), 50) * 1e6:.1f} µs"
    )


def lower_afresh(schema: Mapping[str, Any], dialect: str) -> None:
    """Lower past the cache."""
    lowering._lower(to_text(schema), dialect, "auto")  # noqa: SLF001 — the cache is what is not measured


def best(call: Callable[[], object], times: int = 1) -> float:
    """CPU seconds of one call, best of three."""
    spans = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(times):
            call()
        spans.append((time.process_time() - start) / times)
    return min(spans)


if __name__ == "__main__":
    main()
