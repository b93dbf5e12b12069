"""Write files whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import IO

from slipform.errors import ConfigError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces `path` when the block succeeds.

    It is written beside it, synced and renamed, so a crash at any moment leaves the old file or the new one.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{token_hex(4)}.part")
        try:
            with part.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        _sync_folder(path.parent)


def part_of(path: Path) -> Path:
    """Return where `path` is written until complete; always the same name, so that a kill leaves at most one file."""
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise an `OSError` of the block as a `ConfigError` that names the file."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> ConfigError:
    """Return the error for a file that cannot be written."""
    return ConfigError(
        f"This file cannot be written: {error.strerror or error}",
        where=str(path),
        hint="Check the folder, its permissions and the space left, then run the same command again.",
    )


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some filesystems cannot sync a folder; the file has been renamed nevertheless
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
