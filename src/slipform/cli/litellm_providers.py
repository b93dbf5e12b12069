"""Convert a LiteLLM deployment to a provider: its kind, address, key, headers and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import chain, count
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from slipform.cli.litellm_values import (
    NAMES,
    READERS,
    SECRET_NAME,
    SHORT,
    TABLES,
    LiteLlmImport,
    as_mapping,
    is_placeholder,
    is_secret,
    put,
    reference,
    variable_of,
)
from slipform.config.load import SettingPath
from slipform.providers.catalog import Vendor, load_catalog

_COMPATIBLE: Final = "openai-compatible"
_ADDRESS_VARIABLE = re.compile(r"(:?)\$\{(\w+)(?::-[^}]*)?\}")
"""An environment variable within an address, and whether it is the port."""


class _KnownProvider(NamedTuple):
    """The meaning of a prefix of LiteLLM's model names: a kind of the catalogue, with an address and a key."""

    kind: str
    base_url: str | None = None
    key_env: str | None = None


def read_provider(
    state: LiteLlmImport, model: str, params: dict[str, Any], place: SettingPath
) -> tuple[str, str] | None:
    """Return the model's name with its provider, and the provider's kind; None where that is unknown."""
    prefix, upstream, fault = _split_model(model, params)
    provider = known_providers().get(prefix, _KnownProvider(_COMPATIBLE))
    for route in TABLES["routes"].get(prefix, "").split():
        upstream = upstream.removeprefix(route)
    if prefix.startswith("vertex_ai") and "claude" in upstream:
        provider = _KnownProvider("vertex-anthropic")
    elif prefix == "openai" and upstream.startswith("responses/"):
        provider = _KnownProvider("openai-responses")
        upstream = upstream.removeprefix("responses/")
    if provider.kind == "bedrock" and (region := re.match(r"([a-z]{2}(?:-[a-z]+)+-\d)/", upstream)):
        params.setdefault("aws_region_name", region[1])
        upstream = upstream[region.end() :]
    if fault or not upstream:
        state.note("left out", place, fault or "it names a provider without a model", "litellm_params.model")
        return None
    base = params.pop("api_base", None) or params.pop("base_url", None)
    settings = _read_address(state, provider, base, (*place, "api_base"))
    if settings["kind"] == _COMPATIBLE and "base_url" not in settings:
        text = f"{prefix!r} needs an address (`api_base`), and there is none"
        state.note("left out", place, text, "litellm_params.model")
        return None
    _read_key(state, settings, provider, params.pop("api_key", None), (*place, "api_key"))
    _read_provider_fields(state, settings, params, place)
    _read_headers(state, settings, params, (*place, "extra_headers"))
    return f"{_add_provider(state, prefix, provider, settings)}/{upstream}", settings["kind"]


def _split_model(model: str, params: dict[str, Any]) -> tuple[str, str, str]:
    """Return LiteLLM's name of the provider, the provider's name of the model, and why it is not supported."""
    chosen = params.pop("custom_llm_provider", None) or ""
    prefix, slash, upstream = model.partition("/")
    if chosen in NAMES["unsupported"] or (slash and prefix in NAMES["unsupported"] and not chosen):
        return "", "", f"the API of {chosen or prefix!r} is not one that slipform speaks"
    if chosen:
        return chosen, upstream if slash and prefix == chosen else model, ""
    if not slash:
        return _default_provider(model), model, ""
    if prefix in known_providers():
        return prefix, upstream, ""
    if params.get("api_base") or params.get("base_url"):
        return "custom_openai", model, ""
    return "", "", f"the provider {prefix!r} is not known here"


def _default_provider(model: str) -> str:
    """Return the provider of a model without a prefix, as LiteLLM chooses it."""
    beginnings = {"claude": "anthropic", "gemini": "gemini", "command": "cohere", "mistral-": "mistral"}
    return next((name for start, name in beginnings.items() if model.startswith(start)), "openai")


@cache
def known_providers() -> dict[str, _KnownProvider]:
    """Return the meaning of each prefix of LiteLLM's model names."""
    providers = {name: _KnownProvider(name) for name in NAMES["same"]}
    providers |= {name: _KnownProvider(_COMPATIBLE) for name in NAMES["addressed"]}
    for name, text in TABLES["catalogue"].items():
        kind, _, key_env = text.partition(" ")
        providers[name] = _KnownProvider(kind, None, key_env or None)
    for name, text in TABLES["compatible"].items():
        address, _, key_env = text.partition(" ")
        providers[name] = _KnownProvider(_COMPATIBLE, address, key_env or None)
    return providers


def _read_address(state: LiteLlmImport, provider: _KnownProvider, base: Any, place: SettingPath) -> dict[str, Any]:
    """Return the kind of a provider and its address."""
    if not base:
        return _default_address(state, provider, place)
    kind = _COMPATIBLE if provider.kind == "openai" else provider.kind
    if (variable := variable_of(base)) is not None:
        state.note("note", place, f"the address is read from {variable}: set it")
        suffix = "/openai/v1" if kind == "azure" else ""
        return {"kind": kind, "base_url": f"${{{variable}:-{_usual_address(provider.kind, variable)}}}{suffix}"}
    parts = _address_parts(state, base, place)
    if parts is None:
        return {"kind": provider.kind}
    if parts.hostname == "api.openai.com" and provider.kind == "openai":
        kind = provider.kind
    return _written_address(state, kind, parts, place)


def _written_address(state: LiteLlmImport, kind: str, parts: SplitResult, place: SettingPath) -> dict[str, Any]:
    """Return the kind of a provider and its address, as the kind expects it."""
    resource = re.fullmatch(r"([\w-]+)\.openai\.azure\.com", parts.hostname or "")
    if kind == "azure" and resource is not None:
        return {"kind": kind, "settings": {"resource": resource[1]}}
    address = urlunsplit(parts).rstrip("/")
    if kind == "azure":
        address = f"{address.removesuffix('/openai/v1').removesuffix('/openai')}/openai/v1"
    elif kind in ("anthropic", "ollama"):
        address = address.removesuffix("/v1").removesuffix("/api")
    if variables := ", ".join(variable for _, variable in _ADDRESS_VARIABLE.findall(address)):
        state.note("note", place, f"the address is completed from {variables}: set it")
    return {"kind": kind, "base_url": _ADDRESS_VARIABLE.sub(_with_default, address)}


def _usual_address(kind: str, variable: str) -> str:
    """Return the catalogue's address of a kind of provider, or one that does not exist."""
    vendor = _vendor(kind)
    if vendor is None or "{" in vendor.base_url:
        return f"http://{_slug(variable)}.invalid"
    return vendor.base_url


def _default_address(state: LiteLlmImport, provider: _KnownProvider, place: SettingPath) -> dict[str, Any]:
    if provider.base_url is None:
        return {"kind": provider.kind}
    if variable := _ADDRESS_VARIABLE.search(provider.base_url):
        state.note("note", place, f"the address is completed from {variable[2]}")
    return {"kind": provider.kind, "base_url": provider.base_url}


def _address_parts(state: LiteLlmImport, base: str, place: SettingPath) -> SplitResult | None:
    """Return the parts of an address, without a password or a key."""
    try:
        parts = urlsplit(base.strip())
        _ = parts.hostname
    except ValueError:
        state.note("left out", place, "it is not an address")
        return None
    if parts.username or parts.password or SECRET_NAME.search(parts.query):
        state.note("left out", place, "the address holds a password or a key, which is not copied")
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="")
    return parts


def _read_key(
    state: LiteLlmImport, settings: dict[str, Any], provider: _KnownProvider, key: Any, place: SettingPath
) -> None:
    """Read the variable of a key; the key itself is never copied."""
    kind = settings["kind"]
    vendor = _vendor(kind)
    usual = provider.key_env or next(iter(vendor.api_key_env if vendor else ()), None)
    is_usual = bool(usual) and (kind != _COMPATIBLE or provider.key_env is not None)
    if isinstance(key, str) and (variable := variable_of(key)) is not None:
        settings["api_key_env"] = variable
    elif isinstance(key, str) and not is_placeholder(key) and len(key.strip()) >= SHORT:
        own = f"{_slug(_host(settings) or kind, '_')}_API_KEY".upper()
        variable = usual if usual and kind != _COMPATIBLE else own
        settings["api_key_env"] = variable
        text = f"the file holds a key, which is not copied: put it into the environment as {variable}"
        state.note("left out", place, text)
    elif is_usual and (key is None or (vendor is not None and vendor.key == "required")):
        settings["api_key_env"] = usual


def _read_provider_fields(
    state: LiteLlmImport, settings: dict[str, Any], params: dict[str, Any], place: SettingPath
) -> None:
    """Read the parameters of a provider's address and credentials."""
    kind = settings["kind"]
    vendor = _vendor(kind)
    for name, row in TABLES["provider"].items():
        value = params.get(name)
        if value is None or kind not in row.get("kinds", kind).split() or str(value).lstrip().startswith("{"):
            continue  # credentials themselves are not copied
        params.pop(name)
        if "variable" in row and variable_of(str(value)) != row["variable"]:
            text = f"it is read from {row['variable']} in the environment: put it there"
            state.note("left out", (*place, name), text)
        if "into" in row:
            url_field = vendor.fields.get(row["into"].partition(".")[2]) if vendor else None
            default = (url_field.default or "unset") if url_field else ""
            reading = READERS[row["as"]](value) if "as" in row else reference(value, default)
            put(settings, row["into"], reading)
        if "note" in row:
            state.note("note", (*place, name), row.get(kind, row["note"]))


def _read_headers(state: LiteLlmImport, settings: dict[str, Any], params: dict[str, Any], place: SettingPath) -> None:
    headers = {**as_mapping(params.pop("headers", None)), **as_mapping(params.pop("extra_headers", None))}
    if organization := params.pop("organization", None):
        headers["OpenAI-Organization"] = organization
    for name, value in headers.items():
        if variable_of(str(value)) is None and is_secret(str(name), value):
            text = f"the header {name} holds a secret, which is not copied: write `${{NAME}}` and set NAME"
            state.note("left out", place, text)
        else:
            settings.setdefault("headers", {})[str(name)] = reference(value, "")


def _add_provider(state: LiteLlmImport, prefix: str, provider: _KnownProvider, settings: dict[str, Any]) -> str:
    """Add a provider with these settings, unless it exists; return its name."""
    own = _host(settings) if settings["kind"] == _COMPATIBLE and provider.base_url is None else ""
    stem = _slug(own) or _slug(prefix) or "provider"
    if stem in ("local", "transformers") or (_vendor(stem) and stem not in (settings["kind"], prefix)):
        stem = f"{stem}-server"
    names = chain([stem], (f"{stem}-{at}" for at in count(2)))
    name = next(each for each in names if state.providers.get(each, settings) == settings)
    state.providers[name] = settings
    return name


def _with_default(variable: re.Match[str]) -> str:
    """Return the variable with a default, so that the address can be parsed where it is not set."""
    colon, name = variable.groups()
    default = "80" if colon else "unset"
    return f"{colon}${{{name}:-{default}}}"


def _host(settings: Mapping[str, Any]) -> str:
    """Return the host of a provider's address; empty where it is not in the file."""
    return urlsplit(_ADDRESS_VARIABLE.sub("", str(settings.get("base_url", "")))).hostname or ""


def _slug(text: str, between: str = "-") -> str:
    return re.sub(r"[^A-Za-z0-9]+", between, text).strip(between).lower()


def _vendor(kind: str) -> Vendor | None:
    return load_catalog().vendors.get(kind)
