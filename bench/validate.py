"""Measure compiling and validating, beside plain validators. Run: `python -m bench.validate`.

Times are CPU microseconds, the best of several passes; the ratios are what to trust. Peers that are not installed are
left out with a note.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import orjson

from bench.results import record
from slipform.schema import Schema
from slipform.schema.validator import Compiled

LINE = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "quantity": {"type": "integer", "minimum": 1},
        "price": {"type": "number", "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["new", "used", "sale"]}},
    },
    "required": ["sku", "quantity", "price"],
    "additionalProperties": False,
}
INVOICE = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "date": {"type": "string", "format": "date"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "required": ["id", "date", "lines"],
    "additionalProperties": False,
    "$defs": {"line": LINE},
}
TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer", "minimum": 0},
        "children": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def invoice(lines: int) -> dict[str, Any]:
    return {
        "id": "123e4567-e89b-42d3-a456-426614174000",
        "date": "2026-01-31",
        "lines": [
            {"sku": "ABC-1234", "quantity": n + 1, "price": n * 1.5, "tags": ["new", "sale"]} for n in range(lines)
        ],
    }


def tree(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"name": f"node at level {depth}", "size": depth}
    return node if depth == 0 else {**node, "children": [tree(depth - 1), tree(depth - 1)]}


def cost(work: Callable[[], object], times: int, passes: int = 9) -> float:
    """CPU microseconds of one call, the best of several passes."""
    best = float("inf")
    for _ in range(passes):
        start = time.process_time()
        for _ in range(times):
            work()
        best = min(best, (time.process_time() - start) / times)
    return best * 1e6


def peer(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"({name} is not installed: left out)")
        return None


def row(name: str, micros: float, base: float, title: str = "") -> None:
    record(f"{title or 'other'}: {name}", micros / base)
    print(f"  {name:<34} {micros:>12.2f} µs   {micros / base:>9.2f} × bare jsonschema-rs")


def validating(title: str, document: dict[str, Any], value: Any, times: int) -> None:
    print(f"\nvalidate {title}, {len(orjson.dumps(value)):,} bytes, valid, schema ready")
    bare = jsonschema_rs.validator_for(document, validate_formats=True, offline=True)
    schema: Schema[Any] = Schema.of(document)
    base = cost(lambda: bare.is_valid(value), times)
    row("jsonschema-rs is_valid", base, base, title)
    row("slipform Schema.validate", cost(lambda: schema.validate(value), times), base, title)
    row("jsonschema-rs list(iter_errors)", cost(lambda: list(bare.iter_errors(value)), times), base, title)
    slow = max(times // 100, 3)
    if fast := peer("fastjsonschema"):
        run = fast.compile(document)
        row("fastjsonschema", cost(lambda: run(value), max(times // 10, 3)), base, title)
    if classic := peer("jsonschema"):
        checker = classic.Draft202012Validator(document, format_checker=classic.FormatChecker())
        row("jsonschema is_valid", cost(lambda: checker.is_valid(value), slow, passes=3), base, title)


def explaining(document: dict[str, Any], value: Any) -> None:
    print(f"\nall violations of an invalid value, {len(orjson.dumps(value)):,} bytes")
    bare = jsonschema_rs.validator_for(document, validate_formats=True, offline=True)
    schema: Schema[Any] = Schema.of(document)
    print(f"  violations found: {len(schema.validate(value))} (jsonschema-rs: {len(list(bare.iter_errors(value)))})")
    base = cost(lambda: list(bare.iter_errors(value)), 200)
    row("jsonschema-rs list(iter_errors)", base, base)
    row("slipform Schema.validate", cost(lambda: schema.validate(value), 200), base)


def compiling(document: dict[str, Any]) -> None:
    print(f"\ncompile, {len(orjson.dumps(document)):,} bytes of schema")
    base = cost(lambda: jsonschema_rs.validator_for(document, validate_formats=True, offline=True), 200)
    row("jsonschema-rs validator_for", base, base)
    row("slipform, never seen", cost(lambda: Compiled(document), 100), base)
    row("slipform Schema.of, seen before", cost(lambda: Schema.of(document), 500), base)
    if fast := peer("fastjsonschema"):
        row("fastjsonschema compile", cost(lambda: fast.compile(document), 3, passes=3), base)
    if classic := peer("jsonschema"):

        def check() -> None:
            classic.Draft202012Validator.check_schema(document)
            classic.Draft202012Validator(document)

        row("jsonschema check_schema + init", cost(check, 3, passes=3), base)


def main() -> None:
    validating("an invoice (2 KB)", INVOICE, invoice(30), 3_000)
    validating("an invoice (300 KB)", INVOICE, invoice(5_000), 20)
    validating("a recursive tree (2 KB)", TREE, tree(5), 3_000)
    wrong = invoice(30)
    wrong["lines"][3]["quantity"] = "7"
    wrong["lines"][20]["colour"] = "red"
    del wrong["date"]
    explaining(INVOICE, wrong)
    compiling(INVOICE)


if __name__ == "__main__":
    main()
