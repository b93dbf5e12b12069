"""The generated documents and the model that reads them badly."""

from __future__ import annotations

import json

import pytest

from slipform.ir import Message, ModelRequest
from slipform.testing import Faults, UnreliableModel
from tests.records.generate import GENRES

_FLAWLESS = Faults(0, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("genre", GENRES)
def test_a_perfect_reader_reads_every_record_of_a_document(genre: str) -> None:
    document = GENRES[genre](120, 3)
    assert document.read(document.text) == document.records


@pytest.mark.parametrize("genre", GENRES)
def test_the_places_of_records_are_where_they_are_read(genre: str) -> None:
    document = GENRES[genre](60, 3)
    heading = "## {category}\n" if genre == "catalogue" else ""
    wrong = [
        row
        for row, (start, end) in zip(document.records, document.spans, strict=True)
        if document.read(heading.format(**row) + document.text[start:end]) != [row]
    ]
    assert not wrong


def _answer(model: UnreliableModel, text: str) -> str:
    return model.complete(ModelRequest("any", (Message.user(text),))).text


def test_a_model_without_faults_answers_as_it_reads() -> None:
    document = GENRES["statement"](50, 1)
    assert json.loads(_answer(UnreliableModel(document.read, _FLAWLESS), document.text)) == document.records


def test_the_same_seed_makes_the_same_mistakes_in_any_order() -> None:
    document = GENRES["statement"](80, 1)
    halves = (document.text[:4000], document.text[4000:])
    first = UnreliableModel(document.read, seed=7)
    second = UnreliableModel(document.read, seed=7)
    in_order = [_answer(first, half) for half in halves]
    reversed_order = [_answer(second, half) for half in reversed(halves)]
    assert in_order == reversed_order[::-1]


def test_the_same_text_is_answered_otherwise_the_second_time() -> None:
    document = GENRES["statement"](80, 1)
    model = UnreliableModel(document.read, seed=7)
    assert _answer(model, document.text) != _answer(model, document.text)


def test_each_fault_shows_in_the_answers() -> None:
    document = GENRES["statement"](400, 1)
    count = len(document.records)
    lengths = {
        name: len(json.loads(_answer(UnreliableModel(document.read, Faults(**rates)), document.text)))
        for name, rates in {
            "skipped": {**_NONE, "skipped": 0.5},
            "hidden": {**_NONE, "hidden": 0.5},
            "merged": {**_NONE, "merged": 0.5},
            "stopped": {**_NONE, "stopped": 1.0},
            "repeated": {**_NONE, "repeated": 0.5},
            "invented": {**_NONE, "invented": 0.5},
            "swapped": {**_NONE, "swapped": 0.5},
        }.items()
    }
    assert all(lengths[name] < count for name in ("skipped", "hidden", "merged", "stopped"))
    assert lengths["repeated"] > count
    assert lengths["invented"] > count
    assert lengths["swapped"] == count


_NONE = dict.fromkeys(
    ("skipped", "repeated", "merged", "invented", "misread", "swapped", "truncated", "stopped", "hidden"), 0.0
)
