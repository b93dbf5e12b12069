"""The settings with their defaults as commented YAML, written from the settings' own docstrings."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

from slipform import config
from slipform.config import FILE_NAME, Settings

_WIDTH = 100
_HEAD = f"""\
# {FILE_NAME}: every setting of slipform with its default.
# Change what you like and delete the rest; `slipform doctor` checks the file."""


@dataclass(frozen=True, slots=True)
class _Docs:
    """What a class of settings says of itself and of its fields."""

    text: str
    fields: dict[str, str]


def commented() -> str:
    """The whole file.

    >>> from slipform.config import read_settings
    >>> read_settings(commented()) == Settings()
    True
    """
    docs = _docs()
    return "\n".join([_HEAD, *_fields(Settings, docs, 0)]) + "\n"


def _docs() -> dict[str, _Docs]:
    """The docstrings of the settings' classes, and the strings below their fields, from the source."""
    found = {}
    for node in ast.parse(inspect.getsource(config)).body:
        if isinstance(node, ast.ClassDef):
            fields = {
                field.target.id: _text(below)
                for field, below in itertools.pairwise(node.body)
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            }
            found[node.name] = _Docs(ast.get_docstring(node) or "", fields)
    return found


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def _fields(kind: type[BaseModel], docs: dict[str, _Docs], depth: int) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        inner = _block_in(field.annotation)
        about = "" if inner is None else docs[inner.__name__].text.partition("\n")[0]
        said = (about, docs[kind.__name__].fields.get(name, ""), _choices(field.annotation))
        if depth == 0:
            yield ""
        yield from _comment(" ".join(filter(None, said)), depth)
        if isinstance(field.default, BaseModel):
            yield f"{'  ' * depth}{name}:"
            yield from _fields(type(field.default), docs, depth + 1)
            continue
        yield from _setting(name, "…" if field.is_required() else field.default, depth)
        if inner is not None:
            yield from _example(name, inner, docs, depth, named=get_origin(field.annotation) is dict)


def _example(name: str, inner: type[BaseModel], docs: dict[str, _Docs], depth: int, *, named: bool) -> Iterator[str]:
    """How a setting that is empty by default is written when it is not, as a comment."""
    yield f"{'  ' * depth}# In its place, for example:"
    lines = [f"{name}:", *(["  NAME:"] if named else []), *_fields(inner, docs, depth + 2 if named else depth + 1)]
    yield from (f"{'  ' * depth}#   {line}" for line in lines)


def _setting(name: str, value: Any, depth: int) -> Iterator[str]:
    written = yaml.safe_dump({name: value}, allow_unicode=True, width=10_000)
    yield textwrap.indent(written.rstrip("\n"), "  " * depth)


def _comment(text: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for paragraph in text.split("\n"):
        yield from textwrap.wrap(paragraph, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _choices(annotation: Any) -> str:
    """The values that a setting may have, where they are listed."""
    if get_origin(annotation) is Literal:
        return f"One of: {', '.join(map(str, get_args(annotation)))}."
    return ""


def _block_in(annotation: Any) -> type[BaseModel] | None:
    """The class of settings that an annotation holds, if any."""
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_block_in, get_args(annotation))), None)
