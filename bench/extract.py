"""Extract generated documents with a model that makes known mistakes: recall, wrong values, silent gaps, tokens, CPU.

python -m bench.extract                      # 5,000 records in each of the four genres
python -m bench.extract --records 1000 --seeds 3 --all
python -m bench.extract --records 1000 --beside   # with one call, plain chunks and langextract on the same documents

The peers of `--beside` are given the same model with the same mistakes. Their records are compared by value, wherever
they were found; langextract is told the exact text of every record. `make bench-evidence` installs it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.records.generate import GENRES, Document
from tests.records.layouts import LAYOUTS

import slipform
from slipform.addons.records.result import Extraction
from slipform.ir import Message, ModelRequest
from slipform.providers.router import Router
from slipform.testing import Faults, UnreliableModel

_BYTES_PER_TOKEN = 4
_PIECE = 12_000
_ANSWER_TOKENS = 32_000
"""The output limit of the model that is asked for everything at once."""
_HERE = Path(__file__).parent
_PEERS = _HERE.parent / ".venv" / "evidence-peers" / "bin" / "python"


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


def measure_peers(document: Document, faults: Faults, seed: int) -> Iterator[str]:
    """Yield a line for each other method: nothing tells their callers that a record is missing."""
    model = UnreliableModel(document.read, faults, seed)
    methods = {"one call": one_call(document, model), "chunks": chunks(document, model)}
    if _PEERS.exists():
        methods["langextract"] = langextract(document, model, passes=1)
        methods["langextract, 3 passes"] = langextract(document, model, passes=3)
    perfect = (len(document.text) + len(_text_of(document.records))) / _BYTES_PER_TOKEN
    for name, (records, tokens) in methods.items():
        right = sum((Counter(map(_key, document.records)) & Counter(map(_key, records))).values())
        recall = 100 * right / len(document.records)
        yield (
            f"  {name:<22} recall {recall:6.2f} %  wrong or double {len(records) - right:>4}  "
            f"silent {len(document.records) - right:>5}  tokens {tokens / perfect:.3f}"
        )


def one_call(document: Document, model: UnreliableModel) -> tuple[list[Any], float]:
    """Ask for everything at once; whole records of an answer that is cut count."""
    answer, tokens = _ask(model, document.text)
    text = answer[: _ANSWER_TOKENS * _BYTES_PER_TOKEN]
    return _whole_records(text), tokens - (len(answer) - len(text)) / _BYTES_PER_TOKEN


def chunks(document: Document, model: UnreliableModel) -> tuple[list[Any], float]:
    """Ask about pieces that end with a line, and concatenate; whole records of an answer that is cut count."""
    records: list[Any] = []
    tokens = 0.0
    piece = ""
    for line in [*document.text.splitlines(keepends=True), ""]:
        if piece and (not line or len(piece) + len(line) > _PIECE):
            answer, spent = _ask(model, piece)
            records += _whole_records(answer)
            tokens += spent
            piece = ""
        piece += line
    return records, tokens


def langextract(document: Document, model: UnreliableModel, passes: int) -> tuple[list[Any], float]:
    """Let langextract ask, with an example of a record."""
    texts = {
        _key(row): document.text[start:end] for (start, end), row in zip(document.spans, document.records, strict=True)
    }
    example = {"text": texts[_key(document.records[0])], "record": _as_attributes(document.records[0])}
    task = {"text": document.text, "example": example, "piece": _PIECE, "passes": passes}
    tokens = 0.0
    command = [str(_PEERS), "-P", str(_HERE / "extract_peers.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        if peer.stdin is None or peer.stdout is None:
            raise RuntimeError("the peer has no pipes")
        peer.stdin.write(json.dumps(task) + "\n")
        peer.stdin.flush()
        for line in peer.stdout:
            message = json.loads(line)
            if "records" in message:
                return [_from_attributes(each["record"], document) for each in message["records"]], tokens
            prompt = message["prompt"]
            answer, _ = _ask(model, prompt.rpartition("\nQ: ")[2].removesuffix("\nA: "))
            extractions = [
                {"record": texts.get(_key(row), _text_of(row)), "record_attributes": _as_attributes(row)}
                for row in _whole_records(answer)
            ]
            output = _text_of({"extractions": extractions})
            tokens += (len(prompt) + len(output)) / _BYTES_PER_TOKEN
            peer.stdin.write(json.dumps({"output": output}) + "\n")
            peer.stdin.flush()
    raise RuntimeError("langextract ended without a result")


def _ask(model: UnreliableModel, text: str) -> tuple[str, float]:
    """Return the model's answer, and its tokens with those of the text."""
    response = model.complete(ModelRequest("m", (Message.user(text),)))
    return response.text, (len(text) + len(response.text)) / _BYTES_PER_TOKEN


def _whole_records(text: str) -> list[Any]:
    """Return the records that an answer has in full."""
    value = slipform.Parser(lenient=True).feed(text)
    is_cut = value.open_path is not None
    records = value.value if isinstance(value.value, list) else []
    return records[:-1] if is_cut and records else records


def _as_attributes(row: dict[str, Any]) -> dict[str, str]:
    return {name: _text_of(value) for name, value in row.items()}


def _from_attributes(attributes: dict[str, str], document: Document) -> dict[str, Any]:
    return {name: json.loads(attributes[name]) for name in document.item["properties"] if name in attributes}


def _text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _key(row: Any) -> str:
    return json.dumps(row, sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--all", action="store_true", help="the further layouts as well")
    parser.add_argument("--only", help="one genre")
    parser.add_argument("--beside", action="store_true", help="other methods on the same documents as well")
    options = parser.parse_args()
    makers = {**GENRES, **LAYOUTS} if options.all or options.only else GENRES
    for name, make in makers.items():
        for seed in range(1, options.seeds + 1):
            if options.only not in (None, name):
                continue
            document = make(options.records, seed)
            print(measure(name, document, Faults(), seed, options.rounds), flush=True)
            for line in measure_peers(document, Faults(), seed) if options.beside else ():
                print(line, flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
