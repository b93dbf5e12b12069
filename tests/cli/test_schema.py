"""`slipform schema`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.conftest import PERSON

LIMITED = '{"type": "object", "properties": {"age": {"type": "integer", "minimum": 3}}, "required": ["age"]}'


def test_a_schema_is_shown_as_it_is_read(cli: Cli) -> None:
    done = cli("schema", "show", "person.json")
    assert done.json == PERSON
    assert "person: " in done.err
    assert "meets the strict rules" in done.err


def test_a_class_is_shown_as_the_schema_it_becomes(cli: Cli) -> None:
    done = cli("schema", "show", "shapes:Person", "--indent", "2")
    assert done.json["properties"]["age"]["type"] == "integer"
    assert done.out.startswith("{\n  ")
    assert "1 breach of the strict rules" in done.err


def test_yaml_is_read_too(cli: Cli, folder: Path) -> None:
    (folder / "list.yaml").write_text("type: array\nitems: {type: integer}\n")
    assert cli("schema", "show", "list.yaml").json == {"type": "array", "items": {"type": "integer"}}


def test_the_summary_is_what_prompts_show(cli: Cli) -> None:
    given = '{"type": "object", "title": "T", "properties": {"a": {"description": "long", "type": "string"}}}'
    assert cli("schema", "show", given, "--summary").out == ('{"type":"object","properties":{"a":{"type":"string"}}}\n')


def test_the_vendors_form_is_printed_with_what_it_loses(cli: Cli) -> None:
    done = cli("schema", "lower", LIMITED, "--dialect", "anthropic", "--losses")
    assert done.code == 0
    assert "minimum" not in done.json["properties"]["age"]
    assert "/properties/age/minimum (3): not sent; enforced by slipform" in done.err
    assert "--losses" in cli("schema", "lower", LIMITED, "-d", "anthropic").err
    assert cli("schema", "lower", "person.json", "-d", "openai").err == "openai takes all of it.\n"


def test_a_schema_can_be_tried_on_a_dialect_before_any_call(cli: Cli) -> None:
    assert cli("schema", "preflight", "person.json", "--dialect", "openai").code == 0
    done = cli("schema", "preflight", LIMITED, "--dialect", "anthropic")
    assert (done.code, done.out) == (0, "")
    assert "minimum" in done.err


def test_breaches_of_the_strict_rules_are_lines(cli: Cli) -> None:
    assert cli("schema", "preflight", "person.json").code == 0
    done = cli("schema", "preflight", LIMITED, "--strict")
    assert (done.code, done.out) == (3, "strict-mode schema requires `additionalProperties: false` at $\n")
    assert cli("schema", "preflight", LIMITED, "--strict", "--dialect", "anthropic").code == 3


def test_an_unknown_dialect_is_met_with_the_known_ones(cli: Cli) -> None:
    done = cli("schema", "lower", "person.json", "-d", "opnai")
    assert done.code == 3
    assert "openai" in done.err


def test_registered_schemas_are_listed(cli: Cli, folder: Path) -> None:
    assert cli("schema", "list").out == "generic_list\nminimal_object\n"
    (folder / "named").mkdir()
    (folder / "named" / "person.json").write_text((folder / "person.json").read_text())
    (folder / "slipform.yaml").write_text("schemas: named\n")
    assert "person\n" in cli("schema", "list").out


@pytest.mark.parametrize(
    ("given", "content", "said"),
    [
        ("missing.json", None, "file does not exist"),
        ("persn.json", None, "Did you mean person.json?"),
        ("bad.json", '{"a":', "line 1 column 6"),
        ("list.json", "[]", "object"),
        ("odd.json", '{"type": "no such type"}', "no such type"),
        ("bad.yaml", "a: [", "cannot be read"),
        ("bytes.json", b"\xff\xfe\x00", "cannot be read"),
        (".", None, "folder"),
        ("nothing", None, "generic_list, minimal_object"),
        ("shapes:Nobody", None, "Nobody"),
        ("nowhere:Person", None, "nowhere"),
        ("broken:Person", None, "NameError"),
        ("shapes:os", None, "not a type"),
        ('{"type": ', None, "JSON"),
    ],
)
def test_a_bad_schema_is_one_clear_paragraph(cli: Cli, folder: Path, given: str, content: object, said: str) -> None:
    (folder / "broken.py").write_text("oops\n")
    (folder / "shapes.py").write_text("os = 3\n")
    if content is not None:
        (folder / given).write_bytes(content if isinstance(content, bytes) else str(content).encode())
    done = cli("ask", "Ada is 36", "--schema", given)
    assert (done.code, done.out) == (3, "")
    assert said in done.err
    assert done.err.startswith("slipform: ")
    assert done.err.count("\n") == 1
