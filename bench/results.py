"""Keep the figures of a benchmark run as JSON: each part records its own, `python -m bench` collects them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FILE = "BENCH_FIGURES"
"""The variable that names the file to which parts append their figures; `SLIPFORM_…` would be taken for a setting."""

_OURS = ("orjson", "jsonschema-rs", "openai", "json-repair", "fast-json-repair", "jiter", "jsonriver", "jsonschema")
_PEERS = ("instructor", "pydantic-ai-slim", "langchain-openai", "baml-py", "openai", "json-repair")


def record(name: str, figures: object) -> None:
    """Append figures under a name; nothing happens where a part is run by itself."""
    path = os.environ.get(FILE)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "figures": figures}, ensure_ascii=False) + "\n")


def recorded(path: Path) -> dict[str, Any]:
    """Return all figures of a file, by name; the last ones count."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {entry["name"]: entry["figures"] for entry in map(json.loads, lines)}


def circumstances(*, quick: bool) -> dict[str, Any]:
    """Return when, where and with which versions a run was made."""
    from slipform import __version__
    from slipform.text import parser

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "quick": quick,
        "slipform": __version__,
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        "compiled": not str(parser.__file__).endswith(".py"),
        "python": platform.python_version(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "load": None if load is None else round(load, 1),
        "versions": _versions(),
    }


def _processor() -> str:
    """Return the processor's name, where the system says it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _versions() -> dict[str, str]:
    """Return the versions of the libraries compared with, in the environments that `make bench` installs."""
    found: dict[str, str] = {}
    for name in _OURS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    script = "import sys\nfrom importlib.metadata import version\nfor name in sys.argv[1:]: print(name, version(name))"
    for folder, names in (("peers", _PEERS), ("litellm", ("litellm",))):
        python = Path(sys.prefix, folder, "bin", "python")
        for line in _output(str(python), "-c", script, *names).splitlines():
            name, _, number = line.partition(" ")
            found.setdefault(name, number)
            if found[name] != number:
                found[f"{name} (beside the peers)"] = number
    portkey = Path(sys.prefix, "portkey", "node_modules", "@portkey-ai", "gateway", "package.json")
    if portkey.exists():
        found["Portkey"] = json.loads(portkey.read_text())["version"]
    return found


def _output(*command: str) -> str:
    """Return what a program prints; nothing where it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
