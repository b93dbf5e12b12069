"""Score the leaves of answers as structured-logprobs does; run by `bench.confidence` in its environment."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

from openai.types.chat import ChatCompletion
from structured_logprobs import add_logprobs


def completion(record: dict[str, Any]) -> ChatCompletion:
    """The answer as OpenAI would have given it."""
    entries = [
        {"token": bytes(data).decode("utf-8", "replace"), "bytes": data, "logprob": logprob, "top_logprobs": []}
        for data, logprob in zip(record["bytes"], record["before"], strict=True)
    ]
    message = {"role": "assistant", "content": record["text"], "refusal": None}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": message,
        "logprobs": {"content": entries, "refusal": None},
    }
    return ChatCompletion.model_validate(
        {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    )


def scores(value: Any, path: str = "") -> Iterator[tuple[str, float | None]]:
    """The probability of each leaf, by JSON Pointer; None where the library has none."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from scores(each, f"{path}/{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from scores(each, f"{path}/{number}")
    else:
        yield path, math.exp(value) if isinstance(value, int | float) else None


found: dict[str, dict[str, float | None]] = {}
for record in json.load(sys.stdin):
    try:
        found[record["task"]] = dict(scores(add_logprobs(completion(record)).log_probs[0]))
    except Exception:
        found[record["task"]] = {}
json.dump(found, sys.stdout)
