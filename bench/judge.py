"""Judge slipform by public data: the official JSON Schema suite, real-world schemas and recorded vendor traffic.

    make judge
    python -m bench.judge --every 10     # every tenth real-world schema

The schemas and the recordings are read from the data folder beside the checkout; without it, one line says what was
left out. Nothing was tuned on the 700 schemas that are reported here.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

from tests.codecs import recorded
from tests.codecs.test_recordings import check, decode, split_anywhere
from tests.enforce.test_live_schemas import is_json, released_of_invalid
from tests.schema.data import SUITE

from bench import live_schemas, lowering, schema_suite
from bench.results import record
from slipform.enforce import Switches
from slipform.errors import SchemaError, SlipformError
from slipform.schema import Schema
from slipform.schema.lowering import lower
from slipform.schema.lowering.dialects import dialect_names

REPORT = "real_world_report.jsonl"
Row = tuple[str, int, int]
"""What was judged, how many were right, and of how many."""


def suite_rows() -> Iterator[Row]:
    """Yield the verdicts on the official suite."""
    for draft in schema_suite.DRAFTS:
        judge = schema_suite.our_judge(schema_suite.remotes(draft), formats=False)
        result = schema_suite.score(list(schema_suite.suite(draft)), judge)
        yield f"official suite, {draft}: values", result["right"], result.total()


def schema_rows(entries: list[dict[str, Any]]) -> Iterator[Row]:
    """Yield the verdicts on instances, and the answers that survive each vendor's dialect and the way back."""
    cases = [(entry["schema"], [(test["data"], test["valid"]) for test in entry["tests"]]) for entry in entries]
    result = schema_suite.score(cases, schema_suite.our_judge({}, formats=True))
    yield "real-world schemas: instances judged right", result["right"], result.total()
    for dialect in dialect_names():
        yield f"{dialect}: valid answers there and back unchanged", *_surviving(entries, dialect)


def _surviving(entries: list[dict[str, Any]], dialect: str) -> tuple[int, int]:
    right = 0
    total = 0
    for entry in entries:
        answers = [test["data"] for test in entry["tests"] if test["valid"]]
        total += len(answers)
        try:
            lowered = lower(entry["schema"], dialect, open_objects="auto")
        except SchemaError:
            continue
        right += sum(lowering.survives(lowered, answer) for answer in answers)
    return right, total


def stream_rows(entries: list[dict[str, Any]], every: int) -> Iterator[Row]:
    """Yield the valid answers that a live stream delivers equal, and the invalid ones that it never releases whole."""
    for dialect, figures in live_schemas.measure(REPORT, every).items():
        right = figures.answers - len(figures.wrong)
        yield f"{dialect}: valid answers streamed in random pieces, delivered equal", right, figures.answers
    yield "invalid answers streamed in random pieces, never released whole", *_held_back(entries)


def _held_back(entries: list[dict[str, Any]]) -> tuple[int, int]:
    rng = random.Random(13)
    right = 0
    total = 0
    for entry in entries:
        try:
            schema = Schema.of(entry["schema"])
        except SlipformError:
            continue
        for value in [test["data"] for test in entry["tests"] if not test["valid"] and not schema.fits(test["data"])]:
            total += 1
            released, is_delivered = released_of_invalid(schema, Switches.none(), json.dumps(value), rng)
            right += not is_delivered and not is_json(released)
    return right, total


def recording_rows() -> Iterator[Row]:
    """Yield the recorded answers of vendors that decode to their answer key, split anywhere."""
    right = 0
    names = recorded.names()
    for name in names:
        recording = recorded.load(name)
        try:
            check(recording, *decode(recording, split_anywhere(recording.body, name)))
        except AssertionError:
            continue
        right += 1
    yield "recorded answers of 7 vendor APIs, decoded to their answer key", right, len(names)


def rows(every: int) -> Iterator[Row]:
    """Yield all that can be judged here."""
    if SUITE.is_dir():
        yield from suite_rows()
    else:
        print("(the official suite is not installed: `make judge` installs it)")
    if not live_schemas.FOLDER.is_dir() or not recorded.names():
        print("(the data folder is not beside the checkout: the real-world schemas and the recordings are left out)")
        return
    entries = list(live_schemas.entries(REPORT))[::every]
    yield from schema_rows(entries)
    yield from stream_rows(entries, every)
    yield from recording_rows()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take every n-th real-world schema")
    options = parser.parse_args()
    print(f"{'':66} {'right':>7} {'of':>7} {'%':>7}")
    for name, right, total in rows(options.every):
        record(name, [right, total])
        print(f"{name:66} {right:7,} {total:7,} {100 * right / max(total, 1):7.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
