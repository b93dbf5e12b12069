"""Try slipform and its peers on fourteen known faults of structured output, and some more, over real HTTP.

    PYTHONPATH=src SLIPFORM_PEERS=.venv/peers/bin/python python -m bench.faults          # a table for the terminal
    PYTHONPATH=src SLIPFORM_PEERS=.venv/peers/bin/python python -m bench.faults --markdown

Each fault is answered twice over: by a model that repeats itself however often it is asked, and by one that gives the
right answer when asked again. Three calls are allowed. A number is how many calls it took to the right value, `error`
an error that says why; `WRONG` is a value that is not the right one, `None` none at all and no error. All libraries are
run in the same run against the same server, from the interpreter that `$SLIPFORM_PEERS` names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.faults_data import ALL, FAULTS, PROMPT, Fault, Invoice, script_of
from bench.results import record
from slipform import Budget, Client, EnforcementError, Options
from slipform.ir import ModelResponse
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import FakeVendor, Step
from slipform.testing.vendor import Received

PEERS = Path(os.environ.get("SLIPFORM_PEERS", ".venv/peers/bin/python"))
KINDS = ("repeats", "mends")


class Scripts:
    """Answers each caller, known by its API key, with the next step of its fault's script; counts the calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, got: Received) -> Step:
        """The next step for who asks."""
        key = got.headers["authorization"].removeprefix("Bearer ")
        _, at, kind = key.split("|")
        script = script_of(ALL[int(at)], mends=kind == "mends")
        text, finish = script[min(self.calls[key], len(script) - 1)]
        self.calls[key] += 1
        return ModelResponse(text=text, finish="length" if finish == "length" else "stop")


def own(url: str) -> dict[str, Any]:
    """What slipform makes of them: value or error, and what the report says was done."""
    found: dict[str, Any] = {}
    for at in range(len(ALL)):
        for kind in KINDS:
            key = f"slipform|{at}|{kind}"
            with HttpProvider("openai", base_url=url, api_key=key) as provider:
                options = Options(budget=Budget(attempts=3))
                client = Client("openai/gpt-5", router=Router({"openai": provider}), options=options)
                try:
                    result = client.ask_full(Invoice, PROMPT)
                except EnforcementError as error:
                    found[key] = {"error": error.code, "report": error.report}
                else:
                    found[key] = {"value": result.value.model_dump(mode="json"), "report": result.report}
    return found


def peers(url: str) -> dict[str, dict[str, Any]]:
    """What the others make of them."""
    if not PEERS.exists():
        print(f"Other libraries are left out: {PEERS} is not there (see SLIPFORM_PEERS)", file=sys.stderr)
        return {}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "BAML_LOG": "off"}
    command = [PEERS, "-W", "ignore", "-m", "bench.faults_peers", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    results: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results


def cell(fault: Fault, outcome: Mapping[str, Any], calls: int) -> str:
    """One field of the table."""
    if "error" in outcome:
        return "not run" if outcome["error"] in ("ModuleNotFoundError", "TypeError", "AttributeError") else "error"
    if outcome["value"] is None:
        return "None"
    return str(calls) if outcome["value"] == fault.right.model_dump(mode="json") or _is_mended(outcome) else "WRONG"


def _is_mended(outcome: Mapping[str, Any]) -> bool:
    """After a second call the whole right answer may have come, whatever the first one held."""
    return bool(outcome["value"] == FAULTS[0].right.model_dump(mode="json"))


def done_to(report: Any) -> str:
    """What slipform's report says was done, in a few words."""
    said = []
    for attempt in report.attempts:
        edits = [edit.kind for edit in attempt.repairs] + [edit.reason for edit in attempt.patches]
        said.append("; ".join(dict.fromkeys(edits)) or attempt.outcome)
    return " → ".join(said)


def table() -> tuple[list[str], list[tuple[Fault, dict[str, tuple[str, str]], str]]]:
    """The columns, and a row for each fault: a cell for each library and kind of model, and our report."""
    scripts = Scripts()
    with FakeVendor(scripts) as vendor:
        found = {"slipform": own(vendor.base_url), **peers(vendor.base_url)}
    rows = []
    for at, fault in enumerate(ALL):
        cells = {}
        for name, outcomes in found.items():
            keys = [f"{name}|{at}|{kind}" for kind in KINDS]
            cells[name] = (
                cell(fault, outcomes[keys[0]], scripts.calls[keys[0]]),
                cell(fault, outcomes[keys[1]], scripts.calls[keys[1]]),
            )
        rows.append((fault, cells, done_to(found["slipform"][f"slipform|{at}|mends"]["report"])))
    return list(found), rows


def totals(names: list[str], rows: list[tuple[Fault, dict[str, tuple[str, str]], str]]) -> list[tuple[str, list[str]]]:
    """How many of the fourteen each library recovers: at once, when the model repeats itself, when it mends."""
    first = rows[: len(FAULTS)]
    columns = [[cells[name] for _, cells, _ in first] for name in names]
    wrong = [str(sum("WRONG" in pair or "None" in pair for pair in column)) for column in columns]
    return [
        ("recovered of 14, without a second call", [str(sum(a == "1" for a, _ in column)) for column in columns]),
        ("… when the model repeats itself", [str(sum(a.isdigit() for a, _ in column)) for column in columns]),
        ("… when the model is right on a retry", [str(sum(b.isdigit() for _, b in column)) for column in columns]),
        ("wrong, or nothing without an error", wrong),
    ]


def shown(cells: tuple[str, str]) -> str:
    return cells[0] if cells[0] == cells[1] else f"{cells[0]} / {cells[1]}"


def main() -> None:
    """Print the table: model that repeats itself / model that is right when asked again, where they differ."""
    names, rows = table()
    markdown = "--markdown" in sys.argv
    lines: list[list[str]] = [["fault", *names, "what slipform's report says"]]
    lines += [[fault.name, *(shown(cells[name]) for name in names), said] for fault, cells, said in rows[: len(FAULTS)]]
    lines += [[f"**{label}**" if markdown else label, *counts, ""] for label, counts in totals(names, rows)]
    lines += [[fault.name, *(shown(cells[name]) for name in names), said] for fault, cells, said in rows[len(FAULTS) :]]
    record("table", lines)
    record("totals", {label: dict(zip(names, counts, strict=True)) for label, counts in totals(names, rows)})
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for number, line in enumerate(lines):
        if markdown:
            print("| " + " | ".join(line) + " |")
            if number == 0:
                print("|---" * len(line) + "|")
        else:
            print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
