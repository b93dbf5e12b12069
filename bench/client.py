"""Measure the library: import time, the cost of a call and of a stream, beside other libraries.

Run with `PYTHONPATH=src python -m bench.client`. CPU time of the client process; the server runs in another one and
answers at once. Per call: the 10th percentile of some hundred calls, best of a few passes. The other libraries run in
an environment of their own, whose Python `SLIPFORM_PEERS` names (`.venv/peers/bin/python` by default), against the same
server in the same run. Figures to beat: import 150 ms, 200 µs per call over bare HTTP, 0.15 s for 20 KB.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from bench.client_shapes import MODEL, PASSES, PROMPT, Invoice, first_line, import_ms, invoice, per_call, per_stream
from bench.results import record
from slipform import AsyncClient, Client
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, FakeModel, FakeVendor

PEERS = os.environ.get("SLIPFORM_PEERS", ".venv/peers/bin/python")
SHORT, LONG = invoice(8), invoice(292)


def serve() -> None:
    """Answer with the short invoice, or the long one to who streams; tell the address first."""
    with FakeVendor(lambda got: Answer(LONG if b'"stream":true' in got.body.replace(b" ", b"") else SHORT)) as vendor:
        print(vendor.base_url, flush=True)
        sys.stdin.read()


@contextmanager
def server() -> Iterator[str]:
    """The vendor in a process of its own."""
    command = [sys.executable, "-m", "bench.client", "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def bare(url: str) -> Callable[[], object]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
    connection.connect()

    def call() -> object:
        connection.request("POST", f"{address.path}/chat/completions", body, {"content-type": "application/json"})
        return connection.getresponse().read()

    return call


def own_client(url: str) -> Client:
    provider = HttpProvider("openai", base_url=url, api_key="any")
    return Client(f"openai/{MODEL}", router=Router({"openai": provider}))


def own(url: str) -> Callable[[], object]:
    client = own_client(url)
    return lambda: client.ask(Invoice, PROMPT)


def own_async(url: str) -> Callable[[], object]:
    """The same on an event loop, whose own cost is in the figure."""
    client = own_client(url)
    twin = AsyncClient(client.model, router=client.router)
    loop = asyncio.new_event_loop()
    return lambda: loop.run_until_complete(twin.ask(Invoice, PROMPT))


def own_http(url: str) -> Callable[[], object]:
    """The same call without enforcement."""
    client = own_client(url)
    return lambda: client.text(PROMPT)


def own_stream(url: str) -> Iterator[Any]:
    with own_client(url).stream(Invoice, PROMPT) as stream:
        yield from stream
        assert stream.result.value.notes


CALLERS: dict[str, tuple[str, Callable[[str], Callable[[], object]]]] = {
    "slipform ask": ("import slipform; slipform.ask", own),
    "slipform ask, async": ("import slipform; slipform.ask_async", own_async),
    "slipform text only": ("from slipform import Client", own_http),
}


def peers(url: str) -> list[dict[str, Any]]:
    """What the other libraries cost; none with a note when their environment is not there."""
    try:
        done = subprocess.run(
            [PEERS, "-m", "bench.client_peers", url], stdout=subprocess.PIPE, text=True, check=True, timeout=600
        )
    except (OSError, subprocess.SubprocessError) as error:
        print(f"The other libraries are left out: {error}. Set SLIPFORM_PEERS to a Python that has them.")
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def calls(url: str, others: list[dict[str, Any]]) -> None:
    """Import time and CPU per call."""
    floor = per_call(bare(url))
    rows: list[dict[str, Any]] = []
    for name, (statement, make) in CALLERS.items():
        call = make(url)
        call()
        rows.append({"name": name, "import": import_ms(statement), "call": per_call(call)})
    ours = rows[0]["call"] - floor
    print(f"{'':24} {'import ms':>9} {'µs CPU per call':>16} {'over bare HTTP':>15} {'times ours':>11}")
    print(f"{'bare http.client POST':24} {'':>9} {floor:16.0f}")
    measured = [row for row in (*rows, *others) if "error" not in row]
    record("ask_us", {row["name"]: row["call"] - floor for row in measured})
    for row in (*rows, *others):
        if "error" in row:
            print(f"{row['name']:24} not measured: {row['error']}")
            continue
        over = row["call"] - floor
        print(f"{row['name']:24} {row['import']:9.0f} {row['call']:16.0f} {over:+15.0f} {over / ours:11.1f}")


def streams(url: str, others: list[dict[str, Any]]) -> None:
    """CPU for 20 KB in pieces of four characters, and how often a finished item stays the same object."""
    ours = {"name": "slipform stream", **per_stream(lambda: own_stream(url))}
    measured = [row for row in (ours, *others) if "error" not in row]
    record("stream", {row["name"]: {"seconds": row["seconds"], "same": row["same"]} for row in measured})
    print(f"\n{len(LONG):,} bytes in 4-character pieces, every partial looked at")
    print(f"{'':24} {'CPU s':>7} {'partials':>9} {'same object':>12} {'times ours':>11}")
    for row in (ours, *others):
        if "error" in row:
            print(f"{row['name']:24} not measured: {row['error']}")
            continue
        times = row["seconds"] / ours["seconds"]
        print(f"{row['name']:24} {row['seconds']:7.3f} {row['partials']:9,} {row['same']:12.0%} {times:11.1f}")


def growth() -> None:
    """CPU of longer and longer streams, from a model in the same process: twice the answer, twice the cost."""
    print("\nCPU s of slipform's stream by size:", end="")
    for lines in (70, 145, 292, 586, 1174):
        text = invoice(lines)
        best = float("inf")
        for _ in range(PASSES):
            client = Client("fake/any", router=Router({"fake": FakeModel([text])}))
            start = time.process_time()
            with client.stream(Invoice, "x") as stream:
                for partial in stream:
                    first_line(partial)
            best = min(best, time.process_time() - start)
        print(f"  {len(text) // 1000} KB {best:.3f}", end="", flush=True)
    print()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        with server() as url:
            theirs = peers(url)
            calls(url, [row for row in theirs if row["kind"] == "call"])
            streams(url, [row for row in theirs if row["kind"] == "stream"])
        growth()
