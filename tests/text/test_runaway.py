"""Answers that repeat themselves without end are noticed; data that repeats is not."""

from __future__ import annotations

import base64
import json
import random

import pytest

from slipform.text.runaway import Runaway, RunawayDetector, runaway_in

ENDLESS = {
    "newlines after a key": ('{\n"kind":' + "\n \n" * 10_000, "blanks"),
    "blanks before the JSON": ("\n" * 20_000, "blanks"),
    "spaces between items": ("[1," + " " * 20_000, "blanks"),
    "digits": ('{"a": 0.' + "3" * 20_000, "digits"),
    "a word in a string": ('{"a": "' + "Other; " * 5_000, "string"),
    "a sentence in a string": ('{"a": "' + "The cat sat on the mat and looked at the moon. " * 500, "string"),
    "escapes in a string": ('{"a": "' + "\\n\\t" * 8_000, "string"),
    "prose": ("Let me think. " * 5_000, "text"),
}
DATA = {
    "zeros": json.dumps([0] * 4_096),
    "floats": json.dumps([0.0] * 1_536),
    "equal rows": json.dumps([{"id": 1, "name": "x" * 40, "tags": ["a", "b"]}] * 200),
    "a matrix of nulls": json.dumps([[None] * 64] * 64),
    "random base64": json.dumps({"data": base64.b64encode(random.Random(1).randbytes(30_000)).decode()}),
    "counted lines": json.dumps({"log": "".join(f"step {i}; " for i in range(3_000))}),
    "rules of a table": "| a |\n" + "|---" * 900 + '|\n{"a": 1}',
    "deep indentation": json.dumps([[[[{"a": [1, 2]}]]]], indent=40),
    "digits in a string": json.dumps({"pi": "".join(random.Random(2).choices("0123456789", k=3_000))}),
}


def _fed(text: str, size: int) -> Runaway | None:
    detector = RunawayDetector()
    for at in range(0, len(text), size):
        if (found := detector.feed(text[at : at + size])) is not None:
            return found
    return detector.look()


@pytest.mark.parametrize(("text", "kind"), ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("size", [1, 7, 300])
def test_repetition_is_noticed_soon_however_it_is_cut(text: str, kind: str, size: int) -> None:
    found = _fed(text, size)
    assert found is not None
    assert found.kind == kind
    limits = {"blanks": 1_024, "digits": 400, "string": 4_096, "text": 8_192}
    assert found.length <= limits[kind] + 2_048
    assert runaway_in(text) is not None


@pytest.mark.parametrize("text", DATA.values(), ids=DATA)
@pytest.mark.parametrize("size", [5, 4_096])
def test_data_may_repeat(text: str, size: int) -> None:
    assert _fed(text, size) is None
    assert runaway_in(text) is None
