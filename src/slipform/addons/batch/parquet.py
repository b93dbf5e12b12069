"""Write results as a Parquet file, with a column type for `value` where the schema has one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipform.addons.batch.journal import read_line
from slipform.files.replacing import part_of, writing
from slipform.files.tables import as_json, load_arrow
from slipform.schema.document import lookup, reference_of, with_plain_references

_log = logging.getLogger("slipform.runner")

_GROUP_ROWS = 10_000
_MAX_DEPTH = 20


class ParquetResults:
    """A Parquet file that appears when the job is complete; until then a hidden part is written beside it.

    A value that its column cannot hold (an integer beyond 64 bits) makes `value` JSON text for the whole file, with a
    warning. Without its footer the file cannot be read, so a stopped job's part is discarded: the journal has it all.
    """

    def __init__(
        self, path: Path, document: Mapping[str, Any], *, evidence: bool = False, keeps_input: bool = False
    ) -> None:
        self.path = path
        self._evidence = evidence
        self._keeps_input = keeps_input
        self._arrow, self._parquet = load_arrow()
        self._type = arrow_type(document)
        self._writer: Any = None
        self._rows: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Start a new file."""
        self._rows.clear()
        self._open()

    def write(self, line: bytes) -> None:
        """Add a row."""
        row = read_line(line)
        if self._evidence:
            row["evidence"] = as_json(row.get("evidence")).decode()
        if self._keeps_input:
            row["input"] = as_json(row.get("input")).decode()
        self._rows.append(row)
        if len(self._rows) >= _GROUP_ROWS:
            self._write_group()

    def publish(self) -> None:
        """Do nothing: the file appears in `close`."""

    def flush(self) -> None:
        """Do nothing: the file appears in `close`."""

    def close(self, *, complete: bool) -> None:
        """Put the complete file in place, or discard the part."""
        if self._writer is None:
            return
        with writing(self.path):
            if complete:
                self._write_group()
            self._writer.close()
            self._writer = None
            part = part_of(self.path)
            if complete:
                part.replace(self.path)
            else:
                part.unlink()

    def _open(self) -> None:
        arrow = self._arrow
        fields = [("row", arrow.int64()), ("key", arrow.string()), ("value", self._type or arrow.string())]
        if self._evidence:
            fields += [("evidence", arrow.string()), ("confidence", arrow.float64())]
            fields.append(("ungrounded", arrow.list_(arrow.string())))
        if self._keeps_input:
            fields.append(("input", arrow.string()))
        with writing(self.path):
            self._writer = self._parquet.ParquetWriter(part_of(self.path), arrow.schema(fields))

    def _write_group(self) -> None:
        try:
            table = self._table(self._rows)
        except (self._arrow.ArrowInvalid, self._arrow.ArrowTypeError, OverflowError) as error:
            self._convert_to_text(str(error))
            table = self._table(self._rows)
        with writing(self.path):
            self._writer.write_table(table)
        self._rows.clear()

    def _table(self, rows: list[dict[str, Any]]) -> Any:
        if self._type is None:
            rows = [{**row, "value": as_json(row["value"]).decode()} for row in rows]
        return self._arrow.Table.from_pylist(rows, schema=self._writer.schema)

    def _convert_to_text(self, reason: str) -> None:
        """Rewrite the part with the values as JSON text."""
        _log.warning("%s: column `value` is written as JSON text, a value does not fit, error=%s", self.path, reason)
        with writing(self.path):
            self._writer.close()
            typed_part = part_of(self.path).with_suffix(".typed")
            part_of(self.path).replace(typed_part)
        self._type = None
        self._open()
        with self._parquet.ParquetFile(typed_part) as file:
            for group in range(file.num_row_groups):
                self._writer.write_table(self._table(file.read_row_group(group).to_pylist()))
        typed_part.unlink()


def arrow_type(document: Mapping[str, Any]) -> Any:
    """Return the column type for a JSON Schema, or None when values must be JSON text.

    Types that lose nothing: closed objects, arrays of one kind, scalars, and any of these or null.

    >>> str(arrow_type({"type": "array", "items": {"type": ["integer", "null"]}}))
    'list<item: int64>'
    >>> arrow_type({"type": "object"}) is None
    True
    """
    plain = with_plain_references(document)
    return _type_of(plain, plain, 0)


def _type_of(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    arrow, _ = load_arrow()
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    reference = reference_of(schema)
    if reference is not None:
        return _type_of(lookup(root, reference), root, depth + 1)
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        kinds = [each for each in options if each != {"type": "null"}]
        return _type_of(kinds[0], root, depth + 1) if len(kinds) == 1 else None
    match _kind(schema):
        case "object":
            return _struct(schema, root, depth)
        case "array":
            item = _type_of(schema.get("items"), root, depth + 1)
            return None if item is None or "prefixItems" in schema else arrow.list_(item)
        case "string":
            return arrow.string()
        case "integer":
            return arrow.int64()
        case "number":
            return arrow.float64()
        case "boolean":
            return arrow.bool_()
    return None


def _kind(schema: Mapping[str, Any]) -> str | None:
    declared = schema.get("type")
    if isinstance(declared, list):
        kinds = [each for each in declared if each != "null"]
        return kinds[0] if len(kinds) == 1 else None
    if declared is None and "enum" in schema and all(isinstance(each, str) for each in schema["enum"]):
        return "string"
    return declared


def _struct(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    arrow, _ = load_arrow()
    properties = schema.get("properties")
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if not closed or not isinstance(properties, Mapping) or not properties:
        return None
    fields = [(name, _type_of(each, root, depth + 1)) for name, each in properties.items()]
    return None if any(kind is None for _, kind in fields) else arrow.struct(fields)
