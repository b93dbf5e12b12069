"""Whatever a server sends, a decoder answers with a result or with one of our errors, never with a crash."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.codecs import APIS, CODECS, Capabilities, EncodedRequest, StreamDecoder, find_api, make_codec
from slipform.codecs.framing import encode_frame
from slipform.enforce import Wording
from slipform.enforce.prompts import first_request
from slipform.errors import SlipformError
from slipform.ir.reducer import Reducer, Snapshot
from slipform.providers.catalog import load_catalog
from slipform.schema import OutputStrategy
from tests.codecs.accounting import Place, with_other
from tests.codecs.wire_features import FEATURES
from tests.conftest import examples

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3)
KEYS = st.sampled_from(
    [
        "choices", "delta", "message", "content", "tool_calls", "function", "index", "id", "name", "arguments", "usage",
        "finish_reason", "type", "error", "output", "response", "item", "candidates", "parts", "text", "functionCall",
        "candidate", "finishReason", "usageMetadata", "promptFeedback", "done", "toolUse", "contentBlockIndex", "input",
        "content_block", "partial_json", "stop_reason", "model", "messages", "contents", "tools", "role", "system",
        "generationConfig", "response_format", "json_schema", "schema", "thinking", "reasoning", "stream", "args",
    ]
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)
TYPES = st.sampled_from(
    [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message",
        "response.created", "response.output_item.added", "response.output_item.done", "response.completed",
        "response.output_text.delta", "response.function_call_arguments.delta", "response.failed",
        "content-delta", "tool-call-start", "message-end", "message-start",
        "contentBlockDelta", "contentBlockStart", "messageStop", "metadata",
    ]
)  # fmt: skip


def raised(run: Callable[[], object]) -> SlipformError | None:
    """Our error, if there was one; any other goes through."""
    try:
        run()
    except SlipformError as error:
        return error
    return None


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=examples(120), deadline=None)
@given(data=OBJECTS)
def test_any_object_as_an_answer(codec: str, data: dict[str, Any]) -> None:
    codec_ = make_codec(codec, Capabilities())
    raised(lambda: codec_.decode_response(json.dumps(data).encode(), EncodedRequest("", b"")))


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=examples(120), deadline=None)
@given(events=st.lists(st.tuples(TYPES, OBJECTS), max_size=4))
def test_any_events_as_a_stream(codec: str, events: list[tuple[str, dict[str, Any]]]) -> None:
    decoder, reducer = make_codec(codec, Capabilities()).decode_stream(EncodedRequest("", b"")), Reducer()
    reducer.start(Snapshot())

    def read() -> None:
        for kind, data in events:
            body = json.dumps({"type": kind, **data}).encode()
            if codec == "bedrock":
                body = encode_frame({":event-type": kind}, body)
            elif codec == "ollama":
                body += b"\n"
            else:
                body = b"data: " + body + b"\n\n"
            for chunk in decoder.feed(body):
                reducer.push(chunk)
        for chunk in decoder.finish():
            reducer.push(chunk)

    raised(read)


def read_all(decoder: StreamDecoder, body: bytes) -> None:
    decoder.feed(body)
    decoder.finish()


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=examples(80), deadline=None)
@given(body=st.binary(max_size=60))
def test_any_bytes_as_a_stream(codec: str, body: bytes) -> None:
    decoder = make_codec(codec, Capabilities()).decode_stream(EncodedRequest("", b""))
    with pytest.raises(SlipformError):
        read_all(decoder, body)


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=examples(80), deadline=None)
@given(body=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()), status=st.integers(400, 599))
def test_any_body_as_an_error(codec: str, body: bytes, status: int) -> None:
    error = make_codec(codec, Capabilities()).decode_error(status, {}, body)
    assert error.status == status
    assert error.message


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(160), deadline=None)
@given(data=OBJECTS)
def test_any_object_as_a_request(api: str, data: dict[str, Any]) -> None:
    error = raised(lambda: find_api(api).decode_request(data, path="/v1/models/m:generateContent"))
    assert error is None or error.http_status == 400


CALLS = {
    "anthropic": '{"type":"message","content":[{"type":"tool_use","id":"t","name":"f","input":%s}]}',
    "gemini": '{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":%s}}]},"finishReason":"STOP"}]}',
    "ollama": '{"message":{"tool_calls":[{"function":{"name":"f","arguments":%s}}]},"done":true}',
    "bedrock": '{"output":{"message":{"content":[{"toolUse":{"toolUseId":"t","name":"f","input":%s}}]}}}',
}


@pytest.mark.parametrize("depth", [200, 600, 990, 1000, 1010, 1100, 5000])
@pytest.mark.parametrize("codec", CALLS)
def test_arguments_of_any_depth_are_read_as_they_are_or_refused(codec: str, depth: int) -> None:
    arguments = '{"a":' * depth + "1" + "}" * depth
    answer = (CALLS[codec] % arguments).encode()
    try:
        response = make_codec(codec, Capabilities()).decode_response(answer, EncodedRequest("", b""))
    except SlipformError:
        assert depth > 600
    else:
        assert response.tool_calls[0].arguments == arguments


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e300,
    10**30,
    10**400,
    "",
    "²",
    [],
    {},
    [None],
    [[]],
    ["a"],
    {"a": {"b": [1, None]}},
    {"type": 3},
)
"""What stands where something else is expected."""


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place of a request."""
    if place:
        yield place
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*place, key))


@pytest.mark.parametrize("api", FEATURES)
def test_any_value_in_any_place_of_a_request_is_understood_or_refused(api: str) -> None:
    vendors = [(vendor.codec, vendor.capabilities("any")) for vendor in load_catalog().vendors.values()]
    codecs = itertools.cycle([make_codec(name, able) for name, able in vendors])

    def sent(body: dict[str, Any]) -> None:
        served = find_api(api).decode_request(body, path="/v1/models/m:generateContent")
        asked = first_request(served.request, OutputStrategy.PROMPTED, Wording()).request
        for request in (served.request, asked):
            next(codecs).encode_request(request, stream=served.stream)

    for feature in FEATURES[api].values():
        for place, odd in itertools.product(places(feature), ODD):
            error = raised(partial(sent, with_other(feature, place, odd)))
            assert error is None or error.http_status in (400, 422), (place, odd)
