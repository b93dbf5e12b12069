"""Check the installation: `slipform doctor`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from slipform.cli.terminal import ConfigOption, Exit, has_colour, print_data, style_text
from slipform.errors import SlipformError

if TYPE_CHECKING:
    from slipform.config import ProviderSettings, Settings
    from slipform.providers.base import Provider
    from slipform.providers.router import Router

_MARKS: Final = {"ok": ("✓", "green"), "note": ("-", "yellow"), "fault": ("✗", "red")}


def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Do not check whether providers are reachable.")] = False,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Show what `auto` means for this model; repeatable.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Check the config, the keys (never shown), the providers, the embedded model; exit code 1 on a problem."""
    faults = 0
    for title, findings in _sections(offline, model or [], config):
        print_data(style_text(title, bold=True) if has_colour() else title)
        for finding in findings:
            faults += finding.mark == "fault"
            mark, colour = _MARKS[finding.mark]
            print_data(f"  {style_text(mark, fg=colour) if has_colour() else mark} {finding.text}")
    if faults:
        print_data(f"{faults} problem{'' if faults == 1 else 's'} found.")
        raise typer.Exit(Exit.OTHER)
    print_data("Everything looks good.")


def _sections(offline: bool, models: Sequence[str], config: Path | None) -> Iterator[tuple[str, Iterable[Finding]]]:
    from slipform import __version__
    from slipform.build_info import build_in_use
    from slipform.config import Settings, load_settings
    from slipform.engine.setup import router_of

    build = build_in_use()
    yield (
        "slipform",
        [
            Finding("ok", f"{__version__}, Python {platform.python_version()}, {platform.system()}"),
            Finding("ok" if build.compiled else "note", str(build)),
        ],
    )
    settings = Settings()
    router = None
    try:
        settings = load_settings(config)
        router = router_of(settings)
        yield "config", [Finding("ok", _config_source(config))]
    except SlipformError as error:
        yield "config", [Finding("fault", str(error))]
    yield "keys", keys(settings)
    yield "embedded model", embedded(settings)
    if router is not None:
        if not offline:
            yield "providers", reachable(settings, router.providers)
        yield "resolved strategy per model", picks(router, models)
        yield "learned vendor limitations", learned_limitations(router)
        yield "schemas", schemas(settings)


def _config_source(config: Path | None) -> str:
    from slipform.config import FILE_NAME

    source = str(config) if config else os.environ.get("SLIPFORM_CONFIG")
    if source:
        return f"{source} is valid"
    if Path(FILE_NAME).is_file():
        return f"{FILE_NAME} is valid"
    return f"no {FILE_NAME} here: all settings have their defaults; `slipform init` writes one"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: fine, a remark, or a problem.

    >>> Finding("ok", "all is well").mark
    'ok'
    """

    mark: Literal["ok", "note", "fault"]
    text: str


def keys(settings: Settings) -> Iterator[Finding]:
    """Yield the API keys in the environment, by variable, and configured providers without a key."""
    from slipform.providers.catalog import load_catalog

    set_keys: dict[str, list[str]] = {}
    for name, vendor in load_catalog().vendors.items():
        for variable in vendor.api_key_env:
            if os.environ.get(variable, "").strip():
                set_keys.setdefault(variable, []).append(name)
    for variable, names in set_keys.items():
        yield Finding("ok", f"{variable} is set, for {', '.join(names)}")
    if not set_keys:
        yield Finding("note", "no vendor's key is set; `slipform models --all` names the variables")
    for name, provider_settings in settings.providers.items():
        if missing := _missing_key(name, provider_settings):
            yield Finding("fault", f"the provider {name} has no key: set {missing}")


def _missing_key(name: str, provider_settings: ProviderSettings) -> str | None:
    """Return the variables that could contain a configured provider's key, when none of them is set."""
    from slipform.providers.auth import from_environment, secrets_in
    from slipform.providers.catalog import load_catalog
    from slipform.providers.cloud_credentials import cloud_credentials

    vendors = load_catalog().vendors
    vendor = vendors.get(provider_settings.kind or name, vendors["openai-compatible"])
    variables = (provider_settings.api_key_env,) if provider_settings.api_key_env else vendor.api_key_env
    key_required = bool(provider_settings.api_key_env) or (vendor.key == "required" and vendor.auth != "none")
    if not key_required or from_environment(variables) or secrets_in(provider_settings.headers):
        return None
    if vendor.auth == "sigv4" and from_environment(["AWS_ACCESS_KEY_ID"]):
        return None
    cloud = cloud_credentials(vendor.auth, {})
    if cloud is not None and cloud.is_installed:
        return None
    return " or ".join(variables) or f"providers.{name}.api_key_env"


def embedded(settings: Settings) -> Iterator[Finding]:
    """Yield whether the embedded model is installed and loads."""
    from slipform.engine.setup import local_models

    severity: Literal["fault", "note"] = "fault" if settings.first_model.partition("/")[0] == "local" else "note"
    try:
        yield Finding(*local_models().diagnose())
    except SlipformError as error:
        yield Finding(severity, str(error))


def reachable(settings: Settings, providers: Mapping[str, Provider]) -> Iterator[Finding]:
    """Yield whether each provider's address answers, with any status; no key is sent.

    An unreachable provider is a fault only when the config names it.
    """
    from slipform.providers.http import HttpProvider
    from slipform.providers.probe import address, probe

    http_providers = {name: provider for name, provider in providers.items() if isinstance(provider, HttpProvider)}
    if not http_providers:
        yield Finding("note", "no provider is in use but the embedded model: nothing to reach")
        return
    with ThreadPoolExecutor(max_workers=8) as pool:
        probes = dict(zip(http_providers, pool.map(probe, http_providers.values()), strict=True))
    for name, result in probes.items():
        failure: Literal["fault", "note"] = "fault" if name in settings.providers else "note"
        text = " ".join(filter(None, (f"{name}:", address(http_providers[name]), result.text)))
        yield Finding("ok" if result.ok else failure, text)
    if not any(result.ok for result in probes.values()):
        yield Finding("note", "no provider can be reached: is this machine offline?")


def picks(router: Router, models: Sequence[str]) -> Iterator[Finding]:
    """Yield the strategy that `auto` selects for these models, or for all known ones."""
    for name in models or [*router.names(), *_placeholder_names(router)]:
        try:
            provider, model = router.resolve(name)
        except SlipformError as error:
            yield Finding("fault", str(error))
            continue
        yield Finding("ok", f"{name}: {provider.capabilities(model).auto_strategy.value}")


def learned_limitations(router: Router) -> Iterator[Finding]:
    """Yield the downgrades that the proxy has recorded and still applies; `slipform models show` has one model's."""
    from slipform.cli.models import limitations_of

    limitations = [
        f"{name}/{text}" for name, provider in router.providers.items() for _, _, text in limitations_of(provider)
    ]
    yield from (Finding("note", text) for text in limitations)
    if not limitations:
        yield Finding("ok", "nothing: every model is asked as the catalogue says")


def _placeholder_names(router: Router) -> Iterator[str]:
    return (f"{name}/MODEL" for name, provider in router.providers.items() if not provider.models())


def schemas(settings: Settings) -> Iterator[Finding]:
    """Yield whether the registered schemas can be loaded."""
    from slipform.schema import Registry

    try:
        names = Registry.load(settings.schemas).names
    except SlipformError as error:
        yield Finding("fault", str(error))
        return
    yield Finding("ok", f"{len(names)} registered: {', '.join(sorted(names))}")
