"""The examples in the docstrings, read from the sources so that compiled modules are tested too."""

from __future__ import annotations

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"


def examples() -> Iterator[tuple[str, str, str, int]]:
    """Every docstring with an example: its module, the name it stands under, its text and line."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text()
        if ">>>" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node, clean=False)
            if text and ">>>" in text:
                yield module, getattr(node, "name", "module"), text, node.body[0].lineno


EXAMPLES = list(examples())


@pytest.mark.parametrize(
    ("module", "name", "text", "line"), EXAMPLES, ids=[f"{module}:{name}" for module, name, _, _ in EXAMPLES]
)
def test_the_example_does_what_it_says(module: str, name: str, text: str, line: int) -> None:
    names = dict(vars(importlib.import_module(module)))
    test = doctest.DocTestParser().get_doctest(text, names, f"{module}.{name}", module, line)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted > 0
