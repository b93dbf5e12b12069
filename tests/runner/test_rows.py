"""Reading datasets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slipform.addons.batch.rows import rows_of
from slipform.errors import ConfigError


def test_jsonl_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 12345678901234567890123, "b": "\xc3\xbc"}')
    assert list(rows_of(path)) == [{"a": 1}, {"a": 12345678901234567890123, "b": "ü"}]


def test_csv_cells_are_text_and_empty_ones_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('\ufeffid,name\n1,"Ada, ""the first""\nline two"\n\n2,\n3\n', "utf-8")
    assert list(rows_of(path)) == [
        {"id": "1", "name": 'Ada, "the first"\nline two'},
        {"id": "2", "name": None},
        {"id": "3", "name": None},
    ]


def test_a_long_cell_and_tabs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("id\ttext\n1\t" + "x" * 300_000 + "\n")
    assert [len(row["text"]) for row in rows_of(path)] == [300_000]


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    rows = [{"id": number, "tags": ["a", None]} for number in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert list(rows_of(path)) == rows


def test_empty_files_have_no_rows(tmp_path: Path) -> None:
    for name in ("in.jsonl", "in.csv"):
        (tmp_path / name).write_text("")
        assert list(rows_of(tmp_path / name)) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("in.jsonl", b'{"a": 1}\n{"a": \n', r"not JSON.*in\.jsonl:2"),
        ("in.jsonl", b"[1]\n", r"no object.*in\.jsonl:1"),
        ("in.jsonl", b'{"a": "\xff"}\n', "UTF-8"),
        ("in.csv", b"a,b\n1,2,3\n", r"3 cells and the header 2.*in\.csv:2"),
        ("in.csv", b"a,a\n1,2\n", "Two columns are named 'a'"),
        ("in.csv", b'a\n"x', "not CSV"),
        ("in.csv", b"a\n\xff\n", "UTF-8"),
        ("in.parquet", b"not parquet", "not a Parquet file"),
        ("in.xlsx", b"not a spreadsheet", r"not a spreadsheet.*in\.xlsx"),
        ("in.doc", b"", "kind of file is not known"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        list(rows_of(tmp_path / name))


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        list(rows_of(tmp_path / name))
