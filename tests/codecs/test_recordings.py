"""Real vendor traffic decodes to its answer key, however the bytes are split."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from slipform.codecs import BoundCodec, Capabilities, EncodedRequest, make_codec
from slipform.errors import SlipformError, TruncatedError, UpstreamError
from slipform.ir import ModelResponse, Usage
from slipform.ir.reducer import Reducer, Snapshot
from tests.codecs import recorded
from tests.codecs.recorded import Recording

CODEC_OF = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic-messages": "anthropic",
    "gemini-generate-content": "gemini",
    "bedrock-converse": "bedrock",
    "cohere-v2": "cohere",
    "ollama-chat": "ollama",
}

# Where the answer key is not what a decoder should say: the field, and why.
DIFFERENCES: dict[str, tuple[str, str]] = {
    "anthropic.anthropic-messages.unknown.stream.006": (
        "refusal",
        "the key leaves the explanation of a streamed refusal out; the whole answers have it",
    ),
    "gemini.gemini-generate-content.unknown.stream.001": ("tool_calls", "the key lists every piece of a streamed call"),
    "gemini.gemini-generate-content.unknown.stream.006": ("tool_calls", "the key lists every piece of a streamed call"),
    "gemini.gemini-generate-content.unknown.stream.009": ("tool_calls", "the key lists every piece of a streamed call"),
    **{
        f"snowflake.openai-chat.{each}": ("tool_calls", "the key lists the empty call that every message has")
        for each in ("native.json.001", "plain.json.003", "tools.json.002", "tools.json.003")
    },
    "openrouter.openai-chat.plain.stream.002": ("usage", "the key leaves out the usage that comes with the error"),
}


def codec_for(recording: Recording) -> BoundCodec:
    return make_codec(CODEC_OF[recording.api], Capabilities())


def decode(recording: Recording, pieces: list[bytes]) -> tuple[ModelResponse | None, SlipformError | None]:
    codec, encoded = codec_for(recording), EncodedRequest("", b"")
    if recording.status >= 400:
        return None, codec.decode_error(recording.status, recording.headers, recording.body)
    if not recording.stream:
        return codec.decode_response(recording.body, encoded), None
    reducer, decoder = Reducer(), codec.decode_stream(encoded)
    reducer.start(Snapshot())
    error: SlipformError | None = None
    try:
        for piece in pieces:
            for chunk in decoder.feed(piece):
                reducer.push(chunk)
        for chunk in decoder.finish():
            reducer.push(chunk)
    except UpstreamError as raised:
        error = raised
    return reducer.finish(check=False), error


def split(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def split_anywhere(body: bytes, seed: str) -> list[bytes]:
    chance = random.Random(seed)
    pieces, at = [], 0
    while at < len(body):
        size = chance.choice((1, 2, 3, 5, 17, 64, 300, 1500))
        pieces.append(body[at : at + size])
        at += size
    return pieces


def without_nulls(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    return usage and {key: value for key, value in usage.items() if value is not None}


def expected_usage(api: str, raw: dict[str, Any] | None) -> Usage:
    """The normalised usage, worked out from the table of the wire reference and not from the codecs."""
    if raw is None:
        return Usage()
    get = raw.get
    sub = {key: value for key, value in raw.items() if isinstance(value, dict)}
    if api == "openai-chat":
        cached = [sub.get("prompt_tokens_details", {}).get("cached_tokens"), get("prompt_cache_hit_tokens")]
        cached += [get("num_cached_tokens"), get("cached_tokens")]
        known = next((value for value in cached if value is not None), None)
        reasoning, total = sub.get("completion_tokens_details", {}).get("reasoning_tokens"), get("total_tokens")
        prompt, output = get("prompt_tokens"), get("completion_tokens")
        beside = (total or 0) - (prompt or 0) - (output or 0)
        if beside > 0 and output is not None:  # what was thought is counted beside the output, or in the total alone
            reasoning, output = reasoning or beside, output + beside
        return Usage(prompt, output, known, reasoning, total)
    if api == "openai-responses":
        cached_tokens = sub.get("input_tokens_details", {}).get("cached_tokens")
        reasoning = sub.get("output_tokens_details", {}).get("reasoning_tokens")
        return Usage(get("input_tokens"), get("output_tokens"), cached_tokens, reasoning, get("total_tokens"))
    if api == "anthropic-messages":
        read, written = get("cache_read_input_tokens"), get("cache_creation_input_tokens")
        input_ = raw["input_tokens"] + (read or 0) + (written or 0)
        thinking = sub.get("output_tokens_details", {}).get("thinking_tokens")
        total = input_ + raw["output_tokens"]
        return Usage(input_, raw["output_tokens"], read, thinking, total, cache_write=written or None)
    if api == "gemini-generate-content":
        thoughts, said = get("thoughtsTokenCount"), get("candidatesTokenCount")
        output = None if thoughts is None and said is None else (thoughts or 0) + (said or 0)
        prompt = get("promptTokenCount", 0) + get("toolUsePromptTokenCount", 0) if "promptTokenCount" in raw else None
        return Usage(prompt, output, get("cachedContentTokenCount"), thoughts, get("totalTokenCount"))
    if api == "bedrock-converse":
        input_ = raw["inputTokens"] + get("cacheReadInputTokens", 0) + get("cacheWriteInputTokens", 0)
        read, written = get("cacheReadInputTokens"), get("cacheWriteInputTokens")
        return Usage(input_, raw["outputTokens"], read, None, get("totalTokens"), cache_write=written or None)
    if api == "cohere-v2":
        tokens = raw["tokens"]
        input_, output = int(tokens["input_tokens"]), int(tokens["output_tokens"])
        cached_float = get("cached_tokens")
        return Usage(input_, output, None if cached_float is None else int(cached_float), None, input_ + output)
    prompt, said = get("prompt_eval_count"), get("eval_count")
    return Usage(prompt, said, None, None, None if prompt is None or said is None else prompt + said)


def check(recording: Recording, answer: ModelResponse | None, error: SlipformError | None) -> None:
    derived = recording.derived
    excused = DIFFERENCES.get(recording.name, ("", ""))[0]
    if derived["error"] is None:
        assert error is None
    else:
        assert isinstance(error, UpstreamError)
        assert derived["error"]["message"] in error.message
        assert error.details["category"]
    if answer is None:
        return
    assert answer.text == derived["text"]
    assert answer.reasoning == derived["reasoning"]
    finish = derived["finish_reason"]
    assert answer.raw_finish == (None if finish is None else str(finish))
    if excused != "refusal":
        assert answer.refusal == (derived["refusal"] or None)
    if excused != "tool_calls":
        calls = [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]
        assert calls == [(call["name"], call["args"]) for call in derived["tool_calls"]]
        for call, key in zip(answer.tool_calls, derived["tool_calls"], strict=True):
            assert call.id == key["id"] or (key["id"] is None and call.id)
        assert (answer.finish == "tool_calls") >= (bool(calls) and str(finish) in ("stop", "STOP", "tool_calls"))
    if excused != "usage":
        assert without_nulls(answer.extra.get("usage")) == without_nulls(derived["usage"])
        assert answer.usage == expected_usage(recording.api, derived["usage"])


@pytest.mark.covers("S1-02", "S3-04", "S3-30", "S3-62", "S3-67")
@pytest.mark.parametrize("name", recorded.parameters())
def test_a_recording_decodes_to_its_answer_key_whole_and_split_anywhere(name: str) -> None:
    recording = recorded.load(name)
    answer, error = decode(recording, [recording.body])
    check(recording, answer, error)
    if not recording.stream or recording.status >= 400:
        return
    body = recording.body
    for pieces in (split(body, 1), split(body, 7), split_anywhere(body, name)):
        again, error_again = decode(recording, pieces)
        assert again == answer
        assert str(error_again) == str(error)


@pytest.mark.parametrize("name", [name for name in recorded.parameters() if ".stream." in str(name)])
def test_a_stream_cut_before_its_end_is_never_a_success(name: str) -> None:
    """Cut at every tenth of the stream: the decoder says so, or the answer had ended by then."""
    recording = recorded.load(name)
    if recording.derived["error"] is not None:
        return
    whole, _ = decode(recording, [recording.body])
    assert whole is not None
    for tenth in range(10):
        cut = recording.body[: len(recording.body) * tenth // 10]
        try:
            answer, error = decode(recording, [cut])
        except TruncatedError:
            continue
        assert error is None
        assert answer is not None
        assert (answer.text, answer.tool_calls) == (whole.text, whole.tool_calls)
        assert answer.raw_finish == whole.raw_finish


def test_calls_that_vertex_streams_in_pieces_are_put_together() -> None:
    name = "gemini.gemini-generate-content.unknown.stream.009"
    if name not in recorded.names():
        pytest.skip("the recordings are not beside this repository")
    recording = recorded.load(name)
    answer, _ = decode(recording, [recording.body])
    assert answer is not None
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        ("getWeather", '{"location":"Boston"}'),
        ("getWeather", '{"location":"San Francisco"}'),
    ]


def test_every_excused_recording_exists_and_still_differs() -> None:
    if not recorded.names():
        pytest.skip("the recordings are not beside this repository")
    for name, (field, _) in DIFFERENCES.items():
        recording = recorded.load(name)
        answer, _ = decode(recording, [recording.body])
        assert answer is not None
        if field == "tool_calls":
            assert len(answer.tool_calls) < len(recording.derived["tool_calls"])
        elif field == "refusal":
            assert answer.refusal != recording.derived["refusal"]
        else:
            assert answer.extra["usage"] != recording.derived["usage"]
