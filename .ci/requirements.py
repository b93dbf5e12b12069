"""Print what slipform and some of its extras need, a line each: `make` installs that without building slipform again.

python .ci/requirements.py server local
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
ITSELF = re.compile(rf"{PROJECT['name']}\[([\w, -]+)\]$")


def needed_by(extra: str) -> Iterator[str]:
    """Yield the requirements of an extra; one that names slipform's own extras brings theirs."""
    if extra not in PROJECT["optional-dependencies"]:
        raise SystemExit(f"pyproject.toml has no extra {extra!r}")
    for requirement in PROJECT["optional-dependencies"][extra]:
        if own := ITSELF.match(requirement):
            for name in own[1].split(","):
                yield from needed_by(name.strip())
        else:
            yield requirement


if __name__ == "__main__":
    found = [*PROJECT["dependencies"], *(each for extra in sys.argv[1:] for each in needed_by(extra))]
    sys.stdout.write("".join(f"{each}\n" for each in dict.fromkeys(found)))
