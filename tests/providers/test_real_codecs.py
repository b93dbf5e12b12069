"""The whole way: a typed question through enforcement, a real codec and HTTP to a vendor on loopback, and back."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from slipform import Budget, Client, Options
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Api, FakeVendor, rate_limited


class Person(BaseModel):
    name: str
    age: int | None = None


ADA = '{"name": "Ada", "age": 36}'
ROWS: list[tuple[str, Api, str]] = [
    ("openai", "openai", "gpt-6-luna"),
    ("deepseek", "openai", "deepseek-chat"),
    ("mistral", "openai", "mistral-large-latest"),
    ("openai-compatible", "openai", "anything"),
    ("anthropic", "anthropic", "claude-opus-5-5"),
    ("gemini", "gemini", "gemini-3-pro"),
]


def client(row: str, vendor: FakeVendor) -> Client:
    provider = HttpProvider(row, base_url=vendor.base_url, api_key="k")
    return Client(router=Router({row: provider}), options=Options(budget=Budget(attempts=2)))


@pytest.mark.parametrize(("row", "api", "model"), ROWS, ids=[row for row, _, _ in ROWS])
def test_a_typed_answer_comes_back_from_every_kind_of_vendor(row: str, api: Api, model: str) -> None:
    with (
        FakeVendor([rate_limited(retry_after_ms=1), '{"age": 3', ADA], api=api) as vendor,
        client(row, vendor) as asking,
    ):
        result = asking.ask_full(Person, "Ada is 36", model=f"{row}/{model}")
    assert result.value == Person(name="Ada", age=36)
    assert len(result.report.attempts) == 2, "a rate limit spends no attempt"
    assert len(vendor.requests) == 3


@pytest.mark.parametrize(("row", "api", "model"), ROWS, ids=[row for row, _, _ in ROWS])
def test_a_streamed_answer_grows_into_the_same_value(row: str, api: Api, model: str) -> None:
    with FakeVendor([ADA], api=api) as vendor, client(row, vendor) as asking:
        with asking.stream(Person, "Ada is 36", model=f"{row}/{model}") as stream:
            partials = list(stream)
        assert stream.result.value == Person(name="Ada", age=36)
    assert len(partials) > 1


def test_an_optional_key_the_vendor_must_send_comes_back_absent() -> None:
    """S4-02, C21: what a strict dialect spells as null is undone on the way back."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    with FakeVendor(['{"name": "Ada", "age": null}']) as vendor, client("openai", vendor) as asking:
        assert asking.ask(schema, "Ada", model="openai/gpt-6-luna") == {"name": "Ada"}
    sent = vendor.requests[0].json()["response_format"]["json_schema"]["schema"]
    assert sent["required"] == ["name", "age"]
