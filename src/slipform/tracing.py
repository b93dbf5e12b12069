"""One span per enforced call, when the application traces with OpenTelemetry; nothing otherwise.

The application's own import is looked up, so that slipform neither needs the library nor pays for loading it.
"""

from __future__ import annotations

import sys
from typing import Any

from slipform.ir import ModelRequest


def start_span(request: ModelRequest) -> Any:
    """A span named by the GenAI conventions, or None when nobody traces."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider, _, model = request.model.partition("/")
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
    }
    if request.response_format is not None:
        attributes["gen_ai.response_format.name"] = request.response_format.json_schema.name
    return trace.get_tracer("slipform").start_span(f"chat {model}", attributes=attributes)


def end_span(span: Any, fields: dict[str, Any]) -> None:
    """Close a span with what became of the call; its words are no part of it."""
    if span is None:
        return
    for name in ("input_tokens", "output_tokens"):
        if fields.get(name) is not None:
            span.set_attribute(f"gen_ai.usage.{name}", fields[name])
    span.set_attribute("slipform.attempts", fields["attempts"])
    span.set_attribute("slipform.strategy", fields["strategy"])
    if fields["outcome"] != "ok":
        span.set_attribute("error.type", fields["outcome"])
    span.end()
