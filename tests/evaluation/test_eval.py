"""`slipform eval`: from labelled rows to figures, with scripted vendors and the embedded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.evaluation.cases import read_labelled
from slipform.addons.evaluation.run import evaluate
from slipform.config import read_settings
from slipform.files.tables import load_arrow
from slipform.ir import ModelRequest, ModelResponse
from slipform.ir.evidence import Evidence
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, Schema
from slipform.testing import FakeModel, FakeVendor, Received
from tests.cli.conftest import Cli, cli, folder
from tests.conftest import PERSON

__all__ = ["cli", "folder"]

PEOPLE = [("Ada", 36), ("Bob", 41), ("Mei", 29), ("Noor", 52)]


def answer(received: Received) -> str:
    """A good model, but `weak`, which is wrong about Bob and has no valid answer for Noor."""
    body = received.json()
    text = body["messages"][-1]["content"]
    name, age = next((name, age) for name, age in PEOPLE if name in text)
    if body["model"] == "weak" and name == "Noor":
        return "no"
    return json.dumps({"name": name, "age": 14 if body["model"] == "weak" and name == "Bob" else age})


@pytest.fixture
def vendor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVendor]:
    """A vendor with two models, a config that names it, and rows of which everything is known."""
    monkeypatch.setenv("FAKE_KEY", "any")
    with FakeVendor(answer) as fake:
        (folder / "slipform.yaml").write_text(
            f"providers: {{fake: {{kind: openai, base_url: '{fake.base_url}', api_key_env: FAKE_KEY}}}}\n"
            "default_model: fake/good\nretries: {attempts: 0}\n"
            'prices: {"fake/*": {input: 1, output: 2}}\n'
        )
        rows = [{"input": f"{name} is {age}.", "expected": {"name": name.lower(), "age": age}} for name, age in PEOPLE]
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield fake


def test_models_and_strategies_are_scored_side_by_side(cli: Cli, vendor: FakeVendor, folder: Path) -> None:
    words = ("eval", "data.jsonl", "--schema", "person.json", "--models", "fake/good,fake/weak")
    done = cli(*words, "--strategies", "native,tool", "--json", "--fail-under", "0.9")
    assert done.code == 5, done.err
    report = done.json
    assert [(run["model"], run["strategy"], run["accuracy"]) for run in report["runs"]] == [
        ("fake/good", "native", 1.0),
        ("fake/good", "tool", 1.0),
        ("fake/weak", "native", 0.625),
        ("fake/weak", "tool", 0.625),
    ]
    weak = report["runs"][2]
    assert (weak["rows"], weak["valid"], weak["exact"]) == (4, 3, 2)
    assert weak["fields"]["/age"] == {"accuracy": 0.5, "right": 2, "values": 4}
    assert weak["calls"] == 4
    assert weak["cost"] > 0
    assert weak["seconds"]["p50"] > 0
    assert report["accuracy"] == 0.625
    assert report["fields"] == ["/name", "/age"]
    assert "0.625 of the values are right, under 0.9" in done.err
    assert json.loads((folder / "data.eval" / "report.json").read_text()) == report
    page = (folder / "data.eval" / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "fake/weak" in page


def test_the_same_command_asks_nothing_again_and_a_new_model_only_is_asked(
    cli: Cli, vendor: FakeVendor, folder: Path
) -> None:
    words = ("eval", "data.jsonl", "--schema", "person.json", "--json", "--limit")
    assert cli(*words, "2").json["rows"] == 2
    asked = len(vendor.requests)
    assert cli(*words, "4").json["rows"] == 4
    assert len(vendor.requests) == asked + 2
    again = cli(*words, "4", "--models", "fake/good,fake/weak")
    assert [run["accuracy"] for run in again.json["runs"]] == [1.0, 0.625]
    assert len(vendor.requests) == asked + 2 + 4


def test_the_table_and_the_exit_code_when_all_is_well(cli: Cli, vendor: FakeVendor) -> None:
    done = cli("eval", "data.jsonl", "--schema", "person.json", "--fail-under", "0.9")
    assert done.code == 0
    head, row = done.out.splitlines()
    assert head.split()[:3] == ["model", "strategy", "right"]
    assert row.split()[:4] == ["fake/good", "auto", "100.0", "%"]
    assert "report.html" in done.err


def test_a_model_that_cannot_be_asked_does_not_stop_the_others(cli: Cli, vendor: FakeVendor) -> None:
    done = cli("eval", "data.jsonl", "--schema", "person.json", "--models", "nobody/x,fake/good", "--json")
    assert done.code == 4
    bad, good = done.json["runs"]
    assert "nobody" in bad["error"]
    assert good["accuracy"] == 1.0


def test_csv_has_expected_values_as_json_or_in_columns(cli: Cli, vendor: FakeVendor, folder: Path) -> None:
    (folder / "json.csv").write_text('text,expected\nAda is 36.,"{""name"": ""Ada"", ""age"": 36}"\n')
    (folder / "columns.csv").write_text("text,expected.name,expected.age\nAda is 36.,ADA,36\n")
    for name in ("json.csv", "columns.csv"):
        done = cli("eval", name, "--schema", "person.json", "--json")
        assert done.json["runs"][0]["exact"] == 1, done.err


def test_parquet_has_expected_values_as_structs_or_as_json(cli: Cli, vendor: FakeVendor, folder: Path) -> None:
    arrow, parquet = load_arrow()
    for name, expected in (("struct", {"name": "Ada", "age": 36}), ("text", '{"name": "Ada", "age": 36}')):
        table = arrow.Table.from_pylist([{"text": "Ada is 36.", "expected": expected}])
        parquet.write_table(table, folder / f"{name}.parquet")
        assert cli("eval", f"{name}.parquet", "--schema", "person.json", "--json").json["runs"][0]["exact"] == 1


def test_rows_may_have_schemas_and_sources_of_their_own(cli: Cli, vendor: FakeVendor, folder: Path) -> None:
    row = {"prompt": "Who is it?", "source": "Ada is 36.", "schema": PERSON, "expected": {"name": "Ada", "age": 36}}
    (folder / "own.jsonl").write_text(json.dumps(row))
    assert cli("eval", "own.jsonl", "--json").json["accuracy"] == 1.0
    assert vendor.requests[-1].json()["messages"][-1]["content"].endswith("Who is it?\n\nAda is 36.")
    result = json.loads((folder / "own.eval" / "fake_good.auto.jsonl").read_text())
    assert result["evidence"]["/age"]["spans"] == [{"start": 7, "end": 9, "how": "exact"}]


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([{"input": "x"}], (), "Row 1 has no 'expected'"),
        ([{"letter": "x", "expected": 1}], (), "It is not clear what to ask"),
        ([{"input": "x", "expected": 1}], ("--source", "letter"), "The column 'letter' is missing"),
        ([{"input": "x", "expected": 1}], ("--strategies", "magic"), "The strategies are: auto, native"),
        ([{"input": "x", "expected": 1}], ("--prompt", "{y}"), "names a column 'y'"),
        ([], (), "The dataset has no rows"),
    ],
)
def test_mistakes_are_told_before_the_first_call(
    cli: Cli, vendor: FakeVendor, folder: Path, rows: list[dict[str, Any]], words: tuple[str, ...], said: str
) -> None:
    (folder / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = cli("eval", "bad.jsonl", "--schema", "person.json", *words)
    assert done.code == 3
    assert said in done.err
    assert vendor.requests == []


def test_a_row_without_a_schema_is_named(cli: Cli, vendor: FakeVendor, folder: Path) -> None:
    (folder / "bad.jsonl").write_text(
        json.dumps({"input": "x", "expected": 1, "schema": {"type": "integer"}}) + '\n{"input": "x", "expected": 1}\n'
    )
    done = cli("eval", "bad.jsonl")
    assert done.code == 3
    assert "Row 2 has no schema" in done.err


def test_rows_without_an_answer_are_asked_again_on_demand(cli: Cli, folder: Path, vendor: FakeVendor) -> None:
    words = ("eval", "data.jsonl", "--schema", "person.json", "--models", "fake/weak", "--json")
    assert cli(*words).json["runs"][0]["valid"] == 3
    asked = len(vendor.requests)
    assert cli(*words, "--retry-failures").json["runs"][0]["valid"] == 3
    assert len(vendor.requests) == asked + 1


def test_what_review_downloads_is_a_dataset(cli: Cli, vendor: FakeVendor, folder: Path) -> None:
    row = {"id": "a", "input": "Who? Ada is 36.", "source": "Ada is 36.", "expected": {"name": "Ada", "age": 36}}
    (folder / "out.corrections.jsonl").write_text(json.dumps({**row, "corrected": ["/age"]}) + "\n")
    assert cli("eval", "out.corrections.jsonl", "--schema", "person.json", "--json").json["accuracy"] == 1.0
    assert vendor.requests[-1].json()["messages"][-1]["content"] == "Who? Ada is 36."


def test_a_corrected_label_costs_no_call_and_another_question_is_refused(
    cli: Cli, vendor: FakeVendor, folder: Path
) -> None:
    words = ("eval", "data.jsonl", "--schema", "person.json", "--json")
    assert cli(*words).json["accuracy"] == 1.0
    asked = len(vendor.requests)
    rows = (folder / "data.jsonl").read_text()
    (folder / "data.jsonl").write_text(rows.replace('"age": 36', '"age": 37'))
    done = cli(*words)
    assert done.json["runs"][0]["fields"]["/age"]["right"] == 3
    assert done.json["runs"][0]["examples"][0]["key"] == "1"
    assert len(vendor.requests) == asked
    (folder / "data.jsonl").write_text(rows.replace("Ada is 36.", "Ada is 63."))
    refused = cli(*words)
    assert refused.code == 3
    assert "Row 1 is not what it was" in refused.err


def test_scores_are_held_against_rightness(folder: Path) -> None:
    rows = [{"input": f"P{number} is {number}.", "expected": {"name": f"P{number}"}} for number in range(1, 21)]
    (folder / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shape = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

    def unsure_when_wrong(request: ModelRequest) -> ModelResponse:
        number = int(request.messages[-1].text.split()[0][1:])
        pieces = [('{"name":"', 0.0), (f"P{number + number % 2}", -0.1 - number % 2), ('"}', 0.0)]
        tokens = [{"token": text, "bytes": list(text.encode()), "logprob": chance} for text, chance in pieces]
        return ModelResponse(text="".join(text for text, _ in pieces), extra={"logprobs": {"content": tokens}})

    settings = read_settings("retries: {attempts: 0}")
    cases = read_labelled(folder / "many.jsonl", schema=Schema.of(shape), settings=settings)
    found = evaluate(
        [cases], folder / "many.eval", router=Router({"fake": FakeModel(unsure_when_wrong)}), settings=settings,
        models=["fake/m"], strategies=[OutputStrategy.AUTO], evidence=Evidence(confidence="logprobs"),
    )  # fmt: skip
    score = found.to_dict()["runs"][0]["score"]
    assert (score["auroc"], score["right"], score["wrong"]) == (1.0, 10, 10)
    assert 0.6 < score["interval"][0] < 1.0
    assert [(each["right"], each["values"]) for each in score["bins"] if each["values"]] == [(0, 10), (10, 10)]
