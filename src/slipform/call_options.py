"""The one switch of the config file that makes providers answer in JSON, and what a run may override."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.schema import Schema
from slipform.schema.registry import Registry


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What one run asks for; what it leaves out, the config decides."""

    require_json: bool | None = None
    response_schema_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How one call is made."""

    require_json: bool
    use_schema: bool
    response_mime_type: str
    streaming: bool
    timeout_seconds: float
    schema: Schema[Any] | None


def build_call_options(settings: Settings, options: RunOptions, registry: Registry) -> CallOptions:
    """Config and run options, put together; the config stays the source of truth.

    >>> build_call_options(Settings(), RunOptions(require_json=True), Registry.load()).require_json
    True
    """
    require_json = settings.output.require_json if options.require_json is None else options.require_json
    use_schema = settings.output.use_response_schema if require_json else False
    schema_id = options.response_schema_id
    return CallOptions(
        require_json=require_json,
        use_schema=use_schema,
        response_mime_type=settings.output.response_mime_type or "application/json",
        streaming=False if require_json else settings.runtime.streaming,
        timeout_seconds=settings.runtime.timeout_seconds,
        schema=registry.get(schema_id) if use_schema and schema_id else None,
    )


def retrying(settings: Settings) -> Options:
    """The enforcement that `retries` asks for: `attempts: n` means n + 1 calls in all."""
    retries = settings.retries
    return Options(budget=Budget(attempts=retries.attempts + 1), backoff_seconds=retries.backoff_seconds)
