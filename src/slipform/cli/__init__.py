"""The command line: `slipform ask`, `slipform fix`, `slipform serve` and the others, one module each.

Nothing but typer is imported until a command runs, so that `--help` and completion answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from slipform import __version__
from slipform.cli.ask import ask as _ask
from slipform.cli.models import models as _models
from slipform.cli.serve import serve as _serve

__all__ = ["app", "main"]

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"slipform {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Tell the version.")
    ] = False,
) -> None:
    """Any language model, answering in the shape of your JSON Schema."""
    del version


app.command("ask")(_ask)
app.add_typer(_models, name="models")
app.command("serve")(_serve)
# At the merge, `batch`, `keys` and `run` are imported above and registered here, from their modules beside this one.


def main() -> None:
    """Run the command line; what goes wrong is said in one paragraph, without a traceback."""
    from slipform.errors import SlipformError

    try:
        app()
    except SlipformError as error:
        typer.secho(f"slipform: {error}", err=True, fg="red")
        raise SystemExit(1) from None
