"""The command line: `slipform ask`, `slipform fix`, `slipform serve` and the others, one module each.

Nothing but typer is imported until a command runs, so that `--help` and completion answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from slipform import __version__
from slipform.cli.ask import ask as _ask
from slipform.cli.check import check as _check
from slipform.cli.doctor import doctor as _doctor
from slipform.cli.fix import fix as _fix
from slipform.cli.init import init as _init
from slipform.cli.keys import app as _keys
from slipform.cli.models import models as _models
from slipform.cli.schema import schema as _schema
from slipform.cli.serve import serve as _serve
from slipform.runner.commands import batch as _batch
from slipform.runner.commands import run as _run

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
app.command("fix")(_fix)
app.command("check")(_check)
app.add_typer(_schema, name="schema")
app.add_typer(_models, name="models")
app.command("init")(_init)
app.command("doctor")(_doctor)
app.command("serve")(_serve)
app.add_typer(_keys, name="keys")
app.command("run")(_run)
app.command("batch")(_batch)


def main() -> None:
    """Run the command line; what goes wrong is said in one paragraph, without a traceback."""
    from slipform.cli.exits import Exit, exit_for
    from slipform.cli.output import complain, leave_quietly, say
    from slipform.errors import SlipformError

    try:
        app()
    except SlipformError as error:
        complain(error)
        raise SystemExit(exit_for(error)) from None
    except BrokenPipeError:
        leave_quietly()
        raise SystemExit(Exit.CLOSED_PIPE) from None
    except OSError as error:
        say(f"slipform: {error.strerror or error}{f', at {error.filename}' if error.filename else ''}.", fg="red")
        raise SystemExit(Exit.OTHER) from None
    except KeyboardInterrupt:
        raise SystemExit(Exit.STOPPED) from None
