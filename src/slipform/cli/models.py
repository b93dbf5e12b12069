"""`slipform models`: which models there are, and `slipform models pull`."""

from __future__ import annotations

from typing import Annotated

import typer

models = typer.Typer(help="The embedded models.", invoke_without_command=True)


@models.callback()
def list_models(context: typer.Context) -> None:
    """List the embedded models and whether they are here."""
    if context.invoked_subcommand is None:
        from slipform.providers.local.weights import KNOWN, find

        for weights in KNOWN.values():
            path = find(weights)
            typer.echo(f"{weights.name}\t{path or 'not fetched: slipform models pull ' + weights.name}")


@models.command()
def pull(
    name: Annotated[str | None, typer.Argument(help="Which model.", show_default="the embedded one")] = None,
) -> None:
    """Fetch an embedded model's weights into the cache, if they are not there."""
    from slipform.providers.local.progress import pull_shown
    from slipform.providers.local.weights import DEFAULT, known

    typer.echo(pull_shown(known(name or DEFAULT)))
