"""`slipform keys` and the servers that run: who can read the file after a change, and who has taken it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from slipform.addons.server.admission.key_file import KeyFile, read_keys
from slipform.addons.server.admission.keys import KeyReaders, add_key, disable_key, remove_key
from slipform.addons.server.commands.serve import app
from slipform.errors import ConfigError
from slipform.testing import FakeModel
from tests import waiting
from tests.proxy.proxying import ADA, call, chat, keys_path, proxied

SOURCE = Path(__file__).resolve().parents[2] / "src"
NOBODY = 65534
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files to other users"
)
needs_locks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and file locks")
pytestmark = needs_locks

SERVE = f"""
import encodings.idna, importlib, os, pkgutil, sys
import httptools, prometheus_client, uvloop, slipform.addons.server, slipform.providers
for package in (slipform.addons.server, slipform.providers):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(found.name)
        except ImportError:
            pass  # of an extra that is not installed
from pathlib import Path
from slipform.addons.server.deployment import load
from slipform.addons.server.serve import serve
if os.geteuid() == 0 and sys.argv[3] == "nobody":  # only now: the interpreter may be where nobody can read
    load(Path(sys.argv[1]))
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
serve(Path(sys.argv[1]), workers=int(sys.argv[2]))
"""


class Server:
    """A running `slipform serve`, as this user or as nobody."""

    def __init__(self, config: Path, workers: int = 1, user: str = "") -> None:
        command = [sys.executable, "-c", SERVE, str(config), str(workers), user]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=config.parent)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = ""
        if not until(self._is_ready):
            self.stop()
            pytest.fail("".join(self.lines))

    def _is_ready(self) -> bool:
        found = re.search(r"http://([\d.]+:\d+)", "".join(self.lines))
        self.address = f"http://{found[1]}" if found is not None else ""
        if self._process.poll() is not None:
            pytest.fail("".join(self.lines))
        return bool(self.address) and call(self.address, "/readyz").status == 200

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            self.lines.extend(stream)

    def lets_in(self, secret: str) -> bool:
        """Whether a key gets in, of whichever worker."""
        return call(self.address, "/v1/models", headers={"x-api-key": secret}).status == 200

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._reader.join(30)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can come to, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def started() -> Iterator[Callable[..., Server]]:
    """Starts servers whose keys are in `folder/keys/keys.json`, and stops them."""
    running: list[Server] = []

    def start(folder: Path, workers: int = 1, user: str = "") -> Server:
        running.append(Server(config_for(folder), workers, user))
        return running[-1]

    yield start
    for each in running:
        each.stop()


def config_for(folder: Path) -> Path:
    config = folder / "slipform.yaml"
    provider = "{kind: openai, base_url: 'http://127.0.0.1:9/v1', models: [m]}"
    server = f"{{keys_file: '{folder}/keys/keys.json', port: 0, log: json}}"
    config.write_text(f"default_model: up/m\nproviders: {{up: {provider}}}\nserver: {server}\n")
    return config


def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes to hold, of servers that may not listen yet."""
    return waiting.until(condition, 60, ignoring=(OSError,))


def run(config: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--config", str(config)])


def as_nobody(act: Callable[[], object]) -> str:
    """What an action raises for a user without rights; empty when it does not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
        except BaseException as error:  # noqa: BLE001 — told to the test
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


@as_root
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_every_change_keeps_the_files_owner_group_and_mode(tmp_path: Path, mode: int) -> None:
    path = keys_path(tmp_path)
    add_key(path, "ada")
    os.chown(path, NOBODY, 12345)
    path.chmod(mode)
    for change in (
        lambda: add_key(path, "bob"),
        lambda: disable_key(path, "ada"),
        lambda: disable_key(path, "ada", disabled=False),
        lambda: remove_key(path, "ada"),
    ):
        change()
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, 12345, mode)


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    add_key(real, "ada")
    link.symlink_to(real)
    remove_key(link, "ada")
    assert link.is_symlink()
    assert read_keys(real) == {}


@as_root
def test_who_may_not_keep_the_owner_is_refused_and_nothing_is_changed(open_folder: Path) -> None:
    path = keys_path(open_folder)
    add_key(path, "ada")
    os.chown(path, 0, 12345)
    path.chmod(0o644)  # readable, in a folder that anybody may write
    open_folder.chmod(0o777)
    for ending in ("lock", "audit"):
        open_folder.joinpath(f"keys.json.{ending}").chmod(0o666)
    before = path.read_bytes(), path.stat().st_ino
    said = as_nobody(lambda: remove_key(path, "ada"))
    assert said.startswith("ConfigError: ")
    assert "Nothing was changed" in said
    assert "belongs to root" in said
    assert "sudo -u root" in said
    assert (path.read_bytes(), path.stat().st_ino) == before
    assert not path.with_name("keys.json.new").exists()
    assert "removed" not in path.with_name("keys.json.audit").read_text()


@as_root
def test_the_files_owner_can_go_on_after_root(open_folder: Path) -> None:
    folder = open_folder / "keys"
    path = keys_path(folder)
    add_key(path, "ada")
    os.chown(folder, NOBODY, NOBODY)
    os.chown(path, NOBODY, NOBODY)
    add_key(path, "bob")
    assert as_nobody(lambda: remove_key(path, "ada")) == ""
    assert [key.name for key in read_keys(path).values()] == ["bob"]


@as_root
def test_root_is_told_that_only_root_can_read_a_new_file(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    made = CliRunner().invoke(app, ["add", "ada", "--file", str(path)])
    assert made.exit_code == 0
    assert f"chown USER {path}" in made.stderr
    os.chown(path, NOBODY, NOBODY)
    assert "chown" not in CliRunner().invoke(app, ["add", "bob", "--file", str(path)]).stderr


def test_without_a_server_the_command_says_so(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    add_key(tmp_path / "keys" / "keys.json", "ada")
    for word in ("disable", "enable", "remove"):
        done = run(config, word, "ada")
        assert done.exit_code == 0
        assert "No server is running here" in done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_waits_until_every_worker_refuses_the_key(
    tmp_path: Path, started: Callable[..., Server], workers: int
) -> None:
    path = tmp_path / "keys" / "keys.json"
    secrets = {name: add_key(path, name)[1] for name in ("ada", "bob")}
    config = config_for(tmp_path)
    server = started(tmp_path, workers)
    assert all(map(server.lets_in, secrets.values()))
    removed = run(config, "remove", "ada")
    assert removed.exit_code == 0
    assert "The running server has applied the change" in removed.stderr
    assert [server.lets_in(secrets["ada"]) for _ in range(8)] == [False] * 8
    assert "has applied the change" in run(config, "disable", "bob").stderr
    assert [server.lets_in(secrets["bob"]) for _ in range(8)] == [False] * 8
    assert "has applied the change" in run(config, "enable", "bob").stderr
    assert [server.lets_in(secrets["bob"]) for _ in range(8)] == [True] * 8
    taken = [json.loads(line) for line in server.lines if '"slipform.audit"' in line and '"removed"' in line]
    assert [each["name"] for each in taken] == ["ada"] * workers


@as_root
def test_a_key_removed_by_root_is_refused_by_a_server_of_another_user(
    open_folder: Path, started: Callable[..., Server]
) -> None:
    path = open_folder / "keys" / "keys.json"
    _, secret = add_key(path, "ada")
    os.chown(path, NOBODY, NOBODY)
    config = config_for(open_folder)
    server = started(open_folder, user="nobody")
    assert server.lets_in(secret), "".join(server.lines)
    removed = run(config, "remove", "ada")
    assert removed.exit_code == 0
    assert "has applied the change" in removed.stderr
    assert not server.lets_in(secret)


@as_root
def test_a_server_that_cannot_read_the_new_file_makes_the_command_fail_until_it_can(
    open_folder: Path, started: Callable[..., Server]
) -> None:
    path = open_folder / "keys" / "keys.json"
    secrets = {name: add_key(path, name)[1] for name in ("ada", "bob")}
    os.chown(path, NOBODY, NOBODY)
    config = config_for(open_folder)
    server = started(open_folder, user="nobody")
    os.chown(path, 0, 0)  # by somebody's slip; the server has read it before
    refused = run(config, "remove", "ada")
    assert isinstance(refused.exception, ConfigError)
    assert "NOT applied" in str(refused.exception)
    assert "process" in str(refused.exception)
    assert server.lets_in(secrets["ada"])
    assert until(lambda: any("stay in force" in line for line in server.lines))
    os.chown(path, NOBODY, NOBODY)  # changes no time of the file: it has to be tried again
    assert until(lambda: not server.lets_in(secrets["ada"])), "".join(server.lines)
    assert server.lets_in(secrets["bob"])
    assert sum("stay in force" in line for line in server.lines) == 1


def test_a_file_mounted_by_itself_is_not_taken(tmp_path: Path) -> None:
    """As in a container that mounts the file and not its folder: the file put in its place is not seen there."""
    path, mounted = keys_path(tmp_path), tmp_path / "mounted.json"
    add_key(path, "ada")
    os.link(path, mounted)
    keys = KeyFile(mounted)
    keys.start()
    outcomes = []
    remove_key(path, "ada", confirm=lambda readers: outcomes.append(readers.wait(seconds=0)))
    assert outcomes == ["not taken"]
    keys.close()


def test_only_servers_hold_the_file_and_let_go_of_it_when_they_stop(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    add_key(path, "ada")

    def readers() -> str:
        with contextlib.closing(KeyReaders(path)) as found:
            return found.wait(seconds=0)

    keys = KeyFile(path)  # as a supervisor, or a check of the configuration, reads it
    assert readers() == "no server"
    keys.start()
    assert readers() == "not taken"
    keys.close()
    assert readers() == "no server"
    with proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(path)}}):
        assert readers() == "not taken"
    assert readers() == "no server"


def test_a_key_removed_between_reading_and_holding_the_file_is_noticed(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    _, secret = add_key(path, "ada")
    keys = KeyFile(path)
    remove_key(path, "ada")
    keys.start()
    assert keys.find(secret) is None
    keys.close()


def test_an_idle_server_takes_a_change_too(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    _, secret = add_key(path, "ada")
    with proxied({"fake": FakeModel([ADA])}, {"server": {"keys_file": str(path)}}) as address:
        outcomes = []
        remove_key(path, "ada", confirm=lambda readers: outcomes.append(readers.wait()))
        assert outcomes == ["taken"]
        assert chat(address, {"x-api-key": secret}).status == 401
