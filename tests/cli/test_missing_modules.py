"""Commands without the modules of the extras: never a traceback, always the line to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from slipform import seams
from slipform.cli.missing_module import EXTRAS
from tests.cli.conftest import environment
from tests.test_build import copied_sources

ROOT = Path(__file__).resolve().parents[2]
RUN_WITHOUT = """
import json, os, sys

hidden = set(json.loads(sys.argv[1]))
commands = json.loads(sys.argv[2])


class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)


sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
# Every command below is a fork of this process, which has imported what most of them import.
import pydantic, rich.console, typer, yaml
try:
    import slipform.call_options, slipform.cli.terminal, slipform.library.async_client
except ModuleNotFoundError:  # the commands say so
    pass

outcomes = []
for words in commands:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.argv = ["slipform", *words]
        from slipform.cli import main

        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
    os.close(writer)
    with open(reader, "rb") as pipe:
        shown = pipe.read().decode()
    outcomes.append([words, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown])
print(json.dumps(outcomes))
"""
PROMPT = ["--schema", "person.json", "--prompt", "{text}"]
SERVE = ["serve", "--port", "0"]
COMMANDS: list[tuple[list[str], str | None]] = [
    (["ask", "Ada is 36"], "local"),
    (["ask", "Ada is 36", "--schema", "person.json"], "local"),
    (["ask", "Ada is 36", "--schema", "person.json", "--evidence"], "local"),
    (["fix", "broken.json"], None),
    (["fix", "broken.json", "--schema", "person.json"], None),
    (["check", "ada.json", "--schema", "person.json"], None),
    (["ground", "ada.json", "source.txt"], None),
    (["schema", "lower", "person.json"], None),
    (["models"], None),
    (["models", "show", "openai/gpt-6-luna"], None),
    (["doctor", "--offline"], "local"),
    (SERVE, "server"),
    (["serve", "--check"], None),
    (["console", "--no-open"], "server"),
    (["keys", "add", "ci", "--file", "keys.json"], None),
    (["keys", "list", "--file", "keys.json"], None),
    (["spend"], None),
    (["run", "Who is it?", "source.txt", "--schema", "person.json", "--out-dir", "out"], "local"),
    (["batch", "rows.jsonl", "--out", "labels.jsonl", *PROMPT], "local"),
    (["batch", "rows.parquet", "--out", "labels.jsonl", *PROMPT], "batch"),
    (["extract", "source.txt", "--schema", "person.json", "--out", "people.csv"], "local"),
    (["review", "labels.jsonl"], None),
    (["eval", "rows.jsonl", "--models", "local", *PROMPT], "local"),
    (["init"], None),
    (["import", "litellm", "litellm.yaml"], None),
]
"""Commands, and the extra that each of them names when no optional module is there."""


@pytest.fixture
def material(folder: Path) -> Path:
    (folder / "broken.json").write_text('{"name": "Ada", "age": 36')
    (folder / "ada.json").write_text('{"name": "Ada", "age": 36}')
    (folder / "source.txt").write_text("Ada is 36")
    (folder / "rows.jsonl").write_text('{"text": "Ada is 36", "expected": {"name": "Ada", "age": 36}}\n')
    (folder / "rows.parquet").write_bytes(b"PAR1")
    (folder / "litellm.yaml").write_text("model_list:\n- model_name: a\n  litellm_params: {model: openai/gpt-6-luna}\n")
    return folder


def run_without(
    hidden: set[str], commands: list[list[str]], folder: Path, variables: dict[str, str] | None = None
) -> list[tuple[list[str], int, str]]:
    """Run the commands one after the other where these modules are not installed."""
    arguments = [json.dumps(sorted(hidden)), json.dumps(commands)]
    ran = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT, *arguments],
        cwd=folder,
        env=environment(variables or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [(words, code, shown) for words, code, shown in json.loads(ran.stdout)]


@pytest.mark.timeout(120)
def test_every_command_without_any_extra_names_the_line_to_install(material: Path) -> None:
    failures = []
    outcomes = run_without(set(EXTRAS), [words for words, _ in COMMANDS], material)
    for (words, extra), (_, code, shown) in zip(COMMANDS, outcomes, strict=True):
        named = extra is None or (code != 0 and f"pip install 'slipform[{extra}]'" in shown)
        if "Traceback" in shown or not named or (extra is None and "not installed" in shown):
            failures.append((" ".join(words), code, shown))
    assert failures == []
    assert {words[0] for words, _ in COMMANDS} == set(seams.COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values()) - {"server"}))
def test_no_command_fails_with_a_traceback_without_one_extra(material: Path, extra: str) -> None:
    hidden = {module for module, its_extra in EXTRAS.items() if its_extra == extra}
    commands = [words for words, _ in COMMANDS if words != SERVE]
    no_embedded_model = {"SLIPFORM_DEFAULT_MODEL": "openai/gpt-6-luna"}
    outcomes = run_without(hidden, commands, material, no_embedded_model)
    assert [outcome for outcome in outcomes if "Traceback" in outcome[2]] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the sources, unpacked: what `pip install` would put beside the other modules."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = copied_sources(folder)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--wheel-dir", str(folder)]
    made = subprocess.run(
        command, cwd=sources, env={**os.environ, "SLIPFORM_PURE": "1"}, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (file,) = folder.glob("slipform-*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("extra", ["", *sorted(set(EXTRAS.values()))])
def test_the_wheel_with_one_extra_or_none_runs_every_command(material: Path, wheel: Path, extra: str) -> None:
    hidden = {module for module, its_extra in EXTRAS.items() if its_extra != extra}
    commands = [(words, needed) for words, needed in COMMANDS if words != SERVE or extra != "server"]
    installed = {"PYTHONPATH": str(wheel)}
    if extra == "local":  # its answers take seconds each: without a key, no model is asked
        installed["SLIPFORM_DEFAULT_MODEL"] = "openai/gpt-6-luna"
    outcomes = run_without(hidden, [words for words, _ in commands], material, installed)
    failures = []
    for (words, needed), (_, code, shown) in zip(commands, outcomes, strict=True):
        is_named = needed in (None, extra) or extra == "local" or f"pip install 'slipform[{needed}]'" in shown
        if "Traceback" in shown or "FileNotFoundError" in shown or not is_named:
            failures.append((" ".join(words), code, shown))
    assert failures == []


def test_an_incomplete_installation_is_named(material: Path) -> None:
    ((_, code, shown),) = run_without({"jsonschema_rs"}, [["check", "ada.json", "--schema", "person.json"]], material)
    assert code == 3
    assert "jsonschema_rs is missing" in shown
    assert "pip install --force-reinstall slipform" in shown


def test_every_optional_module_belongs_to_an_extra_that_there_is() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = {"docx": "python-docx", "google": "google-auth", "opentelemetry": "opentelemetry-sdk"}
    wrong = {
        module: extra
        for module, extra in EXTRAS.items()
        if not any(
            each.startswith(distributions.get(module, module.replace("_", "-"))) for each in extras.get(extra, [])
        )
    }
    assert wrong == {}
