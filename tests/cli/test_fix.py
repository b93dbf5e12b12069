"""`slipform fix`."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Cli, environment

CHATTY = "Sure! Here it is: {'name': 'Ada', age: '36',} Hope it helps"


def test_json_comes_out_of_a_text(cli: Cli, folder: Path) -> None:
    (folder / "answer.txt").write_text(CHATTY)
    assert cli("fix", "answer.txt").out == '{"name":"Ada","age":"36"}\n'
    assert cli("fix", stdin=CHATTY).out == '{"name":"Ada","age":"36"}\n'
    assert cli("fix", "-", stdin=CHATTY).err == ""


def test_with_a_schema_the_json_is_made_to_fit(cli: Cli) -> None:
    assert cli("fix", "--schema", "person.json", stdin=CHATTY).json == {"name": "Ada", "age": 36}


def test_what_does_not_fit_is_listed_and_nothing_is_printed(cli: Cli) -> None:
    done = cli("fix", "-s", "person.json", stdin='{"name": [], "age": "old"}')
    assert (done.code, done.out) == (5, "")
    assert "does not fit the schema" in done.err
    assert "$.name: expected string, found []" in done.err
    assert '$.age: expected integer, found "old"' in done.err


def test_many_faults_are_listed_up_to_a_limit(cli: Cli) -> None:
    done = cli("fix", "-s", '{"type": "array", "items": {"type": "null"}}', stdin=str([1] * 50))
    assert done.err.count("expected null") == 21
    assert "and 30 more" in done.err


def test_every_edit_is_explained_where_it_was_made(cli: Cli) -> None:
    done = cli("fix", "--explain", "-s", "person.json", stdin="Here:\n" + CHATTY)
    assert done.json == {"name": "Ada", "age": 36}
    assert "The JSON stands at line 2, column 19" in done.err
    assert "wrong quote ×3, unquoted key, trailing comma" in done.err
    assert "[-'name'-]{+\"name\"+}" in done.err
    assert '[-age-]{+"age"+}' in done.err
    assert "patched: $.age → 36" in done.err


def test_edits_far_apart_are_shown_apart_and_guesses_are_called_guesses(cli: Cli) -> None:
    done = cli("fix", "-x", stdin='{"a": 1,, "b": "' + "x" * 200 + '", "c": [1, 2')
    assert done.err.count("line 1, column") >= 2
    assert "(a guess)" in done.err
    assert "x" * 100 not in done.err


def test_valid_json_needs_no_explanation(cli: Cli) -> None:
    assert cli("fix", "-x", stdin="[1]").err == "Nothing had to be changed.\n"


def test_a_repeated_key_is_noted(cli: Cli) -> None:
    assert 'The key "a" is given twice' in cli("fix", "-x", stdin='{"a": 1, "a": 2}').err


def test_each_line_is_fixed_on_its_own_and_bad_ones_are_told_with_their_number(cli: Cli) -> None:
    done = cli("fix", "--jsonl", stdin=b'{"a":1}\n\n{a: 2}\nnothing here\n{"a": 3,}\r\n\xff\n[4')
    assert done.out == '{"a":1}\n{"a":2}\n{"a":3}\n[4]\n'
    assert done.code == 5
    assert "line 4: There is no JSON" in done.err
    assert "line 6: It is not UTF-8" in done.err
    assert "2 of 6 lines" in done.err


def test_lines_are_held_to_a_schema(cli: Cli) -> None:
    done = cli("fix", "--jsonl", "-s", "person.json", stdin="{'name': 'Ada', 'age': '36'}\n{'name': 'Bob'}\n")
    assert (done.code, done.out) == (5, '{"name":"Ada","age":36}\n')
    assert 'line 2: The JSON does not fit the schema: the key "age" is missing' in done.err


def test_good_lines_leave_a_good_exit_code(cli: Cli) -> None:
    assert cli("fix", "--jsonl", stdin="{a:1}\n").code == 0


def test_a_line_leaves_before_the_next_one_comes(folder: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "fix", "--jsonl"], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(b"{a: 1}\n")
        program.stdin.flush()
        assert program.stdout.readline() == b'{"a":1}\n'
        program.stdin.close()


def test_whoever_stops_reading_ends_it_in_silence(folder: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "fix", "--jsonl"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdin.write(b"{a: 1}\n")
        program.stdin.flush()
        program.stdout.readline()
        program.stdout.close()
        program.stdin.write(b"{a: 1}\n")
        program.stdin.flush()
        assert program.stderr.read() == b""
        with contextlib.suppress(BrokenPipeError):
            program.stdin.close()
    assert program.returncode == 141


@pytest.mark.parametrize(("nan", "code", "out"), [([], 5, ""), (["--nan-null"], 0, '{"a":null}\n')])
def test_what_json_cannot_say_is_refused_or_null(cli: Cli, nan: list[str], code: int, out: str) -> None:
    done = cli("fix", *nan, stdin='{"a": NaN}')
    assert (done.code, done.out) == (code, out)


def test_numbers_and_letters_of_any_kind_survive(cli: Cli) -> None:
    done = cli("fix", stdin="{n: 123456789012345678901234567890, s: 'Zoë ☃'}")
    assert done.out == '{"n":123456789012345678901234567890,"s":"Zoë ☃"}\n'


@pytest.mark.parametrize(
    ("stdin", "code", "said"),
    [
        (b"", 5, "no text"),
        (b"Hello there", 5, "no JSON that can be read: no bracket"),
        (b"{\x00\xff\xfe\x00", 3, "binary file"),
        ("{}".encode("utf-16"), 3, "UTF-16"),
        (b"ok\n{'a': 'caf\xe9'}", 3, "0xe9, on line 2"),
    ],
)
def test_what_holds_no_text_or_no_json_is_said_plainly(cli: Cli, stdin: bytes, code: int, said: str) -> None:
    done = cli("fix", stdin=stdin)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_byte_order_mark_is_no_part_of_the_text(cli: Cli) -> None:
    assert cli("fix", stdin=b"\xef\xbb\xbf[1]").out == "[1]\n"


@pytest.mark.parametrize("indent", ["0", "2", "4"])
def test_the_deepest_value_that_can_be_read_can_be_written(cli: Cli, indent: str) -> None:
    deep = "[" * 1000 + "]" * 1000
    assert "".join(cli("fix", "--indent", indent, stdin=deep).out.split()) == deep
    assert "deeper than 1000 levels" in cli("fix", stdin="[" * 2000 + "]" * 2000).err
