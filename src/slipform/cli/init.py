"""`slipform init`: a commented `slipform.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipform.cli.output import say, write


def init(
    file: Annotated[Path, typer.Argument(help="Where to write; - is standard output.")] = Path("slipform.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a settings file with every setting, its default and what it means."""
    from slipform.cli.settings_file import commented
    from slipform.errors import RequestError

    text = commented()
    if str(file) == "-":
        write(text, end="")
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise RequestError(
            "The file is there already; nothing was written", where=str(file), hint="Write over it with --force."
        ) from None
    except OSError as error:
        raise RequestError(f"The file cannot be written: {error.strerror}", where=str(file)) from error
    say(f"Wrote {file}. Change what you like, then check it: slipform doctor", fg="green")
