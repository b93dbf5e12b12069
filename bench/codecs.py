"""Measure the codecs: encode + decode per call, and chunks per second through decode + reduce, beside peers.

    PYTHONPATH=src python bench/codecs.py

Peers are used where they can be imported (openai, litellm). All times are CPU time, the best of a few passes, over the
same bytes; nothing goes over a network, so the peers are spared their HTTP clients.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.results import record
from slipform.codecs import Capabilities, EncodedRequest, make_codec
from slipform.ir import Message, ModelRequest, Sampling
from slipform.ir.reducer import Reducer, Snapshot
from slipform.schema import JsonSchemaSpec, ResponseFormat

CHUNKS = 2000
PASSES = 5
READ = 1400  # bytes per read, about what a network packet holds

SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("name", "city", "street", "note")},
    "required": ["name", "city", "street", "note"],
    "additionalProperties": False,
}


def best(run: Callable[[], Any]) -> float:
    """CPU seconds of the fastest pass."""
    times = []
    for _ in range(PASSES):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def stream_body(count: int) -> bytes:
    """A Chat Completions stream as OpenAI sends it today."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-6-sol"}
    head |= {"service_tier": "default", "system_fingerprint": "fp_1"}

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return "data: " + json.dumps({**head, "choices": [choice], "usage": None, "obfuscation": "x" * 8}) + "\n\n"

    events = [event({"role": "assistant", "content": "", "refusal": None})]
    events += [event({"content": f' word{at} "é"'}) for at in range(count)]
    events.append(event({}, "stop"))
    usage = {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": count + 9}
    events.append("data: " + json.dumps({**head, "choices": [], "usage": usage}) + "\n\ndata: [DONE]\n\n")
    return "".join(events).encode()


def reads(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), READ):
        yield body[at : at + READ]


def ours_stream(body: bytes) -> int:
    decoder = make_codec("openai-chat", Capabilities()).decode_stream(EncodedRequest("", b""))
    reducer = Reducer()
    reducer.start(Snapshot())
    for piece in reads(body):
        for chunk in decoder.feed(piece):
            reducer.push(chunk)
    for chunk in decoder.finish():
        reducer.push(chunk)
    return len(reducer.finish().text)


def openai_chunks(body: bytes) -> Iterator[Any]:
    from openai._models import construct_type
    from openai._streaming import SSEDecoder
    from openai.types.chat import ChatCompletionChunk

    for event in SSEDecoder().iter_bytes(reads(body)):
        if event.data.startswith("[DONE]"):
            return
        yield construct_type(type_=ChatCompletionChunk, value=event.json())


def openai_stream(body: bytes) -> int:
    from openai.lib.streaming.chat import ChatCompletionStreamState

    state: Any = ChatCompletionStreamState()
    for chunk in openai_chunks(body):
        list(state.handle_chunk(chunk))
    return len(state.get_final_completion().choices[0].message.content or "")


def litellm_stream(body: bytes) -> int:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network otherwise
    import litellm
    from litellm.litellm_core_utils.litellm_logging import Logging
    from litellm.litellm_core_utils.streaming_handler import CustomStreamWrapper

    messages = [{"role": "user", "content": "hi"}]
    logging = Logging("gpt-4o", messages, True, "completion", time.time(), "1", "1")
    logging.update_environment_variables(
        litellm_params={}, optional_params={}, model="gpt-4o", custom_llm_provider="openai"
    )
    wrapped = CustomStreamWrapper(openai_chunks(body), "gpt-4o", logging, "openai")
    whole = litellm.stream_chunk_builder(list(wrapped), messages=messages)
    return len(whole.choices[0].message.content)


def one_call() -> None:
    codec = make_codec("openai-chat", Capabilities(native=True))
    shape = ResponseFormat(JsonSchemaSpec("person", SCHEMA))
    messages = (Message.system("You extract."), Message.user("Ada is 36"))
    request = ModelRequest("gpt-6-sol", messages, shape, sampling=Sampling(temperature=0.2), max_tokens=100)
    encoded = codec.encode_request(request, stream=False)
    codec.decode_response(ANSWER, encoded)


ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-6-sol",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": '{"name":"Ada"}'}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
).encode()


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    calls = 2000
    each = best(lambda: [one_call() for _ in range(calls)]) / calls
    print(f"encode + decode of one call (native schema): {each * 1e6:.1f} µs")
    body = stream_body(CHUNKS)
    ours = best(lambda: ours_stream(body))
    record("call_us", each * 1e6)
    record("slipform", CHUNKS / ours)
    print(f"decode + reduce: {CHUNKS / ours:,.0f} chunks/s ({ours / CHUNKS * 1e6:.2f} µs each)")
    for name, run in (("openai", openai_stream), ("litellm", litellm_stream)):
        found = installed(name)
        if found is None:
            print(f"{name}: not installed, not measured")
            continue
        if run(body) != ours_stream(body):
            raise SystemExit(f"{name} read another text than slipform")
        theirs = best(lambda run=run: run(body))  # type: ignore[misc]
        record(name, CHUNKS / theirs)
        print(f"{name} {found}: {CHUNKS / theirs:,.0f} chunks/s; slipform is {theirs / ours:.1f}x as fast")


if __name__ == "__main__":
    main()
