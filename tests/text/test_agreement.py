"""`loads`, the lenient parser and the judge read one text alike.

A stream can only take the first JSON, and repairs only what needs no look ahead. Where that gives another value, the
text is in `stream_exceptions.json` with the reason, and the parser's value comes with a note.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slipform.enforce.judging import Requirement, judge
from slipform.errors import JsonEnforcementError
from slipform.ir import ModelResponse
from slipform.schema import Schema
from slipform.text.loads import Loaded, load
from slipform.text.parser import Parser
from slipform.text.tree import PENDING

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
TEXTS: dict[str, str] = {
    f"{path.stem}-{number}": case["input"]
    for path in sorted(CORPUS.rglob("*.jsonl"))
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if "schema" not in (case := json.loads(line))
}
EXCEPTIONS: dict[str, list[str]] = json.loads((CORPUS / "stream_exceptions.json").read_text())
"""By reason: texts in which a stream must decide before it can know."""
EXCEPTED = {name for names in EXCEPTIONS.values() for name in names}
ANYTHING: Schema[Any] = Schema("anything", {})


def _loaded(text: str) -> Loaded | None:
    """The one JSON of a text; None without one, or with several."""
    try:
        loaded = load(text, nan="null")
    except JsonEnforcementError:
        return None
    return None if any(note.kind == "several_candidates" for note in loaded.notes) else loaded


def test_the_lenient_parser_agrees_with_loads() -> None:
    wrong = []
    compared = 0
    for name, text in TEXTS.items():
        loaded = _loaded(text)
        parser = Parser(lenient=True).feed(text).finish()
        gives_up = parser.error is not None or parser.value is PENDING
        differs = not gives_up and loaded is not None and parser.value != loaded.value
        compared += not gives_up and loaded is not None
        if differs != (name in EXCEPTED):
            wrong.append(f"{name}: {text!r}")
        elif not gives_up and (differs or loaded is None) and not parser.notes:
            wrong.append(f"{name}, without a note: {text!r}")
    assert wrong == []
    assert compared > 540, "the parser gives up too often to be compared"


def test_the_judge_agrees_with_loads() -> None:
    wrong = []
    compared = 0
    for name, text in TEXTS.items():
        loaded = _loaded(text)
        verdict = judge(ModelResponse(text=text), Requirement(ANYTHING))
        if loaded is not None and verdict.ok and verdict.doubt is None:
            compared += 1
            if verdict.value != loaded.value:
                wrong.append(f"{name}: {text!r}")
    assert wrong == []
    assert compared > 860, "the judge doubts too often to be compared"
