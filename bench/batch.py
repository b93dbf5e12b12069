"""Measure a batch against a provider on loopback, beside HTTP clients alone, and the memory of a long one.

    python -m bench.batch                     5,000 rows, and memory for 100,000
    python -m bench.batch --memory 1000000    memory for a million: some minutes
    python -m bench.batch --ray               rows per second of one Ray node beside this machine alone

The provider is a canned server in a process of its own, without latency and with the little that real ones have at the
very least. The clients send the same bodies, as many at a time. "Without HTTP" is a batch whose provider is a stub in
this process, "the runner alone" one that asks nothing: so it can be seen what each part of a row costs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal, get_args
from unittest import mock

import orjson

from bench._batch_clients import alone, clients
from bench.results import record
from slipform.addons.batch.call import FinishedRow
from slipform.addons.batch.datasets import make_job
from slipform.addons.batch.jobs import Task
from slipform.addons.batch.journal import JournalEntry
from slipform.addons.batch.rows import Template
from slipform.addons.batch.scheduler import run_loop
from slipform.codecs import Capabilities
from slipform.config import Settings, read_settings
from slipform.errors import SlipformError
from slipform.files.tables import as_json
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Usage
from slipform.ir.response import ChunkSink
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import AsyncByteStream, ByteStream, HttpRequest, TransportFault
from slipform.providers.router import Router
from slipform.runner import batch
from slipform.schema import ResponseFormat, Schema
from slipform.testing.wire_formats import SHAPES

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TEXT = '{"name": "Ada Lovelace", "age": 36, "tags": ["poet", "mathematician"]}'
PROMPT = "Who is {name}? This is what we know: {text}"
MODEL = "gpt-6-luna"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
ABOUT = "She wrote the first program for a machine that was never built. " * 4


def serve(latency: float) -> None:
    """The canned provider."""
    response = ModelResponse(text=TEXT, usage=Usage(input=90, output=20, total=110))
    body = orjson.dumps(SHAPES["openai"].whole(response))
    said = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    class Canned(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            self.buffer = b""

        def data_received(self, data: bytes) -> None:
            self.buffer += data
            head_end = self.buffer.find(b"\r\n\r\n")
            length = LENGTH.search(self.buffer) if head_end > 0 else None
            if length is None or len(self.buffer) < head_end + 4 + int(length[1]):
                return
            self.buffer = b""
            if latency:
                asyncio.get_running_loop().call_later(latency, self.transport.write, said)  # type: ignore[attr-defined]
            else:
                self.transport.write(said)  # type: ignore[attr-defined]

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    run_loop(run)


@contextlib.contextmanager
def provider(latency: float) -> Iterator[str]:
    """The canned provider, running."""
    command = [sys.executable, "-m", "bench.batch", "--serve", str(latency)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = server.stdout.readline().strip() if server.stdout else ""
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


class Recording:
    """A transport that sends nothing, to learn what would be sent."""

    def __init__(self) -> None:
        self.sent: list[HttpRequest] = []

    def open(self, request: HttpRequest) -> ByteStream:
        """Note it down."""
        self.sent.append(request)
        raise TransportFault("recorded", phase="body")

    async def open_async(self, request: HttpRequest) -> AsyncByteStream:
        """The same."""
        self.open(request)
        raise TransportFault("recorded", phase="body")

    def close(self) -> None:
        """Nothing is open."""


def write_rows(path: Path, rows: int) -> None:
    with path.open("wb") as file:
        for number in range(rows):
            file.write(orjson.dumps({"id": number, "name": f"Person {number}", "text": ABOUT}) + b"\n")


def bodies(path: Path, url: str) -> list[HttpRequest]:
    """The requests a batch would send."""
    recording = Recording()
    shape = ResponseFormat.strict(Schema.of(SCHEMA).spec)
    with HttpProvider("openai", base_url=url, api_key="x", transport=recording) as asked:
        for line in path.read_bytes().splitlines():
            prompt = PROMPT.format_map(orjson.loads(line))
            with contextlib.suppress(Exception):
                asked.complete(ModelRequest(MODEL, (Message.user(prompt),), response_format=shape))
    return recording.sent


def whole(path: Path, url: str, concurrency: int) -> tuple[float, float]:
    """Seconds, and seconds of CPU, that a batch needs for a row: reading, asking, checking, journal and results."""
    settings = read_settings(f"providers: {{bench: {{kind: openai, base_url: '{url}', api_key_env: BENCH_KEY}}}}")
    os.environ["BENCH_KEY"] = "x"
    return timed(path, concurrency, model=f"bench/{MODEL}", settings=settings)


def timed(
    path: Path,
    concurrency: int,
    *,
    model: str,
    settings: Settings | None = None,
    router: Router | None = None,
    engine: Literal["local", "ray"] = "local",
) -> tuple[float, float]:
    """The same of any batch of this input; the CPU of helpers counts, and the time until they are there."""
    out = path.with_name("out.jsonl")
    wall, cpu = time.perf_counter(), cpu_seconds()
    summary = batch(
        path,
        schema=SCHEMA,
        out=out,
        prompt=PROMPT,
        model=model,
        concurrency=concurrency,
        settings=settings,
        router=router,
        engine=engine,
    )
    taken = time.perf_counter() - wall, cpu_seconds() - cpu
    if summary.done != summary.rows or summary.failed:
        raise RuntimeError(f"The batch did not do its rows: {summary}")
    for each in (out, out.with_name("out.jsonl.journal")):
        each.unlink()
    return taken[0] / summary.rows, taken[1] / summary.rows


def cpu_seconds() -> float:
    """What this process has used, and those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def speed(rows: int, concurrency: int, latency: float, passes: int) -> None:
    """Print how many rows a second a batch does, and how many requests each of the clients."""
    with tempfile.TemporaryDirectory() as folder, provider(latency) as url:
        path = Path(folder) / "in.jsonl"
        write_rows(path, rows)
        requests = bodies(path, url)
        measures: dict[str, Callable[[], tuple[float, float]]] = {"batch": lambda: whole(path, url, concurrency)}
        for name, (opened, dearer) in clients().items():
            some = requests[: max(concurrency, rows // dearer)]
            measures[name] = lambda opened=opened, some=some: alone(opened, some, concurrency)  # type: ignore[misc]
        found = best_of(measures, passes)
    record(f"{latency * 1000:.0f} ms", {name: 1 / wall for name, (wall, _) in found.items()})
    print(f"\nlatency {latency * 1000:.0f} ms, {concurrency} at a time, {rows:,} rows, best of {passes}")
    print(f"{'':20} {'rows/s':>8} {'CPU µs/row':>11} {'rate of the batch against it':>30}")
    for name, (wall, cpu) in found.items():
        against = "" if name.startswith("batch") else f"{wall / found['batch'][0]:.2f}"
        print(f"{name:20} {1 / wall:8,.0f} {cpu * 1e6:11.0f} {against:>30}")


def on_ray(rows: int, concurrency: int, passes: int) -> None:
    """Print the rows per second of a Ray node with one processor beside those of one process.

    Two lengths are run, and their difference is what counts: starting an actor takes seconds, however many rows follow.
    """
    import ray

    os.environ["BENCH_KEY"] = "x"  # the workers' environment is that of Ray's start
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder, provider(0.0) as url:
        settings = read_settings(f"providers: {{bench: {{kind: openai, base_url: '{url}', api_key_env: BENCH_KEY}}}}")
        paths = [Path(folder) / f"{count}.jsonl" for count in (rows, 3 * rows)]
        for path, count in zip(paths, (rows, 3 * rows), strict=True):
            write_rows(path, count)

        def seconds(path: Path, count: int, engine: Literal["local", "ray"]) -> float:
            wall, _ = timed(path, concurrency, model=f"bench/{MODEL}", settings=settings, engine=engine)
            return wall * count

        ratios = []
        for _ in range(passes):
            rates = {}
            for engine in get_args(Literal["local", "ray"]):
                short = seconds(paths[0], rows, engine)
                rates[engine] = 2 * rows / (seconds(paths[1], 3 * rows, engine) - short)
            ratios.append(rates["ray"] / rates["local"])
            print(f"local {rates['local']:,.0f} rows/s, one Ray node {rates['ray']:,.0f}: {ratios[-1]:.2f}", flush=True)
    record("ray", {"ratio": median(ratios)})
    print(f"median {median(ratios):.2f}")


def best_of(measures: Mapping[str, Callable[[], tuple[float, float]]], passes: int) -> dict[str, tuple[float, float]]:
    """The least seconds and the least CPU of each, taken in turns so that noise meets all of them."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in measures}
    for _ in range(passes):
        for name, measure in measures.items():
            taken[name].append(measure())
    return {name: (min(wall for wall, _ in each), min(cpu for _, cpu in each)) for name, each in taken.items()}


def parts(rows: int, concurrency: int, passes: int) -> None:
    """Print what a row costs without HTTP, and without asking at all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        write_rows(path, rows)
        router = Router({"stub": Stub(quiet=True)})
        job, _ = make_job(
            path, schema=SCHEMA, out=path.with_name("out.jsonl"), prompt=PROMPT, model="stub/m", router=router
        )

        def runner_alone() -> tuple[float, float]:
            with mock.patch("slipform.addons.batch.datasets.row_caller", return_value=Unasked(job.template)):
                return timed(path, concurrency, model="stub/m", router=router)

        found = best_of(
            {
                "batch without HTTP": lambda: timed(path, concurrency, model="stub/m", router=router),
                "the runner alone": runner_alone,
            },
            passes,
        )
    print(f"\n{'':20} {'rows/s':>8} {'CPU µs/row':>11}")
    for name, (wall, cpu) in found.items():
        print(f"{name:20} {1 / wall:8,.0f} {cpu * 1e6:11.0f}")


class Unasked:
    """Fills the prompt and makes the line of a row, and asks nobody."""

    def __init__(self, template: Template) -> None:
        self._template = template

    async def ask(self, task: Task) -> FinishedRow:
        """The canned answer."""
        self._template.fill(task.row)
        line = b'{"row":%d,"key":%s,"value":%s}' % (task.number, as_json(task.key), TEXT.encode())
        return FinishedRow(JournalEntry(task.number, task.key, True, line), Usage(input=90, output=20, total=110))

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:  # noqa: ARG002
        """Nothing fails here."""
        raise error


class Stub:
    """A provider in this process that answers at once, and tells the memory in use at round numbers."""

    name = "stub"

    def __init__(self, *, quiet: bool = False) -> None:
        self.asked = 0
        self._quiet = quiet

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002
        """A native channel."""
        return Capabilities(native=True, dialect="identity")

    def models(self) -> list[str]:
        """Any name goes."""
        return []

    def serves(self, model: str) -> bool:  # noqa: ARG002
        """Any name goes."""
        return True

    async def complete_async(self, request: ModelRequest) -> ModelResponse:  # noqa: ARG002
        """The same answer for all."""
        self.asked += 1
        if not self._quiet and self.asked in (1_000, 10_000, 100_000, 300_000, 1_000_000):
            print(f"{self.asked:9,} rows: {resident():6.1f} MB", flush=True)
        return ModelResponse(text=TEXT, usage=Usage(input=90, output=20, total=110))

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Not needed."""
        raise NotImplementedError(str(request))

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Not needed."""
        raise NotImplementedError(str(request))

    def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Not needed."""
        raise NotImplementedError(str(request))

    def batches_async(self, request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """Not needed."""
        raise NotImplementedError(str(request))

    def close(self) -> None:
        """Nothing is open."""


def resident() -> float:
    """Megabytes of memory in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(rows: int, concurrency: int) -> None:
    """Print the memory in use as a long batch goes on, and when it is looked at again afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        write_rows(path, rows)
        out = Path(folder) / "out.jsonl"
        began = time.process_time()
        for what in ("done", "read again from its journal"):
            router = Router({"stub": Stub()})
            summary = batch(
                path, schema=SCHEMA, out=out, prompt=PROMPT, model="stub/m", concurrency=concurrency, router=router
            )
            print(
                f"{summary.rows:9,} rows {what}: {resident():6.1f} MB, {time.process_time() - began:.0f} s CPU",
                flush=True,
            )
        with out.open("rb") as lines:
            assert [json.loads(line)["row"] for line in lines] == list(range(1, rows + 1))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--serve", type=float)
    options.add_argument("--rows", type=int, default=5_000)
    options.add_argument("--concurrency", type=int, default=32)
    options.add_argument("--passes", type=int, default=3)
    options.add_argument("--memory", type=int, default=100_000)
    options.add_argument("--ray", action="store_true")
    given = options.parse_args()
    if given.serve is not None:
        serve(given.serve)
        return
    if given.ray:
        on_ray(given.rows, given.concurrency, given.passes)
        return
    if given.rows:
        for latency in (0.0, 0.02, 0.1):
            speed(given.rows, given.concurrency, latency, given.passes)
        parts(given.rows, given.concurrency, given.passes)
    if given.memory:
        memory(given.memory, given.concurrency)


if __name__ == "__main__":
    main()
