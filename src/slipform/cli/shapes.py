"""A schema as it is named on the command line."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import orjson

from slipform.errors import ConfigError


def shape_of(given: str) -> Any:
    """The shape that a file or `module:Class` names."""
    path = Path(given)
    if not path.suffix and ":" in given:
        return _load_class(given)
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"The schema cannot be read: {error.strerror}", where=given, hint="Give a file, or module:Class."
        ) from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"The schema is not JSON: {error}", where=given) from error
    if not isinstance(document, dict):
        raise ConfigError(f"The schema is JSON but not an object: {json.dumps(document)[:40]}", where=given)
    return document


def _load_class(given: str) -> Any:
    module, _, name = given.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"There is no {name!r} to import: {error}", where=given, hint="Write it as module:Class."
        ) from error
