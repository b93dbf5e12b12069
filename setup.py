"""Compiles the streaming parser when that is possible; without it the same sources run as plain Python.

`SLIPFORM_PURE=1` skips it. Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from setuptools import setup

COMPILED = [
    "src/slipform/text/parser_numbers.py",
    "src/slipform/text/parser_states.py",
    "src/slipform/text/parser_tree.py",
    "src/slipform/text/parser_machine.py",
    "src/slipform/text/parser_show.py",
    "src/slipform/text/parser_source.py",
    "src/slipform/text/lenient.py",
    "src/slipform/text/parser_deltas.py",
    "src/slipform/text/parser.py",
    "src/slipform/text/resolve_plan.py",
    "src/slipform/text/resolve_check.py",
    "src/slipform/text/resolve_track.py",
    "src/slipform/text/resolve.py",
]


def extensions() -> list[Any]:
    """The compiled modules, or none when the compiler is missing or was switched off."""
    if os.environ.get("SLIPFORM_PURE") or sys.implementation.name != "cpython":
        return []
    try:
        from mypyc.build import mypycify

        built = mypycify(["--follow-imports=silent", *COMPILED], opt_level="3", debug_level="0")
    except (Exception, SystemExit) as error:  # noqa: BLE001 — any failure means: run as plain Python
        print(f"slipform: not compiled, running as plain Python ({error})", file=sys.stderr)  # noqa: T201
        return []
    for extension in built:
        extension.optional = True
    return built


setup(ext_modules=extensions())
