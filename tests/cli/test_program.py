"""The command line as a program: start-up, help, completion, terminals, Ctrl-C, mistakes."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from slipform import __version__
from slipform.build_info import build_in_use
from slipform.cli.help_pages import lay_out_help
from slipform.cli.program import app
from slipform.cli.terminal import Exit, exit_for
from slipform.errors import SlipformError
from slipform.testing import FakeVendor, hang, trickle
from tests.cli.conftest import PROGRAM, Cli, environment, run_program

Fake = Callable[..., FakeVendor]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
HEAVY = (
    "pydantic",
    "yaml",
    "asyncio",
    "jsonschema_rs",
    "slipform.library.client",
    "slipform.engine",
    "slipform.enforce",
)


def in_terminal(*words: str, cwd: Path, extra: dict[str, str] | None = None) -> tuple[int, str]:
    """What a command shows in a terminal, and its exit code."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(PROGRAM[0], [*PROGRAM, *words], environment({"TERM": "xterm", "COLUMNS": "100", **(extra or {})}))
    shown = b""
    while select.select([screen], [], [], 60)[0]:
        try:
            piece = os.read(screen, 65536)
        except OSError:  # the program has ended
            break
        if not piece:
            break
        shown += piece
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_the_version_is_told(folder: Path) -> None:
    done = run_program("--version", cwd=folder)
    assert done.stdout.strip() == f"slipform {__version__} ({build_in_use()})"


def test_the_package_can_be_run(folder: Path) -> None:
    command = [sys.executable, "-m", "slipform", "--version"]
    done = subprocess.run(command, env=environment(), cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"slipform {__version__} ({build_in_use()})"


def test_nothing_heavy_is_imported_before_a_command_runs() -> None:
    code = "import sys; import slipform.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stdout.split())


def test_fixing_a_text_without_a_schema_needs_no_model_code(folder: Path) -> None:
    code = "import sys; from slipform.cli.fix import fix; fix(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), input="[1,]", capture_output=True, text=True, check=True
    )
    assert done.stdout == "[1]\n"
    assert not set(HEAVY) & set(done.stderr.split())


@pytest.mark.parametrize("command", ["ask", "fix", "check", "schema", "models", "doctor", "init", "serve"])
def test_every_command_explains_itself(cli: Cli, command: str) -> None:
    assert command in cli("--help").out
    done = cli(command, "--help")
    assert done.code == 0
    assert len(done.out) > 200


def test_help_has_an_example_and_plain_words_for_values() -> None:
    program = get_command(app())
    lay_out_help(program)
    wrong: list[str] = []
    pending: list[Any] = [program]
    while pending:
        command = pending.pop()
        pending += getattr(command, "commands", {}).values()
        if not (command.epilog or "").startswith("Example: slipform"):
            wrong.append(f"{command.name} has no example")
        options = [each for each in command.params if each.param_type_name == "option"]
        wrong += [f"{command.name} {option.name}" for option in options if option.metavar is None]
    assert wrong == []


def test_no_word_at_all_shows_the_help(cli: Cli) -> None:
    out = cli().out
    assert "Answers" in out
    assert "<bool>" not in out


@pytest.mark.parametrize(
    "words",
    [
        ["aks", "x"],
        ["ask", "x", "--shcema", "y"],
        ["check"],
        ["fix", "--indent", "x"],
        ["ask", " "],
        ["serve", "--port", "99999"],
    ],
)
def test_a_command_written_wrong_is_a_usage_error(cli: Cli, words: list[str]) -> None:
    done = cli(*words)
    assert done.code == Exit.USAGE
    assert done.out == ""
    assert "Usage" in done.err


def test_completion_proposes_commands_and_models(folder: Path) -> None:
    def proposed(words: str, word: int) -> list[str]:
        extra = {"_SLIPFORM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(word)}
        code = "import sys; sys.argv = ['slipform']; from slipform.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(extra),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    assert proposed("slipform sch", 1) == ["schema"]
    assert "local/smollm2-135m" in proposed("slipform ask --model local/", 3)
    assert proposed("slipform schema lower --dialect open", 4) == ["openai"]
    (folder / "slipform.yaml").write_text("oops: [")
    assert proposed("slipform ask --model local/", 3) == []


def test_the_table_of_exit_codes_is_the_documented_one() -> None:
    documented = {int(code) for code in re.findall(r"^\| `(\d+)` \|", DOCS.read_text(), re.MULTILINE)}
    assert documented == {code.value for code in Exit}
    assert exit_for(SlipformError("?")) is Exit.OTHER


@pytest.mark.parametrize(
    ("text", "words", "code", "said"),
    [
        ("a: [", ["ask", "Hi"], 3, "slipform.yaml:1"),
        ("output:\n  require_json: 'yes'\n", ["ask", "Hi"], 3, "slipform.yaml:2: `output.require_json`"),
        ("output: {}\noutput: {}\n", ["models"], 3, "slipform.yaml:2"),
        ("default_model: nobody/x\n", ["ask", "Hi"], 3, "nobody/x"),
        ("providers: {openai: {}}\n", ["ask", "Hi", "-m", "openai/gpt-5"], 4, "OPENAI_API_KEY"),
        ("", ["ask", "Hi", "-m", "gpt-5"], 3, "Unknown model 'gpt-5'"),
        ("", ["ask", "Hi", "-m", "local/gpt-9"], 3, "gpt-9"),
        ("", ["ask", "Hi", "-m", "openai/gpt-5"], 3, "openai is known; set OPENAI_API_KEY"),
        ("", ["ask", "Hi", "-m", "local/none.gguf"], 4, "model file does not exist"),
        ("", ["ask", "Hi", "--config", "none.yaml"], 3, "none.yaml"),
        ("schemas: nowhere\n", ["ask", "Hi", "-s", "person"], 3, "folder of schemas"),
        ("", ["fix", "none.txt"], 3, "none.txt"),
        ("", ["fix", "."], 3, "Is a directory"),
        ("", ["check", "-s", "person.json", "none.json"], 3, "none.json"),
        ("", ["ask", "Hi", "-m", "mine/x"], 4, "Cannot connect"),
    ],
)
def test_a_mistake_is_one_paragraph_that_names_the_place(
    cli: Cli, folder: Path, text: str, words: list[str], code: int, said: str
) -> None:
    mine = "providers: {mine: {base_url: 'http://127.0.0.1:9/v1'}}\nruntime: {timeout_seconds: 2}\n"
    (folder / "slipform.yaml").write_text(mine if words[-1] == "mine/x" else text)
    done = cli(*words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.startswith("slipform: ")
    assert done.err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_what_must_not_be_read_or_written_is_told(cli: Cli, folder: Path) -> None:
    (folder / "secret.txt").write_text("{}")
    (folder / "secret.txt").chmod(0)
    assert "Permission denied, at secret.txt" in cli("fix", "secret.txt").err
    (folder / "closed").mkdir(0o500)
    assert "Permission denied, at closed/slipform.yaml" in cli("init", "closed/slipform.yaml").err


def test_ollama_that_is_not_running_is_named(cli: Cli, folder: Path) -> None:
    (folder / "slipform.yaml").write_text("providers: {ollama: {base_url: 'http://127.0.0.1:9'}}\n")
    done = cli("ask", "Hi", "-m", "ollama/llama3")
    assert (done.code, "Is Ollama running?" in done.err) == (4, True), done.err


def test_ctrl_c_stops_the_wait_without_a_traceback(fake: Fake, folder: Path) -> None:
    vendor = fake([hang()])
    with subprocess.Popen(
        [*PROGRAM, "ask", "Hi"], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert vendor.wait_until(lambda vendor: len(vendor.requests) == 1, timeout=60)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (130, b"", b"")


def test_a_terminal_sees_the_object_grow_and_then_the_whole_of_it(fake: Fake, folder: Path) -> None:
    fake([trickle('{"name":"Ada","age":36}', 0.03)])
    code, shown = in_terminal("ask", "Ada is 36", "-s", "person.json", "--stream", cwd=folder, extra={"NO_COLOR": "1"})
    assert code == 0
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown)
    assert plain.count("{") > plain.count('"age"') > 0  # the first look came before there was an age
    assert plain.endswith('{\r\n  "name": "Ada",\r\n  "age": 36\r\n}\r\n')


def test_text_streams_in_a_terminal_without_being_told_to(fake: Fake, folder: Path) -> None:
    vendor = fake(["Concrete holds its form"])
    assert in_terminal("ask", "Write a line", cwd=folder) == (0, "Concrete holds its form\r\n")
    assert vendor.requests[0].json()["stream"] is True


def test_the_embedded_model_says_once_what_it_is_for(folder: Path) -> None:
    done = run_program("ask", "Say hello", "--max-tokens", "4", cwd=folder)
    assert done.returncode == 0
    assert done.stderr.count("name another with --model") == 1


def test_an_error_in_a_stream_leaves_a_clean_terminal(fake: Fake, folder: Path) -> None:
    fake(['{"name":"Ada"}'], "retries: {attempts: 0}\n")
    code, shown = in_terminal("ask", "Ada is 36", "-s", "person.json", "--stream", cwd=folder)
    assert code == 5
    assert shown.endswith("\r\n")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is back
    assert 'the key "age" is missing' in shown


def test_the_diff_is_coloured_in_a_terminal_and_json_is_indented(folder: Path) -> None:
    (folder / "a.txt").write_text("{'a': 1}")
    code, shown = in_terminal("fix", "-x", "a.txt", cwd=folder)
    assert code == 0
    assert "\x1b[31m\x1b[9m'a'\x1b[0m\x1b[32m\x1b[1m\"a\"\x1b[0m" in shown
    assert '{\r\n  "a": 1\r\n}' in shown
    _, plain = in_terminal("fix", "-x", "a.txt", cwd=folder, extra={"NO_COLOR": "1"})
    assert "\x1b[" not in plain
    assert "[-'a'-]" in plain


def test_someone_who_forgets_the_file_is_told_what_is_waited_for(folder: Path) -> None:
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(PROGRAM[0], [*PROGRAM, "fix"], environment({"TERM": "dumb"}))
    shown = b""
    while b"Ctrl-D" not in shown:
        shown += os.read(screen, 1000)
    os.write(screen, b"[1,]\n\x04")
    while b"[\r\n  1\r\n]" not in shown:
        shown += os.read(screen, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(screen)


def test_the_help_of_all_commands_loads_none_of_what_they_run(folder: Path) -> None:
    code = (
        "import sys; sys.argv = ['slipform', '--help']; import atexit; from slipform.cli import main;"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=folder, capture_output=True, text=True, check=True
    )
    loaded = set(ran.stderr.split())
    heavy = {"pydantic", "slipform.engine", "slipform.enforce", "slipform.config", "slipform.addons.server.app"}
    assert heavy & loaded == set()
    assert "extract" in ran.stdout
