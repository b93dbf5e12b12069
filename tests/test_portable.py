"""What works without POSIX: every module imports, and the library answers, where Windows' Python would have to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT_POSIX = """
import asyncio, http.server, multiprocessing, pathlib, pydoc, shutil, ssl, subprocess, tempfile
import aiohappyeyeballs, msgspec, orjson, prometheus_client, pydantic, rich.console, rich.live, rich.progress, typer
import brotli, httptools, jsonschema_rs, llguidance, redis.asyncio, xllamacpp, yaml, pyarrow
import functools, os, signal, socket, sys
socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)  # as event loops need
sys.platform = "win32"
for name in ("fcntl", "resource", "pwd", "grp", "termios", "uvloop", "syslog"):
    sys.modules[name] = None
for holder, names in (
    (os, ("chown", "fchown", "fork", "getegid", "geteuid", "getuid", "setpgid")),
    (signal, ("SIGHUP", "SIGKILL")),
    (socket, ("AF_UNIX",)),
):
    for name in names:
        if hasattr(holder, name):
            delattr(holder, name)
"""

IMPORTS = """
import importlib, pkgutil, slipform
skipped = ("slipform.__main__", "slipform.addons.batch.ray", "slipform.addons.transformers",
           "slipform.addons.server.workers")
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

SERVES = """
import tempfile, http.client
from slipform.config import Settings
from slipform.errors import ConfigError
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.addons.server import App
from slipform.addons.server.http_server.server import HttpServer
from slipform.addons.server.serve import serve
from slipform.testing import FakeModel

os.chdir(tempfile.mkdtemp())
app = App(AsyncClient(router=Router({"fake": FakeModel(["hi"])})), Settings())

async def answered():
    server, listening = HttpServer(app), socket.create_server(("127.0.0.1", 0))
    await server.start([listening])
    client = http.client.HTTPConnection(*listening.getsockname())
    await asyncio.to_thread(client.request, "GET", "/healthz")
    print((await asyncio.to_thread(client.getresponse)).status)
    client.close()
    await server.stop(1)

asyncio.run(answered())
try:
    serve(port=0, workers=2)
except ConfigError as error:
    print(error)
"""

KEEPS = """
import tempfile
from slipform.providers.router import Router
from slipform.addons.server.admission.key_file import read_keys
from slipform.addons.server.admission.keys import add_key, remove_key
from slipform.runner import batch
from slipform.testing import FakeModel

os.chdir(tempfile.mkdtemp())
keys = pathlib.Path("keys.json")
add_key(keys, "ada")
add_key(keys, "bob")
remove_key(keys, "bob")
print([key.name for key in read_keys(keys).values()])
pathlib.Path("in.jsonl").write_text('{"a": 1}\\n{"a": 2}\\n')
router = Router({"fake": FakeModel(["7", "8"])})
done = batch("in.jsonl", schema={"type": "integer"}, out="out.jsonl", model="fake/m", router=router)
print(done.done, done.failed)
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


def test_one_process_serves_without_posix_and_several_are_refused_by_name() -> None:
    status, refused = ran(SERVES).splitlines()
    assert status == "200"
    assert refused.startswith("Several workers need an operating system with fork")


def test_keys_and_batches_are_kept_without_posix_locks() -> None:
    assert ran(KEEPS) == "['ada']\n2 0"


def test_the_release_checks_know_the_version_and_the_changelog() -> None:
    root = Path(__file__).resolve().parent.parent
    wrong = subprocess.run(
        [sys.executable, str(root / ".ci/version.py"), "--tag", "v999"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert "The tag is v999" in wrong.stderr
