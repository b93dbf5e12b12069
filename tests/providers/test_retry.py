"""When to try again, and after how long."""

from __future__ import annotations

import pickle

import pytest

from slipform.errors import RateLimitError, UpstreamError
from slipform.providers.network.transport import TransportFault
from slipform.providers.retry import RetryPolicy, after_fault, after_status, requested_wait

NOW = "Sun, 15 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:07 GMT", "date": NOW}, 7.0),
        ({"retry-after": "Sun, 15 Nov 2026 11:59:00 GMT", "date": NOW}, 0.0),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:07 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "9s"}, None),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-11-15T12:00:30Z",
                "date": NOW,
            },
            30.0,
        ),
        ({}, None),
    ],
)
def test_the_ways_vendors_ask_for_a_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_wait(headers) == seconds


def test_a_wait_read_from_the_body_counts_when_no_header_says_it() -> None:
    error = RateLimitError("slow", retry_after=17.0)
    assert requested_wait({}, error) == 17.0
    assert requested_wait({"retry-after": "2"}, error) == 2.0


def test_the_pause_doubles_with_jitter_up_to_a_cap() -> None:
    retries = RetryPolicy(attempts=5, base=1.0, cap=3.0)
    assert [retries.pause(n, None, lambda: 1.0) for n in range(4)] == [1.0, 2.0, 3.0, 3.0]
    assert [retries.pause(n, None, lambda: 0.0) for n in range(3)] == [0.5, 1.0, 1.5]
    assert retries.pause(5, None) is None


def test_the_vendors_wait_is_the_least() -> None:
    retries = RetryPolicy(base=1.0, longest_wait=10)
    assert retries.pause(0, 7.0, lambda: 1.0) == 7.0
    assert retries.pause(0, 0.1, lambda: 1.0) == 1.0
    assert retries.pause(0, 11.0) is None


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {}, True),
        (500, {}, True),
        (529, {}, True),
        (409, {}, True),
        (400, {}, False),
        (404, {}, False),
        (400, {"x-should-retry": "true"}, True),
        (503, {"x-should-retry": "false"}, False),
    ],
)
def test_which_answers_are_worth_a_repeat(status: int, headers: dict[str, str], expected: bool) -> None:
    assert after_status(status, headers, UpstreamError("x")) is expected


def test_a_spent_quota_is_not_repeated() -> None:
    assert not after_status(429, {}, RateLimitError("spent", details={"retryable": False}))


def test_only_a_request_that_was_not_sent_is_repeated() -> None:
    assert after_fault(TransportFault("refused", phase="connect"))
    assert after_fault(TransportFault("slow", phase="connect", limit="connect"))
    assert after_fault(TransportFault("broken pipe", phase="send"))
    assert not after_fault(TransportFault("late", phase="connect", limit="total"))
    assert not after_fault(TransportFault("reset", phase="head"))
    assert not after_fault(TransportFault("cut", phase="body"))


def test_a_fault_survives_pickling() -> None:
    fault = pickle.loads(pickle.dumps(TransportFault("late", phase="head", limit="first_byte")))
    assert (fault.message, fault.phase, fault.limit) == ("late", "head", "first_byte")
