"""`slipform init`, the settings in force."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin
from urllib.parse import urlsplit, urlunsplit

import typer
import yaml
from pydantic import BaseModel

from slipform import config
from slipform.cli.terminal import say, write
from slipform.config import FILE_NAME, Settings

_QUERY_SECRET: Final = re.compile(r"((?:key|token|secret|password)[^=&]*=)[^&#]+", re.IGNORECASE)


def effective(settings: Settings) -> str:
    """All settings as YAML; passwords in addresses and headers that hold credentials are masked.

    >>> from slipform.config import read_settings
    >>> "hunter22" in effective(read_settings("redis: {url: 'redis://me:hunter22@host/0'}"))
    False
    """
    import yaml

    return yaml.safe_dump(_masked(settings.model_dump(mode="json")), sort_keys=False, allow_unicode=True)


def checked(settings: Settings, host: str | None, port: int | None) -> None:
    """Print what `serve` would run with; a mistake in it is raised as when it starts."""
    from slipform.cli.terminal import write
    from slipform.engine.setup import router_of

    router_of(settings).close()
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    server = settings.server.model_copy(update=given)
    write(effective(settings.model_copy(update={"server": server})), end="")


def masked_url(url: str) -> str:
    """An address without its password and without keys in its query.

    >>> masked_url("redis://me:hunter22@host:6379/0")
    'redis://me:[redacted]@host:6379/0'
    """
    from slipform.providers.auth import MASK

    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    name, colon, _ = login.partition(":")
    netloc = f"{name}{colon}{MASK if colon else ''}{at}{host}"
    query = _QUERY_SECRET.sub(rf"\1{MASK}", parts.query)
    return urlunsplit((parts.scheme, netloc, parts.path, query, parts.fragment))


def _masked(value: Any) -> Any:
    from slipform.providers.auth import MASK, secrets_in

    if isinstance(value, str):
        return masked_url(value) if "://" in value else value
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: MASK if isinstance(item, str) and _is_credential(name, item, secrets_in) else _masked(item)
        for name, item in value.items()
    }


def _is_credential(name: str, value: str, secrets_in: Any) -> bool:
    """By its name; the names of environment variables and files are no secrets."""
    return not name.endswith(("_env", "_file")) and bool(secrets_in({name: value}))


def init(
    file: Annotated[Path, typer.Argument(help="Where to write; - is standard output.")] = Path("slipform.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a settings file with every setting, its default and what it means."""
    from slipform.errors import RequestError

    text = commented()
    if str(file) == "-":
        write(text, end="")
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise RequestError(
            "The file is there already; nothing was written", where=str(file), hint="Write over it with --force."
        ) from None
    except OSError as error:
        raise RequestError(f"The file cannot be written: {error.strerror}", where=str(file)) from error
    say(f"Wrote {file}. Change what you like, then check it: slipform doctor", fg="green")


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
