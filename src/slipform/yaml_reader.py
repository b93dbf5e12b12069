"""Read YAML with the lines of its parts, refusing what recurses or expands without bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml

MAX_VALUES: Final = 500_000
"""Values of a document once its aliases are expanded: a kilobyte of them can expand to gigabytes."""
MAX_DEPTH: Final = 250
"""Levels of nesting: schemas may have 240, and the readers of settings recurse."""


class YamlError(ValueError):
    """Text that is not YAML, or not YAML that slipform reads."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


class YamlDocument(NamedTuple):
    """A document's value, and its nodes, which know their lines."""

    value: Any
    node: yaml.Node | None


def read_yaml(text: str) -> YamlDocument:
    """Return the document that a text holds; raises `YamlError` with the line of the problem.

    >>> read_yaml("port: 9000").value
    {'port': 9000}
    >>> read_yaml("a: &a [*a]")
    Traceback (most recent call last):
    slipform.yaml_reader.YamlError: it is nested over 250 levels deep, or contains itself
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return YamlDocument(None, None)
            _check_size(node)
            return YamlDocument(loader.construct_document(node), node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise YamlError(error.problem or str(error), line) from error
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # PyYAML, of `!!int ""` and the like
        raise YamlError(" ".join(str(error).split()), 1) from error
    except RecursionError:
        raise YamlError("it is nested too deeply", 1) from None


def _check_size(root: yaml.Node) -> None:
    """Raise `YamlError` for a document that is too deep or too large with its aliases expanded."""
    count = 0
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        line = node.start_mark.line + 1
        if count > MAX_VALUES:
            raise YamlError(f"its aliases expand to over {MAX_VALUES:,} values", line)
        if depth > MAX_DEPTH:
            raise YamlError(f"it is nested over {MAX_DEPTH} levels deep, or contains itself", line)
        stack += [(child, depth + 1) for child in _children(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value
