"""`slipform keys`: who may call the proxy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slipform.config import Settings

app = typer.Typer(help="The API keys of those who may call the proxy.", no_args_is_help=True)

_Config = Annotated[Path | None, typer.Option("--config", help="The settings; slipform.yaml here by default.")]
_File = Annotated[Path | None, typer.Option("--file", help="The file of keys; `server.keys_file` by default.")]
_Name = Annotated[str, typer.Argument(help="The key's name, or its id.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A model it may use, `*` standing for anything; repeatable.")
    ] = None,
    rpm: Annotated[int | None, typer.Option(help="Requests in a minute.", min=1)] = None,
    file: _File = None,
    config: _Config = None,
) -> None:
    """Make a key and print it. It is shown this once: only a hash of it is kept."""
    from slipform.server.keys import add_key

    path, settings = _chosen(file, config)
    _, secret = add_key(path, name, models=models, requests_per_minute=rpm)
    typer.echo(secret)
    if settings.server.keys_file is None:
        typer.echo(f"Put `server: {{keys_file: {path}}}` in slipform.yaml, so that it counts.", err=True)


@app.command("list")
def list_keys(file: _File = None, config: _Config = None) -> None:
    """List the keys: id, name, when made, limits."""
    from slipform.server.keys import read_keys

    path, _ = _chosen(file, config)
    for key in read_keys(path).values():
        models = ",".join(key.models) if key.models is not None else "all models"
        rate = f"{key.requests_per_minute}/min" if key.requests_per_minute else "no limit of its own"
        fields = [key.id, key.name, key.created, models, rate, *(["disabled"] if key.disabled else [])]
        typer.echo("\t".join(fields))


@app.command()
def remove(name: _Name, file: _File = None, config: _Config = None) -> None:
    """Take a key out for good; running proxies refuse it within seconds."""
    from slipform.server.keys import remove_key
    from slipform.server.shared import revoke_everywhere

    path, settings = _chosen(file, config)
    key = remove_key(path, name)
    if settings.redis is not None:
        revoke_everywhere(settings.redis, key.id)
    typer.echo(f"removed {key.name}")


@app.command()
def disable(name: _Name, file: _File = None, config: _Config = None) -> None:
    """Refuse a key until it is enabled again."""
    from slipform.server.keys import disable_key

    path, _ = _chosen(file, config)
    typer.echo(f"disabled {disable_key(path, name).name}")


@app.command()
def enable(name: _Name, file: _File = None, config: _Config = None) -> None:
    """Let a disabled key in again."""
    from slipform.server.keys import disable_key

    path, _ = _chosen(file, config)
    typer.echo(f"enabled {disable_key(path, name, disabled=False).name}")


def _chosen(file: Path | None, config: Path | None) -> tuple[Path, Settings]:
    from slipform.config import load_settings
    from slipform.errors import ConfigError

    settings = load_settings(config)
    path = file or (Path(settings.server.keys_file) if settings.server.keys_file else None)
    if path is None:
        raise ConfigError(
            "There is no file of keys", where="server.keys_file", hint="Set it in slipform.yaml, or give `--file`."
        )
    return path, settings
