"""Account for every leaf of a client's request on its way to a vendor.

A leaf is carried when another value in its place makes another request to the vendor, and named when a loss goes away
with it or with what it stands in. To the API it came from it is carried unchanged, or it says what holds without it.
Whatever is neither was lost in silence.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from slipform.codecs import CODECS, Capabilities, find_api, make_codec
from slipform.codecs.codec import BoundCodec
from slipform.errors import RequestError

Place: TypeAlias = tuple[str | int, ...]

ABLE = Capabilities(native=True, tools=True, forced_tool=True, json_mode=True, reasoning=True)
GEMINI_PATH = "/v1/models/m:generateContent"
WHOLE = frozenset(
    {
        "schema", "parameters", "input_schema", "output_schema", "parametersJsonSchema", "parameters_json_schema",
        "responseSchema", "response_schema", "responseJsonSchema", "response_json_schema",
    }
)  # fmt: skip
"""Schemas are one leaf each: what becomes of their insides is for the dialects' own tests."""
RENAMED = {"max_completion_tokens": "max_tokens"}
"""What one vendor spells in two ways; which one a model takes is among its capabilities."""
PLAIN_TEXT = ("text", "input_text", "output_text")
"""Kinds of a part that go without saying where the words are the whole of what is said."""
TURNS = frozenset({"messages", "input", "contents", "tools", "system"})
"""Arrays whose elements answer for themselves."""
SAID_ELSEWHERE = frozenset({"stream", "include_usage", "anthropic_version"})
"""What asks for no more than how this answer is to be written, or how this request is to be read."""


class Outcome(NamedTuple):
    """What a request became: a vendor's request and the losses that were named, or a refusal."""

    body: Any
    losses: Counter[tuple[str, str]]
    refused: str = ""


@cache
def _codec(name: str, able: Capabilities) -> BoundCodec:
    return make_codec(name, able)


def _without_positions(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def outcome(api: str, codec: str, body: dict[str, Any], able: Capabilities = ABLE) -> Outcome:
    """Read a request as `api` serves it, and write it as `codec` does for a model that is able to do this."""
    try:
        served = find_api(api).decode_request(body, path=GEMINI_PATH if api == "gemini" else "")
        sent = _codec(codec, able).encode_request(served.request, stream=served.stream)
    except RequestError as error:
        return Outcome(None, Counter(), str(error))
    losses = Counter((_without_positions(each.path or ""), each.message) for each in sent.warnings)
    return Outcome(json.loads(sent.body), losses)


def leaves(value: Any, place: Place = (), whole: frozenset[str] = WHOLE) -> Iterator[tuple[Place, Any]]:
    """Every leaf with its place; null says nothing."""
    if isinstance(value, dict) and not (place and place[-1] in whole):
        for key, item in value.items():
            yield from leaves(item, (*place, key), whole)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from leaves(item, (*place, at), whole)
    elif value is not None and place and place[-1] not in SAID_ELSEWHERE:
        yield place, value


def with_other(body: Any, place: Place, other: Any) -> Any:
    """The request with another value in that place."""
    if not place:
        return other
    copy: Any = dict(body) if isinstance(body, dict) else list(body)
    copy[place[0]] = with_other(copy[place[0]], place[1:], other)
    return copy


def without(body: Any, place: Place) -> Any:
    """The request without what stands in that place."""
    copy: Any = dict(body) if isinstance(body, dict) else list(body)
    if len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = without(copy[place[0]], place[1:])
    return copy


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return {"type": "object", "properties": {"other": {"type": "string"}}, "required": ["other"]}


def _camel(key: str | int) -> str | int:
    head, *rest = str(key).split("_")
    return head + "".join(word.capitalize() for word in rest)


def _key(place: Place) -> str | int:
    return next((_camel(step) for step in reversed(place) if isinstance(step, str)), "")


def _is_sent(place: Place, value: Any, sent: Any) -> bool:
    """Whether a request has this value, under this name or, if it is a word, under any."""
    if isinstance(value, dict) or (place[-1] == "type" and value in PLAIN_TEXT):
        return True
    if (place[-1], value) == ("role", "user") and isinstance(sent.get("input"), str):
        return True
    key = _camel(RENAMED.get(str(place[-1]), "")) or _key(place)
    found = leaves(sent, whole=frozenset())
    return any(item == value and (_key(at) == key or (isinstance(value, str) and len(value) > 1)) for at, item in found)


def _is_carried(
    api: str, codec: str, body: dict[str, Any], place: Place, value: Any, base: Outcome, able: Capabilities
) -> bool:
    removed = outcome(api, codec, without(body, place), able)
    if api == codec and _is_sent(place, value, base.body):
        return True
    if api != codec and removed.body != base.body:
        return True
    changed = outcome(api, codec, with_other(body, place, _other(value)), able)
    # To the same vendor a value may be left unsaid only where it holds unsaid.
    return changed != base and (api != codec or removed == base)


def _is_named(api: str, codec: str, body: dict[str, Any], place: Place, base: Outcome, able: Capabilities) -> bool:
    """Whether a loss goes away with the leaf, or with what it stands in, up to its turn or tool."""
    for length in range(len(place), 0, -1):
        removed = outcome(api, codec, without(body, place[:length]), able)
        if not removed.refused and base.losses - removed.losses:
            return True
        if length == 2 and place[0] in TURNS:
            break
    return False


_ALWAYS_STRICT = frozenset({"anthropic", "gemini", "bedrock", "cohere", "ollama"})
KNOWN_OTHERWISE: dict[str, frozenset[str]] = {
    # The native channel of these is binding in any case.
    "response_format.json_schema.strict": _ALWAYS_STRICT,
    "text.format.strict": _ALWAYS_STRICT,
    # JSON mode with a schema is spelled as a schema, which the servers that have it take, too.
    "response_format.type": frozenset({"openai-chat"}),
    # Results follow their calls by name and order, and an image is looked at for its kind.
    "messages[].tool_calls[].id": frozenset({"ollama"}),
    "messages[].tool_call_id": frozenset({"ollama"}),
    "messages[].content[].id": frozenset({"ollama"}),
    "messages[].content[].tool_use_id": frozenset({"ollama"}),
    "messages[].content[].source.media_type": frozenset({"ollama"}),
    "input[].call_id": frozenset({"ollama"}),
    "contents[].parts[].functionCall.id": frozenset({"ollama"}),
    "contents[].parts[].functionResponse.id": frozenset({"ollama"}),
    "contents[].parts[].inlineData.mimeType": frozenset({"ollama"}),
    # A tool (not a speaker) is known by the id of its call; an allowed one by its name.
    "messages[].name": frozenset({"openai-responses", "anthropic", "bedrock", "cohere"}),
    "tool_choice.tools[].type": frozenset(CODECS),
}
"""Places whose meaning a vendor has without them."""


def _is_known_otherwise(codec: str, body: dict[str, Any], place: Place) -> bool:
    spelled = re.sub(r"\.?\[\]", "[]", ".".join("[]" if isinstance(step, int) else step for step in place))
    if codec not in KNOWN_OTHERWISE.get(spelled, ()):
        return False
    if spelled == "response_format.type":
        return "schema" in body["response_format"]
    return spelled != "messages[].name" or body["messages"][place[1]].get("role") in ("tool", "function")


def lost_in_silence(
    api: str, codec: str, body: dict[str, Any], of: Sequence[Place] | None = None, able: Capabilities = ABLE
) -> list[str]:
    """The places of the leaves that nothing accounts for, among all or some."""
    base = outcome(api, codec, body, able)
    if base.refused:
        return []
    return [
        ".".join(map(str, place))
        for place, value in leaves(body)
        if (of is None or place in of)
        and not _is_carried(api, codec, body, place, value, base, able)
        and not _is_named(api, codec, body, place, base, able)
        and not _is_known_otherwise(codec, body, place)
    ]
