"""What is documented here: `slipform serve`, `slipform keys`."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from slipform.config import Settings
    from slipform.errors import ConfigError
    from slipform.proxy.admission.keys import KeyReaders
    from slipform.proxy.admission.revocations import Revocation

app = typer.Typer(help="The API keys of those who may call the proxy.", no_args_is_help=True)
_Config = Annotated[Path | None, typer.Option("--config", help="The settings; slipform.yaml here by default.")]
_File = Annotated[Path | None, typer.Option("--file", help="The file of keys; `server.keys_file` by default.")]
_OUTCOMES = {
    "": "",  # nothing was changed
    "taken": "The running server has taken it{}.",
    "no server": "No server is running here with this file.",
    "unknown": "Running servers take it within a second; this system cannot tell whether they have.",
}
_Name = Annotated[str, typer.Argument(help="The key's name, or its id.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A model it may use, `*` standing for anything; repeatable.")
    ] = None,
    rpm: Annotated[int | None, typer.Option(help="Requests in a minute.", min=1)] = None,
    expires: Annotated[
        str | None, typer.Option(help="When it ends: 12h, 30d, 6w, 2027-01-31 (UTC) or a time in ISO 8601.")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Whether it also opens /metrics, /docs and the other operators' pages.")
    ] = False,
    file: _File = None,
    config: _Config = None,
) -> None:
    """Make a key and print it. It is shown this once: only a hash of it is kept."""
    from slipform.proxy.admission.keys import add_key, expiry

    path, settings = _chosen(file, config)
    is_new = not path.exists()
    end = expiry(expires) if expires else ""
    _, secret = add_key(path, name, models=models, requests_per_minute=rpm, expires=end, operator=operator)
    typer.echo(secret)
    if settings.server.keys_file is None:
        typer.echo(f"Put `server: {{keys_file: {path}}}` in slipform.yaml, so that it counts.", err=True)
    if is_new and hasattr(os, "geteuid") and os.geteuid() == 0:
        said = f"{path} is new, belongs to root, and only root can read it. A server that runs as another user cannot: "
        typer.echo(f"{said}give it that user (`chown USER {path}`); later changes keep the owner.", err=True)


@app.command("list")
def list_keys(file: _File = None, config: _Config = None) -> None:
    """List the keys: id, name, when made, limits, whether disabled, when they end, whether an operator's."""
    import time

    from slipform.proxy.admission.key_file import read_keys

    path, _ = _chosen(file, config)
    for key in read_keys(path).values():
        models = ",".join(key.models) if key.models is not None else "all models"
        rate = f"{key.requests_per_minute}/min" if key.requests_per_minute else "no limit of its own"
        ends = ("expired" if key.is_expired(time.time()) else "expires") + f" {key.expires}" if key.expires else ""
        marks = ["operator" if key.operator else "", "disabled" if key.disabled else "", ends]
        typer.echo("\t".join([key.id, key.name, key.created, models, rate, *filter(None, marks)]))


@app.command()
def remove(name: _Name, file: _File = None, config: _Config = None) -> None:
    """Take a key out for good, and tell whether the running server refuses it now."""
    from slipform.proxy.admission.key_file import RemovedKey
    from slipform.proxy.admission.keys import remove_key
    from slipform.proxy.admission.revocations import Revocation

    path, settings = _chosen(file, config)
    servers = _Servers()
    key = remove_key(path, name, confirm=servers.wait)
    if isinstance(key, RemovedKey):
        typer.echo(f"{key.name} was removed on {key.removed}", err=True)
    _conclude(f"removed {key.name}", servers.outcome(path), settings, key.id, Revocation("removed", 0))


@app.command()
def disable(name: _Name, file: _File = None, config: _Config = None) -> None:
    """Refuse a key until it is enabled again, and tell whether the running server refuses it now."""
    _switch(name, file, config, disabled=True)


@app.command()
def enable(name: _Name, file: _File = None, config: _Config = None) -> None:
    """Let a disabled key in again, here and on machines that were only told that it is disabled."""
    _switch(name, file, config, disabled=False)


def _switch(name: str, file: Path | None, config: Path | None, *, disabled: bool) -> None:
    from slipform.proxy.admission.key_file import revocation_of
    from slipform.proxy.admission.keys import disable_key
    from slipform.proxy.admission.shared_state import shared_revision

    path, settings = _chosen(file, config)
    servers, redis = _Servers(), settings.redis
    after = (lambda key_id: shared_revision(redis, key_id)) if redis is not None else None
    key = disable_key(path, name, disabled, after=after, confirm=servers.wait)
    done = f"{'disabled' if disabled else 'enabled'} {key.name}"
    _conclude(done, servers.outcome(path), settings, key.id, revocation_of(key))


def _conclude(done: str, outcome: str | ConfigError, settings: Settings, key_id: str, revocation: Revocation) -> None:
    """Say what was done, tell the other machines, and raise when somebody goes by the keys as they were."""
    from slipform.cli.terminal import complain
    from slipform.errors import ConfigError
    from slipform.proxy.admission.shared_state import tell_machines

    typer.echo(done)
    if isinstance(outcome, str) and outcome:
        typer.echo(outcome, err=True)
    try:
        if settings.redis is not None:
            tell_machines(settings.redis, key_id, revocation)
    except ConfigError as untold:
        if not isinstance(outcome, ConfigError):
            raise
        complain(untold)
    if isinstance(outcome, ConfigError):
        raise outcome


class _Servers:
    """Whether the servers that run here have taken a change."""

    def __init__(self) -> None:
        self._taken: Literal["", "taken", "no server", "not taken", "unknown"] = ""
        self._processes: list[int] = []

    def wait(self, readers: KeyReaders) -> None:
        self._processes = readers.processes()
        self._taken = readers.wait()
        if self._taken == "not taken":
            self._processes = readers.processes()

    def outcome(self, path: Path) -> str | ConfigError:
        """What to say of them, or the error that they have not taken it."""
        from slipform.errors import ConfigError

        which = f" ({', '.join(_process(each) for each in self._processes)})" if self._processes else ""
        if self._taken != "not taken":
            return _OUTCOMES[self._taken].format(which)
        found = path.stat()
        return ConfigError(
            f"A running server has NOT taken it{which}, and goes by the keys as they were",
            where=str(path),
            hint=f"Its log says why. The file belongs to user {found.st_uid} and group {found.st_gid} with mode "
            f"{found.st_mode & 0o777:04o}: the server's user must be able to read it. Stop the server until then.",
        )


def _process(number: int) -> str:
    from slipform.proxy.admission.keys import user_name

    try:
        return f"process {number} of {user_name(Path(f'/proc/{number}').stat().st_uid)}"
    except OSError:
        return f"process {number}"


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
        from slipform.cli.settings import checked
        from slipform.config import load_settings

        checked(load_settings(config), host, port)
        return
    gc.disable()  # hardly anything that is made while it starts is garbage; it is looked for again when it serves
    from slipform.proxy.serve import serve as run

    run(config, host, port, workers, insecure)
