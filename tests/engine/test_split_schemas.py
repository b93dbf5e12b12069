"""A schema that is too wide for its vendor is asked for in parts, side by side, and validated as a whole."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import create_model

from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.errors import SchemaViolationError, TruncatedError
from slipform.ir import ModelResponse, Usage
from slipform.ir.evidence import Evidence
from slipform.library.async_client import AsyncClient
from slipform.library.client import Client
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, Api, FakeVendor, Received, Step, rejected
from tests.proxy.agent_wire import APIS
from tests.proxy.wire import before
from tests.schema.data import needs_real_world, real_world
from tests.test_continuation import streamed

COUNT = 90
REFUSALS = {
    "openai": "Invalid schema for response_format 'answer': Expected at most {most} object properties total."
    " Received {n}.",
    "anthropic": "Schemas contains too many optional parameters ({n}), which would make grammar compilation"
    " inefficient. Reduce the number of optional parameters in your tool schemas (limit: {most}).",
    "gemini": "The specified schema produces a constraint that has too many states for serving.",
}
VENDORS: list[Api] = ["openai", "anthropic", "gemini"]


def wide(count: int = COUNT, **keywords: Any) -> dict[str, Any]:
    properties = {f"field_{number}": {"type": "integer"} for number in range(count)}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **keywords,
    }


WHOLE = {f"field_{number}": number for number in range(COUNT)}


def sent_schema(received: Received) -> dict[str, Any]:
    """Return the schema of a native channel, empty where there is none."""
    body = received.json()
    generation = body.get("generationConfig") or {}
    places = [
        (body.get("response_format") or {}).get("json_schema", {}).get("schema"),
        (body.get("output_config") or {}).get("format", {}).get("schema"),
        generation.get("responseJsonSchema"),
    ]
    return next((each for each in places if each), {})


def answer_of(schema: dict[str, Any]) -> str:
    return json.dumps({name: int(name.partition("_")[2]) for name in schema["properties"]})


def refusing(api: str, most: int) -> Callable[[Received], Step]:
    """Return a vendor that takes schemas of so many properties."""

    def step(received: Received) -> Step:
        schema = sent_schema(received)
        assert schema, "the schema went another way"
        count = len(schema["properties"])
        if count > most:
            return rejected(REFUSALS[api].format(n=count, most=most))
        return ModelResponse(text=answer_of(schema), usage=Usage(input=10, output=count))

    return step


def client_of(vendor: FakeVendor, api: str = "openai", **options: Any) -> Client:
    provider = HttpProvider(api, name="v", base_url=vendor.base_url, api_key="k")
    return Client(router=Router({"v": provider}, default="v/m"), options=Options(**options))


@pytest.mark.parametrize("api", VENDORS)
def test_a_schema_that_the_vendor_refuses_as_too_large_is_asked_for_in_parts(api: Api) -> None:
    with FakeVendor(refusing(api, 25), api=api) as vendor, client_of(vendor, api) as client:
        first = client.ask_full(wide(), "All fields.")
        calls = len(vendor.requests)
        again = client.ask_full(wide(), "All fields.")
    assert first.value == again.value == WHOLE
    assert calls == 7  # the whole, its halves, and four quarters
    assert len(vendor.requests) == calls + 4  # what was refused is not sent again
    assert [attempt.outcome for attempt in again.report.attempts] == ["ok"] * 4
    assert again.report.usage.input == 40
    assert again.report.usage.output == COUNT
    assert [note.code for note in again.report.notes] == ["schema_split"]


@pytest.mark.parametrize("api", VENDORS)
def test_every_face_asks_for_the_parts(api: Api) -> None:
    with FakeVendor(refusing(api, 25), api=api) as vendor, before(vendor, api) as address:
        provider = HttpProvider(api, name="v", base_url=vendor.base_url, api_key="k")
        router = Router({"v": provider}, default="v/m")
        values = {"async": asyncio.run(AsyncClient(router=router).ask(wide(), "All."))}
        client = Client(router=router)
        with client.stream(wide(), "All.") as stream:
            values["stream"] = stream.result.value
        values["async stream"] = asyncio.run(streamed_value(AsyncClient(router=router)))
        values["evidence"] = client.ask_full(wide(), "All.", evidence=Evidence()).value
        for served in APIS:
            answer = streamed(address, served, wide())
            values[served] = json.loads(answer.text) if answer.error is None else answer.error
    assert {name: value for name, value in values.items() if value != WHOLE} == {}


async def streamed_value(client: AsyncClient) -> Any:
    async with client.stream(wide(), "All.") as stream:
        return (await stream.result()).value


def test_the_vendors_own_limits_split_a_schema_before_it_is_refused() -> None:
    schema = wide(700)  # Cerebras takes 500 properties
    with FakeVendor(refusing("openai", 500)) as vendor, client_of(vendor, "cerebras") as client:
        assert len(client.ask(schema, "All fields.")) == 700
    assert sorted(len(sent_schema(each)["properties"]) for each in vendor.requests) == [200, 500]


def test_parts_are_asked_side_by_side_over_the_same_prompt() -> None:
    arrived = [asyncio.Event(), asyncio.Event()]

    def step(received: Received) -> Step:
        schema = sent_schema(received)
        number = int("field_0" not in schema["properties"])
        arrived[number].set()

        async def gate(_: int) -> None:
            await arrived[1 - number].wait()

        return Answer(answer_of(schema), gate=gate)

    with FakeVendor(step) as vendor, client_of(vendor, "cerebras") as client:
        assert len(client.ask(wide(700), "All fields.")) == 700
    one, other = (each.json()["messages"] for each in vendor.requests)
    assert one == other


def test_a_part_is_repaired_and_retried_by_itself() -> None:
    wrong = iter(['{"field_0": "none"}'])

    def step(received: Received) -> Step:
        schema = sent_schema(received)
        return next(wrong, answer_of(schema)) if "field_0" in schema["properties"] else answer_of(schema)

    with FakeVendor(step) as vendor, client_of(vendor, "cerebras") as client:
        result = client.ask_full(wide(700), "All fields.")
    assert len(result.value) == 700
    outcomes = [attempt.outcome for attempt in result.report.attempts]
    assert outcomes == ["schema_violation", "ok", "ok"]
    assert len(vendor.requests) == 3


def test_what_only_the_whole_can_violate_is_retried() -> None:
    schema = wide(700, minProperties=700, required=["field_0"])

    def answers() -> Iterator[str]:
        yield json.dumps({"field_0": 0})
        yield json.dumps({"field_600": 600})
        while True:
            yield json.dumps({f"field_{number}": number for number in range(700)})

    texts = answers()
    lock = threading.Lock()

    def step(received: Received) -> Step:
        with lock:
            return next(texts)

    with FakeVendor(step) as vendor, client_of(vendor, "cerebras") as client:
        result = client.ask_full(schema, "All fields.")
    assert len(result.value) == 700
    assert [attempt.outcome for attempt in result.report.attempts] == ["ok", "ok", "schema_violation", "ok"]


def test_a_part_that_fails_fails_the_call_with_what_the_others_gave() -> None:
    def step(received: Received) -> Step:
        schema = sent_schema(received)
        if "field_0" in schema["properties"]:
            return ModelResponse(text='{"field_0": 0, "field_1', finish="length")
        return answer_of(schema)

    with (
        FakeVendor(step) as vendor,
        client_of(vendor, "cerebras", budget=Budget(attempts=1, continuations=0)) as client,
        pytest.raises(TruncatedError) as caught,
    ):
        client.ask(wide(700), "All fields.")
    assert len(caught.value.partial) == 201
    with (
        FakeVendor(lambda _: '{"field_0": "none"}') as vendor,
        client_of(vendor, "cerebras") as client,
        pytest.raises(SchemaViolationError) as wrong,
    ):
        client.ask(wide(700), "All fields.", max_attempts=1)
    assert len(wrong.value.report.attempts) == 1


def test_a_typed_object_comes_back_as_its_type() -> None:
    fields: Any = {f"field_{number}": (int, ...) for number in range(600)}
    model = create_model("Wide", **fields)
    with FakeVendor(refusing("openai", 500)) as vendor, client_of(vendor, "cerebras") as client:
        value = client.ask(model, "All fields.")
    assert type(value) is model
    assert value.field_599 == 599


def properties_in(node: Any) -> int:
    if isinstance(node, list):
        return sum(map(properties_in, node))
    if not isinstance(node, dict):
        return 0
    own = node.get("properties")
    return (len(own) if isinstance(own, dict) else 0) + sum(map(properties_in, node.values()))


def selected(value: Any, schema: Any) -> Any:
    """Return of a value what a schema has a place for."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    listed = {name: selected(member, properties[name]) for name, member in value.items() if name in properties}
    return listed if schema.get("additionalProperties") is False else {**value, **listed}


@needs_real_world
def test_real_schemas_come_back_whole_from_a_vendor_that_takes_half_of_each() -> None:
    most = 0
    instance: Any = None

    def step(received: Received) -> Step:
        schema = sent_schema(received)
        count = properties_in(schema)
        if count > most:
            return rejected(REFUSALS["openai"].format(n=count, most=most))
        return json.dumps(selected(instance, schema) if schema else instance)

    split = 0
    with FakeVendor(step) as vendor, client_of(vendor, "vllm") as client:
        for row in real_world():
            instances = [case["data"] for case in row["tests"] if case["valid"] and isinstance(case["data"], dict)]
            count = properties_in(row["schema"])
            if not instances or count < 8:
                continue
            most = count * 11 // 20
            instance = instances[0]
            result = client.ask_full(row["schema"], "All of it.")
            assert result.value == instance, row["id"]
            split += any(note.code == "schema_split" for note in result.report.notes)
    assert split > 60


def test_never_leaves_the_schema_whole() -> None:
    def step(received: Received) -> Step:
        body = received.json()
        if "response_format" in body and sent_schema(received):
            return rejected(REFUSALS["openai"].format(n=COUNT, most=25))
        return json.dumps(WHOLE)

    with FakeVendor(step) as vendor, client_of(vendor, split="never") as client:
        result = client.ask_full(wide(), "All fields.")
    assert result.value == WHOLE
    assert len(vendor.requests) == 2
    assert [warning.code for warning in result.report.warnings] == ["capability_downgraded"]
