"""Vendor-neutral requests through the client: what is honoured, said and raised."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from slipform import AsyncClient, Budget, Client, Options
from slipform.errors import JsonEnforcementError
from slipform.ir import Message, ModelRequest, Sampling
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, ResponseFormat
from slipform.testing import FakeModel, FakeVendor

WANTED = ResponseFormat.strict(
    JsonSchemaSpec("age", {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]})
)
ASKED = ModelRequest("fake/m", (Message.user("How old is Ada?"),))


def client_of(*answers: str, attempts: int = 1) -> tuple[Client, FakeModel]:
    model = FakeModel(list(answers))
    return Client(router=Router({"fake": model}), options=Options(budget=Budget(attempts=attempts))), model


@pytest.mark.covers("S1-76")
def test_without_a_shape_the_reply_is_returned_as_it_is() -> None:
    client, model = client_of("no JSON {", "no JSON {")
    assert client.respond(ASKED).text == "no JSON {"
    assert client.text("How old?", model="fake/m") == "no JSON {"
    assert [message.text for message in model.requests[0].messages] == ["How old is Ada?"]


@pytest.mark.covers("S0-01", "S0-11", "S0-12", "S0-13", "S2-33", "S2-34", "S3-21")
def test_a_shape_is_honoured_without_a_warning_and_told_in_the_prompt() -> None:
    client, model = client_of('{"age": 36}')
    outcome = client.respond(ASKED.replace(response_format=WANTED))
    assert outcome.value == outcome.answer.content_resolved == {"age": 36}
    assert not outcome.report.warnings
    system = model.requests[0].messages[0]
    assert system.role == "system"
    assert system.text.startswith("Return ONLY valid JSON matching this schema: {")
    assert system.text.endswith('No prose.\nAn example of the form, with made-up values: {"age":1}')


@pytest.mark.covers("S0-81", "S2-32")
def test_json_without_a_schema_means_any_object() -> None:
    client, model = client_of('Sure: {"a": 1}')
    assert client.respond(ASKED.replace(json_mode=True)).value == {"a": 1}
    assert model.requests[0].messages[0].text == "Return JSON only."


@pytest.mark.covers("S1-54", "S1-67", "S2-53")
def test_what_is_no_json_is_asked_for_again_and_then_raised_with_a_diagnostic() -> None:
    client, model = client_of("I am not sure.", "Still not.", attempts=2)
    assert client.options.backoff_seconds == 0
    with pytest.raises(JsonEnforcementError, match="after 2 attempts") as caught:
        client.respond(ASKED.replace(response_format=WANTED))
    assert len(str(caught.value)) < 500
    assert caught.value.report is not None
    assert model.requests[1].messages[-1].text == "Return ONLY valid compact JSON. No markdown, no prose."


@pytest.mark.covers("S0-09")
def test_other_knobs_that_a_vendor_lacks_are_warned_of() -> None:
    with (
        FakeVendor(['{"age": 36}']) as vendor,
        HttpProvider("openai", base_url=vendor.base_url, api_key="any") as provider,
    ):
        asked = ASKED.replace(model="openai/gpt-4o", response_format=WANTED, sampling=Sampling(top_k=3))
        report = Client(router=Router({"openai": provider})).respond(asked).report
    assert "sampling.top_k" in [warning.path for warning in report.warnings]


@pytest.mark.covers("S0-05")
def test_the_validator_comes_with_the_package() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert any(name.startswith("jsonschema-rs") for name in project["project"]["dependencies"])


def test_a_request_that_is_not_enforced_comes_back_as_the_model_wrote_it() -> None:
    asked = ASKED.replace(response_format=WANTED)
    client, _ = client_of("no JSON {")
    assert client.complete(asked).text == "no JSON {"
    assert "".join(chunk.text for chunk in client.complete_stream(asked)) == "no JSON {"


async def test_the_async_client_has_the_same_for_requests_that_are_not_enforced() -> None:
    async with AsyncClient(router=Router({"fake": FakeModel(["no JSON {"])})) as client:
        asked = ASKED.replace(response_format=WANTED)
        assert (await client.complete(asked)).text == "no JSON {"
        assert "".join([chunk.text async for chunk in client.complete_stream(asked)]) == "no JSON {"
