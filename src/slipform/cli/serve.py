"""`slipform serve`: the proxy."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port to listen on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Serving processes on that port.", min=1)] = None,
    config: Annotated[Path | None, typer.Option(help="The settings; slipform.yaml here by default.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let anybody who can reach the server call, without a key.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Print the settings in force, without secrets, and stop.")
    ] = False,
) -> None:
    """Serve the OpenAI, Anthropic and Gemini APIs on this machine; the embedded model answers by default."""
    if check:
        from slipform.cli.effective import checked
        from slipform.config import load_settings

        checked(load_settings(config), host, port)
        return
    gc.disable()  # hardly anything that is made while it starts is garbage; it is looked for again when it serves
    from slipform.server.run import serve as run

    run(config, host, port, workers, insecure)
