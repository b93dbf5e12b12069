"""A value is not taken for its opposite, for a part of something else, or for a number that it is not."""

from __future__ import annotations

from typing import Any

import pytest

from slipform import Client, SchemaViolationError
from slipform.addons.evidence.differences import likeness
from slipform.evidence import Evidence, ground
from slipform.providers.router import Router
from slipform.testing import FakeModel

OPPOSITES = [
    ("The contract may be terminated", "The contract may not be terminated"),
    ("may be terminated", "It may not be terminated"),
    ("with contrast", "CT without contrast"),
    ("fever", "The patient has no fever"),
    ("left kidney", "a stone in the right kidney"),
    ("benign tumour", "a malignant tumour"),
    ("authorised", "non-authorised"),
    ("smoker", "nonsmoker"),
    ("It is valid", "It isn't valid"),
    ("approved", "has not yet been approved"),
    ("Der Antrag wurde genehmigt", "Der Antrag wurde nicht genehmigt"),
    ("Fieber", "kein Fieber"),
    ("Il est malade", "Il n'est pas malade"),
    ("El seguro cubre los daños", "El seguro no cubre los daños"),
    ("con azúcar", "sin azúcar"),
    ("è valido", "non è valido"),
    ("可解除", "合同不可解除"),
    ("발열 없음", "발열 있음"),
    ("asymptomatic patient", "symptomatic patient"),
    ("hypertension", "hypotension"),
    ("The employer pays the costs", "The employee pays the costs"),
    ("Paris to London", "London to Paris"),
    ("notable", "not able"),
    ("two million dollars", "two billion dollars"),
    ("> 5 mg", "< 5 mg"),
    ("The defendant was found guilty of all charges", "The defendant was found not guilty of all charges"),
]


def _grounded(value: Any, text: str) -> list[str]:
    return [text[span.start : span.end] for span in ground(value, text)[""] if span.how != "partial"]


def test_an_opposite_is_not_evidence_in_either_direction() -> None:
    both = [*OPPOSITES, *((other, value) for value, other in OPPOSITES)]
    assert [(value, text) for value, text in both if _grounded(value, text)] == []


def test_what_a_negation_is_before_is_a_part_unless_its_key_says_so() -> None:
    assert [span.how for span in ground({"symptom": "fever"}, "no fever")["/symptom"]] == ["partial"]
    assert [span.how for span in ground({"denied": "fever"}, "no fever")["/denied"]] == ["exact"]
    text = "No fever yesterday. Today fever again."
    assert ground({"symptom": "fever"}, text)["/symptom"][0].start == text.rindex("fever")


@pytest.mark.parametrize("value", ["Zulu", "Acme"])
def test_no_is_also_short_for_number(value: str) -> None:
    assert _grounded(value, f"Invoice no {value} and ref. no. {value}") == [value, value]


SAME = [
    ("It isn't valid", "It is not valid"),
    ("cannot pay", "can not pay"),
    ("no smoking", "No Smoking"),
    ("Microsoft Corporation", "Microsfot Corporation"),
    ("We will not rest until all is delivered", "We will not rest untill all is delivered"),
    ("nonsmoker", "non-smoker"),
    ("A-", "grade A-, good"),
    ("50%", "50 per cent"),
    ("<5 mg", "&lt;5 mg"),
    ("Maria Lindqvist", "Patient: Lindqvist, Maria Elena"),
]


def test_the_same_in_other_words_is_still_evidence() -> None:
    assert [pair for pair in SAME if not _grounded(*pair)] == []


NOT_THERE = [
    ("A-", "a student"),
    ("A-", "A-level"),
    ("(c)", "chapter C"),
    ("SUNRISE SDN BHD", "MOON SDN BHD"),
    ("ABC ENTERPRISE", "XYZ ENTERPRISE"),
    ("Nord Bau GmbH", "Süd Holz GmbH"),
    ("7.00", "NO 7, SIMPANG"),
    ("Maria Lindqvist", "Erik Lindqvist, Maria Berg"),
    ("Lindqvist, Maria", "Erik Lindqvist, Maria Berg"),
    ("50%", "50 people"),
    (18, "at 18:42"),
    (42, "at 18:42"),
    (8120, "bolts M8 120 pcs"),
    (8, "bolts M8 120 pcs"),
    ("김철수", "강차식"),
]


def test_a_part_of_something_else_has_no_place() -> None:
    assert [(value, text) for value, text in NOT_THERE if ground(value, text)[""]] == []


@pytest.mark.parametrize(
    "text",
    ["bolts M8 120 pcs", "Galaxy S24 120 GB", "Gate B12 120 people", "Q3 120 units", "INV-7 120 EUR", "USB3.0 120 mA"],
)
def test_a_number_after_an_identifier_is_found(text: str) -> None:
    assert _grounded(120, text) == ["120"]


def test_parts_of_a_time_are_numbers_where_their_key_says_so() -> None:
    found = ground({"hour": 18, "minute": 42, "bags": 42}, "at 18:42")
    assert {pointer: len(spans) for pointer, spans in found.items()} == {"/hour": 1, "/minute": 1, "/bags": 0}


def test_an_amount_prefers_its_own_spelling() -> None:
    text = "NO 7. SIMPANG\nTOTAL QTY : 7\nSUBTOTAL 7.00"
    assert _grounded("7.00", text) == ["7.00"]
    assert _grounded("7.00", "you paid EUR 7") == ["7"]


def test_words_that_one_text_has_more_make_it_a_part() -> None:
    value = "The tenant shall pay the rent on the first day"
    assert likeness(value, "The tenant shall pay the agreed rent on the first day") == "partial"
    assert likeness(value, "The tenant shall pay the rent on the third day") is None


SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["positive", "negative"]},
        "kind": {"const": "review"},
        "number": {"type": "string"},
        "note": {"type": "string"},
        "is_paid": {"type": "boolean"},
    },
    "required": ["number"],
}


def test_listed_values_and_booleans_need_no_place() -> None:
    answer = '{"label": "positive", "kind": "review", "number": "", "note": "", "is_paid": true}'
    client = Client(router=Router({"fake": FakeModel([answer])}, default="fake/m"))
    wanted = Evidence(source="I love it", require_grounded=[""])
    result = client.ask_full(SCHEMA, "go", evidence=wanted, max_attempts=1)
    assert result.evidence is not None
    fields = {pointer: (each.listed, each.missing) for pointer, each in result.evidence.items()}
    assert fields == {
        "/label": (True, False),
        "/kind": (True, False),
        "/number": (False, True),
        "/note": (False, False),
        "/is_paid": (False, False),
    }


def test_the_opposite_of_the_source_is_refused_where_it_must_be_grounded() -> None:
    client = Client(router=Router({"fake": FakeModel(['{"number": "may be sold"}'])}, default="fake/m"))
    wanted = Evidence(source="It may not be sold.", require_grounded=["/number"])
    with pytest.raises(SchemaViolationError, match="source"):
        client.ask_full(SCHEMA, "go", evidence=wanted, max_attempts=1)
