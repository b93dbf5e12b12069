"""Nothing that a client sends is lost in silence: it is carried, renamed, named as lost or refused."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from slipform.codecs import APIS, CODECS, Capabilities
from slipform.codecs.request_fields import Fields
from tests.codecs.accounting import WHOLE, Place, leaves, lost_in_silence, outcome, with_other
from tests.codecs.recorded import SHARED
from tests.codecs.wire_features import FEATURES, PLAIN

CASES = [(api, feature) for api, features in FEATURES.items() for feature in features]
REFUSED = {("openai-chat", "both limits")}
_OTHER_SHAPES = {
    "schema", "schema described", "schema described twice", "schema field", "older schema", "OpenAPI schema",
    "JSON mode", "JSON mode with a schema", "text field", "plain mode", "enum mode", "snake case",
    "one call without tools", "choice without tools",
}  # fmt: skip
"""Features that a schema takes the place of, and what a tool of slipform's own answers."""

UNDELIVERABLE = "does not take the"
"""In an error: an image, a sound or a file that the vendor's API cannot carry."""


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("api", "feature"), CASES)
def test_every_leaf_of_a_feature_is_accounted_for(api: str, feature: str, codec: str) -> None:
    body = FEATURES[api][feature]
    refused = outcome(api, codec, body).refused
    assert bool(refused) is ((api, feature) in REFUSED or UNDELIVERABLE in refused)
    assert lost_in_silence(api, codec, body) == []


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("api", APIS)
def test_a_plain_request_loses_nothing(api: str, codec: str) -> None:
    losses = [path for path, _ in outcome(api, codec, PLAIN[api]).losses if path != "max_tokens"]
    assert losses == []


_BY_TOOL = Capabilities(tools=True, forced_tool=True, json_mode=True, reasoning=True)
_SHAPES: dict[str, dict[str, Any]] = {api: features["schema"] for api, features in FEATURES.items()}


def _beside(body: Any, shape: Any) -> Any:
    """The request with all of another that it says nothing about."""
    if not isinstance(body, dict) or not isinstance(shape, dict):
        return body
    return {**shape, **{key: _beside(value, shape[key]) if key in shape else value for key, value in body.items()}}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("api", APIS)
def test_nothing_is_lost_beside_a_schema_that_goes_by_a_tool(api: str, codec: str) -> None:
    lost = {}
    for name, body in FEATURES[api].items():
        if (api, name) in REFUSED or name in _OTHER_SHAPES:
            continue
        both = _beside(body, _SHAPES[api])
        places = [place for place, _ in leaves(body)]
        if found := lost_in_silence(api, codec, both, places, _BY_TOOL):
            lost[name] = found
    assert lost == {}


def _objects(value: Any, place: Place = ()) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Every object of a request with its place; schemas have rules of their own."""
    if isinstance(value, dict) and not (place and place[-1] in WHOLE):
        yield place, value
        for key, item in value.items():
            yield from _objects(item, (*place, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _objects(item, (*place, at))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("api", APIS)
def test_a_key_that_nobody_knows_is_accounted_for_in_every_object(api: str, codec: str) -> None:
    key, lost, seen = "zzNew" if api == "gemini" else "zz_new", [], set()
    for name, body in FEATURES[api].items():
        for place, found in () if (api, name) in REFUSED else _objects(body):
            kind = (_shape(body, place), found.get("type") or found.get("role") or tuple(found))
            if kind not in seen:
                seen.add(kind)
                other = with_other(body, place, {**found, key: 7})
                refused = outcome(api, codec, other).refused
                assert not refused or UNDELIVERABLE in refused
                lost += lost_in_silence(api, codec, other, [(*place, key)])
    assert lost == []


def test_what_is_lost_in_silence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accounting itself: where nothing is left of what was not read, it says so."""
    monkeypatch.setattr(Fields, "rest", lambda _self, _objects=(), *, nulls=False: {})
    body = {**PLAIN["openai-chat"], "new": 1, "tools": FEATURES["openai-chat"]["tool cache"]["tools"]}
    kept = ["tools.0.cache_control.type", "tools.0.cache_control.ttl"]
    for codec in ("openai-chat", "anthropic"):
        assert lost_in_silence("openai-chat", codec, body) == ["new", *kept]


_RECORDED_APIS = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic-messages": "anthropic",
    "gemini-generate-content": "gemini",
}


def _shape(body: Any, place: Place) -> tuple[str, ...]:
    """What kind of place it is: its keys, with the kind of each element on the way."""
    shape: list[str] = []
    for step in place:
        body = body[step]
        kind = body.get("type") or body.get("role") or "" if isinstance(body, dict) else ""
        shape.append(str(kind) if isinstance(step, int) else step)
    return tuple(shape)


@cache
def _recorded() -> dict[str, list[tuple[str, dict[str, Any], list[Place]]]]:
    """The recorded requests by API, with those of their leaves that stand in a kind of place not seen before."""
    found: dict[str, list[tuple[str, dict[str, Any], list[Place]]]] = defaultdict(list)
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for path in sorted((SHARED / "recordings").glob("*.json")):
        data = json.loads(path.read_text())
        _add(found, seen, path.stem, _RECORDED_APIS.get(data["api"]), data["request"].get("body"))
    for path in sorted((SHARED / "wire-samples").glob("*.json")):
        for request in json.loads(path.read_text())["requests"]:
            _add(found, seen, path.stem, _api_of(str(request.get("path"))), request.get("body"))
    return found


def _api_of(path: str) -> str | None:
    for pattern, api in (("/chat/completions", "openai-chat"), ("/responses", "openai-responses"),
                         ("/messages", "anthropic"), ("enerateContent", "gemini")):  # fmt: skip
        if re.search(pattern, path):
            return api
    return None


def _add(found: Any, seen: set[tuple[str, tuple[str, ...]]], name: str, api: str | None, body: Any) -> None:
    if api is None or not isinstance(body, dict):
        return
    new = {(api, _shape(body, place)): place for place, _ in leaves(body)}
    places = [place for shape, place in new.items() if shape not in seen]
    seen.update(new)
    if places:
        found[api].append((name, body, places))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("api", APIS)
def test_every_leaf_of_a_recorded_request_is_accounted_for(api: str, codec: str) -> None:
    recorded = _recorded().get(api)
    if not recorded:
        pytest.skip("the recordings are not beside this repository")
    lost = {name: found for name, body, places in recorded if (found := lost_in_silence(api, codec, body, places))}
    assert lost == {}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("api", "feature", "uploaded"),
    [
        ("openai-chat", "file by id", "file-1"),
        ("openai-responses", "image by id", "file-1"),
        ("anthropic", "image by id", "file_1"),
        ("gemini", "file field", "gs://a/b.png"),
    ],
)
def test_a_file_that_another_vendor_has_is_named_and_not_sent(
    api: str, feature: str, uploaded: str, codec: str
) -> None:
    sent = outcome(api, codec, FEATURES[api][feature])
    own = api.partition("-")[0] == codec.partition("-")[0]
    assert (uploaded in json.dumps(sent.body)) is own
    assert own or UNDELIVERABLE in sent.refused


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_an_effort_is_sent_in_the_vendors_words_or_named(effort: str, codec: str) -> None:
    sent = outcome("openai-chat", codec, {**PLAIN["openai-chat"], "reasoning_effort": effort})
    spelled = json.dumps(sent.body).lower()
    assert f'"{effort}"' in spelled or any(path == "reasoning.effort" for path, _ in sent.losses)
    words = {"anthropic": "minimal", "bedrock": "minimal", "ollama": "max", "gemini": "max"}
    assert f'"{words.get(codec, "?")}"' not in spelled
