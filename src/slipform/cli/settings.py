"""Describe every setting for `slipform init`, and print the effective settings (`serve --check`)."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

from slipform import config, seams
from slipform.cli.terminal import print_data
from slipform.config import FILE_NAME, Settings


def settings_yaml(settings: Settings) -> str:
    """Return all settings as YAML, with passwords in addresses and credentials in headers masked.

    >>> from slipform.config import read_settings
    >>> "hunter22" in settings_yaml(read_settings("redis: {url: 'redis://me:hunter22@host/0'}"))
    False
    """
    return yaml.safe_dump(_mask(settings.model_dump(mode="json")), sort_keys=False, allow_unicode=True)


def print_settings(settings: Settings, host: str | None, port: int | None) -> None:
    """Print the settings that `serve` would run with; raises `ConfigError` as its start would."""
    from slipform.engine.setup import router_of

    router_of(settings).close()
    overrides = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    server = settings.server.model_copy(update=overrides)
    print_data(settings_yaml(settings.model_copy(update={"server": server})), end="")


def _mask(value: Any) -> Any:
    """Return settings with credentials masked."""
    from slipform.providers.auth import MASK, masked_url, secrets_in

    if isinstance(value, str):
        return masked_url(value) if "://" in value else value
    if isinstance(value, list):
        return [_mask(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: MASK if isinstance(item, str) and _is_credential(name, item, secrets_in) else _mask(item)
        for name, item in value.items()
    }


def _is_credential(name: str, value: str, secrets_in: Any) -> bool:
    """Return whether a setting's name says that it is a secret, and not the name of a variable or file."""
    return not name.endswith(("_env", "_file")) and bool(secrets_in({name: value}))


_WIDTH = 100
_HEAD = f"""\
# {FILE_NAME}: every setting of slipform with its default.
# Change what you like and delete the rest; `slipform doctor` checks the file."""


@dataclass(frozen=True, slots=True)
class _Docs:
    """The docstrings of a class of settings and its fields."""

    text: str
    fields: dict[str, str]


def settings_template() -> str:
    """Return a settings file with every setting, its default and its docstring.

    >>> from slipform.config import read_settings
    >>> read_settings(settings_template()) == Settings()
    True
    """
    docs = _docs()
    return "\n".join([_HEAD, *_fields(Settings, docs, 0)]) + "\n"


def _docs() -> dict[str, _Docs]:
    """Return the docstrings of the settings' classes and fields, from the source."""
    docs = {}
    modules = {config, *(sys.modules[seams.load(target).__module__] for target in seams.BLOCKS.values())}
    for node in (node for module in modules for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.ClassDef):
            fields = {
                field.target.id: _docstring_text(following)
                for field, following in itertools.pairwise(node.body)
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            }
            docs[node.name] = _Docs(ast.get_docstring(node) or "", fields)
    return docs


def _docstring_text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def _fields(kind: type[BaseModel], docs: dict[str, _Docs], depth: int) -> Iterator[str]:
    """Yield the lines of a settings class as YAML, with its docs as comments."""
    for name, field in kind.model_fields.items():
        inner = _settings_class_of(field.annotation)
        summary = "" if inner is None else docs[inner.__name__].text.partition("\n")[0]
        parts = (summary, docs[kind.__name__].fields.get(name, ""), _choices(field.annotation))
        if depth == 0:
            yield ""
        yield from _comment(" ".join(filter(None, parts)), depth)
        if isinstance(field.default, BaseModel):
            yield f"{'  ' * depth}{name}:"
            yield from _fields(type(field.default), docs, depth + 1)
            continue
        yield from _setting(name, "…" if field.is_required() else field.default, depth)
        if inner is not None:
            yield from _example(name, inner, docs, depth, has_name=get_origin(field.annotation) is dict)


def _example(name: str, inner: type[BaseModel], docs: dict[str, _Docs], depth: int, *, has_name: bool) -> Iterator[str]:
    """Yield an example of a setting that is empty by default, as a comment."""
    yield f"{'  ' * depth}# In its place, for example:"
    lines = [
        f"{name}:",
        *(["  NAME:"] if has_name else []),
        *_fields(inner, docs, depth + 2 if has_name else depth + 1),
    ]
    yield from (f"{'  ' * depth}#   {line}" for line in lines)


def _setting(name: str, value: Any, depth: int) -> Iterator[str]:
    line = yaml.safe_dump({name: value}, allow_unicode=True, width=10_000)
    yield textwrap.indent(line.rstrip("\n"), "  " * depth)


def _comment(text: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for paragraph in text.split("\n"):
        yield from textwrap.wrap(paragraph, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _choices(annotation: Any) -> str:
    """Return the values of a `Literal` setting as text."""
    if get_origin(annotation) is Literal:
        return f"One of: {', '.join(map(str, get_args(annotation)))}."
    return ""


def _settings_class_of(annotation: Any) -> type[BaseModel] | None:
    """Return the class of settings in an annotation, if any."""
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_settings_class_of, get_args(annotation))), None)
