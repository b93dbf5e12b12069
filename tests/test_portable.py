"""What works without POSIX: every module imports, and the library answers, where Windows' Python would have to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT_POSIX = """
import asyncio, http.server, multiprocessing, pathlib, pydoc, shutil, ssl, subprocess, tempfile
import aiohappyeyeballs, msgspec, orjson, prometheus_client, pydantic, rich.console, rich.live, rich.progress, typer
import brotli, httptools, jsonschema_rs, llguidance, redis.asyncio, xllamacpp, yaml, pyarrow
import os, signal, socket, sys
sys.platform = "win32"
for name in ("fcntl", "resource", "pwd", "grp", "termios", "uvloop", "syslog"):
    sys.modules[name] = None
for holder, names in (
    (os, ("fork", "geteuid", "getuid", "setpgid")),
    (signal, ("SIGHUP", "SIGKILL")),
    (socket, ("AF_UNIX",)),
):
    for name in names:
        if hasattr(holder, name):
            delattr(holder, name)
"""

IMPORTS = """
import importlib, pkgutil, slipform
skipped = ("slipform.__main__", "slipform.runner.ray", "slipform.providers.transformers", "slipform.proxy.workers")
for module in pkgutil.walk_packages(slipform.__path__, "slipform."):
    if module.name not in skipped:
        importlib.import_module(module.name)
"""

ANSWERS = """
from slipform import Client
from slipform.providers.router import Router
from slipform.testing import FakeModel
client = Client("fake/m", router=Router({"fake": FakeModel(["{'age': '36'}"])}))
print(client.ask({"type": "object", "properties": {"age": {"type": "integer"}}}, "How old?"))
"""


def ran(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + code], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_every_module_imports_without_posix() -> None:
    assert ran(IMPORTS) == ""


def test_the_library_answers_without_posix() -> None:
    assert ran(ANSWERS) == "{'age': 36}"


def test_the_release_checks_know_the_version_and_the_changelog() -> None:
    root = Path(__file__).resolve().parent.parent
    wrong = subprocess.run(
        [sys.executable, str(root / ".ci/version.py"), "--tag", "v999"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert "The tag is v999" in wrong.stderr
