"""Look up schemas by name: built-in ones, files in a folder, `module:Class` references."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slipform.errors import ConfigError, RequestError, SchemaError
from slipform.schema.limits import MAX_SCHEMA_BYTES
from slipform.schema.python_types import Schema

MINIMAL_OBJECT: Mapping[str, Any] = MappingProxyType({"type": "object", "additionalProperties": False})
"""Accepts only `{}`."""
GENERIC_LIST: Mapping[str, Any] = MappingProxyType({"type": "array", "items": {"type": "object"}})
"""Accepts any list of objects; it does not meet the vendors' strict rules."""

_SUFFIXES = frozenset({".json", ".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class Registry:
    """Schemas by name.

    >>> sorted(Registry.load().names)
    ['generic_list', 'minimal_object']
    """

    schemas: Mapping[str, Schema[Any]]

    @classmethod
    def load(cls, folder: str | Path | None = None, references: Mapping[str, str] | None = None) -> Registry:
        """The built-in schemas, those in a folder's `.json` and `.yaml` files, and `module:Class` references by name.

        The name of a schema is its file's name without the suffix. Raises `ConfigError` with the file or the reference
        for a duplicate name, and for a schema that cannot be read.
        """
        schemas: dict[str, Schema[Any]] = {
            "minimal_object": Schema("minimal_object", MINIMAL_OBJECT),
            "generic_list": Schema("generic_list", GENERIC_LIST),
        }
        sources = dict.fromkeys(schemas, "built in")
        for path in _files(folder):
            _claim(path.stem, str(path), sources)
            schemas[path.stem] = read_file(path)
        for name, reference in (references or {}).items():
            _claim(name, reference, sources)
            schemas[name] = _from_reference(reference)
        return cls(MappingProxyType(schemas))

    @property
    def names(self) -> list[str]:
        """The available names."""
        return list(self.schemas)

    def get(self, name: str) -> Schema[Any]:
        """Return the schema of that name; raises `RequestError` with the available names for any other.

        >>> Registry.load().get("minimal_object").validate({})
        []
        """
        if name not in self.schemas:
            names = ", ".join(sorted(self.schemas))
            raise RequestError(f"No schema is named {name!r:.100}", hint=f"The names are: {names}.")
        return self.schemas[name]


def _claim(name: str, source: str, sources: dict[str, str]) -> None:
    if name in sources:
        raise ConfigError(
            f"Two schemas are named {name!r}: {sources[name]} and {source}", where=source, hint="Rename one of them."
        )
    sources[name] = source


def _files(folder: str | Path | None) -> list[Path]:
    if folder is None:
        return []
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(
            "The folder of schemas does not exist", where=str(root), hint="Create it or correct the path."
        )
    candidates = (path for path in root.iterdir() if path.suffix.lower() in _SUFFIXES and not path.name.startswith("."))
    return sorted(path for path in candidates if path.is_file())


def read_file(path: Path) -> Schema[Any]:
    """Return the schema in a `.json` or `.yaml` file, named after it."""
    try:
        if path.stat().st_size > 2 * MAX_SCHEMA_BYTES:
            raise ConfigError(f"This schema's file is over {2 * MAX_SCHEMA_BYTES:,} bytes long", where=str(path))
        text = path.read_text("utf-8")
        document = _parse(text, path.suffix)
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"This schema cannot be read: {reason}", where=str(path), hint="Correct the file.") from error
    try:
        return Schema(path.stem, document)
    except SchemaError as error:
        raise ConfigError(f"The file is not a usable JSON Schema: {error}", where=str(path)) from error


def _parse(text: str, suffix: str) -> Any:
    if suffix.lower() == ".json":
        return json.loads(text)
    from slipform.yaml_reader import read_yaml  # imported only where schemas are stored as YAML

    return read_yaml(text).value


def _from_reference(reference: str) -> Schema[Any]:
    """Return the schema of the Python type `module:Class`; raises `ConfigError` where it does not exist."""
    module, colon, names = reference.partition(":")
    if not (module and colon and names):
        raise ConfigError("A reference to a Python type is written `module:Class`", where=reference)
    try:
        target: Any = importlib.import_module(module)
        for name in names.split("."):
            target = getattr(target, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"This Python type cannot be found: {error}", where=reference) from error
    try:
        return Schema.of(target)
    except SchemaError as error:
        raise ConfigError(f"This is not a type that a schema can be made of: {error}", where=reference) from error
