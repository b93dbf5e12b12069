"""An extraction that is stopped at any moment resumes, repeats no answered call, and gives the same result."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.addons.records.calls import FinishedCall
from slipform.addons.records.drive import CallJournal, Driver, ExtractionTally, Limits
from slipform.addons.records.segments import Question
from slipform.addons.records.session import ExtractionSession, PieceAnswer
from slipform.testing import FakeVendor, Received
from tests.records.generate import Document, statement
from tests.runner.conftest import ROOT, environment, settings_for
from tests.runner.test_batch_ray import cluster

__all__ = ["cluster"]
DOCUMENT = statement(70, 8)


class Reader:
    """Answers questions, some records left out: the same ones for the same question, whenever it comes."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.questions: list[tuple[str, int]] = []

    async def ask(self, question: Question) -> FinishedCall:
        self.questions.append((question.text, question.repeat))
        chance = random.Random(f"{question.repeat} {question.text}")
        await asyncio.sleep(0)
        rows = [row for row in self._document.read(question.text) if chance.random() > 0.1]
        return FinishedCall(PieceAnswer(tuple(rows)))


def extract(journal: Path | None, reader: Reader, limits: Limits | None = None) -> list[tuple[int, int]]:
    """Return where the placed records are, as lines and candidates."""
    session = ExtractionSession(DOCUMENT.text)
    calls = None if journal is None else CallJournal(journal, {"kind": "test"})
    try:
        asyncio.run(Driver(ExtractionTally(limits or Limits()), calls).run(session, reader))
    finally:
        if calls is not None:
            calls.close()
    return sorted((line, claim.candidate) for line, claim in session.placement.claims.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[tuple[int, int]], int]:
    """The journal of an undisturbed run, its result, and how many calls it took."""
    path = tmp_path_factory.mktemp("whole") / "journal"
    reader = Reader(DOCUMENT)
    result = extract(path, reader)
    assert len(result) == len(DOCUMENT.records)
    return path.read_bytes(), result, len(reader.questions)


@settings(max_examples=8, deadline=None)
@given(share=st.floats(0, 1))
def test_a_journal_cut_at_any_byte_gives_the_same_result(
    whole: tuple[bytes, list[tuple[int, int]], int], tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    data, result, calls = whole
    path = tmp_path_factory.mktemp("cut") / "journal"
    cut = data[: int(share * len(data))]
    path.write_bytes(cut)
    reader = Reader(DOCUMENT)
    assert extract(path, reader) == result
    assert len(reader.questions) == calls - max(0, cut.count(b"\n") - 1)


def test_the_order_of_answers_does_not_matter(whole: tuple[bytes, list[tuple[int, int]], int]) -> None:
    _, result, _ = whole
    assert extract(None, Reader(DOCUMENT), Limits(concurrency=1)) == result


def _answer(received: Received) -> str:
    text = received.json()["messages"][-1]["content"]
    chance = random.Random(text)
    return json.dumps({"records": [row for row in DOCUMENT.read(text) if chance.random() > 0.1]})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_command_that_is_killed_resumes_and_repeats_no_answered_call(tmp_path: Path) -> None:
    command = [
        sys.executable, "-c", "from slipform.cli import main; main()", "extract", "in.txt", "--schema", "row.json",
        "--list", "-o", "out.csv", "--concurrency", "1",
    ]  # fmt: skip
    with FakeVendor(_answer) as vendor:
        for name in ("whole", "killed"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "in.txt").write_text(DOCUMENT.text)
            (folder / "row.json").write_text(json.dumps(DOCUMENT.item))
            (folder / "slipform.yaml").write_text(settings_for(vendor))
        surroundings = environment({"PYTHONPATH": str(ROOT / "src")})
        assert subprocess.run(command, cwd=tmp_path / "whole", env=surroundings, check=False).returncode == 0
        calls = len(vendor.requests)
        for kill in range(1, calls):
            before = len(vendor.requests)
            process = subprocess.Popen(command, cwd=tmp_path / "killed", env=surroundings)
            while len(vendor.requests) <= before and process.poll() is None:
                pass
            process.kill()
            process.wait()
            assert len(vendor.requests) <= calls + 2 * kill
        assert subprocess.run(command, cwd=tmp_path / "killed", env=surroundings, check=False).returncode == 0
    assert (tmp_path / "killed" / "out.csv").read_bytes() == (tmp_path / "whole" / "out.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ray_gives_the_table_of_one_machine(tmp_path: Path, cluster: Any) -> None:
    command = [
        sys.executable, "-c", "from slipform.cli import main; main()", "extract", "one.txt", "two.txt", "--schema",
        "row.json", "--list",
    ]  # fmt: skip
    (tmp_path / "one.txt").write_text(DOCUMENT.text)
    (tmp_path / "two.txt").write_text(statement(40, 9).text)
    (tmp_path / "row.json").write_text(json.dumps(DOCUMENT.item))
    surroundings = environment({"PYTHONPATH": str(ROOT / "src"), "RAY_ADDRESS": cluster.address})
    with FakeVendor(_answer) as vendor:
        (tmp_path / "slipform.yaml").write_text(settings_for(vendor))
        for engine in ("local", "ray"):
            run = [*command, "-o", f"{engine}.csv", "--engine", engine]
            assert subprocess.run(run, cwd=tmp_path, env=surroundings, check=False).returncode == 0
        calls = len(vendor.requests)
        again = [*command, "-o", "ray.csv", "--engine", "ray"]
        assert subprocess.run(again, cwd=tmp_path, env=surroundings, check=False).returncode == 0
        assert len(vendor.requests) == calls, "the journal has every answer"
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()
