"""Responses clients that continue by ids work on vendors that store nothing: slipform stores for each key apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.calls.stored_responses import is_own_id
from slipform.ir import ModelResponse, Reasoning, Text, ToolCall
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import Answer, FakeVendor, Received
from tests.proxy.proxying import Reply, call, proxied, running_redis
from tests.proxy.test_stored_responses import Keeper, keeping

VENDORS: Any = {
    "anthropic": ("anthropic", "anthropic"),
    "gemini": ("gemini", "gemini"),
    "ollama": ("ollama", "ollama"),
    "chat": ("openai-compatible", "openai"),
}
PLACE: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "name": "forecast", "parameters": PLACE, "strict": False}
CITIES = ("Oslo", "Rome", "Bern")
STEPS = 3


class Forecaster:
    """A vendor that calls `forecast` once for each city and then says how many results it got.

    It calls `shell` instead where that is the tool. Its answers repeat their ids, as those of many servers do.
    """

    def __init__(self, name: str, vendors: Any = VENDORS) -> None:
        kind, api = vendors[name]
        self.kind = kind
        self.vendor = FakeVendor(self.answer, api=api)

    def answer(self, received: Received) -> Answer:
        asked = received.json()
        text = json.dumps(asked)
        # A client that refers to earlier items sends results alone: what they answer is kept at the vendor.
        done = max(sum(city in text for city in CITIES), text.count('"function_call_output"'))
        if done == STEPS or not (asked.get("tools") or asked.get("toolConfig")):
            return Answer(ModelResponse(text=f"{done} results", id="v", finish="stop"))
        made = ToolCall(f"call_{done}", "forecast", json.dumps({"city": CITIES[done]}))
        if '"shell"' in json.dumps(asked["tools" if "tools" in asked else "toolConfig"]):
            made = ToolCall(f"call_{done}", "shell", json.dumps({"command": ["forecast", CITIES[done]]}))
        return Answer(ModelResponse(text="Let me look.", tool_calls=(made,), id="v", finish="tool_calls"))

    def provider(self) -> HttpProvider:
        url = self.vendor.base_url
        return HttpProvider(self.kind, base_url=url, api_key="k", retries=RetryPolicy(attempts=0))


@contextmanager
def served(name: str = "anthropic", settings: Any = None) -> Iterator[tuple[openai.OpenAI, str, FakeVendor]]:
    forecaster = Forecaster(name)
    with (
        forecaster.vendor as vendor,
        proxied({"up": forecaster.provider()}, {"default_model": "up/m", **(settings or {})}) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client, address, vendor


def ask(client: openai.OpenAI, *, stream: bool, **fields: Any) -> Any:
    """One call; of a stream, the response at its end, whose items have the ids that its events had."""
    if not stream:
        return client.responses.create(model="up/m", **fields)
    with client.responses.stream(model="up/m", **fields) as events:
        seen: list[Any] = list(events)
        final: Any = events.get_final_response()
    announced = [event.item.id for event in seen if event.type == "response.output_item.added"]
    assert announced == [item.id for item in final.output]
    return final


def results(response: Any) -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": each.call_id, "output": "rain"} for each in calls]


def by_previous(response: Any, _items: list[Any]) -> dict[str, Any]:
    return {"input": results(response), "previous_response_id": response.id}


def by_reference(response: Any, items: list[Any]) -> dict[str, Any]:
    items += [{"type": "item_reference", "id": item.id} for item in response.output]
    items += results(response)
    return {"input": items}


def by_bare_reference(response: Any, items: list[Any]) -> dict[str, Any]:
    items += [{"id": item.id} for item in response.output]
    items += results(response)
    return {"input": items}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("go_on", [by_previous, by_reference, by_bare_reference])
@pytest.mark.parametrize("name", VENDORS)
def test_a_tool_loop_goes_on_by_ids_on_any_vendor(name: str, go_on: Any, stream: bool) -> None:
    items: list[Any] = [{"role": "user", "content": "What will the weather be?"}]
    with served(name) as (client, _, vendor):
        response = ask(client, stream=stream, input=list(items), tools=[TOOL])
        ids = [response.id]
        for _ in range(STEPS):
            response = ask(client, stream=stream, tools=[TOOL], **go_on(response, items))
            ids.append(response.id)
    assert response.output_text == "3 results"
    assert len(vendor.requests) == STEPS + 1
    assert len(set(ids)) == STEPS + 1
    assert all(map(is_own_id, ids))
    last = vendor.requests[-1].body.decode()
    assert all(last.count(city) == 1 for city in CITIES)
    assert last.count("What will the weather be?") == 1
    assert "slipform" not in last


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_an_item_that_can_be_referred_to(stream: bool) -> None:
    thought = ModelResponse(parts=(Reasoning("hm"), Text("Hi.")), text="Hi.", reasoning="hm")
    with FakeVendor([thought, "Bye."]) as vendor:
        provider = HttpProvider("openai-compatible", base_url=vendor.base_url, api_key="k")
        with (
            proxied({"up": provider}) as address,
            openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
        ):
            first = ask(client, stream=stream, input="hi")
            kinds = [item.type for item in first.output]
            references = [{"type": "item_reference", "id": item.id} for item in first.output]
            second = ask(client, stream=stream, input=[*references, {"role": "user", "content": "more"}])
    assert kinds == ["reasoning", "message"]
    assert second.output_text == "Bye."
    assert "Hi." in vendor.requests[-1].body.decode()


def test_continuations_of_one_response_do_not_see_each_other() -> None:
    with served("chat") as (client, _, vendor):
        first = client.responses.create(model="up/m", input="one")
        second = client.responses.create(model="up/m", input="left", previous_response_id=first.id)
        client.responses.create(model="up/m", input="right", previous_response_id=first.id)
        client.responses.create(model="up/m", input="left again", previous_response_id=second.id)
    texts = [
        [each["content"] for each in each.json()["messages"] if each["role"] == "user"] for each in vendor.requests
    ]
    assert texts == [["one"], ["one", "left"], ["one", "right"], ["one", "left", "left again"]]


def test_instructions_are_not_carried_over() -> None:
    with served("chat") as (client, _, vendor):
        first = client.responses.create(model="up/m", input="one", instructions="Be brief.")
        client.responses.create(model="up/m", input="two", previous_response_id=first.id)
    assert "Be brief." in vendor.requests[0].body.decode()
    assert "Be brief." not in vendor.requests[1].body.decode()


def refused(reply: Reply) -> tuple[int, str, str | None]:
    error = reply.json["error"]
    return reply.status, error["type"], error["param"]


UNKNOWN_IDS = (openai.NotFoundError, openai.BadRequestError)
"""An unknown `previous_response_id` is a bad request, as at OpenAI; any other id is not found."""
UNKNOWN = (400, "invalid_request_error", "previous_response_id")


def test_what_is_not_stored_is_an_unknown_id() -> None:
    with served("chat") as (client, address, vendor):
        unstored = client.responses.create(model="up/m", input="one", store=False)
        deleted = client.responses.create(model="up/m", input="one")
        item = deleted.output[0].id
        client.responses.delete(deleted.id)
        asked = len(vendor.requests)
        replies = [
            call(address, "/v1/responses", {"model": "up/m", "input": "two", "previous_response_id": identity})
            for identity in (unstored.id, deleted.id, "resp_slipform_0", "resp_1", "x" * 5000)
        ]
        gone = call(address, "/v1/responses", {"model": "up/m", "input": [{"type": "item_reference", "id": item}]})
        shown = call(address, f"/v1/responses/{deleted.id}")
        wrong = call(address, "/v1/responses", {"model": "up/m", "input": "two", "previous_response_id": 7})
    assert unstored.to_dict()["store"] is False
    assert [refused(reply) for reply in replies] == [UNKNOWN] * 5
    assert {reply.json["error"]["code"] for reply in replies} == {"previous_response_not_found"}
    assert refused(gone) == (404, "invalid_request_error", "input[0].id")
    assert (shown.status, wrong.status) == (404, 400)
    assert len(vendor.requests) == asked, "nothing was paid for"


def test_an_expired_id_is_an_unknown_id() -> None:
    with served("chat", {"stored_responses": {"ttl_seconds": 1e-9}}) as (client, address, _):
        first = client.responses.create(model="up/m", input="one")
        body = {"model": "up/m", "input": "two", "previous_response_id": first.id}
        assert refused(call(address, "/v1/responses", body)) == UNKNOWN


def test_nothing_is_stored_where_that_is_switched_off() -> None:
    with served("chat", {"stored_responses": {"enabled": False}}) as (client, address, _):
        first = client.responses.create(model="up/m", input="one")
        body = {"model": "up/m", "input": "two", "previous_response_id": first.id}
        assert call(address, "/v1/responses", body).json["error"]["code"] == "unsupported_field"


def test_another_keys_ids_are_unknown_ids(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    secrets = {name: add_key(keys, name)[1] for name in ("ada", "bob")}
    with served("chat", {"server": {"keys_file": str(keys)}}) as (_, address, vendor):
        ada = openai.OpenAI(base_url=f"{address}/v1", api_key=secrets["ada"], max_retries=0)
        bob = openai.OpenAI(base_url=f"{address}/v1", api_key=secrets["bob"], max_retries=0)
        with ada, bob:
            first = ada.responses.create(model="up/m", input="one")
            conversation = ada.conversations.create()
            reference: Any = [{"type": "item_reference", "id": first.output[0].id}]
            (said,) = ada.responses.input_items.list(first.id)
            own: Any = [{"type": "item_reference", "id": said.id}]
            for attempt in (
                lambda: bob.responses.create(model="up/m", input="x", previous_response_id=first.id),
                lambda: bob.responses.create(model="up/m", input=reference),
                lambda: bob.responses.create(model="up/m", input=own),
                lambda: bob.responses.create(model="up/m", input="x", conversation=conversation.id),
                lambda: bob.responses.retrieve(first.id),
                lambda: bob.responses.delete(first.id),
                lambda: bob.responses.input_items.list(first.id),
                lambda: bob.conversations.retrieve(conversation.id),
                lambda: bob.conversations.items.list(conversation.id),
                lambda: bob.conversations.delete(conversation.id),
            ):
                with pytest.raises(UNKNOWN_IDS):
                    attempt()
            assert len(vendor.requests) == 1
            assert ada.responses.create(model="up/m", input=own).output_text
            assert ada.responses.create(model="up/m", input="x", previous_response_id=first.id).output_text


def test_a_stored_response_can_be_read_and_its_input_listed() -> None:
    with served("anthropic") as (client, _, _):
        first = client.responses.create(model="up/m", input="one", tools=[TOOL])
        second = client.responses.create(
            model="up/m", input=results(first), tools=[TOOL], previous_response_id=first.id
        )
        found = client.responses.retrieve(second.id)
        items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
        page = client.responses.input_items.list(second.id, limit=2)
        with pytest.raises(openai.BadRequestError):
            client.responses.cancel(second.id)
    assert found.to_dict() == second.to_dict()
    assert found.previous_response_id == first.id
    assert [item.type for item in items] == ["message", "message", "function_call", "function_call_output"]
    assert [item.id for item in page.data] == [items[3].id, items[2].id]
    assert page.has_more


def test_a_callers_own_item_can_be_referred_to() -> None:
    with served("chat") as (client, _, vendor):
        named: Any = [{"type": "message", "id": "msg_mine", "role": "user", "content": "remember Oslo"}]
        client.responses.create(model="up/m", input=named)
        reference: Any = [{"type": "item_reference", "id": "msg_mine"}]
        client.responses.create(model="up/m", input=reference)
    assert "remember Oslo" in vendor.requests[1].body.decode()


def test_an_item_with_an_id_that_was_used_before_changes_no_earlier_conversation() -> None:
    def said(text: str) -> Any:
        return [{"type": "message", "id": "msg_1", "role": "user", "content": text}]

    with served("chat") as (client, _, vendor):
        first = client.responses.create(model="up/m", input=said("left"))
        client.responses.create(model="up/m", input=said("right"))
        client.responses.create(model="up/m", input="more", previous_response_id=first.id)
    assert "left" in vendor.requests[2].body.decode()
    assert "right" not in vendor.requests[2].body.decode()


def test_a_conversation_that_grows_beyond_a_request_is_refused_before_anything_is_sent() -> None:
    with served("chat", {"server": {"max_body_bytes": 4096}}) as (client, address, vendor):
        first = client.responses.create(model="up/m", input="x" * 3000)
        longer = {"model": "up/m", "input": "y" * 3000, "previous_response_id": first.id}
        item = first.output[0].id
        bomb = {"model": "up/m", "input": [{"id": item}] * 100}
        replies = [call(address, "/v1/responses", body) for body in (longer, bomb)]
        asked = len(vendor.requests)
    assert [reply.status for reply in replies] == [413, 413]
    assert asked == 1


def test_previous_response_and_conversation_exclude_each_other() -> None:
    with served("chat") as (client, address, _):
        first = client.responses.create(model="up/m", input="one")
        conversation = client.conversations.create()
        body = {"model": "up/m", "input": "x", "previous_response_id": first.id, "conversation": conversation.id}
        assert call(address, "/v1/responses", body).status == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_grows_with_every_response(stream: bool) -> None:
    with served("chat") as (client, _, vendor):
        opening: Any = [{"type": "message", "role": "user", "content": "zero"}]
        made = client.conversations.create(items=opening, metadata={"topic": "weather"})
        first = ask(client, stream=stream, input="one", conversation=made.id)
        ask(client, stream=stream, input="two", conversation=made.id)
        ask(client, stream=stream, input="aside", conversation=made.id, store=False)
        items = client.conversations.items.list(made.id, order="asc").data
        client.conversations.items.delete(items[0].id, conversation_id=made.id)  # type: ignore[arg-type]
        ask(client, stream=stream, input="three", conversation=made.id)
        assert client.conversations.retrieve(made.id).metadata == {"topic": "weather"}
        assert client.conversations.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(made.id)
    said = [[turn["content"] for turn in each.json()["messages"] if turn["role"] == "user"] for each in vendor.requests]
    assert first.to_dict()["conversation"] == {"id": made.id}
    assert [item.role for item in items] == ["user", "user", "assistant", "user", "assistant"]  # type: ignore[union-attr]
    assert said[-1] == ["one", "two", "three"]


def test_an_answer_of_another_vendor_is_continued_by_a_vendor_that_stores_responses() -> None:
    keeper = Keeper()
    forecaster = Forecaster("anthropic")
    with (
        keeper.vendor as stateful,
        forecaster.vendor,
        proxied({"up": forecaster.provider(), "gpu": keeping(stateful)}, {"default_model": "up/m"}) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
    ):
        first = client.responses.create(model="up/m", input="one", tools=[TOOL])
        second = client.responses.create(model="gpu/m", input=results(first), previous_response_id=first.id)
        client.responses.create(model="gpu/m", input="more", previous_response_id=second.id)
        third = call(address, "/v1/responses", {"model": "up/m", "input": "x", "previous_response_id": second.id})
    sent = [each.json() for each in stateful.requests]
    assert [item.get("type", "message") for item in sent[0]["input"]] == [
        "message", "message", "function_call", "function_call_output",
    ]  # fmt: skip
    assert not any("id" in item for item in sent[0]["input"])
    assert sent[1]["previous_response_id"]
    assert third.status == 400


def test_what_is_stored_survives_in_the_shared_store(tmp_path: Path) -> None:
    with running_redis() as redis:
        for settings in ({"redis": {"url": redis.url}}, {"stored_responses": {"file": str(tmp_path / "kept.sqlite")}}):
            with served("chat", settings) as (client, _, _):
                first = client.responses.create(model="up/m", input="one")
            with served("chat", settings) as (client, _, vendor):
                client.responses.create(model="up/m", input="two", previous_response_id=first.id)
                client.responses.delete(first.id)
                with pytest.raises(openai.NotFoundError):
                    client.responses.retrieve(first.id)
            assert "one" in vendor.requests[0].body.decode()


def test_a_cached_answer_is_stored_as_well() -> None:
    shape: Any = {"format": {"type": "json_schema", "name": "p", "schema": PLACE, "strict": True}}
    with FakeVendor(['{"city": "Oslo"}']) as vendor:
        provider = HttpProvider("openai-compatible", base_url=vendor.base_url, api_key="k")
        with (
            proxied({"up": provider}, {"cache": {"enabled": True}}) as address,
            openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
        ):
            for stream in (False, True):
                responses = [ask(client, stream=stream, input="hi", text=shape) for _ in range(2)]
                assert responses[0].id != responses[1].id
                ask(client, stream=stream, input="more", text=shape, previous_response_id=responses[1].id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", VENDORS)
def test_a_loop_that_stores_nothing_and_sends_all_items_runs_on_any_vendor(name: str, stream: bool) -> None:
    """As Codex does it: the ids of calls must differ, though servers without such ids count them anew each time."""
    items: list[Any] = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}]
    fields: Any = {"store": False, "include": ["reasoning.encrypted_content"], "tools": [TOOL], "tool_choice": "auto"}
    with served(name) as (client, _, vendor):
        for _ in range(STEPS + 1):
            response = ask(client, stream=stream, input=list(items), instructions="Be brief.", **fields)
            items += [item.to_dict() for item in response.output]
            for item in items:
                item.pop("parsed_arguments", None)
            items += results(response)
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    assert response.output_text == "3 results"
    assert len(set(calls)) == STEPS
    assert len(vendor.requests) == STEPS + 1


def test_an_item_that_is_nested_too_deeply_is_a_request_error() -> None:
    deep: Any = "x"
    for _ in range(260):
        deep = [deep]
    with served("chat") as (_, address, vendor):
        body = {"model": "up/m", "input": [{"type": "message", "role": "user", "content": "hi", "extra": deep}]}
        assert call(address, "/v1/responses", body).status == 400
    assert vendor.requests == []


def test_a_large_conversation_goes_on() -> None:
    with served("chat") as (client, _, vendor):
        first = client.responses.create(model="up/m", input="x" * 2_000_000)
        client.responses.create(model="up/m", input="more", previous_response_id=first.id)
    assert len(vendor.requests[1].body) > 2_000_000
