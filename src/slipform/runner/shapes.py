"""Schemas as people name them: a type, a JSON Schema, a file, `module:Class`, or an entry of the registry."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from slipform.config import Settings
from slipform.errors import ConfigError, SchemaError
from slipform.schema import Schema
from slipform.schema.registry import Registry


def find_schema(given: Any, settings: Settings) -> Schema[Any]:
    """The schema that is meant; a name that means nothing is a `ConfigError` or a `RequestError` that says what to do.

    >>> find_schema("generic_list", Settings()).name
    'generic_list'
    """
    if isinstance(given, Path):
        return _from_file(given)
    if not isinstance(given, str):
        return Schema.of(given)
    if given.lstrip().startswith("{"):
        return Schema.of(given)
    if (path := Path(given)).suffix.lower() == ".json" or path.is_file():
        return _from_file(path)
    registry = Registry.load(settings.schemas)
    if given in registry.names or ":" not in given:
        return registry.get(given)
    sys.path.insert(0, "")  # the command finds modules where it is run, as `python -m` does
    try:
        return Registry.load(references={given: given}).get(given)
    finally:
        sys.path.remove("")


def _from_file(path: Path) -> Schema[Any]:
    try:
        return Schema(path.stem, Schema.of(path.read_text("utf-8")).document)
    except OSError as error:
        raise ConfigError(
            f"The schema cannot be read: {error.strerror}",
            where=str(path),
            hint="Give a JSON file, module:Class, or a name of the registry.",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("The schema is not UTF-8 text", where=str(path)) from error
    except SchemaError as error:
        raise ConfigError(f"This file holds no usable JSON Schema: {error}", where=str(path)) from error
