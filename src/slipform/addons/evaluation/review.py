"""Write the page on which a person checks answers against their sources: `slipform review`.

The rows are lines of JSON inside the page, which are parsed one at a time as they are shown; only an index of them
is read at the start. So a page of ten thousand rows opens without delay.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from slipform.addons.batch.journal import job_of
from slipform.addons.batch.rows import Row, Template, as_text, column_list, rows_of
from slipform.addons.evaluation.extracted import ExtractedTable, is_extracted
from slipform.addons.evaluation.page import CONSOLE, OWN, whole_page
from slipform.addons.evidence.grounding import ground_in
from slipform.addons.evidence.source_index import SourceIndex
from slipform.errors import ConfigError
from slipform.files.replacing import replacing
from slipform.files.tables import as_json
from slipform.ir.evidence import FieldEvidence, needs_a_place
from slipform.schema.document import locate
from slipform.text.strict import parse

_TITLE = 70
_SCRIPTS = ("theme", "review_values", "review_row", "review")
_SOURCE_COLUMNS = ("source", "text", "input", "prompt")
_BODY = """<header class="top"><span class="brand">slipform review</span><span class="file">{name}</span>
<span class="space"></span><span id="tools" class="row-tools"></span>
<button id="help" aria-label="Keys">?</button><button id="theme">light / dark</button></header>
<main id="main"><noscript>This page needs JavaScript.</noscript></main>"""


@dataclass(frozen=True, slots=True)
class ReviewSource:
    """Where the source text of each answer is found."""

    data: Path | None
    """The input rows; None where the results have a `source` themselves."""
    template: Template | None
    """The template of the prompts."""
    column: str | None
    """The column with the source; None for the whole prompt."""

    @classmethod
    def of(cls, results: Path, data: Path | None, column: str | None) -> ReviewSource:
        """Return the source for the results of a batch; the journal has its input and column if they are None."""
        job = job_of(results.with_name(f"{results.name}.journal")) or {}
        journal_input = Path(job["input"]) if "input" in job else None
        template = None
        if "prompt" in job:
            template = Template(tuple(job["prompt"][0]), tuple(job["prompt"][1]))
        return cls(data or journal_input, template, column or job.get("source"))

    def texts(self, row: Row) -> tuple[str, str | None]:
        """Return the source of a row, and its prompt where that differs."""
        prompt = self.template.fill(row) if self.template is not None else None
        column = self.column or (None if prompt is not None else next((c for c in _SOURCE_COLUMNS if c in row), None))
        if column is not None and column not in row:
            raise ConfigError(
                f"The input has no column {column!r}",
                where=str(self.data),
                hint=f"Its columns are: {column_list(row)}. Name the source with --source.",
            )
        if column is None and prompt is None:
            raise ConfigError(
                "No column of the input is known to be the source",
                where=str(self.data),
                hint=f"Its columns are: {column_list(row)}. Name it with --source.",
            )
        source = as_text(row.get(column), column) if column is not None else prompt or ""
        return source, prompt if prompt is not None and prompt != source else None


def write_review(
    results: Path,
    page: Path,
    source: ReviewSource,
    schema: Mapping[str, Any] | None = None,
    limit: int | None = None,
    *,
    images: bool = True,
) -> int:
    """Write the page for the results of a batch or of an extraction; return how many rows it has."""
    index: list[bytes] = []
    table = ExtractedTable(results, schema, images)
    digest = blake2b(str(results.resolve()).encode(), digest_size=8)

    def lines() -> Iterator[bytes]:
        for result, text, prompt in _with_sources(results, source, table):
            if limit is not None and len(index) >= limit:
                return
            evidence = result.get("evidence") or _grounded(result["value"], text, schema)
            number = result.get("row", len(index) + 1)
            key = str(result.get("key", number))
            index.append(as_json(_index_entry(number, key, result["value"], evidence)))
            row = {"key": key, "source": text, "value": result["value"], "evidence": evidence}
            row |= {name: result[name] for name in ("pages", "boxes") if name in result}
            line = as_json(row if prompt is None else {**row, "input": prompt})
            digest.update(line)
            yield line

    def index_lines() -> Iterator[bytes]:  # after the rows, which are read only once
        yield b"[" + b",".join(index) + b"]"

    def about() -> Iterator[bytes]:
        yield as_json({"digest": digest.hexdigest(), "download": f"{results.stem}.corrections.jsonl"})

    parts = whole_page(
        f"{results.name} · slipform review",
        _BODY.format(name=html.escape(results.name)),
        styles=[f"{OWN}/page.css", f"{OWN}/review.css"],
        scripts=[f"{CONSOLE}/dom.js", *(f"{OWN}/{name}.js" for name in _SCRIPTS)],
        data={"rows": lines(), "index": index_lines(), "about": about(), "pages": table.page_lines()},
    )
    with replacing(page) as file:
        for part in parts:
            file.write(part)
    return len(index)


def _with_sources(results: Path, source: ReviewSource, table: ExtractedTable) -> Iterator[tuple[Row, str, str | None]]:
    """Yield each result with its source and prompt; both files are in the order of rows."""
    inputs = enumerate(rows_of(source.data), 1) if source.data is not None else iter(())
    number = 0
    row = None
    for place, result in enumerate(map(_plain, rows_of(results)), 1):
        if is_extracted(result):
            extracted = table.row(place, result)
            yield extracted, extracted["source"], None
            continue
        if "value" not in result:
            raise ConfigError(
                f"Row {place} has no `value`",
                where=str(results),
                hint="Give the results that `slipform batch` or `slipform extract` wrote.",
            )
        if isinstance(result.get("source"), str):
            yield result, result["source"], result.get("input")
            continue
        if source.data is None:
            raise ConfigError(
                "No journal says where the input is",
                where=str(results),
                hint="Name the input with --data, or give every row a `source`.",
            )
        row_number = result.get("row", place)
        while number < row_number:
            number, row = next(inputs, (row_number, None))
        if row is None:
            raise ConfigError(
                f"Row {row_number} of the results is not in the input",
                where=str(source.data),
                hint="Name it with --data.",
            )
        yield result, *source.texts(row)


def _plain(result: Row) -> Row:
    """Return a row of Parquet in the format of JSONL: `value` may be JSON text there, and `evidence` always is."""
    texts = {name: result[name] for name in ("value", "evidence") if isinstance(result.get(name), str)}
    parsed = {name: parse(text) for name, text in texts.items() if text.startswith(("{", "["))}
    return {**result, **parsed} if parsed else result


def _grounded(value: Any, text: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    fields = ground_in(SourceIndex(text), value, schema).fields()
    return {pointer: field.to_dict() for pointer, field in fields.items()}


def _index_entry(number: int, key: str, value: Any, evidence: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return a row of the list: its title, its lowest score, and the number of values missing from the source."""
    scores = list[float]()
    absent = 0
    words = list[str]()
    for pointer, field in evidence.items():
        leaf = locate(value, pointer) if pointer else value
        says_something = needs_a_place(leaf)
        absent += not field["spans"] and FieldEvidence.from_dict(field).should_be_there(leaf)
        if (score := field.get("confidence")) is not None:
            scores.append(score)
        if says_something and sum(map(len, words)) < _TITLE:
            words.append(as_text(leaf, pointer))
    return [number, key, " · ".join(words)[:_TITLE], min(scores, default=None), absent, _leaf_count(value)]


def _leaf_count(value: Any) -> int:
    """Yield scalars and empty containers, the values that a person checks."""
    count = 0
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict | list) and each:
            stack.extend(each.values() if isinstance(each, dict) else each)
        else:
            count += 1
    return count
