"""Spans for applications that trace: one per model call, under one per request on the proxy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from slipform import AsyncClient, Budget, Client, Options
from slipform.addons.server import App
from slipform.config import Settings
from slipform.engine import tracing
from slipform.errors import JsonEnforcementError, UpstreamError
from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, ResponseFormat
from slipform.testing import FakeModel
from tests.proxy.asgi import post

WANTED = ResponseFormat.strict(JsonSchemaSpec("invoice", {"type": "object"}))
ASKED = ModelRequest("fake/m", (Message.user("my secret"),), WANTED)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Where the spans of this test end up."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.covers("S4-07", "C32")
def test_the_spans_name_the_schema_and_the_figures_and_no_words(exported: InMemorySpanExporter) -> None:
    good = ModelResponse(text='{"a": 1}', usage=Usage(input=3, output=2), id="r", model="m-1")
    client = Client(
        router=Router({"fake": FakeModel([good, "secret words"], models=("m",))}),
        options=Options(budget=Budget(attempts=1)),
    )
    client.respond(ASKED)
    with pytest.raises(JsonEnforcementError):
        client.respond(ASKED)
    first, second = exported.get_finished_spans()
    said = attributes(first)
    assert (first.name, first.kind) == ("chat m", SpanKind.CLIENT)
    assert said["gen_ai.response_format.name"] == "invoice"
    assert said["gen_ai.output.type"] == "json"
    assert (said["gen_ai.provider.name"], said["gen_ai.request.model"]) == ("fake", "m")
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (3, 2)
    assert (said["gen_ai.response.id"], said["gen_ai.response.model"]) == ("r", "m-1")
    assert said["gen_ai.response.finish_reasons"] == ("stop",)
    assert "error.type" not in said
    assert attributes(second)["error.type"] == "not_json"
    assert second.status.status_code is StatusCode.ERROR
    assert "secret" not in first.to_json() + second.to_json()


def test_every_attempt_is_a_span_and_an_upstream_that_fails_is_one_too(exported: InMemorySpanExporter) -> None:
    options = Options(budget=Budget(attempts=3))
    Client(router=Router({"fake": FakeModel(["no", "{}"], models=("m",))}), options=options).respond(ASKED)
    with pytest.raises(UpstreamError):
        Client(router=Router({"fake": FakeModel([UpstreamError("down")], models=("m",))})).respond(ASKED)
    first, second, down = (attributes(span) for span in exported.get_finished_spans())
    assert (first["slipform.attempt"], first["error.type"]) == (1, "invalid_answer")
    assert (second["slipform.attempt"], second.get("error.type")) == (2, None)
    assert down["error.type"] == "upstream_error"


@pytest.mark.covers("S2-11")
async def test_a_request_is_a_server_span_under_the_callers_and_over_its_attempts(
    exported: InMemorySpanExporter,
) -> None:
    router = Router({"fake": FakeModel(["no", "{}", "hello"], models=("m",))})
    app = App(AsyncClient(router=router, options=Options(budget=Budget(attempts=2))), Settings())
    body: dict[str, Any] = {"model": "fake/m", "messages": [{"role": "user", "content": "my secret"}]}
    shape = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": {"type": "object"}}}
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "r-7"}
    assert (await post(app, "/v1/chat/completions", {**body, "response_format": shape}, headers)).status == 200
    assert (await post(app, "/v1/chat/completions", body)).status == 200
    spans = exported.get_finished_spans()
    assert [span.kind.name for span in spans] == ["CLIENT", "CLIENT", "SERVER", "CLIENT", "SERVER"]
    server = spans[2]
    assert server.parent is not None
    assert format(server.parent.span_id, "016x") == "b7ad6b7169203331"
    assert {span.context.trace_id for span in spans[:3]} == {int("0af7651916cd43dd8448eb211c80319c", 16)}
    assert all(span.parent is not None and span.parent.span_id == server.context.span_id for span in spans[:2])
    said = attributes(server)
    assert server.name == "POST /v1/chat/completions"
    assert (said["http.response.status_code"], said["slipform.id"], said["slipform.attempts"]) == (200, "r-7", 2)
    passed = spans[3]
    assert passed.parent is not None
    assert passed.parent.span_id == spans[4].context.span_id
    assert "gen_ai.response_format.name" not in attributes(passed)
    assert not any("secret" in span.to_json() for span in spans)


def test_nobody_pays_for_tracing_who_does_not_trace() -> None:
    code = "import sys, slipform, slipform.addons.server; slipform.Client; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_spans_are_sent_only_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing.export_from_environment({}) is None
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert tracing.export_from_environment({**there, "OTEL_SDK_DISABLED": "true"}) is None
    assert tracing.export_from_environment({**there, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None  # not installed
    fake = ModuleType("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    fake.OTLPSpanExporter = InMemorySpanExporter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    taken: list[Any] = []
    monkeypatch.setattr(trace, "set_tracer_provider", taken.append)
    end = tracing.export_from_environment({**there, "OTEL_SERVICE_NAME": "mine"})
    assert end is not None
    assert taken[0].resource.attributes["service.name"] == "mine"
    end()
