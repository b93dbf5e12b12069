"""The Python face: import time, the cost of a call, the cost of a stream, beside other libraries.

Run with `PYTHONPATH=src python -m bench.client`. CPU time of the client process; the server runs in another one and
answers at once. Per call: the 10th percentile of some hundred calls, best of a few passes. Libraries that are not
installed are left out with a note. Figures to beat: import 150 ms, 200 µs per call over bare HTTP, 0.15 s for 20 KB.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from slipform import Client
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, FakeModel, FakeVendor

MODEL = "gpt-5"
CALLS = int(os.environ.get("BENCH_CALLS", "300"))
PASSES = int(os.environ.get("BENCH_PASSES", "3"))


class Line(BaseModel):
    """Part of the answer."""

    description: str
    quantity: int
    price: float


class Party(BaseModel):
    """Part of the answer."""

    name: str
    street: str
    city: str


class Invoice(BaseModel):
    """Part of the answer."""

    number: str
    seller: Party
    buyer: Party
    lines: list[Line]
    notes: str


def invoice(lines: int) -> str:
    """An answer with so many lines."""
    party = {"name": "Acme Ltd", "street": "1 Mill Road", "city": "Bath"}
    rows = [{"description": f"Part {n}, zinc plated", "quantity": n, "price": n * 1.25} for n in range(1, lines + 1)]
    whole = {"number": "A-1", "seller": party, "buyer": party, "lines": rows, "notes": "Pay within 30 days."}
    return json.dumps(whole)


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


def import_ms(statement: str) -> float:
    """The best of five cold starts, with bytecode as an installed package has it."""
    script = f"import time\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def once() -> float:
            command = [sys.executable, "-c", script]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            return float(done.stdout) * 1000

        once()  # compiles
        return min(once() for _ in range(5))


def per_call(call: Callable[[], object]) -> float:
    """µs of CPU: the 10th percentile, the best of a few passes."""
    best = float("inf")
    for _ in range(PASSES):
        spent: list[float] = []
        for _ in range(CALLS):
            start = time.process_time()
            call()
            spent.append(time.process_time() - start)
        best = min(best, sorted(spent)[len(spent) // 10])
    return best * 1e6


# Each maker gives a call, or raises ImportError.


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
    return lambda: client.ask(Invoice, "Read this invoice.")


def own_http(url: str) -> Callable[[], object]:
    """The same call without enforcement."""
    client = own_client(url)
    return lambda: client.text("Read this invoice.")


def openai_parse(url: str) -> Callable[[], object]:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="any")
    messages: Any = [{"role": "user", "content": "Read this invoice."}]
    return lambda: client.chat.completions.parse(model=MODEL, messages=messages, response_format=Invoice)


def instructor_tools(url: str) -> Callable[[], object]:
    import instructor
    from openai import OpenAI

    client: Any = instructor.from_openai(OpenAI(base_url=url, api_key="any"), mode=instructor.Mode.JSON_SCHEMA)
    messages = [{"role": "user", "content": "Read this invoice."}]
    return lambda: client.chat.completions.create(model=MODEL, messages=messages, response_model=Invoice)


def pydantic_ai(url: str) -> Callable[[], object]:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key="any"))
    agent: Any = Agent(model, output_type=NativeOutput(Invoice))
    loop = asyncio.new_event_loop()
    return lambda: loop.run_until_complete(agent.run("Read this invoice.")).output


def langchain(url: str) -> Callable[[], object]:
    from langchain_openai import ChatOpenAI

    model: Any = ChatOpenAI(model=MODEL, base_url=url, api_key="any")
    chain = model.with_structured_output(Invoice, method="json_schema")
    return lambda: chain.invoke("Read this invoice.")


CALLERS: dict[str, tuple[str, Callable[[str], Callable[[], object]]]] = {
    "slipform ask": ("import slipform", own),
    "slipform text only": ("from slipform import Client", own_http),
    "openai .parse": ("from openai import OpenAI", openai_parse),
    "instructor JSON_SCHEMA": (
        "import instructor; from openai import OpenAI; instructor.from_openai",
        instructor_tools,
    ),
    "langchain json_schema": ("from langchain_openai import ChatOpenAI", langchain),
    "pydantic-ai native": ("from pydantic_ai.models.openai import OpenAIChatModel", pydantic_ai),
}


def calls(url: str) -> None:
    """Import time and CPU per call."""
    floor = per_call(bare(url))
    print(f"{'':24} {'import ms':>9} {'µs CPU per call':>16} {'over bare HTTP':>15}")
    print(f"{'bare http.client POST':24} {'':>9} {floor:16.0f}")
    for name, (statement, make) in CALLERS.items():
        try:
            call = make(url)
        except ImportError as error:
            print(f"{name:24} not installed ({error.name})")
            continue
        call()
        spent = per_call(call)
        print(f"{name:24} {import_ms(statement):9.0f} {spent:16.0f} {spent - floor:+15.0f}")


def own_stream(url: str) -> Iterator[Any]:
    with own_client(url).stream(Invoice, "Read this invoice.") as stream:
        yield from stream
        assert stream.result.value.notes


def openai_stream(url: str) -> Iterator[Any]:
    from openai import OpenAI

    messages: Any = [{"role": "user", "content": "x"}]
    client = OpenAI(base_url=url, api_key="any")
    with client.chat.completions.stream(model=MODEL, messages=messages, response_format=Invoice) as stream:
        for event in stream:
            if event.type == "content.delta":
                yield event.parsed


def instructor_stream(url: str) -> Iterator[Any]:
    import instructor
    from openai import AsyncOpenAI

    client: Any = instructor.from_openai(AsyncOpenAI(base_url=url, api_key="any"), mode=instructor.Mode.JSON_SCHEMA)

    async def partials() -> AsyncIterator[Any]:
        messages = [{"role": "user", "content": "x"}]
        async for partial in client.chat.completions.create_partial(
            model=MODEL, messages=messages, response_model=Invoice
        ):
            yield partial

    loop = asyncio.new_event_loop()
    source = partials()
    while True:
        try:
            yield loop.run_until_complete(anext(source))
        except StopAsyncIteration:
            return


STREAMERS: dict[str, Callable[[str], Iterator[Any]]] = {
    "slipform stream": own_stream,
    "openai .stream": openai_stream,
    "instructor async partial": instructor_stream,
}


def first_line(partial: Any) -> Any:
    """The first line of an invoice, once it is finished."""
    lines = partial.get("lines") if isinstance(partial, dict) else getattr(partial, "lines", None)
    return lines[0] if lines and len(lines) > 1 else None


def streams(url: str) -> None:
    """CPU for 20 KB in pieces of four characters, and how often a finished item stays the same object."""
    print(f"\n{len(LONG):,} bytes in 4-character pieces, every partial looked at")
    print(f"{'':24} {'CPU s':>7} {'partials':>9} {'same object':>12}")
    for name, run in STREAMERS.items():
        try:
            best, count, same, pairs = float("inf"), 0, 0, 0
            for _ in range(PASSES):
                count = same = pairs = 0
                before: Any = None
                start = time.process_time()
                for partial in run(url):
                    count += 1
                    line = first_line(partial)
                    if before is not None and line is not None:
                        pairs += 1
                        same += line is before
                    before = line
                best = min(best, time.process_time() - start)
        except ImportError as error:
            print(f"{name:24} not installed ({error.name})")
            continue
        print(f"{name:24} {best:7.3f} {count:9,} {same / max(pairs, 1):12.0%}")


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
            calls(url)
            streams(url)
        growth()
