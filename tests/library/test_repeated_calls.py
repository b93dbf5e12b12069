"""Calls that repeat their schema are prepared once; what changes between them still counts."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import BaseModel

from slipform import Client
from slipform.errors import EnforcementError
from slipform.testing import Answer, FakeVendor


class Person(BaseModel):
    name: str
    age: int


ADA = Answer('{"name":"Ada","age":36}')


def test_every_call_sends_its_own_prompt_under_the_key_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeVendor([ADA]) as vendor, Client("openai/gpt-5", base_url=vendor.base_url) as client:
        for number in range(3):
            monkeypatch.setenv("OPENAI_API_KEY", f"key-{number}")
            assert client.ask(Person, f"Person {number}?") == Person(name="Ada", age=36)
    sent = [(each.headers["authorization"], each.json()["messages"][-1]["content"]) for each in vendor.requests]
    assert sent == [(f"Bearer key-{number}", f"Person {number}?") for number in range(3)]


def test_a_call_with_arguments_between_two_without_changes_neither() -> None:
    with FakeVendor([ADA]) as vendor, Client("openai/gpt-5", base_url=vendor.base_url, api_key="k") as client:
        client.ask(Person, "Who?")
        client.ask(Person, "Who?", max_tokens=9)
        client.ask(Person, "Who?")
    first, second, third = (each.json() for each in vendor.requests)
    assert first == third
    assert second == {**first, "max_completion_tokens": 9}


def test_the_clients_model_and_options_count_at_every_call() -> None:
    with FakeVendor([ADA, Answer("{}"), ADA]) as vendor:
        client = Client("openai/gpt-5", base_url=vendor.base_url, api_key="k")
        with client:
            client.ask(Person, "Who?")
            budget = dataclasses.replace(client.options.budget, attempts=1)
            client.options = dataclasses.replace(client.options, budget=budget)
            with pytest.raises(EnforcementError):
                client.ask(Person, "Who?")
            client.model = "openai/gpt-5-mini"
            client.ask(Person, "Who?")
    assert [each.json()["model"] for each in vendor.requests] == ["gpt-5", "gpt-5", "gpt-5-mini"]
