"""Which files a batch or a run reads: named ones, folders, patterns; never what slipform wrote itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipform.addons.batch.file_rows import is_dataset, list_files
from slipform.errors import ConfigError


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters" / "old").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "c.md", "a.txt.out.json", "table.csv", "table.csv.journal", ".hidden"):
        (tmp_path / "letters" / name).write_text(name)
    (tmp_path / "letters" / "old" / "d.txt").write_text("d")
    return Path("letters")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("letters/*.txt", ["a.txt", "b.txt"]),
        ("letters/**/*.txt", ["a.txt", "b.txt", "d.txt"]),
        ("letters/[bc].*", ["b.txt", "c.md"]),
        ("letters", ["a.txt", "b.txt", "c.md", "d.txt", "table.csv"]),
    ],
)
def test_folders_and_patterns_are_all_of_their_files(letters: Path, source: str, names: list[str]) -> None:
    assert sorted(path.name for path in list_files([Path(source)])) == names


@pytest.mark.parametrize("absolute", [False, True])
def test_the_output_is_not_read_however_it_is_named(letters: Path, absolute: bool) -> None:
    out = letters / "table.csv"
    files = list_files([letters], apart_from=[out.resolve() if absolute else out])
    assert out not in files


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(letters: Path) -> None:
    strange = letters / "a[1].txt"
    strange.write_text("x")
    assert list_files([strange]) == (strange,)


def test_a_pattern_without_files_is_an_error(letters: Path) -> None:
    with pytest.raises(ConfigError, match="No file matches the pattern"):
        list_files([letters / "*.pdf"])


def test_a_pattern_of_tables_is_a_row_for_each() -> None:
    assert not is_dataset([Path("tables/*.csv")])
