"""Results as Parquet."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from slipform.addons.batch import parquet
from slipform.addons.batch.parquet import ParquetResults, arrow_type
from tests.conftest import PERSON


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (PERSON, "struct<name: string, age: int64>"),
        ({"type": "array", "items": {"type": "number"}}, "list<item: double>"),
        ({"type": ["string", "null"]}, "string"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "bool"),
        ({"enum": ["a", "b"]}, "string"),
        ({"$ref": "#/$defs/p", "$defs": {"p": PERSON}}, "struct<name: string, age: int64>"),
    ],
)
def test_a_shape_that_is_known_is_a_column_of_that_type(schema: dict[str, Any], kind: str) -> None:
    assert str(arrow_type(schema)) == kind


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"type": "object", "additionalProperties": False},
        {"type": "array"},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": ["string", "integer"]},
        {"enum": [1, "a"]},
        {"$ref": "#"},
        {"$ref": "#/$defs/p", "$defs": {"p": {"type": "array", "items": {"$ref": "#/$defs/p"}}}},
        {"type": "object", "properties": {"a": True}, "additionalProperties": False},
    ],
)
def test_what_a_column_could_lose_is_kept_as_text(schema: dict[str, Any]) -> None:
    assert arrow_type(schema) is None


def written(path: Path, schema: dict[str, Any], values: list[Any]) -> list[Any]:
    results = ParquetResults(path, schema)
    results.begin()
    for number, value in enumerate(values, 1):
        results.write(json.dumps({"row": number, "key": str(number), "value": value}).encode())
    results.publish()
    results.close(complete=True)
    return [row["value"] for row in pq.read_table(path).to_pylist()]


def test_values_as_text_are_json(tmp_path: Path) -> None:
    values = [{"a": 1}, [None], 12345678901234567890123, "ü"]
    found = written(tmp_path / "out.parquet", {}, values)
    assert [json.loads(text) for text in found] == values


@pytest.mark.parametrize("at", [0, 5, 9])
def test_a_value_that_does_not_fit_makes_all_text_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 3)
    values: list[int] = list(range(10))
    values[at] = 2**70
    with caplog.at_level(logging.WARNING):
        found = written(tmp_path / "out.parquet", {"type": "integer"}, values)
    assert [json.loads(text) for text in found] == values
    assert "is written as JSON text" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_many_groups_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 4)
    values = [{"name": str(number), "age": number} for number in range(10)]
    assert written(tmp_path / "out.parquet", PERSON, values) == values
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3
