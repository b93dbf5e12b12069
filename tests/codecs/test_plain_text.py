"""Events that hold nothing but a piece of text: read and written by what is the same around all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.codecs import APIS, ServedRequest, find_api
from slipform.codecs.codec import Stamp
from slipform.codecs.framing import SseDecoder
from slipform.codecs.openai_chat.decode import ChatEvents
from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.stream_decoder import StreamDecoder
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ToolDelta
from slipform.ir.response import plain_chunks
from tests.conftest import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SPELLINGS: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"ensure_ascii": False}]


def event(delta: Any, spelling: dict[str, Any] | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    data = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    return json.dumps(data, **(spelling or {})).encode()


def reader() -> StreamDecoder:
    return StreamDecoder(SseDecoder(), ChatEvents(), SchemaChannel())


def read(*events: bytes) -> list[CompletionChunk]:
    one = reader()
    return [chunk for data in events for chunk in one.feed(b"data: " + data + b"\n\n")]


def read_apart(*events: bytes) -> list[CompletionChunk]:
    """Each event as the first of a stream, where nothing can be known of it beforehand."""
    return [chunk for data in events for chunk in read(data)]


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(TEXT, min_size=2, max_size=6), st.sampled_from(SPELLINGS))
def test_an_event_that_is_like_the_one_before_gives_the_chunk_it_would_give_alone(
    texts: list[str], spelling: dict[str, Any]
) -> None:
    events = [event({"content": text}, spelling) for text in texts]
    assert read(*events) == read_apart(*events)
    assert [chunk.text for chunk in read(*events)] == texts


def test_what_only_looks_like_a_piece_of_text_is_taken_apart() -> None:
    plain = event({"content": "a"})
    others = [
        event({"content": "b", "refusal": "no"}),
        event({"content": "b", "tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]}),
        event({"content": None}),
        event({"content": ["b"]}),
        event({"content": 'x", "refusal": "y'}),
        event({"content": "b"}, usage={"prompt_tokens": 1, "completion_tokens": 2}),
        event({"content": "b"}, id="c2"),
        plain.replace(b'"a"', b'"b", "content": "c"'),
        plain.replace(b'"a"', b'"b" '),
        plain.replace(b'"finish_reason": null', b'"finish_reason": "stop"'),
    ]
    for other in others:
        both = read(plain, plain, other, plain)
        assert both == [*read(plain), *read(plain), *read(other), *read(plain)], other


def test_fields_that_a_server_repeats_are_told_once() -> None:
    events = [event({"content": text}, system_fingerprint="f") for text in "abcd"]
    chunks = read(*events)
    assert [chunk.text for chunk in chunks] == list("abcd")
    assert [chunk.extra.get("system_fingerprint") for chunk in chunks] == ["f", None, None, None]
    assert [dict(chunk.extra) for chunk in chunks[1:]] == [{}, {}, {}]
    changed = read(*events, event({"content": "e"}, system_fingerprint="g"))
    assert changed[-1].extra["system_fingerprint"] == "g"


@pytest.mark.parametrize("name", [7, ["c"], None, ""])
def test_a_server_may_name_its_answers_as_it_likes(name: Any) -> None:
    events = [event({"content": text}, id=name, model=name) for text in "abc"]
    chunks = read(*events)
    assert [chunk.text for chunk in chunks] == list("abc")
    assert [(chunk.id, chunk.model) for chunk in chunks] == [(name or None, name or None)] * 3


def test_events_that_are_padded_differently_are_read_all_the_same() -> None:
    events = [event({"content": text}, obfuscation="x" * len(text)) for text in ("a", "bb", "c", "dd", "e", "ff", "g")]
    assert [chunk.text for chunk in read(*events)] == ["a", "bb", "c", "dd", "e", "ff", "g"]


def test_an_event_by_the_name_of_an_error_is_one_whatever_it_holds() -> None:
    one = reader()
    plain = event({"content": "a"})
    assert len(one.feed(b"data: " + plain + b"\n\ndata: " + plain + b"\n\n")) == 2
    one.feed(b"event: error\ndata: " + plain + b"\n\n")
    with pytest.raises(UpstreamError):
        one.feed(b"data: " + plain + b"\n\n")


def read_as_text(pieces: list[bytes], one: StreamDecoder) -> list[CompletionChunk]:
    """What is given where all that can be is read as text alone, as a chunk by who spoke last."""
    chunks: list[CompletionChunk] = []
    for piece in pieces:
        data = piece
        plain = one.texts(data)
        if plain is not None:
            texts, call, data = plain
            chunks += [chunk._replace(model=chunks[-1].model, id=chunks[-1].id) for chunk in plain_chunks(texts, call)]
        if data:
            chunks += one.feed(data)
    return chunks


def arguments(index: int, text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


EVENTS = st.one_of(
    st.builds(lambda text: event({"content": text}), TEXT),
    st.builds(lambda text: event({"content": text}, id="c2"), TEXT),
    st.builds(lambda text: event({"content": text}, SPELLINGS[1]), TEXT),
    st.builds(lambda text: event({"content": text}, system_fingerprint="f"), TEXT),
    st.builds(lambda at, text: event(arguments(at, text)), st.integers(0, 1), TEXT),
    st.builds(lambda text: event({"tool_calls": [{"index": 0, "id": "c", "function": {"arguments": text}}]}), TEXT),
    st.sampled_from([event({"reasoning_content": "t"}), event({"role": "assistant"}), event({"content": "x", "a": 1})]),
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(EVENTS, min_size=1, max_size=12),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\n\n", b"\n: comment\n\n"]),
    st.lists(st.integers(0, 3000), max_size=4),
)
def test_bytes_read_as_text_alone_give_what_they_would_give_as_chunks(
    events: list[bytes], end: bytes, cuts: list[int]
) -> None:
    """However the events are spelled, cut or joined on the way: most pieces are one event, as servers send them."""
    pieces = [b"data: " + data + end for data in events]
    for cut in cuts:
        at = cut % len(pieces)
        if cut % 2:
            pieces[at : at + 2] = [b"".join(pieces[at : at + 2])]
        else:
            pieces[at : at + 1] = [pieces[at][: cut % 97], pieces[at][cut % 97 :]]
    one = reader()
    assert read_as_text(pieces, reader()) == [chunk for data in pieces for chunk in one.feed(data)]


def test_the_framing_of_texts_is_learned_from_events_that_arrive_together() -> None:
    one = reader()
    first = event({"role": "assistant"})
    events = [b"data: " + data + b"\n\n" for data in (first, *[event({"content": text}) for text in "abcd"])]
    one.feed(b"".join(events[:3]))
    assert one.texts(b"".join(events[3:])) == (["c", "d"], -1, b"")


def test_one_more_piece_of_text_needs_no_chunk_and_anything_else_does() -> None:
    one = reader()
    pieces = [b"data: " + event({"content": text}) + b"\n\n" for text in ("a", "b", 'c"\u00e9', "d")]
    assert [one.texts(data) for data in pieces] == [None] * 4, "nothing is known of the first events"
    assert [chunk.text for data in pieces[:2] for chunk in one.feed(data)] == ["a", "b"]
    assert one.texts(pieces[2]) == (['c"\u00e9'], -1, b"")
    assert one.texts(pieces[0] + pieces[1] + pieces[3]) == (["a", "b", "d"], -1, b"")
    for rest in (pieces[0][:40], pieces[3][:-1], pieces[1].replace(b"c1", b"c2"), b"data: [DONE]\n\n"):
        assert one.texts(pieces[0] + pieces[1] + rest) == (["a", "b"], -1, rest)
    for other in (
        pieces[0][:-1],
        pieces[0][:40],
        pieces[0].replace(b'"a"', b'"a"\n'),
        pieces[0].replace(b'"a"', b'\n"a"'),
        pieces[0].replace(b'"a"', b"null"),
        pieces[0].replace(b'"a"', b'"a", "refusal": "b"'),
        b"data: [DONE]\n\n",
        b"",
    ):
        assert one.texts(other) is None, other
    assert one.texts(pieces[3]) == (["d"], -1, b"")
    one.feed(pieces[0][:40])
    assert one.texts(pieces[3]) is None, "an event is open"
    one.feed(pieces[0][40:])
    assert one.texts(pieces[3]) == (["d"], -1, b"")
    one.feed(b"data: " + event({"content": "x"}, id="c2") + b"\n\n")
    assert one.texts(pieces[3]) is None, "somebody else has spoken"


@pytest.mark.parametrize(
    ("api", "options"), [*[(api, {}) for api in APIS], ("openai-chat", {"functions": True})], ids=str
)
def test_text_alone_is_written_as_a_chunk_of_it_is(api: str, options: dict[str, Any]) -> None:
    stamp = Stamp(now=lambda: 7.0, new_id=lambda: "i")
    served = ServedRequest(ModelRequest("m", ()), stream=True, options=options)
    record = replace(find_api(api), stamp=stamp)
    as_chunks, as_text = record.encode_stream(served), record.encode_stream(served)
    for text in ("a", "", 'b"\n\u00e9'):
        assert as_text.feed_text(text) == as_chunks.feed(CompletionChunk(text))
    for call in (0, 3, 0):  # some servers give every call the same index, and another id
        begun = CompletionChunk(tool_calls=(ToolDelta(call, f"c{len(text)}", "look"),))
        text += "x"
        assert as_text.feed(begun) == as_chunks.feed(begun)
        for piece in ('{"a": "', "\u00e9\n", "", '"}'):
            assert as_text.feed_text(piece, call) == as_chunks.feed(plain_chunks([piece], call)[0])
    assert as_text.finish() == as_chunks.finish()


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(TEXT.filter(bool), min_size=1, max_size=6), st.booleans(), TEXT)
def test_a_piece_of_text_is_written_as_any_other_delta(texts: list[str], usage: bool, model: str) -> None:
    served = ServedRequest(ModelRequest(model, ()), stream=True, options={"include_usage": usage})
    stamp = Stamp(now=lambda: 7.0, new_id=lambda: '"delta":{"content":')
    api = replace(find_api("openai-chat"), stamp=stamp)
    encoder = api.encode_stream(served)
    events = []
    for text in texts:
        assert encoder.feed(CompletionChunk()) == b""
        data = encoder.feed(CompletionChunk(text))
        assert (data[:6], data[-2:]) == (b"data: ", b"\n\n")
        events.append(orjson.loads(data[6:]))
    first, *others = events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": texts[0]}
    for text, found in zip(texts[1:], others, strict=True):
        choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
        assert found == {**first, "choices": [choice]}
        assert list(found) == list(first)
