"""Check answers against their sources, value by value, in a browser: `slipform review`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipform.cli.terminal import RegistryOption, print_data, print_message
from slipform.named_schemas import HELP, schema_for_command


def review(
    results: Annotated[
        Path, typer.Argument(help="What `batch` or `extract` wrote, or JSONL with `source` and `value`.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page; RESULTS.html by default.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The rows that were asked about; the batch's journal knows them.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="The column that holds the source text; the whole prompt by default.")
    ] = None,
    schema: Annotated[str | None, typer.Option("--schema", "-s", help=HELP)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N rows.")] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Whether pages of PDFs are shown as they look.")
    ] = True,
    config: RegistryOption = None,
) -> None:
    """Write one HTML file to check answers on: sources with coloured places, values beside them; needs no network."""
    from slipform.addons.evaluation.review import ReviewSource, write_review

    page = out or results.with_suffix(".html")
    shape = schema_for_command(schema, config).document if schema else None
    rows = write_review(results, page, ReviewSource.of(results, data, source), shape, limit, images=images)
    print_data(str(page))
    print_message(f"slipform: {rows:,} rows to review; open the page in a browser, and press ? for its keys")
