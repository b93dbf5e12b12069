"""Compare how well, and how fast, values are found in their source: slipform, langextract, rapidfuzz and `str.find`.

    make bench-evidence

The labelled sets of `tests/evidence` are given to all in one run: values as JSON spells them, right is a span that
covers half of the union with the label. langextract aligns with its own aligner, with its defaults and with exact
matches only; rapidfuzz with `partial_ratio_alignment` of at least 85. Both come from the interpreter that
`$SLIPFORM_EVIDENCE_PEERS` names (`make` installs them); without it they are left out. They are made for
verbatim quotes: typed values are outside of what they promise.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.evidence.labelled import cases, leaves, score

from slipform.evidence import ground
from slipform.schema.document import locate

SETS = ("simple", "hard", "second", "other_hand", "third", "fourth", "fifth")
PEERS = Path(os.environ.get("SLIPFORM_EVIDENCE_PEERS", ".venv/evidence-peers/bin/python"))
PEER_SCRIPT = Path(__file__).with_name("grounding_peers.py")
Found = Mapping[str, Any]


def find_literally(value: Any, text: str, _schema: Any) -> Found:
    """What `str.find` gives for each value as JSON spells it."""
    found = {}
    for pointer in leaves(value):
        spelled = _spelled(locate(value, pointer) if pointer else value)
        at = text.find(spelled) if spelled else -1
        found[pointer] = [(at, at + len(spelled))] if at >= 0 else []
    return found


def _spelled(leaf: Any) -> str:
    return leaf if isinstance(leaf, str) else "" if leaf is None else json.dumps(leaf)


def _values(value: Any) -> dict[str, str]:
    return {pointer: _spelled(locate(value, pointer) if pointer else value) for pointer in leaves(value)}


def peers() -> dict[str, Callable[..., Found]]:
    """The peers' answers to all cases, asked for in one go, each as a function of a case."""
    if not PEERS.exists():
        print("langextract and rapidfuzz are left out: SLIPFORM_EVIDENCE_PEERS names no interpreter")
        return {}
    asked = [{"text": case.text, "values": _values(case.value)} for kind in SETS for case in cases(kind)]
    ran = subprocess.run(
        [str(PEERS), "-P", str(PEER_SCRIPT)], input=json.dumps(asked), text=True, capture_output=True, check=True
    )
    answered: dict[str, list[Found]] = json.loads(ran.stdout)
    by_case = {
        name: {(case["text"], json.dumps(case["values"])): found for case, found in zip(asked, given, strict=True)}
        for name, given in answered.items()
    }

    def aligner(name: str) -> Callable[..., Found]:
        def align(value: Any, text: str, _schema: Any) -> Found:
            return by_case[name][text, json.dumps(_values(value))]

        return align

    return {name: aligner(name) for name in answered}


def quality() -> None:
    """Print precision, recall and false spans of all, on each set."""
    aligners: dict[str, Callable[..., Found]] = {"slipform": ground, "str.find": find_literally, **peers()}
    for kind in SETS:
        count = len(cases(kind))
        print(f"\n| {kind}, {count} cases | precision | recall | false spans |\n|---|---|---|---|")
        for name, align in aligners.items():
            found = score(kind, align)
            print(f"| {name} | {found.precision:.1%} | {found.recall:.1%} | {found.false_spans}/{found.absent} |")


def invoice(size: int) -> tuple[str, dict[str, Any]]:
    """A source of about this many characters, and 200 values of it."""
    chance, rows, lines = random.Random(1), [], list[str]()
    words = ["the", "invoice", "total", "of", "amount", "for", "customer", "was", "paid", "by", "Ada", "Chloé", "GmbH"]
    while sum(map(len, lines)) < size:
        for _ in range(50):
            if chance.random() > 0.1:
                lines.append(" ".join(chance.choice(words) for _ in range(12)) + f" {chance.randint(1, 9999)}.\n")
                continue
            row = {
                "item": chance.choice(["pen", "ink", "lamp", "rope"]) + str(chance.randint(1, 999)),
                "qty": chance.randint(1, 99),
                "price": chance.randint(100, 99999) / 100,
                "date": f"2024-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}",
            }
            rows.append(row)
            lines.append(f"{row['item']} | {row['qty']} | {row['price']:,.2f} | {row['date']}\n")
    return "".join(lines), {"rows": chance.sample(rows, 50)}


def minutes_of_a_meeting(size: int) -> tuple[str, dict[str, Any]]:
    """Prose of about this many characters, and 200 values: as they stand there, misspelled, shortened, absent."""
    chance, text, said = random.Random(2), "", list[list[str]]()
    syllables = ["ka", "ber", "lin", "mo", "ra", "ter", "san", "vel", "dor", "ni", "eck", "ham", "os", "ti", "wel"]
    months = ["January", "March", "May", "June", "August", "October", "December"]

    def name() -> str:
        return "".join(chance.choices(syllables, k=chance.randint(2, 4))).capitalize()

    while len(text) < size:
        person, firm, town = f"{name()} {name()}", f"{name()} {chance.choice(['Ltd', 'GmbH', 'Inc'])}", name()
        day = f"{chance.choice(months)} {chance.randint(1, 28)}, {chance.randint(1990, 2029)}"
        amount = f"{chance.randint(1000, 999999):,}"
        said.append([person, firm, town, day, amount])
        text += (
            f"On {day} the board heard that {person} of {firm} had moved to {town}, where the committee would later "
            f"agree to pay {amount} euros for the second of the two halls. “Nobody objected”, the minutes say.\n"
        )
    leaves = []
    for person, firm, town, day, amount in chance.sample(said, 40):
        at = chance.randrange(1, len(person))
        misspelled = person[:at] + person[at + 1 :]
        leaves.append(
            {
                "person": chance.choice([person, misspelled, f"{name()} {name()}", " ".join(reversed(person.split()))]),
                "firm": chance.choice([firm, firm.replace("Ltd", "Limited"), f"{name()} Holding"]),
                "town": chance.choice([town, name()]),
                "date": day,
                "amount": int(amount.replace(",", "")),
            }
        )
    return text, {"entries": leaves}


def speed() -> None:
    """Print the CPU time for 200 values in 100 KB, and in twice as much."""
    for made in (invoice, minutes_of_a_meeting):
        times = []
        for size in (100_000, 200_000):
            text, value = made(size)
            best = float("inf")
            for _ in range(5):
                began = time.process_time()
                ground(value, text)
                best = min(best, time.process_time() - began)
            times.append(best)
            print(f"{made.__name__}, 200 values in {len(text):,} characters: {best:.3f} CPU-seconds")
        print(f"twice the size takes {times[1] / times[0]:.2f} times as long")


if __name__ == "__main__":
    quality()
    print()
    speed()
