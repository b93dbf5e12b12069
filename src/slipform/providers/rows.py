"""Reading one row of the catalogue, from TOML or from a user's settings, with every mistake named."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from datetime import date
from types import MappingProxyType
from typing import Any, get_args

from slipform.codecs.base import Capabilities
from slipform.errors import ConfigError
from slipform.providers.catalog import Auth, Field, Pattern, Vendor
from slipform.providers.codecs_by_name import CODECS

DIALECTS = frozenset(
    {"openai", "azure-legacy", "groq", "cerebras", "xai", "mistral", "deepseek", "cohere", "anthropic", "bedrock"}
    | {"gemini", "gemini-openapi", "llguidance", "llamacpp", "together", "fireworks", "tool", "identity"}
)
"""The schema dialects a row may name."""

_BLANK = Vendor(name="", title="", base_url="", codec="")


def read_row(name: str, row: object, known: Mapping[str, Vendor], template: Vendor = _BLANK) -> Vendor:
    """A checked row. It starts from the row it `extends`, else from the one of its own name, else from the template."""
    where = f"providers.{name}"
    if not name or "/" in name:
        raise ConfigError(f"{name!r} is no name for a provider", where=where, hint="Use a name without `/`.")
    fields = dict(_mapping(row, where))
    extends = fields.pop("extends", None)
    base = known.get(name, template) if extends is None else _named(extends, f"{where}.extends", known)
    changes: dict[str, Any] = {"name": name}
    if "base_url" in fields:
        changes["base_url_env"] = ()  # an address in the settings beats one in the environment
    if base is template:
        changes["api_key_env"] = ()  # the template's key is for the template's address
    for key, value in fields.items():
        reader = _READERS.get(key)
        if reader is None:
            raise _unknown(key, _READERS, f"{where}.{key}")
        changes.update(reader(value, f"{where}.{key}", base, known))
    vendor = dataclasses.replace(base, **changes)
    if not vendor.base_url or not vendor.codec:
        raise ConfigError("A row needs `base_url` and `codec`", where=where)
    return vendor


def _named(value: object, where: str, known: Mapping[str, Vendor]) -> Vendor:
    name = _text(value, where)
    if name not in known:
        raise _unknown(name, known, where, what="vendor")
    return known[name]


Reader = Callable[[object, str, Vendor, Mapping[str, Vendor]], dict[str, Any]]


def _capabilities(value: object, where: str, base: Vendor, _: Mapping[str, Vendor]) -> dict[str, Any]:
    return {"values": MappingProxyType({**base.values, **_values(value, where)})}


def _patterns(value: object, where: str, base: Vendor, known: Mapping[str, Vendor]) -> dict[str, Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(value, "a list of patterns", where)
    # Later ones win over earlier ones of the same specificity, so the added ones go last.
    return {"patterns": (*base.patterns, *(_pattern(item, f"{where}[{i}]", known) for i, item in enumerate(value)))}


def _pattern(value: object, where: str, known: Mapping[str, Vendor]) -> Pattern:
    fields = dict(_mapping(value, where))
    if "match" not in fields:
        raise ConfigError("A pattern needs `match`", where=where, hint='For example match = "gpt-5*".')
    globs = _texts(fields.pop("match"), f"{where}.match")
    like = fields.pop("like", None)
    return Pattern(
        globs,
        MappingProxyType(_values(fields, where)),
        like=None if like is None else _named(like, f"{where}.like", known),
    )


def _fields(value: object, where: str, base: Vendor, _: Mapping[str, Vendor]) -> dict[str, Any]:
    read = {}
    for name, item in _mapping(value, where).items():
        inner = f"{where}.{name}"
        parts = dict(_mapping(item, inner))
        env = _texts(parts.pop("env", ()), f"{inner}.env")
        default = parts.pop("default", None)
        for extra in parts:
            raise _unknown(extra, ("env", "default"), f"{inner}.{extra}")
        read[name] = Field(env, None if default is None else _text(default, f"{inner}.default"))
    return {"fields": MappingProxyType({**base.fields, **read})}


_FLAGS = frozenset({"native", "tools", "forced_tool", "json_mode", "sampling", "reasoning"})
_CAPABILITY_NAMES = tuple(spec.name for spec in dataclasses.fields(Capabilities))


def _values(value: object, where: str) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, item in _mapping(value, where).items():
        inner = f"{where}.{name}"
        if name not in _CAPABILITY_NAMES:
            raise _unknown(name, _CAPABILITY_NAMES, inner)
        if name in _FLAGS:
            if not isinstance(item, bool):
                raise _wrong(item, "true or false", inner)
            read[name] = item
        elif name == "quirks":
            read[name] = frozenset(_texts(item, inner))
        elif name == "max_tokens_field" and item is None:
            read[name] = None
        else:
            read[name] = _text(item, inner)
            if name.endswith("dialect") and item not in DIALECTS:
                raise _unknown(str(item), DIALECTS, inner, what="dialect")
    return read


def _choice(options: tuple[str, ...]) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        text = _text(value, where)
        if text not in options:
            raise _wrong(value, f"one of {', '.join(options)}", where)
        return text

    return read


def _codec(value: object, where: str) -> str:
    name = _text(value, where)
    if name not in CODECS:
        raise _wrong(value, f"one of {', '.join(sorted(CODECS))}", where)
    return name


def _strings(value: object, where: str) -> Mapping[str, str]:
    return MappingProxyType({key: _text(item, f"{where}.{key}") for key, item in _mapping(value, where).items()})


def _checked(value: object, where: str) -> str:
    return value.isoformat() if isinstance(value, date) else _text(value, where)


def _plain(name: str, read: Callable[[object, str], Any]) -> Reader:
    def reader(value: object, where: str, _: Vendor, __: Mapping[str, Vendor]) -> dict[str, Any]:
        return {name: read(value, where)}

    return reader


def _merged_headers(value: object, where: str, base: Vendor, _: Mapping[str, Vendor]) -> dict[str, Any]:
    return {"headers": MappingProxyType({**base.headers, **_strings(value, where)})}


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(value, "a table of names and values", where)
    for key in value:
        if not isinstance(key, str):
            raise _wrong(key, "a name", where)
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(value, "a text that is not empty", where)
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    """One text or a list of them."""
    if isinstance(value, str):
        return (_text(value, where),)
    if not isinstance(value, list | tuple | set | frozenset):
        raise _wrong(value, "a text or a list of texts", where)
    return tuple(_text(item, f"{where}[{index}]") for index, item in enumerate(value))


def _wrong(value: object, wanted: str, where: str) -> ConfigError:
    # The value itself is not shown: a key pasted into the wrong field would end up in a log.
    return ConfigError(f"Expected {wanted}, found {type(value).__name__}", where=where)


def _unknown(name: str, options: Any, where: str, what: str = "field") -> ConfigError:
    near = difflib.get_close_matches(name, sorted(options), n=3)
    hint = f"Did you mean {', '.join(near)}?" if near else f"Known are: {', '.join(sorted(options))}."
    return ConfigError(f"Unknown {what} {name!r}", where=where, hint=hint)


_READERS: Mapping[str, Reader] = {
    "title": _plain("title", _text),
    "base_url": _plain("base_url", _text),
    "base_url_env": _plain("base_url_env", _texts),
    "fields": _fields,
    "api_key_env": _plain("api_key_env", _texts),
    "key": _plain("key", _choice(("required", "optional"))),
    "auth": _plain("auth", _choice(get_args(Auth))),
    "headers": _merged_headers,
    "codec": _plain("codec", _codec),
    "capabilities": _capabilities,
    "patterns": _patterns,
    "models": _plain("models", _texts),
    "source": _plain("source", _text),
    "checked": _plain("checked", _checked),
}
