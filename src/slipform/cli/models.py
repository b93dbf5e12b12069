"""List models and fetch embedded ones (`slipform models`), and complete names on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from slipform.cli.terminal import ConfigOption, print_data, print_message

if TYPE_CHECKING:
    from slipform.config import Settings
    from slipform.providers.base import Provider


def model_names(incomplete: str) -> list[str]:
    """Return the names of models with this prefix, for completion.

    >>> "local/smollm2-135m" in model_names("local/")
    True
    """
    from slipform.engine.setup import default_router
    from slipform.errors import SlipformError

    try:
        names = default_router().names()
    except SlipformError:  # the command itself will report a mistake in the config
        return []
    return [name for name in names if name.startswith(incomplete)]


def dialects(incomplete: str) -> list[str]:
    """Return the schema dialects with this prefix, for completion.

    >>> dialects("openai")
    ['openai']
    """
    from slipform.schema.lowering.dialects import dialect_names

    return [name for name in dialect_names() if name.startswith(incomplete)]


models = typer.Typer(help="List models, and download the embedded ones.", invoke_without_command=True)
_Row = tuple[str, str]


@models.callback()
def list_models(
    context: typer.Context,
    show_all: Annotated[bool, typer.Option("--all", help="Include vendors whose key is not set.")] = False,
    config: ConfigOption = None,
) -> None:
    """List every model that has a name: aliases, embedded models, the providers' own lists."""
    if context.invoked_subcommand is not None:
        return
    from slipform.config import load_settings

    settings = load_settings(config)
    rows = list(_available_rows(settings))
    if show_all:
        rows += _unavailable_rows(settings)
    width = max(len(name) for name, _ in rows)
    for name, what in rows:
        print_data(f"{name:{width}}  {what}" if sys.stdout.isatty() else f"{name}\t{what}")
    if sys.stdout.isatty() and not show_all:
        print_message("More vendors: slipform models --all", dim=True)


@models.command()
def pull(
    name: Annotated[str | None, typer.Argument(help="The embedded model.", show_default="the first")] = None,
) -> None:
    """Download an embedded model's weights into the cache, unless they are there."""
    from slipform.engine.setup import local_models

    print_data(str(local_models().pull(name)))


@models.command()
def show(
    name: Annotated[str, typer.Argument(help="The model, as provider/model.", autocompletion=model_names)],
    config: ConfigOption = None,
) -> None:
    """Show what a model can do, how it is asked for a schema, and the limitations that its vendor's refusals showed."""
    from slipform.config import load_settings
    from slipform.engine.setup import router_of

    provider, model = router_of(load_settings(config)).resolve(name)
    for label, text in _facts(provider, model):
        print_data(f"{label:14}{text}" if sys.stdout.isatty() else f"{label}\t{text}")


def _facts(provider: Provider, model: str) -> Iterator[_Row]:
    """Yield the capabilities of a model, and its recorded downgrades."""
    from slipform.providers.auth import masked_url
    from slipform.providers.http import HttpProvider
    from slipform.providers.retry import apply_downgrades
    from slipform.schema import OutputStrategy

    capabilities = provider.capabilities(model)
    limitations = limitations_of(provider, model)
    yield "model", f"{provider.name}/{model}"
    if isinstance(provider, HttpProvider):
        yield "address", masked_url(provider.base_url)
        yield "API", provider.api
        of_model = frozenset(limitation for limitation, of_schema, _ in limitations if not of_schema)
        capabilities = apply_downgrades(capabilities, of_model)
    pinned = capabilities.strategy is not OutputStrategy.AUTO
    strategy = capabilities.auto_strategy.value
    if pinned:
        yield "strategy", f"{strategy} (pinned)"
    else:
        yield "strategy", strategy
        supported = {
            "native": capabilities.native,
            "tool": capabilities.forced_tool,
            "json_mode": capabilities.json_mode,
        }
        steps = [name for name, is_supported in supported.items() if is_supported]
        yield "steps down", " → ".join([*steps, "prompt"])
    yield "dialects", f"{capabilities.dialect}, for tools {capabilities.tool_dialect}"
    yield "takes", ", ".join(flag for flag in ("tools", "sampling", "reasoning") if getattr(capabilities, flag)) or "-"
    yield "quirks", ", ".join(sorted(capabilities.quirks)) or "-"
    for _, _, text in limitations:
        yield "learned", text
    if not limitations:
        yield "learned", "nothing"


def limitations_of(provider: Provider, model: str | None = None) -> list[tuple[str, bool, str]]:
    """Return the downgrades of a provider's models: the name, whether it concerns one schema, and its description."""
    from slipform.providers.downgrade_file import downgrade_file, read_downgrades
    from slipform.providers.http import HttpProvider
    from slipform.providers.retry import PER_SCHEMA, describe_downgrade, model_key

    if not isinstance(provider, HttpProvider):
        return []
    limitations = []
    address = model_key(provider.base_url, "")
    for key, limitation, seconds in read_downgrades(downgrade_file()):
        name, _, schema = key.removeprefix(address).partition(" ")
        if limitation == PER_SCHEMA or not key.startswith(address) or model not in (None, name):
            continue
        about = f"{name} {describe_downgrade(limitation, of_schema=bool(schema))}"
        of = f" (the schema {schema})" if schema else ""
        limitations.append((limitation, bool(schema), f"{about}{of}, for {seconds / 3600:.0f} h more"))
    return limitations


def _available_rows(settings: Settings) -> Iterator[_Row]:
    """Yield the models that can be called: aliases, the embedded ones, then those of each provider."""
    from slipform.engine.setup import local_models, router_of

    router = router_of(settings)
    for alias, target in router.aliases.items():
        targets = settings.alias_models.get(alias)
        yield alias, f"= {', then '.join(targets) if isinstance(targets, list) else target}"
    for name, state in local_models().find().items():
        yield f"local/{name}", state
    for name, provider in router.providers.items():
        if name == "local":
            yield "local/PATH.gguf", "any GGUF file"
            continue
        for model in provider.models():
            yield f"{name}/{model}", provider.capabilities(model).auto_strategy.value
        if not provider.models():
            yield f"{name}/MODEL", "any model of this provider"


def _unavailable_rows(settings: Settings) -> Iterator[_Row]:
    """Yield the catalogue's vendors that are not in use, and how to configure them."""
    from slipform.engine.setup import router_of
    from slipform.providers.catalog import load_catalog

    providers = router_of(settings).providers
    for name, vendor in load_catalog().vendors.items():
        if name not in providers:
            yield f"{name}/MODEL", f"{vendor.title}: {vendor.setup_hint()}"
