"""Convert a LiteLLM deployment to a provider: its kind, address, key, headers and limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from slipform.cli.litellm_names import PLACEHOLDERS, PROVIDERS, ROUTES, UNSUPPORTED, KnownProvider
from slipform.cli.litellm_settings import MakeRemark, literal_of, mapping_of, number_of, variable_of
from slipform.config.load import SettingPath
from slipform.providers.catalog import load_catalog

SECRET_NAME = re.compile(r"key|token|secret|password|credential|authorization|cookie|bearer", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\b(sk-|pk-|gsk_|hf_|ghp_|github_pat_|xai-|AIza|AKIA|Bearer )", re.IGNORECASE)
_VENDOR_KEY = re.compile(r"\b(?:sk-|pk-|gsk_|hf_|ghp_|github_pat_|xai-|AIza|AKIA)[\w-]{12,}")
_SHORT = 8
_ADDRESS_VARIABLE = re.compile(r"(:?)\$\{(\w+)(?::-[^}]*)?\}")
"""An environment variable within an address, and whether it is the port."""
_AWS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}


_CLOUD = {
    "bedrock": {
        "aws_profile_name": "profile",
        "aws_role_name": "role_arn",
        "aws_session_name": "session_name",
        "aws_external_id": "external_id",
    },
    "vertex": {"vertex_credentials": "credentials_file"},
    "vertex-anthropic": {"vertex_credentials": "credentials_file"},
}
"""Where each kind of provider has LiteLLM's parameters that say how credentials are found."""
_EXTRAS = {"bedrock": "aws", "vertex": "google", "vertex-anthropic": "google"}


@dataclass(slots=True)
class ProviderReader:
    """The providers so far, one for each that differs in kind, address, key or limits."""

    note: MakeRemark
    providers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def provider(self, model: str, params: dict[str, Any], place: SettingPath) -> tuple[str, str, str] | None:
        """The provider that answers, its name for the model, and its kind; None where that cannot be told."""
        split = self._split_model(model, params, place)
        if split is None:
            return None
        prefix, upstream = split
        provider = PROVIDERS.get(prefix, KnownProvider("openai-compatible"))
        for route in ROUTES.get(prefix, ()):
            upstream = upstream.removeprefix(route)
        provider = self._variant(prefix, provider, upstream)
        if provider.kind == "openai-responses":
            upstream = upstream.removeprefix("responses/")
        if provider.kind == "bedrock" and (region := re.match(r"([a-z]{2}(?:-[a-z]+)+-\d)/", upstream)):
            params.setdefault("aws_region_name", region[1])
            upstream = upstream[region.end() :]
        if not upstream:
            self.note("left out", "litellm_params.model", "it names a provider without a model", place)
            return None
        settings = self._provider_settings(provider, params, place, prefix)
        if settings is None:
            return None
        return (self._provider_name(prefix, provider, settings), upstream, settings["kind"])

    def _variant(self, prefix: str, provider: KnownProvider, model: str) -> KnownProvider:
        if prefix.startswith("vertex_ai") and "claude" in model:
            return KnownProvider("vertex-anthropic")
        if prefix == "openai" and model.startswith("responses/"):
            return KnownProvider("openai-responses")
        return provider

    def _provider_settings(
        self, provider: KnownProvider, params: dict[str, Any], place: SettingPath, prefix: str
    ) -> dict[str, Any] | None:
        base = params.pop("api_base", None)
        base = params.pop("base_url", None) if base in (None, "") else base
        settings: dict[str, Any] = {"kind": provider.kind}
        self._address(settings, provider, base, (*place, "api_base"))
        if settings["kind"] == "openai-compatible" and "base_url" not in settings:
            text = f"{prefix!r} needs an address (`api_base`), and there is none"
            self.note("left out", "litellm_params.model", text, place)
            return None
        self._key(settings, provider, params.pop("api_key", None), (*place, "api_key"))
        self._fields(settings, params, place)
        self._cloud(settings, params, place)
        self._headers(settings, params, place)
        for name in ("timeout", "request_timeout"):
            if timeout := number_of(params.get(name)):
                settings["timeout_seconds"] = timeout
                params.pop(name)
        limits = {"max_parallel_requests": "max_concurrent", "rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
        for name, own in limits.items():
            number = number_of(params.get(name))
            if number is not None:
                settings[own] = max(1, int(number))
        params.pop("max_parallel_requests", None)
        return settings

    def _default_address(self, settings: dict[str, Any], provider: KnownProvider, place: SettingPath) -> None:
        if provider.base_url is None:
            return
        settings["base_url"] = provider.base_url
        if "${" in provider.base_url:
            variable = provider.base_url.partition("${")[2].partition(":")[0]
            self.note("note", "litellm_params.api_base", f"the address is completed from {variable}", place)

    def _split_model(self, model: str, params: dict[str, Any], place: SettingPath) -> tuple[str, str] | None:
        """Return LiteLLM's name of the provider, and the provider's of the model; None if it is not supported."""
        chosen = params.pop("custom_llm_provider", None)
        prefix, slash, upstream = model.partition("/")
        if (isinstance(chosen, str) and chosen in UNSUPPORTED) or (slash and prefix in UNSUPPORTED and not chosen):
            text = f"the API of {chosen or prefix!r} is not one that slipform speaks"
            self.note("left out", "litellm_params.model", text, place)
            return None
        if isinstance(chosen, str) and chosen:
            return chosen, upstream if slash and prefix == chosen else model
        if not slash:
            return _guessed(model), model
        if prefix in PROVIDERS:
            return prefix, upstream
        if params.get("api_base") or params.get("base_url"):
            return "custom_openai", model
        self.note("left out", "litellm_params.model", f"the provider {prefix!r} is not known here", place)
        return None

    def _address(self, settings: dict[str, Any], provider: KnownProvider, base: Any, place: SettingPath) -> None:
        if not isinstance(base, str) or not base:
            self._default_address(settings, provider, place)
            return
        if (name := variable_of(base)) is not None:
            settings["base_url"] = f"${{{name}:-{_address_of(provider.kind) or f'http://{_slug(name)}.invalid'}}}"
            settings["kind"] = "openai-compatible" if provider.kind == "openai" else provider.kind
            if provider.kind == "azure":
                settings["base_url"] += "/openai/v1"
            self.note("note", "litellm_params.api_base", f"the address is read from {name}: set it", place)
            return
        try:
            parts = urlsplit(base.strip())
            host = parts.hostname or ""
        except ValueError:
            self.note("left out", "litellm_params.api_base", "it is not an address", place)
            return
        if parts.username or parts.password or SECRET_NAME.search(parts.query):
            text = "the address holds a password or a key, which is not copied"
            self.note("left out", "litellm_params.api_base", text, place)
            parts = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="")
        address = urlunsplit(parts).rstrip("/")
        if provider.kind == "openai" and host != "api.openai.com":
            settings["kind"] = "openai-compatible"
        elif provider.kind in ("anthropic", "ollama"):
            address = address.removesuffix("/v1").removesuffix("/api")
        elif provider.kind == "azure":
            resource = re.fullmatch(r"([\w-]+)\.openai\.azure\.com", host)
            if resource is not None:
                settings["settings"] = {"resource": resource[1]}
                return
            address = f"{address.removesuffix('/openai/v1').removesuffix('/openai')}/openai/v1"
        self._set_address(settings, address, place)

    def _set_address(self, settings: dict[str, Any], address: str, place: SettingPath) -> None:
        """Set the address, with the variables in it written as slipform reads them."""
        settings["base_url"] = _ADDRESS_VARIABLE.sub(_with_default, address)
        variables = ", ".join(variable for _, variable in _ADDRESS_VARIABLE.findall(address))
        if variables:
            self.note("note", "litellm_params.api_base", f"the address is completed from {variables}: set it", place)

    def _key(self, settings: dict[str, Any], provider: KnownProvider, key: Any, place: SettingPath) -> None:
        vendor = load_catalog().vendors.get(settings["kind"])
        usual = provider.key_env or (vendor.api_key_env[0] if vendor is not None and vendor.api_key_env else None)
        if isinstance(key, str) and (name := variable_of(key)) is not None:
            settings["api_key_env"] = name
        elif isinstance(key, str) and key.strip().lower() not in PLACEHOLDERS and len(key.strip()) >= _SHORT:
            own = f"{_slug(_host(settings) or settings['kind'], '_')}_API_KEY".upper()
            variable = usual if usual and settings["kind"] != "openai-compatible" else own
            settings["api_key_env"] = variable
            text = f"a key stands in the file and is not copied: put it into the environment as {variable}"
            self.note("left out", "litellm_params.api_key", text, place)
        elif usual is not None and (settings["kind"] != "openai-compatible" or provider.key_env is not None):
            needs_one = vendor is not None and vendor.key == "required"
            settings |= {"api_key_env": usual} if key is None or needs_one else {}

    def _fields(self, settings: dict[str, Any], params: dict[str, Any], place: SettingPath) -> None:
        fields = {"aws_region_name": "region", "vertex_project": "project", "vertex_location": "location"}
        for name, own in fields.items():
            value = params.get(name)
            vendor = load_catalog().vendors.get(settings["kind"])
            if value is None or vendor is None or own not in vendor.fields:
                continue
            params.pop(name)
            variable = variable_of(str(value))
            default = vendor.fields[own].default or "unset"
            text = literal_of(str(value)) if variable is None else f"${{{variable}:-{default}}}"
            settings["settings"] = {**settings.get("settings", {}), own: text}
        for name, variable in _AWS.items():
            value = params.pop(name, None)
            if value is not None and variable_of(str(value)) != variable:
                text = f"it is read from {variable} in the environment: put it there"
                self.note("left out", f"litellm_params.{name}", text, (*place, name))
        if params.pop("api_version", None) is not None:
            azure = settings["kind"] == "azure"
            text = "Azure's v1 API is used, which needs none" if azure else "only Azure has versions of its API"
            self.note("note", "litellm_params.api_version", text, (*place, "api_version"))

    def _cloud(self, settings: dict[str, Any], params: dict[str, Any], place: SettingPath) -> None:
        """Carry over how credentials of a cloud are found: a profile, a role, a file."""
        names = _CLOUD.get(settings["kind"], {})
        for name, own in names.items():
            value = params.get(name)
            if not isinstance(value, str) or value.lstrip().startswith("{"):
                continue  # credentials themselves are not copied
            params.pop(name)
            variable = variable_of(value)
            text = literal_of(value) if variable is None else f"${{{variable}:-}}"
            settings["settings"] = {**settings.get("settings", {}), own: text}
            self.note(
                "note", f"litellm_params.{name}", f"install `slipform[{_EXTRAS[settings['kind']]}]`", (*place, name)
            )

    def _headers(self, settings: dict[str, Any], params: dict[str, Any], place: SettingPath) -> None:
        headers = {**mapping_of(params.pop("headers", None)), **mapping_of(params.pop("extra_headers", None))}
        organization = params.pop("organization", None)
        if organization:
            headers["OpenAI-Organization"] = organization
        resolved = {}
        for name, value in headers.items():
            variable = variable_of(str(value))
            if variable is not None:
                resolved[str(name)] = f"${{{variable}:-}}"
            elif is_secret(str(name), value):
                text = f"the header {name} holds a secret, which is not copied: write `${{NAME}}` and set NAME"
                self.note("left out", "litellm_params.extra_headers", text, (*place, "extra_headers"))
            else:
                resolved[str(name)] = literal_of(str(value))
        if resolved:
            settings["headers"] = resolved

    def _provider_name(self, prefix: str, provider: KnownProvider, settings: dict[str, Any]) -> str:
        """The name of a provider with these settings: one for each that differs."""
        host = _host(settings)
        own = ""
        if settings["kind"] == "openai-compatible" and provider.base_url is None:
            own = host
        stem = _slug(own) or _slug(prefix) or "provider"
        builtin = load_catalog().vendors
        if stem in ("local", "transformers") or (stem in builtin and stem != settings["kind"] and stem != prefix):
            stem = f"{stem}-server"
        for at in range(1, 1000):
            name = stem if at == 1 else f"{stem}-{at}"
            taken = self.providers.get(name)
            if taken is not None and taken != settings:
                continue
            self.providers[name] = settings
            return name
        raise AssertionError("a thousand providers of one name")


def masked(text: str) -> tuple[str, int]:
    """A text without what begins as vendors' keys do, and how many were in it.

    >>> masked("host: sk-proj-0123456789abcdef")
    ('host: NOT-COPIED', 1)
    """
    return _VENDOR_KEY.subn("NOT-COPIED", text)


def is_secret(name: str, value: Any) -> bool:
    """Whether a value may be a secret, by its name or its beginning."""
    if not isinstance(value, str) or value.strip().lower() in PLACEHOLDERS:
        return False
    return bool(_SECRET_VALUE.search(value)) or (bool(SECRET_NAME.search(name)) and len(value) >= _SHORT)


def _guessed(model: str) -> str:
    """The provider of a model that is named without one, as LiteLLM guesses it."""
    beginnings = {"claude": "anthropic", "gemini": "gemini", "command": "cohere", "mistral-": "mistral"}
    return next((name for start, name in beginnings.items() if model.startswith(start)), "openai")


def _with_default(variable: re.Match[str]) -> str:
    """The variable with a default, so that the address can be parsed where it is not set: a port must be a number."""
    colon, name = variable.groups()
    default = "80" if colon else "unset"
    return f"{colon}${{{name}:-{default}}}"


def _host(settings: dict[str, Any]) -> str:
    """The host of a provider's address; empty where it is not in the file."""
    return urlsplit(_ADDRESS_VARIABLE.sub("", str(settings.get("base_url", "")))).hostname or ""


def _slug(text: str, between: str = "-") -> str:
    return re.sub(r"[^A-Za-z0-9]+", between, text).strip(between).lower()


def _address_of(kind: str) -> str | None:
    """The address of a kind of provider, where the catalogue has a whole one."""
    vendor = load_catalog().vendors.get(kind)
    if vendor is None or "{" in vendor.base_url:
        return None
    return vendor.base_url
