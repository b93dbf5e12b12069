"""Show where the values of an answer appear in a source: `slipform ground`."""

from __future__ import annotations

from typing import Annotated

import typer

from slipform.cli.terminal import (
    Exit,
    RegistryOption,
    evidence_lines,
    json_text,
    print_data,
    print_message,
    read_text,
)
from slipform.named_schemas import HELP, schema_for_command


def ground(
    answer: Annotated[str, typer.Argument(help="The answer: a JSON file, or - for standard input.")],
    source: Annotated[str, typer.Argument(help="The text it was taken from: a file, or - for standard input.")],
    schema: Annotated[str | None, typer.Option("--schema", "-s", help=HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the spans as one JSON object.")] = False,
    config: RegistryOption = None,
) -> None:
    """Find each value of an answer in its source, without a model; exit code 5 if one is not there."""
    from slipform.addons.evidence.grounding import ground_in
    from slipform.addons.evidence.source_index import SourceIndex
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
