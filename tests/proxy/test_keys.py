"""The file of callers' keys, and the command that keeps it."""

from __future__ import annotations

import errno
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slipform.addons.server.admission.key_file import KeyFile, read_keys
from slipform.addons.server.admission.keys import add_key, change_key, disable_key, remove_key, user_name
from slipform.addons.server.commands.serve import app
from slipform.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "keys.json"


@pytest.mark.covers("S1-52")
def test_only_a_salted_hash_is_kept_and_only_its_owner_can_read_it(path: Path) -> None:
    first, secret = add_key(path, "ada")
    second, _ = add_key(path, "bob")
    assert secret.startswith(f"sf-{first.id}-")
    assert secret.removeprefix(f"sf-{first.id}-") not in path.read_text()
    assert secret.split("-", 2)[2] not in path.read_text()
    assert first.salt != second.salt
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir() if each.name.endswith(".new")] == []


def test_the_key_itself_is_found_and_nothing_near_it(path: Path) -> None:
    key, secret = add_key(path, "ada", models=["openai/*"], requests_per_minute=7)
    other, _ = add_key(path, "bob")
    keys = KeyFile(path)
    assert keys.find(secret) == key
    assert (key.models, key.requests_per_minute) == (("openai/*",), 7)
    wrong = [
        secret[:-1],
        secret + "x",
        secret.replace(key.id, other.id),
        secret.replace("sf-", "sk-"),
        key.hash,
        f"sf-{key.id}-",
        f"sf-{key.id}",
        "sf-",
        "",
        "anything",
        "sf-\udcff-\udcff",
    ]
    assert [keys.find(each) for each in wrong] == [None] * len(wrong)


def test_what_is_removed_disabled_or_added_counts_without_a_restart(path: Path) -> None:
    now = 0.0
    _, ada = add_key(path, "ada")
    keys = KeyFile(path, clock=lambda: now)
    _, bob = add_key(path, "bob")
    assert keys.find(bob) is None  # looked at once a second at most
    now = 1.5
    assert keys.find(bob) is not None
    disable_key(path, "bob")
    now = 3.0
    found = keys.find(bob)
    assert found is not None
    assert found.disabled
    remove_key(path, "ada")
    now = 4.5
    assert keys.find(ada) is None
    keys.apply_published({found.id: b"removed 0"})
    assert keys.find(bob) is None


def test_a_damaged_file_is_an_error_at_the_start_and_changes_nothing_later(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    _, secret = add_key(path, "ada")
    keys = KeyFile(path, clock=lambda: now)
    path.write_text("{")
    now = 2.0
    assert keys.find(secret) is not None
    assert "stay in force" in caplog.text
    with pytest.raises(ConfigError, match="damaged"):
        KeyFile(path)
    path.unlink()
    with pytest.raises(ConfigError, match="slipform keys add"):
        KeyFile(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"models": "openai/*"},
        {"models": ["openai/*", 7]},
        {"operator": "no"},
        {"disabled": "true"},
        {"requests_per_minute": "60"},
        {"expires": "never"},
        {"max_token": 5},
        {"max_cost": "5"},
        {"max_tokens": -5},
        {"max_tokens": 5, "period": "moth"},
    ],
    ids=str,
)
def test_a_key_written_by_hand_with_a_slip_is_not_taken_for_one_that_may_do_more(
    path: Path, fields: dict[str, Any]
) -> None:
    add_key(path, "ada")
    document = json.loads(path.read_text())
    document["keys"][0] |= fields
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="damaged"):
        KeyFile(path)


def test_writers_at_the_same_time_lose_nothing(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add_key(path, f"key {number}"), range(24)))
    assert len(read_keys(path)) == 24


def test_names_are_given_once_and_must_exist(path: Path) -> None:
    add_key(path, "ada")
    with pytest.raises(ConfigError, match="already"):
        add_key(path, "ada")
    with pytest.raises(ConfigError, match="Unknown key 'eve'"):
        remove_key(path, "eve")
    with pytest.raises(ConfigError, match="Unknown key 'eve'"):
        disable_key(path, "eve")
    with pytest.raises(ConfigError, match="Unknown key 'eve'"):
        change_key(path, "eve", {"requests_per_minute": 3})


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="files have no modes here")
def test_a_file_that_may_not_be_rewritten_is_left_as_it_is_and_says_whose_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_key(path, "ada")
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(ConfigError) as raised:
        add_key(path, "bob")
    owner = user_name(path.stat().st_uid)
    assert f"Nothing was changed: {path} belongs to {owner} (mode 0600)" in str(raised.value)
    assert "Operation not permitted" in str(raised.value)
    assert raised.value.where == str(path)
    assert f"sudo -u {owner} slipform keys" in (raised.value.hint or "")
    assert path.read_bytes() == before
    assert not path.with_name("keys.json.new").exists()


def test_the_command_makes_lists_disables_and_removes_keys(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "slipform.yaml"
    config.write_text(f"server: {{keys_file: {path}}}")
    given = ["--config", str(config)]
    run = CliRunner().invoke
    made = run(app, ["add", "ada", "--model", "openai/*", "--model", "fast", "--rpm", "9", *given])
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert KeyFile(path).find(secret) is not None
    listed = run(app, ["list", *given]).stdout
    assert "ada" in listed
    assert "openai/*,fast\t9/min" in listed
    assert secret not in listed
    assert run(app, ["disable", "ada", *given]).stdout == "disabled ada\n"
    assert "disabled" in run(app, ["list", *given]).stdout
    assert run(app, ["enable", "ada", *given]).stdout == "enabled ada\n"
    assert run(app, ["remove", "ada", *given]).stdout == "removed ada\n"
    assert read_keys(path) == {}


def test_the_command_says_where_the_keys_would_have_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["list"])
    assert isinstance(refused.exception, ConfigError)
    assert "--file" in str(refused.exception)
    made = CliRunner().invoke(app, ["add", "ada", "--file", "keys.json"])
    assert "keys_file" in made.stderr
    assert (tmp_path / "keys.json").exists()
