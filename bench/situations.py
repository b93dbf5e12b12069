"""Compare what slipform and other gateways let through from the same scripted bad upstream.

Run with `python -m bench.situations`. Twenty kinds of fault on five shapes, whole and streamed: 200 requests to each
gateway, over HTTP, in OpenAI's API with `response_format: json_schema`. `valid` counts answers that are valid against
the schema and equal to what the model meant; `wrong 200` counts answers given as a success that are not valid, or are
something else than the model meant; `error` counts what came back as an error, or marked as refused or cut off, which
for the two hopeless kinds of fault is the only right answer. LiteLLM runs with `enable_json_schema_validation`.

LiteLLM's interpreter is `$SLIPFORM_LITELLM` and Portkey's folder `$SLIPFORM_PORTKEY` (`make bench` installs both below
`.venv`), StructFormatter's start script `$SLIPFORM_STRUCTFORMATTER` (its npm name is not in the registry: build it from
its repository). What is not there is left out and said so.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs

from bench._gateways import litellm_command, node, portkey_script
from bench.results import record
from bench.situations_data import FAULTS, HOPELESS, Situation, situations
from slipform.testing import FakeVendor, Received, Step, rejected

_KEY = f"sk-{secrets.token_hex(32)}"
"""LiteLLM does not start without a key of its own."""
_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("SLIPFORM_")},
    "UP_KEY": "k",
    "OPENAI_API_KEY": "k",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MASTER_KEY": _KEY,
}


class Script:
    """Answers each call by the situation that its words name, and counts the calls."""

    def __init__(self, all_of_them: list[Situation]) -> None:
        self._steps = [each.steps() for each in all_of_them]
        self.calls: Counter[int] = Counter()

    def __call__(self, received: Received) -> Step:
        """The next step of the situation that is named."""
        named = re.search(rb"situation (\d+)\.", received.body)
        if named is None:  # a gateway's own look at its upstream
            return rejected("There is no such page", 404)
        number = int(named[1])
        steps = self._steps[number]
        step = steps[min(self.calls[number], len(steps) - 1)]
        self.calls[number] += 1
        return step


def ask(port: int, situation: Situation, headers: dict[str, str]) -> tuple[str, str]:
    """One request: "valid", "wrong 200" or "error", and what came."""
    asked = {
        "model": "m",
        "messages": [{"role": "user", "content": f"Answer situation {situation.number}."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": situation.shape, "schema": situation.schema, "strict": True},
        },
        "stream": situation.stream,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
        response = connection.getresponse()
        raw = response.read()
    except (OSError, http.client.HTTPException) as error:
        return "error", repr(error)
    finally:
        connection.close()
    if response.status != 200:
        return "error", f"{response.status} {raw[:200]!r}"
    text = _streamed(raw) if situation.stream else _whole(raw)
    if text is None:
        return "error", repr(raw[-200:])
    return _verdict(situation, text), text


def _whole(raw: bytes) -> str | None:
    choice = json.loads(raw)["choices"][0]
    message = choice["message"]
    if choice.get("finish_reason") == "length":  # marked as cut off, which OpenAI's SDK raises for
        return None
    refused = message.get("refusal") or (message.get("provider_specific_fields") or {}).get("refusal")
    return None if refused else message["content"] or ""


def _streamed(raw: bytes) -> str | None:
    """Return the text of a stream; None for an error, a refusal, an answer marked as cut off, or a missing end."""
    text = ""
    finished = False
    for line in raw.decode().splitlines():
        if line.startswith("event: error"):
            return None
        if not line.startswith("data:") or line[5:].strip() == "[DONE]":
            continue
        event = json.loads(line[5:])
        if event.get("error"):
            return None
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            if delta.get("refusal") or (delta.get("provider_specific_fields") or {}).get("refusal"):
                return None
            if choice.get("finish_reason") == "length":
                return None
            text += delta.get("content") or ""
            finished = finished or choice.get("finish_reason") is not None
    return text if finished else None


def _verdict(situation: Situation, text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return "wrong 200"
    fits = jsonschema_rs.is_valid(situation.schema, value)
    return "valid" if fits and value == situation.right else "wrong 200"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, folder: str) -> Iterator[None]:
    """A gateway as a process, from the moment it listens."""
    log = Path(folder, "log").open("wb")  # noqa: SIM115
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=_ENVIRONMENT)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise RuntimeError(Path(folder, "log").read_text()[-2000:])
            time.sleep(0.1)
        time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait()
        log.close()


def slipform(upstream: str, port: int, folder: str) -> list[str] | None:
    """The command that starts slipform in front of the upstream."""
    settings = f"""
default_model: m
model_aliases: {{m: up/m}}
providers: {{up: {{kind: openai-compatible, base_url: "{upstream}", api_key_env: UP_KEY}}}}
server: {{port: {port}, log: "off"}}
"""
    Path(folder, "slipform.yaml").write_text(settings)
    return [str(Path(sys.executable).with_name("slipform")), "serve"]


def litellm(upstream: str, port: int, folder: str) -> list[str] | None:
    """The command that starts LiteLLM's proxy with its validation on."""
    command = litellm_command()
    if command is None:
        return None
    settings = f"""
model_list:
  - model_name: m
    litellm_params: {{model: openai/m, api_base: "{upstream}", api_key: k}}
litellm_settings: {{enable_json_schema_validation: true, telemetry: false}}
"""
    Path(folder, "config.yaml").write_text(settings)
    return [str(command), "--config", "config.yaml", "--port", str(port), "--host", "127.0.0.1"]


def structformatter(upstream: str, port: int, folder: str) -> list[str] | None:
    """The command that starts StructFormatter."""
    program = os.environ.get("SLIPFORM_STRUCTFORMATTER")
    if not program:
        return None
    settings = f"""
server: {{host: 127.0.0.1, port: {port}}}
providers: {{up: {{type: openai_compatible, base_url: "{upstream}", api_key_env: UP_KEY}}}}
routing: {{model_aliases: {{m: up/m}}}}
"""
    Path(folder, "config.yaml").write_text(settings)
    return [node(), program, "--config", "config.yaml"]


def portkey(upstream: str, port: int, folder: str) -> list[str] | None:
    """The command that starts Portkey's gateway; its upstream is chosen by headers."""
    del upstream, folder
    script = portkey_script()
    return [node(), str(script), f"--port={port}", "--headless"] if script else None


GATEWAYS = {
    "slipform": slipform,
    "LiteLLM, validation on": litellm,
    "Portkey": portkey,
    "StructFormatter": structformatter,
}


def trial(name: str, all_of_them: list[Situation]) -> dict[int, tuple[str, str]] | None:
    """Every situation through one gateway; None where it is not installed."""
    script = Script(all_of_them)
    with FakeVendor(script) as vendor, tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        command = GATEWAYS[name](vendor.base_url, port, folder)
        if command is None:
            return None
        headers = {"content-type": "application/json", "authorization": f"Bearer {_KEY}"}
        if name == "Portkey":
            headers |= {"x-portkey-provider": "openai", "x-portkey-custom-host": vendor.base_url}
        with running(command, port, folder):
            return {each.number: ask(port, each, headers) for each in all_of_them}


def show(results: dict[str, dict[int, tuple[str, str]]], all_of_them: list[Situation]) -> None:
    """A row for each fault, a column for each gateway."""
    print(f"{'of 10 each (5 shapes, whole and streamed)':44}" + "".join(f"{name:>26}" for name in results))
    for fault in FAULTS:
        numbers = [each.number for each in all_of_them if each.fault == fault]
        cells = ""
        for result in results.values():
            count = Counter(result[number][0] for number in numbers)
            cells += f"{count['valid']:>10} ok {count['error']:>2} err {count['wrong 200']:>2} bad"
        print(f"{fault:44}{cells}")
    for name, result in results.items():
        count = Counter(verdict for verdict, _ in result.values())
        can = [each.number for each in all_of_them if each.fault not in HOPELESS]
        mended = sum(result[number][0] == "valid" for number in can)
        total = len(result)
        record(name, {"recovered": mended, "of": len(can), "wrong": count["wrong 200"], "errors": count["error"]})
        print(
            f"{name:26} valid {mended} of the {len(can)} that can be mended ({mended / len(can):.0%}); "
            f"wrong but 200: {count['wrong 200']} of {total} ({count['wrong 200'] / total:.0%}); "
            f"errors {count['error']}"
        )


def main() -> None:
    """Run every gateway that is here, or those that are named, through all of it."""
    all_of_them = situations()
    results: dict[str, dict[int, tuple[str, str]]] = {}
    for name in [name for name in GATEWAYS if name in sys.argv] or GATEWAYS:
        result: Any = trial(name, all_of_them)
        if result is None:
            print(f"{name}: not installed here")
        else:
            results[name] = result
    show(results, all_of_them)
    if "-v" in sys.argv:
        for each in all_of_them:
            verdict, said = results["slipform"][each.number]
            if (verdict == "valid") == (each.fault in HOPELESS) or verdict == "wrong 200":
                print(each, verdict, said[:200])


if __name__ == "__main__":
    main()
