"""`loads` and the lenient parser read one text alike, or the parser says what it did otherwise.

A stream can only take the first JSON, and repairs only what needs no look ahead: where that makes a difference, its
value comes with a note.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipform.errors import JsonEnforcementError
from slipform.text.loads import load
from slipform.text.parser import Parser
from slipform.text.tree import PENDING

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
TEXTS = [
    pytest.param(case["input"], id=f"{path.stem}-{number}")
    for path in sorted(CORPUS.rglob("*.jsonl"))
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if "schema" not in (case := json.loads(line))
]
REFUSED: Any = object()


def _loaded(text: str) -> Any:
    try:
        return load(text, nan="null").value
    except JsonEnforcementError:
        return REFUSED


@pytest.mark.parametrize("text", TEXTS)
def test_the_lenient_parser_agrees_with_loads_or_notes_what_it_did(text: str) -> None:
    parser = Parser(lenient=True).feed(text).finish()
    if parser.error is None and parser.value is not PENDING and parser.value != _loaded(text):
        assert parser.notes, text
