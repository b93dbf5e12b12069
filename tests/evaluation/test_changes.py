"""`slipform eval --against`, and prompts and schemas as variants: which rows and fields got better or worse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.evaluation.changes import Shift
from slipform.testing import FakeVendor, Received
from tests.cli.conftest import Cli, cli, fake, folder
from tests.conftest import PERSON

__all__ = ["cli", "fake", "folder"]

PEOPLE = {"Ada": 36, "Bob": 41, "Mei": 29, "Noor": 52}
MISREAD = {"plain": {"Bob": 14, "Mei": 92}, "careful": {"Noor": 25}}
"""Which ages each prompt gets wrong."""


def answer(received: Received) -> str:
    text = received.json()["messages"][-1]["content"]
    prompt = "careful" if text.startswith("Carefully") else "plain"
    name = next(name for name in PEOPLE if name in text)
    return json.dumps({"name": name, "age": MISREAD[prompt].get(name, PEOPLE[name])})


@pytest.fixture
def data(folder: Path, fake: Callable[..., FakeVendor]) -> Path:
    """Rows whose answers are known, and a vendor that reads some of them wrong."""
    fake(answer)
    rows = [
        {"input": f"{name} is {age}", "id": name, "expected": {"name": name, "age": age}}
        for name, age in PEOPLE.items()
    ]
    (folder / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "people.jsonl"


def run_eval(cli: Cli, *words: str) -> Any:
    done = cli("eval", "people.jsonl", "-s", "person.json", "--json", *words)
    assert done.code == 0, done.err
    return done.json


CAREFUL = ("--prompt", "Carefully: {input}")


@pytest.mark.parametrize("against", ["people.eval", "people.eval/report.json", "last"])
def test_rows_and_fields_that_changed_are_listed(cli: Cli, data: Path, against: str) -> None:
    run_eval(cli)
    report = run_eval(cli, *CAREFUL, "-o", "careful.eval", "--against", against)
    (change,) = report["against"]["runs"]
    assert change["accuracy"] == [0.75, 0.875]
    assert {key: change["fields"]["/age"][key] for key in ("better", "worse", "rows")} == {
        "better": 2,
        "worse": 1,
        "rows": 4,
    }
    assert change["fields"]["/name"]["verdict"] == "same"
    assert [(row["key"], row["gain"]) for row in change["rows"]] == [("Noor", -1), ("Bob", 1), ("Mei", 1)]
    assert change["rows"][0]["fields"]["/age"] == {"gain": -1, "before": None, "after": "25"}
    page = (data.parent / "careful.eval" / "report.html").read_text()
    assert "against people.eval" in page


def test_the_table_names_the_rows(cli: Cli, data: Path) -> None:
    run_eval(cli)
    words = ("eval", "people.jsonl", "-s", "person.json", *CAREFUL, "-o", "careful.eval", "--against", "last")
    done = cli(*words)
    assert "slipform: fake/model, auto" in done.err
    lines = done.out.splitlines()
    assert any(line.split() == ["worse", "Noor", "/age:", "right", "→", "25"] for line in lines)
    assert any(line.split()[:2] == ["better", "Bob"] for line in lines)
    assert any("/age  unclear: 2 rows better, 1 worse of 4" in line for line in lines)


def test_the_last_evaluation_is_the_newest_of_the_same_data(cli: Cli, data: Path) -> None:
    for name in ("old", "new"):
        run_eval(cli, "-o", name)
    os.utime("old/report.json", (1, 1))
    (data.parent / "other.jsonl").write_text(data.read_text())
    assert cli("eval", "other.jsonl", "-s", "person.json").code == 0
    assert run_eval(cli, "-o", "third", "--against", "last")["against"]["folder"] == "new"


def test_labels_corrected_since_count_for_both(cli: Cli, data: Path) -> None:
    run_eval(cli)
    data.write_text(data.read_text().replace('"age": 52', '"age": 25'))
    (change,) = run_eval(cli, *CAREFUL, "-o", "careful.eval", "--against", "last")["against"]["runs"]
    assert change["accuracy"] == [0.625, 1.0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--against", "nowhere"), "There is no evaluation"),
        (("--against", "last"), "No other evaluation of people.jsonl"),
        (("--against", "people.eval"), "cannot be compared with itself"),
        (("--against", "other.eval"), "is of 'other.jsonl'"),
    ],
)
def test_what_cannot_be_compared_is_an_error_before_the_first_call(
    cli: Cli, data: Path, words: tuple[str, ...], reason: str
) -> None:
    for name in ("people", "other"):
        Path(f"{name}.eval").mkdir()
        Path(f"{name}.eval/report.json").write_text(json.dumps({"data": f"{name}.jsonl", "runs": []}))
    done = cli("eval", "people.jsonl", "-s", "person.json", *words)
    assert done.code == 3
    assert reason in done.err
    assert not list(Path("people.eval").glob("*.jsonl"))


def test_prompts_and_schemas_are_variants_of_one_evaluation(cli: Cli, data: Path) -> None:
    schema = {**PERSON, "title": "another"}
    (data.parent / "strict.json").write_text(json.dumps(schema))
    (data.parent / "careful.txt").write_text("Carefully: {input}")
    report = run_eval(cli, "--prompt", "{input}", "--prompt-file", "careful.txt", "-s", "strict.json")
    accuracy = {run["variant"]: run["accuracy"] for run in report["runs"]}
    assert accuracy == {
        "prompt 1, person": 0.75, "prompt 1, strict": 0.75, "careful, person": 0.875, "careful, strict": 0.875,
    }  # fmt: skip
    assert report["differing"] == 3
    bob = next(row for row in report["side_by_side"] if row["key"] == "Bob")
    assert bob["wrong"] == [{"/age": "14"}, {"/age": "14"}, {}, {}]
    page = (data.parent / "people.eval" / "report.html").read_text()
    assert "3 rows that the runs answer differently" in page


@pytest.mark.parametrize(
    ("shift", "verdict"),
    [
        (Shift(0, 0, 50), "same"),
        (Shift(1, 0, 50), "unclear"),
        (Shift(9, 1, 50), "better"),
        (Shift(1, 9, 50), "worse"),
        (Shift(6, 5, 50), "unclear"),
    ],
)
def test_a_verdict_needs_more_than_chance(shift: Shift, verdict: str) -> None:
    assert shift.verdict == verdict
    low, high = shift.interval
    assert low <= shift.share <= high
