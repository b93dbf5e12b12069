"""Look up a codec or a served API by name; its module is imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from slipform.codecs.codec import BoundCodec, Codec, EncodedRequest, ServedApi, ServedRequest, StreamEncoder
from slipform.codecs.request_fields import Capabilities
from slipform.codecs.stream_decoder import StreamDecoder
from slipform.errors import ConfigError

__all__ = [
    "APIS",
    "CODECS",
    "FURTHER_APIS",
    "SPOKEN_BY",
    "BoundCodec",
    "Capabilities",
    "Codec",
    "EncodedRequest",
    "ServedApi",
    "ServedRequest",
    "StreamDecoder",
    "StreamEncoder",
    "codec_names",
    "find_api",
    "find_codec",
    "make_codec",
    "register_codec",
]

CODECS: Mapping[str, str] = MappingProxyType(
    {
        "openai-chat": "openai_chat",
        "openai-responses": "openai_responses",
        "anthropic": "anthropic",
        "gemini": "gemini",
        "bedrock": "bedrock",
        "cohere": "cohere",
        "ollama": "ollama",
    }
)
"""The names of the codecs, each with the module of its record, `CODEC`."""
APIS = ("openai-chat", "openai-responses", "anthropic", "gemini")
"""The APIs that slipform serves and also calls; the modules of their codecs contain the records, `API`."""
FURTHER_APIS: Mapping[str, str] = MappingProxyType(
    {"openai-completions": "openai_completions:API", "ollama": "ollama:API", "ollama-generate": "ollama:GENERATE_API"}
)
"""Further APIs that slipform serves, whose clients send one prompt or lines of JSON, with the modules of their
records."""
SPOKEN_BY: Mapping[str, str] = MappingProxyType({"openai-completions": "openai-chat", "ollama-generate": "ollama"})
"""APIs without a codec: the codec of the vendors that offer them, and that counts tokens as they do."""


_OWN_CODECS: dict[str, Codec] = {}


def register_codec(codec: Codec) -> None:
    """Add a codec of your own under its name, for `make_codec` and for rows of a catalogue.

    Raises `ConfigError` where slipform has one of that name.

    ::

        register_codec(Codec("house", path=path, encode=encode, decode=decode, events=Events))
        HttpProvider("openai", base_url="https://llm.house", codec=partial(make_codec, "house"))
    """
    if codec.name in CODECS:
        raise ConfigError(f"slipform has a codec {codec.name!r} itself", hint="Name yours otherwise.")
    _OWN_CODECS[codec.name] = codec


def codec_names() -> list[str]:
    """Return the names of all codecs, registered ones included."""
    return sorted([*CODECS, *_OWN_CODECS])


def find_codec(name: str) -> Codec:
    """Return the record of a vendor's codec; raises `ConfigError` for an unknown name.

    >>> find_codec("gemini").path("gemini-3", Capabilities(), True)
    '/models/gemini-3:streamGenerateContent?alt=sse'
    """
    if name in _OWN_CODECS:
        return _OWN_CODECS[name]
    if name not in CODECS:
        raise ConfigError(f"Unknown codec {name!r}", hint=f"The codecs are: {', '.join(codec_names())}.")
    return _shipped_codec(name)


@cache
def _shipped_codec(name: str) -> Codec:
    codec: Codec = _module(name).CODEC
    return codec


@cache
def find_api(name: str) -> ServedApi:
    """Return the record of a served API; raises `ConfigError` for an unknown name.

    >>> find_api("anthropic").statuses
    {503: 529}
    """
    if name not in APIS and name not in FURTHER_APIS:
        names = ", ".join([*APIS, *FURTHER_APIS])
        raise ConfigError(f"Unknown API {name!r}", hint=f"The APIs are: {names}.")
    module, _, record = FURTHER_APIS.get(name, f"{CODECS.get(name)}:API").partition(":")
    api: ServedApi = getattr(import_module(f"slipform.codecs.{module}"), record)
    return api


def make_codec(name: str, capabilities: Capabilities) -> BoundCodec:
    """Return the codec of that name, for a model with these capabilities.

    >>> make_codec("gemini", Capabilities(native=True)).strategy.value
    'native'
    """
    return BoundCodec(find_codec(name), capabilities)


def _module(name: str) -> Any:
    return import_module(f"slipform.codecs.{CODECS[name]}")
