"""docs/security.md names, for each of its promises, tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEADING = "## Promises and the tests that hold them"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def rows(page: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each promise of the table, and the tests it names as (file, name)."""
    table = page.partition(HEADING)[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [(line.split("|")[1].strip(), NAMED.findall(line)) for line in lines]


PROMISES = rows((ROOT / "docs" / "security.md").read_text("utf-8"))


def defined(path: Path) -> set[str]:
    """The tests that a file defines: `test_name` and `TestClass::test_name`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        functions = [each for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        found |= {prefix + each.name for each in functions if each.name.startswith("test_")}
    return found


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[promise[:60] for promise, _ in PROMISES])
def test_a_promise_is_held_by_tests_that_exist(promise: str, tests: list[tuple[str, str]]) -> None:
    assert tests, f"no test is named for: {promise}"
    missing = [
        f"{file}::{name}" for file, name in tests if not (ROOT / file).is_file() or name not in defined(ROOT / file)
    ]
    assert not missing, f"named in docs/security.md, but not there: {missing}"


def test_the_table_is_found_and_a_name_that_is_not_there_is_noticed() -> None:
    assert len(PROMISES) > 20
    page = f"{HEADING}\n\n| promise | tests |\n|---|---|\n| one | `tests/a.py::test_b`, `tests/c.py::TestD::test_e` |\n"
    assert rows(page) == [("one", [("tests/a.py", "test_b"), ("tests/c.py", "TestD::test_e")])]
    assert "test_that_never_was" not in defined(Path(__file__))
    assert "test_the_table_is_found_and_a_name_that_is_not_there_is_noticed" in defined(Path(__file__))
