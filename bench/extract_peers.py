"""Extract a document with langextract; run by `bench.extract --beside` in langextract's own environment.

The model stays in the process that starts this one: each prompt goes out as a line of JSON, and its answer comes back
as one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import langextract
from langextract.core import base_model, types


class PipedModel(base_model.BaseLanguageModel):
    """Passes prompts on to the parent process."""

    def infer(self, batch_prompts: Sequence[str], **_: Any) -> Iterator[Sequence[types.ScoredOutput]]:
        """Yield the answer to each prompt."""
        for prompt in batch_prompts:
            print(json.dumps({"prompt": prompt}), flush=True)
            yield [types.ScoredOutput(score=1.0, output=json.loads(sys.stdin.readline())["output"])]


def extract(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what langextract finds: the attributes of each record, and where it begins and ends."""
    example = langextract.data.ExampleData(
        task["example"]["text"],
        [langextract.data.Extraction("record", task["example"]["text"], attributes=task["example"]["record"])],
    )
    document = langextract.extract(
        task["text"],
        prompt_description="Extract every record.",
        examples=[example],
        model=PipedModel(),
        max_char_buffer=task["piece"],
        extraction_passes=task["passes"],
        batch_length=1,
        max_workers=1,
        fence_output=False,
        use_schema_constraints=False,
        show_progress=False,
        # A piece whose answer cannot be read is dropped, as it is by default; otherwise the whole run ends there.
        resolver_params={"suppress_parse_errors": True},
    )
    records = []
    for extraction in document.extractions or ():
        place = extraction.char_interval
        span = None if place is None else [place.start_pos, place.end_pos]
        records.append({"record": extraction.attributes or {}, "span": span})
    return records


print(json.dumps({"records": extract(json.loads(sys.stdin.readline()))}), flush=True)
