"""Show where the values of an answer appear in a source: `slipform ground`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from slipform.cli.terminal import (
    Exit,
    RegistryOption,
    has_colour,
    json_text,
    print_data,
    print_message,
    read_text,
    style_text,
)
from slipform.named_schemas import HELP, schema_for_command

if TYPE_CHECKING:
    from slipform.evidence import FieldEvidence

_AROUND = 24
"""Characters of the source shown on each side of a span."""


def ground(
    answer: Annotated[str, typer.Argument(help="The answer: a JSON file, or - for standard input.")],
    source: Annotated[str, typer.Argument(help="The text it was taken from: a file, or - for standard input.")],
    schema: Annotated[str | None, typer.Option("--schema", "-s", help=HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the spans as one JSON object.")] = False,
    config: RegistryOption = None,
) -> None:
    """Find each value of an answer in its source, without a model; exit code 5 if one is not there."""
    from slipform.evidence.grounding import ground_in
    from slipform.evidence.source_index import SourceIndex
    from slipform.schema.document import locate
    from slipform.text.loads import load

    value = load(read_text(answer), strict=True).value
    text = read_text(source)
    document = schema_for_command(schema, config).document if schema else None
    fields = ground_in(SourceIndex(text), value, document).fields()
    if as_json:
        print_data(json_text({pointer: [span._asdict() for span in each.spans] for pointer, each in fields.items()}))
    else:
        for line in evidence_lines(fields, text):
            print_data(line)
    absent = [
        pointer
        for pointer, each in fields.items()
        if not each.spans and each.should_be_there(locate(value, pointer) if pointer else value)
    ]
    if absent:
        print_message(f"{len(absent)} of {len(fields)} values are not in the source", fg="red")
        raise typer.Exit(Exit.INVALID)


def evidence_lines(fields: Mapping[str, FieldEvidence], text: str) -> Iterator[str]:
    """Yield a line for each value: its place, how it stands there, and the words around it; then how sure it is."""
    for pointer, field in fields.items():
        if not field.spans:
            finding = "not found" if field.searched else "not looked up: there are too many values"
            yield f"{pointer or '/'}: {finding}"
        for span in field.spans:
            before = text[max(0, span.start - _AROUND) : span.start].replace("\n", " ")
            after = text[span.end : span.end + _AROUND].replace("\n", " ")
            shown = text[span.start : span.end].replace("\n", " ")
            shown = style_text(shown, bold=True) if has_colour() else shown
            how = f"{span.how}, ambiguous" if span.ambiguous else span.how
            yield f"{pointer or '/'}: {span.start}-{span.end} {how}: {before}[{shown}]{after}".rstrip()
        remarks = [] if field.confidence is None else [f"score {field.confidence:.2f} by {field.signal}"]
        remarks += [f"no score: {field.reason}"] if field.reason else []
        remarks += [f"{field.votes} of {field.samples} further answers agree"] if field.samples else []
        if remarks or field.touched:
            yield f"    {'; '.join([*remarks, *field.touched])}"
