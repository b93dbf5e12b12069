"""Build the command line.

Only typer and the requested command are imported, so that `--help` and completion answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from slipform import seams


def _version(requested: bool) -> None:
    if requested:
        from slipform.build_info import version_line

        typer.echo(version_line())
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version, and whether it is compiled."
        ),
    ] = False,
) -> None:
    """Any language model, answering in the shape of your JSON Schema."""
    del version


def app(requested: str | None = None) -> typer.Typer:
    """Return the program with the requested command only, or with all of them when it is unknown.

    >>> [command.name for command in app("serve").registered_commands]
    ['serve']
    """
    program = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
    program.callback()(_options)
    for name in [requested] if requested in seams.COMMANDS else seams.COMMANDS:
        command = seams.load(seams.COMMANDS[name])
        if isinstance(command, typer.Typer):
            program.add_typer(command, name=name)
        else:
            program.command(name)(command)
    return program
