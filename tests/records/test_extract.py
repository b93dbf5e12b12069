"""Every record of a long document, or a report of what is missing."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

import slipform
from slipform.addons.records.result import Extraction, Progress
from slipform.errors import ConfigError, UnknownModelError, UpstreamRequestError
from slipform.ir import ModelRequest, ModelResponse, Usage
from slipform.prices import Price
from slipform.providers.router import Router
from slipform.testing import FakeModel, Faults, UnreliableModel
from tests.records.generate import GENRES, Document, statement

FLAWLESS = Faults(0, 0, 0, 0, 0, 0, 0, 0)


class Person(BaseModel):
    name: str
    age: int


class Transaction(BaseModel):
    date: dt.date
    description: str
    reference: str | None
    amount: Decimal


def client_of(model: FakeModel, **settings: Any) -> slipform.Client:
    return slipform.Client(router=Router({model.name: model}, default=f"{model.name}/m"), **settings)


def answer(*records: Any) -> str:
    return json.dumps({"records": records})


def missing_records(document: Document, extraction: Extraction[Any]) -> list[int]:
    """Return where the records begin that the result does not have at their place."""
    values = {record.start: record.value for record in extraction.records}
    pairs = zip(document.spans, document.records, strict=True)
    return [start for (start, _), row in pairs if values.get(start) != row]


def unreported(starts: list[int], extraction: Extraction[Any]) -> list[int]:
    coverage = extraction.coverage
    stretches: list[Any] = [*coverage.gaps, *coverage.doubtful, *extraction.failures]
    return [start for start in starts if not any(each.start <= start < each.end for each in stretches)]


@pytest.mark.parametrize("genre", GENRES)
def test_a_model_that_loses_a_tenth_of_all_rows_still_gives_every_record(genre: str) -> None:
    document = GENRES[genre](200, 11)
    model = UnreliableModel(document.read, seed=11)
    extraction = slipform.extract_full(document.shape, document.text, client=client_of(model))
    assert extraction.value == document.records
    assert [record.start for record in extraction.records] == [start for start, _ in document.spans]
    assert all(record.end <= end for record, (_, end) in zip(extraction.records, document.spans, strict=True))
    assert extraction.complete


@pytest.mark.parametrize("genre", GENRES)
def test_records_that_no_answer_ever_has_are_gaps(genre: str) -> None:
    document = GENRES[genre](200, 2)
    model = UnreliableModel(document.read, Faults(hidden=0.03), seed=2)
    extraction = slipform.extract_full(document.shape, document.text, client=client_of(model))
    missing = missing_records(document, extraction)
    assert missing
    assert unreported(missing, extraction) == []
    assert len(extraction.coverage.gaps) + len(extraction.coverage.doubtful) <= len(missing) + 2
    assert not extraction.complete


def test_a_model_that_stops_after_forty_rows_is_asked_for_the_rest() -> None:
    document = statement(300, 1)
    model = UnreliableModel(lambda text: document.read(text)[:40], FLAWLESS)
    assert slipform.extract(document.shape, document.text, client=client_of(model)) == document.records


@pytest.mark.parametrize("limit", [9000, 1500])
def test_whole_records_of_truncated_answers_count(limit: int) -> None:
    document = statement(120, 4)

    def respond(request: ModelRequest) -> ModelResponse:
        text = answer(*document.read(request.messages[-1].text))
        return ModelResponse(text=text[:limit], finish="length" if len(text) > limit else "stop")

    assert slipform.extract(document.shape, document.text, client=client_of(FakeModel(respond))) == document.records


def test_answers_that_are_cut_before_their_first_record_do_not_make_all_questions_small() -> None:
    document = statement(300, 1)
    last = document.records[-1]
    cuts = 0

    def respond(request: ModelRequest) -> ModelResponse:
        nonlocal cuts
        rows = document.read(request.messages[-1].text)
        if last in rows and cuts < 4:
            cuts += 1
            return ModelResponse(text='{"records": [{"da', finish="length")
        return ModelResponse(text=answer(*[row for row in rows if len(rows) < 40 or row["amount"] > -2000]))

    model = FakeModel(respond)
    assert slipform.extract(document.shape, document.text, client=client_of(model)) == document.records
    assert len(model.requests) < 14


def test_typed_records_have_their_types() -> None:
    document = statement(60, 4)
    extraction = slipform.extract_full(
        list[Transaction], document.text, client=client_of(UnreliableModel(document.read, seed=4))
    )
    assert [row.model_dump(mode="json")["date"] for row in extraction.value] == [r["date"] for r in document.records]
    assert type(extraction.value[0].amount) is Decimal
    assert extraction.records[0].value is extraction.value[0]


def test_a_short_text_is_one_call() -> None:
    model = FakeModel([answer({"name": "Ada", "age": 36}, {"name": "Bob", "age": 40})])
    extraction = slipform.extract_full(list[Person], "Ada is 36 and Bob is 40.", client=client_of(model))
    assert extraction.value == [Person(name="Ada", age=36), Person(name="Bob", age=40)]
    assert [(record.start, record.end) for record in extraction.records] == [(0, 9), (14, 23)]
    assert len(model.requests) == 1


def test_an_invalid_record_does_not_cost_its_neighbours_and_is_a_gap() -> None:
    text = "Ada is 36.\nBob is forty.\nCy is 50.\n"
    records = ({"name": "Ada", "age": 36}, {"name": "Bob", "age": "forty"}, {"name": "Cy", "age": 50})
    extraction = slipform.extract_full(list[Person], text, client=client_of(FakeModel([answer(*records)])))
    assert [person.name for person in extraction.value] == ["Ada", "Cy"]
    assert [gap.reason for gap in extraction.coverage.gaps] == ["invalid"]
    assert text[extraction.coverage.gaps[0].start :].startswith("Bob")


def test_an_invalid_record_that_is_valid_the_second_time_counts() -> None:
    text = "Ada is 36.\nBob is 40.\nCy is 50.\n"
    first = answer({"name": "Ada", "age": 36}, {"name": "Bob", "age": None}, {"name": "Cy", "age": 50})
    model = FakeModel([first, answer({"name": "Bob", "age": 40})])
    extraction = slipform.extract_full(list[Person], text, client=client_of(model))
    assert [person.name for person in extraction.value] == ["Ada", "Bob", "Cy"]
    assert extraction.complete


def test_the_validators_of_a_type_are_asked_record_by_record() -> None:
    class Adult(BaseModel):
        name: str
        age: int

        @field_validator("age")
        @classmethod
        def check_age(cls, age: int) -> int:
            if age < 18:
                raise ValueError("not an adult")
            return age

    model = FakeModel([answer({"name": "Ada", "age": 36}, {"name": "Tim", "age": 7})])
    extraction = slipform.extract_full(list[Adult], "Ada is 36.\nTim is 7.\n", client=client_of(model))
    assert [adult.name for adult in extraction.value] == ["Ada"]
    assert not extraction.complete


def test_records_that_are_not_in_the_source_are_rejected_or_marked() -> None:
    text = "Ada is 36.\nBob is 40.\nCy is 50.\n"
    people = [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 40}, {"name": "Cy", "age": 50}]
    model = FakeModel([answer(*people, {"name": "Zoe", "age": 99})])
    extraction = slipform.extract_full(list[Person], text, client=client_of(model))
    assert [person.name for person in extraction.value] == ["Ada", "Bob", "Cy"]
    assert [each.value["name"] for each in extraction.rejected] == ["Zoe"]
    assert extraction.coverage.found == len(extraction.records)
    marked = slipform.extract_full(list[Person], text, client=client_of(model), ungrounded="keep")
    assert [(record.value.name, record.grounded) for record in marked.records if not record.grounded] == [
        ("Zoe", False)
    ]


def test_records_whose_values_are_paraphrased_are_returned_without_a_place() -> None:
    shape = {"type": "array", "items": {"type": "object", "properties": {"mood": {"type": "string"}}}}
    model = FakeModel([answer({"mood": "happy"}, {"mood": "sad"})])
    extraction = slipform.extract_full(shape, "I laugh. She cries.", client=client_of(model))
    assert extraction.value == [{"mood": "happy"}, {"mood": "sad"}]
    assert not any(record.grounded for record in extraction.records)


def test_equal_rows_are_two_records_and_unique_by_makes_them_one() -> None:
    text = "".join(f"{name} is {age}.\n" for name, age in (("Ada", 36), ("Bob", 40), ("Ada", 36), ("Cy", 50)))
    people = [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 40}, {"name": "Ada", "age": 36}]
    client = client_of(FakeModel([answer(*people, {"name": "Cy", "age": 50})]))
    assert len(slipform.extract(list[Person], text, client=client)) == 4
    assert len(slipform.extract(list[Person], text, client=client, unique_by=["name"])) == 3


def test_a_prompt_that_the_server_cut_is_never_accepted() -> None:
    document = statement(130, 3)

    def respond(request: ModelRequest) -> ModelResponse:
        text = request.messages[-1].text
        usage = Usage(input=min(len(text) // 4, 400), output=10)
        return ModelResponse(text=answer(*document.read(text[:5000])), usage=usage)

    model = FakeModel(respond)
    extraction = slipform.extract_full(document.shape, document.text, client=client_of(model))
    assert extraction.value == document.records
    assert max(len(request.messages[-1].text) for request in model.requests[1:]) < 7000


def test_a_refused_page_does_not_take_the_others_with_it() -> None:
    document = statement(120, 3)
    refused = document.records[10]["description"]

    def respond(request: ModelRequest) -> ModelResponse:
        text = request.messages[-1].text
        if refused in text:
            return ModelResponse(text="", refusal="I cannot help with that.", finish="refusal")
        return ModelResponse(text=answer(*document.read(text)))

    extraction = slipform.extract_full(document.shape, document.text, client=client_of(FakeModel(respond)))
    missing = missing_records(document, extraction)
    assert 0 < len(missing) < 80
    assert unreported(missing, extraction) == []
    assert "cannot help" in extraction.failures[0].reason


def test_a_summary_names_what_is_missing() -> None:
    document = statement(200, 2)
    model = UnreliableModel(document.read, Faults(hidden=0.03), seed=2)
    extraction = slipform.extract_full(document.shape, document.text, client=client_of(model))
    lines = str(extraction).splitlines()
    assert lines[0].startswith(
        f"{len(extraction.records)} records from text (5 pages), {extraction.report.calls} calls"
    )
    assert "gap" in lines[2]
    assert "page" in lines[2]
    assert json.dumps(extraction.to_dict())


def test_on_gap_raise_carries_the_extraction() -> None:
    document = statement(150, 2)
    client = client_of(UnreliableModel(document.read, Faults(hidden=0.05), seed=2))
    with pytest.raises(slipform.IncompleteExtraction) as caught:
        slipform.extract(document.shape, document.text, client=client, on_gap="raise")
    assert len(caught.value.extraction.value) > 100


def test_the_evidence_of_a_record_is_where_its_values_are() -> None:
    document = statement(60, 2)
    extraction = slipform.extract_full(
        document.shape, document.text, client=client_of(UnreliableModel(document.read, FLAWLESS))
    )
    record = extraction.records[7]
    span = record.evidence["/description"].spans[0]
    assert document.text[span.start : span.end] == record.value["description"]
    assert record.start <= span.start < span.end <= record.end


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"max_calls": 2}, "max_calls"), ({"max_tokens": 9000}, "max_tokens"), ({"max_cost": 0.02}, "max_cost")],
)
def test_a_spent_budget_ends_the_extraction_with_what_there_is(limits: dict[str, Any], reason: str) -> None:
    document = statement(400, 2)
    options = slipform.Options(prices={"*": Price(input=1, output=5)})
    client = client_of(UnreliableModel(document.read, FLAWLESS), options=options)
    extraction = slipform.extract_full(document.shape, document.text, client=client, concurrency=1, **limits)
    assert reason in (extraction.stopped or "")
    assert 0 < len(extraction.value) < 400
    assert unreported(missing_records(document, extraction), extraction) == []
    assert extraction.report.calls <= 4
    if "max_cost" in limits:
        assert (extraction.report.cost or 1) <= 0.02


def test_a_cost_limit_needs_a_price() -> None:
    client = client_of(FakeModel([answer({"name": "Ada", "age": 36})]))
    with pytest.raises(ConfigError, match="no price is known"):
        slipform.extract(list[Person], "Ada is 36.", client=client, max_cost=1)


def test_the_same_call_resumes_from_its_journal(tmp_path: Path) -> None:
    document = statement(300, 5)
    journal = tmp_path / "rows.journal"
    whole = slipform.extract_full(
        document.shape, document.text, client=client_of(UnreliableModel(document.read, seed=2)), journal=journal
    )
    silent = FakeModel([ConnectionError("nobody may call")], name="unreliable")
    again = slipform.extract_full(document.shape, document.text, client=client_of(silent), journal=journal)
    assert again.value == whole.value
    assert again.report.resumed == whole.report.calls
    assert silent.requests == []


def test_the_journal_of_another_extraction_is_refused(tmp_path: Path) -> None:
    client = client_of(FakeModel([answer({"name": "Ada", "age": 36})]))
    journal = tmp_path / "people.journal"
    slipform.extract(list[Person], "Ada is 36.", client=client, journal=journal)
    with pytest.raises(ConfigError, match="source differed"):
        slipform.extract(list[Person], "Ada is 37.", client=client, journal=journal)


def test_progress_counts_questions_and_records() -> None:
    document = statement(300, 5)
    steps: list[Progress] = []
    client = client_of(UnreliableModel(document.read, seed=1))
    slipform.extract(document.shape, document.text, client=client, on_progress=steps.append)
    assert [step.done for step in steps] == list(range(1, len(steps) + 1))
    assert steps[-1].done == steps[-1].pieces
    assert steps[-1].records > 200


def test_a_stream_yields_every_record_once_and_never_takes_one_back() -> None:
    document = statement(300, 5)
    stream = slipform.extract_stream(
        document.shape, document.text, client=client_of(UnreliableModel(document.read, seed=1))
    )
    records = list(stream)
    values = {record.start: record.value for record in records}
    assert len(values) == len(records)
    assert values == {record.start: record.value for record in stream.result.records}
    assert stream.result.value == document.records


def test_the_error_of_a_stream_is_raised_where_it_is_read() -> None:
    client = client_of(FakeModel([ConfigError("no such thing")]))
    with pytest.raises(ConfigError):
        list(slipform.extract_stream(list[Person], "Ada is 36.", client=client))


async def test_event_loops_have_their_own_forms_and_can_use_the_plain_ones() -> None:
    client = client_of(FakeModel([answer({"name": "Ada", "age": 36})]))
    assert await slipform.extract_async(list[Person], "Ada is 36.", client=client) == [Person(name="Ada", age=36)]
    full = await slipform.extract_full_async(list[Person], "Ada is 36.", client=client)
    assert full.complete
    assert slipform.extract(list[Person], "Ada is 36.", client=client) == full.value


def test_an_estimate_calls_nothing() -> None:
    document = statement(1000, 5)
    model = UnreliableModel(document.read)
    options = slipform.Options(prices={"*": Price(input=1, output=5)})
    estimate = slipform.extract_estimate(document.shape, document.text, client=client_of(model, options=options))
    assert model.requests == []
    assert estimate.pieces == 9
    assert 800 < estimate.records < 1200
    assert estimate.cost is not None


def test_a_model_that_no_provider_has_is_an_error_and_not_a_failure_of_each_piece() -> None:
    with pytest.raises(UnknownModelError):
        slipform.extract_full(list[Person], "Ada is 36 years old.\n" * 100, client=slipform.Client("nobody/nothing"))


def test_rate_limits_do_not_lose_a_piece() -> None:
    document = statement(200, 5)
    reader = UnreliableModel(document.read, FLAWLESS)
    calls: list[int] = []

    def respond(request: ModelRequest) -> ModelResponse | Exception:
        calls.append(1)
        if len(calls) == 2:
            return slipform.errors.RateLimitError("slow down", status=429, retry_after=0.001)
        if len(calls) == 3:
            return slipform.UpstreamError("the server failed", status=500, retry_after=0.001)
        return reader.complete(request)

    assert slipform.extract(document.shape, document.text, client=client_of(FakeModel(respond))) == document.records


def test_a_file_is_read_and_named(tmp_path: Path) -> None:
    path = tmp_path / "people.txt"
    path.write_text("Ada is 36.\n", encoding="utf-8")
    client = client_of(FakeModel([answer({"name": "Ada", "age": 36})]))
    extraction = slipform.extract_full(list[Person], path, client=client)
    assert str(extraction).startswith("1 record from people.txt, 1 call")


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match="modell"):
        slipform.extract(list[Person], "Ada", modell="x")  # type: ignore[call-overload]


class Finding(BaseModel):
    code: str
    score: int


class Study(BaseModel):
    title: str
    author: str
    findings: list[Finding]


def _study_text(count: int) -> str:
    rows = "".join(f"F-{number:04}   score {number % 97}\n" for number in range(count))
    return f"Title: Bridges of Europe\nAuthor: Ada King\n\n{rows}\nEnd of report by Ada King\n"


def _read_study(text: str) -> dict[str, Any]:
    import re

    fields: dict[str, Any] = {}
    if match := re.search(r"^Title: (.+)$", text, re.MULTILINE):
        fields["title"] = match[1]
    if match := re.search(r"(?:^Author: |report by )(.+)$", text, re.MULTILINE):
        fields["author"] = match[1]
    rows = re.findall(r"^(F-\d+)   score (\d+)$", text, re.MULTILINE)
    fields["findings"] = [{"code": code, "score": int(score)} for code, score in rows]
    return fields


def test_an_object_with_scalars_and_a_list_is_merged_over_all_pieces() -> None:
    text = _study_text(900)
    extraction = slipform.extract_full(Study, text, client=client_of(UnreliableModel(_read_study, seed=3)))
    assert extraction.value.title == "Bridges of Europe"
    assert [finding.code for finding in extraction.value.findings] == [f"F-{number:04}" for number in range(900)]
    assert extraction.conflicts == ()


def test_two_statements_of_a_field_are_a_conflict_with_both_places() -> None:
    text = _study_text(900).replace("report by Ada King", "report by Bob Noyce")
    extraction = slipform.extract_full(Study, text, client=client_of(UnreliableModel(_read_study, FLAWLESS)))
    conflict = extraction.conflicts[0]
    assert conflict.pointer == "/author"
    assert [text[start:end] for start, end in conflict.places] == [conflict.chosen, conflict.other]


def test_a_required_field_that_no_piece_states_is_an_error_with_the_rest() -> None:
    text = _study_text(900).replace("Title: ", "")
    client = client_of(UnreliableModel(_read_study, FLAWLESS))
    with pytest.raises(slipform.IncompleteExtraction, match="title") as caught:
        slipform.extract(Study, text, client=client)
    assert len(caught.value.extraction.value["findings"]) == 900


def test_records_keep_the_order_of_the_source_whatever_the_model_does() -> None:
    document = statement(100, 9)
    model = UnreliableModel(lambda text: document.read(text)[::-1], FLAWLESS)
    extraction = slipform.extract_full(document.shape, document.text, client=client_of(model))
    starts = [record.start for record in extraction.records]
    assert starts == sorted(starts)
    assert extraction.value == document.records


def test_very_many_equal_rows_are_all_kept() -> None:
    shape = {"type": "array", "items": {"type": "object", "properties": {"drink": {"type": "string"}}}}
    model = FakeModel(lambda request: answer(*[{"drink": "tea"}] * request.messages[-1].text.count("tea")))
    assert len(slipform.extract(shape, "tea\n" * 1200, client=client_of(model))) == 1200


def test_blank_stretches_are_not_asked_about() -> None:
    model = FakeModel([answer()])
    assert slipform.extract(list[Person], "\n" * 30_000, client=client_of(model)) == []
    assert model.requests == []


def test_records_without_a_place_are_never_called_complete() -> None:
    model = FakeModel([answer({"name": "Quux", "age": 1}, {"name": "Corge", "age": 2})])
    extraction = slipform.extract_full(list[Person], "Nobody is named here.", client=client_of(model))
    assert not extraction.complete


@pytest.mark.parametrize("model", ["openai/gpt-6-luna", "nobody/m"])
def test_a_model_that_cannot_be_called_is_an_error_and_not_an_empty_result(model: str) -> None:
    with pytest.raises(UnknownModelError):
        slipform.extract(list[Person], "Ada is 36.\n", client=client_of(FakeModel([answer()])), model=model)


def test_a_model_that_the_vendor_does_not_know_ends_the_extraction() -> None:
    error = UpstreamRequestError("The model does not exist", status=404)
    with pytest.raises(UpstreamRequestError, match="does not exist"):
        slipform.extract(list[Person], "Ada is 36.\n", client=client_of(FakeModel([error])))


def test_a_vendor_that_refuses_short_texts_too_ends_the_extraction() -> None:
    document = statement(2_000, seed=5)
    model = FakeModel([UpstreamRequestError("`temperature` is unknown", status=400)])
    with pytest.raises(UpstreamRequestError, match="`temperature` is unknown"):
        slipform.extract(list[Transaction], document.text, client=client_of(model))
    first_round = [request for request in model.requests if len(request.messages[-1].text) > 1_000]
    assert len(model.requests) == len(first_round) + 1


def test_a_vendor_that_refuses_long_texts_is_asked_with_shorter_ones() -> None:
    document = statement(200, seed=5)
    whole = UnreliableModel(document.read, FLAWLESS)

    def answer(request: ModelRequest) -> Any:
        if len(request.messages[-1].text) > 3_000:
            return UpstreamRequestError("The prompt is too long", status=400)
        return whole.complete(request)

    extraction = slipform.extract_full(list[Transaction], document.text, client=client_of(FakeModel(answer)))
    assert len(extraction.value) == 200
