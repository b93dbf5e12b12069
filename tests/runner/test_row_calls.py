"""What a job may ask of each row beyond its answer: a schema of its own, evidence, what the call took."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.batch.datasets import batch, make_job, start
from slipform.addons.batch.rows import rows_of
from slipform.config import read_settings
from slipform.errors import ConfigError
from slipform.ir import ModelRequest
from slipform.ir.evidence import Evidence
from slipform.providers.router import Router
from slipform.schema import OutputStrategy
from slipform.testing import FakeModel
from tests.runner.conftest import read_rows

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def started(folder: Path, rows: list[dict[str, Any]], model: FakeModel, **changes: Any) -> list[dict[str, Any]]:
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = read_settings('retries: {attempts: 0}\nprices: {"fake/*": {input: 1, output: 2}}')
    router = Router({"fake": model})
    job, _ = make_job(
        source,
        schema=AGE,
        out=folder / "out.jsonl",
        prompt="Q: {text}",
        model="fake/m",
        settings=settings,
        router=router,
    )
    evidence = changes.pop("evidence", None)
    options = dataclasses.replace(job.options, evidence=evidence)
    start(dataclasses.replace(job, options=options, **changes), router)
    return read_rows(folder / "out.jsonl")


def answer(request: ModelRequest) -> str:
    assert request.response_format is not None
    wanted = request.response_format.json_schema.schema["properties"]
    return '{"age": 36}' if "age" in wanted else '{"name": "Ada"}'


def test_each_row_may_have_its_own_schema(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "a", "shape": AGE}, {"text": "b", "shape": json.dumps(NAME)}]
    found = started(tmp_path, rows, FakeModel(answer), schema_column="shape")
    assert [row["value"] for row in found] == [{"age": 36}, {"name": "Ada"}]


def test_results_have_evidence_from_the_prompt_or_from_a_column(tmp_path: Path) -> None:
    rows = [{"text": "How old?", "letter": "Ada is 36."}]
    (tmp_path / "column").mkdir()
    [row] = started(tmp_path, rows, FakeModel(answer), evidence=Evidence())
    assert row["evidence"]["/age"]["spans"] == []
    assert row["ungrounded"] == ["/age"]
    [row] = started(tmp_path / "column", rows, FakeModel(answer), evidence=Evidence(), source="letter")
    assert row["evidence"]["/age"]["spans"] == [{"start": 7, "end": 9, "how": "exact"}]


def test_listed_values_are_not_ungrounded_and_missing_texts_are(tmp_path: Path) -> None:
    shape = {
        "type": "object",
        "properties": {"label": {"enum": ["good", "bad"]}, "number": {"type": "string"}, "note": {"type": "string"}},
        "required": ["label", "number"],
    }
    model = FakeModel(['{"label": "good", "number": "", "note": ""}'])
    rows = [{"text": "I love it", "shape": shape}]
    [row] = started(tmp_path, rows, model, evidence=Evidence(), schema_column="shape")
    assert row["ungrounded"] == ["/number"]


def test_results_and_failures_say_what_they_took(tmp_path: Path) -> None:
    model = FakeModel(['{"age": 36}', "no"])
    [row] = started(tmp_path, [{"text": "a"}, {"text": "b"}], model, figures=True, concurrency=1)
    [failure] = read_rows(tmp_path / "out.jsonl.failures.jsonl")
    for figures in (row["figures"], failure["figures"]):
        assert figures["calls"] == 1
        assert figures["seconds"] >= 0
        assert set(figures) == {"calls", "input", "output", "cost", "seconds"}


def test_the_strategy_of_a_job_reaches_the_model(tmp_path: Path) -> None:
    model = FakeModel(['{"age": 36}'])
    started(tmp_path, [{"text": "a"}], model, strategy=OutputStrategy.PROMPTED)
    assert model.requests[0].response_format is None or (
        model.requests[0].response_format.strategy is OutputStrategy.PROMPTED
    )


def test_another_strategy_or_other_evidence_is_another_job(tmp_path: Path) -> None:
    rows = [{"text": "a"}]
    started(tmp_path, rows, FakeModel(answer), strategy=OutputStrategy.TOOL, evidence=Evidence())
    unasked = FakeModel(answer)
    assert started(tmp_path, rows, unasked, strategy=OutputStrategy.TOOL, evidence=Evidence())
    assert unasked.requests == []
    with pytest.raises(ConfigError, match="its strategy and its evidence differed"):
        started(tmp_path, rows, FakeModel(answer))
    with pytest.raises(ConfigError, match="its strategy"):
        started(tmp_path, rows, FakeModel(answer), strategy=OutputStrategy.NATIVE, evidence=Evidence())


@pytest.mark.parametrize("field", ["source", "schema_column"])
def test_a_column_that_is_not_there_is_named_before_the_first_call(tmp_path: Path, field: str) -> None:
    model = FakeModel(answer)
    with pytest.raises(ConfigError, match=r"The input has no column 'lettr'.*The columns are: text"):
        started(tmp_path, [{"text": "a"}], model, **{field: "lettr"})
    assert model.requests == []


def test_batch_takes_evidence_into_jsonl_and_parquet(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "Ada is 36"}\n')
    wanted = {"age": {"spans": [{"start": 7, "end": 9, "how": "exact"}], "confidence": None}}
    for name in ("out.jsonl", "out.parquet"):
        batch(
            tmp_path / "in.jsonl", schema=AGE, out=tmp_path / name, prompt="{text}", evidence=Evidence(),
            model="fake/m", router=Router({"fake": FakeModel(answer)}),
        )  # fmt: skip
        [row] = rows_of(tmp_path / name)
        found = row["evidence"] if name == "out.jsonl" else json.loads(row["evidence"])
        assert found == {"/age": wanted["age"]}
        assert (row["confidence"], row["ungrounded"]) == (None, [])
    with pytest.raises(ConfigError, match="A source needs evidence"):
        batch(tmp_path / "in.jsonl", schema=AGE, out=tmp_path / "x.jsonl", source_column="text")
