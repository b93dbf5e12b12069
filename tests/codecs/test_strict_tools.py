"""A caller's strict tools go through the vendor's dialect, and their arguments come back in the caller's shape."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.codecs import make_codec
from slipform.codecs.answer import lifted_arguments
from slipform.codecs.stream_decoder import LiftedCalls
from slipform.enforce import Budget, Outcome, Plan
from slipform.engine.drive import run_stream_blocking
from slipform.errors import UpstreamError
from slipform.ir import (
    CompletionChunk,
    Lift,
    LossyEncode,
    Message,
    ModelRequest,
    ModelResponse,
    NamedTool,
    Tool,
    ToolCall,
    ToolDelta,
)
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.response import FinishReason
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.schema import OutputStrategy, Schema
from slipform.schema.lowering import lower
from slipform.testing import Answer, FakeVendor, calling
from tests.providers.conftest import QUICK
from tests.schema.lowering_encode import encode
from tests.schema.lowering_linter import lint

BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "pages": {"type": "integer", "minimum": 1, "maximum": 5000},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["title"],
    "additionalProperties": False,
}
TOOL = Tool("add_book", BOOK, strict=True)
ASKED = ModelRequest("m", (Message.user("Add it"),), tools=(TOOL,), tool_choice=NamedTool("add_book"))


def value_of_book() -> st.SearchStrategy[dict[str, Any]]:
    texts = st.text(max_size=20)
    optional = {"pages": st.integers(1, 5000), "tags": st.dictionaries(texts, texts, max_size=3)}
    return st.fixed_dictionaries({"title": texts}, optional=optional)


def cut(text: str, rng: random.Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = rng.randint(1, 12)
        yield text[at : at + size]
        at += size


def encoded(vendor: str, model: str, *tools: Tool, **changes: Any) -> tuple[dict[str, Any], list[Any]]:
    row = load_catalog().vendor(vendor)
    codec = make_codec(row.codec, row.capabilities(model))
    made = codec.encode_request(ASKED.replace(model=model, tools=tools or (TOOL,), **changes), stream=False)
    return json.loads(made.body), [warning for warning in made.warnings if isinstance(warning, LossyEncode)]


def parameters(vendor: str, body: dict[str, Any]) -> dict[str, Any]:
    tool = body["tools"][0] if "tools" in body else body["toolConfig"]["tools"][0]["toolSpec"]
    match vendor:
        case "openai" | "azure":
            return tool["function"]["parameters"]  # type: ignore[no-any-return]
        case "anthropic":
            return tool["input_schema"]  # type: ignore[no-any-return]
        case "gemini":
            return tool["functionDeclarations"][0]["parametersJsonSchema"]  # type: ignore[no-any-return]
        case _:
            return tool["inputSchema"]["json"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("vendor", "model", "dialect"),
    [
        ("openai", "gpt-6-luna", "openai"),
        ("azure", "gpt-6-luna", "azure"),
        ("anthropic", "claude-sonnet-4-5", "anthropic"),
        ("gemini", "gemini-3-pro", "gemini"),
        ("bedrock", "anthropic.claude-sonnet-4-5", "anthropic"),
    ],
)
def test_a_strict_tool_is_sent_as_the_vendor_takes_it(vendor: str, model: str, dialect: str) -> None:
    body, lost = encoded(vendor, model)
    assert lint(parameters(vendor, body), dialect) == []
    dropped = {warning.path for warning in lost if warning.action == "dropped"}
    assert ("tools.add_book.parameters/properties/title/maxLength" in dropped) == (dialect != "openai")
    assert all(warning.path and warning.path.startswith("tools.add_book") for warning in lost)


def test_a_tool_that_is_not_strict_is_sent_as_it_came() -> None:
    body, lost = encoded("anthropic", "claude-sonnet-4-5", dataclasses.replace(TOOL, strict=None))
    assert (parameters("anthropic", body), lost) == (BOOK, [])


def test_strict_is_lost_with_a_warning_where_the_model_has_none() -> None:
    body, lost = encoded("anthropic", "claude-3-haiku")
    assert "strict" not in body["tools"][0]
    assert [warning.path for warning in lost] == ["tools.add_book.strict"]
    assert body["tool_choice"]["name"] == "add_book"


def test_strict_tools_together_keep_within_the_vendors_limits() -> None:
    def tool(at: int, optional: int) -> Tool:
        names = [f"p{number}" for number in range(optional)]
        schema = {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "additionalProperties": False,
        }
        return Tool(f"t{at}", schema, strict=True)

    body, lost = encoded("anthropic", "claude-sonnet-4-5", *(tool(at, 10) for at in range(3)), tool_choice="auto")
    assert ["strict" in each for each in body["tools"]] == [True, True, False]
    assert [warning.path for warning in lost] == ["tools.t2.strict"]
    many, _ = encoded("anthropic", "claude-sonnet-4-5", *(tool(at, 0) for at in range(22)), tool_choice="auto")
    assert sum("strict" in each for each in many["tools"]) == 20


def test_names_that_the_vendor_refuses_are_spelled_otherwise_for_any_tool() -> None:
    """Live 400s: `Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'`, for one bad key of any tool."""
    schema = {"type": "object", "properties": {"filter[id]": {"minimum": 1}, "a": {}}, "required": ["filter[id]"]}
    row = load_catalog().vendor("anthropic")
    codec = make_codec(row.codec, row.capabilities("claude-sonnet-4-5"))
    asked = ASKED.replace(tools=(Tool("find", schema, strict=False),), tool_choice="auto")
    made = codec.encode_request(asked, stream=False)
    sent = json.loads(made.body)["tools"][0]
    assert sent["input_schema"]["properties"] == {"filter_id": {"minimum": 1}, "a": {}}
    assert (sent["input_schema"]["required"], sent["strict"]) == (["filter_id"], False)
    call = {"type": "tool_use", "id": "t", "name": "find", "input": {"filter_id": 3, "a": 1}}
    answer = {"type": "message", "role": "assistant", "content": [call], "stop_reason": "tool_use", "usage": {}}
    response = codec.decode_response(json.dumps(answer).encode(), made)
    assert json.loads(response.tool_calls[0].arguments) == {"filter[id]": 3, "a": 1}


ARGUMENTS = {"title": "Dune", "pages": None, "tags": [{"key": "genre", "value": "novel"}]}
"""As a vendor whose strict mode wants every key gives them."""


@pytest.mark.parametrize("streamed", [False, True])
def test_the_arguments_come_back_in_the_callers_shape(streamed: bool) -> None:
    with FakeVendor([Answer(calling(("add_book", ARGUMENTS), ("other", {"a": None})))]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k-123456", retries=QUICK)
        asked = ASKED.replace(model="gpt-6-luna", tools=(TOOL, Tool("other", {"type": "object"})))
        if streamed:
            reducer = Reducer()
            reducer.start(Snapshot())
            for chunk in provider.stream(asked):
                reducer.push(chunk)
            response = reducer.finish()
        else:
            response = provider.complete(asked)
    found = [(call.name, json.loads(call.arguments)) for call in response.tool_calls]
    assert found == [("add_book", {"title": "Dune", "tags": {"genre": "novel"}}), ("other", {"a": None})]
    assert [json.loads(part.arguments) for part in response.message.tool_calls] == [each for _, each in found]


NOVEL = "a novel about an envoy alone on a cold planet"
TITLE = "The Left Hand of Darkness"
PAIRS = [{"key": "genre", "value": NOVEL}]
BOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("gpt-6-luna", {"title": TITLE, "pages": None, "tags": PAIRS}),
    "anthropic": ("claude-sonnet-4-5", {"tags": PAIRS, "title": TITLE}),
}
"""By vendor, a model and the same book as its strict mode writes it."""
LIFTED_BOOK = {"title": TITLE, "tags": {"genre": NOVEL}}


def released_arguments(name: str, answer: Answer, *answers: Answer) -> tuple[list[str], Outcome]:
    """What an enforced stream releases of the arguments of one call, piece by piece, and the outcome."""
    model, _ = BOOKS[name]
    plan = Plan(None, OutputStrategy.NATIVE, Budget(attempts=2), tools={"add_book": Schema("add_book", BOOK)})
    pieces: list[str] = []
    with FakeVendor([answer, *answers], api=name) as vendor:  # type: ignore[arg-type]
        provider = HttpProvider(name, base_url=vendor.base_url, api_key="k-123456", retries=QUICK)
        for piece in run_stream_blocking(ASKED.replace(model=model), plan, provider.stream, "auto"):
            if isinstance(piece, Outcome):
                outcome = piece
            else:
                pieces += [delta.arguments for delta in piece.tool_calls if delta.arguments]
    return pieces, outcome


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 300])
@pytest.mark.parametrize("name", BOOKS)
def test_the_arguments_of_a_strict_tool_stream_in_the_callers_shape(name: str, size: int) -> None:
    pieces, outcome = released_arguments(name, Answer(calling(("add_book", BOOKS[name][1])), chunk_size=size))
    assert json.loads("".join(pieces)) == LIFTED_BOOK
    assert [json.loads(call.arguments) for call in outcome.response.tool_calls] == [LIFTED_BOOK]
    assert len(pieces) >= len(NOVEL) // size
    assert len("".join(pieces[:-1])) >= 0.9 * len("".join(pieces))


def grown(lift: Lift, pieces: list[str], finish: FinishReason = "tool_calls") -> tuple[list[str], UpstreamError | None]:
    calls = LiftedCalls({"t": lift})
    chunks = [CompletionChunk(tool_calls=(ToolDelta(0, "a", "t", ""),))]
    chunks += [CompletionChunk(tool_calls=(ToolDelta(0, arguments=piece),)) for piece in pieces]
    out = calls.feed([*chunks, CompletionChunk(finish=finish)])
    return [delta.arguments for chunk in out for delta in chunk.tool_calls if delta.arguments], calls.fault


@given(value_of_book(), st.sampled_from(["openai", "anthropic"]), st.randoms(use_true_random=False), st.booleans())
def test_arguments_in_any_pieces_are_those_of_the_whole_call(
    value: Any, dialect: str, rng: random.Random, is_spaced: bool
) -> None:
    lowered = lower(BOOK, dialect, open_objects="auto")
    lift = Lift(lowered.schema, lowered.lift, lowered.plan)
    text = json.dumps(encode(lowered, value), indent=2 if is_spaced else None, ensure_ascii=is_spaced)
    pieces = list(cut(text, rng))
    released, fault = grown(lift, pieces)
    assert fault is None
    assert json.loads("".join(released)) == json.loads(lifted_arguments(text, lift)) == value


def test_what_is_not_in_the_vendors_shape_is_never_released_as_whole_arguments() -> None:
    """Duplicate keys, and arguments that end early, contradict or lack what has been released."""
    lowered = lower(BOOK, "openai", open_objects="auto")
    lift = Lift(lowered.schema, lowered.lift, lowered.plan)
    cases: dict[str, tuple[str, FinishReason, str, bool]] = {
        "a key twice": ('{"title": "a", "title": "b"}', "tool_calls", '{"title":"a"', True),
        "ends in the key of a pair": ('{"tags": [{"value": "x", "key": "y', "tool_calls", '{"tags":{', True),
        "cut by the limit": ('{"tags": [{"value": "x", "key": "y', "length", '{"tags":{', False),
        "lacks its last bracket": ('{"title": "a", "pages": 3', "stop", '{"title":"a"', True),
        "lacks only a bracket": ('{"title": "a"', "stop", '{"title":"a"', False),
        "is not JSON": ("{broken", "tool_calls", "{broken", False),
        "is followed by words": ('{"title": "a"} Done.', "tool_calls", '{"title":"a"} Done.', False),
    }
    wrong = []
    for name, (text, finish, expected, has_fault) in cases.items():
        released, fault = grown(lift, list(text), finish)
        if ("".join(released), fault is not None) != (expected, has_fault):
            wrong.append((name, "".join(released), fault))
    assert wrong == []


def test_a_call_that_contradicts_what_was_released_is_asked_for_again() -> None:
    begun = '{"title": "The Left Hand of Darkness", "title": "Dune"}'
    first = ModelResponse(tool_calls=(ToolCall("c1", "add_book", begun),), finish="tool_calls")
    pieces, outcome = released_arguments("openai", Answer(first), Answer(calling(("add_book", BOOKS["openai"][1]))))
    assert json.loads("".join(pieces)) == LIFTED_BOOK
    assert len(outcome.report.attempts) == 2


def test_calls_without_an_index_are_told_apart_by_their_names() -> None:
    calls = LiftedCalls({"t": Lift({}, lambda value: [value])})
    chunks = [
        CompletionChunk(tool_calls=(ToolDelta(None, "a", "t", "1"),)),
        CompletionChunk(tool_calls=(ToolDelta(None, arguments="2"),)),
        CompletionChunk(tool_calls=(ToolDelta(None, "b", "u", "3"),)),
        CompletionChunk(tool_calls=(ToolDelta(None, "c", "t", "4"),)),
    ]
    out = calls.feed(chunks, done=True)
    assert [delta.arguments for chunk in out for delta in chunk.tool_calls if delta.arguments] == ["[12]", "3", "[4]"]
