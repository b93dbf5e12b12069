"""The command line: `slipform serve`, `slipform ask`, `slipform models`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from slipform import __version__
from slipform.client import AsyncClient, Client
from slipform.config import load_settings
from slipform.enforce import Budget
from slipform.engine import Options, options_of, router_of
from slipform.errors import ConfigError, SlipformError
from slipform.providers.local.progress import pull_shown
from slipform.providers.local.weights import DEFAULT, KNOWN, find, known

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
models = typer.Typer(help="The embedded models.", invoke_without_command=True)
app.add_typer(models, name="models")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"slipform {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Tell the version.")
    ] = False,
) -> None:
    """Any language model, answering in the shape of your JSON Schema."""
    del version


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on.")] = None,
    config: Annotated[Path | None, typer.Option(help="The settings; slipform.yaml here by default.")] = None,
) -> None:
    """Serve the OpenAI, Anthropic and Gemini APIs on this machine; the embedded model answers by default."""
    try:
        import uvicorn
    except ImportError:
        raise ConfigError("The proxy's server is not installed", hint="Run `pip install 'slipform[server]'`.") from None
    from slipform.server import App
    from slipform.server.protocol import GatheringProtocol

    settings = load_settings(config)
    client = AsyncClient(options=options_of(settings), router=router_of(settings))
    if settings.default_model.partition("/")[0] == "local":
        pull_shown(known(DEFAULT))
    where = (host or settings.server.host, settings.server.port if port is None else port)
    typer.echo(f"slipform {__version__} serves http://{where[0]}:{where[1]}/v1 (Ctrl-C stops it)", err=True)
    uvicorn.run(
        App(client, settings),
        host=where[0],
        port=where[1],
        http=GatheringProtocol,
        proxy_headers=False,
        log_level="warning",
        access_log=False,
    )


@app.command()
def ask(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads standard input.")],
    schema: Annotated[str, typer.Option(help="A JSON Schema file, or module:Class.")],
    model: Annotated[str | None, typer.Option(help="provider/model; the embedded model by default.")] = None,
    attempts: Annotated[int, typer.Option(help="Model calls in all, at most.", min=1)] = 2,
) -> None:
    """Ask a model and print its answer as JSON that is valid against a schema."""
    shape = _shape(schema)
    words = sys.stdin.read() if prompt == "-" else prompt
    with Client(model, options=Options(budget=Budget(attempts))) as client:
        typer.echo(client.ask_full(shape, words).text)


@models.callback()
def list_models(context: typer.Context) -> None:
    """List the embedded models and whether they are here."""
    if context.invoked_subcommand is None:
        for weights in KNOWN.values():
            path = find(weights)
            typer.echo(f"{weights.name}\t{path or 'not fetched: slipform models pull ' + weights.name}")


@models.command()
def pull(name: Annotated[str, typer.Argument(help="Which model.")] = DEFAULT) -> None:
    """Fetch an embedded model's weights into the cache, if they are not there."""
    typer.echo(pull_shown(known(name)))


def main() -> None:
    """Run the command line; what goes wrong is said in one paragraph, without a traceback."""
    try:
        app()
    except SlipformError as error:
        typer.secho(f"slipform: {error}", err=True, fg="red")
        raise SystemExit(1) from None


def _shape(given: str) -> Any:
    path = Path(given)
    if not path.suffix and ":" in given:
        return _load_class(given)
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"The schema cannot be read: {error.strerror}", where=given, hint="Give a file, or module:Class."
        ) from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"The schema is not JSON: {error}", where=given) from error
    if not isinstance(document, dict):
        raise ConfigError(f"The schema is JSON but not an object: {json.dumps(document)[:40]}", where=given)
    return document


def _load_class(given: str) -> Any:
    module, _, name = given.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"There is no {name!r} to import: {error}", where=given, hint="Write it as module:Class."
        ) from error
