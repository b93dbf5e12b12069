"""Convert a LiteLLM configuration to slipform's settings, and report why anything is left out.

Nothing that could be a secret is copied: a key that stands in the file itself is replaced by the name of an
environment variable, and the report says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slipform.cli.litellm_names import (
    DEFAULTS,
    FINE,
    INFORMS,
    LEFT_OUT,
    OLLAMA_OPTIONS,
)
from slipform.cli.litellm_providers import SECRET_NAME, ProviderReader, is_secret
from slipform.cli.litellm_settings import (
    READ_WITH_ALIASES,
    SectionReader,
    literal_of,
    mapping_of,
    number_of,
    of_their_kind,
    variable_of,
)
from slipform.config.load import SettingPath

_MILLION = 1_000_000


_SECRET = object()
"""Stands for a value that is not copied."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One line of the report: what of the file is meant, and what became of it."""

    kind: Literal["left out", "note"]
    name: str
    text: str
    place: SettingPath


@dataclass(slots=True)
class _Deployment:
    """One entry of `model_list`: where it leads, and with what."""

    target: str
    shares: dict[str, float]
    """What LiteLLM shares calls out by: `weight`, `rpm`, `tpm`."""
    order: float
    defaults: dict[str, Any]

    def written(self, weight: float | None = None) -> str | dict[str, Any]:
        share = {} if weight is None else {"weight": weight}
        defaults = {"defaults": self.defaults} if self.defaults else {}
        if share or defaults:
            return {"model": self.target, **share, **defaults}
        return self.target


def _weights(listed: Sequence[_Deployment]) -> list[float]:
    """The weights of deployments that share their calls: by the first measure that one of them has."""
    for measure in ("weight", "rpm", "tpm"):
        weights = [each.shares[measure] for each in listed if measure in each.shares]
        if weights:
            return [each.shares.get(measure, min(weights)) for each in listed]
    return [1] * len(listed)


@dataclass(slots=True)
class LiteLlmImport:
    """The settings so far, and the remarks on what has no place in them."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Where the name of a model is looked up that is itself in the environment."""
    remarks: list[Remark] = field(default_factory=list)
    _aliases: dict[str, list[_Deployment]] = field(default_factory=dict)
    _prices: dict[str, dict[str, float]] = field(default_factory=dict)
    _groups: dict[str, str] = field(default_factory=dict)
    """Other names of models, and whose they are."""
    _first: str | None = None
    """The first model of the list."""
    _sections: SectionReader = field(init=False)
    _reader: ProviderReader = field(init=False)
    _credentials: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _defaults: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sections = SectionReader(self._note)
        self._reader = ProviderReader(self._note)

    def convert(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of slipform for a LiteLLM configuration."""
        data = of_their_kind(data, "", (), self._note)
        sections = {
            name: of_their_kind(mapping_of(data.get(name)), name, (name,), self._note)
            for name in ("litellm_settings", "router_settings", "general_settings")
        }
        self._read_credentials(data.get("credential_list"))
        for name in ("default_params", "default_litellm_params"):
            for section in sections.values():
                self._defaults |= mapping_of(section.get(name))
        self._check_kinds(data, sections)
        entries = data.get("model_list")
        for at, entry in enumerate(entries if isinstance(entries, list) else []):
            self._entry(entry, ("model_list", at))
        for name, section in sections.items():
            self._section(name, section)
        for name, value in data.items():
            self._top(str(name), value)
        aliases = self._written_aliases(sections)
        settings: dict[str, Any] = {
            "model_aliases": {alias: _literal_targets(targets) for alias, targets in aliases.items()},
            "providers": self._reader.providers,
            "prices": self._prices,
        }
        settings = {name: value for name, value in settings.items() if value}
        others = self._sections.settings
        default = others.pop("default_model", None) or next(iter(aliases), None) or self._first
        ordered = {"default_model": literal_of(default)} if default else {}
        return {**ordered, **settings, "server": {"port": 4000, **others.pop("server", {})}, **others}

    # The entries of `model_list`

    def _check_kinds(self, data: Mapping[str, Any], sections: Iterable[str]) -> None:
        for name, kind in (("model_list", list), *((section, dict) for section in sections)):
            if not isinstance(data.get(name) or kind(), kind):
                self._note("left out", name, f"it is not a {'list' if kind is list else 'map'}", (name,))

    def _entry(self, entry: Any, place: SettingPath) -> None:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("litellm_params"), Mapping):
            self._note("left out", "model_list", "an entry without `litellm_params`", place)
            return
        params = of_their_kind(
            self._with_credential(dict(entry["litellm_params"]), place),
            "litellm_params",
            (*place, "litellm_params"),
            self._note,
        )
        info = of_their_kind(mapping_of(entry.get("model_info")), "model_info", (*place, "model_info"), self._note)
        alias = str(entry.get("model_name") or params.get("model") or "")
        model = params.pop("model", None)
        where = (*place, "litellm_params")
        for name in entry:
            if name not in ("model_name", "litellm_params", "model_info"):
                self._unknown(str(name), (*place, name), "model_list")
        resolved = self._model(model, (*where, "model"))
        if resolved is None:
            return
        provider = self._reader.provider(resolved, params, where)
        if provider is None:
            return
        name, upstream, kind = provider
        order = number_of(params.pop("order", None))
        shares = self._shares(params)
        defaults = self._request_defaults(params, kind, where)
        self._info(info, params, f"{name}/{upstream}", (*place, "model_info"))
        for left in list(params):
            self._param(left, params[left], defaults, (*where, left))
        if not alias:
            self._note("left out", "model_name", "there is none", place)
            return
        if "*" in alias or "*" in upstream:
            self._wildcard(alias, name, upstream, (*place, "model_name"))
            return
        self._first = self._first or f"{name}/{upstream}"
        deployment = _Deployment(f"{name}/{upstream}", shares, order or 0.0, {**self._defaults, **defaults})
        self._add_deployment(alias, deployment, where)

    def _add_deployment(self, alias: str, deployment: _Deployment, place: SettingPath) -> None:
        deployments = self._aliases.setdefault(alias, [])
        same = next((each for each in deployments if each.target == deployment.target), None)
        if same is None:
            deployments.append(deployment)
        elif same.defaults != deployment.defaults:
            text = f"`{alias}` has {deployment.target} twice, with other parameters; the first are taken"
            self._note("left out", "litellm_params", text, place)

    def _model(self, model: Any, place: SettingPath) -> str | None:
        if isinstance(model, str) and (name := variable_of(model)) is not None:
            value = self.environment.get(name)
            if not value:
                text = f"the model's name is in {name}, which is not set here; set it and import again"
                self._note("left out", "litellm_params.model", text, place)
                return None
            self._note("note", "litellm_params.model", f"the model's name was taken from {name}", place)
            model = value
        if not isinstance(model, str) or not model.strip():
            self._note("left out", "litellm_params.model", "there is none", place)
            return None
        return model.strip()

    def _shares(self, params: dict[str, Any]) -> dict[str, float]:
        numbers = {name: number_of(params.get(name)) for name in ("weight", "rpm", "tpm")}
        for name in numbers:
            params.pop(name, None)
        return {name: number for name, number in numbers.items() if number}

    def _request_defaults(self, params: dict[str, Any], kind: str, place: SettingPath) -> dict[str, Any]:
        defaults: dict[str, Any] = {}
        body = dict(mapping_of(params.pop("extra_body", None)))
        options: dict[str, Any] = {}
        for name in list(params):
            if name in OLLAMA_OPTIONS and kind == "ollama":
                options[name] = params.pop(name)
            elif name in OLLAMA_OPTIONS or name == "keep_alive":
                body[name] = params.pop(name)
            elif name in DEFAULTS:
                defaults[name] = params.pop(name)
        if options:
            body["options"] = {**mapping_of(body.get("options")), **options}
        if body:
            defaults["extra_body"] = body
        return self._checked(defaults, place)

    def _checked(self, defaults: dict[str, Any], place: SettingPath) -> dict[str, Any]:
        """The defaults that slipform can read, without anything that could be a secret."""
        from slipform.config import Settings
        from slipform.engine.setup import alias_targets
        from slipform.errors import SlipformError

        readable = {}
        for name, value in defaults.items():
            plain = self._plain(value, name, (*place, name))
            if plain is _SECRET:
                continue
            try:
                alias = {"model": "a/b", "defaults": {name: plain}}
                alias_targets(Settings.model_validate({"model_aliases": {"a": alias}}))
            except (SlipformError, ValueError):
                self._note("left out", f"litellm_params.{name}", "its value cannot be read", (*place, name))
            else:
                readable[name] = plain
        return readable

    def _plain(self, value: Any, name: str, place: SettingPath) -> Any:
        if isinstance(value, Mapping):
            plain = {str(key): self._plain(each, str(key), place) for key, each in value.items()}
            return {key: each for key, each in plain.items() if each is not _SECRET}
        if isinstance(value, list):
            return [each for each in (self._plain(each, name, place) for each in value) if each is not _SECRET]
        if not isinstance(value, str):
            return value
        if (variable := variable_of(value)) is not None:
            return f"${{{variable}:-}}"
        if is_secret(name, value):
            text = "it may be a secret, which is not copied: write `${NAME}` and set NAME"
            self._note("left out", f"litellm_params.{name}", text, place)
            return _SECRET
        return literal_of(value)

    def _info(self, info: Mapping[str, Any], params: dict[str, Any], target: str, place: SettingPath) -> None:
        costs = {}
        for name, own in (("input_cost_per_token", "input"), ("output_cost_per_token", "output")):
            number = number_of(params.pop(name, None))
            number = number_of(info.get(name)) if number is None else number
            if number is not None:
                costs[own] = round(number * _MILLION, 9)
        if costs:
            self._prices[target] = {"input": 0.0, "output": 0.0, **costs}
        for name in info:
            if name in ("input_cost_per_token", "output_cost_per_token"):
                continue
            if "cost" in name:
                text = "prices are for tokens read and written"
                self._note("left out", f"model_info.{name}", text, (*place, name))
            elif name in INFORMS or name.startswith("supports_"):
                self._note("note", f"model_info.{name}", "it only informs; nothing to set", (*place, name))
            else:
                self._unknown(str(name), (*place, name), "model_info")

    def _param(self, name: str, value: Any, defaults: dict[str, Any], place: SettingPath) -> None:
        if "cost" in name:
            self._note("left out", f"litellm_params.{name}", "prices are for tokens read and written", place)
        elif name == "drop_params" and not isinstance(value, bool):
            self._note("left out", "litellm_params.drop_params", LEFT_OUT["additional_drop_params"], place)
        elif name in LEFT_OUT or name in FINE or SECRET_NAME.search(name) or name in ("timeout", "cache"):
            self._unknown(name, place, "litellm_params", value)
        else:
            checked = self._checked({"extra_body": {name: value}}, place)
            defaults["extra_body"] = {**mapping_of(defaults.get("extra_body")), **checked.get("extra_body", {})}
            self._note("note", f"litellm_params.{name}", "it is sent to the vendor as it is", place)

    def _wildcard(self, alias: str, name: str, upstream: str, place: SettingPath) -> None:
        prefix = alias.removesuffix("/*")
        if upstream == "*" and alias.endswith("/*") and "*" not in prefix:
            if prefix not in self._reader.providers and "/" not in prefix:
                self._reader.providers[prefix] = self._reader.providers[name]
            self._note("note", "model_name", f"`{alias}` needs no alias: callers write {prefix}/MODEL", place)
            return
        text = f"`{alias}`: aliases have no wildcards; callers write {name}/MODEL"
        self._note("left out", "model_name", text, place)

    # What stands beside the models

    def _read_credentials(self, listed: Any) -> None:
        for at, each in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(each, Mapping):
                self._credentials[str(each.get("credential_name"))] = mapping_of(each.get("credential_values"))
            else:
                self._note("left out", "credential_list", "an entry that is not a map", ("credential_list", at))

    def _with_credential(self, params: dict[str, Any], place: SettingPath) -> dict[str, Any]:
        name = params.pop("litellm_credential_name", None)
        if name is None:
            return params
        if str(name) not in self._credentials:
            text = f"the credential {name!r} is in LiteLLM's database: set `api_key_env` yourself"
            self._note("left out", "litellm_params.litellm_credential_name", text, place)
        return {**self._credentials.get(str(name), {}), **params}

    def _section(self, section: str, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            place = (section, str(name))
            if name in ("completion_model", "default_model"):
                self._default_model(value, place)
            elif name in ("model_group_alias", "model_alias_map"):
                self._group_aliases(value, place)
            elif name not in READ_WITH_ALIASES and not self._sections.read(fields, place):
                self._unknown(str(name), place, section, value)

    def _top(self, name: str, value: Any) -> None:
        if name in (
            "model_list",
            "litellm_settings",
            "router_settings",
            "general_settings",
            "include",
            "credential_list",
        ):
            return
        if name == "environment_variables":
            names = ", ".join(sorted(map(str, mapping_of(value))))
            self._note(
                "left out", name, f"put these into the environment, from where they are not copied: {names}", (name,)
            )
        elif name in ("callbacks", "success_callback", "failure_callback"):
            self._sections.callbacks(value, (name,))
        else:
            self._unknown(name, (name,), "", value)

    def _unknown(self, name: str, place: SettingPath, section: str, value: Any = True) -> None:
        shown = f"{section}.{name}" if section else name
        if value is False or value in (None, "", [], {}):
            return  # it asks for nothing; 0 may ask for something
        if name in FINE:
            self._note("note", shown, FINE[name], place)
        else:
            self._note("left out", shown, LEFT_OUT.get(name, "slipform has no such setting"), place)

    def _default_model(self, value: Any, place: SettingPath) -> None:
        if str(value) in self._aliases:
            self._sections.settings["default_model"] = str(value)
        else:
            self._note("left out", ".".join(map(str, place)), f"`model_list` has no model {value!r}", place)

    def _group_aliases(self, value: Any, place: SettingPath) -> None:
        for name, target in mapping_of(value).items():
            group = target.get("model") if isinstance(target, Mapping) else target
            if str(group) in self._aliases:
                self._aliases[str(name)] = self._aliases[str(group)]
                self._groups[str(name)] = str(group)
            else:
                text = f"`{name}` stands for {group!r}, which is not in `model_list`"
                self._note("left out", ".".join(map(str, place)), text, place)

    # Aliases, with what they fall back on

    def _written_aliases(self, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        chains, general = self._fallbacks(sections)
        written = {}
        for alias, listed in self._aliases.items():
            first = min(each.order for each in listed)
            ordered = sorted(listed, key=lambda each: each.order)
            weighted = [each for each in ordered if each.order == first]
            shared = len(weighted) > 1
            targets = [
                each.written(weight if shared else None)
                for each, weight in zip(weighted, _weights(weighted), strict=True)
            ]
            targets += [each.written() for each in ordered if each.order != first]
            after = chains.get(self._groups.get(alias, alias), ())
            for group in dict.fromkeys([*after, *(each for each in general if each != alias)]):
                targets += [each.written() for each in self._aliases.get(group, ())]
            unique = [each for at, each in enumerate(targets) if _model_of(each) not in map(_model_of, targets[:at])]
            only = _only_target(unique[0]) if len(unique) == 1 else unique
            if only == alias:  # callers write the model's own name
                continue
            written[alias] = only
        return {alias: self._without_nested_aliases(targets, written) for alias, targets in written.items()}

    def _without_nested_aliases(self, targets: Any, aliases: Mapping[str, Any]) -> Any:
        """An alias's targets, of which none is itself an alias: those lead to a provider of another name."""
        if isinstance(targets, list):
            return [self._without_nested_aliases(each, aliases) for each in targets]
        model = _model_of(targets)
        if model not in aliases:
            return targets
        provider, _, upstream = model.partition("/")
        other = f"{provider}-direct"
        self._reader.providers[other] = self._reader.providers[provider]
        if model in self._prices:
            self._prices[f"{other}/{upstream}"] = self._prices[model]
        if isinstance(targets, dict):
            return {**targets, "model": f"{other}/{upstream}"}
        return f"{other}/{upstream}"

    def _fallbacks(self, sections: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, list[str]], list[str]]:
        """What each name falls back on, and what all do."""
        chains: dict[str, list[str]] = {}
        general: list[str] = []
        for section, fields in sections.items():
            for setting in ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "default_fallbacks"):
                place = (section, setting)
                if setting not in fields:
                    continue
                if setting in ("context_window_fallbacks", "content_policy_fallbacks"):
                    self._note("note", ".".join(place), "these models are also asked after other failures", place)
                for name, target in _pairs(fields[setting]):
                    if target not in self._aliases:
                        text = f"{target!r} is not in `model_list`"
                        self._note("left out", ".".join(place), text, place)
                    elif name in (None, "*"):
                        general.append(target)
                    elif name not in self._aliases:
                        self._note("left out", ".".join(place), f"{name!r} is not in `model_list`", place)
                    else:
                        chains.setdefault(name, []).append(target)
        return chains, general

    def _note(self, kind: Literal["left out", "note"], name: str, text: str, place: SettingPath) -> None:
        self.remarks.append(Remark(kind, name, text, place))


def _pairs(value: Any) -> Iterator[tuple[str | None, str]]:
    """The names of a setting of fallbacks, each with one model it falls back on; no name is every name."""
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, Mapping):
            yield None, str(each)
        for name, targets in mapping_of(each).items():
            for target in targets if isinstance(targets, list) else [targets]:
                model = target.get("model") if isinstance(target, Mapping) else target
                if model is not None:
                    yield str(name), str(model)


def _literal_targets(targets: Any) -> Any:
    """Targets whose names mean themselves in slipform.yaml."""
    if isinstance(targets, list):
        return [_literal_targets(each) for each in targets]
    if isinstance(targets, str):
        return literal_of(targets)
    return {**targets, "model": literal_of(targets["model"])}


def _only_target(target: str | dict[str, Any]) -> str | dict[str, Any]:
    """The only target of an alias, which shares its calls with nobody."""
    if isinstance(target, str):
        return target
    if "defaults" in target:
        return {name: target[name] for name in ("model", "defaults")}
    return _model_of(target)


def _model_of(target: str | Mapping[str, Any]) -> str:
    if isinstance(target, str):
        return target
    return str(target["model"])


def summed_up(remarks: Sequence[Remark]) -> list[tuple[Remark, int]]:
    """The remarks, each once with how often it was made, in the order of the file."""
    counts: dict[tuple[str, str, str], tuple[Remark, int]] = {}
    for remark in remarks:
        key = (remark.kind, remark.name, remark.text)
        first, count = counts.get(key, (remark, 0))
        counts[key] = first, count + 1
    return list(counts.values())
