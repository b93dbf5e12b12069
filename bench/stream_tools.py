"""Measure what an event of a stream costs the proxy with tools, or a rewritten schema, beside an enforced stream.

A proxy in a process of its own answers streams of 100 events, all from the fake vendor in this process, which sends
one event at a time. The rounds take turns, and the CPU time of the proxy is divided by the events: its ratio to the
enforced stream without tools is of one run. In the case "schema rewritten" the vendor sends the same bytes, but the
schema has an optional key, so that the answer is lifted from OpenAI's dialect while it grows.
Run: `python -m bench.stream_tools`, with `--rounds` for more.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench._proxy_answers import SCHEMA, VALUE
from bench.proxy import FORMAT, HERE, KEY, free_port
from bench.results import record

EVENTS = 100
STREAMS = 16
"""At a time, so that the proxy is busy while each stream waits."""
PAUSE = 0.002
REWRITTEN = "schema rewritten, no tools"
CASES = ("schema, no tools", "tools offered, text", "tools offered, arguments", REWRITTEN)
LIMITS = {**dict.fromkeys(CASES, 1.3), REWRITTEN: 1.2}
"""By case, how many times the first case an event may cost."""
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_TOOLS = [{"type": "function", "function": {"name": "stock", "parameters": SCHEMA}}]


def rewritten_format() -> dict[str, Any]:
    """The format of the enforced stream with one key optional, which OpenAI's strict mode has no word for."""
    shape: dict[str, Any] = copy.deepcopy(FORMAT)
    shape["json_schema"]["schema"]["properties"]["rows"]["items"]["required"].remove("sold")
    return shape


def request(case: str) -> bytes:
    """The body of a case's request; its first word tells the vendor what to answer."""
    body: dict[str, Any] = {"model": "up/gpt-6-luna", "stream": True, "messages": [{"role": "user", "content": case}]}
    if case == CASES[0]:
        body["response_format"] = FORMAT
    elif case == REWRITTEN:
        body["response_format"] = rewritten_format()
    else:
        body["tools"] = _TOOLS
    return json.dumps(body).encode()


def events(case: str) -> Iterator[bytes]:
    """The events of the answer, as chunks."""
    step = -(-len(VALUE) // (EVENTS - 1))
    begun = case != CASES[2]
    for at in range(0, len(VALUE), step):
        piece = VALUE[at : at + step]
        delta: dict[str, Any] = {"content": piece}
        if case == CASES[2]:
            call: dict[str, Any] = {"index": 0, "function": {"arguments": piece}}
            if not begun:
                call = {
                    "index": 0,
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "stock", "arguments": piece},
                }
                begun = True
            delta = {"tool_calls": [call]}
        yield _event(delta)
    yield _event({}, "tool_calls" if case == CASES[2] else "stop")


def _event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": [choice]}
    data = f"data: {json.dumps(event)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


async def vendor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            case = json.loads(await reader.readexactly(length))["messages"][-1]["content"]
            writer.write(_HEAD)
            for event in events(case):
                writer.write(event)
                await asyncio.sleep(PAUSE)
            done = b"data: [DONE]\n\n"
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def stream(port: int, case: str) -> int:
    """One stream through the proxy; how many bytes came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = request(case)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    if b" 200 " not in answer[:20] or b"[DONE]" not in answer:
        raise SystemExit(f"{case}: {answer[:300]!r}")
    return len(answer)


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has had."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def measured(rounds: int, port: int, pid: int) -> dict[str, list[float]]:
    """Microseconds of CPU per event, by case and round; the first round warms up and is not counted."""
    costs: dict[str, list[float]] = {case: [] for case in CASES}
    for number in range(rounds + 1):
        for case in CASES:
            before = cpu_seconds(pid)
            await asyncio.gather(*[stream(port, case) for _ in range(STREAMS)])
            if number:
                costs[case].append((cpu_seconds(pid) - before) * 1e6 / (STREAMS * EVENTS))
    return costs


async def run(rounds: int) -> int:
    server = await asyncio.start_server(vendor, "127.0.0.1", 0, limit=1 << 20)
    upstream, port = server.sockets[0].getsockname()[1], free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "slipform.yaml"
        row = {"kind": "openai", "api_key_env": "BENCH_KEY", "base_url": f"http://127.0.0.1:{upstream}/v1"}
        config.write_text(
            json.dumps({"default_model": "up/gpt-6-luna", "providers": {"up": row}, "server": {"traces": "off"}})
        )
        command = [sys.executable, "-c", "from slipform.cli import main; main()", "serve"]
        env = {**os.environ, "BENCH_KEY": KEY, "PYTHONPATH": os.environ.get("PYTHONPATH") or str(HERE / "src")}
        proxy = subprocess.Popen(  # noqa: ASYNC220 — nothing else runs yet
            [*command, "--config", str(config), "--port", str(port)],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await _wait(port)
            costs = await measured(rounds, port, proxy.pid)
        finally:
            proxy.terminate()
            proxy.wait()
            server.close()
    return report(costs)


async def _wait(port: int) -> None:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise SystemExit("The proxy did not start")


def report(costs: dict[str, list[float]]) -> int:
    """Print the figures; 1 where one is above its limit."""
    base = costs[CASES[0]]
    missed = 0
    print(f"{'case':28} {'µs per event':>12} {'ratio':>7} {'limit':>7}")
    for case, found in costs.items():
        ratio = statistics.median([each / other for each, other in zip(found, base, strict=True)])
        is_missed = ratio > LIMITS[case]
        missed += is_missed
        record(case, {"us": statistics.median(found), "ratio": ratio})
        print(f"{case:28} {statistics.median(found):12.1f} {ratio:7.2f} {LIMITS[case]:7.1f}{' missed' * is_missed}")
    return 1 if missed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    raise SystemExit(asyncio.run(run(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
