"""One span per enforced call, for applications that trace."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace

from slipform import Client
from slipform.errors import JsonEnforcementError
from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, ResponseFormat
from slipform.testing import FakeModel


class Recorded:
    """A tracer that keeps what its spans are told."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def start_span(self, name: str, *, attributes: dict[str, Any]) -> Recorded:
        self.spans.append({"name": name, **attributes})
        return self

    def set_attribute(self, name: str, value: Any) -> None:
        self.spans[-1][name] = value

    def end(self) -> None:
        self.spans[-1]["ended"] = True


@pytest.mark.covers("S4-07", "C32")
def test_the_spans_name_the_schema_and_the_figures_and_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()
    monkeypatch.setattr(trace, "get_tracer", lambda _: recorded)
    good = ModelResponse(text='{"a": 1}', usage=Usage(input=3, output=2))
    client = Client(router=Router({"fake": FakeModel([good, "secret words"], models=("m",))}))
    wanted = ResponseFormat.strict(JsonSchemaSpec("invoice", {"type": "object"}))
    asked = ModelRequest("fake/m", (Message.user("my secret"),), wanted)
    client.respond(asked)
    with pytest.raises(JsonEnforcementError):
        client.respond(asked)
    first, second = recorded.spans
    assert first["gen_ai.response_format.name"] == "invoice"
    assert (first["gen_ai.provider.name"], first["gen_ai.request.model"]) == ("fake", "m")
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (3, 2)
    assert "error.type" not in first
    assert second["error.type"] == "not_json"
    assert first["ended"] is second["ended"] is True
    assert "secret" not in repr(recorded.spans)


def test_nobody_pays_for_tracing_who_does_not_trace() -> None:
    code = "import sys, slipform; slipform.Client; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
