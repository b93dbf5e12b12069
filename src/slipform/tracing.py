"""OpenTelemetry spans, when the application traces; nothing otherwise.

One CLIENT span per model call, named by the GenAI conventions; on the proxy, one SERVER span per request above them.
The application's own import is looked up, so that slipform neither needs the library nor pays for loading it. Words of
prompts and answers are no part of any span.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from slipform.errors import SlipformError
from slipform.ir import ModelRequest, ModelResponse, Usage

if TYPE_CHECKING:
    from slipform.enforce import Outcome, Steps

T = TypeVar("T")

_log = logging.getLogger("slipform.server")
_VENDORS = {
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "moonshot": "moonshot_ai",
}
"""The conventions' names for vendors, where they are not the catalogue's."""
_CARRIED = (b"traceparent", b"tracestate", b"baggage")


def loaded_trace() -> Any:
    """The module `opentelemetry.trace` as the application loaded it, or None; asked here and nowhere else."""
    return sys.modules.get("opentelemetry.trace")


def is_tracing() -> bool:
    """Whether the application has loaded OpenTelemetry."""
    return loaded_trace() is not None


def start_call(
    request: ModelRequest, provider: str, model: str, *, streaming: bool = False, attempt: int | None = None
) -> Any:
    """A span for one model call, or None when nobody traces."""
    trace = loaded_trace()
    if trace is None:
        return None
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _VENDORS.get(provider, provider),
        "gen_ai.request.model": model,
        "gen_ai.request.stream": streaming,
    }
    wanted = request.response_format
    if wanted is not None or request.json_mode:
        attributes["gen_ai.output.type"] = "json"
    if wanted is not None:
        attributes["gen_ai.response_format.name"] = wanted.json_schema.name
    sampling = request.sampling
    optional = {
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "slipform.attempt": attempt,
    }
    attributes.update({name: value for name, value in optional.items() if value is not None})
    return trace.get_tracer("slipform").start_span(f"chat {model}", kind=trace.SpanKind.CLIENT, attributes=attributes)


def end_call(
    span: Any,
    *,
    usage: Usage | None = None,
    response: ModelResponse | None = None,
    error: str | None = None,
    at: int | None = None,
) -> None:
    """Close a call's span with its figures; `error` is the code of what went wrong, `at` when it was over."""
    if span is None:
        return
    spent = usage or (response.usage if response is not None else Usage())
    known: dict[str, Any] = {
        "gen_ai.usage.input_tokens": spent.input,
        "gen_ai.usage.output_tokens": spent.output,
        "gen_ai.usage.cache_read.input_tokens": spent.cached,
        "gen_ai.usage.reasoning.output_tokens": spent.reasoning,
        "error.type": error,
    }
    if response is not None:
        known["gen_ai.response.finish_reasons"] = [response.finish]
        known["gen_ai.response.id"] = response.id
        known["gen_ai.response.model"] = response.model
    for name, value in known.items():
        if value is not None:
            span.set_attribute(name, value)
    if error is not None:
        _mark_failed(span, error)
    span.end(end_time=at)


def traced(steps: Steps, request: ModelRequest, strategy: str, *, streaming: bool = False) -> Steps:
    """The same steps, with one span per attempt; its length is the vendor's, its verdict the judge's."""
    if not is_tracing():
        return (yield from steps)
    asked, outcome = _advance(lambda: next(steps))
    attempt = 0
    while asked is not None:
        attempt += 1
        provider, _, model = asked.model.partition("/")
        span = start_call(request, provider, model or provider, streaming=streaming, attempt=attempt)
        if span is not None:
            span.set_attribute("slipform.strategy", strategy)
        asked, outcome = yield from _attempt(steps, asked, span)
    assert outcome is not None  # noqa: S101 — steps end with an outcome or an error
    return outcome


def _attempt(
    steps: Steps, asked: ModelRequest, span: Any
) -> Generator[ModelRequest, ModelResponse, tuple[ModelRequest | None, Outcome | None]]:
    try:
        response = yield asked
    except BaseException as problem:
        end_call(span, error=_code(problem))
        failed = problem
        if isinstance(failed, GeneratorExit):
            steps.close()
            raise
        return _advance(lambda: steps.throw(failed))
    at = time.time_ns()
    try:
        further, outcome = _advance(lambda: steps.send(response))
    except BaseException as problem:
        end_call(span, response=response, error=_code(problem), at=at)
        raise
    end_call(span, response=response, error=None if outcome is not None else "invalid_answer", at=at)
    return further, outcome


def _advance(step: Callable[[], ModelRequest]) -> tuple[ModelRequest | None, Outcome | None]:
    try:
        return step(), None
    except StopIteration as done:
        return None, done.value


def _code(problem: BaseException) -> str:
    if isinstance(problem, SlipformError):
        return problem.code
    return "cancelled" if not isinstance(problem, Exception) else type(problem).__name__


def start_server_span(method: str, route: str, headers: Mapping[bytes, bytes]) -> Any:
    """A span for one inbound request, under the caller's `traceparent`; it is the current one until it ends."""
    trace = loaded_trace()
    if trace is None:
        return None
    from opentelemetry import context, propagate

    carrier = {name.decode(): headers[name].decode("latin-1") for name in _CARRIED if name in headers}
    parent = propagate.extract(carrier)
    attributes = {"http.request.method": method, "http.route": route, "url.scheme": "http"}
    span = trace.get_tracer("slipform").start_span(
        f"{method} {route}", context=parent, kind=trace.SpanKind.SERVER, attributes=attributes
    )
    if not span.is_recording():
        return None
    return span, context.attach(trace.set_span_in_context(span, parent))


def end_server_span(opened: Any, fields: Mapping[str, Any]) -> None:
    """Close a request's span with what its log line says."""
    if opened is None:
        return
    from opentelemetry import context

    span, token = opened
    span.set_attribute("http.response.status_code", fields["status"])
    for name in ("id", "api", "model", "provider", "strategy", "attempts", "outcome", "caller"):
        if fields.get(name) is not None:
            span.set_attribute(f"slipform.{name}", fields[name])
    if fields["outcome"] != "ok":
        span.set_attribute("error.type", fields["outcome"])
    if fields["status"] >= 500:
        _mark_failed(span, fields["outcome"])
    span.end()
    context.detach(token)


def _mark_failed(span: Any, reason: str) -> None:
    trace = loaded_trace()
    span.set_status(trace.Status(trace.StatusCode.ERROR, reason))


def export_from_environment(environment: Mapping[str, str] | None = None) -> Callable[[], None] | None:
    """Send this process's spans where `OTEL_EXPORTER_OTLP_ENDPOINT` says; gives what sends the last ones at the end."""
    found = os.environ if environment is None else environment
    wanted = found.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or found.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not wanted or found.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(found.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"))
    except ImportError as missing:
        _log.warning("no traces are sent: %s; `pip install opentelemetry-sdk opentelemetry-exporter-otlp`", missing)
        return None
    name = found.get("OTEL_SERVICE_NAME", "slipform")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _exporter(protocol: str) -> Any:
    from importlib import import_module

    kind = "grpc" if protocol == "grpc" else "http"
    return import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter").OTLPSpanExporter()
