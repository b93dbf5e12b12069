"""YAML that recurses, explodes or trips the reader is a config error, wherever slipform reads YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slipform.cli.import_config import convert_litellm
from slipform.config import read_settings
from slipform.errors import ConfigError
from slipform.schema.registry import read_file


def _levels(template: str) -> str:
    """Return nine levels of aliases, each naming the one before it nine times."""
    lines = ["l0: &l0 {a: 1}"]
    lines += [f"l{n + 1}: &l{n + 1} {template.format(', '.join([f'*l{n}'] * 9))}" for n in range(9)]
    return "\n".join(lines)


HOSTILE = {
    "a list that contains itself": "a: &a [*a]",
    "a mapping that contains itself": "&a {b: *a}",
    "aliases that expand to a billion values": _levels("[{}]"),
    "merge keys that expand to a billion pairs": _levels("{{<<: [{}]}}"),
    "deep brackets": "[" * 20_000,
    "deep lists that close": "a: " + "[" * 400 + "]" * 400,
    "deep block lists": "- " * 3_000 + "x",
    "a number without digits": 'a: !!int ""',
    "a number of 5,000 digits": "a: " + "9" * 5_000,
    "a date that does not exist": "a: 2026-13-45",
    "a timestamp that is text": "a: !!timestamp x",
    "a boolean that is text": "a: !!bool x",
    "a Python object": "a: !!python/object/apply:os.getcwd []",
    "a key that cannot be one": "? [1, 2]\n: 3",
    "a control character": "a: \x00",
}


def _read_settings(text: str, folder: Path) -> object:
    return read_settings(text, str(folder / "slipform.yaml"))


def _import_litellm(text: str, folder: Path) -> object:
    file = folder / "config.yaml"
    file.write_text(text)
    return convert_litellm(file, {})


def _read_schema(text: str, folder: Path) -> object:
    file = folder / "schema.yaml"
    file.write_text(text)
    return read_file(file)


@pytest.mark.parametrize("read", [_read_settings, _import_litellm, _read_schema])
def test_hostile_yaml_is_a_config_error(read: Callable[[str, Path], object], tmp_path: Path) -> None:
    accepted = []
    for name, text in HOSTILE.items():
        try:
            read(text, tmp_path)
        except ConfigError as error:
            if str(tmp_path) in str(error):
                continue
        accepted.append(name)
    assert accepted == []


def test_ordinary_anchors_still_work() -> None:
    text = "providers:\n  a: &a {kind: openai, base_url: http://127.0.0.1:1/v1}\n  b: {<<: *a}\n"
    assert read_settings(text, "f").providers["b"].kind == "openai"
