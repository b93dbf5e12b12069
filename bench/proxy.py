"""Measure the proxy: CPU per request and per streamed event, added latency, throughput, memory, time to start.

One fast fake model and one load generator, both in C and on a core of their own; on another core, and alone there, in
turn: nothing, a relay that only copies bytes, a bare forwarder on slipform's own server and client, the same on
uvicorn, the same on uvicorn with pyreqwest, slipform, and the gateways that are found. `make bench` installs those
below `.venv`; elsewhere `$SLIPFORM_LITELLM` names the Python that has `litellm[proxy]`, `$SLIPFORM_PORTKEY` the folder
of `@portkey-ai/gateway`, `hono` 4.9.7 and `@hono/node-server` 1.13.5, and `$SLIPFORM_ROUTERS` the environment with
`vllm-router`, `sglang-router` and `tensorzero`. The routers know one address of the model and so get no paced streams;
TensorZero is called for a JSON function, which has the schema, where the others get it with the request. Run: `python
-m bench.proxy`, with `--seconds` for longer runs and `--only` for some of them. CPU time is the column that other load
on the machine disturbs least; the ratios are of CPU time within the run. `--beside FOLDER` takes another checkout
along, or an environment with slipform installed.

All of them are started first; then they take turns, so that a machine that is slower at times is slower for all, and
the best of so many rounds counts. The events are those that the model sends. Of an enforced stream the client gets
about a seventh fewer: what is not certain waits for what follows it, and so its first byte waits for the model's second
event, 5 ms later.

npm gives Portkey a newer `@hono/node-server` of its own, with which its streams fail: see `overrides` in the Makefile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench._gateways import litellm_command, node, portkey_script, router_program, tensorzero_python
from bench._proxy_answers import SCHEMA, events_sent, write
from bench.compare import interval, package_path
from bench.results import record

HERE = Path(__file__).parent.parent
CORES = sorted(os.sched_getaffinity(0))
PROXY, REST = {CORES[0]}, {CORES[-1]}
"""Where the proxies run, and where the model and the load do: what shares its core is measured with its neighbour."""
KEY = "bench-key-0000"
BEFORE = "slipform before"
_PEERS = ("SLIPFORM_LITELLM", "SLIPFORM_PORTKEY", "SLIPFORM_ROUTERS")
_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Left out, since installed packages have their byte code, whatever the shell says that runs this."""
FORMAT = {"type": "json_schema", "json_schema": {"name": "stock", "schema": SCHEMA, "strict": True}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Call ########. " + "What is in stock? " * 12},
]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request, and how it is sent."""

    name: str
    connections: int
    shaped: bool = False
    stream: bool = False
    paced: bool = False
    path: str = "/v1/chat/completions"
    tools: int = 0
    """How many tools are offered, as agents do with every turn; the model does not call them."""
    turns: int = 0
    """How many earlier turns the conversation has."""


CASES = (
    Case("pass-through, 1 at a time", 1),
    Case("pass-through, 64 at a time", 64),
    Case("embeddings, 1 at a time", 1, path="/v1/embeddings"),
    Case("embeddings, 64 at a time", 64, path="/v1/embeddings"),
    Case("enforced 1 KB, 1 at a time", 1, shaped=True),
    Case("enforced 1 KB, 64 at a time", 64, shaped=True),
    Case("enforced, 20 tools, 64 at a time", 64, shaped=True, tools=20),
    Case("stream, pass-through, burst, 32", 32, stream=True),
    Case("stream, pass-through, paced, 32", 32, stream=True, paced=True),
    Case("stream, enforced, burst, 32", 32, shaped=True, stream=True),
    Case("stream, enforced, paced, 32", 32, shaped=True, stream=True, paced=True),
)


@dataclass(slots=True)
class Target:
    """A proxy: how it is started and how it is called."""

    name: str
    command: list[str] | None
    port: int
    ready: str = "/healthz"
    env: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    paced_headers: dict[str, str] = field(default_factory=dict)
    prefix: bool = True
    paced_path: str = "/v1/chat/completions"
    port_file: Path | None = None
    """Where it writes its port, which it chooses itself."""
    models: dict[tuple[bool, bool], str] = field(default_factory=dict)
    """By whether a call has a schema and is paced: the name of its model, where those are the gateway's own."""
    chat_path: str = ""
    """Its path for chats, where it has another; it then serves nothing else, and its models have the schemas."""
    is_paced: bool = True
    """Whether it can be sent to the paced answers."""

    def takes(self, case: Case) -> bool:
        """Whether it serves such requests."""
        if case.paced and not self.is_paced:
            return False
        return not self.chat_path or (case.path.endswith("/chat/completions") and not case.tools)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def targets(upstream: int, folder: Path, beside: Path | None) -> Iterator[Target]:
    """All that can be measured here; those that are not installed have no command."""
    base = f"http://127.0.0.1:{upstream}"
    source = {"PYTHONPATH": os.pathsep.join([str(HERE / "src"), str(HERE)]), "BENCH_KEY": KEY}
    paced = "/paced/v1/chat/completions"
    yield Target("direct", [], upstream, prefix=False, paced_path=paced)
    relay = [str(build(folder, "_proxy_relay")), str(upstream)]
    yield Target("relay in C", relay, 0, prefix=False, paced_path=paced)
    bare = [sys.executable, "-m", "bench._proxy_bare", base]
    yield Target("bare forwarder", [*bare, "slipform", "slipform"], 0, env=source)
    yield Target("bare, on uvicorn", [*bare, "uvicorn", "slipform"], 0, env=source)
    yield Target("bare, with pyreqwest", [*bare, "uvicorn", "pyreqwest"], 0, env=source)
    config = folder / "slipform.yaml"
    config.write_text(json.dumps(_slipform(base)))
    serve = "from slipform.cli import main; main()"
    ours = [sys.executable, "-c", serve, "serve", "--config", str(config), "--port"]
    yield Target("slipform", ours, 0, env=source)
    if beside is not None:
        yield Target(BEFORE, ours, 0, env={**source, "PYTHONPATH": str(package_path(beside))})
    yield from _litellm(base, folder)
    yield _portkey(base)
    yield from _routers(base)
    yield _tensorzero(base, folder)


def _slipform(base: str) -> dict[str, Any]:
    row = {"kind": "openai", "api_key_env": "BENCH_KEY"}
    providers = {"up": {**row, "base_url": f"{base}/v1"}, "slow": {**row, "base_url": f"{base}/paced/v1"}}
    # As on any address but loopback: there the console records prompts and answers by default.
    return {"default_model": "up/gpt-6-luna", "providers": providers, "server": {"traces": "off"}}


def _litellm(base: str, folder: Path) -> Iterator[Target]:
    found = litellm_command()
    rows = [
        {
            "model_name": f"{name}/gpt-6-luna",
            "litellm_params": {"model": "openai/gpt-6-luna", "api_base": f"{base}{path}", "api_key": KEY},
        }
        for name, path in (("up", "/v1"), ("slow", "/paced/v1"))
    ]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "NO_DOCS": "True"}
    env["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # it is called without keys, as slipform is
    for name, settings in (("LiteLLM", {}), ("LiteLLM, validating", {"enable_json_schema_validation": True})):
        config = folder / f"{name}.yaml"
        config.write_text(json.dumps({"model_list": rows, "litellm_settings": settings}))
        command = (
            [str(found), "--config", str(config), "--host", "127.0.0.1", "--telemetry", "False", "--port"]
            if found
            else None
        )
        yield Target(name, command, 0, "/health/liveliness", env, {"authorization": "Bearer x"})


def _portkey(base: str) -> Target:
    script = portkey_script()
    headers = {"authorization": f"Bearer {KEY}", "x-portkey-provider": "openai"}
    return Target(
        "Portkey",
        [node(), str(script), "--headless", "--port="] if script else None,
        0,
        "/",
        {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"},
        {**headers, "x-portkey-custom-host": f"{base}/v1"},
        {**headers, "x-portkey-custom-host": f"{base}/paced/v1"},
        prefix=False,
    )


def _routers(base: str) -> Iterator[Target]:
    for name, first in (("vllm-router", []), ("sglang-router", ["launch"])):
        program = router_program(name)
        options = ["--host", "127.0.0.1", "--worker-urls", base, "--policy", "round_robin"]
        options += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--port"]
        command = [str(program), *first, *options] if program else None
        yield Target(name, command, 0, "/health", prefix=False, is_paced=False)


def _tensorzero(base: str, folder: Path) -> Target:
    python = tensorzero_python()
    (folder / "stock.json").write_text(json.dumps(SCHEMA))
    lines = ["[gateway]", "observability.enabled = false"]
    for name, path in (("up", "/v1"), ("slow", "/paced/v1")):
        lines += [f"[models.{name}]", f'routing = ["{name}"]', f"[models.{name}.providers.{name}]", 'type = "openai"']
        lines += [f'api_base = "{base}{path}"', 'model_name = "gpt-6-luna"', 'api_key_location = "env::BENCH_KEY"']
        lines += [f"[functions.stock_{name}]", 'type = "json"', 'output_schema = "stock.json"']
        lines += [f"[functions.stock_{name}.variants.{name}]", 'type = "chat_completion"']
        lines += [f'model = "{name}"', 'json_mode = "strict"']
    config = folder / "tensorzero.toml"
    config.write_text("\n".join(lines) + "\n")
    ports = folder / "tensorzero.port"
    models = {(False, False): "tensorzero::model_name::up", (False, True): "tensorzero::model_name::slow"}
    models |= {
        (True, False): "tensorzero::function_name::stock_up",
        (True, True): "tensorzero::function_name::stock_slow",
    }
    script = [str(HERE / "bench" / "_tensorzero.py"), str(config), str(ports)]
    command = [str(python), "-P", *script] if python else None  # bench/http.py is not to be its `http`
    return Target(
        "TensorZero", command, 0, env={"BENCH_KEY": KEY}, port_file=ports, models=models,
        chat_path="/openai/v1/chat/completions",
    )  # fmt: skip


@contextlib.contextmanager
def kept_to(cores: set[int]) -> Iterator[None]:
    """What is started here keeps to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(
    command: list[str], cores: set[int], env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps to these cores and is gone afterwards, its children with it."""
    with tempfile.TemporaryFile() as log:
        # What tells where the others are would be refused as settings of slipform's that there are not.
        here = {name: value for name, value in os.environ.items() if name not in (*_PEERS, _BYTECODE)}
        with kept_to(cores):
            process = subprocess.Popen(
                command, cwd=HERE, env={**here, **(env or {})}, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_ready(target: Target, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a proxy answers."""
    ports = target.port_file
    if ports is not None:
        end = time.monotonic() + 60.0
        while not ports.exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.01)
        if not ports.exists():
            return False
        target.port = int(ports.read_text())
        ports.unlink()
    return until_ready(target.port, target.ready, process)


def until_ready(port: int, path: str, process: subprocess.Popen[bytes], patience: float = 60.0) -> bool:
    end = time.monotonic() + patience
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.01)
    return False


def family(pid: int) -> list[int]:
    """The process and its children."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children, all threads."""
    total = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident(pid: int) -> float:
    """Resident memory in MB."""
    pages = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def question(target: Target, case: Case) -> bytes:
    """The request that the load is made of."""
    provider = "slow" if case.paced else "up"
    own_model = target.models.get((case.shaped, case.paced))
    body: dict[str, Any] = {"model": own_model or (f"{provider}/gpt-6-luna" if target.prefix else "gpt-6-luna")}
    is_chat = case.path.endswith("/chat/completions")
    messages = [*MESSAGES[:1], *_turns(case.turns), *MESSAGES[1:]]
    body |= {"messages": messages} if is_chat else {"input": [message["content"] for message in MESSAGES]}
    body |= {"response_format": FORMAT} if case.shaped and own_model is None else {}
    body |= {"tools": [_tool(at) for at in range(case.tools)]} if case.tools else {}
    body |= {"stream": True} if case.stream else {}
    raw = json.dumps(body).encode()
    path = target.chat_path or (target.paced_path if case.paced else case.path)
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    headers = target.paced_headers if case.paced and target.paced_headers else target.headers
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"content-length: {len(raw)}", "", ""]).encode() + raw


def _turns(count: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": f"Turn {at} of a long conversation."} for at in range(count)]


def _tool(number: int) -> dict[str, Any]:
    fields = {f"argument_{at}": {"type": "string", "description": "What it is for, in a few words."} for at in range(6)}
    parameters = {"type": "object", "properties": fields, "required": ["argument_0"]}
    described = {"name": f"tool_{number}", "description": "Does one thing of many.", "parameters": parameters}
    return {"type": "function", "function": described}


def load(tool: Path, target: Target, case: Case, seconds: float, most: int = 1_000_000) -> dict[str, Any]:
    """What so many connections saw in so many seconds."""
    if not target.takes(case):
        return {"count": 0, "error": "not served"}
    command = [tool, str(target.port), str(case.connections), str(seconds), str(most)]
    with kept_to(REST):
        run = subprocess.run(command, input=question(target, case), capture_output=True, check=False)
    if run.returncode:
        return {"count": 0, "error": run.stderr.decode().strip()[:200] or "no answer"}
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def measure(tool: Path, target: Target, case: Case, pid: int | None, seconds: float) -> dict[str, Any]:
    """One case, warmed up."""
    load(tool, target, case, 0.3, most=max(case.connections, 300))
    before = cpu_seconds(pid) if pid else 0.0
    seen = load(tool, target, case, seconds)
    spent = cpu_seconds(pid) - before if pid else 0.0
    if seen["count"]:
        seen["cpu"] = spent / seen["count"] * 1e6
        seen["cpu_event"] = seen["cpu"] / events_sent(case.shaped) if seen["events"] else None
        seen["rate"] = seen["count"] / seen["seconds"]
    return seen


def best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The round that took the least CPU time, or the least time where none was measured."""
    good = [seen for seen in rounds if seen["count"]]
    return min(good, key=lambda seen: (seen["cpu"], seen["p50"])) if good else rounds[-1]


def row(name: str, case: Case, seen: dict[str, Any], direct: dict[str, Any] | None) -> str:
    if not seen["count"]:
        return f"  {name:<22} failed: {seen.get('error')}"
    wrong = f"  {seen['wrong']} of {seen['count']} failed: {seen['last'][-100:]!r}" if seen["wrong"] else ""
    if case.stream and seen["cpu_event"] is None:
        return f"  {name:<22} no events{wrong}"
    if case.stream:
        rate = seen["events"] / seen["seconds"]
        told = f"{seen['cpu_event']:>9.1f} µs CPU/event {rate:>9,.0f} events/s  first byte {seen['first']:>7.2f} ms"
        return f"  {name:<22} {told}{wrong}"
    added = ""
    if case.connections == 1 and direct and direct.get("count"):
        added = f"  added p50 {seen['p50'] - direct['p50']:>6.2f} ms, p99 {seen['p99'] - direct['p99']:>6.2f} ms"
    told = f"{seen['cpu']:>9.1f} µs CPU/request {seen['rate']:>7,.0f} req/s  p50 {seen['p50']:>7.2f} ms"
    return f"  {name:<22} {told}{added}{wrong}"


def figures_of(case: Case, seen: dict[str, Any], direct: dict[str, Any]) -> dict[str, float]:
    """CPU microseconds of a request, or of an event in a stream; alone, also the milliseconds that were added."""
    figures = {"us": seen.get("cpu_event" if case.stream else "cpu") or 0.0} if seen["count"] else {}
    if figures and case.connections == 1 and direct.get("count"):
        figures["added_ms"] = seen["p50"] - direct["p50"]
    if figures and seen["wrong"]:
        figures["failed"] = seen["wrong"] / seen["count"]
    return figures


def ratios(case: Case, found: dict[str, Any], seen: dict[str, dict[str, Any]]) -> str:
    """The row's CPU time over that of the bare forwarders and of slipform, in the same run."""
    key = "cpu_event" if case.stream else "cpu"
    told = ""
    for name in ("bare forwarder", "bare, on uvicorn", "bare, with pyreqwest", "slipform"):
        beside = seen.get(name, {}).get(key)
        if beside and found.get(key):
            told += f"  {found[key] / beside:.2f} of {name}"
    return told


def paired(case: Case, names: list[str], rounds: list[list[dict[str, Any]]]) -> str:
    """The CPU time of slipform over another's, round by round: the median and its interval."""
    key = "cpu_event" if case.stream else "cpu"
    told = ""
    for other in (BEFORE, "bare, on uvicorn"):
        if other not in names or "slipform" not in names:
            continue
        at, beside = names.index("slipform"), names.index(other)
        both = [(each[at].get(key), each[beside].get(key)) for each in rounds]
        found = [ours / theirs for ours, theirs in both if ours and theirs]
        if len(found) > 2:
            middle, low, high = interval(found)
            told += f"  slipform / {other}: median {middle:.2f}, {low:.2f} to {high:.2f} in {len(found)} rounds\n"
    return told


def started(target: Target) -> list[str]:
    command = list(target.command or [])
    if target.port_file is not None:
        return command
    target.port = target.port or free_port()
    if command[-1:] == ["--port="]:
        command[-1] += str(target.port)
    else:
        command.append(str(target.port))
    return command


def main() -> None:
    """Measure, and print case by case."""
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("--seconds", type=float, default=1.0)
    reading.add_argument("--rounds", type=int, default=3)
    reading.add_argument("--only", default="")
    reading.add_argument("--cases", default="")
    reading.add_argument(
        "--beside", type=Path, help="another checkout, or an environment, to be measured in the same rounds"
    )
    given = reading.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that what was started ends with it
    only = [name.strip().lower() for name in given.only.split(",") if name.strip()]
    cases = [case for case in CASES if given.cases in case.name]
    upstream = free_port()
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        answers, tool = Path(folder), build(Path(folder), "_proxy_load")
        write(answers)
        model = [str(build(answers, "_proxy_upstream")), str(upstream), folder]
        until_ready(upstream, "/", ending.enter_context(running(model, REST)))
        found: list[tuple[Target, int | None]] = []
        for target in targets(upstream, Path(folder), given.beside):
            if target.name == BEFORE or not only or target.name.lower().partition(",")[0] in (*only, "direct"):
                found += [(target, pid) for pid in begun(target, ending, notes)]
        for case in cases:
            rounds = [
                [measure(tool, target, case, pid, given.seconds) for target, pid in found] for _ in range(given.rounds)
            ]
            seen = {target.name: best([each[at] for each in rounds]) for at, (target, _) in enumerate(found)}
            record(case.name, {name: figures_of(case, one, seen["direct"]) for name, one in seen.items()})
            print(f"\n{case.name}")
            for name, one in seen.items():
                if name != "direct" or not case.stream:
                    print(row(name, case, one, seen["direct"]) + ratios(case, one, seen), flush=True)
            print(paired(case, [target.name for target, _ in found], rounds), end="", flush=True)
        notes += [f"{target.name:<22} {resident(pid):.0f} MB after the load" for target, pid in found if pid]
    record("start and memory", notes)
    print("\nstart and memory")
    print("\n".join(f"  {note}" for note in notes))


def build(folder: Path, name: str) -> Path:
    """The program of that name, compiled into the folder."""
    made = folder / name
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", made, HERE / "bench" / f"{name}.c"], check=True)
    return made


def begun(target: Target, ending: contextlib.ExitStack, notes: list[str]) -> Iterator[int | None]:
    """Its process, ready; None where there is nothing to start, and nothing where it cannot be started."""
    if target.command is None:
        notes.append(f"{target.name:<22} not installed")
        return
    if not target.command:
        yield None
        return
    command = started(target)
    with running(command, PROXY, target.env) as process:  # the first start compiles, and reads from the disk
        is_ready(target, process)
    at = time.monotonic()
    process = ending.enter_context(running(command, PROXY, target.env))
    if not is_ready(target, process):
        notes.append(f"{target.name:<22} did not start")
        return
    notes.append(f"{target.name:<22} ready in {time.monotonic() - at:.2f} s, {resident(process.pid):.0f} MB idle")
    yield process.pid


if __name__ == "__main__":
    main()
