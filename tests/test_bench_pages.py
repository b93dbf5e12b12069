"""The figures in the README and the docs are those of the last benchmark run, and of nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from bench import bars, page
from bench.compare import package_path
from bench.results import FILE, record, recorded


@pytest.fixture(scope="module")
def run() -> page.Run:
    return page.Run(json.loads(page.FIGURES.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_the_page_has_the_figures_of_the_run(path: Path, run: page.Run) -> None:
    text = path.read_text(encoding="utf-8")
    assert page.written(text, run) == text


def test_every_figure_of_the_readme_stands_in_its_table(run: page.Run) -> None:
    text = page.PAGES[0].read_text(encoding="utf-8")
    assert [row for row in page.readme_rows(run).values() if row not in text] == []


@pytest.mark.parametrize(("name", "width"), bars.WIDTHS.items())
def test_the_bars_are_those_of_the_run_and_stay_inside_the_picture(name: str, width: int, run: page.Run) -> None:
    drawn = (bars.FOLDER / name).read_text(encoding="utf-8")
    assert bars.drawn(run, width) == drawn
    ends = [float(x) + 8 * len(text) for x, text in re.findall(r'<text [^>]*x="(\d+)"[^>]*>([^<]*)</text>', drawn)]
    assert max(ends) <= width + 8


def test_a_figure_that_is_not_there_is_a_dash() -> None:
    nothing = page.Run({"parts": {}})
    assert set("".join(page.readme_rows(nothing)["CPU time added to one call"].split("|")[2:]).split()) == {"–"}
    assert "–" in page.summary(nothing)
    assert page.proxy(nothing).count("–") > 50


def test_parts_record_their_figures_only_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "figures.jsonl"
    monkeypatch.delenv(FILE, raising=False)
    record("a", 1)
    assert recorded(file) == {}
    monkeypatch.setenv(FILE, str(file))
    record("a", 1)
    record("b", {"us": 2.5})
    record("a", 3)
    assert recorded(file) == {"a": 3, "b": {"us": 2.5}}


@pytest.mark.parametrize(
    "place", ["src", f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages", "."]
)
def test_a_checkout_an_environment_and_a_folder_of_packages_can_be_measured(place: str, tmp_path: Path) -> None:
    package = tmp_path / place / "slipform"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert package_path(tmp_path) == package.parent.resolve()


def test_a_folder_without_slipform_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no slipform"):
        package_path(tmp_path)
