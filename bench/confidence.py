"""Measure what token probabilities of an embedded model say about whether a value is right.

    PYTHONPATH=src python -m bench.confidence [--model smollm2-135m] [--samples 4] [--records FILE]

The model answers greedily, constrained by the task's schema, in a loop of our own over the engine's C functions. At
each token two probabilities of the *same* token are noted: of the model's own distribution (before the mask), and of
what is left of it once the grammar has excluded what the schema does not admit (after the mask). A third is what the
product tells: the engine gives only the likeliest tokens before the mask, of which it takes those that the grammar
admits. So all scores are of the same answers. `--samples` answers more per task, at temperature 1, give the agreement.

Rightness is equality with the answer key after the normalisers of `slipform.addons.evidence`. AUROC is how often a
value scores above a wrong one; ECE the mean distance of score and share of right values in ten bins. Intervals are 95
%, from 2,000 bootstrap samples of tasks, paired where two signals are compared. `structured-logprobs` comes from the
interpreter that `$SLIPFORM_EVIDENCE_PEERS` names, and reads the same answers; without it, it is left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import random
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.local import Guidance, Loop
from bench.tasks_data import TASKS
from slipform import Schema
from slipform.addons.evidence.collect import votes
from slipform.addons.evidence.confidence import Written, leaf_confidence
from slipform.addons.local.decoding.constrain import constrain
from slipform.addons.local.llama import LISTED, AdmittedTokens
from slipform.addons.local.weights import KNOWN, pull_with_progress
from slipform.ir.logprobs import Token
from slipform.schema.document import locate

MAX_TOKENS = 128
ROUNDS = 2_000
BINS = 10
PEERS = Path(os.environ.get("SLIPFORM_EVIDENCE_PEERS", ".venv/evidence-peers/bin/python"))
PEER_SCRIPT = Path(__file__).with_name("confidence_peers.py")


@dataclass(frozen=True)
class Question:
    """A prompt, the schema of its answer, and the right one."""

    prompt: str
    schema: dict[str, Any]
    right: Any


def questions() -> list[Question]:
    """Those of `bench.tasks` that have one right answer, and further texts to take values from."""
    own = [
        Question(task.prompt, dict(Schema.of(task.shape).document), task.right)
        for task in TASKS
        if task.right is not None
    ]
    every = own + list(_extractions(random.Random(7))) + list(_closed(random.Random(8)))
    random.Random(9).shuffle(every)  # so that those a run has time for are of all kinds
    return every


_NAMES = ["Ada Park", "Ben Ortiz", "Chloé Martin", "Dmitri Volkov", "Eva Lindqvist", "Femi Adeyemi", "Grace Kim"]
_CITIES = ["Lisbon", "Oslo", "Nairobi", "Kyoto", "Lima", "Graz", "Hobart", "Tampere"]
_JOBS = ["nurse", "welder", "pilot", "baker", "lawyer", "plumber"]
_FIRMS = ["Acme Ltd", "Nordwind GmbH", "Blue Finch Inc", "Tallow & Sons", "Rivera SA"]
_THINGS = ["lamps", "ropes", "mugs", "chairs", "bolts", "candles", "towels"]


def _extractions(chance: random.Random) -> Iterator[Question]:
    for _ in range(20):
        name, age, city, job = (
            chance.choice(_NAMES),
            chance.randint(19, 77),
            chance.choice(_CITIES),
            chance.choice(_JOBS),
        )
        yield _question(
            f"{name}, who turned {age} in May, moved to {city} last year and works there as a {job}.",
            {"name": name, "age": age, "city": city, "job": job},
        )
        firm, number, days = chance.choice(_FIRMS), chance.randint(1000, 9999), chance.choice([10, 14, 30])
        total = chance.randint(1000, 99999) / 100
        yield _question(
            f"Invoice {number} of {firm}: please pay {total:,.2f} EUR within {days} days of receipt.",
            {"invoice": number, "company": firm, "total": total, "days": days},
        )
        start, end = chance.sample(_CITIES, 2)
        late = chance.random() < 0.5
        said = "is delayed by an hour" if late else "leaves on time"
        yield _question(
            f"Flight KX{number} from {start} to {end} {said}, gate B{days}.",
            {"flight": f"KX{number}", "origin": start, "destination": end, "gate": f"B{days}", "delayed": late},
        )
        first, second = chance.sample(_THINGS, 2)
        few, many = chance.randint(2, 9), chance.randint(10, 60)
        yield _question(
            f"{firm} ordered {many} {first} and {few} {second}.",
            {"lines": [{"item": first, "quantity": many}, {"item": second, "quantity": few}]},
        )


def _closed(chance: random.Random) -> Iterator[Question]:
    """Texts whose values are yes or no, or one of a list."""
    for _ in range(15):
        number, firm = chance.randint(1000, 9999), chance.choice(_FIRMS)
        paid, urgent = chance.random() < 0.5, chance.random() < 0.5
        bill = "has been paid" if paid else "has not been paid yet"
        hurry = "Please answer at once." if urgent else "There is no hurry."
        yield _question(f"Invoice {number} of {firm} {bill}. {hurry}", {"paid": paid, "urgent": urgent})
        status, channel = chance.choice(["open", "closed", "waiting"]), chance.choice(["email", "phone", "chat"])
        told = {"open": "still open", "closed": "closed", "waiting": "waiting for the customer"}[status]
        yield _question(
            f"Ticket {number}, which came by {channel}, is {told}.",
            {"ticket": number, "status": status, "channel": channel},
            {"status": ["open", "closed", "waiting"], "channel": ["email", "phone", "chat"]},
        )
        member, days = chance.random() < 0.5, chance.randint(2, 20)
        mood = chance.choice(["positive", "negative"])
        felt = "and I loved every day" if mood == "positive" else "and I would never come back"
        card = "with my club card" if member else "without being a member"
        yield _question(
            f"I stayed {days} nights {card}, {felt}.",
            {"nights": days, "member": member, "sentiment": mood},
            {"sentiment": ["positive", "negative"]},
        )


def _question(text: str, right: dict[str, Any], listed: Mapping[str, list[str]] | None = None) -> Question:
    schema = _schema_of(right)
    for key, values in (listed or {}).items():
        schema["properties"][key] = {"enum": values}
    return Question(f"Answer with JSON, taken from this text.\nText: {text}", schema, right)


def _schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        properties = {key: _schema_of(each) for key, each in value.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    if isinstance(value, list):
        return {"type": "array", "items": _schema_of(value[0]), "maxItems": 5}
    return {"type": {bool: "boolean", int: "integer", float: "number"}.get(type(value), "string")}


@dataclass(frozen=True)
class Drawn:
    """One answer: its tokens with both probabilities."""

    pieces: list[bytes]
    before: list[float]
    after: list[float]
    told: list[float | None]
    """As the product makes it of the likeliest tokens before the mask, which is all that the engine tells."""

    @property
    def text(self) -> str:
        """What was written."""
        return b"".join(self.pieces).decode("utf-8", "replace")


class Model:
    """An embedded model under a grammar."""

    def __init__(self, name: str) -> None:
        import llguidance

        self.loop = Loop(pull_with_progress(KNOWN[name]))
        self.pieces = list(self.loop.pieces())
        self.tokenizer = llguidance.LLTokenizer.from_llamacpp(
            tokens=self.pieces,
            vocab_ptr=self.loop.vocab,
            eos_token=self.loop.end,
            slices=None,
            tokenize_fptr=ctypes.cast(self.loop.lib.llama_tokenize, ctypes.c_void_p).value,
        )

    def answer(self, question: Question, chance: np.random.Generator | None) -> Drawn:
        """An answer: the likeliest token each time, or with `chance` one drawn at temperature 1."""
        loop = self.loop
        loop.clear()
        admitted = AdmittedTokens(constrain(question.schema, MAX_TOKENS).grammar)
        guidance = Guidance(self.tokenizer, constrain(question.schema, MAX_TOKENS).grammar, forward=False)
        bits = np.zeros((1, (loop.size + 31) // 32), dtype=np.int32)
        logits = loop.logits(loop.tokenize(f"<|im_start|>user\n{question.prompt}<|im_end|>\n<|im_start|>assistant\n"))
        drawn = Drawn([], [], [], [])
        while len(drawn.pieces) < MAX_TOKENS and not guidance.is_over():
            guidance.fill(bits)
            allowed = np.unpackbits(bits.view(np.uint8)[0], bitorder="little")[: loop.size].view(bool)
            free = _log_softmax(np.asarray(logits, dtype=np.float64))
            held = _log_softmax(np.where(allowed, free, -np.inf))
            token = int(held.argmax()) if chance is None else int(chance.choice(loop.size, p=np.exp(held)))
            guidance.take(token)
            if loop.lib.llama_vocab_is_eog(loop.vocab, token):
                break
            drawn.pieces.append(self.pieces[token])
            drawn.before.append(float(free[token]))
            drawn.after.append(float(held[token]))
            if chance is None:
                top = np.argpartition(free, -LISTED)[-LISTED:]
                listed = [(self.pieces[at], float(free[at])) for at in top]
                drawn.told.append(admitted.admitted(self.pieces[token], float(free[token]), listed))
            logits = loop.logits([token])
        return drawn


def _log_softmax(values: Any) -> Any:
    shifted = values - values.max()
    return shifted - np.log(np.exp(shifted).sum())


def collect(name: str, samples: int, minutes: float) -> list[dict[str, Any]]:
    """A record for each task: its answer with both probabilities of its tokens, and its further answers."""
    model, records = Model(name), []
    for place, question in enumerate(questions()):
        if time.process_time() > 60 * minutes:
            break
        drawn = model.answer(question, None)
        more = [model.answer(question, np.random.default_rng([place, each])).text for each in range(samples)]
        records.append(
            {
                "task": place,
                "schema": question.schema,
                "right": question.right,
                "text": drawn.text,
                "more": more,
                "bytes": [list(piece) for piece in drawn.pieces],
                "before": drawn.before,
                "after": drawn.after,
                "told": drawn.told,
            }
        )
    return records


# -- from records to figures --------------------------------------------------------------------------


def leaves(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each leaf of the answers that are JSON: every signal, and whether it is right."""
    rows = []
    for record in records:
        try:
            value = json.loads(record["text"])
        except ValueError:
            continue  # cut off at the limit of tokens
        found = {
            when: leaf_confidence(
                [
                    Token(bytes(data), math.nan if each is None else each)
                    for data, each in zip(record["bytes"], record[when], strict=True)
                ],
                Written(record["text"], 0, len(record["text"])),
            )
            for when in ("before", "after", "told")
        }
        right = votes(value, [record["right"]])
        others = [json.loads(text) for text in record["more"] if _is_json(text)]
        agreed = votes(value, others) if others else {}
        for pointer in right:
            before, after = found["before"][pointer], found["after"][pointer]
            if before.score is None or before.least is None or after.score is None or after.least is None:
                continue  # an empty string has no tokens
            row = {
                "task": record["task"],
                "pointer": pointer,
                "kind": _kind(value, record["schema"], pointer),
                "right": bool(right[pointer]),
                "joint, before the mask": before.score,
                "mean, before the mask": before.score ** (1 / before.tokens),
                "least token, before the mask": before.least,
                "joint, after the mask": after.score,
                "least token, after the mask": after.least,
                "joint, as told (`confidence`)": found["told"][pointer].score,
                "least token, as told (`least`)": found["told"][pointer].least,
            }
            if others:
                row["agreement"] = agreed[pointer] / len(others)
                row["least token before × agreement"] = before.least * (0.1 + row["agreement"]) / 1.1
            rows.append(row)
    return rows


def _kind(value: Any, schema: Mapping[str, Any], pointer: str) -> str:
    """The type of a leaf; `enum` for a text that the schema lists."""
    leaf = locate(value, pointer) if pointer else value
    listed = [node for node in _nodes(schema) if leaf in node.get("enum", ())]
    return "enum" if isinstance(leaf, str) and listed else type(leaf).__name__


def _nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        yield schema
    for each in schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ():
        yield from _nodes(each)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def auroc(scores: Any, right: Any) -> float:
    """How often a right value scores above a wrong one; ties count half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[places]
    positive, negative = int(right.sum()), int((~right).sum())
    if not positive or not negative:
        return float("nan")
    return float((ranks[right].sum() - positive * (positive + 1) / 2) / (positive * negative))


def calibration_error(scores: Any, right: Any) -> float:
    """The mean distance of the score and the share of right values, over bins of equal width."""
    places = np.minimum((scores * BINS).astype(int), BINS - 1)
    gaps = [abs(scores[places == at].mean() - right[places == at].mean()) * (places == at).mean() for at in set(places)]
    return float(sum(gaps))


def intervals(rows: Sequence[dict[str, Any]], name: str, other: str | None = None) -> tuple[str, str]:
    """AUROC and ECE of a signal with their intervals; with `other`, of the difference to that one."""
    names = [name] if other is None else [name, other]
    rows = [row for row in rows if all(row.get(each) is not None for each in names)]
    right = np.array([row["right"] for row in rows])
    scores = {each: np.array([row[each] for row in rows]) for each in names}
    by_task: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        by_task.setdefault(row["task"], []).append(at)
    groups = [np.array(each) for each in by_task.values()]
    chance = np.random.default_rng(1)
    drawn: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        chosen = np.concatenate([groups[at] for at in chance.integers(0, len(groups), len(groups))])
        figures = [
            (auroc(scores[each][chosen], right[chosen]), calibration_error(scores[each][chosen], right[chosen]))
            for each in names
        ]
        drawn.append(figures[0] if other is None else (figures[0][0] - figures[1][0], figures[0][1] - figures[1][1]))
    points = [(auroc(scores[each], right), calibration_error(scores[each], right)) for each in names]
    point = points[0] if other is None else (points[0][0] - points[1][0], points[0][1] - points[1][1])
    ends = np.nanpercentile(np.array(drawn), [2.5, 97.5], axis=0)
    sign = "" if other is None else "+"
    return tuple(f"{point[at]:{sign}.3f} [{ends[0, at]:{sign}.3f}, {ends[1, at]:{sign}.3f}]" for at in (0, 1))  # type: ignore[return-value]


def with_peer(records: Sequence[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with what structured-logprobs makes of the same answers."""
    if not PEERS.exists():
        return rows
    ran = subprocess.run(
        [str(PEERS), "-P", str(PEER_SCRIPT)], input=json.dumps(records), text=True, capture_output=True, check=False
    )
    if ran.returncode:
        print(f"structured-logprobs is left out: {ran.stderr.strip().splitlines()[-1:]}")
        return rows
    found: dict[str, dict[str, float | None]] = json.loads(ran.stdout)
    return [{**row, "structured-logprobs": found.get(str(row["task"]), {}).get(row["pointer"])} for row in rows]


def report(records: Sequence[dict[str, Any]]) -> None:
    """Print the tables."""
    rows = with_peer(records, leaves(records))
    right = sum(row["right"] for row in rows)
    print(f"{len(rows)} leaves of {len({row['task'] for row in rows})} answers, {right / len(rows):.1%} right\n")
    print("| signal | leaves | AUROC | ECE |\n|---|---|---|---|")
    signals = [name for name in rows[0] if name not in ("task", "pointer", "kind", "right")]
    for name in signals:
        count = sum(row.get(name) is not None for row in rows)
        print(f"| {name} | {count} | {' | '.join(intervals(rows, name))} |")
    print("\n| difference, on the same answers | AUROC | ECE |\n|---|---|---|")
    for name, other in [
        ("joint, after the mask", "joint, before the mask"),
        ("least token, after the mask", "least token, before the mask"),
        ("joint, as told (`confidence`)", "joint, before the mask"),
        ("joint, as told (`confidence`)", "structured-logprobs"),
    ]:
        if other not in rows[0]:
            continue
        print(f"| {name} − {other} | {' | '.join(intervals(rows, name, other))} |")
    for kind in sorted({row["kind"] for row in rows}):
        some = [row for row in rows if row["kind"] == kind]
        both = 0 < sum(row["right"] for row in some) < len(some)
        names = ("joint, before the mask", "joint, as told (`confidence`)")
        shown = [intervals(some, name)[0] if both and len(some) >= 30 else "too few" for name in names]
        share = sum(row["right"] for row in some) / len(some)
        print(f"only {kind}: {len(some)} leaves, {share:.0%} right, AUROC before {shown[0]}, as told {shown[1]}")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--model", default="smollm2-135m", choices=list(KNOWN))
    given.add_argument("--samples", type=int, default=0)
    given.add_argument("--minutes", type=float, default=10, help="of CPU; what is not asked by then is left out")
    given.add_argument("--records", type=Path, help="where the answers are kept, or read from if it is there")
    options = given.parse_args()
    if options.records is not None and options.records.exists():
        records = json.loads(options.records.read_text())
    else:
        began = time.monotonic()
        records = collect(options.model, options.samples, options.minutes)
        print(
            f"{options.model}: {len(records)} tasks, {options.samples} samples each, {time.monotonic() - began:.0f} s, "
            f"{time.process_time():.0f} s of CPU"
        )
        if options.records is not None:
            options.records.write_text(json.dumps(records))
    report(records)


if __name__ == "__main__":
    main()
