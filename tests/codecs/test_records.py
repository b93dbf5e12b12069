"""What every `Codec` record and every `Api` record has to keep, whichever vendor it is for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from slipform.codecs import APIS, CODECS, Capabilities, EncodedRequest, ServedRequest, find_api, find_codec, make_codec
from slipform.errors import (
    AuthenticationError,
    ConfigError,
    RateLimitError,
    RequestError,
    TruncatedError,
    UpstreamError,
)
from slipform.ir import (
    LossyEncode,
    Message,
    ModelRequest,
    ModelResponse,
    ModelWarning,
    Sampling,
    Text,
    Tool,
    ToolCall,
    Usage,
)
from slipform.ir.reducer import Reducer, Snapshot
from slipform.testing.wire_formats import SHAPES
from tests.codecs.loopback import STAMP, as_chunks

EVERYTHING = Capabilities(native=True, tools=True, forced_tool=True, json_mode=True, reasoning=True)
HELLO = (Message.user("Hello"),)
NOTHING_SENT = EncodedRequest("", b"")
ANSWERS = {
    "text": ModelResponse("Zürich", usage=Usage(7, 5, total=12)),
    "a call": ModelResponse(tool_calls=(ToolCall("id_1", "f", '{"a":1}'),), finish="tool_calls", usage=Usage(7, 5)),
    "both": ModelResponse("Wait.", (ToolCall("id_1", "f", "{}"),), finish="tool_calls", usage=Usage(7, 5)),
    "thinking": ModelResponse("Zürich", reasoning="Hm.", usage=Usage(7, 5)),
    "cut at the limit": ModelResponse("Zür", finish="length", usage=Usage(7, 5)),
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a JSON value, with the path to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from leaves(item, f"{path}[{at}]")
    else:
        yield path, value


def sent(name: str, request: ModelRequest, *, stream: bool = False) -> tuple[dict[str, Any], tuple[ModelWarning, ...]]:
    encoded = make_codec(name, EVERYTHING).encode_request(request, stream=stream)
    return json.loads(encoded.body), encoded.warnings


def is_named(warnings: tuple[ModelWarning, ...], path: str) -> bool:
    return any(isinstance(each, LossyEncode) and each.path == path for each in warnings)


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_is_a_record_that_cannot_be_changed(name: str) -> None:
    codec = find_codec(name)
    assert codec.name == name
    assert find_codec(name) is codec
    for field in fields(codec):
        with pytest.raises(FrozenInstanceError):
            setattr(codec, field.name, None)


@pytest.mark.parametrize("name", APIS)
def test_an_api_is_a_record_that_cannot_be_changed_and_has_a_codec(name: str) -> None:
    api = find_api(name)
    assert api.name == name == find_codec(name).name
    for field in fields(api):
        with pytest.raises(FrozenInstanceError):
            setattr(api, field.name, None)


@pytest.mark.parametrize("find", [find_codec, find_api])
def test_an_unknown_name_is_refused_with_the_known_ones(find: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        find("nope")
    assert "anthropic" in str(caught.value.hint)


@pytest.mark.parametrize("name", CODECS)
def test_the_path_or_the_body_names_the_model_and_says_whether_to_stream(name: str) -> None:
    bound = make_codec(name, EVERYTHING)
    whole, streamed = (bound.encode_request(ModelRequest("m-17", HELLO), stream=stream) for stream in (False, True))
    assert whole.path.startswith("/")
    assert "m-17" in whole.path or json.loads(whole.body)["model"] == "m-17"
    assert (whole.path, whole.body) != (streamed.path, streamed.body)
    assert dict(whole.headers) == dict(find_codec(name).headers(EVERYTHING))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("field", [each.name for each in fields(Sampling)])
def test_each_sampling_field_is_carried_or_named(name: str, field: str) -> None:
    value: Any = ("END",) if field == "stop" else 77 if field in ("top_k", "seed") else 0.625
    body, warnings = sent(name, ModelRequest("m", HELLO, sampling=Sampling(**{field: value})))
    found = ("END" if field == "stop" else value) in [leaf for _, leaf in leaves(body)]
    assert found is not is_named(warnings, f"sampling.{field}")


@pytest.mark.parametrize("name", CODECS)
def test_a_limit_is_carried_and_metadata_is_carried_or_named(name: str) -> None:
    body, warnings = sent(name, ModelRequest("m", HELLO, max_tokens=4321, metadata={"user_id": "u-17"}))
    values = [leaf for _, leaf in leaves(body)]
    assert 4321 in values
    assert ("u-17" in values) is not is_named(warnings, "metadata")


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("other", CODECS)
def test_a_vendor_s_own_fields_and_tools_reach_that_vendor_and_are_named_elsewhere(name: str, other: str) -> None:
    tools = (
        Tool("search", {}, extra={other: {"search": {"depth": "d-17"}}}, vendor=other),
        Tool("f", {"type": "object", "properties": {}}, extra={other: {"note": "n-17"}}),
    )
    body, warnings = sent(name, ModelRequest("m", HELLO, tools=tools, extra={"own": "o-17"}, extra_for=other))
    carried = {"d-17", "n-17", "o-17"} & {leaf for _, leaf in leaves(body) if isinstance(leaf, str)}
    assert carried == ({"d-17", "n-17", "o-17"} if name == other else set())
    for path in ("own", "tools.search", "tools.f"):
        assert is_named(warnings, path) is (name != other), path


@pytest.mark.parametrize("name", CODECS)
def test_a_tool_s_turns_are_carried_even_without_a_result_in_them(name: str) -> None:
    turns = [Message("assistant", (Text("one"),)), *(Message("tool", (Text(word),)) for word in ("", "two", "three"))]
    body, _ = sent(name, ModelRequest("m", (*HELLO, *turns)))
    said = [leaf for _, leaf in leaves(body) if leaf in ("one", "two", "three")]
    assert said == ["one", "two", "three"]
    if name == "anthropic":
        assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]


def heard(response: ModelResponse) -> tuple[Any, ...]:
    calls = [(call.name, json.loads(call.arguments)) for call in response.tool_calls]
    return response.text, calls, response.reasoning, response.finish, response.usage.input, response.usage.output


def streamed(name: str, pieces: list[bytes]) -> ModelResponse:
    decoder, reducer = make_codec(name, Capabilities()).decode_stream(NOTHING_SENT), Reducer()
    reducer.start(Snapshot())
    for piece in pieces:
        for chunk in decoder.feed(piece):
            reducer.push(chunk)
    for chunk in decoder.finish():
        reducer.push(chunk)
    return reducer.finish()


# The test double spells the answers by itself, in formats written from the vendors' pages and not with these codecs.
SPELLED: dict[str, Any] = {"openai-chat": SHAPES["openai"], **{name: SHAPES[name] for name in SHAPES if name in CODECS}}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_alike_whole_streamed_and_byte_by_byte(name: str, answer: ModelResponse) -> None:
    whole = make_codec(name, Capabilities()).decode_response(
        json.dumps(SPELLED[name].whole(answer)).encode(), NOTHING_SENT
    )
    assert heard(whole) == heard(answer)
    pieces = list(SPELLED[name].events(answer, 3))
    assert heard(streamed(name, pieces)) == heard(answer)
    assert heard(streamed(name, [bytes([byte]) for byte in b"".join(pieces)])) == heard(answer)


@pytest.mark.parametrize("name", CODECS)
def test_a_stream_that_breaks_off_is_no_answer(name: str) -> None:
    pieces = list(SPELLED[name].events(ANSWERS["text"], 3))
    for end in range(3):
        with pytest.raises(TruncatedError):
            streamed(name, pieces[:end])


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthenticationError), (429, RateLimitError), (500, UpstreamError), (418, UpstreamError)]
)
@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b'{"error":{"message":"no"}}', b'["no"]', b"\xff"])
def test_an_error_answer_is_one_of_ours_whatever_it_holds(
    name: str, status: int, kind: type[UpstreamError], body: bytes
) -> None:
    error = make_codec(name, Capabilities()).decode_error(status, {"retry-after": "2"}, body)
    assert isinstance(error, kind)
    assert (error.status, error.retry_after) == (status, 2.0)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("body", [b"", b"7", b"[]", b"nope", b'{"error":"no"}'])
def test_what_is_no_answer_is_an_upstream_error(name: str, body: bytes) -> None:
    with pytest.raises(UpstreamError):
        make_codec(name, Capabilities()).decode_response(body, NOTHING_SENT)


SERVED = ServedRequest(ModelRequest("m", HELLO), options={"include_usage": True})


@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_an_api_writes_its_codec_reads_whole_and_streamed(name: str, answer: ModelResponse) -> None:
    api = replace(find_api(name), stamp=STAMP)
    body = api.encode_response(answer, SERVED, extra={"slipform": {"attempts": 1}})
    assert json.loads(body)["slipform"] == {"attempts": 1}
    assert body == api.encode_response(answer, SERVED, extra={"slipform": {"attempts": 1}}), "ids come from the stamp"
    assert heard(make_codec(name, Capabilities()).decode_response(body, NOTHING_SENT)) == heard(answer)
    encoder = api.encode_stream(SERVED)
    assert heard(streamed(name, [*map(encoder.feed, as_chunks(answer)), encoder.finish()])) == heard(answer)


@pytest.mark.parametrize("name", APIS)
def test_an_api_s_usage_is_found_where_its_record_says(name: str) -> None:
    codec = find_codec(name)
    written = json.loads(find_api(name).encode_response(ANSWERS["text"], SERVED))[codec.usage_key]
    usage = codec.read_usage(written)
    assert usage is not None
    assert (usage.input, usage.output) == (7, 5)


@pytest.mark.parametrize("name", APIS)
def test_an_error_is_told_whole_and_inside_a_stream(name: str) -> None:
    api = find_api(name)
    for error, status in ((RequestError("No", where="model"), 400), (RateLimitError("Slow", status=429), 429)):
        told, body = api.encode_error(error)
        assert told == status
        assert error.message in json.dumps(json.loads(body), ensure_ascii=False)
    encoder = api.encode_stream(SERVED)
    begun = encoder.feed_text("a")
    with pytest.raises(UpstreamError, match="It broke"):
        streamed(name, [begun, encoder.fail(UpstreamError("It broke")), b""])


@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("body", [b"", b"[]", b"nope", b"{}"])
def test_what_is_no_request_is_refused(name: str, body: bytes) -> None:
    with pytest.raises(RequestError):
        find_api(name).decode_request(body)


@pytest.mark.parametrize("name", APIS)
def test_a_request_s_unread_fields_go_back_to_the_same_vendor(name: str) -> None:
    request = ModelRequest("m", (Message("user", (Text("Hello"),)),), max_tokens=9, extra={"vendorField": "v-17"})
    bound, api = make_codec(name, EVERYTHING), find_api(name)
    encoded = bound.encode_request(request, stream=False)
    again = bound.encode_request(api.decode_request(encoded.body, path=encoded.path).request, stream=False)
    assert (again.path, again.body, again.warnings) == (encoded.path, encoded.body, ())
