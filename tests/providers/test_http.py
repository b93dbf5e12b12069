"""What an `HttpProvider` does with answers, good and bad, on both faces and both transports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slipform.errors import (
    AuthenticationError,
    RateLimitError,
    UpstreamError,
    UpstreamRequestError,
    UpstreamTimeout,
)
from slipform.providers.base import Provider
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Timeouts
from slipform.providers.retry import RetryPolicy
from slipform.testing import (
    Answer,
    FakeVendor,
    Raw,
    Step,
    cut_stream,
    garbage,
    garbage_body,
    hang,
    hang_up,
    rate_limited,
    refusal,
    rejected,
    reset,
    server_error,
    trickle,
    truncated,
)
from tests.providers.chat import ask
from tests.providers.conftest import AsyncFace, SyncFace

Make = Callable[..., HttpProvider]
AnyFace = SyncFace | AsyncFace


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.text for chunk in chunks)


def test_it_is_a_provider(make: Make) -> None:
    provider: Provider = make("http://127.0.0.1:1")
    assert provider.name == "openai"
    assert provider.models() == []


@pytest.mark.covers("S2-05")
def test_a_whole_answer(face: AnyFace, make: Make) -> None:
    with FakeVendor(["Hello"]) as vendor:
        response = face.complete(make(vendor.base_url), ask("hi"))
    assert (response.text, response.finish, response.usage.input) == ("Hello", "stop", 7)
    (request,) = vendor.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.json()["messages"] == [{"role": "user", "content": "hi"}]
    assert request.headers["authorization"] == "Bearer sk-test-1234567890"
    assert request.headers["content-type"] == "application/json"


def test_a_streamed_answer_comes_in_pieces(face: AnyFace, make: Make) -> None:
    with FakeVendor([Answer("Hello, world", chunk_size=3)]) as vendor:
        chunks = face.stream(make(vendor.base_url), ask())
    assert [chunk.text for chunk in chunks if chunk.text] == ["Hel", "lo,", " wo", "rld"]
    assert chunks[-1].finish == "stop"


def test_a_stream_that_the_server_answers_whole(face: AnyFace, make: Make) -> None:
    body = b'{"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}]}'
    with FakeVendor([Raw((body,), headers={"content-type": "application/json; charset=utf-8"})]) as vendor:
        chunks = face.stream(make(vendor.base_url), ask())
    assert text_of(chunks) == "whole"
    assert chunks[-1].finish == "stop"


def test_a_stream_under_a_wrong_label(face: AnyFace, make: Make) -> None:
    whole = b'data: {"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    with FakeVendor([Raw((whole,), headers={"content-type": "application/json"})]) as vendor:
        assert text_of(face.stream(make(vendor.base_url), ask())) == "ok"


def test_refusal_and_truncation_are_answers(face: AnyFace, make: Make) -> None:
    with FakeVendor([refusal("No."), truncated('{"a": ')]) as vendor:
        provider = make(vendor.base_url)
        assert face.complete(provider, ask()).refusal == "No."
        assert face.complete(provider, ask()).finish == "length"


@pytest.mark.covers("S2-69")
def test_connections_are_kept_alive(make: Make) -> None:
    with FakeVendor(["one", "two"]) as vendor:
        provider = make(vendor.base_url)
        for _ in range(5):
            provider.complete(ask())
            assert text_of(list(provider.stream(ask()))) == "two"
    assert len(vendor.requests) == 10
    assert vendor.connections_made == 1


RETRIED: list[Step] = [
    rate_limited(retry_after_ms=3),
    rate_limited(retry_after="0"),
    server_error(500),
    server_error(503),
    server_error(529),
    Raw((b"", b"<html>"), 502, {"content-type": "text/html"}),
    server_error(408),
]


@pytest.mark.parametrize("step", RETRIED, ids=lambda step: str(step.status))
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_passing_failure_is_repeated(face: AnyFace, make: Make, step: Step, streamed: bool) -> None:
    with FakeVendor([step, step, "at last"]) as vendor:
        provider = make(vendor.base_url)
        text = text_of(face.stream(provider, ask())) if streamed else face.complete(provider, ask()).text
    assert text == "at last"
    assert len(vendor.requests) == 3
    assert len({request.body for request in vendor.requests}) == 1


def test_repeats_end_and_the_last_error_is_told(face: AnyFace, make: Make) -> None:
    step = Raw((b'{"error":{"message":"slow down"}}',), 429, {"retry-after-ms": "1", "x-request-id": "req-9"})
    with FakeVendor([step]) as vendor, pytest.raises(RateLimitError, match="slow down") as caught:
        face.complete(make(vendor.base_url), ask())
    assert len(vendor.requests) == 3
    error = caught.value
    assert (error.status, error.retry_after) == (429, 0.001)
    assert error.details["request_id"] == "req-9"
    assert (error.details["provider"], error.details["model"], error.details["attempts"]) == ("openai", "m-1", 3)
    assert error.where == "openai/m-1"


def test_a_vendor_that_asks_for_too_long_a_wait_gets_no_repeat(face: AnyFace, make: Make) -> None:
    with FakeVendor([rate_limited(retry_after=3600)]) as vendor, pytest.raises(RateLimitError) as caught:
        face.complete(make(vendor.base_url), ask())
    assert len(vendor.requests) == 1
    assert caught.value.retry_after == 3600


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (rejected("no such thing"), UpstreamRequestError),
        (rejected("bad key", status=401), AuthenticationError),
        (rejected("spent", status=429, code="insufficient_quota"), RateLimitError),
        (Raw((b"{}",), 500, {"x-should-retry": "false"}), UpstreamError),
    ],
    ids=["400", "401", "quota", "told not to"],
)
def test_what_waiting_does_not_cure_is_not_repeated(
    face: AnyFace, make: Make, step: Step, kind: type[UpstreamError]
) -> None:
    with FakeVendor([step]) as vendor, pytest.raises(kind):
        face.complete(make(vendor.base_url), ask())
    assert len(vendor.requests) == 1


def test_a_redirect_is_not_followed(face: AnyFace, make: Make) -> None:
    with (
        FakeVendor([Raw((), 307, {"location": "http://127.0.0.1:1/elsewhere"})]) as vendor,
        pytest.raises(UpstreamError, match="307") as caught,
    ):
        face.complete(make(vendor.base_url), ask())
    assert "base_url" in (caught.value.hint or "")
    assert len(vendor.requests) == 1


UNANSWERED: list[Step] = [reset(), hang_up(), garbage()]


@pytest.mark.parametrize("step", UNANSWERED, ids=["reset", "hang up", "garbage"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_request_that_was_sent_is_not_repeated_when_the_connection_breaks(
    face: AnyFace, make: Make, step: Step, streamed: bool
) -> None:
    with FakeVendor([step]) as vendor:
        provider = make(vendor.base_url)
        with pytest.raises(UpstreamError, match=r"connection broke|answer is malformed") as caught:
            face.stream(provider, ask()) if streamed else face.complete(provider, ask())
    assert len(vendor.requests) == 1
    assert caught.value.details["phase"] == "head"


def test_an_error_after_retries_says_how_long_slipform_waited(face: AnyFace, make: Make) -> None:
    step = Raw((b'{"error":{"message":"slow down"}}',), 429, {"retry-after-ms": "10"})
    with FakeVendor([step]) as vendor, pytest.raises(RateLimitError) as caught:
        face.complete(make(vendor.base_url), ask())
    assert caught.value.details["attempts"] == 3
    assert caught.value.details["waited_seconds"] >= 0.02


def test_a_server_that_is_not_there_is_tried_again(face: AnyFace, make: Make) -> None:
    with FakeVendor(["x"]) as vendor:
        gone = vendor.base_url
    with pytest.raises(UpstreamError, match="Cannot connect") as caught:
        face.complete(make(gone), ask())
    assert caught.value.details["attempts"] == 3


@pytest.mark.parametrize("ending", ["cut", "reset"])
def test_a_stream_cut_in_the_middle_is_an_upstream_error_and_not_repeated(
    face: AnyFace, make: Make, ending: Any
) -> None:
    with (
        FakeVendor([cut_stream("a long answer", after=2, ending=ending)]) as vendor,
        pytest.raises(UpstreamError, match="before the answer was over") as caught,
    ):
        face.stream(make(vendor.base_url), ask())
    assert len(vendor.requests) == 1
    assert caught.value.details["provider"] == "openai"
    assert "cause" in caught.value.details


def test_the_pieces_before_a_cut_are_handed_out(make: Make) -> None:
    with FakeVendor([Answer("abcdef", chunk_size=2, pace=0.02, cut_after=3, ending="cut")]) as vendor:
        got: list[str] = []
        with pytest.raises(UpstreamError):
            got.extend(chunk.text for chunk in make(vendor.base_url).stream(ask()))
    assert "".join(got) == "abcd"


def test_a_whole_answer_cut_in_the_middle_is_an_error_and_not_repeated(face: AnyFace, make: Make) -> None:
    with (
        FakeVendor([cut_stream("a long answer", after=3)]) as vendor,
        pytest.raises(UpstreamError, match="connection broke") as caught,
    ):
        face.complete(make(vendor.base_url), ask())
    assert caught.value.details["phase"] == "body"
    assert len(vendor.requests) == 1


def test_a_cut_after_the_terminator_harms_nobody(face: AnyFace, make: Make) -> None:
    whole = b'data: {"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    step = Raw((whole, b"x"), headers={"content-type": "text/event-stream"}, chunked=True, cut_after=1, ending="cut")
    with FakeVendor([step]) as vendor:
        assert text_of(face.stream(make(vendor.base_url), ask())) == "ok"


def test_an_error_inside_a_stream_is_told_and_not_repeated(face: AnyFace, make: Make) -> None:
    pieces = (
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n',
        b'data: {"error":{"message":"overloaded"}}\n\n',
    )
    step = Raw(pieces, headers={"content-type": "text/event-stream", "request-id": "r7"}, chunked=True)
    with FakeVendor([step]) as vendor, pytest.raises(UpstreamError, match="overloaded") as caught:
        face.stream(make(vendor.base_url), ask())
    assert len(vendor.requests) == 1
    assert caught.value.details["request_id"] == "r7"


def test_a_body_that_is_no_answer_is_an_error(face: AnyFace, make: Make) -> None:
    with FakeVendor([garbage_body()]) as vendor, pytest.raises(UpstreamError, match="is not JSON"):
        face.complete(make(vendor.base_url), ask())
    assert len(vendor.requests) == 1


@pytest.mark.covers("S1-29")
def test_no_first_byte_in_time(face: AnyFace, make: Make) -> None:
    limits = Timeouts(first_byte=0.15, between_chunks=0.1, total=0.6)
    with FakeVendor([hang()]) as vendor:
        with pytest.raises(UpstreamTimeout, match=r"No answer within 0\.15 s") as caught:
            face.complete(make(vendor.base_url, timeouts=limits), ask())
        assert vendor.wait_until(lambda v: v.open_connections == 0)
    assert caught.value.details["limit"] == "first_byte"
    assert len(vendor.requests) == 1


def test_a_stream_that_falls_silent(face: AnyFace, make: Make) -> None:
    limits = Timeouts(first_byte=0.2, between_chunks=0.2, total=5)
    with FakeVendor([cut_stream("hello", after=2, ending="hang")]) as vendor:
        with pytest.raises(UpstreamTimeout) as caught:
            face.stream(make(vendor.base_url, timeouts=limits), ask())
        assert vendor.wait_until(lambda v: v.open_connections == 0)
    assert caught.value.details["limit"] == "between_chunks"


@pytest.mark.covers("S1-29")
def test_a_trickle_ends_at_the_total_limit(face: AnyFace, make: Make) -> None:
    limits = Timeouts(first_byte=2, between_chunks=2, total=0.2)
    with FakeVendor([trickle("x" * 1000, pace=0.01)]) as vendor:
        with pytest.raises(UpstreamTimeout) as caught:
            face.stream(make(vendor.base_url, timeouts=limits), ask())
        assert vendor.wait_until(lambda v: v.open_connections == 0)
    assert caught.value.details["limit"] == "total"


def test_waiting_for_a_repeat_counts_towards_the_total(face: AnyFace, make: Make) -> None:
    with FakeVendor([rate_limited(retry_after=2)]) as vendor, pytest.raises(RateLimitError):
        face.complete(make(vendor.base_url, timeouts=Timeouts(total=0.5)), ask())
    assert len(vendor.requests) == 1


def test_no_repeats_when_told_so(face: AnyFace, make: Make) -> None:
    with FakeVendor([server_error()]) as vendor, pytest.raises(UpstreamError):
        face.complete(make(vendor.base_url, retries=RetryPolicy(attempts=0)), ask())
    assert len(vendor.requests) == 1
