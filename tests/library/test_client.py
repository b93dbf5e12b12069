"""The Python face, with the embedded model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

import slipform
from slipform import AsyncClient, Client
from slipform.addons.local import LocalProvider
from slipform.errors import ConfigError, TruncatedError, UnknownModelError
from slipform.ir import ModelResponse
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor
from tests.conftest import PERSON, router_for

pytestmark = [pytest.mark.local, pytest.mark.xdist_group("local")]


class Person(BaseModel):
    name: str
    age: int


@dataclass
class City:
    name: str


class Mood(Enum):
    HAPPY = "happy"
    SAD = "sad"


@pytest.fixture
def client(local: LocalProvider) -> Client:
    return Client(router=router_for(local))


def test_ask_gives_an_object_of_the_type_asked_for(client: Client) -> None:
    person = client.ask(Person, "Ada is 36")
    assert type(person) is Person
    assert person == Person(name="Ada", age=36)


def test_ask_takes_types_that_are_no_models(client: Client) -> None:
    assert client.ask(list[Person], "Ada is 36 and Bob is 40.")[0] == Person(name="Ada", age=36)
    assert isinstance(client.ask(City, "I live in Paris."), City)
    assert client.ask(Mood, "I laugh all day: happy or sad?") in set(Mood)
    assert isinstance(client.ask(int, "How many legs has a dog?"), int)


def test_ask_takes_a_raw_schema_and_gives_plain_values(client: Client) -> None:
    assert client.ask(PERSON, "Ada is 36") == {"name": "Ada", "age": 36}


async def test_the_async_client_gives_the_same(local: LocalProvider) -> None:
    client = AsyncClient(router=router_for(local))
    assert await client.ask(Person, "Ada is 36") == Person(name="Ada", age=36)


def test_a_limit_too_small_raises_and_gives_no_half_object(client: Client) -> None:
    with pytest.raises(TruncatedError, match="max_tokens"):
        client.ask(Person, "Ada is 36", max_tokens=4)


def test_an_unknown_model_names_the_nearest(client: Client) -> None:
    with pytest.raises(UnknownModelError, match="local"):
        client.ask(Person, "Ada is 36", model="locale/x")


def test_the_module_level_ask_needs_no_set_up() -> None:
    assert slipform.ask(Person, "Ada is 36").age == 36
    assert slipform.ask_text("Say hello.", max_tokens=8).strip()


def test_the_embedded_model_streams(client: Client) -> None:
    with client.stream(Person, "Ada is 36") as stream:
        partials = list(stream)
        assert stream.result.value == Person(name="Ada", age=36)
    assert partials[-1].name == "Ada"
    assert partials[-1].age == 36


async def test_the_module_level_twins_for_event_loops() -> None:
    assert (await slipform.ask_async(Person, "Ada is 36")).age == 36
    assert (await slipform.ask_text_async("Say hello.", max_tokens=8)).strip()
    async with slipform.stream_async(list[Person], "Ada is 36 and Bob is 40.") as stream:
        assert "Ada" in [person.name async for person in stream.items()]
    with slipform.stream(Person, "Ada is 36") as again:
        assert again.result.value.name == "Ada"


@pytest.mark.parametrize("model", [3, [3], {"openai": "gpt-6-luna"}])
def test_what_is_no_name_of_a_model_is_refused(model: Any) -> None:
    client = Client("fake/m", router=Router({"fake": FakeModel(["1"])}))
    with pytest.raises(ConfigError, match="A model is a name or a list of names"):
        client.ask(int, "x", model=model)


def test_a_report_prints_as_a_line_for_each_attempt() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    with FakeVendor(["{}", "{'age': '36'}"]) as vendor:
        client = Client(
            "openai/any", base_url=vendor.base_url, api_key="any", options=slipform.Options(budget=slipform.Budget(2))
        )
        with client:
            report = client.ask_full(schema, "How old is Ada?").report
    first, second = str(report).splitlines()
    assert first.startswith("1. openai/any (")
    assert first.endswith("violations: 1")
    assert second.endswith(": ok, repairs: 2, patches: 1")


def _ask(client: Client, schema: Any) -> Any:
    return client.ask(schema, "All rows.", max_attempts=1)


def _stream(client: Client, schema: Any) -> Any:
    with client.stream(schema, "All rows.", max_attempts=1) as stream:
        return stream.result


@pytest.mark.parametrize("call", [_ask, _stream])
def test_what_was_written_before_the_token_limit_is_on_the_error(call: Any) -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]}
    cut = '{"rows":[' + ",".join(f'{{"n":{number}}}' for number in range(300)) + ',{"n":'
    model = FakeModel([ModelResponse(text=cut, finish="length")])
    with pytest.raises(TruncatedError) as caught:
        call(Client("fake/m", router=Router({"fake": model})), schema)
    assert caught.value.response.text == cut
    assert slipform.loads_report(cut).value["rows"][:300] == [{"n": number} for number in range(300)]
