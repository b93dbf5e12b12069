"""`slipform ask`: one question, one valid answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def ask(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads standard input.")],
    schema: Annotated[str, typer.Option(help="A JSON Schema file, or module:Class.")],
    model: Annotated[str | None, typer.Option(help="provider/model; the embedded model by default.")] = None,
    attempts: Annotated[int, typer.Option(help="Model calls in all, at most.", min=1)] = 2,
) -> None:
    """Ask a model and print its answer as JSON that is valid against a schema."""
    from slipform.cli.shapes import shape_of
    from slipform.client import Client
    from slipform.enforce import Budget
    from slipform.engine import Options

    shape = shape_of(schema)
    words = sys.stdin.read() if prompt == "-" else prompt
    with Client(model, options=Options(budget=Budget(attempts))) as client:
        typer.echo(client.ask_full(shape, words).text)
