"""Read labelled rows: the prompt, the expected value, the source and the schema of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from slipform.addons.batch.call import row_schema
from slipform.addons.batch.rows import Row, Template, as_text, column_list, rows_of
from slipform.errors import ConfigError, SlipformError
from slipform.files.tables import unflatten
from slipform.schema import Schema
from slipform.text.strict import parse

_PROMPTS = ("input", "prompt", "source", "text")
"""Columns that are used as the prompt where none is named; the first existing one counts."""
_SOURCE = "source"
_SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """A dataset with the expected value of each row."""

    path: Path
    template: Template
    expected: str
    """The column with the expected value as JSON, or the first part of columns like `expected.total`."""
    source: str | None
    schema_column: str | None
    key: str | None
    limit: int | None
    schema: Schema[Any]
    """The schema of all rows, or of the first row where each has a separate one."""
    variant: str = ""
    """The name of the prompt and schema, where several are tried."""

    def __iter__(self) -> Iterator[tuple[int, str, Any]]:
        """Number, name and expected value of each row; the name is the row's key, its `id`, or its number."""
        for number, row in enumerate(islice(rows_of(self.path), self.limit), 1):
            name = as_text(row.get(self.key or "id"), self.key or "id") or str(number)
            yield number, name, expected_value(row, self.expected, self.path, number)


def read_labelled(
    path: Path,
    *,
    schema: Schema[Any] | None,
    settings: Any,
    prompt: str | None = None,
    expected: str = "expected",
    source: str | None = None,
    key: str | None = None,
    limit: int | None = None,
    variant: str = "",
) -> LabelledRows:
    """Read all rows once, so that a mistake in one of them is reported before the first call; raises `ConfigError`."""
    columns: dict[str, None] = {}
    first: Schema[Any] | None = schema
    count = 0
    for number, row in enumerate(islice(rows_of(path), limit), 1):
        count = number
        columns.update(dict.fromkeys(row))
        expected_value(row, expected, path, number)
        if schema is None:
            row_schema = _checked_schema(row, settings, path, number)
            first = first or row_schema
    if first is None or not count:
        raise ConfigError("The dataset has no rows", where=str(path))
    if source is not None and source not in columns:
        raise ConfigError(f"The column {source!r} is missing", where=str(path), hint=_columns(columns))
    return LabelledRows(
        path=path,
        template=_template(prompt, columns, path),
        expected=expected,
        source=source or (_SOURCE if _SOURCE in columns else None),
        schema_column=_SCHEMA if schema is None else None,
        key=key,
        limit=min(limit, count) if limit is not None else None,
        schema=first,
        variant=variant,
    )


def _checked_schema(row: Row, settings: Any, path: Path, number: int) -> Schema[Any]:
    schema = row.get(_SCHEMA)
    if schema is None:
        raise ConfigError(
            f"Row {number} has no schema", where=str(path), hint="Give --schema, or each row a column `schema`."
        )
    try:
        return row_schema(schema, settings)
    except (SlipformError, ValueError) as error:
        raise ConfigError(f"The schema of row {number} cannot be used: {error}", where=str(path)) from error


def _template(prompt: str | None, columns: Mapping[str, None], path: Path) -> Template:
    if prompt is not None:
        template = Template.read(prompt)
        template.check(columns)
        return template
    column = next((name for name in _PROMPTS if name in columns), None)
    if column is None:
        raise ConfigError(
            "It is not clear what to ask: the file has no column " + ", ".join(_PROMPTS[:-1]) + f" or {_PROMPTS[-1]}",
            where=str(path),
            hint=f'{_columns(columns)} Give --prompt, for example --prompt "Read this: {{letter}}".',
        )
    asked_with_source = column == "prompt" and _SOURCE in columns
    if asked_with_source:
        return Template(("", "\n\n", ""), (column, _SOURCE))
    return Template(("", ""), (column,))


def _columns(columns: Mapping[str, None]) -> str:
    return f"The columns are: {column_list(columns)}."


def expected_value(row: Row, column: str, path: Path, number: int) -> Any:
    """Return the expected value of a row; in CSV as JSON text, or in columns like `expected.total`."""
    parts = {name.removeprefix(f"{column}."): value for name, value in row.items() if name.startswith(f"{column}.")}
    if column not in row and not parts:
        raise ConfigError(
            f"Row {number} has no {column!r}",
            where=str(path),
            hint=f"{_columns(dict.fromkeys(row))} Name the column of expected values with --expected.",
        )
    if column not in row:
        return unflatten(parts)
    value = row[column]
    if isinstance(value, str) and path.suffix.lower() not in (".jsonl", ".ndjson"):
        try:
            return parse(value)
        except ValueError:
            return value
    return value
