"""AWS Signature Version 4 against the vectors of AWS's own test suite and documentation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from slipform.providers.auth import AwsKeys, Secret, sign

KEYS = AwsKeys("AKIDEXAMPLE", Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"))
MOMENT = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}


@pytest.mark.parametrize(
    ("method", "url", "headers", "service", "signature"),
    [
        (
            "GET",
            "https://example.amazonaws.com/",
            {},
            "service",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "POST",
            "https://example.amazonaws.com/",
            {},
            "service",
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            "GET",
            "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08",
            FORM,
            "iam",
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        ),
        (
            "GET",
            "https://iam.amazonaws.com/?Version=2010-05-08&Action=ListUsers",
            FORM,
            "iam",
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        ),
    ],
    ids=["get-vanilla", "post-vanilla", "documentation", "documentation, query unsorted"],
)
def test_known_signatures(method: str, url: str, headers: dict[str, str], service: str, signature: str) -> None:
    made = sign(
        KEYS, method=method, url=url, headers=headers, body=b"", region="us-east-1", service=service, now=MOMENT
    )
    assert made["authorization"].endswith(f"Signature={signature}")
    assert made["x-amz-date"] == "20150830T123600Z"


def bedrock(path: str, now: datetime = MOMENT, body: bytes = b"{}") -> str:
    url = f"https://bedrock-runtime.us-east-1.amazonaws.com{path}"
    headers = {"content-type": "application/json"}
    made = sign(
        KEYS, method="POST", url=url, headers=headers, body=body, region="us-east-1", service="bedrock", now=now
    )
    return made["authorization"].rpartition("Signature=")[2]


def test_a_model_id_is_escaped_twice_as_botocore_does_it() -> None:
    """The expected value was made with botocore 1.44's SigV4Auth for the same request."""
    assert bedrock("/model/anthropic.claude-opus-4-5-20251101-v1%3A0/converse") == (
        "8a2c33552d0495a14d66d7a6b547f3b88d2ac9967f5d2bf289992bfb5d172cd8"
    )


def test_the_body_and_the_moment_are_signed_and_zones_do_not_matter() -> None:
    path = "/model/x/converse"
    assert bedrock(path) != bedrock(path, body=b"{ }")
    assert bedrock(path) != bedrock(path, now=MOMENT + timedelta(seconds=1))
    assert bedrock(path) == bedrock(path, now=MOMENT.astimezone(timezone(timedelta(hours=2))))


def test_the_session_token_is_sent_and_signed() -> None:
    keys = AwsKeys("AKIDEXAMPLE", KEYS.secret, Secret("token"))
    made = sign(keys, method="POST", url="https://h/", headers={}, body=b"", region="r", service="s", now=MOMENT)
    assert made["x-amz-security-token"] == "token"
    assert "SignedHeaders=host;x-amz-date;x-amz-security-token," in made["authorization"]
    assert "wJalr" not in repr(keys)
    assert "token" not in repr(keys)
