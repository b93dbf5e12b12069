"""Write a commented settings file: `slipform init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipform.cli.terminal import print_data, print_message


def init(
    file: Annotated[Path, typer.Argument(help="The file to write; - is standard output.")] = Path("slipform.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a settings file with every setting, its default and its meaning."""
    from slipform.cli.settings import settings_template
    from slipform.errors import RequestError

    text = settings_template()
    if str(file) == "-":
        print_data(text, end="")
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
    print_message(f"Wrote {file}. Change what you like, then check it: slipform doctor", fg="green")
