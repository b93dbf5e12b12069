"""The OpenAPI document: it says what is served, and what is served is what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from slipform import AsyncClient, Budget, Options
from slipform.addons.server import App
from slipform.addons.server.calls.pages import openapi_bytes, openapi_document
from slipform.codecs import Capabilities
from slipform.config import LedgerSettings, Settings
from slipform.ir import ModelRequest, ModelResponse, ToolCall, Usage
from slipform.providers.router import Router
from slipform.schema.examples import example
from slipform.testing import FakeModel
from tests.conftest import serving
from tests.proxy.asgi import get

DOCUMENT = openapi_document()
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


def obedient(request: ModelRequest) -> ModelResponse:
    """Answers with an example of whatever shape is wanted, with a call of the first tool, or in words."""
    spent = Usage(input=3, output=2)
    if request.response_format is not None:
        found = example(request.response_format.json_schema.schema)
        return ModelResponse(text="{}" if found is None else found.text, usage=spent)
    if request.tools:
        found = example(request.tools[0].parameters)
        call = ToolCall("c1", request.tools[0].name, "{}" if found is None else found.text)
        return ModelResponse(tool_calls=(call,), finish="tool_calls", usage=spent)
    return ModelResponse(text="{}" if request.json_mode else "hello", usage=spent)


@pytest.mark.covers("S2-01", "S2-03", "S2-17", "S2-18", "S2-19")
async def test_the_document_names_every_path_and_every_error() -> None:
    paths = DOCUMENT["paths"]
    assert {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models", "/healthz", "/metrics"} <= set(paths)
    assert "/v1beta/models/{model}:streamGenerateContent" in paths
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/{model}:generateContent"):
        told = set(paths[path]["post"]["responses"])
        assert told >= {"200", "400", "401", "404", "405", "413", "422", "429", "502", "503", "504"}, path
    router = Router({"fake": FakeModel(["hi"], models=("m",))})
    app = App(AsyncClient(router=router), Settings())
    assert (await get(app, "/openapi.json")).json() == DOCUMENT


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    components = DOCUMENT["components"]
    for found in re.findall(r"#/components/(\w+)/([\w-]+)", openapi_bytes().decode()):
        assert found[1] in components[found[0]], found
    for name, schema in components["schemas"].items():
        assert jsonschema_rs.Draft202012Validator({**schema, "components": components}), name


async def test_the_page_shows_every_operation_and_fetches_nothing() -> None:
    router = Router({"fake": FakeModel(["hi"], models=("m",))})
    reply = await get(App(AsyncClient(router=router), Settings()), "/docs")
    page = reply.body.decode()
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert all(path in page for path in DOCUMENT["paths"])
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page


def checked(operation: Any, mode: GenerationMode, address: str, examples: int) -> set[int]:
    """Generated calls of one operation, each answer held to the document; gives the statuses that were seen."""
    seen: set[int] = set()
    named = {"path_parameters": {"model": "local"}} if "{model}" in operation.path else {}

    @given(operation.as_strategy(mode, **named))
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        if isinstance(case.body, dict) and mode is GenerationMode.POSITIVE and "model" in case.body:
            case.body["model"] = "local"
        response = case.call_and_validate(base_url=address, checks=CHECKS)
        seen.add(response.status_code)

    check()
    return seen


@pytest.mark.slow
@pytest.mark.covers("C31")
def test_schemathesis_finds_no_500_and_no_answer_that_the_document_does_not_promise(tmp_path: Path) -> None:
    capabilities = Capabilities(native=True, tools=True, forced_tool=True, json_mode=True)
    model = FakeModel(obedient, models=("m",), capabilities=capabilities)
    router = Router({"fake": model}, aliases={"local": "fake/m"}, default="local")
    settings = Settings(ledger=LedgerSettings(path=str(tmp_path / "ledger.db")))
    app = App(AsyncClient(router=router, options=Options(budget=Budget(attempts=2))), settings)
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    with serving(app) as address:
        for result in schema.get_all_operations():
            assert isinstance(result, Ok)
            operation = result.ok()
            if "x-slipform" in operation.definition.raw:  # a vendor's: test_endpoints.py has scripted ones
                continue
            if operation.path.startswith("/v1/models/{model}:"):  # the same as under /v1beta
                continue
            calls = operation.method.upper() == "POST"
            seen = checked(operation, GenerationMode.POSITIVE, address, 7 if calls else 1)
            assert 200 in seen, (operation.label, seen)
            if calls:
                assert 400 in checked(operation, GenerationMode.NEGATIVE, address, 5)
