"""Measure how many answers of a small, unconstrained model to a hundred small tasks are valid and right.

    PYTHONPATH=src SLIPFORM_PEERS=.venv/peers/bin/python python -m bench.tasks

The embedded model is asked through `slipform serve` without `response_format`, so its decoding is not constrained in
any way; temperature 0, the same limit of tokens for all. The ways beside each other:

* json.loads: the first answer, read as it is; the prompt is slipform's own, which favours this way and the next: asked
  with the schema alone, the model gives next to no JSON;
* json_repair: the same answers, mended by `json_repair`;
* Instructor, MD_JSON mode, with its own prompts, three calls at most;
* slipform's `prompted` strategy, three calls at most.

Valid means valid against the task's JSON Schema; right means equal to the answer key, letter case aside. The tasks at
even places were used for development, those at odd places are held out. Instructor and json_repair come from the
interpreter that `$SLIPFORM_PEERS` names; without it they are left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tasks_data import ATTEMPTS, MAX_TOKENS, TASKS, Task
from slipform import Budget, Client, Options, Schema
from slipform.enforce import Guard, Plan, Wording, enforce
from slipform.errors import EnforcementError
from slipform.ir import Message, ModelRequest, Sampling
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, ResponseFormat

PEERS = Path(os.environ.get("SLIPFORM_PEERS", ".venv/peers/bin/python"))
AT_ONCE = 4
ROW = {
    "base_url": "http://127.0.0.1/v1",
    "capabilities": {
        "native": False,
        "tools": False,
        "forced_tool": False,
        "json_mode": False,
        "quirks": ["list_keys"],
    },
}


@dataclass(frozen=True)
class Answer:
    """What one way made of a task."""

    value: Any = None
    found: bool = False
    calls: int = 1
    note: str = ""


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    """`slipform serve` on a free port of this machine; gives the base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from slipform.cli import main; main()", "serve", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/healthz")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise SystemExit("slipform serve does not answer")


def request_of(task: Task) -> ModelRequest:
    """The task as slipform asks it: by the prompt alone."""
    wanted = ResponseFormat.strict(Schema.of(task.shape).spec).with_strategy(OutputStrategy.PROMPTED)
    return ModelRequest(
        "upstream/local", (Message.user(task.prompt),), wanted, sampling=Sampling(temperature=0), max_tokens=MAX_TOKENS
    )


def each(do: Callable[[Task], Any]) -> list[Any]:
    """All tasks, a few at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(do, TASKS))


def first_texts(client: Client) -> list[str]:
    """What the model writes when it is asked once."""

    def text(task: Task) -> str:
        asked = next(enforce(request_of(task), Plan(Schema.of(task.shape), wording=Wording(list_keys=True))))
        return client.complete(asked).text

    return each(text)


def by_json_loads(text: str) -> Answer:
    try:
        return Answer(json.loads(text), found=True)
    except ValueError:
        return Answer(note="not JSON")


def by_json_repair(texts: Sequence[str]) -> list[Answer] | None:
    script = "import json, sys, json_repair\nprint(json.dumps([json_repair.loads(t) for t in json.load(sys.stdin)]))"
    if not PEERS.exists():
        return None
    done = subprocess.run([PEERS, "-c", script], input=json.dumps(texts), capture_output=True, text=True, check=True)
    return [Answer(value, found=True) for value in json.loads(done.stdout)]


def by_instructor(url: str) -> list[Answer] | None:
    if not PEERS.exists():
        return None
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [PEERS, "-m", "bench.tasks_peers", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    return [Answer(one["value"], one["error"] is None, one["calls"], one["error"] or "") for one in results]


def by_slipform(client: Client) -> list[Answer]:
    def ask(task: Task) -> Answer:
        try:
            outcome = client.respond(request_of(task))
        except EnforcementError as error:
            return Answer(calls=len(getattr(error.report, "attempts", ())), note=error.message)
        return Answer(outcome.value, found=True, calls=len(outcome.report.attempts))

    return each(ask)


def folded(value: Any) -> Any:
    """A value with its texts in lower case and without blanks around, so that only the matter counts."""
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, list):
        return [folded(item) for item in value]
    return {key: folded(item) for key, item in value.items()} if isinstance(value, dict) else value


def is_valid(task: Task, answer: Answer) -> bool:
    return answer.found and not Schema.of(task.shape).validate(answer.value)


def is_right(task: Task, answer: Answer) -> bool:
    return is_valid(task, answer) and folded(answer.value) == folded(task.right)


def show(name: str, answers: Sequence[Answer] | None, seconds: float) -> None:
    if answers is None:
        print(f"{name:28} not installed ({PEERS} is not there; see SLIPFORM_PEERS)")
        return
    valid = [is_valid(task, answer) for task, answer in zip(TASKS, answers, strict=True)]
    keyed = [at for at, task in enumerate(TASKS) if task.right is not None]
    right = sum(is_right(TASKS[at], answers[at]) for at in keyed)
    calls = sum(answer.calls for answer in answers)
    held = f"{sum(valid[1::2])} / {sum(valid[0::2])}"
    print(f"{name:28} {sum(valid):>5} {held:>20} {right:>9} of {len(keyed)} {calls:>6} {seconds:>8.0f}")


def main() -> None:
    """Ask everything in every way, and print one table."""
    print(f"{len(TASKS)} tasks, prompt only, decoding not constrained, {ATTEMPTS} calls at most where a way asks again")
    print(f"{'':28} {'valid':>5} {'held out / developed':>20} {'right':>15} {'calls':>6} {'seconds':>8}")
    with upstream() as url:
        vendor = load_catalog({"upstream": ROW}).vendor("upstream")
        provider = HttpProvider(vendor, base_url=url, api_key="any")
        options = Options(budget=Budget(attempts=ATTEMPTS), guard=Guard(stop_after_json=True))
        with Client(router=Router({"upstream": provider}), options=options) as client:
            start = time.monotonic()
            texts = first_texts(client)
            spent = time.monotonic() - start
            show("json.loads", [by_json_loads(text) for text in texts], spent)
            show("json_repair", by_json_repair(texts), spent)
            start = time.monotonic()
            show("Instructor MD_JSON", by_instructor(url), time.monotonic() - start)
            start = time.monotonic()
            own = by_slipform(client)
            show("slipform prompted", own, time.monotonic() - start)
    if "--answers" in sys.argv:
        for task, text, answer in list(zip(TASKS, texts, own, strict=True))[0::2]:
            verdict = "right" if is_right(task, answer) else "valid" if is_valid(task, answer) else "INVALID"
            print(f"\n{task.prompt}\n  first: {text!r}\n  {verdict} {answer.calls}: {answer.value} {answer.note}")


if __name__ == "__main__":
    main()
