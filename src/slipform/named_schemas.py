"""Schemas as people name them: a type, a JSON Schema, a file, `module:Class`, or a registered name."""

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

HELP: Final = "A JSON Schema: a file, module:Class, a registered name, or JSON."

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")
_SUFFIXES: Final = (".json", ".yaml", ".yml")


def schema_named(given: Any, settings: Settings) -> Schema[Any]:
    """The schema that is meant; a `ConfigError` or `SchemaError` says what is wrong with it.

    >>> from slipform.config import Settings
    >>> schema_named("generic_list", Settings()).name
    'generic_list'
    """
    from slipform.schema import Registry, Schema
    from slipform.schema.registry import read_file

    if not isinstance(given, str | Path):
        return Schema.of(given)
    given = str(given)
    if given.lstrip().startswith("{"):
        return Schema.of(given)
    if _REFERENCE.match(given):
        return _from_class(given)
    path = Path(given)
    if path.is_file():
        return read_file(path)
    if path.suffix.lower() in _SUFFIXES or len(path.parts) > 1 or path.is_dir():
        raise _no_file(path)
    try:
        return Registry.load(settings.schemas).get(given)
    except RequestError as error:
        raise ConfigError(
            f"There is no schema {given!r}: neither a file nor a registered name",
            hint=f"{error.hint} Or give a file, or module:Class.",
        ) from None


def _from_class(given: str) -> Schema[Any]:
    from slipform.schema import Registry

    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: modules of the folder one works in
    try:
        return Registry.load(references={"given": given}).get("given")
    except SlipformError:
        raise
    except Exception as error:  # the user's own module may raise anything
        raise ConfigError(
            f"The module cannot be imported: {type(error).__name__}: {error}", where=given, hint="Correct the module."
        ) from error


def _no_file(path: Path) -> ConfigError:
    if path.is_dir():
        return ConfigError("The schema is a folder, not a file", where=str(path), hint="Name a file in it.")
    folder = path.parent
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    near = [str(folder / name) for name in difflib.get_close_matches(path.name, names, n=3)]
    hint = f"Did you mean {', '.join(near)}?" if near else "Give a file, module:Class, or a registered name."
    return ConfigError("The schema cannot be read: there is no such file", where=str(path), hint=hint)
