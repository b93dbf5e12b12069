"""The command line.

Nothing but typer is imported until a command runs, so that `--help` and completion answer at once; of the commands,
only the one that was asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from slipform import __version__

__all__ = ["app", "main"]

_COMMANDS = {
    "ask": "slipform.cli.ask:ask",
    "fix": "slipform.cli.fix:fix",
    "check": "slipform.cli.schema:check",
    "schema": "slipform.cli.schema:schema",
    "models": "slipform.cli.models:models",
    "init": "slipform.cli.settings:init",
    "doctor": "slipform.cli.doctor:doctor",
    "serve": "slipform.cli.serve:serve",
    "keys": "slipform.cli.serve:app",
    "run": "slipform.cli.batch:run",
    "batch": "slipform.cli.batch:batch",
}


def _version(asked: bool) -> None:
    if asked:
        from slipform.build_info import build_in_use

        typer.echo(f"slipform {__version__} ({build_in_use()})")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Tell the version, and whether it is compiled."
        ),
    ] = False,
) -> None:
    """Any language model, answering in the shape of your JSON Schema."""
    del version


def app(asked: str | None = None) -> typer.Typer:
    """The program with the command of this name, or with all of them when there is no such command.

    >>> [command.name for command in app("serve").registered_commands]
    ['serve']
    """
    made = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
    made.callback()(_options)
    for name in [asked] if asked in _COMMANDS else _COMMANDS:
        module, _, attribute = _COMMANDS[name].partition(":")
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name)(command)
    return made


def main() -> None:
    """Run the command line; what goes wrong is said in one paragraph, without a traceback."""
    from slipform.cli.terminal import Exit, complain, exit_for, leave_quietly, say
    from slipform.errors import SlipformError

    try:
        app(sys.argv[1] if len(sys.argv) > 1 else None)()
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
