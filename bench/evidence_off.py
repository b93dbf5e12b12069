"""Measure what evidence costs a call that asks for none.

    PYTHONPATH=. python -m bench.evidence_off [--rounds 60]

Two processes take turns: one runs the code as it is, one with every statement taken out that evidence brought into the
way of a call (each `if` that looks at `.evidence`, removed from the syntax tree when the module is loaded). Both make
the same calls of the library to a scripted model, whole and streamed, and through the proxy's ASGI application. Figures
are CPU time; of each round the 10th percentile of its calls, and the ratio of the two with its 95 % interval.

Then one call of each kind is followed: how many functions of the evidence package it enters, how many bytes are
allocated there, and whether the package is loaded at all.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib.abc
import importlib.machinery
import json
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from statistics import median, quantiles
from types import CodeType
from typing import Any

CALLS = 60
ON_THE_WAY = ("slipform.engine", "slipform.enforce", "slipform.addons.server", "slipform.library")
ANSWER = json.dumps({"name": "Ada Lovelace", "age": 36, "tags": ["first", "second", "third"] * 8})
SHAPE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
}


class _WithoutEvidence(ast.NodeTransformer):
    """Takes out each `if` whose condition looks at `.evidence`; its `else` stays."""

    removed = 0

    def visit_If(self, node: ast.If) -> Any:
        """Keep or take out one."""
        self.generic_visit(node)
        looks = any(isinstance(each, ast.Attribute) and each.attr == "evidence" for each in ast.walk(node.test))
        if not looks or not isinstance(node.test, ast.Compare | ast.BoolOp):
            return node
        _WithoutEvidence.removed += 1
        return node.orelse or ast.Pass()


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """The module's code without what evidence brought."""
        path = self.get_filename(fullname)
        tree = _WithoutEvidence().visit(ast.parse(self.get_data(path)))
        return compile(ast.fix_missing_locations(tree), path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Loads the plain modules that a call goes through, but for those of evidence itself."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """A module of the package."""
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        is_plain = found is not None and isinstance(found.loader, importlib.machinery.SourceFileLoader)
        if is_plain and found.origin and fullname.startswith(ON_THE_WAY):
            found.loader = _Loader(fullname, found.origin)
        return found


def kinds() -> dict[str, Callable[[], object]]:
    """One call of each kind that is measured."""
    from slipform import AsyncClient, Client
    from slipform.addons.server.app import App
    from slipform.config import Settings
    from slipform.providers.router import Router
    from slipform.testing import FakeModel

    router = Router({"fake": FakeModel([ANSWER])}, default="fake/m")
    client = Client(router=router)
    app = App(AsyncClient(router=router), Settings())
    body = json.dumps(
        {
            "model": "fake/m",
            "messages": [{"role": "user", "content": "Who?"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SHAPE}},
        }
    ).encode()
    loop = asyncio.new_event_loop()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }

    async def served() -> None:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({**scope}, receive, send)
        assert sent[0]["status"] == 200, sent

    return {
        "ask": lambda: client.ask(SHAPE, "Who?"),
        "stream": lambda: list(client.stream(SHAPE, "Who?")),
        "proxy": lambda: loop.run_until_complete(served()),
    }


def child(*, without: bool) -> None:
    """Measure in this process: one line of JSON for each line that is read."""
    if without:
        sys.meta_path.insert(0, _Finder())
    calls = kinds()
    for call in calls.values():
        for _ in range(50):
            call()
    print(json.dumps({"removed": _WithoutEvidence.removed}), flush=True)
    for _ in sys.stdin:
        found = {}
        for name, call in calls.items():
            times = []
            for _ in range(CALLS):
                began = time.process_time_ns()
                call()
                times.append(time.process_time_ns() - began)
            found[name] = quantiles(times, n=10)[0] / 1000
        print(json.dumps(found), flush=True)


def follow() -> None:
    """Say what one call of each kind does in the evidence package."""
    for name, call in kinds().items():
        for _ in range(3):
            call()
        entered: list[str] = []

        def watch(frame: Any, event: str, _arg: Any, entered: list[str] = entered) -> None:
            if event == "call" and _is_ours(frame.f_code.co_filename):
                entered.append(frame.f_code.co_qualname)

        sys.setprofile(watch)
        call()
        sys.setprofile(None)
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        call()
        grown = tracemalloc.take_snapshot().compare_to(before, "filename")
        tracemalloc.stop()
        ours = sum(each.size_diff for each in grown if _is_ours(each.traceback[0].filename))
        print(f"{name}: {len(entered)} functions of the evidence package entered, {ours} bytes allocated there")
    loaded = sorted(each for each in sys.modules if each.startswith("slipform.addons.evidence"))
    print(f"modules of the package that were loaded: {', '.join(loaded) or 'none'}")


def _is_ours(file: str) -> bool:
    return "slipform/addons/evidence/" in file or file.endswith(("ir/evidence.py", "ir/logprobs.py"))


def compare(rounds: int) -> None:
    """Print what calls take as they are and without what evidence brought, and the ratio."""
    both = {}
    for name in ("as it is", "without"):
        both[name] = subprocess.Popen(
            [sys.executable, "-m", "bench.evidence_off", "--child", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    removed = {name: json.loads(process.stdout.readline())["removed"] for name, process in both.items()}  # type: ignore[union-attr]
    assert removed["without"] > 0 == removed["as it is"], removed
    print(f"{removed['without']} statements taken out; {rounds} rounds of {CALLS} calls each")
    times: dict[str, list[dict[str, float]]] = {name: [] for name in both}
    for number in range(rounds):
        for name in list(both) if number % 2 else list(reversed(both)):
            print(file=both[name].stdin, flush=True)
            times[name].append(json.loads(both[name].stdout.readline()))  # type: ignore[union-attr]
    for process in both.values():
        process.communicate()
    chance = random.Random(1)
    for kind in times["without"][0]:
        ratios = [one[kind] / other[kind] for one, other in zip(times["as it is"], times["without"], strict=True)]
        drawn = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
        micros = [median(each[kind] for each in times[name]) for name in ("as it is", "without")]
        print(
            f"{kind}: {micros[0]:.1f} µs as it is, {micros[1]:.1f} µs without, "
            f"ratio {median(ratios):.3f} [{drawn[50]:.3f}, {drawn[-51]:.3f}]"
        )


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--rounds", type=int, default=60)
    given.add_argument("--child", choices=["as it is", "without"], help=argparse.SUPPRESS)
    options = given.parse_args()
    if options.child:
        child(without=options.child == "without")
        return
    compare(options.rounds)
    follow()


if __name__ == "__main__":
    main()
