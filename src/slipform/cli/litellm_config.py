"""Convert a LiteLLM configuration to slipform's settings, and report why anything is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from slipform.cli.litellm_providers import read_provider
from slipform.cli.litellm_values import (
    LEFT_OUT,
    NAMES,
    NOTES,
    READERS,
    SECRET_NAME,
    TABLES,
    LiteLlmDeployment,
    LiteLlmImport,
    as_list,
    as_mapping,
    as_number,
    is_secret,
    literal,
    put,
    reference,
    typed_fields,
    variable_of,
)
from slipform.config.load import SettingPath

SECTIONS: Final = ("litellm_settings", "router_settings", "general_settings")
_FALLBACKS: Final = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "default_fallbacks")
_CALLBACKS: Final = ("callbacks", "success_callback", "failure_callback")
_REDIS: Final = ("redis_host", "redis_port", "redis_password", "redis_url", "redis_db", "redis_ssl")
_SECRET = object()
"""Replaces a value that must not be copied."""


def convert(state: LiteLlmImport, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return slipform's settings for a LiteLLM configuration."""
    data = typed_fields(state, data, ())
    sections = {name: typed_fields(state, as_mapping(data.get(name)), (name,)) for name in SECTIONS}
    _read_credentials(state, data.get("credential_list"))
    for section in sections.values():
        state.defaults |= as_mapping(section.get("default_params"))
        state.defaults |= as_mapping(section.get("default_litellm_params"))
    _note_wrong_types(state, data)
    for at, entry in enumerate(as_list(data.get("model_list"))):
        _read_entry(state, entry, ("model_list", at))
    for name, section in sections.items():
        for setting in section:
            _read_setting(state, section, (name, setting))
    for name, value in data.items():
        if name not in ("model_list", "include", "credential_list", *SECTIONS):
            _read_top(state, name, value)
    return _merge_settings(state, _encode_aliases(state, *_read_fallbacks(state, sections)))


def _note_wrong_types(state: LiteLlmImport, data: Mapping[str, Any]) -> None:
    """Report a `model_list` that is not a list, and sections that are not maps; all of them may be empty."""
    if not isinstance(data.get("model_list") or [], list):
        state.note("left out", ("model_list",), "it is not a list")
    for name in SECTIONS:
        if not isinstance(data.get(name) or {}, dict):
            state.note("left out", (name,), "it is not a map")


def _merge_settings(state: LiteLlmImport, aliases: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a readable order."""
    first = next((each.target for deployments in state.aliases.values() for each in deployments), None)
    default = state.settings.pop("default_model", None) or next(iter(aliases), None) or first
    seconds = as_mapping(state.settings.get("runtime")).get("timeout_seconds", 0)
    longer = {"request_seconds": seconds} if seconds > 600 else {}
    server = {"port": 4000, **longer, **state.settings.pop("server", {})}
    tables = {"model_aliases": aliases, "providers": state.providers, "prices": state.prices}
    filled = {name: value for name, value in tables.items() if value}
    ordered = {"default_model": literal(default)} if default else {}
    return {**ordered, **filled, "server": server, **state.settings}


# The entries of `model_list`


def _read_entry(state: LiteLlmImport, entry: Any, place: SettingPath) -> None:
    """Read one entry of `model_list`: its provider, defaults, prices and deployment."""
    where = (*place, "litellm_params")
    if not isinstance(entry, Mapping) or not isinstance(entry.get("litellm_params"), Mapping):
        state.note("left out", place, "an entry without `litellm_params`")
        return
    params = typed_fields(state, _with_credential(state, entry["litellm_params"], place), where)
    info = typed_fields(state, as_mapping(entry.get("model_info")), (*place, "model_info"))
    alias = str(entry.get("model_name") or params.get("model") or "")
    for name in entry:
        if name not in ("model_name", "litellm_params", "model_info"):
            state.note_unsupported((*place, str(name)), name=f"model_list.{name}")
    shares = {name: number for name in ("weight", "rpm", "tpm") if (number := as_number(params.get(name)))}
    model = _model_name(state, params.pop("model", None), (*where, "model"))
    provider = read_provider(state, model, params, where) if model else None
    if provider is None:
        return
    target, kind = provider
    params.pop("weight", None)
    order = as_number(params.pop("order", None)) or 0.0
    defaults = _request_defaults(state, params, kind, where)
    _read_info(state, info, params, target, (*place, "model_info"))
    for name, value in params.items():
        _read_parameter(state, value, defaults, (*where, name))
    _add_deployment(state, alias, LiteLlmDeployment(target, shares, order, {**state.defaults, **defaults}), place)


def _with_credential(state: LiteLlmImport, params: Mapping[str, Any], place: SettingPath) -> dict[str, Any]:
    name = params.get("litellm_credential_name")
    if name is not None and str(name) not in state.credentials:
        text = f"the credential {name!r} is in LiteLLM's database: set `api_key_env` yourself"
        state.note("left out", place, text, "litellm_params.litellm_credential_name")
    merged = {**state.credentials.get(str(name), {}), **params}
    return {key: value for key, value in merged.items() if key != "litellm_credential_name"}


def _add_deployment(state: LiteLlmImport, alias: str, deployment: LiteLlmDeployment, place: SettingPath) -> None:
    """Add a deployment to its alias, once for each target."""
    if not alias:
        state.note("left out", (*place, "model_name"), "there is none")
        return
    if "*" in alias or "*" in deployment.target.partition("/")[2]:
        _read_wildcard(state, alias, deployment.target, (*place, "model_name"))
        return
    deployments = state.aliases.setdefault(alias, [])
    same = next((each for each in deployments if each.target == deployment.target), None)
    if same is None:
        deployments.append(deployment)
    elif same.defaults != deployment.defaults:
        text = f"`{alias}` has {deployment.target} twice, with other parameters; the first are taken"
        state.note("left out", (*place, "litellm_params"), text)


def _model_name(state: LiteLlmImport, model: Any, place: SettingPath) -> str | None:
    if isinstance(model, str) and (variable := variable_of(model)) is not None:
        model = state.environment.get(variable)
        if not model:
            text = f"the model's name is in {variable}, which is not set here; set it and import again"
            state.note("left out", place, text)
            return None
        state.note("note", place, f"the model's name was taken from {variable}")
    if not isinstance(model, str) or not model.strip():
        state.note("left out", place, "there is none")
        return None
    return model.strip()


def _request_defaults(state: LiteLlmImport, params: dict[str, Any], kind: str, place: SettingPath) -> dict[str, Any]:
    """Remove the parameters that are sent with every request from `params`, and return them."""
    options = {name: params.pop(name) for name in list(params) if name in NAMES["ollama_options"]}
    defaults = {name: params.pop(name) for name in list(params) if name in NAMES["defaults"]}
    body = dict(as_mapping(params.pop("extra_body", None)))
    if "keep_alive" in params:
        body["keep_alive"] = params.pop("keep_alive")
    if kind != "ollama":
        body |= options
    elif options:
        body["options"] = {**as_mapping(body.get("options")), **options}
    if body:
        defaults["extra_body"] = body
    return _readable_defaults(state, defaults, place)


def _readable_defaults(state: LiteLlmImport, defaults: dict[str, Any], place: SettingPath) -> dict[str, Any]:
    """Return the defaults that slipform supports, without possible secrets."""
    from slipform.config import Settings
    from slipform.engine.setup import alias_targets
    from slipform.errors import SlipformError

    readable = {}
    for name, value in defaults.items():
        plain = _without_secrets(state, value, name, (*place, name))
        if plain is _SECRET:
            continue
        try:
            alias = {"model": "a/b", "defaults": {name: plain}}
            alias_targets(Settings.model_validate({"model_aliases": {"a": alias}}))
        except (SlipformError, ValueError):
            state.note("left out", (*place, name), "its value cannot be read")
        else:
            readable[name] = plain
    return readable


def _without_secrets(state: LiteLlmImport, value: Any, name: str, place: SettingPath) -> Any:
    """Return a value without possible secrets; `_SECRET` where all of it may be one."""
    if isinstance(value, Mapping):
        fields = {str(key): _without_secrets(state, each, str(key), place) for key, each in value.items()}
        return {key: each for key, each in fields.items() if each is not _SECRET}
    if isinstance(value, list):
        return [each for each in (_without_secrets(state, each, name, place) for each in value) if each is not _SECRET]
    if isinstance(value, str) and variable_of(value) is None and is_secret(name, value):
        text = "it may be a secret, which is not copied: write `${NAME}` and set NAME"
        state.note("left out", place, text, f"litellm_params.{name}")
        return _SECRET
    return reference(value, "") if isinstance(value, str) else value


def _read_info(
    state: LiteLlmImport, info: Mapping[str, Any], params: dict[str, Any], target: str, place: SettingPath
) -> None:
    """Read prices; note purely informative fields."""
    costs = {}
    for name, own in (("input_cost_per_token", "input"), ("output_cost_per_token", "output")):
        numbers = [as_number(each) for each in (params.pop(name, None), info.get(name))]
        price = next((number for number in numbers if number is not None), None)
        if price is not None:
            costs[own] = round(price * 1_000_000, 9)
    if costs:
        state.prices[target] = {"input": 0.0, "output": 0.0, **costs}
    for name in info:
        if name in ("input_cost_per_token", "output_cost_per_token"):
            continue
        if "cost" in name:
            state.note("left out", (*place, name), "prices are for tokens read and written")
        elif name in NAMES["informs"] or name.startswith("supports_"):
            state.note("note", (*place, name), "it only informs; nothing to set")
        else:
            state.note_unsupported((*place, name))


def _read_parameter(state: LiteLlmImport, value: Any, defaults: dict[str, Any], place: SettingPath) -> None:
    """Read an unknown parameter: it is sent to the vendor unchanged, unless it affects costs, or is a secret."""
    name = str(place[-1])
    if "cost" in name:
        state.note("left out", place, "prices are for tokens read and written")
    elif name == "drop_params" and not isinstance(value, bool):
        state.note("left out", place, LEFT_OUT["additional_drop_params"])
    elif name in LEFT_OUT or name in NOTES or SECRET_NAME.search(name) or name == "cache":
        state.note_unsupported(place, value)
    else:
        body = _readable_defaults(state, {"extra_body": {name: value}}, place).get("extra_body", {})
        defaults["extra_body"] = {**as_mapping(defaults.get("extra_body")), **body}
        state.note("note", place, "it is sent to the vendor as it is")


def _read_wildcard(state: LiteLlmImport, alias: str, target: str, place: SettingPath) -> None:
    provider, _, upstream = target.partition("/")
    prefix = alias.removesuffix("/*")
    if upstream == "*" and alias.endswith("/*") and "*" not in prefix:
        if "/" not in prefix:
            state.providers.setdefault(prefix, state.providers[provider])
        state.note("note", place, f"`{alias}` needs no alias: callers write {prefix}/MODEL")
    else:
        state.note("left out", place, f"`{alias}`: aliases have no wildcards; callers write {provider}/MODEL")


# Sections other than models


def _read_credentials(state: LiteLlmImport, listed: Any) -> None:
    for at, each in enumerate(as_list(listed)):
        if isinstance(each, Mapping):
            state.credentials[str(each.get("credential_name"))] = as_mapping(each.get("credential_values"))
        else:
            state.note("left out", ("credential_list", at), "an entry that is not a map")


def _read_top(state: LiteLlmImport, name: str, value: Any) -> None:
    if name == "environment_variables":
        names = ", ".join(sorted(map(str, as_mapping(value))))
        state.note("left out", (name,), f"put these into the environment, from where they are not copied: {names}")
    elif name in _CALLBACKS:
        _read_callbacks(state, value, (name,))
    else:
        state.note_unsupported((name,), value)


def _read_setting(state: LiteLlmImport, section: Mapping[str, Any], place: SettingPath) -> None:
    """Convert one field of a section, by its row or its reader."""
    name = str(place[-1])
    value = section[name]
    if name in TABLES["settings"]:
        _read_row(state, TABLES["settings"][name], value, place)
    elif name in _SECTION_READERS:
        _SECTION_READERS[name](state, value, place)
    elif name in _REDIS:
        params = {key.removeprefix("redis_"): each for key, each in section.items() if key in _REDIS}
        if "redis" not in state.settings:
            _read_redis(state, params, place)
    elif name not in (*_FALLBACKS, "default_params", "default_litellm_params"):
        state.note_unsupported(place, value)


def _read_row(state: LiteLlmImport, row: Mapping[str, Any], value: Any, place: SettingPath) -> None:
    reading = READERS[row.get("as", "text")](value)
    if reading is None:
        if "otherwise" in row:
            state.note("left out", place, row["otherwise"])
        return
    if "into" in row:
        put(state.settings, row["into"], row.get("value", reading))
    if "note" in row:
        state.note("note", place, row["note"])
    if "left_out" in row:
        state.note("left out", place, row["left_out"].format(value))


def _read_callbacks(state: LiteLlmImport, value: Any, place: SettingPath) -> None:
    for callback in map(str, [value] if isinstance(value, str) else as_list(value)):
        if callback == "prometheus":
            state.note("note", place, "/metrics is always on, for Prometheus")
        elif callback in NAMES["exporters"]:
            state.note("note", place, f"{callback}: set OTEL_EXPORTER_OTLP_ENDPOINT, and spans go there")
        elif "." in callback:
            state.note("left out", place, f"{callback}: Python of LiteLLM's cannot run here")
        else:
            text = f"{callback} has no exporter here; spans go where OTEL_EXPORTER_OTLP_ENDPOINT says"
            state.note("left out", place, text)


def _read_cache_params(state: LiteLlmImport, value: Any, place: SettingPath) -> None:
    """Read the cache's settings; note unsupported ones."""
    params = as_mapping(value)
    kind = params.get("type", "local")
    if kind not in ("local", "redis"):
        text = f"a cache of the type {kind!r}; slipform caches in memory and in Redis"
        state.note("left out", place, text)
        state.settings.pop("cache", None)
        return
    if "cache" in state.settings and (ttl := as_number(params.get("ttl"))):
        state.settings["cache"]["ttl_seconds"] = ttl
    if kind == "redis":
        _read_redis(state, params, place)
    for name in params:
        if name not in ("type", "ttl", "host", "port", "password", "url", "db", "username", "ssl"):
            state.note("left out", (*place, name), "slipform has no such setting of a cache")


def _read_redis(state: LiteLlmImport, params: Mapping[str, Any], place: SettingPath) -> None:
    """Read the address of Redis, without passwords."""
    url = params.get("url")
    if url is None:
        host = reference(params.get("host") or "${REDIS_HOST}", "127.0.0.1")
        port = reference(params.get("port") or "${REDIS_PORT}", "6379")
        login = ""
        if password := params.get("password"):
            login = f":${{{variable_of(str(password)) or 'REDIS_PASSWORD'}:-}}@"
            if variable_of(str(password)) is None:
                text = "the file holds a password, which is not copied: put it into the environment as REDIS_PASSWORD"
                state.note("left out", place, text)
        scheme = "rediss" if params.get("ssl") is True else "redis"
        address = f"{scheme}://{login}{host}:{port}/{params.get('db') or 0}"
    else:
        address = reference(url, "redis://127.0.0.1:6379/0")
    try:
        parts = _redis_parts(re.sub(r"\$\{[^}]*:-([^}]*)\}", r"\1", address))
    except ValueError as error:
        state.note("left out", place, f"this Redis cannot be addressed: {error}")
        return
    if url is not None and (parts.password or parts.username):
        state.note("left out", place, "the address holds a password, which is not copied: set REDIS_URL")
        address = "${REDIS_URL:-redis://127.0.0.1:6379/0}"
    state.settings["redis"] = {"url": address}


def _redis_parts(url: str) -> SplitResult:
    """Return the parts of a Redis address; raises `ValueError` for one that no client can use."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("the address of a Redis begins with redis://, rediss:// or unix://")
    if parts.scheme != "unix" and not parts.hostname:
        raise ValueError("the address names no host")
    _ = parts.port  # raises for a port that is not a number
    return parts


def _read_default_model(state: LiteLlmImport, value: Any, place: SettingPath) -> None:
    if str(value) in state.aliases:
        state.settings["default_model"] = str(value)
    else:
        state.note("left out", place, f"`model_list` has no model {value!r}")


def _read_group_aliases(state: LiteLlmImport, value: Any, place: SettingPath) -> None:
    for name, target in as_mapping(value).items():
        group = str(target.get("model") if isinstance(target, Mapping) else target)
        if group in state.aliases:
            state.aliases[str(name)] = state.aliases[group]
            state.groups[str(name)] = group
        else:
            state.note("left out", place, f"`{name}` stands for {group!r}, which is not in `model_list`")


# Aliases and their fallbacks


def _read_fallbacks(
    state: LiteLlmImport, sections: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the fallbacks of each name, and the general ones."""
    chains: dict[str, list[str]] = {}
    general: list[str] = []
    for place in product(sections, _FALLBACKS):
        section, setting = place
        value = sections[section].get(setting)
        if value is not None and setting in ("context_window_fallbacks", "content_policy_fallbacks"):
            state.note("note", place, "these models are also asked after other failures")
        for name, target in _fallback_pairs(value):
            missing = next((each for each in (target, name) if each not in (None, "*", *state.aliases)), None)
            if missing is not None:
                state.note("left out", place, f"{missing!r} is not in `model_list`")
            elif name in (None, "*"):
                general.append(target)
            else:
                chains.setdefault(str(name), []).append(target)
    return chains, general


def _fallback_pairs(value: Any) -> Iterator[tuple[str | None, str]]:
    """Yield each name in a setting of fallbacks with one of its fallback models; an empty name means all."""
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, Mapping) and each is not None:
            yield None, str(each)
        for name, targets in as_mapping(each).items():
            for target in targets if isinstance(targets, list) else [targets]:
                model = target.get("model") if isinstance(target, Mapping) else target
                if model is not None:
                    yield str(name), str(model)


def _encode_aliases(state: LiteLlmImport, chains: Mapping[str, list[str]], general: Sequence[str]) -> dict[str, Any]:
    """Return the aliases with their targets in order: by `order`, by weight, then fallbacks."""
    aliases: dict[str, Any] = {}
    for alias, deployments in state.aliases.items():
        ordered = sorted(deployments, key=lambda each: each.order)
        first = [each for each in ordered if each.order == ordered[0].order]
        weights = _weights(first) if len(first) > 1 else [None]
        targets = [each.encode(weight) for each, weight in zip(first, weights, strict=True)]
        targets += [each.encode() for each in ordered[len(first) :]]
        after = [*chains.get(state.groups.get(alias, alias), ()), *(each for each in general if each != alias)]
        targets += [each.encode() for group in dict.fromkeys(after) for each in state.aliases.get(group, ())]
        unique: dict[str, Any] = {}
        for target in targets:
            unique.setdefault(_model_of(target), target)
        if len(unique) > 1:
            aliases[alias] = list(unique.values())
        elif ordered[0].encode() != alias:  # otherwise callers use the model's own name
            aliases[alias] = ordered[0].encode()
    return {alias: _without_nested_aliases(state, targets, aliases) for alias, targets in aliases.items()}


def _weights(deployments: Sequence[LiteLlmDeployment]) -> list[float]:
    """Return the weights of deployments that share calls: by the first measure that any of them has."""
    for measure in ("weight", "rpm", "tpm"):
        weights = [each.shares[measure] for each in deployments if measure in each.shares]
        if weights:
            return [each.shares.get(measure, min(weights)) for each in deployments]
    return [1] * len(deployments)


def _without_nested_aliases(state: LiteLlmImport, targets: Any, aliases: Mapping[str, Any]) -> Any:
    """Return an alias's targets with nested aliases replaced by a provider of another name."""
    if isinstance(targets, list):
        return [_without_nested_aliases(state, each, aliases) for each in targets]
    model = _model_of(targets)
    if model in aliases:
        provider, _, upstream = model.partition("/")
        other = f"{provider}-direct/{upstream}"
        state.providers[f"{provider}-direct"] = state.providers[provider]
        if model in state.prices:
            state.prices[other] = state.prices[model]
        model = other
    return {**targets, "model": literal(model)} if isinstance(targets, dict) else literal(model)


def _model_of(target: str | Mapping[str, Any]) -> str:
    return target if isinstance(target, str) else str(target["model"])


_SECTION_READERS: Final[Mapping[str, Callable[[LiteLlmImport, Any, SettingPath], None]]] = {
    **dict.fromkeys(_CALLBACKS, _read_callbacks),
    "cache_params": _read_cache_params,
    **dict.fromkeys(("completion_model", "default_model"), _read_default_model),
    **dict.fromkeys(("model_group_alias", "model_alias_map"), _read_group_aliases),
}
TAKEN: Final = frozenset({*TABLES["settings"], *_SECTION_READERS})
