"""Records without literal values are placed by the lines that the model names."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

import slipform
from slipform.ir import ModelRequest
from slipform.testing import FakeModel, Faults, UnreliableModel
from tests.records.generate import Document, Page, Row, item_schema
from tests.records.test_extract import FLAWLESS, client_of, missing_records, unreported

_WORDS = {
    ("pleased", "staff"): ["They greeted us by name.", "Every wish was met at once.", "The porter ran with our bags."],
    ("pleased", "food"): ["We went back for seconds.", "The cook knows what he does.", "Never had better soup."],
    ("annoyed", "noise"): ["A drill began at six.", "Nobody slept on our floor.", "The lift rattles all night."],
    ("annoyed", "price"): ["Bring your wallet.", "We paid twice as much as next door.", "A towel costs extra."],
}
_TEXT = {"type": "string"}


def reviews(count: int, seed: int = 0) -> Document:
    """Reviews of two to four lines, of which the records say mood and subject in words that the text does not have."""
    chance = random.Random(seed)
    page = Page()
    for number in range(count):
        if number % 25 == 0:
            page.write("# From the guest book\n\n")
        mood, subject = chance.choice(list(_WORDS))
        lines = [chance.choice(_WORDS[mood, subject]) for _ in range(chance.randint(1, 3))]
        guest = chance.choice(["A family", "Two friends", "Somebody alone", "A group"])
        page.record(
            f"~~ {guest} wrote:\n" + "".join(f"   {line}\n" for line in lines), {"mood": mood, "about": subject}
        )
        page.write("\n")
    return page.document(item_schema(mood=_TEXT, about=_TEXT), read_reviews)


def read_reviews(text: str) -> list[Row]:
    """Return what a perfect model reads: with the numbers of lines where they are shown."""
    subjects = {line: key for key, lines in _WORDS.items() for line in lines}
    rows: list[Any] = []
    numbered = [re.fullmatch(r"(\d+)\| (.*)", line) for line in text.splitlines()]
    if not any(numbered):
        return [
            {"mood": mood, "about": about}
            for line in re.findall(r"~~ .* wrote:\n +(.*)", text)
            for mood, about in [subjects[line]]
        ]
    for match in filter(None, numbered):
        number = int(match[1])
        line = match[2].strip()
        if line.startswith("~~"):
            rows.append({"lines": [number, number], "record": {}})
        elif line in subjects and rows:
            mood, about = subjects[line]
            rows[-1]["lines"][1] = number
            rows[-1]["record"] = {"mood": mood, "about": about}
    return [row for row in rows if row["record"]]


def test_records_of_paraphrases_have_the_lines_that_the_model_named() -> None:
    document = reviews(400, 1)
    model = UnreliableModel(document.read, FLAWLESS)
    extraction = slipform.extract_full(document.shape, document.text, client=client_of(model))
    assert extraction.value == document.records
    assert [(record.start, record.end) for record in extraction.records] == document.spans
    assert not extraction.coverage.gaps
    assert not any(record.grounded for record in extraction.records)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_reviews_that_answers_left_out_are_asked_about_again(seed: int) -> None:
    document = reviews(400, seed)
    faults = Faults(skipped=0.1, repeated=0.02, merged=0, invented=0, misread=0, swapped=0.01, truncated=0.1)
    model = UnreliableModel(document.read, faults, seed)
    extraction = slipform.extract_full(document.shape, document.text, client=client_of(model))
    missing = missing_records(document, extraction)
    assert unreported(missing, extraction) == []
    assert missing == []
    assert len(extraction.records) == len(document.records)


def test_a_review_that_no_answer_has_is_a_gap() -> None:
    document = reviews(60, 4)
    hidden = document.text[: document.spans[20][0]].count("\n") + 1

    def read(text: str) -> list[Row]:
        return [row for row in read_reviews(text) if row.get("lines", [0])[0] != hidden]

    extraction = slipform.extract_full(document.shape, document.text, client=client_of(UnreliableModel(read, FLAWLESS)))
    missing = missing_records(document, extraction)
    assert len(missing) == 1
    assert unreported(missing, extraction) == []


def answers(*items: Any) -> FakeModel:
    return FakeModel([json.dumps({"records": items})] * 8)


def item(first: Any, last: Any, mood: str) -> dict[str, Any]:
    return {"lines": [first, last], "record": {"mood": mood}}


MOODS = {"type": "array", "items": item_schema(mood=_TEXT)}
LAUGHING = "I laugh.\nShe cries.\nWe sing.\n"


def test_lines_that_were_not_shown_are_rejected() -> None:
    model = answers(item(1, 1, "happy"), item(2, 2, "sad"), item(7, 9, "made up"), item(3, 3, "happy"))
    extraction = slipform.extract_full(MOODS, LAUGHING, client=client_of(model), locate="lines")
    assert extraction.value == [{"mood": "happy"}, {"mood": "sad"}, {"mood": "happy"}]
    assert {(each.value["mood"], each.reason) for each in extraction.rejected} == {
        ("made up", "its lines are not in the text")
    }


def test_two_records_of_a_line_and_lines_in_the_wrong_order_are_taken() -> None:
    model = answers(item(3, 3, "gay"), item(1, 1, "happy"), item(1, 1, "loud"), item(2, 2, "sad"), item(2, 2, "sad"))
    extraction = slipform.extract_full(MOODS, LAUGHING, client=client_of(model), locate="lines")
    assert [record.value["mood"] for record in extraction.records] == ["happy", "loud", "sad", "gay"]
    assert [LAUGHING[record.start : record.end] for record in extraction.records][1:] == [
        "I laugh.", "She cries.", "We sing.",
    ]  # fmt: skip


def test_a_record_without_lines_is_not_accepted() -> None:
    model = answers(item(1, 1, "happy"), {"record": {"mood": "sad"}}, {"mood": "gay"})
    extraction = slipform.extract_full(MOODS, LAUGHING, client=client_of(model), locate="lines")
    assert extraction.value == [{"mood": "happy"}]
    assert not extraction.complete


def test_literal_records_are_not_asked_for_with_lines() -> None:
    requests: list[str] = []

    def reply(request: ModelRequest) -> str:
        requests.append(request.messages[-1].text)
        return json.dumps({"records": [{"mood": "I laugh"}, {"mood": "She cries"}]})

    extraction = slipform.extract_full(MOODS, "I laugh.\nShe cries.\n", client=client_of(FakeModel(reply)))
    assert requests == ["I laugh.\nShe cries.\n"]
    assert extraction.complete


def test_an_extraction_by_lines_resumes_from_its_journal(tmp_path: Path) -> None:
    document = reviews(120, 5)
    journal = tmp_path / "journal"
    model = UnreliableModel(document.read, FLAWLESS)
    first = slipform.extract_full(document.shape, document.text, client=client_of(model), journal=journal)
    calls = len(model.requests)
    again = slipform.extract_full(document.shape, document.text, client=client_of(model), journal=journal)
    assert again.records == first.records
    assert len(model.requests) == calls
