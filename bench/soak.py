"""Run the proxy under random faults for a long time: nothing may leak, and every request must succeed or say why not.

Run with `PYTHONPATH=src python -m bench.soak --minutes 30 --streams 200` (`make soak`). A `slipform serve` of its own
process stands between clients of all four APIs and three scripted vendors that are slow, silent, wrong, cut off or
down at random. Some clients leave, read slowly or send nonsense. Watched on /metrics: resident memory, open files,
tasks of the event loop. Exits with 1 when something leaked, or when an answer to a question with a schema was neither
valid nor an error in its API's shape. Answers without a schema go through as the vendor wrote them, broken ones too:
those are counted, and only have to end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench._soak_clients import Address, Client, http
from slipform.testing import (
    Answer,
    FakeVendor,
    Raw,
    Received,
    Step,
    cut_stream,
    garbage,
    garbage_body,
    hang,
    hang_up,
    refusal,
    reset,
    truncated,
)

GOOD = '{"name": "Ada", "age": 36}'
_SOURCE = Path(__file__).resolve().parent.parent / "src"
_KINDS = ("openai", "anthropic", "gemini")


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how many at once, and which dice."""

    seconds: float = 60.0
    streams: int = 200
    seed: int = 7
    pace: float = 0.05
    """Seconds between the pieces of a vendor's answer."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The server at one moment."""

    at: float
    memory: float
    files: float
    tasks: float
    inflight: float


@dataclass(slots=True)
class Result:
    """What was seen."""

    plan: Plan
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    before: Sample | None = None
    after: Sample | None = None
    log_errors: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many ended."""
        return sum(self.outcomes.values())

    @property
    def memory_growth(self) -> float:
        """Bytes per minute over the second half, by least squares; the first half fills pools and caches."""
        late = self.samples[len(self.samples) // 2 :]
        if len(late) < 3:
            return 0.0
        middle = sum(each.at for each in late) / len(late)
        level = sum(each.memory for each in late) / len(late)
        spread = sum((each.at - middle) ** 2 for each in late)
        return 60 * sum((each.at - middle) * (each.memory - level) for each in late) / spread

    def leaks(self) -> list[str]:
        """What did not come back to where it was."""
        found = []
        if self.before is None or self.after is None:
            return ["the server was not there at the end"]
        if self.after.inflight:
            found.append(f"{self.after.inflight:g} calls are still under way")
        # Idle connections to the vendors are kept on purpose: a few per vendor.
        if self.after.files > self.before.files + 3 * 110:
            found.append(f"open files went from {self.before.files:g} to {self.after.files:g}")
        if self.after.tasks > self.before.tasks + 3:
            found.append(f"tasks went from {self.before.tasks:g} to {self.after.tasks:g}")
        allowed = 40e6 if self.plan.seconds < 120 else 0.5e6
        if self.memory_growth > allowed:
            found.append(f"memory grows by {self.memory_growth / 1e6:.2f} MB a minute")
        return found


def error_body(kind: str, status: int) -> Raw:
    """An error as the vendor itself writes it."""
    said: dict[str, dict[str, object]] = {
        "openai": {"error": {"message": "no", "type": "server_error", "param": None, "code": "no"}},
        "anthropic": {"type": "error", "error": {"type": "api_error", "message": "no"}},
        "gemini": {"error": {"code": status, "message": "no", "status": "UNAVAILABLE"}},
    }
    headers = {"content-type": "application/json", "retry-after-ms": "30"}
    return Raw((json.dumps(said[kind]).encode(),), status, headers)


def fault(dice: random.Random, pace: float, kind: str) -> Step:
    """What a vendor does this time."""
    chance = dice.random()
    slow = Answer(GOOD, chunk_size=dice.randint(1, 6), pace=pace * dice.random() * 2, latency=dice.random() * pace)
    others: list[tuple[float, Step]] = [
        (0.04, Answer(f"Sure! Here you are:\n```json\n{GOOD}\n```", pace=pace / 4)),
        (0.03, Answer('{"name": "Ada", "age": "36", "more": 1,}', pace=pace / 4)),
        (0.05, Answer('{"name": "Ada"}', pace=pace / 4)),
        (0.03, Answer("I do not know.", pace=pace / 4)),
        (0.02, Answer("")),
        (0.02, truncated('{"name": "A')),
        (0.02, refusal()),
        (0.03, cut_stream(GOOD, dice.randint(0, 5))),
        (0.02, cut_stream(GOOD, dice.randint(0, 5), "reset")),
        (0.01, cut_stream(GOOD, 2, "hang")),
        (0.02, garbage()),
        (0.02, garbage_body()),
        (0.01, Raw((b"data: {\xff\xfe\n\n",) * 3, headers={"content-type": "text/event-stream"}, chunked=True)),
        (0.06, error_body(kind, dice.choice((429, 500, 502, 503)))),
        (0.02, hang_up()),
        (0.01, reset()),
        (0.005, hang()),
        (0.02, Answer(json.dumps({"name": "A" * 20_000, "age": 1}), chunk_size=400)),
    ]
    for share, step in others:
        if chance < share:
            return step
        chance -= share
    return slow


@contextmanager
def vendors(plan: Plan) -> Iterator[list[FakeVendor]]:
    """Three vendors, one for each API they speak."""
    with ExitStack() as stack:
        made: list[FakeVendor] = []
        for number, kind in enumerate(_KINDS):
            dice = random.Random(plan.seed * 10 + number)

            def script(_: Received, dice: random.Random = dice, kind: str = kind) -> Step:
                return fault(dice, plan.pace, kind)

            made.append(stack.enter_context(FakeVendor(script, api=kind)))  # type: ignore[arg-type]
        yield made


@contextmanager
def served(made: list[FakeVendor], log: Path) -> Iterator[Address]:
    """`slipform serve` in front of the vendors."""
    rows = [
        f"  {kind}: {{base_url: '{vendor.base_url}', api_key_env: SOAK_KEY, timeout_seconds: 4}}"
        for kind, vendor in zip(_KINDS, made, strict=True)
    ]
    server = "server: {port: 0, log: json, drain_seconds: 3, request_seconds: 20, max_concurrent: 2000}"
    limits = "enforcement: {max_attempts: 2, max_seconds: 10}\nruntime: {timeout_seconds: 4}"
    settings = "\n".join(["default_model: openai/m", "providers:", *rows, server, limits, ""])
    with started(settings, log) as (address, _):
        yield address


@contextmanager
def started(settings: str, log: Path) -> Iterator[tuple[Address, int]]:
    """`slipform serve` with these settings in a process of its own: its address and its process id."""
    path = log.with_name("slipform.yaml")
    path.write_text(settings)
    environment = {**os.environ, "SOAK_KEY": "sk-soak-soak-soak", "PYTHONPATH": str(_SOURCE)}
    command = [sys.executable, "-c", "from slipform.cli import main; main()", "serve", "--config", str(path)]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stderr=stream, env=environment)
    try:
        end = time.monotonic() + 60
        while not (found := re.search(r"http://([\d.]+):(\d+)", log.read_text())):
            if time.monotonic() > end or process.poll() is not None:
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            time.sleep(0.05)
        yield Address(found[1], int(found[2])), process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def sample(address: Address) -> Sample:
    """Look at the server."""
    _, body = await http(address, "GET", "/metrics")
    found = dict(re.findall(r"^(\w+) (\S+)$", body.decode(), re.MULTILINE))
    names = ("process_resident_memory_bytes", "process_open_fds", "slipform_tasks", "slipform_inflight")
    return Sample(time.monotonic(), *(float(found[name]) for name in names))


async def drive(plan: Plan, address: Address, made: list[FakeVendor]) -> Result:
    """All clients at once, for as long as planned, and a look at the server every second."""
    result = Result(plan)
    for _ in range(200):
        status, _body = await http(address, "GET", "/readyz")
        if status == 200:
            break
        await asyncio.sleep(0.1)
    result.before = await sample(address)
    end = time.monotonic() + plan.seconds
    clients = [Client(address, random.Random(plan.seed * 1000 + number)) for number in range(plan.streams)]
    running = [asyncio.create_task(client.until(end, result.outcomes, result.wrong)) for client in clients]
    while time.monotonic() < end:
        await asyncio.sleep(1)
        result.samples.append(await sample(address))
        for vendor in made:
            vendor.requests.clear()  # the vendors remember everything; here that would be the only leak
    await asyncio.gather(*running)
    for _ in range(200):
        result.after = await sample(address)
        if not result.after.inflight and result.after.tasks <= result.before.tasks + 3:
            break
        await asyncio.sleep(0.1)
    return result


def soak(plan: Plan) -> Result:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with vendors(plan) as made, served(made, log) as address:
            result = asyncio.run(drive(plan, address, made))
        lines = log.read_text().splitlines()
        result.log_errors = [line[:2000] for line in lines if '"level":"error"' in line or "Traceback" in line]
        result.log_errors += [line[:200] for line in lines if "sk-soak" in line]
        return result


def main() -> int:
    """Run from the command line."""
    given = argparse.ArgumentParser(description="The proxy under random faults.")
    given.add_argument("--minutes", type=float, default=30)
    given.add_argument("--streams", type=int, default=200)
    given.add_argument("--seed", type=int, default=7)
    chosen = given.parse_args()
    result = soak(Plan(chosen.minutes * 60, chosen.streams, chosen.seed))
    assert result.before is not None
    print(f"{result.requests:,} requests in {chosen.minutes:g} min, {chosen.streams} at a time")
    for name, count in result.outcomes.most_common():
        print(f"  {count:8,}  {name}")
    for each in (result.before, *result.samples[:: max(1, len(result.samples) // 10)], result.after):
        if each is not None:
            seconds = each.at - result.before.at
            print(f"  {seconds:7.0f} s  {each.memory / 1e6:6.1f} MB  {each.files:5g} files  {each.tasks:5g} tasks")
    print(f"memory: {result.memory_growth / 1e6:+.3f} MB a minute over the second half")
    problems = [*result.leaks(), *result.wrong[:10], *result.log_errors[:10]]
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
