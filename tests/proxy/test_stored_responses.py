"""Responses with state: marked ids find the vendor that keeps them, and never another key's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.calls.resources import ResponseMarks, mark, unmark
from slipform.ir import ModelResponse, ToolCall
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import Answer, FakeVendor, Raw, Received
from tests.conftest import PERSON
from tests.proxy.account import KEY, Account, answered
from tests.proxy.proxying import call, proxied

ADA = '{"name":"Ada","age":36}'
WHERE: Any = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "far": {"type": "integer"}},
    "required": ["at", "far"],
}
FORMAT: Any = {"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": True}}

UNKNOWN_IDS = (openai.NotFoundError, openai.BadRequestError)
"""An unknown `previous_response_id` is a bad request, as at OpenAI; any other id is not found."""


class Keeper(Account):
    """A vendor that speaks Responses and keeps them: the answer is the number of turns before it, or the next text."""

    def __init__(self, texts: list[str] | None = None) -> None:
        super().__init__()
        self.texts = list(texts or [])
        self.other = self._respond

    def _respond(self, received: Received) -> Raw | None:
        if received.method != "POST" or received.path not in ("/v1/responses", "/v1/responses/compact"):
            return None
        asked = received.json()
        before = asked.get("previous_response_id")
        if before is not None and before not in self.kept:
            return answered({"error": {"message": f"No response {before}", "type": "invalid_request_error"}}, 404)
        turns = 1 + (self.kept[before]["turns"] if before else 0)
        text = self.texts.pop(0) if self.texts else f"turn {turns}"
        made = self.make("response", turns=turns, status="completed", model="m", previous_response_id=before)
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"id": f"msg-{made['id']}", "type": "message", "role": "assistant", "status": "completed"}
        made |= {"output": [{**item, "content": content}], "usage": {"input_tokens": 3, "output_tokens": 2}}
        if not asked.get("stream"):
            return answered(made)
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        events: list[Any] = [
            {"type": "response.created", "response": {**made, "output": [], "status": "in_progress"}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
            {"type": "response.content_part.added", **place, "part": {**content[0], "text": ""}},
            *[{"type": "response.output_text.delta", **place, "delta": letter} for letter in text],
            {"type": "response.output_item.done", "output_index": 0, "item": {**item, "content": content}},
            {"type": "response.completed", "response": made},
        ]
        pieces = [b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in events]
        whole = b"".join(pieces)
        cut = tuple(whole[at : at + 37] for at in range(0, len(whole), 37))  # events are split anywhere
        return Raw(cut, 200, {"content-type": "text/event-stream"}, chunked=True)


def keeping(vendor: FakeVendor) -> HttpProvider:
    return HttpProvider("openai-responses", base_url=vendor.base_url, api_key=KEY, retries=RetryPolicy(attempts=0))


@contextmanager
def kept(keeper: Keeper, settings: Any = None) -> Iterator[tuple[openai.OpenAI, str]]:
    with (
        keeper.vendor as vendor,
        FakeVendor(["other"]) as other,
        proxied(
            {"my_gpu": keeping(vendor), "chat": HttpProvider("openai", base_url=other.base_url, api_key=KEY)},
            {"default_model": "my_gpu/m", **(settings or {})},
        ) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client, address


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shaped", [False, True])
def test_a_conversation_goes_on_where_the_vendor_keeps_it(stream: bool, shaped: bool) -> None:
    keeper = Keeper(['{"name":"Ada"}', ADA, ADA] if shaped else None)
    fields: Any = {"text": FORMAT} if shaped else {}

    def ask(client: openai.OpenAI, **more: Any) -> Any:
        if not stream:
            return client.responses.create(model="my_gpu/m", input="hi", **fields, **more)
        with client.responses.stream(model="my_gpu/m", input="hi", **fields, **more) as events:
            return list(events)[-1].response  # type: ignore[union-attr]

    with kept(keeper) as (client, _):
        first = ask(client)
        second = ask(client, previous_response_id=first.id)
        found = client.responses.retrieve(second.id)
        items = client.responses.input_items.list(second.id)
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)
    provider, identity = unmark(second.id)
    assert provider == "my_gpu"
    assert keeper.kept[identity]["turns"] == 2
    assert second.previous_response_id == first.id
    assert found.id == second.id
    assert found.previous_response_id == first.id
    assert list(items) == []
    if shaped:
        assert json.loads(second.output_text if not stream else second.output[0].content[0].text)["age"] == 36
        assert keeper.kept[identity]["output"][0]["content"][0]["text"] == ADA, "the attempt that fitted"


def test_a_shaped_stream_from_a_vendor_that_keeps_responses_is_live() -> None:
    keeper = Keeper([ADA])
    with kept(keeper) as (client, _), client.responses.stream(model="my_gpu/m", input="hi", text=FORMAT) as stream:
        events: list[Any] = list(stream)
    assert len([event for event in events if event.type == "response.output_text.delta"]) > 5
    assert keeper.vendor.requests[0].json()["stream"] is True


def test_a_stream_has_one_id_and_what_names_it_later_reaches_the_answer_that_is_kept() -> None:
    keeper = Keeper(['{"name":"Ada","age":[1]}', ADA, ADA, ADA, "turn"])
    with kept(keeper) as (client, _):
        with client.responses.stream(model="my_gpu/m", input="hi", text=FORMAT) as stream:
            events: list[Any] = list(stream)
        ids = {event.response.id for event in events if hasattr(event, "response")}
        (shown,) = ids
        done: Any = events[-1].response
        assert json.loads(done.output[0].content[0].text) == json.loads(ADA)
        wrong, right = keeper.kept
        client.responses.create(model="my_gpu/m", input="more", text=FORMAT, previous_response_id=shown)
        reference: Any = [{"type": "item_reference", "id": done.output[0].id}, {"role": "user", "content": "and?"}]
        client.responses.create(model="my_gpu/m", input=reference, text=FORMAT)
        found = client.responses.retrieve(shown)
        client.responses.delete(shown)
    sent = [request.json() for request in keeper.vendor.requests if request.method == "POST"]
    assert unmark(shown)[1] == wrong
    assert sent[2]["previous_response_id"] == right
    assert sent[3]["input"][0]["id"] == f"msg-{right}"
    assert (found.id, found.output_text) == (shown, ADA)
    assert right not in keeper.kept


def test_the_result_of_a_call_that_was_asked_for_again_names_the_call_that_is_kept() -> None:
    """The caller saw the id of the first attempt's call."""
    tool: Any = {"type": "function", "name": "look", "parameters": WHERE, "strict": False}

    def respond(received: Received) -> Answer:
        number = len(vendor.requests)
        place = '{"at": "the sky", "far": [1]}' if number == 1 else '{"at": "the sky", "far": 1}'
        call = ToolCall(f"call_{number}", "look", place)
        del received
        return Answer(ModelResponse(tool_calls=(call,), id=f"resp_{number}", finish="tool_calls"))

    vendor = FakeVendor(respond, api="openai-responses")
    with (
        vendor,
        proxied({"up": keeping(vendor)}, {"default_model": "up/m"}) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
    ):
        with client.responses.stream(model="up/m", input="hi", tools=[tool]) as stream:
            done: Any = list(stream)[-1].response  # type: ignore[union-attr]
        call: Any = done.output[0]
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "blue"}]
        client.responses.create(model="up/m", input=result, tools=[tool], previous_response_id=done.id)
    sent = vendor.requests[-1].json()
    assert json.loads(call.arguments) == {"at": "the sky", "far": 1}
    assert (len(vendor.requests), call.call_id) == (3, "call_1")
    assert (sent["previous_response_id"], sent["input"][0]["call_id"]) == ("resp_2", "call_2")


def test_another_provider_cannot_go_on_with_it() -> None:
    with kept(Keeper()) as (client, _):
        first = client.responses.create(model="my_gpu/m", input="hi")
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(model="chat/m", input="hi", previous_response_id=first.id)


def test_an_answer_that_nobody_keeps_says_so() -> None:
    with kept(Keeper()) as (client, address):
        said = client.responses.create(model="chat/m", input="hi", store=False)
        assert said.to_dict()["store"] is False
        assert unmark(said.id)[0] is None
        assert call(address, f"/v1/responses/{said.id}").status == 404
    with FakeVendor(["x"]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key=KEY)
        with proxied({"up": provider}) as address:
            reply = call(address, "/v1/responses/resp_1")
    assert (reply.status, reply.json["error"]["code"]) == (404, "response_not_stored")


def test_conversations_are_forwarded_to_who_keeps_them() -> None:
    keeper = Keeper()
    with kept(keeper) as (client, _):
        made = client.conversations.create()
        assert client.conversations.retrieve(made.id).id == made.id
        client.responses.create(model="my_gpu/m", input="hi", conversation=made.id)
        assert client.conversations.delete(made.id).deleted


def test_no_key_sees_or_goes_on_with_anothers(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    secrets = {name: add_key(keys, name)[1] for name in ("ada", "bob")}
    keeper = Keeper()
    with kept(keeper, {"server": {"keys_file": str(keys)}}) as (_, address):
        ada = openai.OpenAI(base_url=f"{address}/v1", api_key=secrets["ada"], max_retries=0)
        bob = openai.OpenAI(base_url=f"{address}/v1", api_key=secrets["bob"], max_retries=0)
        with ada, bob:
            first = ada.responses.create(model="my_gpu/m", input="hi")
            conversation = ada.conversations.create()
            vendors_own = unmark(first.id)[1]
            reference: Any = [{"type": "item_reference", "id": f"msg-{vendors_own}"}]
            for identity in (first.id, vendors_own):
                for ask in (
                    lambda: bob.responses.retrieve(identity),  # noqa: B023
                    lambda: bob.responses.delete(identity),  # noqa: B023
                    lambda: bob.responses.cancel(identity),  # noqa: B023
                    lambda: bob.responses.input_items.list(identity),  # noqa: B023
                    lambda: bob.responses.create(model="my_gpu/m", input="x", previous_response_id=identity),  # noqa: B023
                    lambda: bob.responses.create(model="my_gpu/m", input=reference),
                    lambda: bob.responses.create(model="my_gpu/m", input="x", conversation=conversation.id),
                    lambda: bob.conversations.retrieve(conversation.id),
                ):
                    with pytest.raises(UNKNOWN_IDS):
                        ask()
            assert ada.responses.retrieve(first.id).id == first.id
            assert ada.responses.create(model="my_gpu/m", input=reference).output_text == "turn 1"
            second = ada.responses.create(model="my_gpu/m", input="x", previous_response_id=first.id)
            assert second.output_text == "turn 2"
    assert len([each for each in keeper.kept.values() if each["object"] == "response"]) == 3


def test_marks_change_nothing_but_the_ids() -> None:
    marks = ResponseMarks("up", {"resp_0": mark("up", "resp_0")})
    text = 'say \\"resp_1\\" and "response": {"id"'
    event = {"type": "response.completed", "response": {"id": "resp_1", "previous_response_id": "resp_0"}}
    lines = [
        b"data: " + json.dumps({"type": "response.output_text.delta", "delta": text}).encode() + b"\n\n",
        b"data: " + json.dumps(event).encode() + b"\n\n",
        b": comment\n\n",
    ]
    whole = b"".join(lines)
    expected = whole.replace(b'"resp_1"', b'"%b"' % mark("up", "resp_1").encode(), 1)
    expected = b"".join([lines[0], lines[1].replace(b'"resp_1"', f'"{mark("up", "resp_1")}"'.encode()), lines[2]])
    expected = expected.replace(b'"resp_0"', f'"{mark("up", "resp_0")}"'.encode())
    for size in (1, 7, 1000):
        fresh = ResponseMarks("up", {"resp_0": mark("up", "resp_0")})
        got = b"".join(fresh.feed(whole[at : at + size]) for at in range(0, len(whole), size)) + fresh.feed(b"")
        assert got == expected
    assert marks.whole(b"no JSON") == b"no JSON"


def test_the_agents_sdk_goes_on_by_previous_response_id() -> None:
    from tests.peers.test_peers import HERE, seen

    python = os.environ.get("SLIPFORM_AGENTS") or str(Path(sys.prefix) / "agents" / "bin" / "python")
    if not Path(python).exists():
        pytest.skip("the Agents SDK is not installed here: `make test` installs it")
    keeper = Keeper(["turn 1", "turn 2", "turn 3", '{"name":"Ada"}', ADA])
    with kept(keeper) as (_, address):
        got = seen(python, str(HERE / "agents_client.py"), address, "my_gpu/m")
    assert got["outputs"] == ["turn 1", "turn 2", "turn 3", {"name": "Ada", "age": 36}]
    provider, identity = unmark(got["ids"][-1])
    assert provider == "my_gpu"
    assert keeper.kept[identity]["turns"] == 4


def ids_in(events: list[Any]) -> set[str]:
    """The ids of messages in the events of a stream, wherever they are."""
    items = [event.item.id for event in events if hasattr(event, "item")]
    items += [event.item_id for event in events if hasattr(event, "item_id")]
    return {*items, *[item.id for item in events[-1].response.output]}


def test_a_streamed_message_has_the_id_that_its_vendor_stores() -> None:
    keeper = Keeper([ADA, ADA])
    with kept(keeper) as (client, _):
        with client.responses.stream(model="my_gpu/m", input="hi", text=FORMAT) as stream:
            events: list[Any] = list(stream)
        (response,) = keeper.kept
        assert ids_in(events) == {f"msg-{response}"}
        reference: Any = [{"type": "item_reference", "id": f"msg-{response}"}, {"role": "user", "content": "and?"}]
        client.responses.create(model="my_gpu/m", input=reference, text=FORMAT)
    assert keeper.vendor.requests[-1].json()["input"][0]["id"] == f"msg-{response}"


def test_a_message_of_an_attempt_of_which_nothing_was_shown_has_no_part_in_the_stream() -> None:
    keeper = Keeper(["no JSON", ADA])
    with kept(keeper) as (client, _):
        with client.responses.stream(model="my_gpu/m", input="hi", text=FORMAT) as stream:
            events: list[Any] = list(stream)
        _, right = keeper.kept
        assert ids_in(events) == {f"msg-{right}"}


def test_a_message_that_a_later_attempt_ends_is_known_by_both_ids() -> None:
    keeper = Keeper(['{"name":"Ada","age":[1]}', ADA, ADA])
    with kept(keeper) as (client, _):
        with client.responses.stream(model="my_gpu/m", input="hi", text=FORMAT) as stream:
            events: list[Any] = list(stream)
        wrong, right = keeper.kept
        assert ids_in(events) == {f"msg-{wrong}"}
        reference: Any = [{"type": "item_reference", "id": f"msg-{wrong}"}, {"role": "user", "content": "and?"}]
        client.responses.create(model="my_gpu/m", input=reference, text=FORMAT)
    assert keeper.vendor.requests[-1].json()["input"][0]["id"] == f"msg-{right}"


def test_text_beside_calls_has_the_id_that_its_vendor_stores() -> None:
    tool: Any = {"type": "function", "name": "look", "parameters": WHERE, "strict": False}
    keeper = Keeper(["Let me look."])
    with (
        kept(keeper) as (client, _),
        client.responses.stream(model="my_gpu/m", input="hi", tools=[tool]) as stream,
    ):
        events: list[Any] = list(stream)
    (response,) = keeper.kept
    assert ids_in(events) == {f"msg-{response}"}
