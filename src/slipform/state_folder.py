"""Locate the folder for state that slipform keeps between two starts."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return the folder that a service manager gives (`STATE_DIRECTORY`), else the user's own."""
    folder = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if folder:
        return Path(folder)
    state = os.environ.get("XDG_STATE_HOME")
    if state:
        return Path(state) / "slipform"
    try:
        return Path.home() / ".local" / "state" / "slipform"
    except RuntimeError:  # a user without a home, as in some containers: a folder that cannot be written
        return Path(os.devnull) / "slipform"
