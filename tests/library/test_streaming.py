"""Streams of scripted models: partial values, deltas, items, restarts, and the same errors as `ask`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from slipform import AsyncClient, Budget, Client, Options, Partial, UpstreamError
from slipform.codecs import Capabilities
from slipform.errors import EnforcementError, SchemaViolationError, TruncatedError
from slipform.ir import RESERVED_TOOL, Lift, ModelResponse, ToolCall, Usage
from slipform.library.partial import UNSET, so_far
from slipform.library.stream_session import Delta
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.testing import FakeModel, FakeVendor, Interrupted, Turn, cut_stream

TWICE = Options(budget=Budget(attempts=2))


class Line(BaseModel):
    name: str
    count: int


class Order(BaseModel):
    number: str
    lines: list[Line]
    note: str | None = None


ORDER: dict[str, Any] = {
    "number": "A-1",
    "lines": [{"name": "nut", "count": 3}, {"name": "bolt", "count": 4}],
    "note": None,
}
TEXT = json.dumps(ORDER)


def client(*script: Turn, options: Options | None = None, **capabilities: Any) -> Client:
    model = FakeModel(list(script), capabilities=Capabilities(**capabilities))
    return Client("fake/m", router=Router({"fake": model}), options=options)


def async_client(*script: Turn, options: Options | None = None) -> AsyncClient:
    return AsyncClient("fake/m", router=Router({"fake": FakeModel(list(script))}), options=options)


def applied(value: Any, delta: Delta) -> Any:
    """A value with one delta applied."""
    if delta.kind == "restart":
        return UNSET
    if not delta.path:
        return value + delta.value if delta.kind == "text" else delta.value
    holder = value
    for step in delta.path[:-1]:
        holder = holder[step]
    last: Any = delta.path[-1]
    if delta.kind == "text":
        holder[last] += delta.value
    elif isinstance(holder, list):
        holder.append(delta.value)
    else:
        holder[last] = delta.value
    return value


@pytest.mark.covers("S3-11", "S3-16", "S3-23")
def test_the_first_partial_comes_with_the_first_field_and_the_result_is_the_type_itself() -> None:
    with client(TEXT).stream(Order, "x") as stream:
        partials = list(stream)
        result = stream.result
    first = next(partial for partial in partials if partial.number is not UNSET)
    assert "A-1".startswith(first.number)
    assert first.lines is UNSET
    assert type(result.value) is Order
    assert result.value == Order(**ORDER)
    assert len(result.report.attempts) == 1
    lines = [each.lines[0] for each in partials if each.lines and len(each.lines) == 2]
    assert len(lines) > 3
    assert all(line is lines[0] for line in lines)


def test_deltas_make_up_the_whole_answer() -> None:
    value: Any = UNSET
    with client(f"Sure! Here you are:\n```json\n{TEXT}\n```").stream(Order, "x") as stream:
        for delta in stream.deltas():
            value = applied(value, delta)
    assert value == ORDER


def test_items_come_one_by_one_as_soon_as_each_is_finished() -> None:
    text = json.dumps(ORDER["lines"])
    with client(text).stream(list[Line], "x") as stream:
        first = next(iter(stream.items()))
        assert first == Line(name="nut", count=3)
        assert stream.attempt == 1
        stream.close()
        with pytest.raises(EnforcementError, match="closed before"):
            _ = stream.result
    with client(text).stream(list[Line], "x") as stream:
        assert list(stream.items()) == [Line(name="nut", count=3), Line(name="bolt", count=4)]


@pytest.mark.covers("S3-66", "C10", "C11")
def test_a_wrong_answer_starts_anew_and_says_so() -> None:
    with client('{"number": "A-1"}', TEXT, options=TWICE).stream(Order, "x") as stream:
        kinds = [(delta.kind, stream.attempt) for delta in stream.deltas()]
        assert stream.result.value == Order(**ORDER)
        assert [each.outcome for each in stream.result.report.attempts] == ["schema_violation", "ok"]
    assert kinds.count(("restart", 2)) == 1
    with client("no JSON", TEXT, options=TWICE).stream(Order, "x") as stream:
        assert [so_far(partial) for partial in stream][-1] == ORDER


def test_items_given_out_are_not_given_again_after_a_restart() -> None:
    good, bad = {"name": "a", "count": 1}, {"name": "b"}
    script = (json.dumps([good, bad]), json.dumps([good, {"name": "b", "count": 2}]))
    with client(*script, options=TWICE).stream(list[Line], "x") as stream:
        assert list(stream.items()) == [Line(name="a", count=1), Line(name="b", count=2)]


def test_items_that_change_after_they_were_given_out_are_an_error() -> None:
    script = (json.dumps([{"name": "a", "count": 1}, {}]), json.dumps([{"name": "z", "count": 1}]))
    with (
        client(*script, options=TWICE).stream(list[Line], "x") as stream,
        pytest.raises(EnforcementError, match="Item 0 was already returned"),
    ):
        list(stream.items())


@pytest.mark.covers("C01", "S0-64", "S3-53", "S3-55")
@pytest.mark.parametrize(
    "answer",
    [
        '{"number": 1}',
        "no JSON at all",
        "",
        ModelResponse(text='{"number": "A', finish="length"),
        ModelResponse(refusal="I will not"),
    ],
)
def test_a_final_failure_raises_what_ask_raises(answer: Turn) -> None:
    with pytest.raises(EnforcementError) as asked:
        client(answer).ask(Order, "x")
    with client(answer).stream(Order, "x") as stream:
        with pytest.raises(type(asked.value)) as streamed:
            list(stream)
        assert str(streamed.value) == str(asked.value)
        with pytest.raises(type(asked.value)):
            _ = stream.result


@pytest.mark.covers("S3-50", "S3-51")
def test_an_upstream_error_ends_the_stream() -> None:
    with (
        client(Interrupted(TEXT, UpstreamError("gone"), after=3)).stream(Order, "x") as stream,
        pytest.raises(UpstreamError, match="gone") as caught,
    ):
        list(stream)
    assert caught.value.report is not None


@pytest.mark.covers("S3-33", "S3-34", "S3-64")
def test_the_reserved_tool_streams_like_text() -> None:
    response = ModelResponse(text="Let me see.", tool_calls=(ToolCall("1", RESERVED_TOOL, TEXT),), finish="tool_calls")
    with client(response, forced_tool=True).stream(Order, "x") as stream:
        assert len(list(stream)) > 10
        assert stream.result.value == Order(**ORDER)


class Careful(BaseModel):
    age: int

    @field_validator("age")
    @classmethod
    def plausible(cls, age: int) -> int:
        if age > 150:
            raise ValueError("nobody is that old")
        return age


def test_the_validators_of_a_type_are_violations_that_are_asked_again() -> None:
    script = ('{"age": 500}', '{"age": 50}')
    assert client(*script, options=TWICE).ask(Careful, "x").age == 50
    with client(*script, options=TWICE).stream(Careful, "x") as stream:
        assert stream.result.value.age == 50
    with pytest.raises(SchemaViolationError, match="nobody is that old"):
        client('{"age": 500}').ask(Careful, "x")


def test_usage_is_summed_over_attempts() -> None:
    spent = Usage(input=5, output=2)
    script = (ModelResponse(text="{}", usage=spent), ModelResponse(text=TEXT, usage=spent))
    with client(*script, options=TWICE).stream(Order, "x") as stream:
        assert stream.result.usage.input == 10


def test_a_raw_schema_streams_plain_values() -> None:
    schema = {"type": "object", "properties": {"number": {"type": "string"}}}
    with client(TEXT).stream(schema, "x") as stream:
        assert {each["number"] for each in stream} >= {UNSET, "A-1"}
        assert stream.result.value == ORDER


@pytest.mark.covers("S3-06")
def test_a_lowered_answer_is_shown_in_the_shape_that_was_asked_for() -> None:
    with (
        FakeVendor([json.dumps({"value": [{"name": "nut", "count": 3}, {"name": "bolt", "count": 4}]})]) as vendor,
        HttpProvider("openai", base_url=vendor.base_url, api_key="any") as provider,
    ):
        asking = Client("openai/gpt-5", router=Router({"openai": provider}))
        with asking.stream(list[Line], "x") as stream:
            partials = list(stream)
            assert stream.result.value == [Line(name="nut", count=3), Line(name="bolt", count=4)]
        value: Any = UNSET
        with asking.stream(list[Line], "x") as stream:
            for delta in stream.deltas():
                value = applied(value, delta)
        with asking.stream(list[Line], "x") as stream:
            assert [item.name for item in stream.items()] == ["nut", "bolt"]
    assert value == ORDER["lines"]
    first = [each[0] for each in partials if len(each) == 2]
    assert first[0] == Line(name="nut", count=3)
    assert all(line is first[0] for line in first)
    assert any(isinstance(each[1], Partial) and each[1].name == "bo" for each in partials if len(each) == 2)


@pytest.mark.parametrize("answer", ['{"value": ["nut", "bolt"]}', '["nut", "bolt"]'], ids=["wrapped", "bare"])
def test_a_list_from_a_json_mode_that_only_has_objects_is_shown_while_it_grows(answer: str) -> None:
    with (
        FakeVendor([answer] * 2) as vendor,
        HttpProvider("deepseek", base_url=vendor.base_url, api_key="any") as provider,
    ):
        asking = Client("deepseek/deepseek-chat", router=Router({"deepseek": provider}))
        with asking.stream(list[str], "x") as stream:
            shown = [so_far(each) for each in stream]
        with asking.stream(list[str], "x") as stream:
            deltas = [(each.path, each.kind) for each in stream.deltas()]
    assert ["nut"] in shown
    assert shown[-1] == ["nut", "bolt"]
    assert deltas[0] == ((), "open")
    assert {path for path, _ in deltas[1:]} == {(0,), (1,)}


def test_what_can_only_be_lifted_whole_is_in_the_result_alone() -> None:
    lift = Lift({}, lambda value: value["value"])
    with client(ModelResponse(text='{"value": ["nut", "bolt"]}', lift=lift)).stream(list[str], "x") as stream:
        assert list(stream) == []
        assert stream.result.value == ["nut", "bolt"]


def test_leaving_a_stream_stops_the_model() -> None:
    with (
        FakeVendor([TEXT * 200]) as vendor,
        HttpProvider("openai", base_url=vendor.base_url, api_key="any") as provider,
    ):
        with Client("openai/gpt-5", router=Router({"openai": provider})).stream(Order, "x") as stream:
            next(iter(stream))
        assert vendor.wait_until(lambda each: each.open_connections == 0)


def test_items_of_what_is_no_list_are_refused() -> None:
    with client(TEXT).stream(Order, "x") as stream, pytest.raises(TypeError, match="stream of Order"):
        next(stream.items())  # type: ignore[misc]  # which is just what mypy says


def test_a_stream_that_breaks_off_stays_an_error() -> None:
    with (
        FakeVendor([cut_stream(TEXT, after=5, ending="clean")]) as vendor,
        HttpProvider("openai", base_url=vendor.base_url, api_key="any") as provider,
        Client("openai/gpt-5", router=Router({"openai": provider})).stream(Order, "x") as stream,
    ):
        with pytest.raises((TruncatedError, UpstreamError)) as caught:
            list(stream)
        with pytest.raises(type(caught.value)):
            _ = stream.result


async def test_leaving_an_async_stream_stops_the_model() -> None:
    with FakeVendor([TEXT * 200]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="any")
        async with AsyncClient("openai/gpt-5", router=Router({"openai": provider})) as asking:
            async with asking.stream(Order, "x") as stream:
                async for _ in stream:
                    break
            assert await asyncio.to_thread(vendor.wait_until, lambda each: each.open_connections == 0)


async def test_the_async_stream_does_the_same() -> None:
    async with async_client("{}", TEXT, options=TWICE).stream(Order, "x") as stream:
        partials = [partial async for partial in stream]
        result = await stream.result()
    assert result.value == Order(**ORDER)
    assert partials[-1].lines == result.value.lines
    async with async_client(json.dumps(ORDER["lines"])).stream(list[Line], "x") as lines:
        assert [item.name async for item in lines.items()] == ["nut", "bolt"]
    async with async_client("{}", TEXT, options=TWICE).stream(Order, "x") as stream:
        assert "restart" in [delta.kind async for delta in stream.deltas()]
    async with async_client(ModelResponse(text="{", finish="length")).stream(Order, "x") as stream:
        with pytest.raises(TruncatedError):
            await stream.result()


class _Line(BaseModel):
    sku: str
    qty: int


class _Invoice(BaseModel, frozen=True):
    name: str
    items: list[_Line]


_INVOICE = '{"name": "x", "items": [{"sku": "a", "qty": 1}, {"sku": "b", "qty": 2}, {"sku": "c", "qty": 3}]}'


@pytest.mark.covers("S3-21", "S3-23", "S3-46")
@pytest.mark.parametrize("wanted", [_Invoice, Schema.of(_Invoice).document])
def test_the_results_objects_are_those_that_were_streamed(wanted: Any) -> None:
    client = Client("fake/m", router=Router({"fake": FakeModel([_INVOICE])}))
    stream, first = client.stream(wanted, "Which?"), None
    for partial in stream:
        lines: Any = partial["items"]
        if lines and len(lines) > 1:
            first = first or lines[0]
            assert lines[0] is first
    value: Any = stream.result.value
    assert (value["items"] if isinstance(value, dict) else value.items)[0] is first


@pytest.mark.covers("S3-23")
def test_streamed_items_are_the_results_items() -> None:
    client = Client("fake/m", router=Router({"fake": FakeModel(['[{"sku": "a", "qty": 1}, {"sku": "b", "qty": 2}]'])}))
    stream = client.stream(list[_Line], "Which?")
    items = list(stream.items())
    assert [one is other for one, other in zip(items, stream.result.value, strict=True)] == [True, True]
