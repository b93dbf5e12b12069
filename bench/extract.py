"""Extract generated documents with a model that makes known mistakes: recall, wrong values, silent gaps, tokens, CPU.

python -m bench.extract                      # 5,000 records in each of the four genres
python -m bench.extract --records 1000 --seeds 3 --all
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import dataclass
from typing import Any

from tests.records.generate import GENRES, Document
from tests.records.layouts import LAYOUTS

import slipform
from slipform.addons.records import Extraction
from slipform.providers.router import Router
from slipform.testing import Faults, UnreliableModel

_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave."""

    name: str
    records: int
    missing: int
    wrong: int
    """Records of the result that the document does not have at that place."""
    silent: int
    """Missing records that no report names."""
    false_gaps: int
    calls: int
    tokens: float
    """Tokens relative to one perfect pass: the source once, the answers once, the instructions with every piece."""
    cpu: float
    """Milliseconds of CPU time for a record, the model's own left out."""

    def __str__(self) -> str:
        recall = 100 * (1 - self.missing / self.records)
        return (
            f"{self.name:<14} {self.records:>6,} records  recall {recall:6.2f} %  wrong {self.wrong}  "
            f"silent {self.silent}  false gaps {self.false_gaps}  calls {self.calls:>3}  tokens {self.tokens:.3f}  "
            f"CPU {self.cpu:.2f} ms"
        )


class _TimedModel(UnreliableModel):
    """Measures the CPU time that the model itself takes."""

    cpu = 0.0

    def complete(self, request: Any) -> Any:
        started = time.process_time()
        response = super().complete(request)
        self.cpu += time.process_time() - started
        return response


def measure(name: str, document: Document, faults: Faults, seed: int, rounds: int = 6) -> Figures:
    """Extract a document and compare the result with what it holds."""
    model = _TimedModel(document.read, faults, seed)
    client = slipform.Client(router=Router({"unreliable": model}, default="unreliable/m"))
    started = time.process_time()
    extraction = slipform.extract_full(document.shape, document.text, client=client, rounds=rounds)
    cpu = time.process_time() - started - model.cpu
    missing, wrong = differences(document, extraction)
    stretches = reported(extraction)
    silent = [start for start in missing if not any(low <= start < high for low, high in stretches)]
    false_gaps = [each for each in stretches if not any(each[0] <= start < each[1] for start in missing)]
    usage = extraction.report.usage
    tokens = (usage.input or 0) + (usage.output or 0)
    return Figures(
        name, len(document.records), len(missing), wrong, len(silent), len(false_gaps), extraction.report.calls,
        tokens / perfect_pass(document, model), 1000 * cpu / len(document.records),
    )  # fmt: skip


def differences(document: Document, extraction: Extraction[Any]) -> tuple[list[int], int]:
    """Return where records begin that the result lacks, and how many of its records are wrong, misplaced or double."""
    rows = {start: row for (start, _), row in zip(document.spans, document.records, strict=True)}
    right = {record.start for record in extraction.records if rows.get(record.start) == record.value}
    return [start for start in rows if start not in right], len(extraction.records) - len(right)


def reported(extraction: Extraction[Any]) -> list[tuple[int, int]]:
    """Return the stretches that the result says something is missing in."""
    coverage = extraction.coverage
    items: list[Any] = [*coverage.gaps, *coverage.doubtful, *extraction.failures]
    return [(item.start, item.end) for item in items]


def perfect_pass(document: Document, model: UnreliableModel) -> float:
    """Return the tokens of one pass in which nothing is lost."""
    system = len(model.requests[0].messages[0].text)
    pieces = len(document.text) / 12_000
    answers = len(json.dumps({"records": document.records}, ensure_ascii=False))
    return (len(document.text) + answers + pieces * system) / _BYTES_PER_TOKEN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--all", action="store_true", help="the further layouts as well")
    parser.add_argument("--only", help="one genre")
    options = parser.parse_args()
    makers = {**GENRES, **LAYOUTS} if options.all or options.only else GENRES
    for name, make in makers.items():
        for seed in range(1, options.seeds + 1):
            if options.only in (None, name):
                print(measure(name, make(options.records, seed), Faults(), seed, options.rounds), flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
