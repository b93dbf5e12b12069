"""Report whether the modules in use are compiled, and if not, why.

setup.py writes the reason into `build.json` beside this file, for a wheel and for an editable install alike. The
modules themselves decide where they contradict it: a compiled one may have been deleted, or the sources never built.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from typing import Final, NamedTuple

from slipform import __version__

RECORD: Final = Path(__file__).with_name("build.json")
_COMPILED_MODULE: Final = "slipform.text.scanner"
"""Represents all compiled modules, because setup.py compiles all or none."""
_NO_RECORD: Final = "these sources were never built; `pip install` compiles them"
_REMOVED: Final = "the compiled modules were deleted after the build; `pip install` makes them again"


class Build(NamedTuple):
    """Whether the modules in use are compiled, and the reason when they are not.

    >>> str(Build(False, "built with SLIPFORM_PURE=1"))
    'plain Python: built with SLIPFORM_PURE=1'
    """

    compiled: bool
    reason: str = ""

    def __str__(self) -> str:
        if self.compiled:
            return "compiled"
        return f"plain Python: {self.reason}"


def build_in_use() -> Build:
    """Return the build that this process runs.

    >>> build_in_use().compiled == (not build_in_use().reason)
    True
    """
    loaded = sys.modules.get(_COMPILED_MODULE)
    if loaded is not None:
        return build_of(loaded.__file__, RECORD)
    spec = PathFinder.find_spec(_COMPILED_MODULE, [str(RECORD.with_name("text"))])  # which imports nothing
    return build_of(spec.origin if spec is not None else None, RECORD)


def version_line() -> str:
    """Return what `slipform --version` prints.

    >>> version_line().split()[0]
    'slipform'
    """
    return f"slipform {__version__} ({build_in_use()})"


def build_of(origin: str | None, record: Path) -> Build:
    """Return the build of a module loaded from `origin`, with the reason from its record.

    >>> build_of("strict.py", Path("no such record")).reason
    'these sources were never built; `pip install` compiles them'
    """
    if origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES)):
        return Build(True)
    try:
        recorded = json.loads(record.read_text(encoding="utf-8"))
        reason = recorded["plain_because"]
    except (OSError, ValueError, KeyError, TypeError):
        return Build(False, _NO_RECORD)
    return Build(False, reason if isinstance(reason, str) and reason else _REMOVED)
