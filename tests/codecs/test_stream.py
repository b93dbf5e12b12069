"""What every stream decoder guarantees, shown on Chat Completions unless a vendor differs."""

from __future__ import annotations

import orjson
import pytest

from slipform.codecs import Capabilities, EncodedRequest, StreamDecoder, make_codec
from slipform.codecs.framing import encode_frame
from slipform.errors import RateLimitError, TruncatedError, UpstreamError, UpstreamRequestError
from slipform.ir import CompletionChunk

HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def reader(codec: str = "openai-chat") -> StreamDecoder:
    return make_codec(codec, Capabilities()).decode_stream(EncodedRequest("", b""))


def run(body: bytes, codec: str = "openai-chat") -> list[CompletionChunk]:
    decoder = reader(codec)
    return [*decoder.feed(body), *decoder.finish()]


def trickle(body: bytes, codec: str) -> None:
    decoder = reader(codec)
    for at in range(len(body)):
        decoder.feed(body[at : at + 1])
    decoder.finish()


def test_the_done_mark_is_optional_after_a_finish_reason() -> None:
    assert run(HELLO + STOP) == run(HELLO + STOP + b"data: [DONE]\n\n")


def test_a_clean_end_without_a_finish_reason_is_a_stop_with_a_warning() -> None:
    last = run(HELLO + b"data: [DONE]\n\n")[-1]
    assert (last.finish, last.raw_finish, last.warnings[0].code) == ("stop", None, "finish_missing")


@pytest.mark.parametrize("body", [b"", HELLO, HELLO + STOP[:30], b": only a comment\n\n"])
def test_a_stream_without_its_terminator_is_truncated(body: bytes) -> None:
    with pytest.raises(TruncatedError, match="before the answer was over"):
        run(body)


def test_a_second_choice_that_never_ends_is_truncated() -> None:
    other = b'data: {"choices":[{"index":1,"delta":{"content":"x"}}]}\n\n'
    with pytest.raises(TruncatedError):
        run(HELLO + other + STOP)


@pytest.mark.covers("S3-50")
def test_an_error_inside_a_stream_is_raised_after_what_came_before_it() -> None:
    decoder = reader()
    chunks = decoder.feed(HELLO + b'data: {"error":{"message":"slow down","type":"rate_limit_error"}}\n\n' + STOP)
    assert [chunk.text for chunk in chunks] == ["hello"]
    with pytest.raises(RateLimitError, match="slow down"):
        decoder.feed(STOP)
    with pytest.raises(RateLimitError, match="slow down"):
        decoder.finish()


def test_an_error_event_with_a_status_is_classified_by_it() -> None:
    event = b'event: error\ndata: {"error":{"message":"bad call","code":"tool_use_failed","status_code":400}}\n\n'
    with pytest.raises(UpstreamRequestError) as caught:
        run(event)
    assert caught.value.status == 400
    assert caught.value.details["code"] == "tool_use_failed"


def test_an_error_event_that_is_plain_text_is_an_error() -> None:
    with pytest.raises(UpstreamError, match="it broke"):
        run(b"event: error\ndata: it broke\n\n")


def test_an_error_body_with_status_200_and_no_events_is_an_error() -> None:
    with pytest.raises(UpstreamError, match="overloaded"):
        run(b'{"error": {"message": "overloaded"}}')


def test_a_whole_answer_to_a_streamed_request_is_read() -> None:
    answer = {
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
        "object": "chat.completion",
    }
    assert run(orjson.dumps(answer))[0].text == "hi"


def content(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


SPLIT: dict[str, tuple[list[str], str]] = {
    "over two events": (["a\\ud83d", "\\ude00b", "c"], "a😀bc"),
    "twice": (["\\ud83d", "\\ude00\\ud83d", "\\ude00"], "😀😀"),
    "alone before text": (["a\\ud83d", "b"], "a\ufffdb"),
    "alone at the end": (["a\\ud83d"], "a\ufffd"),
    "the second half alone": (["a", "\\ude00"], "a\ufffd"),
}


@pytest.mark.parametrize("case", SPLIT)
def test_a_surrogate_pair_may_be_split_over_two_events(case: str) -> None:
    pieces, whole = SPLIT[case]
    decoder = reader()
    chunks = [chunk for piece in ["x", "y", *pieces] for chunk in decoder.feed(content(piece))]
    chunks += [*decoder.feed(STOP), *decoder.finish()]
    assert "".join(chunk.text for chunk in chunks) == f"xy{whole}"


def test_an_event_that_is_not_json_is_an_error_and_a_cut_one_is_truncation() -> None:
    with pytest.raises(UpstreamError, match="not JSON"):
        run(b"data: <html>\n\n")
    with pytest.raises(TruncatedError):
        run(HELLO + b'data: {"choices":[{"in')


STREAMS: dict[str, tuple[bytes, bytes]] = {
    "openai-responses": (
        b'event: error\ndata: {"type":"error","code":"server_error","message":"it broke","param":null}\n\n',
        b'data: {"type":"response.created","response":{"id":"r"}}\n\n',
    ),
    "anthropic": (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"it broke"}}\n\n',
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m"}}\n\n',
    ),
    "gemini": (
        b'data: {"error":{"code":503,"message":"it broke","status":"UNAVAILABLE"}}\n\n',
        b'data: {"candidates":[{"content":{"parts":[{"text":"x"}]}}]}\n\n',
    ),
    "bedrock": (
        encode_frame(
            {":message-type": "exception", ":exception-type": "modelStreamErrorException"}, b'{"message":"it broke"}'
        ),
        encode_frame({":event-type": "messageStart", ":message-type": "event"}, b'{"role":"assistant"}'),
    ),
    "cohere": (
        b'data: {"type":"message-end","delta":{"finish_reason":"ERROR","error":"it broke"}}\n\n',
        b'data: {"type":"message-start","id":"x"}\n\n',
    ),
    "ollama": (b'{"error":"it broke"}\n', b'{"message":{"content":"x"},"done":false}\n'),
}


@pytest.mark.parametrize("codec", list(STREAMS))
def test_every_vendor_s_error_in_a_stream_is_raised(codec: str) -> None:
    error, _ = STREAMS[codec]
    with pytest.raises(UpstreamError, match="it broke") as caught:
        trickle(error, codec)
    assert caught.value.details["retryable"] is True


@pytest.mark.parametrize("codec", list(STREAMS))
def test_every_vendor_s_cut_stream_is_truncated(codec: str) -> None:
    _, start = STREAMS[codec]
    with pytest.raises(TruncatedError):
        run(start, codec)


def test_what_was_lost_while_encoding_comes_with_the_first_chunk_only() -> None:
    from slipform.ir import Message, ModelRequest, Sampling

    codec = make_codec("openai-chat", Capabilities())
    request = ModelRequest("m", (Message.user("hi"),), sampling=Sampling(top_k=3))
    decoder = codec.decode_stream(codec.encode_request(request, stream=True))
    chunks = [*decoder.feed(HELLO + STOP), *decoder.finish()]
    assert [warning.path for warning in chunks[0].warnings] == ["sampling.top_k"]
    assert not any(chunk.warnings for chunk in chunks[1:])
