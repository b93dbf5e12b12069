"""`slipform doctor`: what is set up, what works, what does not."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from slipform.cli.exits import Exit
from slipform.cli.output import coloured, paint, write

if TYPE_CHECKING:
    from slipform.cli.doctor_checks import Finding

_MARKS: Final = {"ok": ("✓", "green"), "note": ("-", "yellow"), "fault": ("✗", "red")}


def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Do not look whether providers can be reached.")] = False,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Tell what `auto` means for this model; may be repeated.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The settings; slipform.yaml here by default.")] = None,
) -> None:
    """Check the config, the keys (never shown), the providers, the embedded model; exit code 1 if one is amiss."""
    faults = 0
    for title, findings in _sections(offline, model or [], config):
        write(paint(title, bold=True) if coloured() else title)
        for finding in findings:
            faults += finding.mark == "fault"
            mark, colour = _MARKS[finding.mark]
            write(f"  {paint(mark, fg=colour) if coloured() else mark} {finding.text}")
    if faults:
        write(f"{faults} thing{'' if faults == 1 else 's'} to mend.")
        raise typer.Exit(Exit.OTHER)
    write("All is well.")


def _sections(offline: bool, models: Sequence[str], config: Path | None) -> Iterator[tuple[str, Iterable[Finding]]]:
    from slipform import __version__
    from slipform.build_info import build_in_use
    from slipform.cli import doctor_checks as checks
    from slipform.cli.doctor_checks import Finding
    from slipform.config import Settings, load_settings
    from slipform.engine import router_of
    from slipform.errors import SlipformError

    build = build_in_use()
    yield (
        "slipform",
        [
            Finding("ok", f"{__version__}, Python {platform.python_version()}, {platform.system()}"),
            Finding("ok" if build.compiled else "note", str(build)),
        ],
    )
    settings, router = Settings(), None
    try:
        settings = load_settings(config)
        router = router_of(settings)
        yield "config", [Finding("ok", _origin(config))]
    except SlipformError as error:
        yield "config", [Finding("fault", str(error))]
    yield "keys", checks.keys(settings)
    yield "embedded model", checks.embedded(settings)
    if router is not None:
        if not offline:
            yield "providers", checks.reachable(settings, router.providers)
        yield "what `auto` means", checks.picks(router, models)
        yield "schemas", checks.schemas(settings)


def _origin(config: Path | None) -> str:
    from slipform.config import FILE_NAME

    named = str(config) if config else os.environ.get("SLIPFORM_CONFIG")
    if named:
        return f"{named} is valid"
    if Path(FILE_NAME).is_file():
        return f"{FILE_NAME} is valid"
    return f"no {FILE_NAME} here: all settings have their defaults; `slipform init` writes one"
