"""`prompt_cache` marks what requests share for Anthropic's cache; other vendors cache without marks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform import Client
from slipform.codecs import Capabilities, codec_names, make_codec
from slipform.enforce.options import Options
from slipform.ir import Message, ModelRequest, Text, Tool
from slipform.prices import Price
from slipform.testing import FakeVendor, Raw
from tests.conftest import PERSON

MARK = {"type": "ephemeral"}
SYSTEM = Message.system("Say who it is.")
ADA = Message.user("Who is Ada?")
CAPABILITIES = Capabilities(native=True, tools=True, forced_tool=True)


def body_of(request: ModelRequest, codec: str = "anthropic") -> dict[str, Any]:
    body: dict[str, Any] = json.loads(make_codec(codec, CAPABILITIES).encode_request(request, stream=False).body)
    return body


def test_the_system_text_is_marked_with_the_tools_before_it() -> None:
    body = body_of(ModelRequest("m", (SYSTEM, ADA), tools=(Tool("look", {}),), cache_prefix=True))
    assert body["system"] == [{"type": "text", "text": "Say who it is.", "cache_control": MARK}]
    assert "cache_control" not in body["tools"][0]
    assert body["messages"] == [{"role": "user", "content": "Who is Ada?"}]


def test_without_a_system_text_the_last_tool_is_marked() -> None:
    body = body_of(ModelRequest("m", (ADA,), tools=(Tool("look", {}), Tool("see", {})), cache_prefix=True))
    assert ["cache_control" in tool for tool in body["tools"]] == [False, True]


def test_the_callers_own_marks_are_the_only_ones() -> None:
    own = Message("user", (Text("Who is Ada?", {"anthropic": {"cache_control": MARK}}),))
    body = body_of(ModelRequest("m", (SYSTEM, own), cache_prefix=True))
    assert body["system"] == "Say who it is."
    assert body["messages"][0]["content"][0]["cache_control"] == MARK


@pytest.mark.parametrize("codec", codec_names())
def test_other_requests_stay_as_they_are(codec: str) -> None:
    marked = ModelRequest("m", (SYSTEM, ADA), cache_prefix=codec != "anthropic")
    assert body_of(marked, codec) == body_of(ModelRequest("m", (SYSTEM, ADA)), codec)


@pytest.mark.parametrize(("setting", "is_marked"), [("auto", False), ("on", True), ("off", False)])
def test_a_client_marks_when_it_is_switched_on_and_prices_what_is_read_from_the_cache(
    setting: Any, is_marked: bool
) -> None:
    usage = {"input_tokens": 100, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 0, "output_tokens": 0}
    answer = {
        "id": "msg", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "usage": usage,
        "content": [{"type": "text", "text": '{"name": "Ada", "age": 36}'}],
    }  # fmt: skip
    price = Price(input=10.0, output=10.0, cached=1.0)
    options = Options(prompt_cache=setting, prices={"*": price})
    with (
        FakeVendor(
            lambda _: Raw((json.dumps(answer).encode(),), headers={"content-type": "application/json"})
        ) as vendor,
        Client("anthropic/claude-opus-5-5", base_url=vendor.base_url, api_key="any-key", options=options) as client,
    ):
        result = client.ask_full(PERSON, "Who is Ada?", system="Say who it is.")
        system = vendor.requests[0].json()["system"]
    assert (isinstance(system, list) and system[-1].get("cache_control") == MARK) is is_marked
    assert result.report.cost == pytest.approx((100 * 10 + 1000 * 1) / 1e6)
