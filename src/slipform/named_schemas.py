"""Find the schema that a person names: a type, a JSON Schema, a file, `module:Class`, fields, or a registered name."""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipform.errors import ConfigError, RequestError, SlipformError

if TYPE_CHECKING:
    from slipform.config import Settings
    from slipform.schema import Schema

HELP: Final = "A JSON Schema: a file, module:Class, a registered name, fields ('name, age int'), or JSON."

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")
_SUFFIXES: Final = (".json", ".yaml", ".yml")


def schema_named(name: Any, settings: Settings) -> Schema[Any]:
    """Return the named schema; raises `ConfigError` or `SchemaError` with what is wrong.

    >>> from slipform.config import Settings
    >>> schema_named("generic_list", Settings()).name
    'generic_list'
    """
    from slipform.schema import Registry, Schema
    from slipform.schema.concise import concise_schema, is_concise
    from slipform.schema.registry import read_file

    if not isinstance(name, str | Path):
        return Schema.of(name)
    name = str(name)
    if name.lstrip().startswith("{"):
        return Schema.of(name)
    if _REFERENCE.match(name):
        return _from_class(name)
    path = Path(name)
    if _is_file(path):
        return read_file(path)
    if is_concise(name) and path.suffix.lower() not in _SUFFIXES:
        return Schema.of(concise_schema(name))
    if path.suffix.lower() in _SUFFIXES or len(path.parts) > 1 or path.is_dir():
        raise _missing_file(path)
    try:
        return Registry.load(settings.schemas).get(name)
    except RequestError as error:
        raise ConfigError(
            f"Unknown schema {name!r}: neither a file nor a registered name",
            hint=f"{error.hint} Or give a file, module:Class, or fields such as 'name str' or 'name, age int'.",
        ) from None


def schema_for_command(name: str, config: Path | None) -> Schema[Any]:
    """Return the schema that an argument names, with the registered ones of this settings file."""
    from slipform.config import load_settings

    return schema_named(name, load_settings(config))


def _from_class(name: str) -> Schema[Any]:
    from slipform.schema import Registry

    if "" not in sys.path:
        sys.path.insert(0, "")  # modules of the working directory, as with `python -m`
    try:
        return Registry.load(references={"given": name}).get("given")
    except SlipformError:
        raise
    except Exception as error:  # the user's own module may raise anything
        raise ConfigError(
            f"The module cannot be imported: {type(error).__name__}: {error}", where=name, hint="Correct the module."
        ) from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # longer than a name may be
        return False


def _missing_file(path: Path) -> ConfigError:
    if path.is_dir():
        return ConfigError("The schema is a folder, not a file", where=str(path), hint="Name a file in it.")
    folder = path.parent
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    similar = [str(folder / name) for name in difflib.get_close_matches(path.name, names, n=3)]
    hint = "Give a file, module:Class, or a registered name."
    if similar:
        hint = f"Did you mean {', '.join(similar)}?"
    return ConfigError("The schema cannot be read: the file does not exist", where=str(path), hint=hint)
