"""`slipform serve`: the proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port to listen on.")] = None,
    config: Annotated[Path | None, typer.Option(help="The settings; slipform.yaml here by default.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the settings in force, without secrets, and stop.")
    ] = False,
) -> None:
    """Serve the OpenAI, Anthropic and Gemini APIs on this machine; the embedded model answers by default."""
    from slipform import __version__
    from slipform.cli.effective import checked
    from slipform.client import AsyncClient
    from slipform.config import load_settings
    from slipform.engine import options_of, router_of
    from slipform.errors import ConfigError
    from slipform.providers.local.progress import pull_shown
    from slipform.providers.local.weights import DEFAULT, known

    try:
        import uvicorn
    except ImportError:
        raise ConfigError("The proxy's server is not installed", hint="Run `pip install 'slipform[server]'`.") from None
    from slipform.server import App

    settings = load_settings(config)
    if check:
        checked(settings, host, port)
        return
    client = AsyncClient(options=options_of(settings), router=router_of(settings))
    if settings.default_model.partition("/")[0] == "local":
        pull_shown(known(DEFAULT))
    where = (host or settings.server.host, settings.server.port if port is None else port)
    typer.echo(f"slipform {__version__} serves http://{where[0]}:{where[1]}/v1 (Ctrl-C stops it)", err=True)
    uvicorn.run(App(client, settings), host=where[0], port=where[1], log_level="warning", access_log=False)
