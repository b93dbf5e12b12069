"""Combine the config file's `output` and `retries` with the overrides of one run into the options of its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slipform.config import Settings
from slipform.enforce.options import Options, override
from slipform.engine.setup import options_of
from slipform.schema import Schema
from slipform.schema.registry import Registry


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The overrides of one run; None leaves a setting to the config."""

    require_json: bool | None = None
    response_schema_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How one call of `run` is made."""

    require_json: bool
    use_schema: bool
    response_mime_type: str
    streaming: bool
    timeout_seconds: float | None
    schema: Schema[Any] | None


def build_call_options(settings: Settings, options: RunOptions, registry: Registry) -> CallOptions:
    """Return the config's options with the run's overrides.

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
    """Return the enforcement options of the settings, with the pause before a retry."""
    return override(options_of(settings), {"backoff_seconds": settings.retries.backoff_seconds})
