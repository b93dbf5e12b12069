"""Compute the figures of the console's pages: calls over time, schemas and their violated fields, providers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from slipform.addons.local import LocalProvider
from slipform.config import ProviderSettings, Settings
from slipform.enforce import loads_report
from slipform.engine.planning import model_price
from slipform.errors import SlipformError
from slipform.prices import ListedPrice
from slipform.providers.base import Provider
from slipform.providers.concurrency import ThrottledTransport
from slipform.providers.http import HttpProvider
from slipform.providers.probe import address
from slipform.providers.retry import PER_SCHEMA, MemoryDowngrades, describe_downgrade, model_key
from slipform.providers.router import Router
from slipform.schema import Schema, strict_findings
from slipform.schema.examples import example
from slipform.schema.lowering.lowered import lower

DIALECTS = ("openai", "anthropic", "gemini", "mistral")
_STAGES = ("first", "repaired", "reasked", "failed", "passed", "cached")
_MOST_LISTED = 200
_BUCKET = math.log(1.04)
_NO_LIMITS = ProviderSettings()


def tally(rows: Iterable[Mapping[str, Any]], window: float, now: float, steps: int = 60) -> dict[str, Any]:
    """Count the calls of the last `window` seconds in `steps` steps; tallies of several workers can be added."""
    start = now - window
    size = window / steps
    series: list[dict[str, Any]] = [{"stages": {}, "ms": {}, "answer": 0, "reask": 0} for _ in range(steps)]
    counts: dict[str, Any] = {
        "stages": {},
        "models": {},
        "ms": {},
        "first": {},
        "overhead": {},
        "tokens": {},
        "errors": {},
        "cost": 0.0,
        "priced": 0,
        "series": series,
    }
    for row in rows:
        if start <= row["at"] <= now:
            _count_row(counts, row)
            _count_step(series[min(steps - 1, int((row["at"] - start) / size))], row)
    return counts


def _count_row(counts: dict[str, Any], row: Mapping[str, Any]) -> None:
    stage = row["stage"]
    _count(counts["stages"], stage)
    _count(counts["models"].setdefault(row["model"] or "–", {}), stage)
    for name, field in (("ms", "ms"), ("first", "first_ms"), ("overhead", "overhead_ms")):
        if row[field] is not None:
            _count(counts[name], bucket_of(row[field]))
    for kind in ("input", "output"):
        _count(counts["tokens"], kind, row[kind] or 0)
    if row["cost"] is not None:
        counts["cost"] += row["cost"]
        counts["priced"] += 1
    if row["upstream_status"] is not None:
        _count(counts["errors"].setdefault(row["provider"] or "–", {}), str(row["upstream_status"] or "no answer"))


def _count_step(step: dict[str, Any], row: Mapping[str, Any]) -> None:
    _count(step["stages"], row["stage"])
    _count(step["ms"], bucket_of(row["ms"]))
    retries = ((row["detail"] or {}).get("attempts") or ())[1:]
    retry_tokens = sum(each["output"] or 0 for each in retries)
    step["answer"] += max(0, (row["output"] or 0) - retry_tokens)
    step["reask"] += retry_tokens


def stats(counts: Mapping[str, Any], window: float, now: float) -> dict[str, Any]:
    """Return the figures of a tally: rates, percentiles, costs, and a series over time."""
    stages = counts["stages"]
    series = counts["series"]
    calls = sum(stages.values())
    enforced = sum(stages.get(stage, 0) for stage in ("first", "repaired", "reasked", "failed"))
    size = window / len(series)
    return {
        "window": window,
        "calls": calls,
        "per_second": round(calls / window, 3),
        "stages": stages,
        "valid": round(1 - stages.get("failed", 0) / enforced, 4) if enforced else None,
        "p50": percentile(counts["ms"], 50),
        "p95": percentile(counts["ms"], 95),
        "first_p50": percentile(counts["first"], 50),
        "overhead_p50": percentile(counts["overhead"], 50),
        "tokens": counts["tokens"],
        "cost": round(counts["cost"], 6) if counts["priced"] else None,
        "series": [
            {
                "at": round(now - window + number * size, 1),
                **{stage: step["stages"].get(stage, 0) for stage in _STAGES},
                "calls": sum(step["stages"].values()),
                "p50": percentile(step["ms"], 50),
                "p95": percentile(step["ms"], 95),
                "answer": step["answer"],
                "reask": step["reask"],
            }
            for number, step in enumerate(series)
        ],
        "models": dict(list(counts["models"].items())[:50]),
        "errors": counts["errors"],
    }


def added(one: Any, other: Any) -> Any:
    """Return the sum of two tallies: numbers are added, objects key by key, lists item by item.

    >>> added({"a": 1, "b": [1, 2]}, {"a": 2, "b": [3, 4], "c": 5})
    {'a': 3, 'b': [4, 6], 'c': 5}
    """
    if isinstance(one, dict):
        shared = {key: added(value, other[key]) for key, value in one.items() if key in other}
        return {**one, **other, **shared}
    if isinstance(one, list):
        return [added(item, other_item) for item, other_item in zip(one, other, strict=True)]
    if isinstance(one, int | float):
        return one + other
    return one


def _count(counts: dict[str, Any], name: str, by: int = 1) -> None:
    counts[name] = counts.get(name, 0) + by


def bucket_of(value: float) -> str:
    """Return the bucket of a duration; buckets are 4 % wide, and those of several workers can be added."""
    return str(round(math.log(max(value, 0.001)) / _BUCKET))


def percentile(buckets: Mapping[str, int], percent: float) -> float | None:
    """Return the value below which `percent` of the values lie, to about 2 %; None without values.

    >>> round(percentile({bucket_of(1): 2, bucket_of(100): 2}, 50))
    1
    """
    remaining = math.ceil(sum(buckets.values()) * percent / 100)
    for bucket in sorted(buckets, key=int):
        remaining -= buckets[bucket]
        if remaining <= 0:
            return float(f"{math.exp(int(bucket) * _BUCKET):.3g}")
    return None


def schema_tally(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the calls of every schema: stages, models, and violated fields by model.

    `call` is the newest call whose text is stored: its request has the schema itself, rows only have the name.
    """
    entries: dict[str, Any] = {}
    for row in rows:
        if not (name := row["schema"]):
            continue
        entry = entries.setdefault(name, {"calls": 0, "stages": {}, "models": {}, "fields": {}})
        entry["calls"] += 1
        _count(entry["stages"], row["stage"])
        _count(entry["models"], row["model"])
        if row["words"] == "kept":
            entry.setdefault("call", row["id"])
        attempts = (row.get("detail") or {}).get("attempts", ())
        violated = {violation["schema_path"] for attempt in attempts for violation in attempt.get("violations", ())}
        for schema_path in violated:
            _count(entry["fields"].setdefault(schema_path, {}), row["model"])
    return entries


def schema_health(entries: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas with the most calls: how answers became valid, and the fields violated most, by model."""
    listed = []
    for name, entry in sorted(entries.items(), key=lambda each: -each[1]["calls"])[:_MOST_LISTED]:
        fields = [
            {"schema_path": schema_path, "count": sum(models.values()), "models": models}
            for schema_path, models in entry["fields"].items()
        ]
        listed.append({"schema": name, **entry, "fields": sorted(fields, key=lambda each: -each["count"])[:20]})
    return listed


def provider_tally(rows: Iterable[Mapping[str, Any]], router: Router) -> dict[str, Any]:
    """Count the calls of every provider, and how busy each is in this worker."""
    entries: dict[str, Any] = {}
    for name, provider in router.providers.items():
        entries[name] = {**_no_calls(), **_busy(provider)}
    for row in rows:
        entry = entries.setdefault(row["provider"], _no_calls())
        entry["calls"] += 1
        _count(entry["ms"], bucket_of(row["ms"]))
        if row["outcome"] not in ("ok", "client_gone"):
            _count(entry["errors"], str(row["upstream_status"] or row["outcome"]))
        elif row["output"]:
            entry["tokens"] += row["output"]
            entry["seconds"] += row["ms"] / 1000
    return entries


def _no_calls() -> dict[str, Any]:
    return {"calls": 0, "ms": {}, "errors": {}, "tokens": 0, "seconds": 0.0}


def _busy(provider: Provider) -> dict[str, Any]:
    """Return the used and awaited slots of a provider, and the loaded models of the embedded one."""
    if isinstance(provider, HttpProvider) and isinstance(provider.transport, ThrottledTransport):
        slots = provider.transport.slots
        if slots is None:
            return {}
        return {"slots": dict(zip(("limit", "used", "waiting"), slots, strict=True))}
    if not isinstance(provider, LocalProvider):
        return {}
    loaded = provider.loaded_models()
    limit = sum(each.slots or 0 for each in loaded)
    running = sum(each.running or 0 for each in loaded)
    busy: dict[str, Any] = {"loaded": {each.name: each.memory or 0 for each in loaded}}
    if limit:
        busy["slots"] = {"limit": limit, "used": min(limit, running), "waiting": max(0, running - limit)}
    return busy


def provider_health(router: Router, entries: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every provider with its recent calls and its downgrades."""
    listed = []
    for name, provider in router.providers.items():
        entry = entries.get(name) or _no_calls()
        has_key = provider.has_key if isinstance(provider, HttpProvider) else None
        failed = sum(entry["errors"].values())
        if has_key is False:
            state = "no key"
        elif failed and failed * 2 > entry["calls"]:
            state = "throttled" if "429" in entry["errors"] else "failing"
        else:
            state = "ok" if entry["calls"] else "unused"
        listed.append(
            {
                "name": name,
                "models": list(provider.models())[:50],
                "calls": entry["calls"],
                "state": state,
                "p50": percentile(entry["ms"], 50),
                "errors": entry["errors"],
                "key": has_key,
                "address": address(provider),
                "slots": entry.get("slots"),
                "loaded": entry.get("loaded"),
                "tokens_per_second": round(entry["tokens"] / entry["seconds"], 1) if entry["seconds"] else None,
                "downgrades": downgrades_of(provider),
            }
        )
    return listed


def priced_models(router: Router, settings: Settings, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the price of each model per million tokens, and the limits of its provider in the settings."""
    rows = []
    for name in list(dict.fromkeys(names))[:_MOST_LISTED]:
        try:
            provider, model = router.resolve(name)
        except SlipformError:  # a list of models, or a misspelled name
            continue
        price = model_price(settings.own_prices, provider, model)
        if isinstance(price, ListedPrice):
            price = price.resolve()
        limits = settings.providers.get(provider.name, _NO_LIMITS)
        rows.append(
            {
                "name": name,
                "model": f"{provider.name}/{model}",
                "input": None if price is None else price.input,
                "output": None if price is None else price.output,
                "requests_per_minute": limits.requests_per_minute,
                "tokens_per_minute": limits.tokens_per_minute,
                "max_concurrent": limits.max_concurrent,
            }
        )
    return rows


def downgrades_of(provider: Provider) -> list[dict[str, Any]]:
    """Return the downgrades of a provider as text, and the seconds until each expires."""
    if not isinstance(provider, HttpProvider) or not isinstance(provider.downgrades, MemoryDowngrades):
        return []
    prefix = model_key(provider.base_url, "")
    listed = []
    for key, downgrade, seconds in provider.downgrades.active():
        model, _, schema = key.removeprefix(prefix).partition(" ")
        # Providers may share a store; an entry that only leads to other downgrades is not for readers.
        if downgrade != PER_SCHEMA and key.startswith(prefix):
            text = describe_downgrade(downgrade, of_schema=bool(schema))
            listed.append({"key": key, "lesson": downgrade, "model": model, "text": text, "seconds": round(seconds)})
    return listed[:50]


def forget_downgrade(router: Router, key: str, downgrade: str) -> bool:
    """Remove a downgrade, so that the next call tries the feature again; return whether it existed."""
    stores = [each.downgrades for each in router.providers.values() if isinstance(each, HttpProvider)]
    return sum(store.forget(key, downgrade) for store in stores if isinstance(store, MemoryDowngrades)) > 0


def tally_of(name: str, rows: Iterable[Mapping[str, Any]], window: float, now: float, router: Router) -> dict[str, Any]:
    """Return one worker's tally for the page `stats`, `schemas` or `providers`."""
    if name == "stats":
        return tally(rows, window, now)
    if name == "schemas":
        return schema_tally(rows)
    return provider_tally(rows, router)


def check_schema(document: Any, dialects: Sequence[str] = DIALECTS) -> dict[str, Any]:
    """Return a schema's problems, the keywords that each dialect loses, and a small valid example."""
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
            rows = [{"pointer": loss.pointer, "action": loss.action, "by": loss.enforced_by} for loss in report]
            losses[name] = {"rows": rows[:_MOST_LISTED]}
    try:
        sample = example(shape.document)
    except SlipformError:
        sample = None
    return {
        "problems": [],
        "strict": [str(each) for each in strict_findings(shape.document)][:50],
        "losses": losses,
        "example": sample.value if sample is not None else None,
    }


def _problem(message: str, pointer: str) -> dict[str, Any]:
    return {"problems": [{"message": message, "pointer": pointer}], "strict": [], "losses": {}, "example": None}


def validate_again(text: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a recorded text under any schema, without calling a model."""
    try:
        report = loads_report(text, schema=dict(document))
    except SlipformError as error:
        return {"ok": False, "error": error.message, "code": error.code, "details": _plain(error.details)}
    patches = () if report.patched is None else report.patched.edits
    return {
        "ok": True,
        "value": report.value,
        "edits": [edit._asdict() for edit in report.edits],
        "patches": [{"op": edit.op, "reason": edit.reason, "risk": edit.risk} for edit in patches],
        "warnings": [{"kind": warning.kind, "message": warning.message} for warning in report.warnings],
        "start": report.start,
        "end": report.end,
    }


def _plain(details: Mapping[str, Any]) -> Any:
    return orjson.loads(orjson.dumps(details, default=str))
