"""An answer that is cut off by the vendor's output limit is continued from its last complete part."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from slipform.enforce import Budget
from slipform.enforce.continuation import complete_part, continuation_of, with_prefill
from slipform.engine.setup import Options
from slipform.errors import TruncatedError
from slipform.ir import FinishReason, ModelResponse, Usage
from slipform.library.client import Client
from slipform.library.partial import so_far
from slipform.library.stream import Restart
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, Schema
from slipform.testing import Api, FakeModel, FakeVendor, Raw, Received, calling, rejected
from tests.proxy.agent_wire import APIS, Said, StreamReader, agent_request, read_whole
from tests.proxy.wire import before, post

VENDORS: list[Api] = ["openai", "openai-responses", "anthropic", "gemini", "bedrock", "cohere", "ollama"]


class Item(BaseModel):
    name: str
    count: int
    note: str | None = None


class Listing(BaseModel):
    title: str
    items: list[Item]
    total: int


COUNT = 300
ITEMS: list[dict[str, Any]] = [{"name": f"bolt M{n // 2}", "count": n // 2} for n in range(COUNT)]  # twins in a row
LISTING = {"title": "Bolts", "items": ITEMS, "total": COUNT}
GO_ON = re.compile(r"Go on with item (\d+)")


def rest_of(question: str, whole: dict[str, Any]) -> dict[str, Any]:
    """Return what a model writes that follows the question: the whole, or what comes after an item."""
    start = GO_ON.search(question)
    if start is None:
        return whole
    return {"items": whole["items"][int(start[1]) - 1 :], "total": whole["total"]}


def cut_answers(whole: dict[str, Any], share: float) -> Callable[[Any], Any]:
    """Return a model that writes at most this share of the whole answer in one call."""
    limit = int(len(json.dumps(whole)) * share)

    def answer(question: str) -> tuple[str, bool]:
        text = json.dumps(rest_of(question, whole))
        return text[:limit], len(text) > limit

    return answer


def vendor_step(answer: Callable[[str], tuple[str, bool]]) -> Callable[[Received], Any]:
    def step(received: Received) -> Any:
        body = received.json()
        text, is_cut = answer(received.body.decode())
        tools = body.get("tools") or (body.get("toolConfig") or {}).get("tools")
        response = ModelResponse(text=text)
        if tools:
            tool = tools[0]
            tool = tool.get("function") or tool.get("toolSpec") or (tool.get("functionDeclarations") or [tool])[0]
            response = calling((tool["name"], text))
        if is_cut:
            response = response.replace(finish="length")
        return response.replace(usage=Usage(input=10, output=len(text) // 4))

    return step


@pytest.mark.parametrize("strategy", ["native", "prompted"])
@pytest.mark.parametrize("api", VENDORS)
def test_every_item_of_a_long_list_arrives_from_every_vendor(api: Api, strategy: str) -> None:
    answer = cut_answers(LISTING, 0.6)
    with (
        FakeVendor(vendor_step(answer), api=api) as vendor,
        HttpProvider(api, name="v", base_url=vendor.base_url, api_key="k") as provider,
    ):
        client = Client(router=Router({"v": provider}, default="v/m"))
        result = client.ask_full(Listing, "All bolts.", strategy=OutputStrategy(strategy))
    assert [item.model_dump(exclude_none=True) for item in result.value.items] == ITEMS
    assert (result.value.title, result.value.total) == ("Bolts", COUNT)
    assert result.report.continuations == len(vendor.requests) - 1 > 0
    assert [attempt.outcome for attempt in result.report.attempts][-2:] == ["continued", "ok"]


PREFILLS: dict[str, Api] = {
    "mistral": "openai", "vllm": "openai", "sglang": "openai", "llamacpp": "openai", "ollama": "ollama"
}  # fmt: skip
"""Vendors that continue the answer whose beginning they are sent, by their names in the catalogue."""


def prefilled(received: Received) -> str | None:
    """Return the beginning that was sent along, where the vendor was told to continue it."""
    body = received.json()
    last = body["messages"][-1]
    if last["role"] != "assistant":
        return None
    is_marked = last.get("prefix") is True or (
        body.get("continue_final_message") is True and body.get("add_generation_prompt") is False
    )
    assert is_marked or "options" in body or received.path.endswith("/api/chat"), body
    assert "response_format" not in body
    assert "format" not in body
    return str(last["content"])


def continuing(whole: Any, share: float, *, repeats: bool = False) -> Callable[[Received], Any]:
    """Return a vendor that writes at most this share of an answer in one call, after the beginning it was sent."""
    text = json.dumps(whole, separators=(",", ":"))
    limit = int(len(text) * share)

    def step(received: Received) -> ModelResponse:
        begun = prefilled(received) or ""
        assert text.startswith(begun)
        rest = text[len(begun) :]
        piece = (begun if repeats else "") + rest[:limit]
        finish: FinishReason = "length" if len(rest) > limit else "stop"
        return ModelResponse(text=piece, finish=finish, usage=Usage(input=10, output=limit))

    return step


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("vendor_name", PREFILLS)
def test_a_prompted_answer_is_continued_from_its_beginning(vendor_name: str, repeats: bool) -> None:
    api = PREFILLS[vendor_name]
    with (
        FakeVendor(continuing(LISTING, 0.3, repeats=repeats), api=api) as vendor,
        HttpProvider(vendor_name, name="v", base_url=vendor.base_url, api_key="k") as provider,
    ):
        client = Client(router=Router({"v": provider}, default="v/m"))
        result = client.ask_full(Listing, "All bolts.", strategy=OutputStrategy.PROMPTED)
    assert result.value.model_dump(exclude_none=True) == LISTING
    assert len(vendor.requests) == 4
    assert [attempt.outcome for attempt in result.report.attempts] == ["continued"] * 3 + ["ok"]


@pytest.mark.parametrize("cut_at", range(2, 40))
def test_a_beginning_is_continued_wherever_the_answer_was_cut(cut_at: int) -> None:
    whole = {"a": [1, 22, 3], "b": {"c": "x,]", "d": 4.5}, "e": [True, None]}
    schema = {"type": "object", "properties": {"a": {"items": {"type": "integer"}}, "b": {"type": "object"}, "e": {}}}
    text = json.dumps(whole, separators=(",", ":"))
    assert len(text) > 40
    rest = continuation_of(text[:cut_at], schema)
    if rest is not None:
        assert text.startswith(rest.open_text)
        assert json.loads(with_prefill(text[len(rest.open_text) :], rest)) == whole


def test_a_model_that_gives_the_whole_anew_is_understood() -> None:
    begun = '{"title": "Bolts", "items": [{"name": "a", "count": 1}, {"na'
    with (
        FakeVendor([cut(begun), json.dumps(LISTING)]) as vendor,
        HttpProvider("vllm", name="v", base_url=vendor.base_url, api_key="k") as provider,
    ):
        client = Client(router=Router({"v": provider}, default="v/m"))
        assert client.ask(Listing, "All.", strategy=OutputStrategy.PROMPTED).total == COUNT
    assert prefilled(vendor.requests[1]) == '{"title":"Bolts","items":[{"name":"a","count":1}'


def test_a_vendor_that_refuses_a_beginning_is_asked_for_the_rest() -> None:
    def step(received: Received) -> Any:
        if prefilled(received) is not None:
            return rejected("The chat template has no open-ended last message")
        if len(vendor.requests) == 1:
            return cut('{"title": "Bolts", "items": [{"name": "a", "count": 1}, {"na')
        return '{"items": [{"name": "b", "count": 2}], "total": 2}'

    with (
        FakeVendor(step) as vendor,
        HttpProvider("vllm", name="v", base_url=vendor.base_url, api_key="k") as provider,
    ):
        client = Client(router=Router({"v": provider}, default="v/m"))
        result = client.ask_full(Listing, "All.", strategy=OutputStrategy.PROMPTED)
    assert [item.name for item in result.value.items] == ["a", "b"]
    assert len(vendor.requests) == 3


def ask(responses: Any, shape: Any, **options: Any) -> Any:
    client = Client("fake/m", router=Router({"fake": FakeModel(responses)}), options=Options(**options))
    return client.ask_full(shape, "All.")


def cut(text: str) -> ModelResponse:
    return ModelResponse(text=text, finish="length")


@pytest.mark.parametrize(
    ("shape", "texts", "value"),
    [
        (list[int], ["[1, 2, 3", "[3, 4]"], [1, 2, 3, 4]),
        (list[int], ["```json\n[1, 2,", "[3, 4", "[4]"], [1, 2, 3, 4]),
        (dict[str, int], ['{"a": 1, "b": 2', '{"b": 2}'], {"a": 1, "b": 2}),
        (dict[str, list[int]], ['{"a": [1], "b": [2, 3', '{"b": [3], "c": []}'], {"a": [1], "b": [2, 3], "c": []}),
        (list[int], ["[1, 2, 3, ", "[2, 3, 4]"], [1, 2, 3, 4]),
        (list[int], ["[1, 2, 2, ", "[2, 3]"], [1, 2, 2, 2, 3]),
        (list[int], ["[1, 2, 3, ", "[1, 2, 3, 4]"], [1, 2, 3, 4]),
        (list[int], ["[1, 2, 3, ", "[1, 2]"], [1, 2, 3]),
    ],
)
def test_the_complete_part_is_joined_with_the_rest(shape: Any, texts: list[str], value: Any) -> None:
    *cut_texts, last = texts
    result = ask([*map(cut, cut_texts), last], shape)
    assert result.value == value
    assert result.report.continuations == len(cut_texts)


def test_nested_objects_are_asked_only_for_what_is_missing() -> None:
    schema = {
        "type": "object",
        "properties": {
            "buyer": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "city": {"type": "string"}},
                "required": ["name", "city"],
                "additionalProperties": False,
            },
            "total": {"type": "integer"},
        },
        "required": ["buyer", "total"],
        "additionalProperties": False,
    }
    rest = continuation_of('{"buyer": {"name": "Ada", "city": "Lon', schema)
    assert rest is not None
    assert rest.value == {"buyer": {"name": "Ada"}}
    assert rest.schema["required"] == ["buyer", "total"]
    assert rest.schema["properties"]["buyer"]["required"] == ["city"]
    assert rest.merged({"buyer": {"city": "London"}, "total": 3}) == {
        "buyer": {"name": "Ada", "city": "London"},
        "total": 3,
    }


def test_limits_on_the_number_of_items_count_those_that_are_there() -> None:
    rest = continuation_of("[1, 2,", {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5})
    assert rest is not None
    assert (rest.schema["minItems"], rest.schema["maxItems"]) == (1, 3)


def test_what_cannot_be_continued_is_an_error_with_the_complete_part() -> None:
    with pytest.raises(TruncatedError) as caught:
        ask([cut('[{"name": "a", "count": 1}, {"name": "b'), cut('[{"name": "b')] * 2, list[Item])
    assert caught.value.partial == [Item(name="a", count=1)]
    with pytest.raises(TruncatedError) as caught:
        ask([cut('{"title": "Bolts", "items": [{"name": "a", "count": 1}, {')], Listing, budget=Budget(continuations=0))
    assert caught.value.partial == {"title": "Bolts", "items": [{"name": "a", "count": 1}]}


def test_a_model_that_begins_anew_each_time_is_not_asked_without_end() -> None:
    model = FakeModel([cut("[1, 2, 3,")] * 30)
    client = Client("fake/m", router=Router({"fake": model}))
    with pytest.raises(TruncatedError) as caught:
        client.ask(list[int], "All.", max_attempts=3)
    assert caught.value.partial == [1, 2, 3]
    assert len(model.requests) == 3


def test_the_callers_own_limit_is_kept() -> None:
    model = FakeModel([cut("[1, 2, 3").replace(usage=Usage(input=5, output=8)), "[3]"])
    client = Client("fake/m", router=Router({"fake": model}))
    with pytest.raises(TruncatedError):
        client.ask(list[int], "All.", max_tokens=8, max_attempts=1)
    model = FakeModel([cut("[1, 2, 3").replace(usage=Usage(input=5, output=8)), "[3]"])
    client = Client("fake/m", router=Router({"fake": model}))
    assert client.ask(list[int], "All.", max_tokens=20) == [1, 2, 3]
    assert [request.max_tokens for request in model.requests] == [20, 12]


def test_continuations_are_no_attempts_and_end_with_their_budget() -> None:
    endless = [cut(f"[{n}, {n}") for n in range(40)]
    model = FakeModel(endless)
    client = Client(
        "fake/m", router=Router({"fake": model}), options=Options(budget=Budget(attempts=1, continuations=4))
    )
    with pytest.raises(TruncatedError) as caught:
        client.ask(list[int], "All.")
    assert caught.value.partial == [0, 1, 2, 3, 4]
    assert len(model.requests) == 5


def streamed(address: str, api: str, schema: Any) -> Said:
    path, body = agent_request(api, {}, stream=True, answer=schema)
    body.pop("tools", None)
    if "max_tokens" in body:
        body["max_tokens"] = 100_000
    reply = post(address, path, body)
    if reply.status != 200:
        return read_whole(api, reply.status, reply.json())
    return StreamReader(api).read(reply.events())


@pytest.mark.parametrize("strategy", ["native", "prompted"])
@pytest.mark.parametrize("api", VENDORS)
def test_a_streams_reader_sees_every_item_and_no_restart(api: Api, strategy: str) -> None:
    with (
        FakeVendor(vendor_step(cut_answers(LISTING, 0.6)), api=api) as vendor,
        HttpProvider(api, name="v", base_url=vendor.base_url, api_key="k") as provider,
        Client(router=Router({"v": provider}, default="v/m")).stream(
            Listing, "All bolts.", strategy=OutputStrategy(strategy)
        ) as stream,
    ):
        events = list(stream.events())
    assert [event for event in events if isinstance(event, Restart)] == []
    assert stream.result.value.model_dump(exclude_none=True) == LISTING
    assert stream.result.report.continuations == len(vendor.requests) - 1 > 0


def test_the_partial_value_grows_on_where_the_vendor_continues_it() -> None:
    with (
        FakeVendor(continuing(LISTING, 0.3)) as vendor,
        HttpProvider("vllm", name="v", base_url=vendor.base_url, api_key="k") as provider,
        Client(router=Router({"v": provider}, default="v/m")).stream(
            Listing, "All bolts.", strategy=OutputStrategy.PROMPTED
        ) as stream,
    ):
        counts = [len(so_far(partial).get("items", [])) for partial in stream]
    assert counts[-1] == COUNT
    assert all(later >= earlier - 1 for earlier, later in pairwise(counts))  # the open item


@pytest.mark.parametrize("vendor_api", VENDORS)
def test_a_stream_goes_on_and_its_reader_sees_one_answer(vendor_api: Api) -> None:
    schema = Schema.of(Listing).document
    wrong: list[Any] = []
    step = vendor_step(cut_answers(LISTING, 0.6))
    with FakeVendor(step, api=vendor_api) as vendor, before(vendor, vendor_api) as address:
        for api in APIS:
            answer = streamed(address, api, schema)
            value = json.loads(answer.text) if answer.error is None else answer.error
            if value != LISTING or answer.finish != "stop":
                wrong.append((api, answer.finish, str(value)[:300]))
    assert wrong == []


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('ab"\\é', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)


@given(JSON_VALUES, st.data())
def test_what_is_complete_is_part_of_the_value_wherever_it_is_cut(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    part = complete_part(text[: data.draw(st.integers(0, len(text)))])
    if part is not None:
        assert is_part(part[0], value)


def is_part(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        return all(name in whole and is_part(member, whole[name]) for name, member in part.items())
    if isinstance(part, list):
        return len(part) <= len(whole) and all(map(is_part, part, whole))
    return bool(part == whole)


def message_of(arguments: dict[str, Any], stop_reason: str) -> Raw:
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "tool_use", "id": "t", "name": "output", "input": arguments}],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 9},
    }
    return Raw((json.dumps(message).encode(),), 200, {"content-type": "application/json"})


def test_arguments_that_anthropic_closed_at_the_limit_are_continued() -> None:
    cut = message_of({"items": ["a", "b"]}, "max_tokens")
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
    with (
        FakeVendor([cut, message_of({"items": ["c"]}, "tool_use")], api="anthropic") as vendor,
        Client("anthropic/claude-3-haiku", base_url=vendor.base_url, api_key="k") as client,
    ):
        result = client.ask_full(schema, "List.", strategy="tool")
    assert result.value == {"items": ["a", "b", "c"]}
    assert [attempt.outcome for attempt in result.report.attempts] == ["continued", "ok"]
