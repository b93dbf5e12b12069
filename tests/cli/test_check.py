"""`slipform check`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli

ADA = '{"name":"Ada","age":36}'


def test_valid_documents_pass(cli: Cli, folder: Path) -> None:
    (folder / "a.json").write_text(ADA)
    done = cli("check", "--schema", "person.json", "a.json", "-", stdin=ADA)
    assert (done.code, done.out, done.err) == (0, "", "2 of 2 documents valid\n")


def test_every_violation_is_a_line_with_its_path(cli: Cli, folder: Path) -> None:
    (folder / "a.json").write_text('{"name": 1, "age": "x"}')
    done = cli("check", "-s", "person.json", "a.json", "-", stdin="{'name'")
    assert done.code == 5
    first, second, third = done.out.splitlines()
    assert first.startswith("a.json: $.name: expected string")
    assert second.startswith("a.json: $.age: expected integer")
    assert third.startswith("standard input: not JSON: line 1, column 2")
    assert "0 of 2 documents valid" in done.err


def test_nothing_is_repaired(cli: Cli) -> None:
    assert cli("check", "-s", "person.json", "-", stdin='{"name":"Ada","age":"36"}').code == 5
    assert cli("check", "-s", "person.json", "-", stdin=f"```json\n{ADA}\n```").code == 5


def test_lines_are_documents_of_their_own(cli: Cli, folder: Path) -> None:
    (folder / "all.jsonl").write_bytes(f"{ADA}\n\n{{}}\n\xff\n".encode("latin-1"))
    done = cli("check", "-s", "person.json", "--jsonl", "all.jsonl")
    assert done.code == 5
    assert "all.jsonl:3: $: the key" in done.out
    assert "all.jsonl:4: not JSON: It is not UTF-8" in done.out
    assert "1 of 3 documents valid" in done.err


def test_violations_come_as_json_for_programs(cli: Cli) -> None:
    done = cli("check", "-s", "person.json", "--json", "-", stdin='{"name":"Ada","age":"x"}')
    assert json.loads(done.out) == {
        "document": "standard input",
        "path": "$.age",
        "pointer": "/age",
        "schema_path": "/properties/age/type",
        "keyword": "type",
        "message": 'expected integer, found "x"',
        "expected": "integer",
        "found": '"x"',
    }


def test_a_types_own_validators_count(cli: Cli, folder: Path) -> None:
    (folder / "shapes.py").write_text(
        "from pydantic import BaseModel, field_validator\n"
        "class Even(BaseModel):\n"
        "    n: int\n"
        "    @field_validator('n')\n"
        "    @classmethod\n"
        "    def even(cls, n: int) -> int:\n"
        "        assert n % 2 == 0, 'odd'\n"
        "        return n\n"
    )
    assert cli("check", "-s", "shapes:Even", "-", stdin='{"n": 2}').code == 0
    done = cli("check", "-s", "shapes:Even", "-", stdin='{"n": 3}')
    assert done.code == 5
    assert "odd" in done.out


def test_a_repeated_key_is_noted(cli: Cli) -> None:
    done = cli("check", "-s", '{"type": "object"}', "-", stdin='{"a": 1, "a": 2}')
    assert done.code == 0
    assert 'The key "a" is given twice' in done.err
