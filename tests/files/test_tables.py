"""Tables are written by their suffix, and nothing in a cell becomes something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipform.addons.batch.rows import rows_of
from slipform.errors import ConfigError
from slipform.files import write_table

ROWS: list[dict[str, Any]] = [
    {"name": "Ada", "age": 36, "note": "=1+1", "tags": ["a", "b"]},
    {"name": "Bob\nB.", "age": None, "note": 'a,b;"c"\té', "more": True},
]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "xlsx", "jsonl", "parquet"])
def test_a_table_has_the_columns_of_all_rows(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "out" / f"people.{suffix}"
    write_table(path, ROWS)
    first, second = rows_of(path)
    assert list(first) == ["name", "age", "note", "tags", "more"]
    assert str(first["age"]) == "36"
    assert first["note"] == "=1+1"
    assert first["tags"] in ('["a","b"]', ["a", "b"])
    assert first["more"] is None
    assert (second["name"], second["age"], second["note"]) == ("Bob\nB.", None, ROWS[1]["note"])


def test_integers_beyond_a_double_keep_their_digits_in_excel(tmp_path: Path) -> None:
    write_table(tmp_path / "ids.xlsx", [{"id": 12345678901234567890, "small": -2}])
    assert list(rows_of(tmp_path / "ids.xlsx")) == [{"id": "12345678901234567890", "small": -2}]


def test_a_cell_too_long_for_excel_is_cut_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_table(tmp_path / "long.xlsx", [{"text": "x" * 40_000}])
    (row,) = rows_of(tmp_path / "long.xlsx")
    assert len(row["text"]) == 32_767
    assert "cells=1" in caplog.text


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"The endings are: \.csv"):
        write_table(tmp_path / "people.doc", ROWS)
    assert list(tmp_path.iterdir()) == []
