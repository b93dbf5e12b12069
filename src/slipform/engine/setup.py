"""Build options, router and prices from the settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slipform import seams
from slipform.codecs import find_api
from slipform.enforce.options import Options, override
from slipform.errors import ConfigError, RequestError
from slipform.ir.request import RequestDefaults
from slipform.providers import Provider
from slipform.providers.base import ModelStore
from slipform.providers.catalog import load_catalog
from slipform.providers.concurrency import throttled
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.connections import NO_PROXY, read_proxy, tls_context
from slipform.providers.network.transport import ProtocolError, Timeouts, Transport
from slipform.providers.retry import DowngradeStore, NoDowngrades, RetryPolicy
from slipform.providers.router import ModelTarget, Router
from slipform.providers.vendor_limits import MinuteLimits, SharedBudget, VendorBudget

if TYPE_CHECKING:
    from slipform.config import ProviderSettings, Redis, Settings

__all__ = [
    "LOCAL",
    "Options",
    "alias_targets",
    "default_router",
    "local_models",
    "options_of",
    "router_of",
]
LOCAL = "local"


def options_of(settings: Settings) -> Options:
    """Return the options of a configuration; the `Into` of each setting names its target."""
    from slipform.settings_block import Into

    changes: dict[str, Any] = {"keep_text": settings.server.debug_traces, "prices": settings.own_prices}
    enforcement = settings.enforcement
    for name, declared in type(enforcement).model_fields.items():
        for into in declared.metadata:
            if isinstance(into, Into):
                changes |= into.paths(getattr(enforcement, name))
    changes["budget.attempts"] = settings.max_attempts
    return override(Options(), changes)


def router_of(
    settings: Settings,
    environment: Mapping[str, str] | None = None,
    *,
    retries: RetryPolicy | None = None,
    keyless: bool = False,
    downgrades: DowngradeStore | None = None,
) -> Router:
    """Return the configured providers: the embedded one, the named ones, and those with a key in the environment.

    `retries` says how their calls are repeated when the network or a vendor fails. `keyless` adds the local servers
    that need no key, such as Ollama; not for the proxy, whose callers must not reach what its operator did not name.
    `downgrades` is where they record what vendors refuse: each its own memory by default.
    """
    variables = os.environ if environment is None else environment
    if LOCAL in settings.providers:
        raise ConfigError("The provider name `local` is the embedded model's", where=f"providers.{LOCAL}")
    catalog = load_catalog({name: _row(provider) for name, provider in settings.providers.items()})
    open_objects = settings.enforcement.open_objects
    providers: dict[str, Provider] = {name: seams.load(target).make() for name, target in seams.PROVIDERS.items()}
    local = providers[LOCAL]
    for name, vendor in catalog.vendors.items():
        provider_settings = settings.providers.get(name)
        local_server = keyless and vendor.key == "optional" and "{" not in vendor.base_url
        if provider_settings is not None or local_server or any(variables.get(key) for key in vendor.api_key_env):
            seconds = (
                provider_settings.timeout_seconds if provider_settings else None
            ) or settings.runtime.timeout_seconds
            providers[name] = HttpProvider(
                dataclasses.replace(vendor, overrides={"open_objects": open_objects, **vendor.overrides}),
                timeouts=Timeouts(total=seconds),
                retries=retries,
                settings=provider_settings.settings if provider_settings else None,
                transport=_transport(name, provider_settings, settings.redis, vendor.codec),
                downgrades=downgrades if provider_settings is None or provider_settings.step_down else NoDowngrades(),
            )
    aliases = {LOCAL: f"{LOCAL}/{local.models()[0]}", **alias_targets(settings)}
    return Router(providers, aliases=aliases, default=settings.default_model)


def local_models() -> ModelStore:
    """Return the models of the embedded provider."""
    store: ModelStore = seams.load(seams.PROVIDERS[LOCAL]).store
    return store


def alias_targets(settings: Settings) -> dict[str, str | Sequence[str | ModelTarget]]:
    """Return the aliases of a configuration, with the weights and the defaults of their models."""
    targets: dict[str, str | Sequence[str | ModelTarget]] = {}
    for alias, target in settings.model_aliases.items():
        where = f"model_aliases.{alias}"
        of_all = () if isinstance(target, str | list) else _defaults(target.defaults, f"{where}.defaults")
        listed = target if isinstance(target, str | list) else target.model
        targets[alias] = [
            ModelTarget(each, None, of_all)
            if isinstance(each, str)
            else ModelTarget(
                each.model, each.weight, (*of_all, *_defaults(each.defaults, f"{where}.{each.model}.defaults"))
            )
            for each in ([listed] if isinstance(listed, str) else listed)
        ]
    return targets


_NOT_DEFAULTS = ("model", "messages", "stream", "tools", "tool_choice", "response_format", "functions", "n")


def _defaults(fields: Mapping[str, Any], where: str) -> tuple[RequestDefaults, ...]:
    """Return the defaults for requests that do not set these fields, read as fields of Chat Completions."""
    if not fields:
        return ()
    if wrong := next((name for name in _NOT_DEFAULTS if name in fields), None):
        raise ConfigError(f"`{wrong}` is the request's own to say", where=where, hint="Leave it out of the defaults.")
    own = {name: value for name, value in fields.items() if name != "extra_body"}
    body = fields.get("extra_body") or {}
    if not isinstance(body, Mapping):
        raise ConfigError(
            "`extra_body` is not a mapping", where=where, hint="Write the fields that the vendor is sent."
        )
    try:
        defaults = find_api("openai-chat").decode_request({"model": "", "messages": [], **own}).request
    except RequestError as error:
        raise ConfigError(error.message, where=f"{where}.{error.where}", hint=error.hint) from error
    return (RequestDefaults(defaults.replace(extra={**defaults.extra, **body}, extra_for=None), dict(fields)),)


def default_router(settings: Settings | None = None) -> Router:
    """Return the providers of these settings, or of the configuration that is found."""
    if settings is None:
        from slipform.config import load_settings

        settings = load_settings()
    return router_of(settings, keyless=True)


def _transport(
    name: str, provider_settings: ProviderSettings | None, redis: Redis | None, api: str
) -> Transport | None:
    """Return the transport of a configured provider; None for the default one."""
    if provider_settings is None and redis is None:
        return None
    from slipform.config import ProviderSettings

    provider_settings = provider_settings or ProviderSettings()
    tls = None
    if provider_settings.client_key is not None and provider_settings.client_certificate is None:
        raise ConfigError("The key has no `client_certificate`", where=f"providers.{name}.client_key")
    if provider_settings.ca_file is not None or provider_settings.client_certificate is not None:
        try:
            tls = tls_context(
                provider_settings.ca_file, provider_settings.client_certificate, provider_settings.client_key
            )
        except OSError as error:
            field = "ca_file" if provider_settings.client_certificate is None else "client_certificate"
            raise ConfigError(
                f"A certificate cannot be read: {error}",
                where=f"providers.{name}.{field}",
                hint="It must be a PEM file; a key that is not in the certificate's file goes to `client_key`.",
            ) from error
    if provider_settings.proxy not in (None, NO_PROXY):
        try:
            read_proxy(provider_settings.proxy)
        except ProtocolError as error:
            raise ConfigError(f"The proxy cannot be used: {error}", where=f"providers.{name}.proxy") from error
    sender = HttpTransport(tls=tls, proxy=provider_settings.proxy, max_answer_bytes=provider_settings.max_answer_bytes)
    limits = MinuteLimits(provider_settings.requests_per_minute, provider_settings.tokens_per_minute)
    shared = None
    if redis is not None:
        shared = SharedBudget(redis.url, redis.prefix, name, limits)
    budget = None if shared is None and limits == MinuteLimits() else VendorBudget(limits, shared, api)
    return throttled(sender, provider_settings.max_concurrent, budget)


def _row(provider_settings: ProviderSettings) -> dict[str, Any]:
    """Return a configured provider as a row of the catalogue."""
    pinned = {} if provider_settings.strategy == "auto" else {"strategy": provider_settings.strategy}
    row = {
        "extends": provider_settings.kind,
        "base_url": provider_settings.base_url,
        "api_key_env": [provider_settings.api_key_env] if provider_settings.api_key_env else None,
        "headers": provider_settings.headers or None,
        "models": provider_settings.models or None,
        "overrides": {**provider_settings.capabilities, **pinned} or None,
    }
    return {name: value for name, value in row.items() if value is not None}
