"""Evidence of a call: what it asks for, and what it says of each value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform import Budget, Client, ConfigError, Evidence, FieldEvidence, Options, Result, Span
from slipform.errors import SchemaViolationError
from slipform.providers.router import Router
from slipform.testing import FakeModel

SOURCE = "Invoice 7: Ada Lovelace pays EUR 1.234,50. Items: pen, ink."
SHAPE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "total": {"type": "number"},
        "items": {"type": "array", "items": {"type": "string"}},
        "note": {"type": ["string", "null"]},
    },
    "required": ["name"],
}


def ask(said: list[str], evidence: Evidence, attempts: int = 2) -> tuple[Result[Any], FakeModel]:
    model = FakeModel(said)
    client = Client(router=Router({"fake": model}, default="fake/m"))
    return client.ask_full(SHAPE, SOURCE, evidence=evidence, max_attempts=attempts), model


def test_each_value_says_where_it_stands() -> None:
    answer = {"name": "Ada Lovelace", "total": 1234.5, "items": ["pen", "quill"]}
    result, _ = ask([json.dumps(answer)], Evidence())
    assert result.evidence["/name"] == FieldEvidence((Span(11, 23, "exact"),))
    assert SOURCE[slice(*result.evidence["/total"].spans[0][:2])] == "1.234,50"
    assert not result.evidence["/items/1"].grounded
    assert result.report.to_dict()["evidence"]["/items/0"] == {
        "spans": [{"start": 50, "end": 53, "how": "exact"}],
        "confidence": None,
    }


def test_the_json_form_is_read_back() -> None:
    field = FieldEvidence((Span(1, 2, "partial", True),), 0.5, "agreement", votes=1, samples=2, touched=("patched",))
    assert FieldEvidence.from_dict(json.loads(json.dumps(field.to_dict()))) == field


@pytest.mark.parametrize("pointers", [["/name"], ["/items/*"], ["/items"], ["/*"], [""]])
def test_a_value_that_must_be_grounded_is_asked_for_again(pointers: list[str]) -> None:
    wrong = '{"name":"Bob","items":["quill"],"note":null}'
    right = '{"name":"Ada Lovelace","items":["ink"],"note":null}'
    result, model = ask([wrong, right], Evidence(require_grounded=tuple(pointers)))
    assert result.value["name"] == "Ada Lovelace"
    assert result.report.attempts[0].violations[0].keyword == "grounded"
    assert "does not stand in the source" in model.requests[1].messages[-1].text


def test_a_value_that_stays_ungrounded_is_an_error_that_names_it() -> None:
    with pytest.raises(SchemaViolationError, match="does not stand in the source") as caught:
        ask(['{"name":"Bob"}'], Evidence(require_grounded=("/name",)), attempts=1)
    assert caught.value.where == "$.name"


def test_a_source_of_its_own_is_not_the_prompt() -> None:
    result, _ = ask(['{"name":"Ada Lovelace"}'], Evidence(source="by Ada Lovelace"))
    assert result.evidence["/name"].spans == (Span(3, 15, "exact"),)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"samples": 99}, "evidence.samples"),
        ({"confidence": "yes"}, "evidence.confidence"),
        ({"require_grounded": "name"}, "evidence.require_grounded"),
        ({"require_grounded": ["name"]}, "evidence.require_grounded"),
        ({"source": 3}, "evidence.source"),
        ({"colour": 3}, "evidence"),
    ],
)
def test_a_mistake_in_the_option_names_its_place(given: Any, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Evidence.of(given)
    assert caught.value.where == where


def test_further_answers_vote_and_their_cost_is_told() -> None:
    said = ['{"name":"Ada"}', '{"name":"Ada"}', '{"name":"Bob"}']
    result, model = ask(said, Evidence(samples=2))
    field = result.evidence["/name"]
    assert (field.confidence, field.signal, field.votes, field.samples) == (0.5, "agreement", 1, 2)
    assert [request.sampling.temperature for request in model.requests[1:]] == [1.0, 1.0]
    assert len(result.report.samples) == 2


def test_a_further_answer_that_fails_is_a_warning_and_does_not_vote() -> None:
    result, _ = ask(['{"name":"Ada"}', '{"total":1}', '{"name":"Ada"}'], Evidence(samples=2), attempts=1)
    assert (result.evidence["/name"].confidence, result.evidence["/name"].samples) == (1.0, 1)
    (warning,) = result.report.warnings
    assert (warning.code, warning.path) == ("sample_missing", "evidence.samples")
    assert warning.message.startswith("A further answer failed and is not counted: ")
    assert len(result.report.samples) == 2, "what it cost is told all the same"


def test_without_a_valid_further_answer_there_is_a_reason_for_no_score() -> None:
    result, _ = ask(['{"name":"Ada"}', '{"total":1}'], Evidence(samples=1), attempts=1)
    field = result.evidence["/name"]
    assert (field.confidence, field.reason) == (None, "no further answer was valid")


def test_the_limit_of_calls_counts_for_further_answers_too() -> None:
    model = FakeModel(['{"name":"Ada"}'])
    client = Client(router=Router({"fake": model}, default="fake/m"), options=Options(budget=Budget(1, calls=2)))
    result = client.ask_full(SHAPE, SOURCE, evidence=Evidence(samples=3))
    assert [warning.message for warning in result.report.warnings] == [
        "The limit of calls leaves 1 of 3 further answers."
    ]
    assert len(model.requests) == 2


def test_a_value_that_stands_twice_says_that_its_place_is_not_certain() -> None:
    model = FakeModel(['{"name":"Ada"}'])
    client = Client(router=Router({"fake": model}, default="fake/m"))
    places = [
        client.ask_full(SHAPE, source, evidence=Evidence()).evidence["/name"] for source in ("Ada", "Ada, and Ada")
    ]
    assert [field.ambiguous for field in places] == [False, True]
