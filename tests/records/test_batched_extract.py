"""`extract` through a vendor's batch API: a round of all files is a batch."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import slipform
from slipform.addons.batch.batched_calls import BatchPolicy
from slipform.addons.records.drive import Limits
from slipform.addons.records.folders import FilesJob, FilesSummary, extract_files
from slipform.addons.records.running import Extractor
from slipform.addons.records.shapes import rows_of
from slipform.config import Settings
from slipform.engine.setup import Options
from slipform.errors import ConfigError
from slipform.named_schemas import schema_named
from slipform.prices import Price
from tests.runner.batch_vendors import BatchVendor, Faults, no_sleep
from tests.runner.test_batched_rows import MODELS, router_for
from tests.waiting import until_async

PAYMENT = {
    "type": "object",
    "properties": {"date": {"type": "string"}, "payee": {"type": "string"}, "amount": {"type": "string"}},
    "required": ["date", "payee", "amount"],
    "additionalProperties": False,
}
LINE = re.compile(r"(2026-\d\d-\d\d)  (Payee [A-Z]\d+)  (-\d+\.\d\d)")
POLICY = BatchPolicy(sleep=no_sleep, settle=0.05)


def read(prompt: str, _: int) -> str:
    rows = [dict(zip(("date", "payee", "amount"), row, strict=True)) for row in LINE.findall(prompt)]
    return json.dumps({"records": rows})


def document(letter: str, rows: int) -> str:
    lines = [f"2026-{1 + row % 12:02d}-{1 + row % 28:02d}  Payee {letter}{row}  -{row}.50" for row in range(rows)]
    return "Date        Payee     Amount\n" + "\n".join(lines) + "\n"


def job_for(folder: Path, vendor: BatchVendor, policy: BatchPolicy | None = POLICY, **limits: Any) -> FilesJob:
    files = []
    for letter in "ABC":
        path = folder / f"{letter}.txt"
        path.write_text(document(letter, 30))
        files.append(path)
    shapes = rows_of(schema_named(json.dumps(PAYMENT), Settings()))
    extractor = Extractor(
        tuple(shapes),
        router_for(vendor),
        f"{vendor.api}/{MODELS[vendor.api]}",
        Options(prices={"*": Price(2.0, 10.0)}),
        via="live" if policy is None else "batch",
    )
    return FilesJob(extractor, tuple(files), folder / "out.jsonl", Limits(**limits), batches=policy)


def run(job: FilesJob) -> FilesSummary:
    return asyncio.run(extract_files(job))


def payees(path: Path) -> list[str]:
    return [json.loads(line)["payee"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("api", ["openai", "anthropic", "gemini"])
def test_a_round_of_all_files_is_a_batch(tmp_path: Path, api: str) -> None:
    vendor = BatchVendor(api, read)
    summary = run(job_for(tmp_path, vendor))
    assert summary.is_complete
    assert payees(tmp_path / "out.jsonl") == [f"Payee {letter}{row}" for letter in "ABC" for row in range(30)]
    assert len(vendor.batches) == 1
    assert vendor.live == []
    assert summary.report.cost == pytest.approx(3 * (100 * 2 + 20 * 10) / 1e6 / 2)
    assert not (tmp_path / "out.jsonl.batches").exists()


def test_the_same_command_asks_nothing_again(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", read)
    run(job_for(tmp_path, vendor))
    again = run(job_for(tmp_path, vendor))
    assert again.is_complete
    assert len(vendor.batches) == 1


def test_a_stopped_extraction_takes_the_results_of_its_batch(tmp_path: Path) -> None:
    vendor = BatchVendor("anthropic", read, Faults(never_ends=True))

    async def stopped() -> None:
        task = asyncio.create_task(extract_files(job_for(tmp_path, vendor, BatchPolicy(settle=0.05, first_pause=0.1))))
        await until_async(lambda: any(batch.looks for batch in vendor.batches.values()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stopped())
    vendor.faults.never_ends = False
    summary = run(job_for(tmp_path, vendor))
    assert summary.is_complete
    assert len(vendor.batches) == 1
    assert len(vendor.billed) == 3


def test_what_a_batch_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", read, Faults(gone=True))
    summary = run(job_for(tmp_path, vendor))
    assert summary.is_complete
    assert len(vendor.live) == 3


def test_a_budget_that_is_too_small_sends_nothing(tmp_path: Path) -> None:
    vendor = BatchVendor("openai", read)
    summary = run(job_for(tmp_path, vendor, cost=0.0001))
    assert not summary.is_complete
    assert summary.stopped == "max_cost=0.0001"
    assert vendor.batches == {}


def test_python_asks_for_a_journal(tmp_path: Path) -> None:
    client = slipform.Client("openai/gpt-6-luna", router=router_for(BatchVendor("openai", read)))
    with pytest.raises(ConfigError, match="no journal"):
        slipform.extract({"type": "array", "items": PAYMENT}, document("A", 3), client=client, via="batch")


def test_python_extracts_through_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipform.addons.records.api.BatchPolicy", lambda *_: POLICY)
    vendor = BatchVendor("openai", read)
    client = slipform.Client("openai/gpt-6-luna", router=router_for(vendor))
    result = slipform.extract_full(
        {"type": "array", "items": PAYMENT},
        document("A", 30),
        client=client,
        via="batch",
        journal=tmp_path / "a.journal",
    )
    assert len(result.records) == 30
    assert len(vendor.batches) == 1
