"""The review page and the report in a real browser: what a person would see and do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slipform import ground
from slipform.addons.evaluation.report_page import write_report
from slipform.addons.evaluation.review import ReviewSource, write_review
from slipform.addons.evaluation.run import Evaluation
from slipform.addons.evaluation.scoring import RunScore
from tests.conftest import in_browser
from tests.proxy.test_console_browser import HOSTILE

DRIVER = Path(__file__).with_name("pages_browser.mjs")
NAMES = re.findall(r"^  async '([^']+)'\(\)", DRIVER.read_text("utf-8"), re.MULTILINE)
INVOICE = "Invoice INV-7, Acme GmbH\nDate: March 5th, 2024\n2 × Bolt, 1 x Nut\nTotal due: EUR 1.234,50"
ROWS: list[tuple[str, str, Any, dict[str, float]]] = [
    ("one", f"🎉🎉 Ada has {10**22 + 123} bolts", {"name": "Ada", "bolts": 10**22 + 123}, {"/name": 0.6}),
    (
        "two",
        INVOICE,
        {
            "number": "INV-7", "customer": "Nobody Ltd", "date": "2024-03-05", "total": 1234.5, "paid": False,
            "items": [{"name": "Bolt"}, {"name": "Nut"}],
        },
        {"/number": 0.9, "/customer": 0.4, "/date": 0.8, "/total": 0.21},
    ),
    ("three", "red, blue", ["red", "blue"], {"/0": 0.99, "/1": 0.98}),
]  # fmt: skip


def evidence_of(value: Any, text: str, scores: dict[str, float]) -> dict[str, Any]:
    """Evidence as a call would give it: places, and these scores."""
    return {
        pointer: {
            "spans": [span._asdict() for span in spans],
            "confidence": scores.get(pointer),
            **({"touched": ["patched"]} if pointer == "/date" else {}),
        }
        for pointer, spans in ground(value, text).items()
    }


def review_page(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows and the page that shows them."""
    results = folder / f"{name}.jsonl"
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_review(results, folder / f"{name}.html", ReviewSource.of(results, None, None))


def report_page(folder: Path, name: str, words: str) -> None:
    """Write the report of two runs, one of them wrong about half of what it is asked."""
    runs = []
    for model, wrong_every in ((f"good{words}", 9), ("weak", 2)):
        run = RunScore(model, "native")
        for number in range(1, 31):
            is_wrong = number % wrong_every == 0
            answer = {"name": f"P{number}" if not is_wrong else words or "X", "age": number}
            evidence = {"/name": {"spans": [], "confidence": (number % 10) / 20 + (0.0 if is_wrong else 0.5)}}
            figures = {"calls": 1, "input": 100, "output": 10, "cost": 0.01, "seconds": 0.5 + number / 100}
            result = {"value": answer, "evidence": evidence, "figures": figures}
            run.add(number, words or str(number), {"name": f"P{number}", "age": number}, result)
        runs.append(run)
    failed = RunScore(f"gone{words}", "tool", error=f"There is no such model {words}")
    write_report(Evaluation(Path(f"{name}.jsonl"), 30, (*runs, failed)), folder / f"{name}.html")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all pages."""
    folder = tmp_path_factory.mktemp("pages")
    rows = [
        {"row": number, "key": key, "source": text, "value": value, "evidence": evidence_of(value, text, scores)}
        for number, (key, text, value, scores) in enumerate(ROWS, 1)
    ]
    review_page(folder, "review", rows)
    large = [
        {"row": n, "key": str(n), "source": f"P{n} is {n}.", "value": {"name": f"P{n}", "age": n}, "evidence": _LARGE}
        for n in range(1, 10_001)
    ]
    review_page(folder, "large", large)
    hostile = "".join(HOSTILE)
    nasty: dict[str, Any] = {"__proto__": {"polluted": hostile}, hostile: hostile, "constructor": [hostile, None]}
    review_page(
        folder, "hostile", [{"key": each, "source": each, "value": {**nasty, "words": each}} for each in HOSTILE]
    )
    report_page(folder, "report", "")
    report_page(folder, "hostile-report", hostile)
    return folder


_LARGE = {name: {"spans": [{"start": 0, "end": 2, "how": "exact"}], "confidence": 0.9} for name in ("/name", "/age")}


@pytest.fixture(scope="module")
def results(pages: Path) -> dict[str, str]:
    """What the driver found, by the name of the check."""
    return in_browser(DRIVER, str(pages), timeout=400)


@pytest.mark.timeout(500)
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("name", NAMES)
def test_in_a_browser(name: str, results: dict[str, str]) -> None:
    assert results[name] == ""
