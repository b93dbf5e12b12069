"""Print what callers' keys have spent (`slipform spend`), as CSV, from the ledger of this machine."""

from __future__ import annotations

import csv
import io
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from slipform.cli.terminal import ConfigOption, print_data

if TYPE_CHECKING:
    from slipform.config import Settings

_GROUPS: Final = {
    "key": "name",
    "id": "key",
    "model": "model",
    "day": "strftime('%Y-%m-%d', at, 'unixepoch')",
    "hour": "strftime('%Y-%m-%dT%H:00Z', at, 'unixepoch')",
    "month": "strftime('%Y-%m', at, 'unixepoch')",
    "outcome": "outcome",
}
_SUMS: Final = {
    "requests": "count(*)",
    "attempts": "sum(attempts)",
    "tokens_in": "sum(tokens_in)",
    "tokens_out": "sum(tokens_out)",
    "cost": "coalesce(sum(cost), 0)",
    "unpriced": "sum(cost IS NULL)",
}
_SPANS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def spend(
    by: Annotated[
        str, typer.Option("--by", help=f"What to group by, separated by commas: {', '.join(_GROUPS)}.")
    ] = "key,model",
    since: Annotated[
        str | None, typer.Option("--since", help="From when: 24h, 30d, 6w, 2026-11-01 (UTC) or a time in ISO 8601.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Up to when, written alike.")] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="The ledger's file; that of the settings by default.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Print what was spent, as CSV: requests, tokens and money by key and model, from this machine's ledger."""
    from slipform.addons.server.admission.ledger import open_ledger
    from slipform.config import load_settings
    from slipform.errors import ConfigError

    path = ledger or _path(load_settings(config))
    groups = [each.strip() for each in by.split(",") if each.strip()]
    if unknown := [each for each in groups if each not in _GROUPS]:
        raise ConfigError(f"{unknown[0]!r} is nothing to group by", where="--by", hint=f"Use {', '.join(_GROUPS)}.")
    start = _moment(since, "--since", 0.0)
    end = _moment(until, "--until", 1e12)
    try:
        with closing(open_ledger(path, readonly=True)) as connection:
            rows = connection.execute(_query(groups), (start, end)).fetchall()
    except sqlite3.Error as error:
        hint = "The server writes it with its first call by a key."
        raise ConfigError(f"The ledger cannot be read: {error}", where=str(path), hint=hint) from error
    print_data(_table([*groups, *_SUMS], rows), end="")


def _path(settings: Settings) -> Path:
    from slipform.addons.server.admission.spending import ledger_path
    from slipform.errors import ConfigError

    path = ledger_path(settings, os.environ)
    if path is None:
        hint = "Set `ledger.path`, or `server.keys_file`, in slipform.yaml, or give `--ledger`."
        raise ConfigError("The ledger does not exist", where="ledger.path", hint=hint)
    return path


def _query(groups: list[str]) -> str:
    """Sum up the calls between two moments; all text of the statement is constant."""
    columns = [f"{_GROUPS[each]} AS {each}" for each in groups]
    sums = [f"{expression} AS {name}" for name, expression in _SUMS.items()]
    grouped = ""
    if groups:
        grouped = f" GROUP BY {', '.join(map(str, range(1, len(groups) + 1)))}"
    ordered = ""
    if groups:
        ordered = f" ORDER BY {', '.join(map(str, range(1, len(groups) + 1)))}"
    return f"SELECT {', '.join([*columns, *sums])} FROM calls WHERE at >= ? AND at < ?{grouped}{ordered}"  # noqa: S608


def _table(names: list[str], rows: list[tuple[object, ...]]) -> str:
    from slipform.addons.server.admission.budgets import money

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    at = names.index("cost")
    for row in rows:
        cost = row[at]
        writer.writerow([*row[:at], money(cost) if isinstance(cost, int) else "0", *row[at + 1 :]])
    return out.getvalue()


def _moment(text: str | None, where: str, default: float) -> float:
    from slipform.errors import ConfigError

    if text is None:
        return default
    try:
        if text[-1:] in _SPANS and text[:-1].isdigit():
            return (datetime.now(UTC) - int(text[:-1]) * _SPANS[text[-1]]).timestamp()
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is not a time", where=where, hint="Write 24h, 30d, 6w or 2026-11-01.") from None
