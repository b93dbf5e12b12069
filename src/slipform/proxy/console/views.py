"""Compute what the console's pages show: figures over time, schemas and their weak fields, providers."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from slipform.enforce import loads_report
from slipform.errors import SlipformError
from slipform.providers.http import HttpProvider
from slipform.providers.retry import MemoryDowngrades
from slipform.providers.router import Router
from slipform.schema import Schema, strict_findings
from slipform.schema.examples import example
from slipform.schema.lowering.lowered import lower

DIALECTS = ("openai", "anthropic", "gemini", "mistral")
_STAGES = ("first", "repaired", "reasked", "failed", "passed", "cached")
_MOST_LISTED = 200


def stats(
    rows: Iterable[Mapping[str, Any]], window: float, now: float | None = None, steps: int = 60
) -> dict[str, Any]:
    """Figures of the last `window` seconds, in so many steps."""
    end = time.time() if now is None else now
    start, size = end - window, window / steps
    series = [dict.fromkeys((*_STAGES, "calls"), 0) for _ in range(steps)]
    times: list[float] = []
    firsts: list[float] = []
    overheads: list[float] = []
    stages: Counter[str] = Counter()
    by_model: dict[str, Counter[str]] = defaultdict(Counter)
    spent, has_cost, tokens = 0.0, False, Counter[str]()
    for row in rows:
        if not start <= row["at"] <= end:
            continue
        step = series[min(steps - 1, int((row["at"] - start) / size))]
        step["calls"] += 1
        step[row["stage"]] += 1
        stages[row["stage"]] += 1
        by_model[row["model"] or "–"][row["stage"]] += 1
        times.append(row["ms"])
        if row["first_ms"] is not None:
            firsts.append(row["first_ms"])
        if row["overhead_ms"] is not None:
            overheads.append(row["overhead_ms"])
        if row["cost"] is not None:
            spent, has_cost = spent + row["cost"], True
        for kind in ("input", "output"):
            tokens[kind] += row[kind] or 0
    enforced = sum(stages[stage] for stage in ("first", "repaired", "reasked", "failed"))
    return {
        "window": window,
        "calls": sum(stages.values()),
        "per_second": round(sum(stages.values()) / window, 3),
        "stages": dict(stages),
        "valid": round(1 - stages["failed"] / enforced, 4) if enforced else None,
        "p50": percentile(times, 50),
        "p95": percentile(times, 95),
        "first_p50": percentile(firsts, 50),
        "overhead_p50": percentile(overheads, 50),
        "tokens": dict(tokens),
        "cost": round(spent, 6) if has_cost else None,
        "series": [{"at": round(start + number * size, 1), **step} for number, step in enumerate(series)],
        "models": {name: dict(found) for name, found in list(by_model.items())[:50]},
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which so many of a hundred lie; None without values.

    >>> percentile([1, 2, 3, 4], 50)
    2
    """
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def schema_health(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every schema that was asked for: how its answers became valid, and which of its fields were violated most."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = row["schema"]
        if not name:
            continue
        entry = found.setdefault(
            name, {"schema": name, "calls": 0, "stages": Counter(), "models": Counter(), "fields": Counter()}
        )
        entry["calls"] += 1
        entry["stages"][row["stage"]] += 1
        entry["models"][row["model"]] += 1
        for attempt in (row.get("detail") or {}).get("attempts", ()):
            for violation in attempt.get("violations", ()):
                entry["fields"][violation["schema_path"]] += violation["count"]
    return [
        {**entry, "fields": [{"schema_path": at, "count": count} for at, count in entry["fields"].most_common(20)]}
        for entry in sorted(found.values(), key=lambda each: -each["calls"])[:_MOST_LISTED]
    ]


def provider_health(router: Router, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every provider: how it did lately, and what slipform has learnt not to ask of it."""
    times: dict[str, list[float]] = defaultdict(list)
    errors: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        times[row["provider"]].append(row["ms"])
        if row["outcome"] not in ("ok", "client_gone"):
            errors[row["provider"]][row["outcome"]] += 1
    listed = []
    for name, provider in router.providers.items():
        downgrades: list[dict[str, Any]] = []
        if isinstance(provider, HttpProvider) and isinstance(provider.lessons, MemoryDowngrades):
            downgrades = [each._asdict() for each in provider.lessons.learned()[:50]]
        models = list(provider.models())
        listed.append(
            {
                "name": name,
                "models": models[:50],
                "calls": len(times[name]),
                "p50": percentile(times[name], 50),
                "errors": dict(errors[name]),
                "downgrades": downgrades,
            }
        )
    return listed


def check_schema(document: Any, dialects: Sequence[str] = DIALECTS) -> dict[str, Any]:
    """What is wrong with a schema, what each dialect makes of it, and a small valid example."""
    try:
        if not isinstance(document, dict):
            return _problem("A schema is a JSON object", "")
        shape = Schema.of(document)
    except SlipformError as error:
        return _problem(error.message, error.where or "")
    losses: dict[str, Any] = {}
    for name in dialects:
        try:
            report = lower(document, name, open_objects="closed").report
        except SlipformError as error:
            losses[name] = {"error": error.message}
        else:
            losses[name] = {
                "rows": [{"pointer": loss.pointer, "action": loss.action, "by": loss.enforced_by} for loss in report][
                    :_MOST_LISTED
                ]
            }
    try:
        found = example(shape.document)
    except SlipformError:
        found = None
    return {
        "problems": [],
        "strict": [str(each) for each in strict_findings(shape.document)][:50],
        "losses": losses,
        "example": found.value if found is not None else None,
    }


def _problem(message: str, pointer: str) -> dict[str, Any]:
    return {"problems": [{"message": message, "pointer": pointer}], "strict": [], "losses": {}, "example": None}


def judge_again(text: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """What slipform makes of a recorded text today, under any schema; no model is asked."""
    try:
        report = loads_report(text, schema=dict(document))
    except SlipformError as error:
        return {"ok": False, "error": error.message, "code": error.code, "details": _plain(error.details)}
    return {
        "ok": True,
        "value": report.value,
        "edits": [edit._asdict() for edit in report.edits],
        "patches": [{"op": edit.op, "reason": edit.reason, "risk": edit.risk} for edit in report.patched.edits]
        if report.patched
        else [],
        "warnings": [{"kind": warning.kind, "message": warning.message} for warning in report.warnings],
        "start": report.start,
        "end": report.end,
    }


def _plain(details: Mapping[str, Any]) -> Any:
    return orjson.loads(orjson.dumps(details, default=str))
