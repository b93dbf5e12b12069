"""Start the proxy (`slipform serve`) and manage its API keys (`slipform keys`)."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slipform.cli.terminal import ConfigOption

if TYPE_CHECKING:
    from slipform.addons.server.admission.key_file import Key
    from slipform.addons.server.admission.keys import KeyReaders
    from slipform.addons.server.admission.revocations import Revocation
    from slipform.config import Settings
    from slipform.errors import ConfigError

app = typer.Typer(help="Manage the API keys of the proxy's callers.", no_args_is_help=True)
_FileOption = Annotated[Path | None, typer.Option("--file", help="The key file; `server.keys_file` by default.")]
_OUTCOMES = {
    "": "",  # nothing was changed
    "taken": "The running server has applied the change{}.",
    "no server": "No server is running here with this file.",
    "unknown": "Running servers take it within a second; this system cannot tell whether they have.",
}
_NameArgument = Annotated[str, typer.Argument(help="The key's name, or its id.")]
_BudgetOption = Annotated[
    str | None, typer.Option("--budget", help="Money it may spend in a period, as in `prices`; `none` for no limit.")
]
_TokensOption = Annotated[
    str | None, typer.Option("--tokens", help="Tokens it may use in a period: 50000, 200k, 3M; `none` for no limit.")
]
_PeriodOption = Annotated[
    str | None, typer.Option("--per", help="The period: hour, day, week, month, or all (its life).")
]
_SoftBudgetOption = Annotated[
    str | None, typer.Option("--soft-budget", help="Money in a period after which the log and a header warn.")
]
_SoftTokensOption = Annotated[
    str | None, typer.Option("--soft-tokens", help="Tokens in a period after which the log and a header warn.")
]
_ConcurrentOption = Annotated[
    str | None, typer.Option("--concurrent", help="Its requests under way at the same time; `none` for no own limit.")
]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A name for the key's owner.")],
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A model it may use; `*` matches anything; repeatable.")
    ] = None,
    rpm: Annotated[int | None, typer.Option(help="Requests per minute.", min=1)] = None,
    expires: Annotated[
        str | None, typer.Option(help="When it expires: 12h, 30d, 6w, 2027-01-31 (UTC) or a time in ISO 8601.")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Also give access to /metrics, /docs and the other operators' pages.")
    ] = False,
    budget: _BudgetOption = None,
    tokens: _TokensOption = None,
    per: _PeriodOption = None,
    soft_budget: _SoftBudgetOption = None,
    soft_tokens: _SoftTokensOption = None,
    concurrent: _ConcurrentOption = None,
    file: _FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Create a key and print it. It is shown only once: the file keeps a hash."""
    from slipform.addons.server.admission.budgets import KeyBudget
    from slipform.addons.server.admission.keys import add_key, expiry

    path, settings = _keys_file(file, config)
    is_new = not path.exists()
    end = expiry(expires) if expires else ""
    limits = KeyBudget(**_limits(budget, tokens, per, soft_budget, soft_tokens, concurrent))
    _, secret = add_key(
        path, name, models=models, requests_per_minute=rpm, expires=end, operator=operator, budget=limits
    )
    typer.echo(secret)
    if settings.server.keys_file is None:
        typer.echo(f"Put `server: {{keys_file: {path}}}` in slipform.yaml, so that it counts.", err=True)
    if is_new and hasattr(os, "geteuid") and os.geteuid() == 0:
        note = f"{path} is new, belongs to root, and only root can read it. A server that runs as another user cannot: "
        typer.echo(f"{note}give it that user (`chown USER {path}`); later changes keep the owner.", err=True)


def _limits(
    budget: str | None,
    tokens: str | None,
    per: str | None,
    soft_budget: str | None,
    soft_tokens: str | None,
    concurrent: str | None,
) -> dict[str, Any]:
    """Return the fields of a key that these options set; None to remove a limit."""
    from slipform.addons.server.admission.budgets import PERIODS, parse_limit
    from slipform.errors import ConfigError

    fields: dict[str, Any] = {}
    texts = (
        ("max_cost", "--budget", budget),
        ("max_tokens", "--tokens", tokens),
        ("soft_cost", "--soft-budget", soft_budget),
        ("soft_tokens", "--soft-tokens", soft_tokens),
        ("max_concurrent", "--concurrent", concurrent),
    )
    for field, option, text in texts:
        if text is not None:
            limit = None if text == "none" else parse_limit(text, option)
            fields[field] = int(limit) if limit is not None and "cost" not in field else limit
    if per is not None:
        fields["period"] = "" if per == "all" else per
        if fields["period"] not in PERIODS:
            raise ConfigError(f"{per!r} is not a period", where="--per", hint="Write hour, day, week, month or all.")
    return fields


@app.command()
def change(
    name: _NameArgument,
    budget: _BudgetOption = None,
    tokens: _TokensOption = None,
    per: _PeriodOption = None,
    soft_budget: _SoftBudgetOption = None,
    soft_tokens: _SoftTokensOption = None,
    concurrent: _ConcurrentOption = None,
    file: _FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Change the budget of a key; what it has spent stays."""
    from slipform.addons.server.admission.keys import change_key
    from slipform.errors import ConfigError

    path, _ = _keys_file(file, config)
    changes = _limits(budget, tokens, per, soft_budget, soft_tokens, concurrent)
    servers = _Servers()
    key = change_key(path, name, changes, confirm=servers.wait)
    typer.echo(f"changed {key.name}")
    outcome = servers.outcome(path)
    if isinstance(outcome, ConfigError):
        raise outcome
    if outcome:
        typer.echo(outcome, err=True)


@app.command("list")
def list_keys(file: _FileOption = None, config: ConfigOption = None) -> None:
    """List the keys: id, name, creation, limits, what is spent, whether disabled, expiry, whether an operator's."""
    import time

    from slipform.addons.server.admission.key_file import read_keys

    path, settings = _keys_file(file, config)
    spent = _spending_lines(settings, [key for key in read_keys(path).values() if key.budget is not None])
    for key in read_keys(path).values():
        models = ",".join(key.models) if key.models is not None else "all models"
        rate = "no limit of its own"
        if key.requests_per_minute:
            rate = f"{key.requests_per_minute}/min"
        expiry_word = "expired" if key.is_expired(time.time()) else "expires"
        end = f"{expiry_word} {key.expires}" if key.expires else ""
        flags = ["operator" if key.operator else "", "disabled" if key.disabled else "", end, spent.get(key.id, "")]
        typer.echo("\t".join([key.id, key.name, key.created, models, rate, *filter(None, flags)]))


def _spending_lines(settings: Settings, keys: Sequence[Key]) -> dict[str, str]:
    """Describe the spending and the limits of keys with budgets on this machine, by key."""
    import sqlite3
    import time
    from contextlib import closing

    from slipform.addons.server.admission.budgets import NANOS, Standing
    from slipform.addons.server.admission.ledger import open_ledger, standing
    from slipform.addons.server.admission.spending import ledger_path

    path = ledger_path(settings, os.environ)
    now = time.time()
    standings: dict[str, Standing] = {}
    if path is not None and path.exists() and keys:
        try:
            with closing(open_ledger(path, readonly=True)) as connection:
                standings = {key.id: standing(connection, key.id, key.period, now) for key in keys}
        except sqlite3.Error as error:
            typer.echo(f"{path} cannot be read: {error}", err=True)
    words = {}
    for key in keys:
        stands = standings.get(key.id, Standing())
        per = f" per {key.period}" if key.period else ""
        parts = []
        if key.max_cost is not None or key.soft_cost is not None:
            parts.append(
                f"spent {stands.cost / NANOS:.6g} of {'no limit' if key.max_cost is None else key.max_cost}{per}"
            )
        if key.max_tokens is not None or key.soft_tokens is not None:
            most = "no limit" if key.max_tokens is None else key.max_tokens
            parts.append(f"{stands.tokens} of {most} tokens{per}")
        if key.max_concurrent is not None:
            parts.append(f"{stands.live} of {key.max_concurrent} under way")
        words[key.id] = ", ".join(parts)
    return words


@app.command()
def remove(name: _NameArgument, file: _FileOption = None, config: ConfigOption = None) -> None:
    """Remove a key for good, and report whether the running server refuses it now."""
    from slipform.addons.server.admission.key_file import RemovedKey
    from slipform.addons.server.admission.keys import remove_key
    from slipform.addons.server.admission.revocations import Revocation

    path, settings = _keys_file(file, config)
    servers = _Servers()
    key = remove_key(path, name, confirm=servers.wait)
    if isinstance(key, RemovedKey):
        typer.echo(f"{key.name} was removed on {key.removed}", err=True)
    _report_change(f"removed {key.name}", servers.outcome(path), settings, key.id, Revocation("removed", 0))


@app.command()
def disable(name: _NameArgument, file: _FileOption = None, config: ConfigOption = None) -> None:
    """Disable a key until it is enabled again, and report whether the running server refuses it now."""
    _set_disabled(name, file, config, disabled=True)


@app.command()
def enable(name: _NameArgument, file: _FileOption = None, config: ConfigOption = None) -> None:
    """Enable a disabled key, here and on machines that learned of it through Redis."""
    _set_disabled(name, file, config, disabled=False)


def _set_disabled(name: str, file: Path | None, config: Path | None, *, disabled: bool) -> None:
    from slipform.addons.server.admission.key_file import revocation_of
    from slipform.addons.server.admission.keys import disable_key
    from slipform.addons.server.admission.shared_state import shared_revision

    path, settings = _keys_file(file, config)
    servers = _Servers()
    redis = settings.redis
    shared_revision_of = (lambda key_id: shared_revision(redis, key_id)) if redis is not None else None
    key = disable_key(path, name, disabled, after=shared_revision_of, confirm=servers.wait)
    action = f"{'disabled' if disabled else 'enabled'} {key.name}"
    _report_change(action, servers.outcome(path), settings, key.id, revocation_of(key))


def _report_change(
    action: str, outcome: str | ConfigError, settings: Settings, key_id: str, revocation: Revocation
) -> None:
    """Print what was done, inform the other machines, and raise when a running server still uses the old keys."""
    from slipform.addons.server.admission.shared_state import tell_machines
    from slipform.cli.terminal import print_failure
    from slipform.errors import ConfigError

    typer.echo(action)
    if isinstance(outcome, str) and outcome:
        typer.echo(outcome, err=True)
    try:
        if settings.redis is not None:
            tell_machines(settings.redis, key_id, revocation)
    except ConfigError as error:
        if not isinstance(outcome, ConfigError):
            raise
        print_failure(error)
    if isinstance(outcome, ConfigError):
        raise outcome


class _Servers:
    """Whether the servers running on this machine have loaded a change of the keys."""

    def __init__(self) -> None:
        self._status: Literal["", "taken", "no server", "not taken", "unknown"] = ""
        self._processes: list[int] = []

    def wait(self, readers: KeyReaders) -> None:
        self._processes = readers.processes()
        self._status = readers.wait()
        if self._status == "not taken":
            self._processes = readers.processes()

    def outcome(self, path: Path) -> str | ConfigError:
        """Return the message for the user, or the error that a server has not loaded the change."""
        from slipform.errors import ConfigError

        processes = ""
        if self._processes:
            processes = f" ({', '.join(_process_name(each) for each in self._processes)})"
        if self._status != "not taken":
            return _OUTCOMES[self._status].format(processes)
        status = path.stat()
        return ConfigError(
            f"A running server has NOT applied the change{processes}: it still uses the old keys",
            where=str(path),
            hint=f"Its log says why. The file belongs to user {status.st_uid} and group {status.st_gid} with mode "
            f"{status.st_mode & 0o777:04o}: the server's user must be able to read it. Stop the server until then.",
        )


def _process_name(number: int) -> str:
    from slipform.addons.server.admission.keys import user_name

    try:
        return f"process {number} of {user_name(Path(f'/proc/{number}').stat().st_uid)}"
    except OSError:
        return f"process {number}"


def _keys_file(file: Path | None, config: Path | None) -> tuple[Path, Settings]:
    from slipform.config import load_settings
    from slipform.errors import ConfigError

    settings = load_settings(config)
    path = file or (Path(settings.server.keys_file) if settings.server.keys_file else None)
    if path is None:
        raise ConfigError(
            "No key file is set", where="server.keys_file", hint="Set it in slipform.yaml, or give `--file`."
        )
    return path, settings


def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port to listen on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of serving processes.", min=1)] = None,
    config: ConfigOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept calls without a key from anybody who can reach the server.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Print the settings in force, without secrets, and exit.")
    ] = False,
) -> None:
    """Serve the OpenAI, Anthropic, Gemini and Ollama APIs; the embedded model answers by default."""
    if check:
        from slipform.cli.settings import print_settings
        from slipform.config import load_settings

        print_settings(load_settings(config), host, port)
        return
    gc.disable()  # starting up creates hardly any garbage; the server enables collection again
    from slipform.addons.server.serve import serve as run

    run(config, host, port, workers, insecure)


def console(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The port the server listens on.")] = None,
    open_it: Annotated[
        bool, typer.Option("--open/--no-open", help="Open a browser, or only print the address.")
    ] = True,
    config: ConfigOption = None,
) -> None:
    """Open the console of the server that runs on this machine, signed in."""
    from slipform.addons.server.serve import console_link
    from slipform.config import load_settings
    from slipform.errors import ConfigError

    settings = load_settings(config)
    if settings.server.console == "off":
        raise ConfigError("The console is switched off", where="server.console", hint="Set it to `auto` or `on`.")
    link = console_link(settings, f"127.0.0.1:{port or settings.server.port}")
    if link is None:
        raise ConfigError(
            "This server's console takes an operator's key",
            where="server.keys_file",
            hint="Open /console/ in a browser, and sign in with a key made by `slipform keys add NAME --operator`.",
        )
    typer.echo(link)
    if open_it:
        import webbrowser

        webbrowser.open(link)
