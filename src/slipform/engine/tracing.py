"""Record the spans and the log line of a call.

One CLIENT span per model call, named by the GenAI conventions; on the proxy, one SERVER span per request above them.
The application's own import is looked up, so that slipform neither needs the library nor pays for loading it. Spans do
not contain the text of prompts or answers.

Names of models, errors of vendors and similar values are untrusted. A value with a blank, `=` or a quote is quoted;
control characters, line ends of every kind and characters that change the direction of text are escaped; long values
are cut.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

import orjson

from slipform.enforce import Outcome, Plan, Report, Steps
from slipform.errors import SlipformError
from slipform.ir import ModelRequest, ModelResponse, Usage

LONGEST_FIELD = 1_000
"""The longest value in a log line, in characters."""
_PLAIN = re.compile(r"[^\s\"'=\\]+")


def pairs(fields: Mapping[str, Any], longest: int = LONGEST_FIELD) -> str:
    r"""Return the fields in one line.

    >>> pairs({"model": "a status=200", "status": 404})
    'model="a status=200" status=404'
    >>> pairs({"model": 'say "hi"\x1b[2J'})
    'model="say \\"hi\\"\\u001b[2J"'
    """
    return " ".join([f"{name}={_clipped_text(value, longest)}" for name, value in fields.items()])


def _clipped_text(value: Any, longest: int) -> str:
    if isinstance(value, float):
        return orjson.dumps(value).decode()
    if value is None or isinstance(value, bool | int):
        return str(value)
    text = cut(str(value), longest)
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{without_controls(quoted)}"'


def cut(text: str, longest: int = LONGEST_FIELD) -> str:
    """Return the text, shortened if it is longer than this.

    >>> cut("abcdef", 3)
    'abc…'
    """
    if len(text) <= longest:
        return text
    return text[:longest] + "…"


def without_controls(text: str) -> str:
    r"""Return the text with every character escaped that a terminal or a line reader would act on.

    >>> without_controls("one\ntwo\x1b[31m")
    'one\\ntwo\\u001b[31m'
    """
    if text.isprintable():
        return text
    return "".join([sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text])


T = TypeVar("T")
_server_log = logging.getLogger("slipform.server")
_VENDORS = {
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "moonshot": "moonshot_ai",
}
"""The conventions' names of vendors, if they differ from the catalogue's."""
_CARRIED = (b"traceparent", b"tracestate", b"baggage")


def loaded_trace() -> Any:
    """Return the module `opentelemetry.trace` as the application loaded it, or None; only this function looks it up."""
    return sys.modules.get("opentelemetry.trace")


def is_tracing() -> bool:
    """Return whether the application has loaded OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules


def start_call(
    request: ModelRequest, provider: str, model: str, *, streaming: bool = False, attempt: int | None = None
) -> Any:
    """Return a span for one model call, or None without tracing."""
    trace = loaded_trace()
    if trace is None:
        return None
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _VENDORS.get(provider, provider),
        "gen_ai.request.model": model,
        "gen_ai.request.stream": streaming,
    }
    response_format = request.response_format
    if response_format is not None or request.json_mode:
        attributes["gen_ai.output.type"] = "json"
    if response_format is not None:
        attributes["gen_ai.response_format.name"] = response_format.json_schema.name
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
    """End a call's span with its figures; `error` is the code of its failure, `at` the time when it ended."""
    if span is None:
        return
    spent = usage or (response.usage if response is not None else Usage())
    attributes: dict[str, Any] = {
        "gen_ai.usage.input_tokens": spent.input,
        "gen_ai.usage.output_tokens": spent.output,
        "gen_ai.usage.cache_read.input_tokens": spent.cached,
        "gen_ai.usage.reasoning.output_tokens": spent.reasoning,
        "error.type": error,
    }
    if response is not None:
        attributes["gen_ai.response.finish_reasons"] = [response.finish]
        attributes["gen_ai.response.id"] = response.id
        attributes["gen_ai.response.model"] = response.model
    for name, value in attributes.items():
        if value is not None:
            span.set_attribute(name, value)
    if error is not None:
        _mark_failed(span, error)
    span.end(end_time=at)


def traced(steps: Steps, request: ModelRequest, strategy: str, *, streaming: bool = False) -> Steps:
    """Return the same steps, with one span per attempt; its length is the vendor's time, its verdict the judge's."""
    if not is_tracing():
        return (yield from steps)
    next_request, outcome = _advance(lambda: next(steps))
    attempt = 0
    while next_request is not None:
        attempt += 1
        provider, _, model = next_request.model.partition("/")
        span = start_call(request, provider, model or provider, streaming=streaming, attempt=attempt)
        if span is not None:
            span.set_attribute("slipform.strategy", strategy)
        next_request, outcome = yield from _attempt(steps, next_request, span)
    assert outcome is not None  # noqa: S101 — steps end with an outcome or an error
    return outcome


def _attempt(
    steps: Steps, request: ModelRequest, span: Any
) -> Generator[ModelRequest, ModelResponse, tuple[ModelRequest | None, Outcome | None]]:
    """Yield one request, pass its response or error to the steps, and end the span.

    Returns the next request, or the outcome after the last attempt.
    """
    try:
        response = yield request
    except BaseException as problem:
        end_call(span, error=_code(problem))
        error = problem  # `problem` is unbound at the end of this block, and the lambda refers to it
        if isinstance(error, GeneratorExit):
            steps.close()
            raise
        return _advance(lambda: steps.throw(error))
    received = time.time_ns()  # the span ends here: validation is not the vendor's time
    try:
        next_request, outcome = _advance(lambda: steps.send(response))
    except BaseException as problem:
        end_call(span, response=response, error=_code(problem), at=received)
        raise
    error_type = "invalid_answer" if outcome is None else None
    end_call(span, response=response, error=error_type, at=received)
    return next_request, outcome


def _advance(step: Callable[[], ModelRequest]) -> tuple[ModelRequest | None, Outcome | None]:
    try:
        return step(), None
    except StopIteration as done:
        return None, done.value


def _code(problem: BaseException) -> str:
    if isinstance(problem, SlipformError):
        return problem.code
    if not isinstance(problem, Exception):
        return "cancelled"
    return type(problem).__name__


def start_server_span(method: str, route: str, headers: Mapping[bytes, bytes]) -> Any:
    """Return a span for one inbound request, a child of the caller's `traceparent`; it is current until it ends."""
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
    """End a request's span with the fields of its log line."""
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
    """Export this process's spans to `OTEL_EXPORTER_OTLP_ENDPOINT`; returns the function that flushes the last ones."""
    variables = os.environ if environment is None else environment
    endpoint = variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or variables.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint or variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(variables.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"))
    except ImportError as missing:
        _server_log.warning("tracing: off, %s; run `pip install 'slipform[otel]'`", missing)
        return None
    name = variables.get("OTEL_SERVICE_NAME", "slipform")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _exporter(protocol: str) -> Any:
    from importlib import import_module

    kind = "grpc" if protocol == "grpc" else "http"
    return import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter").OTLPSpanExporter()


_log = logging.getLogger("slipform.calls")


def is_observed() -> bool:
    """Return whether each call is traced or logged."""
    return "opentelemetry.trace" in sys.modules or _log.isEnabledFor(logging.INFO)


def observed(
    steps: Steps, request: ModelRequest, plan: Plan, *, streaming: bool = False, limit: float | None = None
) -> Steps:
    """Return the same steps with a time limit, a span per attempt and one log line for all of them.

    Neither contains prompts or secrets. `limit` is the time limit of one request, if the sender enforces it.
    """
    if plan.budget.seconds is not None:
        steps = _with_time_limit(steps, plan, plan.budget.seconds)
    if not is_observed():
        return steps
    if limit is not None:
        plan = dataclasses.replace(plan, budget=dataclasses.replace(plan.budget, seconds=limit))
    return _log_call(steps, request, plan, streaming)


def _with_time_limit(steps: Steps, plan: Plan, seconds: float) -> Steps:
    """Return the same steps, with the remaining time set on each request."""
    end = plan.clock() + seconds
    try:
        next_request = next(steps)
        while True:
            try:
                response = yield _within(next_request, max(end - plan.clock(), 0.001))
            except BaseException as error:  # noqa: BLE001 — whatever it is, it is the steps' to answer
                next_request = steps.throw(error)
            else:
                next_request = steps.send(response)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def _within(request: ModelRequest, seconds: float) -> ModelRequest:
    """Return the request, and the parts sent beside it, with this time limit."""
    beside = tuple([_within(each, seconds) for each in request.beside])
    return request.replace(timeout=seconds, beside=beside)


def _log_call(steps: Steps, request: ModelRequest, plan: Plan, streaming: bool) -> Steps:
    began = plan.clock()
    try:
        outcome = yield from traced(steps, request, plan.strategy.value, streaming=streaming)
    except SlipformError as error:
        _record_call(request, plan, error.report, streaming, error.code, plan.clock() - began)
        raise
    except BaseException:  # cancelled, or abandoned by the stream's reader
        _record_call(request, plan, None, streaming, "cancelled", plan.clock() - began)
        raise
    _record_call(request, plan, outcome.report, streaming, "ok")
    return outcome


def _record_call(
    request: ModelRequest, plan: Plan, report: object, streaming: bool, outcome: str, failed_after: float | None = None
) -> None:
    """Log a call; `failed_after` is the duration of a call that ended in an error, whose last attempt has no answer."""
    if not _log.isEnabledFor(logging.INFO):
        return
    attempts = report.attempts if isinstance(report, Report) else ()
    usage = report.usage if isinstance(report, Report) else Usage()
    provider, _, model = request.model.partition("/")
    seconds = sum(attempt.seconds or 0 for attempt in attempts)
    unanswered = failed_after is not None and (not attempts or attempts[-1].outcome != outcome)
    warnings = report.warnings if isinstance(report, Report) else ()
    fields = {
        "provider": provider,
        "model": model,
        "require_json": plan.schema is not None,
        "use_response_schema": request.response_format is not None,
        "strategy": (attempts[-1].strategy if attempts else plan.strategy).value,
        "streaming": streaming,
        "timeout": plan.budget.seconds,
        "latency": round(max(seconds, failed_after or 0), 3),
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "attempts": len(attempts) + unanswered,
        "repair_attempted": "yes" if len(attempts) + unanswered > 1 or _is_repaired(report) else "no",
        "warnings": ",".join(sorted({warning.code for warning in warnings})) or None,
        "outcome": outcome,
    }
    # The message repeats the fields for formatters that do not know them; those that do write the event instead.
    _log.info("call %s", pairs(fields), extra={"slipform": fields, "slipform_event": "call"})


def _is_repaired(report: object) -> bool:
    return isinstance(report, Report) and (report.repaired or report.patched)
